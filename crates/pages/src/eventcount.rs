//! [`EventCount`]: waits for a condition that other locks guard.
//!
//! A waiter reads the counter, checks its condition, and sleeps until the counter differs from what
//! it read. A thread that changes the condition increases the counter afterwards. So no wakeup is
//! missed, and a waiter holds no lock while it sleeps.

use crate::sync::{Condvar, Mutex, MutexGuard, rank};

#[derive(Debug, Default)]
pub(crate) struct EventCount {
    count: Mutex<u64, rank::PageEvents>,
    changed: Condvar,
}

impl EventCount {
    /// Waits while `must_wait` returns true. Calls it without holding a lock.
    pub(crate) fn wait_while(&self, mut must_wait: impl FnMut() -> bool) {
        loop {
            let seen = *self.count();
            if !must_wait() {
                return;
            }
            let mut count = self.count();
            while *count == seen {
                count = self.changed.wait(count);
            }
        }
    }

    /// Wakes all waiters, so that they check their conditions again.
    pub(crate) fn notify(&self) {
        let mut count = self.count();
        *count = count.wrapping_add(1);
        drop(count);
        self.changed.notify_all();
    }

    /// Ignores poisoning: one assignment changes the count, so a panic cannot interrupt it.
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock()
    }
}
