//! [`InPlace`]: whether data was overwritten in place since the last flush (law 4 of
//! [`crate::barrier`]).

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of writes in place.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    completed: AtomicU64,
    /// How many of them had completed when the last successful flush began.
    flushed: AtomicU64,
}

impl InPlace {
    /// Counts a write that has completed on every mirror.
    pub(crate) fn note(&self) {
        self.completed.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many writes have completed. A flush reads this before it begins.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::SeqCst)
    }

    /// Records a successful flush that began when `completed` writes had completed.
    pub(crate) fn note_flush(&self, completed: u64) {
        self.flushed.fetch_max(completed, Ordering::SeqCst);
    }

    /// Whether the last successful flush began after `completed` writes had completed.
    pub(crate) fn is_flushed(&self, completed: u64) -> bool {
        completed <= self.flushed.load(Ordering::SeqCst)
    }
}
