//! [`Pin`]: keeps an inode in use after its last name is removed. The last pin of an inode without
//! a name deletes it.
//!
//! Laws:
//!
//! 1. An inode without a name that is pinned, or whose deletion may take more than one transaction,
//!    has an orphan item. If it is not deleted before the volume is closed, it is deleted when its
//!    subvolume is first written to or, if that is read-only, first used, on a volume that is open
//!    for writing.
//! 2. The last pin of an inode without a name takes the inode lock and deletes the inode. So no pin
//!    is dropped by a thread that holds a lock which another thread may wait for under an inode
//!    lock, nor by one that completes requests in flight for an inode that it has locked
//!    ([`NoUnpin`]).
//! 3. Deleting an inode takes several transactions, each of which leaves the volume consistent: the
//!    data first; the inode and its orphan item together last. Inodes that are not orphans are
//!    deleted with their last name (`names/unlink.rs`).

use crate::background::cleaner_signal::EvictBy;
use crate::inode::no_unpin::NoUnpin;
use crate::inode::table::InodeEntry;
use crate::{FileId, Filesystem, Result};
use std::fmt;
use std::sync::Arc;

/// Keeps an inode in use: while a pin exists, the inode is not deleted, also without a name.
pub struct Pin {
    filesystem: Filesystem,
    entry: Arc<InodeEntry>,
    evicts: EvictBy,
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Pin {
    pub(crate) fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns the id of the inode.
    pub fn id(&self) -> FileId {
        self.entry.id
    }

    /// As dropping it, for a thread that is to wait for no device: if the inode has no name, its
    /// deletion is left to the thread of the volume that deletes in the background. Without such a
    /// thread, and while very many deletions are queued, the calling thread deletes it.
    pub fn unpin_in_background(mut self) {
        self.evicts = EvictBy::Cleaner;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        NoUnpin::assert_unpin_allowed();
        if !self.entry.unpin() {
            return;
        }
        if self.entry.cached().is_some_and(|inode| inode.nlink == 0) {
            // If deleting fails, the next open for writing finds the orphan item (law 1).
            drop(self.filesystem.evict_orphan(&self.entry, self.evicts));
        } else if let Ok(write_state) = self.filesystem.write_state() {
            write_state.idle.add(&self.entry);
        }
        if let Ok(write_state) = self.filesystem.write_state() {
            write_state.cleaner.is_unpinned(self.entry.id.subvolume);
        }
    }
}

impl Filesystem {
    /// As [`FilesystemExt::pin`](crate::server::FilesystemExt::pin).
    pub(crate) fn pin(&self, id: FileId) -> Result<Option<Pin>> {
        let Some(write_state) = &self.shared.write_state else { return Ok(None) };
        if id.is_placeholder() {
            return Ok(None);
        }
        let entry = write_state.table.entry(id);
        if entry.pin_again() {
            let pin = self.new_pin(entry);
            self.attributes(pin.entry())?;
            return Ok(Some(pin));
        }
        let state = entry.lock_shared();
        self.attributes(&entry)?;
        entry.pin();
        drop(state);
        Ok(Some(self.new_pin(entry)))
    }

    /// Wraps a pin that the entry has counted already.
    pub(crate) fn new_pin(&self, entry: Arc<InodeEntry>) -> Pin {
        Pin { filesystem: self.clone(), entry, evicts: EvictBy::Caller }
    }
}
