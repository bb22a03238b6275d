//! The locks and atomics of this crate: the ranked locks of `sys`, and the atomics of the standard
//! library. The interleaving tests compile the same sources with those of a controlled scheduler
//! instead.

pub(crate) use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
pub(crate) use butternut_sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::sync::atomic;
