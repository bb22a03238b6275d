//! `rm`: removes files and directory trees.
//!
//! 1. Symlinks are not followed: the command removes the named entries, and below a directory only
//!    its contents.
//! 2. A subvolume is refused, and with it the whole command. The placeholder of a subvolume in a
//!    snapshot is removed as by rmdir(2).
//! 3. A directory is entered once, and paths are joined when they are printed, as in a
//!    [walk](super::walk). A directory that contains itself ends the command.

use std::collections::HashSet;

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, Stat};

use super::transaction::{Location, Transaction, failed, refuse_subvolume};
use super::walk::{WalkPath, directory_cycle};
use crate::args::{GlobalArgs, RmArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 4096;

/// An entry to be removed.
struct Entry {
    dir: FileId,
    name: Vec<u8>,
    path: WalkPath,
}

/// A directory whose contents are being removed.
struct Level {
    at: Entry,
    id: FileId,
    entries: std::vec::IntoIter<DirEntry>,
}

pub(crate) fn run(global: &GlobalArgs, args: &RmArgs, out: &mut Output) -> Outcome {
    let mut transaction = Transaction::open_to_delete(global, &args.volume)?;
    for path in &args.paths {
        remove(&mut transaction, args, &text::bytes(path))?;
    }
    transaction.finish(global, out, |object| object)
}

fn remove(transaction: &mut Transaction, args: &RmArgs, path: &[u8]) -> Result<(), Failure> {
    let found = match transaction.filesystem().resolve(path, butternut::Follow::NotLast) {
        Err(Error::NotFound) if args.force => return Ok(()),
        found => found.map_err(|error| transaction.failed(path, &error))?,
    };
    if found == transaction.filesystem().root() {
        return Err(Failure::new(
            text::escaped(path),
            "is the root directory and cannot be removed",
        )
        .hint("name its entries"));
    }
    let location = transaction.locate(path)?;
    let stat = transaction.stat(found, path)?;
    refuse_subvolume_itself(location.dir, &stat, &WalkPath::new(path.to_vec()))?;
    if stat.kind != FileKind::Directory {
        return unlink(transaction, &location);
    }
    if args.recursive {
        return remove_tree(transaction, location, found);
    }
    if !args.dir {
        return Err(Failure::new(text::escaped(path), "is a directory")
            .hint("`rm -r` removes it and its contents, `rm -d` removes it if it is empty"));
    }
    rmdir(transaction, &location)
}

fn remove_tree(
    transaction: &mut Transaction,
    location: Location,
    id: FileId,
) -> Result<(), Failure> {
    let top = Entry { dir: location.dir, name: location.name, path: WalkPath::new(location.path) };
    let mut entered = HashSet::new();
    let mut levels = vec![enter(transaction, &mut entered, top, id)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            if let Some(done) = levels.pop() {
                remove_emptied(transaction, &done.at)?;
            }
            continue;
        };
        let path = level.at.path.child(entry.name.clone());
        let at = Entry { dir: level.id, name: entry.name, path };
        if entry.kind != FileKind::Directory {
            at.remove(transaction, Filesystem::unlink)?;
            continue;
        }
        let stat = transaction.filesystem().stat(entry.id).map_err(|error| at.failed(&error))?;
        refuse_subvolume_itself(at.dir, &stat, &at.path)?;
        if levels.len() >= DEPTH_MAX {
            return Err(at.failed(&Error::NameTooLong));
        }
        levels.push(enter(transaction, &mut entered, at, entry.id)?);
    }
    Ok(())
}

/// Removes a directory whose listed contents are removed. A damaged directory may have entries that
/// only their hash finds, which `rm` can remove by their names.
fn remove_emptied(transaction: &mut Transaction, at: &Entry) -> Result<(), Failure> {
    match transaction.filesystem().rmdir(at.dir, &at.name) {
        Err(Error::NotEmpty) => {
            let why = "the directory is damaged: it has entries that its listing does not show";
            Err(Failure::new(text::escaped(&at.path.bytes()), why).hint(
                "`butternut inspect dump-tree` shows their names, and `butternut rm -r` removes \
                 each by its path",
            ))
        }
        done => {
            done.map_err(|error| at.failed(&error))?;
            transaction.record_at("removed", &at.path);
            Ok(())
        }
    }
}

/// Refuses a subvolume, but not a placeholder (law 2).
fn refuse_subvolume_itself(dir: FileId, stat: &Stat, path: &WalkPath) -> Result<(), Failure> {
    if stat.id.is_placeholder() {
        return Ok(());
    }
    refuse_subvolume(dir, stat, path, "removed")
}

/// Reads a directory (law 3).
fn enter(
    transaction: &Transaction,
    entered: &mut HashSet<FileId>,
    at: Entry,
    id: FileId,
) -> Result<Level, Failure> {
    if !entered.insert(id) {
        return Err(at.failed(&directory_cycle()));
    }
    let entries = transaction.filesystem().read_dir(id, FIRST_ENTRY).and_then(Iterator::collect);
    let entries: Vec<DirEntry> = entries.map_err(|error| at.failed(&error))?;
    Ok(Level { at, id, entries: entries.into_iter() })
}

impl Entry {
    fn failed(&self, error: &Error) -> Failure {
        failed(&self.path.bytes(), error)
    }

    fn remove(
        &self,
        transaction: &mut Transaction,
        how: impl FnOnce(&Filesystem, FileId, &[u8]) -> butternut::Result<()>,
    ) -> Result<(), Failure> {
        how(transaction.filesystem(), self.dir, &self.name).map_err(|error| self.failed(&error))?;
        transaction.record_at("removed", &self.path);
        Ok(())
    }
}

fn unlink(transaction: &mut Transaction, location: &Location) -> Result<(), Failure> {
    let removed = transaction.filesystem().unlink(location.dir, &location.name);
    removed.map_err(|error| failed(&location.path, &error))?;
    transaction.record("removed", &location.path);
    Ok(())
}

fn rmdir(transaction: &mut Transaction, location: &Location) -> Result<(), Failure> {
    let removed = transaction.filesystem().rmdir(location.dir, &location.name);
    removed.map_err(|error| failed(&location.path, &error))?;
    transaction.record("removed", &location.path);
    Ok(())
}
