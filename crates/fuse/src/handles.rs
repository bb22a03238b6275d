//! File handles: the open files of a mount, by the numbers in OPEN and CREATE replies.
//!
//! A handle keeps its file open until RELEASE, also when the file has no name any more. Handle
//! numbers start at 1 and are reused. The state that all handles of one file share exists from the
//! first open to the last release.
//!
//! 1. While a handle writes a file through the kernel's page cache, no other handle of the file is
//!    opened with `FOPEN_DIRECT_IO`, and the other way round. The exception is a handle of an
//!    append-only file. When a handle with that flag is mapped, FUSE of Linux 6.18 drops all pages
//!    of the file without taking the inode lock. A write(2) that has changed its page, and has not
//!    been sent yet, would then be hidden by the old bytes of a READ.
//! 2. While fs-verity is being enabled on a file, no handle is opened for writing, and it begins
//!    only while there is none ([`Handles::begin_seal`]).
//! 3. Nothing with a destructor is dropped under the lock of the table.

pub(crate) mod fills;
pub(crate) mod open_cache;
pub(crate) mod write_gates;

use butternut_sys::lock::{RwLock, rank};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use butternut::{File, FileId};

use crate::errno::{Errno, ErrnoResult};
use crate::handles::fills::Fills;
use crate::handles::write_gates::{WriteGates, Writer};

/// The open files of one mount.
#[derive(Default)]
pub(crate) struct Handles {
    table: Arc<RwLock<Table, rank::Handles>>,
    write_gates: Arc<WriteGates>,
}

#[derive(Default)]
struct Table {
    files: Vec<Option<Handle>>,
    free: Vec<usize>,
    shared: HashMap<FileId, Shared>,
    /// Files on which fs-verity is being enabled (law 2).
    sealing: HashSet<FileId>,
}

/// No handle of a file is opened for writing until this is dropped (law 2).
pub(crate) struct SealGate {
    table: Arc<RwLock<Table, rank::Handles>>,
    id: FileId,
}

/// The gates of files that are sealed, for a thread that does not keep the handles.
#[derive(Clone)]
pub(crate) struct SealGates(Arc<RwLock<Table, rank::Handles>>);

struct Handle {
    open: OpenFile,
    /// Of a file that is open for writing.
    writer: Option<Writer>,
}

impl Table {
    fn open_files(&self) -> impl Iterator<Item = &OpenFile> {
        self.files.iter().flatten().map(|handle| &handle.open)
    }
}

/// The state that the handles of one file share.
#[derive(Default)]
struct Shared {
    fills: Arc<Fills>,
    handles: usize,
    /// Handles that write through the kernel's page cache.
    cached_writers: usize,
    /// Handles with `FOPEN_DIRECT_IO`.
    bypassing: usize,
    /// Handles that are open for writing.
    writers: usize,
}

/// How long a call that enables fs-verity waits for the release of handles that were open for
/// writing: the kernel sends RELEASE after close(2) has returned.
const RELEASE_WAIT: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(2);

/// How a file is about to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub(crate) is_writable: bool,
    pub(crate) bypass: Bypass,
}

/// Whether reads and writes of a handle bypass the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bypass {
    Never,
    /// Unless law 1 forbids it.
    Wanted,
    /// Only if law 1 demands it.
    Unwanted,
    Always,
}

/// A file with the mode in which it was opened.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of the open by itself")]
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) is_writable: bool,
    /// It was opened for reading, or for both.
    pub(crate) is_readable: bool,
    /// Reads and writes bypass the kernel's page cache.
    pub(crate) bypasses_cache: bool,
    /// The fills of the kernel's page cache, shared by the handles of the file.
    pub(crate) fills: Arc<Fills>,
    /// The handle appends to an append-only file.
    pub(crate) is_append_only: bool,
    /// The file was opened with `O_SYNC` or `O_DSYNC`.
    pub(crate) is_synchronous: bool,
}

