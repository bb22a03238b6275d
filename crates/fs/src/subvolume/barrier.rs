//! [`SnapshotBarrier`]: keeps operations that write and snapshots apart.
//!
//! Laws:
//!
//! 1. An operation that writes shares the barrier from its beginning until its changes are in
//!    memory, or in flight on an inode (`writing::Writing`). A snapshot waits for those that have
//!    begun, and lets none begin until it is made. So each operation is in the snapshot with all
//!    that it changed, or not at all.
//! 2. A thread that shares the barrier begins no other operation that writes: it could wait for a
//!    snapshot that waits for it. Debug builds panic.
//! 3. The barrier is taken before any inode is locked.
//!
//! Left to others: requests in flight, which the thread completes that locks the inode exclusively
//! (`inode::table`).

use butternut_sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use butternut_sys::wait::Wait;

#[derive(Debug, Default)]
pub(crate) struct SnapshotBarrier(RwLock<(), rank::Snapshots>);

impl SnapshotBarrier {
    /// Excludes operations that write until the result is dropped.
    pub(crate) fn exclude_writes(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }

    /// Begins an operation that writes, which ends when the result is dropped. Waits for a snapshot
    /// that is being made; returns `None` instead if `wait` forbids that.
    pub(crate) fn share(&self, wait: Wait) -> Option<RwLockReadGuard<'_, ()>> {
        match wait {
            Wait::Block => Some(self.0.read()),
            Wait::NoWait => self.0.try_read_or_else(|()| {}),
        }
    }
}
