//! `mv`: moves and renames files within a subvolume, and subvolumes.
//!
//! 1. The rename of a subvolume commits at once, so it is alone in its transaction.
//! 2. A command does not replace what it has made: two files of one name are not moved over each
//!    other ([`MadeNames`]).

use std::collections::HashSet;

use butternut::{Error, FileId, FileKind, Follow, RenameFlags};

use super::transaction::{Location, Transaction, failed, refuse_subvolume};
use super::walk::WalkPath;
use crate::args::{GlobalArgs, MvArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &MvArgs, out: &mut Output) -> Outcome {
    let paths: Vec<Vec<u8>> = args.paths.iter().map(text::bytes).collect();
    let Some((dest, sources)) = paths.split_last() else {
        return Err(Failure::new("mv", "no file is named"));
    };
    if sources.len() > 1 && args.exchange {
        return Err(Failure::new("--exchange", "more than two files are named").hint("name two"));
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let is_into = !args.exchange && is_directory(&transaction, dest)?;
    if sources.len() > 1 && !is_into {
        return Err(Failure::new(
            text::escaped(dest),
            "is not a directory, and several files cannot be moved to one name",
        )
        .hint("create it with `butternut mkdir`, or move one file"));
    }
    let mut made = MadeNames::default();
    for source in sources {
        let from = transaction.locate(source)?;
        let to = if is_into {
            let dir = transaction.find(dest, Follow::Last)?;
            Transaction::location_in(dir, dest, &from.name)
        } else {
            transaction.locate(dest)?
        };
        made.add(&to)?;
        rename(&mut transaction, args, &from, &to)?;
    }
    transaction.finish(global, out, |object| object)
}

/// The names that a command has made or is about to make (law 2).
#[derive(Default)]
pub(super) struct MadeNames(HashSet<(FileId, Vec<u8>)>);

impl MadeNames {
    /// Adds a name.
    ///
    /// # Errors
    /// Fails if it was added before.
    pub(super) fn add(&mut self, to: &Location) -> Result<(), Failure> {
        if self.0.insert((to.dir, to.name.clone())) {
            return Ok(());
        }
        Err(Failure::new(text::escaped(&to.path), "two of the files would get this name")
            .hint("name the destination of one of them in a command of its own"))
    }
}

/// Returns whether a path leads to a directory, following symlinks.
pub(super) fn is_directory(transaction: &Transaction, path: &[u8]) -> Result<bool, Failure> {
    match transaction.filesystem().resolve(path, Follow::Last) {
        Ok(id) => Ok(transaction.stat(id, path)?.kind == FileKind::Directory),
        Err(Error::NotFound) => Ok(false),
        Err(error) => Err(failed(path, &error)),
    }
}

fn rename(
    transaction: &mut Transaction,
    args: &MvArgs,
    from: &Location,
    to: &Location,
) -> Result<(), Failure> {
    let moved = transaction.find(&from.path, Follow::NotLast)?;
    let shown = WalkPath::new(from.path.clone());
    let stat = transaction.stat(moved, &from.path)?;
    let is_subvolume = stat.id.is_subvolume_root() && stat.id.subvolume != from.dir.subvolume;
    if is_subvolume && args.paths.len() > 2 {
        return Err(Failure::new(text::escaped(&from.path), "is a subvolume among other files")
            .hint("move it alone"));
    }
    if !is_subvolume {
        refuse_subvolume(from.dir, &stat, &shown, "moved")?;
    }
    let there = transaction.existing(to)?;
    let kind = match there {
        Some(there) if args.exchange => transaction.stat(there, &to.path)?.kind,
        _ => stat.kind,
    };
    if kind != FileKind::Directory {
        to.refuse_slash()?;
    }
    if (from.dir, &from.name) == (to.dir, &to.name) {
        return Err(Failure::new(text::escaped(&from.path), "is already at the destination"));
    }
    let flags = RenameFlags {
        no_replace: args.no_clobber,
        exchange: args.exchange,
        ..RenameFlags::default()
    };
    let named = if args.exchange && there.is_some() { from } else { to };
    let (old, new) = ((from.dir, from.name.as_slice()), (to.dir, to.name.as_slice()));
    transaction.filesystem().rename(old, new, flags).map_err(|error| {
        let is_of_source = matches!(error, Error::ReadOnly { .. })
            && transaction.filesystem().subvolume(from.dir.subvolume).is_ok_and(|it| it.read_only);
        transaction.failed(if is_of_source { &from.path } else { &named.path }, &error)
    })?;
    // If both are names of one inode, rename(2) keeps both; mv(1) removes the old name.
    if there == Some(moved) && !args.exchange {
        let unlinked = transaction.filesystem().unlink(from.dir, &from.name);
        unlinked.map_err(|error| failed(&from.path, &error))?;
    }
    if args.exchange {
        transaction.record("exchanged", &from.path);
        transaction.record("exchanged", &to.path);
    } else {
        transaction.record("moved", &from.path);
        transaction.record("made", &to.path);
    }
    Ok(())
}
