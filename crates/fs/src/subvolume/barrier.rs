//! [`SnapshotBarrier`]: keeps operations that write and snapshots apart.
//!
//! Laws:
//!
//! 1. An operation that writes holds a [`Writing`] from its beginning until its changes are in
//!    memory, or in flight on an inode. A snapshot waits for those that have begun, and lets none
//!    begin until it is made. So each operation is in the snapshot with all that it changed, or not
//!    at all.
//! 2. A thread that holds a [`Writing`] begins no other operation that writes: it could wait for a
//!    snapshot that waits for it. Debug builds panic.
//! 3. A [`Writing`] is taken before any inode is locked.
//!
//! Left to others: requests in flight, which whoever locks the inode exclusively completes
//! (`inode::table`).

use crate::write_state::WriteState;
use butternut_sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use butternut_sys::wait::Wait;
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct SnapshotBarrier(RwLock<(), rank::Snapshots>);

/// An operation that writes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    write_state: &'a Arc<WriteState>,
    _no_snapshot: RwLockReadGuard<'a, ()>,
}

impl SnapshotBarrier {
    /// Excludes operations that write until the result is dropped.
    pub(crate) fn exclude_writes(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }
}

impl<'a> Writing<'a> {
    /// Begins an operation. Waits for a snapshot that is being made, unless `wait` forbids it.
    pub(crate) fn begin(write_state: &'a Arc<WriteState>, wait: Wait) -> Option<Self> {
        let barrier = &write_state.snapshots.0;
        let no_snapshot = match wait {
            Wait::Block => barrier.read(),
            Wait::NoWait => barrier.try_read_or_else(|()| {})?,
        };
        Some(Self { write_state, _no_snapshot: no_snapshot })
    }
}

impl Deref for Writing<'_> {
    type Target = Arc<WriteState>;

    fn deref(&self) -> &Self::Target {
        self.write_state
    }
}
