//! READDIR: lists a directory from a cookie on, which is the index of an entry in the directory.
//!
//! Every listing ends: names that are created after a listing began, also by a rename, are not in
//! it. Otherwise a program that renames every file that it lists would find it again for ever.
//!
//! 1. The end of a listing belongs to a directory handle, so listings of other programs do not move
//!    it. A read-only volume gets no new names, and its directories have no handles.
//! 2. A request begins a new listing unless it continues where the last reply to its handle was. So
//!    the first request begins one, and those after rewinddir(3) and seekdir(3), as on kernel
//!    btrfs.
//! 3. The kernel does not cache listings of a writable volume. All handles share its cache, so a
//!    listing could get names that were created after it began.
//! 4. An error behind the first entry of a reply is reported by the next request, which begins with
//!    that entry. The kernel gets the entries before it, so the lookups that were counted for them
//!    are not lost.

use butternut::server::FilesystemExt;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::ops::RangeInclusive;

use butternut::DirEntry;

use crate::attr;
use crate::connection::protocol::{Dirent, EntryOut, OpenOut, ReleaseIn, TransferIn, op};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::Door;
use crate::errno::{Errno, ErrnoResult};

/// The directory handles of a mount.
#[derive(Default)]
pub(super) struct Listings(Mutex<Table, rank::Listings>);

#[derive(Default)]
struct Table {
    /// The number of the last handle. Numbers are not reused.
    last: u64,
    open: HashMap<u64, Option<Listing>>,
}

/// How far a handle was read.
struct Listing {
    /// Entries from this cookie on are left out.
    end: u64,
    /// The cookies at which the last reply began and ended. A program with room for only a part of
    /// the entries continues in between.
    replied: RangeInclusive<u64>,
}

impl Listings {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    fn open(&self) -> u64 {
        let mut table = self.table();
        table.last += 1;
        let handle = table.last;
        table.open.insert(handle, None);
        handle
    }

    /// Returns the end of the listing that a request at `cookie` continues; `None` where it begins
    /// one.
    fn end(&self, handle: u64, cookie: u64) -> Option<u64> {
        let table = self.table();
        let listing = table.open.get(&handle)?.as_ref()?;
        (cookie != 0 && listing.replied.contains(&cookie)).then_some(listing.end)
    }

    /// Records a reply. The kernel sends the requests of one handle one after another.
    fn record(&self, handle: u64, listing: Listing) {
        if let Some(open) = self.table().open.get_mut(&handle) {
            *open = Some(listing);
        }
    }

    fn close(&self, handle: u64) {
        self.table().open.remove(&handle);
    }
}

impl Door {
    /// Makes a directory handle (law 1).
    pub(super) fn open_directory(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        if !self.options.is_writable {
            return Err(Errno::ENOSYS);
        }
        self.node(request)?;
        // Without cache flags (law 3).
        reply.push(&OpenOut { fh: self.listings.open(), ..OpenOut::default() })
    }

    pub(super) fn release_directory(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        let release: ReleaseIn = request.take()?;
        self.listings.close(release.fh);
        Ok(())
    }

    /// Adds entries until the reply has the size that the kernel asked for.
    pub(super) fn list(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let read: TransferIn = request.take()?;
        let bytes_max = usize::try_from(read.size).unwrap_or(usize::MAX);
        let is_plus = request.header.opcode == op::READDIRPLUS;
        let dir = self.node(request)?;
        let mut entries = self.filesystem.read_dir(dir, read.offset)?;
        let mut end = u64::MAX;
        // On a read-only volume listings end by themselves (law 1).
        if self.options.is_writable {
            let continued = self.listings.end(read.fh, read.offset);
            // A directory whose end cannot be read is listed up to the damaged block (law 4).
            let end_or_none = || self.filesystem.end_of_listing(dir).ok();
            end = continued.or_else(end_or_none).unwrap_or(u64::MAX);
            entries = entries.until(end);
        }
        let mut last = read.offset;
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if last == read.offset => return Err(error.into()),
                // Law 4.
                Err(_) => break,
            };
            if self.hidden_names.has(dir, &entry.name) {
                last = entry.cookie;
                continue;
            }
            let added = if is_plus {
                self.add_plus(reply, bytes_max, &entry)
            } else {
                reply.push_dirent(bytes_max, None, &self.dirent(&entry), &entry.name)
            };
            if !added {
                break;
            }
            last = entry.cookie;
        }
        if self.options.is_writable {
            self.listings.record(read.fh, Listing { end, replied: read.offset..=last });
        }
        Ok(())
    }

    fn dirent(&self, entry: &DirEntry) -> Dirent {
        dirent(entry, self.nodes.node_id(entry.id))
    }

    fn add_plus(&self, reply: &mut Reply, bytes_max: usize, entry: &DirEntry) -> bool {
        let is_dots = entry.name == b"." || entry.name == b"..";
        // Without attributes the name is still listed, and a LOOKUP of it gets the error. The
        // kernel does not count lookups of dots.
        let stat = if is_dots { None } else { self.filesystem.stat(entry.id).ok() };
        let Some(stat) = stat else {
            let dirent = self.dirent(entry);
            return reply.push_dirent(bytes_max, Some(&EntryOut::default()), &dirent, &entry.name);
        };
        let number = self.nodes.count_lookup(&self.filesystem, &stat);
        let plus = attr::entry_out(&stat, number);
        let added = reply.push_dirent(bytes_max, Some(&plus), &dirent(entry, number), &entry.name);
        if !added {
            self.nodes.forget(number, 1);
        }
        added
    }
}

fn dirent(entry: &DirEntry, node: u64) -> Dirent {
    Dirent {
        ino: attr::ino(entry.id, node),
        off: entry.cookie,
        namelen: u32::try_from(entry.name.len()).unwrap_or(0),
        kind: attr::dirent_type(entry.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_end_until_it_is_rewound() {
        let listings = Listings::default();
        let (one, other) = (listings.open(), listings.open());
        assert_eq!(listings.end(one, 0), None, "the first request");
        listings.record(one, Listing { end: 10, replied: 0..=5 });
        listings.record(other, Listing { end: 20, replied: 0..=7 });
        assert_eq!(listings.end(one, 5), Some(10));
        assert_eq!(listings.end(one, 3), Some(10), "the program had room for fewer entries");
        assert_eq!(listings.end(one, 7), None, "seekdir");
        assert_eq!(listings.end(one, 0), None, "rewinddir");
        assert_eq!(listings.end(other, 7), Some(20));
        listings.close(other);
        assert_eq!(listings.end(other, 7), None);
        listings.record(other, Listing { end: 20, replied: 0..=7 });
        assert_eq!(listings.table().open.len(), 1, "a closed handle stays closed");
    }
}
