//! Leader and followers: one of a mount's worker threads reads requests, the others sleep.
//!
//! Waking a thread on another CPU takes longer than serving most requests. So one thread, the
//! leader, reads requests and serves the short ones itself, and the other threads, the followers,
//! are not woken. The leader gives up leadership, which wakes a follower, before it serves a
//! request that takes long, and when more requests are queued. One follower, the monitor, checks
//! the leader every 2 ms and takes over from one that is blocked in a request that looked short.
//!
//! ```text
//! vacant  -> reading  acquire, by a thread without work
//! reading -> vacant   drop of the guard, by the leader
//! reading -> serving  begin_request, by the leader
//! serving -> reading  end_request, by the leader; or a takeover by the monitor, which then leads
//! ```
//!
//! During a burst, which is when requests arrive faster than one thread serves them, all threads
//! read for 10 ms and none of them leads.
//!
//! 1. At most one thread leads at a time, and only the leader begins and ends requests and gives
//!    up leadership.
//! 2. The monitor takes over from a leader that serves the same request at two checks in a row.
//! 3. The monitor sleeps while no request arrives; the leader wakes it when it begins one.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval of the monitor's checks. A request that looked short and takes long delays other
/// requests by one to two intervals.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Checks in a row that found the leader reading, after which the monitor sleeps.
const IDLE_CHECKS: u32 = 8;

/// How long all threads read after the last sign of a burst.
const BURST: Duration = Duration::from_millis(10);

// The phase is in the low bits of `Leadership::state`. The bits above count the transitions, so
// that the monitor can tell two requests apart.
const VACANT: u64 = 0;
const READING: u64 = 1;
const SERVING: u64 = 2;
const PHASE_BITS: u64 = 3;
/// Not a value of `Leadership::state`: the state of a former leader after a takeover.
const LOST: u64 = u64::MAX;

/// Decides which worker thread of one mount is the leader.
pub(crate) struct Leadership {
    /// Enters and leaves the phase `VACANT` under the lock of `followers` only.
    state: AtomicU64,
    monitor_sleeps: AtomicBool,
    epoch: Instant,
    /// End of the current burst, in microseconds since `epoch`.
    burst_until: AtomicU64,
    followers: Mutex<Followers, rank::Followers>,
    follower_wakeup: Condvar,
    monitor_wakeup: Condvar,
}

#[derive(Default)]
struct Followers {
    has_monitor: bool,
    /// Sleeping followers, without the monitor.
    idle: usize,
}

impl Default for Leadership {
    fn default() -> Self {
        Self {
            state: AtomicU64::new(VACANT),
            monitor_sleeps: AtomicBool::new(false),
            epoch: Instant::now(),
            burst_until: AtomicU64::new(0),
            followers: Mutex::default(),
            follower_wakeup: Condvar::new(),
            monitor_wakeup: Condvar::new(),
        }
    }
}

/// Held by the thread that leads. Dropping it gives up leadership.
pub(crate) struct Leader<'a> {
    leadership: &'a Leadership,
    state: u64,
}

fn next(state: u64, phase: u64) -> u64 {
    (state & !PHASE_BITS).wrapping_add(PHASE_BITS + 1) | phase
}

impl Leadership {
    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers.lock()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Starts or extends a burst, and wakes every follower at the start of one.
    pub(crate) fn start_burst(&self) {
        let now = self.now();
        let until = now.saturating_add(u64::try_from(BURST.as_micros()).unwrap_or(0));
        if self.burst_until.swap(until, Ordering::SeqCst) <= now {
            let followers = self.followers();
            self.follower_wakeup.notify_all();
            self.monitor_wakeup.notify_all();
            drop(followers);
        }
    }

