//! [`DirtyInodes`]: the inodes with data or attributes that no tree has yet, in order of their ids.
//!
//! Laws:
//!
//! 1. An entry whose flag says that it is listed is in the list. Several threads that share an
//!    inode lock may add its entry at once; each returns when the entry is listed, so that a sync
//!    that begins afterwards finds it. So an entry is added to the list before its flag is set, and
//!    removed after its flag is cleared.
//! 2. An entry is removed under its exclusive inode lock, so never while another thread adds it.

use super::table::InodeEntry;
use crate::FileId;
use crate::sync::{Mutex, MutexGuard, rank};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The list of dirty inodes.
#[derive(Debug, Default)]
pub(crate) struct DirtyInodes(Mutex<BTreeMap<FileId, Arc<InodeEntry>>, rank::DirtyInodes>);

impl DirtyInodes {
    fn list(&self) -> MutexGuard<'_, BTreeMap<FileId, Arc<InodeEntry>>> {
        self.0.lock()
    }

    /// Adds an entry. The caller holds its inode lock, shared or exclusively.
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

    /// Returns at most `limit` entries with ids of at least `from`, in order.
    pub(crate) fn range_from(&self, from: FileId, limit: usize) -> Vec<Arc<InodeEntry>> {
        self.list().range(from..).take(limit).map(|(_, entry)| Arc::clone(entry)).collect()
    }
}
