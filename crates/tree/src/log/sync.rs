//! The locks of the group commit: the ranked locks of `sys`. The test `interleavings` compiles the
//! group commit with the ones of its scheduler instead.

pub(crate) use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
