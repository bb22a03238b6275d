//! [`Interrupts`]: requests that wait for something that may never come, until the kernel sends
//! INTERRUPT for them or the mount ends.
//!
//! 1. A caller that a signal interrupts waits for the reply, so the request must end soon.
//! 2. The INTERRUPT may be served before its request has begun to wait, by another thread. It is
//!    kept: the last [`EARLY_MAX`] of them.
//! 3. Other requests are not interrupted, nor those that wait for a lock of the kernel, which are
//!    counted here. They end by themselves, or when a program of their own user releases the lock.
//! 4. The requests of a user that wait are limited, so that they are no obstacle to other users.
//!    Those of all users are limited too: a user may have many user ids in namespaces of its own.
//!    Those of an administrator are not limited.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

/// Maximum number of requests that wait at a time, of all users and of one (law 4). Each has a
/// thread.
const WAITING_MAX: usize = 256;
const WAITING_OF_USER_MAX: usize = 32;

/// Maximum number of interrupts that are kept for requests that have not begun to wait.
const EARLY_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupts(Arc<Mutex<State, rank::Interrupts>>);

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, WaitingRequest>,
    early: VecDeque<u64>,
    is_ended: bool,
}

#[derive(Debug)]
struct WaitingRequest {
    /// `None` for an administrator.
    user: Option<u32>,
    is_interrupted: bool,
}

/// A request that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    interrupts: Interrupts,
    unique: u64,
}

impl Interrupts {
    /// Begins the wait of a request of a user, or of an administrator (`None`). Returns `None` if
    /// too many wait already (law 4).
    pub(crate) fn begin(&self, unique: u64, user: Option<u32>) -> Option<Waiting> {
        let mut state = self.0.lock();
        if user.is_some() {
            let of_users = || state.waiting.values().filter_map(|request| request.user);
            let of_user = of_users().filter(|other| Some(*other) == user).count();
            if of_users().count() >= WAITING_MAX || of_user >= WAITING_OF_USER_MAX {
                return None;
            }
        }
        let is_interrupted = state.early.contains(&unique);
        state.waiting.insert(unique, WaitingRequest { user, is_interrupted });
        drop(state);
        Some(Waiting { interrupts: self.clone(), unique })
    }

    /// Interrupts a request.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.0.lock();
        if let Some(request) = state.waiting.get_mut(&unique) {
            request.is_interrupted = true;
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
        let waiting = state.waiting.get(&unique).map(|request| request.is_interrupted);
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
        let request = state.waiting.get(&self.unique);
        !state.is_ended && request.is_some_and(|request| !request.is_interrupted)
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
        let begin = |unique| interrupts.begin(unique, Some(7)).unwrap();
        let (first, second) = (begin(2), begin(4));
        interrupts.interrupt(2);
        interrupts.interrupt(6);
        assert!(!first.goes_on() && second.goes_on());
        assert!(!begin(6).goes_on());
        interrupts.end();
        assert!(!second.goes_on() && !begin(8).goes_on());
    }

    #[test]
    fn the_number_of_waiting_requests_is_limited() {
        let interrupts = Interrupts::default();
        let mut uniques = 0..;
        let mut begin = |user| interrupts.begin(uniques.next().unwrap(), user);
        let mut waiting: Vec<_> = std::iter::from_fn(|| begin(Some(1000))).collect();
        assert_eq!(waiting.len(), WAITING_OF_USER_MAX);
        waiting.pop();
        waiting.push(begin(Some(1000)).unwrap());
        // As if they were of one user with many user ids.
        waiting.extend((1001..).map_while(|user| begin(Some(user))));
        assert_eq!(waiting.len(), WAITING_MAX);
        for _ in 0..WAITING_MAX {
            waiting.push(begin(None).unwrap());
        }
        assert!(begin(Some(0)).is_none());
        waiting.clear();
        assert!(begin(Some(1000)).is_some());
    }
}
