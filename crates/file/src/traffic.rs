//! [`Traffic`]: requests on a file that are in flight beyond the call that made them.
//!
//! ```text
//! shared lock, begin --> in flight, no lock held --> end
//!                             ^
//! lock alone, wait -----------+  completes them itself
//! ```
//!
//! Laws:
//!
//! 1. A request in flight shares the file as a reader does. It begins under the caller's shared
//!    lock; whoever has the lock alone finds none once he has waited ([`Traffic::wait`]), and none
//!    begins before he lets go.
//! 2. Who waits completes what is in flight himself ([`Help`]): nothing depends on the thread that
//!    made a request.
//! 3. Space that the file stops showing while others may read it is retired: it becomes free when
//!    somebody has the file alone.

use crate::source::Source;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a waiter lets one queue's requests take before he looks at the others.
const PATIENCE: Duration = Duration::from_micros(500);

/// Somebody who has requests in flight.
pub trait Help: Debug + Send + Sync {
    /// Hands to the devices what was queued and completes what they have finished, waiting for
    /// some of it at most so long. Must not wait for the lock of any file.
    fn help(&self, patience: Duration);

    /// Gives back space that is held for requests to come.
    fn give_back_space(&self);
}

/// Everybody who has requests in flight on some file of a volume.
#[derive(Debug, Default)]
pub(crate) struct Helpers(Mutex<Vec<Weak<dyn Help>>>);

/// The requests in flight on one file.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    requests: AtomicU64,
    /// Blocks that writes in flight will bring, and extents.
    blocks: AtomicU64,
    extents: AtomicU64,
    retired: Mutex<Vec<Range<u64>>>,
}

impl Helpers {
    pub(crate) fn add(&self, helper: Weak<dyn Help>) {
        let mut all = self.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(helper);
    }

    /// Those who are there now.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Help>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Help>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn begin_write(&self, blocks: u64) {
        self.begin();
        self.blocks.fetch_add(blocks, Ordering::AcqRel);
        self.extents.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_write(&self, blocks: u64) {
        self.blocks.fetch_sub(blocks, Ordering::AcqRel);
        self.extents.fetch_sub(1, Ordering::AcqRel);
        self.end();
    }

    /// Blocks and extents of writes in flight.
    pub(crate) fn coming(&self) -> (u64, u64) {
        (self.blocks.load(Ordering::Acquire), self.extents.load(Ordering::Acquire))
    }

    fn is_quiet(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Law 1. The caller has the file alone.
    pub(crate) fn wait(&self, source: &Source) {
        while !self.is_quiet() {
            for helper in source.helpers().all() {
                if self.is_quiet() {
                    return;
                }
                helper.help(PATIENCE);
            }
        }
    }

    /// Law 3.
    pub(crate) fn retire(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let mut ranges = ranges.into_iter().peekable();
        if ranges.peek().is_some() {
            self.retired().extend(ranges);
        }
    }

    /// What may become free. The caller has the file alone, and nobody reads ahead in it.
    pub(crate) fn take_retired(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.retired())
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired().is_empty()
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
