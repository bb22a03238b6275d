//! The turn: of the threads that serve a mount, the one that waits for requests.
//!
//! Waking a thread on another processor takes longer than most requests do. So one thread waits in
//! the kernel, answers what is brief itself and waits again, and the others are not woken: one is
//! called to take the turn when more requests are there, or one that takes long. One of them looks
//! after the turn, for a request that was not known to take long.
//!
//! ```text
//! free    -> waiting  take, by a thread that has nothing to do
//! waiting -> free     give, by its thread
//! waiting -> serving  begin, by its thread
//! serving -> waiting  end, by its thread; or by the watcher, whose turn it is then
//! ```
//!
//! Where requests come faster than one by one, all threads wait for a while, without any turn.
//!
//! 1. One thread has the turn at a time, and only that one begins, ends and gives.
//! 2. The watcher takes the turn from a thread that serves one request through two of its looks.
//! 3. The watcher sleeps while nothing is asked: the turn that begins wakes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a request that is not known to take long holds up others: one to two of these.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Looks that found nobody served, after which the watcher sleeps.
const QUIET_LOOKS: u32 = 8;

/// How long all threads wait after requests came faster than one by one.
const RUSH: Duration = Duration::from_millis(10);

/// What becomes of the turn, in the low bits of `Turn::state`; above is a number for each change.
const FREE: u64 = 0;
const WAITING: u64 = 1;
const SERVING: u64 = 2;
const PHASE_BITS: u64 = 3;
/// No state of a turn: that of a thread whose turn was taken away.
const LOST: u64 = u64::MAX;

pub(crate) struct Turn {
    /// Becomes and ceases to be free under the lock only.
    state: AtomicU64,
    watcher_sleeps: AtomicBool,
    began: Instant,
    /// Until when all threads wait, in microseconds since the beginning.
    rush_until: AtomicU64,
    rest: Mutex<Rest>,
    called: Condvar,
    watcher_called: Condvar,
}

#[derive(Default)]
struct Rest {
    has_watcher: bool,
    /// Threads without anything to do, but the watcher.
    idle: usize,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            state: AtomicU64::new(FREE),
            watcher_sleeps: AtomicBool::new(false),
            began: Instant::now(),
            rush_until: AtomicU64::new(0),
            rest: Mutex::default(),
            called: Condvar::new(),
            watcher_called: Condvar::new(),
        }
    }
}

/// The turn of one thread. Dropped, it is free.
pub(crate) struct Held<'a> {
    turn: &'a Turn,
    state: u64,
}

fn next(state: u64, phase: u64) -> u64 {
    (state & !PHASE_BITS).wrapping_add(PHASE_BITS + 1) | phase
}

impl Turn {
    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Has all threads wait for a while.
    pub(crate) fn rush(&self) {
        let now = self.now();
        let until = now.saturating_add(u64::try_from(RUSH.as_micros()).unwrap_or(0));
        if self.rush_until.swap(until, Ordering::SeqCst) <= now {
            let rest = self.rest();
            self.called.notify_all();
            self.watcher_called.notify_all();
            drop(rest);
        }
    }

