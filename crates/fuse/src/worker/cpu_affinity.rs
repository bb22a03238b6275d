//! CPU affinity: a leader that serves short requests runs on the CPU of the caller.
//!
//! A caller sleeps until it has its reply, so its CPU is idle. Another CPU would first have to be
//! woken, and would have to wake the caller's in turn. The scheduler places a thread when it is
//! woken, and at that moment the caller's CPU is still busy. So the leader sets its affinity
//! itself.
//!
//! ```text
//! leader   -- thread id of the caller -->   CallerTracker
//! sampler  -- /proc: CPU of that thread --> CallerTracker, every 2 ms
//! leader   <-- CPU --                       CallerTracker;  sched_setaffinity
//! ```
//!
//! 1. A thread of its own, the sampler, reads the CPU of callers, and serves no request. Reading
//!    it may wait for a lock that a caller in execve(2) holds, and that caller may itself wait for
//!    a request of this mount. For the same reason the end of the mount does not join the sampler.
//! 2. The leader moves only after two samples in a row found the same CPU.
//! 3. A thread that serves anything else than short requests has no affinity.
//! 4. The leader does not follow callers that alternate: several callers count as a burst.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use butternut_sys::affinity::{WatchedThread, bind_to_cpu, reset_affinity};

/// Interval between two samples while there are requests.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);
/// Intervals without a request, after which the sampler sleeps.
const IDLE_SAMPLES: u32 = 8;

/// Added to the count of changes by a request of another caller than the one before. A request of
/// the same caller subtracts 1. One program after another stays below `CHANGES_MANY`.
const CHANGE_WEIGHT: u32 = 4;
/// Count of changes from which on callers alternate.
const CHANGES_MANY: u32 = 24;
const CHANGES_MAX: u32 = 48;

const NO_CALLER: u32 = 0;
const NO_CPU: usize = usize::MAX;

/// Knows the CPU on which the callers of a mount run.
pub(crate) struct CallerTracker {
    shared: Arc<Shared>,
    sampler: JoinHandle<()>,
}

struct Shared {
    /// Thread id of the last caller. A sample takes it.
    caller: AtomicU32,
    cpu: AtomicUsize,
    sampler_sleeps: AtomicBool,
    has_ended: AtomicBool,
}

impl CallerTracker {
    /// Starts the sampler thread.
    pub(crate) fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            caller: AtomicU32::new(NO_CALLER),
            cpu: AtomicUsize::new(NO_CPU),
            sampler_sleeps: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let state = Arc::clone(&shared);
        let builder = thread::Builder::new().name("butternut-cpu".into());
        let sampler = builder.spawn(move || state.sample())?;
        Ok(Self { shared, sampler })
    }

    fn wake(&self) {
        self.sampler.thread().unpark();
    }
}

impl Drop for CallerTracker {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.wake();
    }
}

impl Shared {
    fn sample(&self) {
        let (mut watched, mut seen, mut idle) = (None::<WatchedThread>, None, 0);
        while !self.has_ended.load(Ordering::SeqCst) {
            let caller = self.caller.swap(NO_CALLER, Ordering::SeqCst);
            if caller == NO_CALLER {
                idle += 1;
                self.rest(idle);
                continue;
            }
            idle = 0;
            if watched.as_ref().is_none_or(|watched| watched.thread() != caller) {
                watched = WatchedThread::new(caller);
            }
            let cpu = watched.as_ref().and_then(WatchedThread::cpu);
            if cpu.is_none() {
                watched = None;
            }
            if cpu.is_some() && cpu == seen {
                self.cpu.store(cpu.unwrap_or(NO_CPU), Ordering::SeqCst);
            }
            seen = cpu;
            thread::sleep(SAMPLE_INTERVAL);
        }
    }

    fn rest(&self, idle: u32) {
        if idle < IDLE_SAMPLES {
            thread::sleep(SAMPLE_INTERVAL);
            return;
        }
        self.sampler_sleeps.store(true, Ordering::SeqCst);
        // A leader that stored its caller before it could see the flag did not wake the sampler;
        // one that sees the flag leaves a token, which ends the park at once.
        let is_idle = self.caller.load(Ordering::SeqCst) == NO_CALLER;
        if is_idle && !self.has_ended.load(Ordering::SeqCst) {
            thread::park();
        }
        self.sampler_sleeps.store(false, Ordering::SeqCst);
    }
}

/// The affinity of one worker thread.
#[derive(Default)]
pub(crate) struct CpuAffinity {
    cpu: Option<usize>,
    last_caller: u32,
    /// How often callers changed of late: see `CHANGE_WEIGHT`.
    changes: u32,
}

impl CpuAffinity {
    /// Counts a request of `caller`, and returns whether several callers alternate.
    pub(crate) fn has_many_callers(&mut self, caller: u32) -> bool {
        if caller == self.last_caller || caller == NO_CALLER {
            self.changes = self.changes.saturating_sub(1);
        } else {
            self.last_caller = caller;
            self.changes = (self.changes + CHANGE_WEIGHT).min(CHANGES_MAX);
        }
        self.changes >= CHANGES_MANY
    }

    /// Pins the calling thread to the CPU of the callers. `caller` sleeps until it has its reply.
    pub(crate) fn follow_caller(&mut self, callers: &CallerTracker, caller: u32) {
        if caller == NO_CALLER {
            return;
        }
        callers.shared.caller.store(caller, Ordering::SeqCst);
        if callers.shared.sampler_sleeps.load(Ordering::SeqCst) {
            callers.wake();
        }
        let cpu = callers.shared.cpu.load(Ordering::SeqCst);
        if cpu != NO_CPU && self.cpu != Some(cpu) {
            // A CPU that the thread may not use is remembered too, so that the call is not
            // repeated until callers are seen on another one.
            bind_to_cpu(cpu);
            self.cpu = Some(cpu);
        }
    }

    /// Lets the calling thread run on every CPU again.
    pub(crate) fn unpin(&mut self) {
        if self.cpu.take().is_some() {
            reset_affinity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_follows_its_caller_also_after_the_sampler_slept() {
        let callers = CallerTracker::new().unwrap();
        let caller = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        for pause in [Duration::ZERO, SAMPLE_INTERVAL * (IDLE_SAMPLES + 4)] {
            thread::sleep(pause);
            callers.shared.cpu.store(NO_CPU, Ordering::SeqCst);
            let mut affinity = CpuAffinity::default();
            let begun = Instant::now();
            while affinity.cpu.is_none() {
                assert!(begun.elapsed() < Duration::from_mins(1), "no sample was taken");
                affinity.follow_caller(&callers, caller);
            }
            affinity.unpin();
            assert_eq!(affinity.cpu, None);
        }
    }

    #[test]
    fn alternating_callers_are_many_and_successive_callers_are_not() {
        let mut affinity = CpuAffinity::default();
        for caller in 1..100 {
            assert!((0..8).all(|_| !affinity.has_many_callers(caller)), "caller {caller}");
        }
        assert!((0..20).any(|request| affinity.has_many_callers(1 + request % 2)));
        assert!((0..60).any(|_| !affinity.has_many_callers(7)), "one caller again");
    }

    #[test]
    fn a_caller_that_has_exited_has_no_cpu() {
        let callers = CallerTracker::new().unwrap();
        let mut affinity = CpuAffinity::default();
        for _ in 0..10 {
            affinity.follow_caller(&callers, u32::MAX);
            thread::sleep(SAMPLE_INTERVAL);
        }
        assert_eq!(affinity.cpu, None);
    }
}
