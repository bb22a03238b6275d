//! The locks and atomics of this crate: those of the standard library. The interleaving tests
//! compile the same sources with the locks and atomics of a controlled scheduler instead.

pub(crate) use std::sync::atomic;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
