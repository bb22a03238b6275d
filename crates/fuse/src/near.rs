//! Nearness: a thread that answers brief requests does so on the processor of whoever asks.
//!
//! The one who asks sleeps until the answer is there, so its processor is idle; another would first
//! have to be woken, and wake it in turn. The scheduler prefers a processor that is idle *now*,
//! when that one is still busy, so it has to be told.
//!
//! 1. A thread of its own looks where callers are, and answers nothing: a caller that is about to
//!    become another program holds what such a look waits for, and may ask us meanwhile. It is not
//!    waited for at the end.
//! 2. A thread that answers moves only after two looks found the same place.
//! 3. A thread roams wherever what it does is not brief.
//! 4. Callers that ask by turns are many: none of them is followed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use butternut_sys::affinity::{Watched, roam, stay_at};

/// How often callers are looked at while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Looks without a new request, after which nobody looks any more.
const QUIET_LOOKS: u32 = 8;

/// What a request adds by another caller than the one before; one by the same takes 1 away. From
/// the second number on callers are many, so that programs that follow each other are not.
const CHANGE_WEIGHS: u32 = 4;
const CHANGES_MANY: u32 = 24;
const CHANGES_MAX: u32 = 48;

/// No caller.
const NOBODY: u32 = 0;
const NOWHERE: usize = usize::MAX;

/// Where the callers of a mount are.
pub(crate) struct Callers {
    shared: Arc<Shared>,
    looker: JoinHandle<()>,
}

struct Shared {
    /// The last who asked, taken by a look.
    caller: AtomicU32,
    place: AtomicUsize,
    looker_sleeps: AtomicBool,
    has_ended: AtomicBool,
}

impl Callers {
    pub(crate) fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            caller: AtomicU32::new(NOBODY),
            place: AtomicUsize::new(NOWHERE),
            looker_sleeps: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let looking = Arc::clone(&shared);
        let named = thread::Builder::new().name("butternut-near".into());
        let looker = named.spawn(move || looking.look())?;
        Ok(Self { shared, looker })
    }

    fn wake(&self) {
        self.looker.thread().unpark();
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.wake();
    }
}

impl Shared {
    fn look(&self) {
        let (mut watched, mut seen, mut quiet) = (None::<Watched>, None, 0);
        while !self.has_ended.load(Ordering::SeqCst) {
            let caller = self.caller.swap(NOBODY, Ordering::SeqCst);
            if caller == NOBODY {
                quiet += 1;
                self.rest(quiet);
                continue;
            }
            quiet = 0;
            if watched.as_ref().is_none_or(|watched| watched.thread() != caller) {
                watched = Watched::new(caller);
            }
            let place = watched.as_ref().and_then(Watched::processor);
            if place.is_none() {
                watched = None;
            }
            if place.is_some() && place == seen {
                self.place.store(place.unwrap_or(NOWHERE), Ordering::SeqCst);
            }
            seen = place;
            thread::sleep(LOOK_EVERY);
        }
    }

    fn rest(&self, quiet: u32) {
        if quiet < QUIET_LOOKS {
            thread::sleep(LOOK_EVERY);
            return;
        }
        self.looker_sleeps.store(true, Ordering::SeqCst);
        // Who asked before did not wake; who does from here on leaves a token.
        let is_idle = self.caller.load(Ordering::SeqCst) == NOBODY;
        if is_idle && !self.has_ended.load(Ordering::SeqCst) {
            thread::park();
        }
        self.looker_sleeps.store(false, Ordering::SeqCst);
    }
}

/// One thread's place.
#[derive(Default)]
pub(crate) struct Near {
    stays_at: Option<usize>,
    /// The last caller, and how much the callers changed of late.
    last: u32,
    changes: u32,
}

impl Near {
    /// Whether callers are many, with this one.
    pub(crate) fn meets_many(&mut self, caller: u32) -> bool {
        if caller == self.last || caller == NOBODY {
            self.changes = self.changes.saturating_sub(1);
        } else {
            self.last = caller;
            self.changes = (self.changes + CHANGE_WEIGHS).min(CHANGES_MAX);
        }
        self.changes >= CHANGES_MANY
    }

    /// Goes where callers are; `caller` sleeps until it has its answer.
    pub(crate) fn follow(&mut self, callers: &Callers, caller: u32) {
        if caller == NOBODY {
            return;
        }
        callers.shared.caller.store(caller, Ordering::SeqCst);
        if callers.shared.looker_sleeps.load(Ordering::SeqCst) {
            callers.wake();
        }
        let place = callers.shared.place.load(Ordering::SeqCst);
        if place != NOWHERE && self.stays_at != Some(place) {
            // Where it may not be it does not try again until others are seen elsewhere.
            stay_at(place);
            self.stays_at = Some(place);
        }
    }

    /// Goes wherever there is room.
    pub(crate) fn roam(&mut self) {
        if self.stays_at.take().is_some() {
            roam();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_goes_where_its_caller_is_also_after_a_pause() {
        let callers = Callers::new().unwrap();
        let caller = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        for pause in [Duration::ZERO, LOOK_EVERY * (QUIET_LOOKS + 4)] {
            thread::sleep(pause);
            callers.shared.place.store(NOWHERE, Ordering::SeqCst);
            let mut near = Near::default();
            let begun = Instant::now();
            while near.stays_at.is_none() {
                assert!(begun.elapsed() < Duration::from_mins(1), "nobody looks");
                near.follow(&callers, caller);
            }
            near.roam();
            assert_eq!(near.stays_at, None);
        }
    }

    #[test]
    fn callers_by_turns_are_many_and_those_that_follow_each_other_are_not() {
        let mut near = Near::default();
        for caller in 1..100 {
            assert!((0..8).all(|_| !near.meets_many(caller)), "the {caller}th");
        }
        assert!((0..20).any(|request| near.meets_many(1 + request % 2)));
        assert!((0..60).any(|_| !near.meets_many(7)), "alone again");
    }

    #[test]
    fn callers_that_are_gone_are_nowhere() {
        let callers = Callers::new().unwrap();
        let mut near = Near::default();
        for _ in 0..10 {
            near.follow(&callers, u32::MAX);
            thread::sleep(LOOK_EVERY);
        }
        assert_eq!(near.stays_at, None);
    }
}
