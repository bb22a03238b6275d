//! `chmod`: permissions, octal or symbolic.

pub(crate) mod mode;

use butternut::{Error, FileId, FileKind, Follow, SetAttributes};

use super::change::{Change, failed};
use super::walk::{Found, Walk, WalkPath};
use crate::failure::{Failure, Outcome};
use crate::flags::{ChmodArgs, GlobalArgs};
use crate::output::{Output, text};
use mode::Mode;

pub(crate) fn run(global: &GlobalArgs, args: &ChmodArgs, out: &mut Output) -> Outcome {
    let mode = Mode::parse(&args.mode)?;
    let mut change = Change::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = change.find(&path, Follow::Last)?;
        if args.recursive {
            let found = all(&change, id, &path)?;
            for found in found.iter().filter(|found| found.kind != FileKind::Symlink) {
                set(&mut change, &mode, found.id, &found.path)?;
            }
        } else {
            set(&mut change, &mode, id, &WalkPath::new(path))?;
        }
    }
    change.finish(global, out, |object| object)
}

fn set(change: &mut Change, mode: &Mode, id: FileId, path: &WalkPath) -> Result<(), Failure> {
    let refused = |error: Error| failed(&path.bytes(), &error);
    let stat = change.filesystem().stat(id).map_err(refused)?;
    let wanted = mode.apply(stat.mode & 0o7777, stat.kind == FileKind::Directory);
    let set = SetAttributes { mode: Some(wanted), ..SetAttributes::default() };
    change.filesystem().set_attributes(id, &set).map_err(refused)?;
    change.did_at("changed", path);
    Ok(())
}

/// A file or directory and everything below it, but not other subvolumes.
pub(super) fn all(change: &Change, id: FileId, path: &[u8]) -> Result<Vec<Found>, Failure> {
    let kind = change.stat(id, path)?.kind;
    let top = Found { path: WalkPath::new(path.to_vec()), id, kind, depth: 0 };
    let mut walk = Walk::new(change.filesystem(), true);
    let mut found = vec![top.clone()];
    let broken = |broken: super::walk::Broken| failed(&broken.path, &broken.error);
    if top.is_directory() {
        walk.enter(&top).map_err(broken)?;
    }
    while let Some(step) = walk.next() {
        let step = step.map_err(broken)?;
        if step.id.subvolume != id.subvolume {
            continue;
        }
        if step.is_directory() {
            walk.enter(&step).map_err(broken)?;
        }
        found.push(step);
    }
    Ok(found)
}
