//! The locks and atomics of the inode table: the standard ones. The test of interleavings compiles
//! the same source with those of its scheduler in this place.

pub(crate) use std::sync::atomic;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Runs a unit test of the table: the scheduler's locks exist in its runs only.
#[cfg(test)]
pub(crate) fn run(test: fn()) {
    test();
}
