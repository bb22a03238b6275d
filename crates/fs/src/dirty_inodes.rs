//! [`DirtyInodes`]: the inodes with data or times that no tree has yet, in the order of their ids.
//!
//! Laws:
//!
//! 1. An entry whose flag says that it is listed is in the list. Several threads that share a body
//!    may add its entry at once: each of them returns when it is listed, so that a sync that
//!    begins then finds it. So the list comes before the flag when an entry is added, and behind it
//!    when one is removed.
//! 2. An entry is removed with its body locked exclusively, so never while another adds it.

use crate::FileId;
use crate::inode_table::InodeEntry;
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// The list.
#[derive(Debug, Default)]
pub(crate) struct DirtyInodes(Mutex<BTreeMap<FileId, Arc<InodeEntry>>>);

impl DirtyInodes {
    fn list(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<InodeEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. The caller has its body locked, shared or exclusively.
    pub(crate) fn add(&self, entry: &Arc<InodeEntry>) {
        if entry.is_listed() {
            return;
        }
        self.list().entry(entry.id).or_insert_with(|| Arc::clone(entry));
        entry.set_listed(true);
    }

    /// Removes an entry (law 2).
    pub(crate) fn remove(&self, entry: &InodeEntry) {
        entry.set_listed(false);
        let removed = self.list().remove(&entry.id);
        drop(removed);
    }

    pub(crate) fn get(&self, id: FileId) -> Option<Arc<InodeEntry>> {
        self.list().get(&id).map(Arc::clone)
    }

    pub(crate) fn len(&self) -> usize {
        self.list().len()
    }

    /// The entries from one id on, in order.
    pub(crate) fn range_from(&self, from: FileId, limit: usize) -> Vec<Arc<InodeEntry>> {
        self.list().range(from..).take(limit).map(|(_, entry)| Arc::clone(entry)).collect()
    }
}
