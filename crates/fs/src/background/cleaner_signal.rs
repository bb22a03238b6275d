//! [`CleanerSignal`]: what operations tell the cleaner thread, when it looks again, and what it
//! tells those that wait for it.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::collections::BTreeSet;
use std::time::Duration;

/// Pause before a subvolume with open files is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// Read-only subvolumes whose orphans the cleaner has yet to look for. The orphans of others stay
/// until the volume is opened again.
const READ_ONLY_MAX: usize = 4096;

/// What operations tell the cleaner.
#[derive(Debug, Default)]
pub(crate) struct CleanerSignal {
    state: Mutex<State, rank::Cleaner>,
    wake: Condvar,
    /// For those that wait until a subvolume is freed.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_due: bool,
    is_stopped: bool,
    /// Number of subvolumes that were freed.
    cleaned: u64,
    /// Read-only subvolumes that were used for the first time.
    read_only: BTreeSet<u64>,
}

impl CleanerSignal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records that a subvolume was deleted.
    pub(crate) fn request(&self) {
        self.state().is_due = true;
        self.wake.notify_all();
    }

    /// Records that a read-only subvolume is used, which may have orphans that a crash has left.
    pub(crate) fn request_orphans(&self, subvolume: u64) {
        let mut state = self.state();
        if state.read_only.len() < READ_ONLY_MAX {
            state.read_only.insert(subvolume);
            state.is_due = true;
            self.wake.notify_all();
        }
    }

    /// Returns the read-only subvolumes that were used since the last call.
    pub(crate) fn take_read_only(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.state().read_only)
    }

    /// Records that a subvolume was freed.
    pub(crate) fn has_cleaned(&self) {
        let mut state = self.state();
        state.cleaned = state.cleaned.wrapping_add(1);
        drop(state);
        self.freed.notify_all();
    }

    /// Returns the number of subvolumes that were freed.
    pub(crate) fn cleaned(&self) -> u64 {
        self.state().cleaned
    }

    /// Waits until the number of subvolumes that were freed is not `seen`, at most for a time.
    pub(crate) fn wait_until_cleaned(&self, seen: u64, at_most: Duration) {
        let state = self.state();
        if state.cleaned == seen && !state.is_stopped {
            drop(self.freed.wait_timeout(state, at_most));
        }
    }

    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
        self.freed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// Waits until there may be something to free. Returns `false` at the end.
    pub(super) fn wait(&self, has_left: bool) -> bool {
        let mut state = self.state();
        while !state.is_due && !state.is_stopped {
            if has_left {
                state = self.wake.wait_timeout(state, RETRY).0;
                break;
            }
            state = self.wake.wait(state);
        }
        state.is_due = false;
        !state.is_stopped
    }
}
