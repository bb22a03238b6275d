//! [`Poison`]: whether a panic has left a change of the cache incomplete.
//!
//! A poisoned lock can still be taken, so that reads go on. But a change may be incomplete: a page
//! is present and not counted, or only the first pages of a write are there. So a caller that moves
//! pages into the trees, or reports them as durable, first checks
//! [`FilePages::is_poisoned`](crate::FilePages::is_poisoned) and stops writing to the volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One flag for a cache and all its files. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison(Arc<AtomicBool>);

impl Poison {
    /// Sets the flag, because a lock was found poisoned.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