    /// Waits until it is the calling thread's turn, or `None`: all wait.
    pub(crate) fn take(&self) -> Option<Held<'_>> {
        let mut rest = self.rest();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let is_free = state & PHASE_BITS == FREE;
            if self.now() < self.rush_until.load(Ordering::SeqCst) {
                // Whoever freed the turn may have called this thread, which does not take it.
                if is_free && rest.has_watcher {
                    self.watcher_called.notify_one();
                }
                return None;
            }
            if is_free {
                let state = next(state, WAITING);
                self.state.store(state, Ordering::SeqCst);
                return Some(Held { turn: self, state });
            }
            if !rest.has_watcher {
                rest.has_watcher = true;
                let state = self.watch(rest);
                return Some(Held { turn: self, state });
            }
            rest.idle += 1;
            rest = self.called.wait(rest).unwrap_or_else(PoisonError::into_inner);
            rest.idle -= 1;
        }
    }

    /// Looks after the turn until it is the watcher's own.
    fn watch(&self, mut rest: MutexGuard<'_, Rest>) -> u64 {
        let mut seen = self.state.load(Ordering::SeqCst);
        let mut quiet = 0;
        let own = loop {
            rest = if quiet < QUIET_LOOKS {
                let looked = self.watcher_called.wait_timeout(rest, LOOK_EVERY);
                looked.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.sleep(rest, seen)
            };
            let state = self.state.load(Ordering::SeqCst);
            let own = next(state, WAITING);
            match state & PHASE_BITS {
                FREE => {
                    self.state.store(own, Ordering::SeqCst);
                    break own;
                }
                SERVING if state == seen && self.change(state, own) => break own,
                WAITING if state == seen => quiet += 1,
                _ => quiet = 0,
            }
            seen = state;
        };
        rest.has_watcher = false;
        if rest.idle > 0 {
            self.called.notify_one();
        }
        own
    }

    /// Waits until anything is served.
    fn sleep<'a>(&self, mut rest: MutexGuard<'a, Rest>, seen: u64) -> MutexGuard<'a, Rest> {
        self.watcher_sleeps.store(true, Ordering::SeqCst);
        // What began before that was to be seen did not call.
        if self.state.load(Ordering::SeqCst) == seen {
            rest = self.watcher_called.wait(rest).unwrap_or_else(PoisonError::into_inner);
        }
        self.watcher_sleeps.store(false, Ordering::SeqCst);
        rest
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Held<'_> {
    /// Serves one request in this turn.
    pub(crate) fn begin(&mut self) {
        self.state = next(self.state, SERVING);
        self.turn.state.store(self.state, Ordering::SeqCst);
        if self.turn.watcher_sleeps.load(Ordering::SeqCst) {
            let rest = self.turn.rest();
            self.turn.watcher_called.notify_one();
            drop(rest);
        }
    }

    /// The request is served; whether it is still this thread's turn.
    pub(crate) fn end(&mut self) -> bool {
        let state = next(self.state, WAITING);
        let is_own = self.turn.change(self.state, state);
        self.state = if is_own { state } else { LOST };
        is_own
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let rest = self.turn.rest();
        // Another thread's already, where this one was too slow.
        if self.turn.change(self.state, next(self.state, FREE)) {
            let wanted = if rest.idle > 0 { &self.turn.called } else { &self.turn.watcher_called };
            wanted.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    #[test]
    fn one_thread_has_the_turn_at_a_time() {
        let (turn, inside, taken) = (Turn::default(), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let held = turn.take().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        taken.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 8000);
    }

    #[test]
    fn a_turn_that_takes_long_is_taken_away_also_when_the_watcher_slept() {
        for pause in [Duration::ZERO, LOOK_EVERY * (QUIET_LOOKS + 4)] {
            let turn = Turn::default();
            let mut slow = turn.take().unwrap();
            thread::scope(|scope| {
                let other = scope.spawn(|| turn.take().unwrap());
                thread::sleep(pause);
                slow.begin();
                let mut taken = other.join().unwrap();
                assert!(!slow.end());
                drop(slow);
                taken.begin();
                assert!(taken.end(), "whose turn is lost does not free another's");
            });
            drop(turn.take().unwrap());
        }
    }

    #[test]
    fn a_turn_is_kept_while_nothing_is_asked() {
        let turn = Turn::default();
        let mut held = turn.take().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(turn.take()));
            thread::sleep(LOOK_EVERY * 4);
            held.begin();
            assert!(held.end());
            drop(held);
        });
    }

    #[test]
    fn in_a_rush_nobody_is_kept_waiting_and_afterwards_there_are_turns_again() {
        let turn = Turn::default();
        let held = turn.take().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                // Also one that watched, when it was no turn of the rush.
                scope.spawn(|| drop(turn.take()));
            }
            thread::sleep(LOOK_EVERY * (QUIET_LOOKS + 4));
            turn.rush();
            assert!(turn.take().is_none());
            drop(held);
        });
        thread::sleep(RUSH * 2);
        assert!(turn.take().is_some());
    }

    #[test]
    fn a_turn_that_was_freed_for_one_who_does_not_take_it_is_the_watchers() {
        let turn = Turn::default();
        let held = turn.take().unwrap();
        thread::scope(|scope| {
            let watcher = scope.spawn(|| turn.take().is_some());
            thread::sleep(LOOK_EVERY * (QUIET_LOOKS + 4));
            turn.rush_until.store(u64::MAX, Ordering::SeqCst);
            // Somebody was called, and comes when it is a rush already.
            turn.rest().idle += 1;
            drop(held);
            turn.rest().idle -= 1;
            assert!(turn.take().is_none());
            assert!(watcher.join().unwrap());
        });
    }
}
