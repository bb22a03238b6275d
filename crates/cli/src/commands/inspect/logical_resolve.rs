//! `inspect logical-resolve`: prints the files that contain a byte at a logical address.
//!
//! Paths are relative to the top-level subvolume. An inode without a path is printed by number.

use std::io::Write;

use butternut::inspect::ExtentOwner;
use butternut::{Error, FileId};

use crate::args::{GlobalArgs, LogicalResolveArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &LogicalResolveArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let what = format!("logical address {}", args.logical);
    let owners =
        opened.filesystem.owners_of_logical(args.logical, args.any_offset).or_else(|error| {
            let not_found = matches!(error, Error::NotFound);
            if not_found { Ok(Vec::new()) } else { Err(Failure::of(&*what, &error)) }
        })?;
    if owners.is_empty() {
        return Err(Failure::new(what, "no file contains it").hint(
            "it may be metadata, free space or past the end; -o also finds other parts of extents",
        ));
    }
    let mut list = json::List::default();
    for owner in owners {
        let paths = if args.no_paths { Vec::new() } else { paths(&opened, &owner)? };
        if global.json {
            let object = json::Object::new()
                .put("subvolume", owner.subvolume)
                .put("inode", owner.ino)
                .put("offset", owner.offset);
            let paths = paths.iter().map(|path| json::Object::new().name("path", path).into());
            list.push(out, object.put("paths", paths.collect::<Vec<serde_json::Value>>()))?;
            continue;
        }
        for path in &paths {
            let shown = out.display_name(path);
            out.line(&shown)?;
        }
        if paths.is_empty() {
            let ExtentOwner { subvolume, ino, offset } = owner;
            writeln!(out, "inode {ino} offset {offset} root {subvolume}")?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}

/// Returns the paths of the owner from the top level; none if its subvolume has been deleted.
fn paths(opened: &OpenVolume, owner: &ExtentOwner) -> Result<Vec<Vec<u8>>, Failure> {
    let filesystem = &opened.filesystem;
    let what = || format!("inode {} of subvolume {}", owner.ino, owner.subvolume);
    let subvolume =
        filesystem.subvolume(owner.subvolume).map_err(|error| Failure::of(what(), &error))?;
    let Some(above) = subvolume.path else { return Ok(Vec::new()) };
    let id = FileId::new(owner.subvolume, owner.ino);
    let inside = filesystem.paths_of(id).map_err(|error| Failure::of(what(), &error))?;
    let top = [b"/", above.as_slice()].concat();
    Ok(inside.iter().map(|path| text::joined(&top, path)).collect())
}
