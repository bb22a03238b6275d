//! [`Resizes`]: counts the resizes of devices that are in progress.
//!
//! No chunk is placed behind the end that a resize will give a device, also if the resize is
//! refused in the end. So a reservation that finds no space does not see that it may have some when
//! the resize is over.
//!
//! Laws:
//!
//! 1. A resize is counted before it hides space, and until it hides none any more, also if it fails
//!    or panics.
//! 2. A resize reserves space itself, and commits. So a wait for one has an end by time, and no
//!    thread waits for its own.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::thread::ThreadId;
use std::time::Duration;

/// The resizes of a forest that are in progress.
#[derive(Debug, Default)]
pub(crate) struct Resizes {
    state: Mutex<State, rank::Resizes>,
    /// Signalled when a resize has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads that resize.
    running: Vec<ThreadId>,
    /// How many resizes have ended.
    ended: u64,
}

/// A resize that is counted, until this is dropped.
#[derive(Debug)]
pub(crate) struct Resizing<'a> {
    resizes: &'a Resizes,
    thread: ThreadId,
}

impl Resizes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Counts a resize by the calling thread until the result is dropped (law 1).
    pub(crate) fn begin(&self) -> Resizing<'_> {
        let thread = std::thread::current().id();
        self.state().running.push(thread);
        Resizing { resizes: self, thread }
    }

    /// Waits until a resize by another thread has ended, at most `timeout` long (law 2). Returns
    /// whether one has.
    pub(crate) fn wait_for_another(&self, timeout: Duration) -> bool {
        let own = std::thread::current().id();
        let state = self.state();
        if state.running.iter().all(|thread| *thread == own) {
            return false;
        }
        let ended = state.ended;
        let is_same = |state: &mut State| state.ended == ended;
        let (state, _) = self.ended.wait_timeout_while(state, timeout, is_same);
        state.ended != ended
    }
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        let mut state = self.resizes.state();
        if let Some(at) = state.running.iter().position(|thread| *thread == self.thread) {
            state.running.swap_remove(at);
        }
        state.ended = state.ended.wrapping_add(1);
        drop(state);
        self.resizes.ended.notify_all();
    }
}
