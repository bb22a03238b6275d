//! [`Merges`]: keeps merges and deletions of orphans apart from the end of a subvolume.
//!
//! Laws:
//!
//! 1. A thread that changes a tree without being an operation that writes (a merge of files, a
//!    deletion of an orphan) shares the lock. A deletion of a subvolume, and a change of whether it
//!    is read-only, exclude such threads.
//! 2. A thread shares the lock for one batch of files, or for one step of a deletion. Before its
//!    next step it waits for the threads that wait to exclude it ([`Merges::share_after_waiting`]),
//!    because the lock itself prefers the thread that runs already. A thread that waits to exclude
//!    merges excludes operations that write (`barrier`), so all writes of the volume wait with it.

use butternut_sys::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};

#[derive(Debug, Default)]
pub(crate) struct Merges {
    lock: RwLock<(), rank::Merges>,
    /// Locked by a thread that waits to exclude the others, and while it does.
    turn: Mutex<(), rank::MergesTurn>,
}

/// Excludes merges and deletions of orphans until this is dropped.
#[derive(Debug)]
pub(crate) struct MergesExcluded<'a> {
    _lock: RwLockWriteGuard<'a, ()>,
    _turn: MutexGuard<'a, ()>,
}

impl Merges {
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// As [`Self::share`], after the threads that wait to exclude this one (law 2).
    pub(crate) fn share_after_waiting(&self) -> RwLockReadGuard<'_, ()> {
        drop(self.turn.lock());
        self.lock.read()
    }

    /// Excludes merges and deletions of orphans.
    pub(crate) fn exclude(&self) -> MergesExcluded<'_> {
        let turn = self.turn.lock();
        MergesExcluded { _lock: self.lock.write(), _turn: turn }
    }

    /// Returns whether a thread waits to exclude the others, or does.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.turn.try_lock().is_none()
    }

    /// Returns whether a thread shares the lock.
    #[cfg(test)]
    pub(crate) fn is_shared(&self) -> bool {
        !self.is_awaited() && self.lock.try_write_or_else(|()| {}).is_none()
    }
}
