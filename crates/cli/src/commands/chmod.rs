//! `chmod`: changes file modes, octal or symbolic.

pub(crate) mod mode;

use butternut::{Error, FileId, FileKind, Follow, SetAttributes};

use super::transaction::{Transaction, failed};
use super::walk::{Walk, WalkEntry, WalkPath};
use crate::args::{ChmodArgs, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};
use mode::Mode;

pub(crate) fn run(global: &GlobalArgs, args: &ChmodArgs, out: &mut Output) -> Outcome {
    let mode = Mode::parse(&args.mode)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = transaction.find(&path, Follow::Last)?;
        if args.recursive {
            let found = subtree(&transaction, id, &path)?;
            for found in found.iter().filter(|found| found.kind != FileKind::Symlink) {
                set(&mut transaction, &mode, found.id, &found.path)?;
            }
        } else {
            set(&mut transaction, &mode, id, &WalkPath::new(path))?;
        }
    }
    transaction.finish(global, out, |object| object)
}

fn set(
    transaction: &mut Transaction,
    mode: &Mode,
    id: FileId,
    path: &WalkPath,
) -> Result<(), Failure> {
    let refused = |error: Error| failed(&path.bytes(), &error);
    let stat = transaction.filesystem().stat(id).map_err(refused)?;
    let wanted = mode.apply(stat.mode & 0o7777, stat.kind == FileKind::Directory);
    let set = SetAttributes { mode: Some(wanted), ..SetAttributes::default() };
    transaction.filesystem().set_attributes(id, &set).map_err(refused)?;
    transaction.record_at("changed", path);
    Ok(())
}

/// Returns a file or directory and everything below it, without other subvolumes.
pub(super) fn subtree(
    transaction: &Transaction,
    id: FileId,
    path: &[u8],
) -> Result<Vec<WalkEntry>, Failure> {
    let kind = transaction.stat(id, path)?.kind;
    let top = WalkEntry { path: WalkPath::new(path.to_vec()), id, kind, depth: 0 };
    let mut walk = Walk::new(transaction.filesystem(), true);
    let mut found = vec![top.clone()];
    let broken = |broken: super::walk::WalkError| failed(&broken.path, &broken.error);
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
