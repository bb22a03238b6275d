//! Directories, listed from a cookie on: the index that the volume itself keeps.
//!
//! Every listing ends: what gets a name after a listing began, be it a new name, is not in it.
//! Otherwise a program that renames what it reads would find it again for ever. Laws:
//!
//! 1. The end of a listing belongs to the handle of the directory that a program opened, so that
//!    the listings of other programs do not move it. A volume that is open for reading has no new
//!    names, and its directories are not opened here.
//! 2. A listing begins with a request that does not go on where the last answer to its handle did:
//!    the first one, that after rewinddir(3), and that after seekdir(3), as on kernel btrfs.
//! 3. The kernel does not cache what it lists of a writable volume: from its cache, which all
//!    handles share, a listing would get the names that another listing found later.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use butternut::DirEntry;

use crate::door::Door;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::shown;
use crate::wire::{Dirent, EntryOut, OpenOut, ReleaseIn, TransferIn, op};

/// The open directories of a mount, by the numbers that the kernel was given for them.
#[derive(Default)]
pub(super) struct Listings(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// The number that was given last. None is given twice.
    last: u64,
    open: HashMap<u64, Option<Listing>>,
}

/// How far a handle has been read.
struct Listing {
    /// The cookie from which on entries are left out.
    end: u64,
    /// The cookies at which the last answer began and ended. A program may have had no room for all
    /// entries of it: then the kernel goes on in between.
    answered: RangeInclusive<u64>,
}

impl Listings {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> u64 {
        let mut table = self.table();
        table.last += 1;
        let handle = table.last;
        table.open.insert(handle, None);
        handle
    }

    /// The end of the listing that a request for `cookie` goes on with; `None` where it begins one.
    fn end(&self, handle: u64, cookie: u64) -> Option<u64> {
        let table = self.table();
        let listing = table.open.get(&handle)?.as_ref()?;
        (cookie != 0 && listing.answered.contains(&cookie)).then_some(listing.end)
    }

    /// Notes an answer. The kernel sends the requests of one handle one after the other.
    fn note(&self, handle: u64, listing: Listing) {
        if let Some(known) = self.table().open.get_mut(&handle) {
            *known = Some(listing);
        }
    }

    fn close(&self, handle: u64) {
        self.table().open.remove(&handle);
    }
}

impl Door {
    /// Opens a directory (law 1).
    pub(super) fn open_directory(&self, request: &Request<'_>, reply: &mut Reply) -> Answer<()> {
        if !self.manner.is_writable {
            return Err(Refusal::NO_CALL);
        }
        self.node(request)?;
        // Law 3: the flags ask for no cache.
        reply.put(&OpenOut { fh: self.listings.open(), ..OpenOut::default() })
    }

    pub(super) fn release_directory(&self, request: &mut Request<'_>) -> Answer<()> {
        let release: ReleaseIn = request.take()?;
        self.listings.close(release.fh);
        Ok(())
    }

    /// Adds entries until the kernel's memory is full.
    pub(super) fn list(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let read: TransferIn = request.take()?;
        let room = usize::try_from(read.size).unwrap_or(usize::MAX);
        let is_plus = request.header.opcode == op::READDIRPLUS;
        let dir = self.node(request)?;
        let mut entries = self.filesystem.read_dir(dir, read.offset)?;
        let mut end = u64::MAX;
        // In a volume that is open for reading no name is new.
        if self.manner.is_writable {
            let known = self.listings.end(read.fh, read.offset);
            end = known.map_or_else(|| self.filesystem.end_of_listing(dir), Ok)?;
            entries = entries.until(end);
        }
        let mut last = read.offset;
        for entry in entries {
            let entry = entry?;
            let added = if is_plus {
                self.add_plus(reply, room, &entry)
            } else {
                reply.entry(room, None, &self.dirent(&entry), &entry.name)
            };
            if !added {
                break;
            }
            last = entry.cookie;
        }
        if self.manner.is_writable {
            self.listings.note(read.fh, Listing { end, answered: read.offset..=last });
        }
        Ok(())
    }

    fn dirent(&self, entry: &DirEntry) -> Dirent {
        dirent(entry, self.nodes.number(entry.id))
    }

    fn add_plus(&self, reply: &mut Reply, room: usize, entry: &DirEntry) -> bool {
        let is_dots = entry.name == b"." || entry.name == b"..";
        // Without attributes the name is still shown; whoever asks for the file gets its error.
        // Dots are not counted as told.
        let stat = if is_dots { None } else { self.filesystem.stat(entry.id).ok() };
        let Some(stat) = stat else {
            let dirent = self.dirent(entry);
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

fn dirent(entry: &DirEntry, node: u64) -> Dirent {
    Dirent {
        ino: shown::ino(entry.id, node),
        off: entry.cookie,
        namelen: u32::try_from(entry.name.len()).unwrap_or(0),
        kind: shown::entry_kind(entry.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_end_until_it_is_rewound_and_no_other_moves_it() {
        let listings = Listings::default();
        let (one, other) = (listings.open(), listings.open());
        assert_eq!(listings.end(one, 0), None, "it begins");
        listings.note(one, Listing { end: 10, answered: 0..=5 });
        listings.note(other, Listing { end: 20, answered: 0..=7 });
        assert_eq!(listings.end(one, 5), Some(10));
        assert_eq!(listings.end(one, 3), Some(10), "the program had room for less");
        assert_eq!(listings.end(one, 7), None, "seekdir");
        assert_eq!(listings.end(one, 0), None, "rewinddir");
        assert_eq!(listings.end(other, 7), Some(20));
        listings.close(other);
        assert_eq!(listings.end(other, 7), None);
        listings.note(other, Listing { end: 20, answered: 0..=7 });
        assert_eq!(listings.table().open.len(), 1, "what is closed stays closed");
    }
}
