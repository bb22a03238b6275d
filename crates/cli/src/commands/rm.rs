//! `rm`: removes files and trees.
//!
//! 1. Nothing is followed: what is removed is the name, and below a directory only what is in it.
//! 2. A subvolume is not a directory to be emptied: it is refused, and with it the whole command.

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind};

use super::change::{Change, Place, failed, refuse_subvolume};
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, RmArgs};
use crate::output::{Output, text};

/// Directories inside one another, at most.
const DEPTH_MAX: usize = 4096;

/// A directory that is being emptied.
struct Level {
    place: Place,
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
    refuse_subvolume(place.dir, &stat, path, "removed")?;
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
    let mut levels = vec![enter(change, place, id)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            if let Some(done) = levels.pop() {
                rmdir(change, &done.place)?;
            }
            continue;
        };
        let place = Change::within(level.id, &level.place.path, &entry.name);
        if entry.kind != FileKind::Directory {
            unlink(change, &place)?;
            continue;
        }
        let stat = change.stat(entry.id, &place.path)?;
        refuse_subvolume(place.dir, &stat, &place.path, "removed")?;
        if levels.len() >= DEPTH_MAX {
            return Err(failed(&place.path, &Error::NameTooLong));
        }
        levels.push(enter(change, place, entry.id)?);
    }
    Ok(())
}

fn enter(change: &Change, place: Place, id: FileId) -> Result<Level, Failure> {
    let entries = change.filesystem().read_dir(id, FIRST_ENTRY).and_then(Iterator::collect);
    let entries: Vec<DirEntry> = entries.map_err(|error| failed(&place.path, &error))?;
    Ok(Level { place, id, entries: entries.into_iter() })
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
