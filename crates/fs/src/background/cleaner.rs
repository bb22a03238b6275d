//! The cleaner: the thread that frees deleted subvolumes.
//!
//! Laws:
//!
//! 1. The thread does not keep the filesystem open. Closing the filesystem stops it after its
//!    current step; the next open for writing goes on.
//! 2. Subvolumes whose files are open are looked at again every [`RETRY`], until they are free.
//! 3. A failure is kept for the next open: nothing waits for the thread.

use crate::filesystem::Shared;
use crate::{Error, Filesystem, Result};
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
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

    fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// Waits until there may be something to free. Returns `false` at the end.
    fn wait(&self, has_left: bool) -> bool {
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

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Cleaner {
    signal: Arc<CleanerSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the thread. It begins with what the last use of the volume left.
    pub(crate) fn start(shared: &Arc<Shared>, signal: Arc<CleanerSignal>) -> Result<Self> {
        let (signal_of_thread, shared) = (Arc::clone(&signal), Arc::clone(shared));
        signal.request();
        let run = move || {
            let filesystem = Filesystem::for_thread(shared);
            let _watch = filesystem.forest().watch_panics();
            let mut has_left = false;
            while signal_of_thread.wait(has_left) {
                has_left = filesystem.clean_in_background(&signal_of_thread);
            }
        };
        let thread = Builder::new().name("butternut-clean".into()).spawn(run);
        Ok(Self { signal, thread: Some(thread.map_err(Error::Committer)?) })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Filesystem {
    /// Frees deleted subvolumes. Returns whether some are left that may become free later.
    fn clean_in_background(&self, signal: &CleanerSignal) -> bool {
        let goes_on = || !signal.is_stopped() && self.may_begin().is_ok();
        let left = self.clean_subvolumes_while(&goes_on);
        left.is_ok_and(|left| !left.is_empty())
    }
}
