//! Directories, listed from a cookie on: the index that the volume itself keeps.
//!
//! Every listing ends: what gets a name after a listing began, be it a new name, is not in it.
//! Otherwise a program that renames what it reads would find it again for ever. Directories are not
//! opened here, so a listing begins with the request for cookie 0, and its end is remembered by
//! directory ([`Ends`]).

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use butternut::{DirEntry, FileId};

use crate::door::Door;
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::shown;
use crate::wire::{Dirent, EntryOut, TransferIn, op};

/// Directories whose end is remembered. A listing of one that was dropped since ends where the
/// directory ends when it goes on.
const ENDS_MAX: usize = 256;

/// Where the last listing of each directory ends, the directory that was asked for last in front.
#[derive(Default)]
pub(super) struct Ends(Mutex<VecDeque<(FileId, u64)>>);

impl Ends {
    /// The end of a listing of `dir`; `find` is called where it begins, or the end is not known.
    fn of(
        &self,
        dir: FileId,
        begins: bool,
        find: impl FnOnce() -> butternut::Result<u64>,
    ) -> butternut::Result<u64> {
        let known = if begins { None } else { self.front(dir) };
        if let Some(end) = known {
            return Ok(end);
        }
        let end = find()?;
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|(other, _)| *other != dir);
        ends.truncate(ENDS_MAX - 1);
        ends.push_front((dir, end));
        Ok(end)
    }

    fn front(&self, dir: FileId) -> Option<u64> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = ends.iter().position(|(known, _)| *known == dir)?;
        let (dir, end) = ends.remove(at)?;
        ends.push_front((dir, end));
        Some(end)
    }
}

impl Door {
    /// Adds entries until the kernel's memory is full.
    pub(super) fn list(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let read: TransferIn = request.take()?;
        let room = usize::try_from(read.size).unwrap_or(usize::MAX);
        let is_plus = request.header.opcode == op::READDIRPLUS;
        let dir = self.node(request)?;
        let mut entries = self.filesystem.read_dir(dir, read.offset)?;
        // In a volume that is open for reading no name is new.
        if self.manner.is_writable {
            let begins = read.offset == 0;
            let end = self.ends.of(dir, begins, || self.filesystem.end_of_listing(dir))?;
            entries = entries.until(end);
        }
        for entry in entries {
            let entry = entry?;
            let added = if is_plus {
                self.add_plus(reply, room, &entry)
            } else {
                reply.entry(room, None, &dirent(&entry, self.nodes.number(entry.id)), &entry.name)
            };
            if !added {
                break;
            }
        }
        Ok(())
    }

    fn add_plus(&self, reply: &mut Reply, room: usize, entry: &DirEntry) -> bool {
        let is_dots = entry.name == b"." || entry.name == b"..";
        // Without attributes the name is still shown; whoever asks for the file gets its error.
        // Dots are not counted as told.
        let stat = if is_dots { None } else { self.filesystem.stat(entry.id).ok() };
        let Some(stat) = stat else {
            let dirent = dirent(entry, self.nodes.number(entry.id));
            return reply.entry(room, Some(&EntryOut::default()), &dirent, &entry.name);
        };
        let number = self.nodes.tell(&self.filesystem, &stat);
        let plus = shown::entry(&stat, number);
        let added = reply.entry(room, Some(&plus), &dirent(entry, number), &entry.name);
        if !added {
            self.nodes.forget(number, 1);
        }
        added
    }
}

fn dirent(entry: &DirEntry, ino: u64) -> Dirent {
    Dirent {
        ino,
        off: entry.cookie,
        namelen: u32::try_from(entry.name.len()).unwrap_or(0),
        kind: shown::entry_kind(entry.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_keeps_the_end_that_it_began_with_and_few_are_kept() {
        let ends = Ends::default();
        let dir = |ino| FileId::new(5, ino);
        assert_eq!(ends.of(dir(1), true, || Ok(10)).unwrap(), 10);
        assert_eq!(ends.of(dir(1), false, || Ok(20)).unwrap(), 10);
        assert_eq!(ends.of(dir(1), true, || Ok(20)).unwrap(), 20);
        for ino in 2..=ENDS_MAX as u64 {
            assert_eq!(ends.of(dir(ino), true, || Ok(ino)).unwrap(), ino);
        }
        assert_eq!(ends.of(dir(1), false, || Ok(30)).unwrap(), 20);
        assert_eq!(ends.of(dir(0), true, || Ok(5)).unwrap(), 5);
        assert_eq!(ends.of(dir(2), false, || Ok(30)).unwrap(), 30, "the oldest is dropped");
        assert_eq!(ends.0.lock().unwrap().len(), ENDS_MAX);
    }
}
