//! [`OutstandingIo`]: counts the writeback batches and shared direct writes of a filesystem that
//! have not completed, so that a thread that drains a file can wait until one of them does.

use butternut_file::{RequestOwner, Source};
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Counts batches of writeback and shared direct writes that have begun and not completed.
#[derive(Debug)]
pub(crate) struct OutstandingIo {
    begun: Instant,
    count: Mutex<usize, rank::FlushesRunning>,
    completed: Condvar,
}

impl Default for OutstandingIo {
    fn default() -> Self {
        Self { begun: Instant::now(), count: Mutex::default(), completed: Condvar::new() }
    }
}

impl OutstandingIo {
    /// Registers this as a request owner, so that a thread that drains a file waits for it.
    pub(crate) fn register(self: &Arc<Self>, source: &Source) {
        let owner: Weak<Self> = Arc::downgrade(self);
        source.add_request_owner(owner);
    }

    /// Returns the time since a fixed instant: the clock of the throttle.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Counts one more, until the result is dropped.
    pub(crate) fn begin(&self) -> OutstandingGuard<'_> {
        self.add();
        OutstandingGuard(self)
    }

    pub(super) fn add(&self) {
        *self.count() += 1;
    }

    /// Waits while `is_so` holds, until I/O that changes it completes, for at most `at_most`.
    /// Returns whether the time ran out.
    pub(super) fn wait_while(&self, at_most: Duration, is_so: impl Fn() -> bool) -> bool {
        let waited = self.completed.wait_timeout_while(self.count(), at_most, |_| is_so());
        waited.1.timed_out()
    }

    pub(super) fn complete(&self) {
        *self.count() -= 1;
        self.completed.notify_all();
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock()
    }
}

/// One I/O that has not completed.
#[derive(Debug)]
pub(crate) struct OutstandingGuard<'a>(&'a OutstandingIo);

impl Drop for OutstandingGuard<'_> {
    fn drop(&mut self) {
        self.0.complete();
    }
}

impl RequestOwner for OutstandingIo {
    fn complete_some(&self, timeout: Duration) {
        let count = self.count();
        if *count > 0 {
            drop(self.completed.wait_timeout(count, timeout));
        }
    }

    fn release_space(&self) {}
}
