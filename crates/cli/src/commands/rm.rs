//! `rm`: removes files and trees.
//!
//! 1. Nothing is followed: what is removed is the name, and below a directory only what is in it.
//! 2. A subvolume is not a directory to be emptied: it is refused, and with it the whole command.
//!    The empty directory that a snapshot shows in place of one is removed as rmdir(2) removes it.
//! 3. A directory is entered once, and paths are joined where they are printed, as in a
//!    [walk](super::walk): a directory that holds itself ends the command.

use std::collections::HashSet;

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem};

use super::change::{Change, Place, failed, refuse_subvolume};
use super::walk::{WalkPath, entered_before};
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, RmArgs};
use crate::output::{Output, text};

/// Directories inside one another, at most.
const DEPTH_MAX: usize = 4096;

/// A name below the directory that is removed.
struct Entry {
    dir: FileId,
    name: Vec<u8>,
    path: WalkPath,
}

/// A directory that is being emptied.
struct Level {
    at: Entry,
    id: FileId,
    entries: std::vec::IntoIter<DirEntry>,
}

pub(crate) fn run(global: &GlobalArgs, args: &RmArgs, out: &mut Output) -> Outcome {
    let mut change = Change::open_to_delete(global, &args.volume)?;
    for path in &args.paths {
        remove(&mut change, args, &text::bytes(path))?;
    }
    change.finish(global, out, |object| object)
}

fn remove(change: &mut Change, args: &RmArgs, path: &[u8]) -> Result<(), Failure> {
    let found = match change.filesystem().resolve(path, butternut::Follow::NotLast) {
        Err(Error::NotFound) if args.force => return Ok(()),
        found => found.map_err(|error| failed(path, &error))?,
    };
    if found == change.filesystem().root() {
        return Err(Failure::new(text::escaped(path), "is the root directory, which stays")
            .cure("name what is in it"));
    }
    let place = change.place(path)?;
    let stat = change.stat(found, path)?;
    if !found.is_placeholder() {
        refuse_subvolume(place.dir, &stat, &WalkPath::new(path.to_vec()), "removed")?;
    }
    if stat.kind != FileKind::Directory {
        return unlink(change, &place);
    }
    if args.recursive {
        return remove_tree(change, place, found);
    }
    if !args.dir {
        return Err(Failure::new(text::escaped(path), "is a directory")
            .cure("`rm -r` removes it with what is in it, `rm -d` if it is empty"));
    }
    rmdir(change, &place)
}

fn remove_tree(change: &mut Change, place: Place, id: FileId) -> Result<(), Failure> {
    let top = Entry { dir: place.dir, name: place.name, path: WalkPath::new(place.path) };
    let mut entered = HashSet::new();
    let mut levels = vec![enter(change, &mut entered, top, id)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            if let Some(done) = levels.pop() {
                done.at.lose(change, Filesystem::rmdir)?;
            }
            continue;
        };
        let path = level.at.path.child(entry.name.clone());
        let at = Entry { dir: level.id, name: entry.name, path };
        if entry.kind != FileKind::Directory {
            at.lose(change, Filesystem::unlink)?;
            continue;
        }
        let stat = change.filesystem().stat(entry.id).map_err(|error| at.failed(&error))?;
        if !entry.id.is_placeholder() {
            refuse_subvolume(at.dir, &stat, &at.path, "removed")?;
        }
        if levels.len() >= DEPTH_MAX {
            return Err(at.failed(&Error::NameTooLong));
        }
        levels.push(enter(change, &mut entered, at, entry.id)?);
    }
    Ok(())
}

/// Reads what is in a directory (law 3).
fn enter(
    change: &Change,
    entered: &mut HashSet<FileId>,
    at: Entry,
    id: FileId,
) -> Result<Level, Failure> {
    if !entered.insert(id) {
        return Err(at.failed(&entered_before()));
    }
    let entries = change.filesystem().read_dir(id, FIRST_ENTRY).and_then(Iterator::collect);
    let entries: Vec<DirEntry> = entries.map_err(|error| at.failed(&error))?;
    Ok(Level { at, id, entries: entries.into_iter() })
}

impl Entry {
    fn failed(&self, error: &Error) -> Failure {
        failed(&self.path.bytes(), error)
    }

    fn lose(
        &self,
        change: &mut Change,
        how: impl FnOnce(&Filesystem, FileId, &[u8]) -> butternut::Result<()>,
    ) -> Result<(), Failure> {
        how(change.filesystem(), self.dir, &self.name).map_err(|error| self.failed(&error))?;
        change.did_at("removed", &self.path);
        Ok(())
    }
}

fn unlink(change: &mut Change, place: &Place) -> Result<(), Failure> {
    let removed = change.filesystem().unlink(place.dir, &place.name);
    removed.map_err(|error| failed(&place.path, &error))?;
    change.did("removed", &place.path);
    Ok(())
}

fn rmdir(change: &mut Change, place: &Place) -> Result<(), Failure> {
    let removed = change.filesystem().rmdir(place.dir, &place.name);
    removed.map_err(|error| failed(&place.path, &error))?;
    change.did("removed", &place.path);
    Ok(())
}
