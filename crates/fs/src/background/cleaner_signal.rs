//! [`CleanerSignal`]: what operations tell the cleaner thread, and when it looks again.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::time::Duration;

/// Pause before a subvolume with open files is looked at again.
const RETRY: Duration = Duration::from_secs(5);

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