impl Handles {
    /// Counts one handle of a file. Returns the fills of the file, and whether the handle bypasses
    /// the kernel's page cache (law 1). Must be called once before each [`Handles::insert`].
    ///
    /// # Errors
    /// `ETXTBSY` for writing, while fs-verity is being enabled on the file (law 2).
    pub(crate) fn begin_open(&self, id: FileId, how: OpenHow) -> ErrnoResult<(Arc<Fills>, bool)> {
        let mut table = self.table.write();
        if how.is_writable && table.sealing.contains(&id) {
            return Err(Errno::ETXTBSY);
        }
        let shared = table.shared.entry(id).or_default();
        let bypasses_cache = match how.bypass {
            Bypass::Never => false,
            Bypass::Always => true,
            Bypass::Wanted => shared.cached_writers == 0,
            Bypass::Unwanted => how.is_writable && shared.bypassing > 0,
        };
        shared.handles += 1;
        shared.bypassing += usize::from(bypasses_cache);
        shared.cached_writers += usize::from(how.is_writable && !bypasses_cache);
        shared.writers += usize::from(how.is_writable);
        Ok((Arc::clone(&shared.fills), bypasses_cache))
    }

    /// Returns the gates of files that are sealed.
    pub(crate) fn seal_gates(&self) -> SealGates {
        SealGates(Arc::clone(&self.table))
    }

    /// Returns the gates that an open for writing passes.
    pub(crate) fn write_gates(&self) -> &Arc<WriteGates> {
        &self.write_gates
    }

    pub(crate) fn insert(&self, open: OpenFile, writer: Option<Writer>) -> u64 {
        let mut table = self.table.write();
        let at = table.free.pop().unwrap_or_else(|| {
            table.files.push(None);
            table.files.len() - 1
        });
        table.files[at] = Some(Handle { open, writer });
        at as u64 + 1
    }

    pub(crate) fn get(&self, number: u64) -> ErrnoResult<OpenFile> {
        let table = self.table.read();
        let at = index(number).ok_or(Errno::EBADF)?;
        let handle = table.files.get(at).and_then(Option::as_ref).ok_or(Errno::EBADF)?;
        Ok(handle.open.clone())
    }

    /// Returns whether any handle has the file open for writing.
    pub(crate) fn is_open_for_write(&self, id: FileId) -> bool {
        let table = self.table.read();
        table.open_files().any(|open| open.is_writable && open.file.id() == id)
    }

    /// Returns whether any handle may write the file below its end.
    pub(crate) fn has_unrestricted_writer(&self, id: FileId) -> bool {
        let table = self.table.read();
        let is_one =
            |open: &OpenFile| open.is_writable && !open.is_append_only && open.file.id() == id;
        table.open_files().any(is_one)
    }

    /// Returns the number of handles of a file.
    pub(crate) fn handle_count(&self, id: FileId) -> usize {
        let table = self.table.read();
        table.open_files().filter(|open| open.file.id() == id).count()
    }

    /// Returns those of some files that are open for writing.
    pub(crate) fn open_for_write(&self, some: impl Fn(FileId) -> bool) -> BTreeSet<FileId> {
        let table = self.table.read();
        let written = table.open_files().filter(|open| open.is_writable);
        written.map(|open| open.file.id()).filter(|id| some(*id)).collect()
    }

    /// Returns files of a subvolume that are open, at most `limit`.
    pub(crate) fn open_in(&self, subvolume: u64, limit: usize) -> Vec<FileId> {
        let table = self.table.read();
        let open = table.shared.keys().filter(|id| id.subvolume == subvolume);
        open.take(limit).copied().collect()
    }

    /// Returns whether any file is open for writing.
    pub(crate) fn has_open_for_write(&self) -> bool {
        let table = self.table.read();
        table.open_files().any(|open| open.is_writable)
    }

