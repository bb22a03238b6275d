//! `inspect logical-resolve`: prints the files that contain a byte at a logical address.
//!
//! Paths are relative to the top-level subvolume. An inode without a path is printed by number.

use std::io::Write;

use butternut::inspect::ExtentOwner;

use super::only_directory;
use crate::args::{GlobalArgs, LogicalResolveArgs};
use crate::control::Request;
use crate::control::logical_owners::{LogicalOwner, LogicalRequest, OwnerError};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::Output;
use crate::output::json::{self, Object};
use crate::volume::OpenVolume;

/// The command, for messages of the process of a mount.
const COMMAND: &str = "inspect logical-resolve";

pub(crate) fn run(global: &GlobalArgs, args: &LogicalResolveArgs, out: &mut Output) -> Outcome {
    let LogicalResolveArgs { logical, any_offset, no_paths, .. } = *args;
    let request = LogicalRequest { logical, any_offset, with_paths: !no_paths };
    if let Some(mounted) = only_directory(&args.volume)? {
        if mounted.is_kernels() {
            let command = format!("btrfs inspect-internal logical-resolve {logical}");
            return Err(mounted.of_kernel(&format!("{command} {}", mounted.shown())));
        }
        let owners: Vec<LogicalOwner> =
            mounted.request(COMMAND, &Request::LogicalResolve(request))?;
        return print(global, logical, owners.into_iter().map(Ok), out);
    }
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let failed = |(what, error): OwnerError| Failure::of(what, &error);
    let owners = request.owners(&opened.filesystem).map_err(failed)?;
    let described =
        |owner: ExtentOwner| request.described(&opened.filesystem, owner).map_err(failed);
    print(global, logical, owners.into_iter().map(described), out)
}

fn print(
    global: &GlobalArgs,
    logical: u64,
    owners: impl ExactSizeIterator<Item = Result<LogicalOwner, Failure>>,
    out: &mut Output,
) -> Outcome {
    if owners.len() == 0 {
        return Err(Failure::new(format!("logical address {logical}"), "no file contains it").hint(
            "it may be metadata, free space or past the end; -o also finds other parts of extents",
        ));
    }
    let mut list = json::List::default();
    for owner in owners {
        let LogicalOwner { subvolume, ino, offset, paths } = owner?;
        if global.json {
            let object =
                Object::new().put("subvolume", subvolume).put("inode", ino).put("offset", offset);
            let paths = paths.iter().map(|path| Object::new().name("path", path).into());
            list.push(out, object.put("paths", paths.collect::<Vec<serde_json::Value>>()))?;
            continue;
        }
        for path in &paths {
            let shown = out.display_name(path);
            out.line(&shown)?;
        }
        if paths.is_empty() {
            writeln!(out, "inode {ino} offset {offset} root {subvolume}")?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}
