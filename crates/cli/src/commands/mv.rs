//! `mv`: moves and renames within a subvolume.

use butternut::{FileKind, Follow, RenameFlags};

use super::change::{Change, Place, failed, refuse_subvolume};
use super::walk::WalkPath;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, MvArgs};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &MvArgs, out: &mut Output) -> Outcome {
    let paths: Vec<Vec<u8>> = args.paths.iter().map(text::bytes).collect();
    let Some((dest, sources)) = paths.split_last() else {
        return Err(Failure::new("mv", "nothing is named"));
    };
    if sources.len() > 1 && args.exchange {
        return Err(Failure::new("--exchange", "more than two names").cure("name two"));
    }
    let mut change = Change::open(global, &args.volume)?;
    let is_into = !args.exchange && is_directory(&change, dest)?;
    if sources.len() > 1 && !is_into {
        return Err(Failure::new(text::escaped(dest), "is no directory to move several things to")
            .cure("make it with `butternut mkdir`, or move one"));
    }
    for source in sources {
        let from = change.place(source)?;
        let to = if is_into {
            let dir = change.find(dest, Follow::Last)?;
            Change::within(dir, dest, &from.name)
        } else {
            change.place(dest)?
        };
        rename(&mut change, args, &from, &to)?;
    }
    change.finish(global, out, |object| object)
}

/// Whether a path leads to a directory, through a symlink if need be.
pub(super) fn is_directory(change: &Change, path: &[u8]) -> Result<bool, Failure> {
    match change.filesystem().resolve(path, Follow::Last) {
        Ok(id) => Ok(change.stat(id, path)?.kind == FileKind::Directory),
        Err(butternut::Error::NotFound) => Ok(false),
        Err(error) => Err(failed(path, &error)),
    }
}

fn rename(change: &mut Change, args: &MvArgs, from: &Place, to: &Place) -> Result<(), Failure> {
    let moved = change.find(&from.path, Follow::NotLast)?;
    let shown = WalkPath::new(from.path.clone());
    refuse_subvolume(from.dir, &change.stat(moved, &from.path)?, &shown, "moved")?;
    let there = change.occupant(to)?;
    if (from.dir, &from.name) == (to.dir, &to.name) {
        return Err(Failure::new(text::escaped(&from.path), "is where it is to go already"));
    }
    let flags = RenameFlags {
        no_replace: args.no_clobber,
        exchange: args.exchange,
        ..RenameFlags::default()
    };
    let named = if args.exchange && there.is_some() { from } else { to };
    let (old, new) = ((from.dir, from.name.as_slice()), (to.dir, to.name.as_slice()));
    change.filesystem().rename(old, new, flags).map_err(|error| failed(&named.path, &error))?;
    // Two names of one inode: a rename leaves both, and a move leaves one.
    if there == Some(moved) && !args.exchange {
        let unlinked = change.filesystem().unlink(from.dir, &from.name);
        unlinked.map_err(|error| failed(&from.path, &error))?;
    }
    if args.exchange {
        change.did("exchanged", &from.path);
        change.did("exchanged", &to.path);
    } else {
        change.did("moved", &from.path);
        change.did("made", &to.path);
    }
    Ok(())
}