    /// Waits until the calling thread is the leader. Returns `None` during a burst: every thread
    /// reads then.
    pub(crate) fn acquire(&self) -> Option<Leader<'_>> {
        let mut followers = self.followers();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let is_vacant = state & PHASE_BITS == VACANT;
            if self.now() < self.burst_until.load(Ordering::SeqCst) {
                // The wakeup of a vacancy may have come to this thread, which does not lead.
                // Without this one the monitor could sleep for ever.
                if is_vacant && followers.has_monitor {
                    self.monitor_wakeup.notify_one();
                }
                return None;
            }
            if is_vacant {
                let state = next(state, READING);
                self.state.store(state, Ordering::SeqCst);
                return Some(Leader { leadership: self, state });
            }
            if !followers.has_monitor {
                followers.has_monitor = true;
                let state = self.monitor(followers);
                return Some(Leader { leadership: self, state });
            }
            followers.idle += 1;
            followers = self.follower_wakeup.wait(followers);
            followers.idle -= 1;
        }
    }

    /// Checks the leader until the calling thread, the monitor, becomes the leader. Returns its
    /// state.
    fn monitor(&self, mut followers: MutexGuard<'_, Followers>) -> u64 {
        let mut seen = self.state.load(Ordering::SeqCst);
        let mut idle_checks = 0;
        let own = loop {
            followers = if idle_checks < IDLE_CHECKS {
                let waited = self.monitor_wakeup.wait_timeout(followers, CHECK_INTERVAL);
                waited.0
            } else {
                self.sleep(followers, seen)
            };
            let state = self.state.load(Ordering::SeqCst);
            let own = next(state, READING);
            match state & PHASE_BITS {
                VACANT => {
                    self.state.store(own, Ordering::SeqCst);
                    break own;
                }
                SERVING if state == seen && self.change(state, own) => break own,
                READING if state == seen => idle_checks += 1,
                _ => idle_checks = 0,
            }
            seen = state;
        };
        followers.has_monitor = false;
        if followers.idle > 0 {
            self.follower_wakeup.notify_one();
        }
        own
    }

    /// Waits until the leader begins a request, or leadership becomes vacant.
    fn sleep<'a>(
        &self,
        mut followers: MutexGuard<'a, Followers>,
        seen: u64,
    ) -> MutexGuard<'a, Followers> {
        self.monitor_sleeps.store(true, Ordering::SeqCst);
        // A leader that began a request before it could see the flag has sent no wakeup.
        if self.state.load(Ordering::SeqCst) == seen {
            followers = self.monitor_wakeup.wait(followers);
        }
        self.monitor_sleeps.store(false, Ordering::SeqCst);
        followers
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Leader<'_> {
    /// Marks the start of a request that the leader serves itself.
    pub(crate) fn begin_request(&mut self) {
        self.state = next(self.state, SERVING);
        self.leadership.state.store(self.state, Ordering::SeqCst);
        if self.leadership.monitor_sleeps.load(Ordering::SeqCst) {
            let followers = self.leadership.followers();
            self.leadership.monitor_wakeup.notify_one();
            drop(followers);
        }
    }

    /// Marks the end of that request. Returns `false` where the monitor has taken over.
    pub(crate) fn end_request(&mut self) -> bool {
        let state = next(self.state, READING);
        let is_own = self.leadership.change(self.state, state);
        self.state = if is_own { state } else { LOST };
        is_own
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let followers = self.leadership.followers();
        // After a takeover the state is not this thread's, and nothing changes.
        if self.leadership.change(self.state, next(self.state, VACANT)) {
            let wakeup = if followers.idle > 0 {
                &self.leadership.follower_wakeup
            } else {
                &self.leadership.monitor_wakeup
            };
            wakeup.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    #[test]
    fn at_most_one_thread_leads() {
        let (leadership, inside, acquired) =
            (Leadership::default(), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let leader = leadership.acquire().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        acquired.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(leader);
                    }
                });
            }
        });
        assert_eq!(acquired.into_inner(), 8000);
    }

    #[test]
    fn the_monitor_takes_over_from_a_blocked_leader_also_after_it_slept() {
        for pause in [Duration::ZERO, CHECK_INTERVAL * (IDLE_CHECKS + 4)] {
            let leadership = Leadership::default();
            let mut slow = leadership.acquire().unwrap();
            thread::scope(|scope| {
                let other = scope.spawn(|| leadership.acquire().unwrap());
                thread::sleep(pause);
                slow.begin_request();
                let mut successor = other.join().unwrap();
                assert!(!slow.end_request());
                drop(slow);
                successor.begin_request();
                assert!(
                    successor.end_request(),
                    "a former leader must not vacate the leadership of its successor"
                );
            });
            drop(leadership.acquire().unwrap());
        }
    }

    #[test]
    fn a_leader_that_waits_for_requests_stays_the_leader() {
        let leadership = Leadership::default();
        let mut leader = leadership.acquire().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(leadership.acquire()));
            thread::sleep(CHECK_INTERVAL * 4);
            leader.begin_request();
            assert!(leader.end_request());
            drop(leader);
        });
    }

    #[test]
    fn a_burst_releases_all_threads_and_leadership_returns_after_it() {
        let leadership = Leadership::default();
        let leader = leadership.acquire().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                // One of them is the monitor, which becomes the leader during the burst.
                scope.spawn(|| drop(leadership.acquire()));
            }
            thread::sleep(CHECK_INTERVAL * (IDLE_CHECKS + 4));
            leadership.start_burst();
            assert!(leadership.acquire().is_none());
            drop(leader);
        });
        thread::sleep(BURST * 2);
        assert!(leadership.acquire().is_some());
    }

    #[test]
    fn the_monitor_leads_where_the_woken_follower_does_not() {
        let leadership = Leadership::default();
        let leader = leadership.acquire().unwrap();
        thread::scope(|scope| {
            let monitor = scope.spawn(|| leadership.acquire().is_some());
            thread::sleep(CHECK_INTERVAL * (IDLE_CHECKS + 4));
            leadership.burst_until.store(u64::MAX, Ordering::SeqCst);
            // As if a follower was woken, and found that a burst has begun.
            leadership.followers().idle += 1;
            drop(leader);
            leadership.followers().idle -= 1;
            assert!(leadership.acquire().is_none());
            assert!(monitor.join().unwrap());
        });
    }
}
