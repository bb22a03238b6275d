//! The locks and atomics of this crate: the standard ones. The tests of interleavings compile the
//! same sources with theirs in this place.

pub(crate) use std::sync::atomic;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
