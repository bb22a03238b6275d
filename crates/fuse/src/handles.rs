//! File handles: the open files of a mount, by the numbers in OPEN and CREATE replies.
//!
//! A handle keeps its file open until RELEASE, also when the file has no name any more. Handle
//! numbers start at 1 and are reused. The state that all handles of one file share exists from the
//! first open to the last release.

pub(crate) mod fills;
pub(crate) mod open_cache;

use butternut_sys::lock::{RwLock, rank};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use butternut::{File, FileId};

use crate::errno::{Errno, ErrnoResult};
use crate::handles::fills::Fills;

/// The open files of one mount.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table, rank::Handles>,
}

#[derive(Default)]
struct Table {
    files: Vec<Option<OpenFile>>,
    free: Vec<usize>,
    shared: HashMap<FileId, Shared>,
}

/// The state that the handles of one file share.
#[derive(Default)]
struct Shared {
    fills: Arc<Fills>,
    handles: usize,
}

/// A file with the mode in which it was opened.
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) is_writable: bool,
    /// Reads and writes bypass the kernel's page cache.
    pub(crate) bypasses_cache: bool,
    /// The fills of the kernel's page cache, shared by the handles of the file.
    pub(crate) fills: Arc<Fills>,
    /// The handle appends to an append-only file.
    pub(crate) is_append_only: bool,
}

impl Handles {
    /// Returns the fills of a file, and counts one handle of it. Must be called once before each
    /// [`Handles::insert`].
    pub(crate) fn fills_of(&self, id: FileId) -> Arc<Fills> {
        let mut table = self.table.write();
        let shared = table.shared.entry(id).or_default();
        shared.handles += 1;
        Arc::clone(&shared.fills)
    }

    pub(crate) fn insert(&self, open: OpenFile) -> u64 {
        let mut table = self.table.write();
        let at = table.free.pop().unwrap_or_else(|| {
            table.files.push(None);
            table.files.len() - 1
        });
        table.files[at] = Some(open);
        at as u64 + 1
    }

    pub(crate) fn get(&self, number: u64) -> ErrnoResult<OpenFile> {
        let table = self.table.read();
        let at = index(number).ok_or(Errno::EBADF)?;
        let open = table.files.get(at).and_then(Option::as_ref).ok_or(Errno::EBADF)?;
        Ok(open.clone())
    }

    /// Returns whether any handle has the file open for writing.
    pub(crate) fn is_open_for_write(&self, id: FileId) -> bool {
        let table = self.table.read();
        table.files.iter().flatten().any(|open| open.is_writable && open.file.id() == id)
    }

    /// Returns whether any handle may write the file below its end.
    pub(crate) fn has_unrestricted_writer(&self, id: FileId) -> bool {
        let table = self.table.read();
        let is_one =
            |open: &OpenFile| open.is_writable && !open.is_append_only && open.file.id() == id;
        table.files.iter().flatten().any(is_one)
    }

    /// Returns the number of handles of a file.
    pub(crate) fn handle_count(&self, id: FileId) -> usize {
        let table = self.table.read();
        table.files.iter().flatten().filter(|open| open.file.id() == id).count()
    }

    /// Returns the files that are open for writing.
    pub(crate) fn open_for_write(&self) -> BTreeSet<FileId> {
        let table = self.table.read();
        let written = table.files.iter().flatten().filter(|open| open.is_writable);
        written.map(|open| open.file.id()).collect()
    }

    /// Removes a handle and returns its file. Dropping the file may delete it.
    pub(crate) fn remove(&self, number: u64) -> Option<File> {
        let mut table = self.table.write();
        let at = index(number)?;
        let open = table.files.get_mut(at)?.take()?;
        table.free.push(at);
        let id = open.file.id();
        if let Some(shared) = table.shared.get_mut(&id) {
            shared.handles -= 1;
            if shared.handles == 0 {
                table.shared.remove(&id);
            }
        }
        Some(open.file)
    }
}

fn index(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}
