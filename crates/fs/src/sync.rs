//! The locks and atomics of the inode table: the ranked locks of `sys`. The test `interleavings`
//! compiles the table with the ones of its scheduler instead.

pub(crate) use butternut_sys::lock::{Mutex, MutexGuard, RwLock, rank};
pub(crate) use butternut_sys::lock::{RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::sync::atomic;

/// Runs a unit test of the table: the scheduler's locks work only in its runs.
#[cfg(test)]
pub(crate) fn run(test: fn()) {
    test();
}
