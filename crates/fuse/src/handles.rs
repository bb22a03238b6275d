//! Files that are open, by the numbers that the kernel was given for them.
//!
//! An open file is in being until it is released, with a name or without. Numbers start at 1, and
//! are given again. What the handles of one file share is kept from the first open to the last
//! release.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use butternut::{File, FileId};

use crate::fills::Fills;
use crate::refusal::{Answer, Refusal};

/// The open files of one mount.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    files: Vec<Option<Open>>,
    free: Vec<usize>,
    shared: HashMap<FileId, Shared>,
}

/// What the handles of one file share.
#[derive(Default)]
struct Shared {
    fills: Arc<Fills>,
    handles: usize,
}

/// A file as somebody opened it.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) file: File,
    pub(crate) is_written: bool,
    /// Its reads and writes pass the kernel's cache.
    pub(crate) passes_cache: bool,
    /// What the kernel's page cache takes of the file.
    pub(crate) fills: Arc<Fills>,
    /// It was opened to append to an append-only file.
    pub(crate) only_appends: bool,
}

impl Handles {
    /// What the kernel's page cache takes of a file that is being opened. Each call belongs to one
    /// handle, and comes before it.
    pub(crate) fn share(&self, id: FileId) -> Arc<Fills> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let shared = table.shared.entry(id).or_default();
        shared.handles += 1;
        Arc::clone(&shared.fills)
    }

    pub(crate) fn open(&self, open: Open) -> u64 {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = table.free.pop().unwrap_or_else(|| {
            table.files.push(None);
            table.files.len() - 1
        });
        table.files[at] = Some(open);
        at as u64 + 1
    }

    pub(crate) fn find(&self, number: u64) -> Answer<Open> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let at = index(number).ok_or(Refusal::BAD_HANDLE)?;
        let open = table.files.get(at).and_then(Option::as_ref).ok_or(Refusal::BAD_HANDLE)?;
        Ok(open.clone())
    }

    /// Whether anybody has the file open for writing.
    pub(crate) fn is_written(&self, id: FileId) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.iter().flatten().any(|open| open.is_written && open.file.id() == id)
    }

    /// Whether any handle may write the file anywhere, not only behind its end.
    pub(crate) fn is_written_freely(&self, id: FileId) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let is_one = |open: &Open| open.is_written && !open.only_appends && open.file.id() == id;
        table.files.iter().flatten().any(is_one)
    }

    /// How often a file is open.
    pub(crate) fn count(&self, id: FileId) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.iter().flatten().filter(|open| open.file.id() == id).count()
    }

    /// The file that nobody has open under this number any more. Dropping it may delete it.
    pub(crate) fn close(&self, number: u64) -> Option<File> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
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
