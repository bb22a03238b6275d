//! [`Poison`]: whether a panic left a change of the cache half made.
//!
//! A lock that a panic has poisoned still gives what it guards, so that reads go on. But what it
//! guards may be half a change: a page that is there and not counted, or the first pages of a write
//! that has more. Whatever brings pages into the trees, or reports that they are there, first looks
//! at [`FilePages::is_poisoned`](crate::FilePages::is_poisoned) and ends writing to the volume.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// One flag for a cache and all its files. A clone is the same flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison(Arc<AtomicBool>);

impl Poison {
    /// What a lock guards, whatever a panic has left of it.
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
