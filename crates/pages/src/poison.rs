//! [`Poison`]: whether a panic has left a change of the cache incomplete.
//!
//! A poisoned lock can still be taken, so that reads go on. But a change may be incomplete: a page
//! is present and not counted, or only the first pages of a write are there. So a caller that moves
//! pages into the trees, or reports them as durable, first checks
//! [`FilePages::is_poisoned`](crate::FilePages::is_poisoned) and stops writing to the volume.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// One flag for a cache and all its files. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison(Arc<AtomicBool>);

impl Poison {
    /// Returns the guard of a lock, and sets the flag if the lock is poisoned.
    pub(crate) fn recover<G>(&self, locked: Result<G, PoisonError<G>>) -> G {
        locked.unwrap_or_else(|poisoned| {
            self.0.store(true, Ordering::SeqCst);
            poisoned.into_inner()
        })
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
