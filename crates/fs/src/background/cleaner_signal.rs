//! [`CleanerSignal`]: what operations tell the cleaner thread, and when it looks again.

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
}

#[derive(Debug, Default)]
struct State {
    is_due: bool,
    is_stopped: bool,
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

    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
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
