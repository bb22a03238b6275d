//! [`Interrupts`]: requests that wait for something that may never come, until the kernel sends
//! INTERRUPT for them or the mount ends.
//!
//! 1. A caller that a signal interrupts waits for the reply, so the request must end soon.
//! 2. The INTERRUPT may be served before its request has begun to wait, by another thread. It is
//!    kept: the last [`EARLY_MAX`] of them.
//! 3. Other requests are not interrupted, nor those that wait for a lock of the kernel. They end by
//!    themselves, or when a program releases the lock: any one that can list the directory can
//!    hold it.
//! 4. How many of them users may have is limited elsewhere (`user_limit`, `user_calls`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

/// Maximum number of interrupts that are kept for requests that have not begun to wait.
const EARLY_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupts(Arc<Mutex<State, rank::Interrupts>>);

#[derive(Debug, Default)]
struct State {
    /// The numbers of those that wait, and whether each is interrupted.
    waiting: HashMap<u64, bool>,
    early: VecDeque<u64>,
    is_ended: bool,
}

/// A request that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    interrupts: Interrupts,
    unique: u64,
}

impl Interrupts {
    /// Begins the wait of a request.
    pub(crate) fn begin(&self, unique: u64) -> Waiting {
        let mut state = self.0.lock();
        let is_interrupted = state.early.contains(&unique);
        state.waiting.insert(unique, is_interrupted);
        drop(state);
        Waiting { interrupts: self.clone(), unique }
    }

    /// Interrupts a request.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.0.lock();
        if let Some(is_interrupted) = state.waiting.get_mut(&unique) {
            *is_interrupted = true;
            return;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// Returns whether a request was interrupted that has not begun to wait, or that waits.
    pub(crate) fn is_interrupted(&self, unique: u64) -> bool {
        let state = self.0.lock();
        let waiting = state.waiting.get(&unique).copied();
        waiting.unwrap_or_else(|| state.early.contains(&unique))
    }

    /// Interrupts all requests, also those that begin to wait later.
    pub(crate) fn end(&self) {
        self.0.lock().is_ended = true;
    }
}

impl Waiting {
    /// Returns whether the request may go on waiting.
    pub(crate) fn goes_on(&self) -> bool {
        let state = self.interrupts.0.lock();
        !state.is_ended && state.waiting.get(&self.unique) == Some(&false)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.interrupts.0.lock().waiting.remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_interrupted_before_and_while_they_wait() {
        let interrupts = Interrupts::default();
        let begin = |unique| interrupts.begin(unique);
        let (first, second) = (begin(2), begin(4));
        interrupts.interrupt(2);
        interrupts.interrupt(6);
        assert!(!first.goes_on() && second.goes_on());
        assert!(!begin(6).goes_on());
        interrupts.end();
        assert!(!second.goes_on() && !begin(8).goes_on());
    }
}