    /// Returns the fills of a file that is open.
    pub(crate) fn fills(&self, id: FileId) -> Option<Arc<Fills>> {
        let table = self.table.read();
        table.shared.get(&id).map(|shared| Arc::clone(&shared.fills))
    }

    /// Removes a handle. Dropping the result closes the file, which may delete it, and then no
    /// longer counts it as open for writing.
    pub(crate) fn remove(&self, number: u64) -> Option<(OpenFile, Option<Writer>)> {
        let mut table = self.table.write();
        let at = index(number)?;
        let Handle { open, writer } = table.files.get_mut(at)?.take()?;
        table.free.push(at);
        let id = open.file.id();
        if let Some(shared) = table.shared.get_mut(&id) {
            shared.handles -= 1;
            shared.bypassing -= usize::from(open.bypasses_cache);
            shared.cached_writers -= usize::from(open.is_writable && !open.bypasses_cache);
            shared.writers -= usize::from(open.is_writable);
            if shared.handles == 0 {
                table.shared.remove(&id);
            }
        }
        Some((open, writer))
    }
}

impl SealGates {
    /// Keeps handles of a file from being opened for writing (law 2). Waits for the release of
    /// those that are open, for a limited time.
    ///
    /// # Errors
    /// `ETXTBSY`: handles stay open for writing. `EBUSY`: another call seals the file.
    pub(crate) fn begin(&self, id: FileId) -> ErrnoResult<SealGate> {
        let end = Instant::now() + RELEASE_WAIT;
        loop {
            let mut table = self.0.write();
            if table.shared.get(&id).is_none_or(|shared| shared.writers == 0) {
                if !table.sealing.insert(id) {
                    return Err(Errno::EBUSY);
                }
                return Ok(SealGate { table: Arc::clone(&self.0), id });
            }
            drop(table);
            if Instant::now() >= end {
                return Err(Errno::ETXTBSY);
            }
            std::thread::sleep(RELEASE_POLL);
        }
    }
}

impl Drop for SealGate {
    fn drop(&mut self) {
        self.table.write().sealing.remove(&self.id);
    }
}

fn index(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(is_writable: bool, bypass: Bypass) -> OpenHow {
        OpenHow { is_writable, bypass }
    }

    #[test]
    fn no_handle_bypasses_the_cache_beside_one_that_writes_through_it() {
        let (handles, id) = (Handles::default(), FileId::new(5, 257));
        let opened =
            |is_writable, bypass| handles.begin_open(id, how(is_writable, bypass)).ok().unwrap().1;
        assert!(!opened(false, Bypass::Unwanted), "a reader through the cache");
        assert!(opened(true, Bypass::Wanted), "which does not matter");
        assert!(opened(true, Bypass::Unwanted), "a writer beside one that bypasses");
        assert!(!opened(false, Bypass::Unwanted));
        let other = FileId::new(5, 258);
        let opened = |is_writable, bypass| {
            handles.begin_open(other, how(is_writable, bypass)).ok().unwrap().1
        };
        assert!(!opened(true, Bypass::Unwanted));
        assert!(!opened(true, Bypass::Wanted) && !opened(false, Bypass::Wanted));
        assert!(opened(true, Bypass::Always), "of an append-only file");
        assert!(!opened(true, Bypass::Never));
    }

    #[test]
    fn a_file_is_sealed_without_writers_and_gets_none_meanwhile() {
        let (handles, id) = (Handles::default(), FileId::new(5, 257));
        let opened = |is_writable| handles.begin_open(id, how(is_writable, Bypass::Never)).err();
        assert_eq!(opened(false), None);
        let gate = handles.seal_gates().begin(id).ok().unwrap();
        assert_eq!(handles.seal_gates().begin(id).err(), Some(Errno::EBUSY));
        assert_eq!((opened(true), opened(false)), (Some(Errno::ETXTBSY), None));
        drop(gate);
        assert_eq!(opened(true), None);
        assert_eq!(handles.seal_gates().begin(id).err(), Some(Errno::ETXTBSY));
    }
}
