//! [`AllocationRuns`]: space that is allocated ahead for direct writes.

use butternut_file::{AllocationRun, RequestOwner, Source};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Allocation runs that are kept for callers without a queue.
const RUNS_MAX: usize = 64;

/// Allocation runs for the next writes of callers without a queue.
#[derive(Debug, Default)]
pub(crate) struct AllocationRuns(Mutex<Vec<AllocationRun>, rank::AllocationRuns>);

impl AllocationRuns {
    /// Registers the runs as space that is returned when another writer finds none.
    pub(crate) fn register(self: &Arc<Self>, source: &Source) {
        let owner: Weak<Self> = Arc::downgrade(self);
        source.add_request_owner(owner);
    }

    pub(super) fn with<R>(&self, source: &Source, run: impl FnOnce(&mut AllocationRun) -> R) -> R {
        let known = self.lock().pop();
        let mut allocation = known.unwrap_or_else(|| new_allocation_run(source));
        let result = run(&mut allocation);
        let mut runs = self.lock();
        if runs.len() < RUNS_MAX {
            runs.push(allocation);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AllocationRun>> {
        self.0.lock()
    }
}

impl RequestOwner for AllocationRuns {
    fn complete_some(&self, _: Duration) {}

    fn release_space(&self) {
        let runs = std::mem::take(&mut *self.lock());
        drop(runs);
    }
}

/// Returns an allocation run for one more writer.
pub(crate) fn new_allocation_run(source: &Source) -> AllocationRun {
    static NEXT_WRITER: AtomicU64 = AtomicU64::new(0);
    AllocationRun::new(source, NEXT_WRITER.fetch_add(1, Ordering::Relaxed))
}
