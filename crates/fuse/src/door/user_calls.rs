//! [`UserCalls`]: how many deferred calls of users run at the same time.
//!
//! A deferred call has a thread, and memory of its own: a deduplication has 2 MiB. A user may have
//! any number of processes that send such calls.
//!
//! ```text
//! begin() -- below both limits --> runs in a thread -- finish() --> the thread runs the next one
//!        \\- above -----------------> queued ---------------------/
//! ```
//!
//! 1. Of one user at most [`CALLS_OF_USER_MAX`] calls run, so that they are no obstacle to other
//!    users. Of all users at most [`CALLS_MAX`] run: a user may have many user ids in namespaces of
//!    its own. Calls of administrators are not counted here. Calls that may take long, each in
//!    its own way, are counted apart: defragmentations, seals of files above [`SHORT_SEAL_BYTES`],
//!    of which one user has one, snapshots, which walk through all files of their source that are
//!    open for writing, and switches of subvolumes to read-only, which wait for files to be closed.
//!    So the short calls do not wait for them.
//! 2. A call above a limit is queued, and fails no more than one below. When a call has ended, its
//!    thread runs the first queued call of the user with the fewest that run.
//! 3. A call is queued only while another one runs, whose thread runs it later. At the end of the
//!    mount no caller waits, and the queued calls do not run.
//! 4. No call that is counted here waits for another one, or for a program, for more than a short
//!    time. A call that changes a name waits for the kernel's lock of the directory, which a
//!    program may hold for any time: it is counted here until it has made the change, and by
//!    `user_limit` until its reply. What a caller may do is checked before its call is queued.
//! 5. No call is counted here during which the kernel holds the lock of an inode (law 3 of
//!    `deferred`): the programs that wait for that lock would wait for the queue.
//! 6. A caller that a signal interrupts waits for the reply. A defragmentation or the seal of a
//!    large file that is queued then is answered at once, with EINTR: those before it may take
//!    hours. The others end sooner, and the kernel's are ended by no signal that a program handles.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

use crate::errno::ErrnoResult;

/// Maximum number of calls that run at a time, of all users and of one (law 1).
const CALLS_MAX: usize = 64;
const CALLS_OF_USER_MAX: usize = 16;
/// The same of calls that may take very long, and much memory.
const LONG_CALLS_MAX: usize = 4;
const LONG_CALLS_OF_USER_MAX: usize = 2;
/// The same of seals of large files. A sparse file needs no space, so a seal may take days,
/// whatever its user may store; it has a few MiB of memory. One user has one, and so many run that
/// users with a few user ids are no obstacle to the first seal of another. How many of them hash at
/// a time is limited by `seal_hashers`.
const LONG_SEALS_MAX: usize = 64;
const LONG_SEALS_OF_USER_MAX: usize = 1;

/// The size of the largest file whose seal is a short call. A deduplication reads as much.
pub(super) const SHORT_SEAL_BYTES: u64 = 16 << 20;

/// A call. With an error it only sends that as the reply.
pub(super) type Call = Box<dyn FnOnce(ErrnoResult<()>) + Send>;

#[derive(Clone, Default)]
pub(super) struct UserCalls(Arc<Mutex<State, rank::UserCalls>>);

/// A call that is queued.
struct Queued {
    user: u32,
    /// The number of its request.
    unique: u64,
    call: Call,
}

struct State {
    /// Maximum numbers of calls of all users and of one.
    most: (usize, usize),
    /// Number of calls that run, of each user that has any.
    running: HashMap<u32, usize>,
    running_of_all: usize,
    queued: VecDeque<Queued>,
}

impl Default for State {
    fn default() -> Self {
        let (running, queued) = (HashMap::new(), VecDeque::new());
        Self { most: (CALLS_MAX, CALLS_OF_USER_MAX), running, running_of_all: 0, queued }
    }
}

impl UserCalls {
    /// For calls of which few may run at a time.
    pub(super) fn of_long_calls() -> Self {
        let calls = Self::default();
        calls.0.lock().most = (LONG_CALLS_MAX, LONG_CALLS_OF_USER_MAX);
        calls
    }

    /// For seals of large files.
    pub(super) fn of_long_seals() -> Self {
        let calls = Self::default();
        calls.0.lock().most = (LONG_SEALS_MAX, LONG_SEALS_OF_USER_MAX);
        calls
    }

    /// Counts a call of a user and returns it, or queues it (law 2).
    pub(super) fn begin(&self, user: u32, unique: u64, call: Call) -> Option<Call> {
        let mut state = self.0.lock();
        if state.may_run(user) {
            state.count(user);
            return Some(call);
        }
        state.queued.push_back(Queued { user, unique, call });
        None
    }

    /// Returns a call that is queued, which must get an error instead of its turn (law 6).
    pub(super) fn interrupt(&self, unique: u64) -> Option<Call> {
        let mut state = self.0.lock();
        let at = state.queued.iter().position(|queued| queued.unique == unique)?;
        state.queued.remove(at).map(|queued| queued.call)
    }

    /// Runs a call of a user, and then what is queued and may run, each with `begun`.
    pub(super) fn run(&self, user: u32, call: Call, begun: ErrnoResult<()>) {
        let mut running = Some((user, call));
        while let Some((user, call)) = running {
            call(begun);
            running = self.finish(user);
        }
    }

    /// Ends a call of a user. Returns the queued call that the calling thread must run next, with
    /// its user. It is counted.
    pub(super) fn finish(&self, user: u32) -> Option<(u32, Call)> {
        let mut state = self.0.lock();
        state.uncount(user);
        let (at, next) = state.next()?;
        state.count(next);
        state.queued.remove(at).map(|queued| (next, queued.call))
    }

    /// Returns the calls that are queued, which must get an error (law 3).
    pub(super) fn end(&self) -> Vec<Call> {
        let queued = std::mem::take(&mut self.0.lock().queued);
        queued.into_iter().map(|queued| queued.call).collect()
    }
}

impl State {
    fn running_of(&self, user: u32) -> usize {
        self.running.get(&user).copied().unwrap_or(0)
    }

    fn may_run(&self, user: u32) -> bool {
        let (of_all, of_user) = self.most;
        self.running_of_all < of_all && self.running_of(user) < of_user
    }

    /// Returns the place of the queued call that runs next, and its user.
    fn next(&self) -> Option<(usize, u32)> {
        let users = self.queued.iter().map(|queued| queued.user).enumerate();
        let may_run = users.filter(|(_, user)| self.may_run(*user));
        may_run.min_by_key(|(at, user)| (self.running_of(*user), *at))
    }

    fn count(&mut self, user: u32) {
        *self.running.entry(user).or_default() += 1;
        self.running_of_all += 1;
    }

    fn uncount(&mut self, user: u32) {
        self.running_of_all = self.running_of_all.saturating_sub(1);
        let left = self.running_of(user).saturating_sub(1);
        if left == 0 {
            self.running.remove(&user);
        } else {
            self.running.insert(user, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Box::new(|_| ())
    }

    #[test]
    fn a_call_that_is_interrupted_leaves_the_queue() {
        let calls = UserCalls::of_long_calls();
        for unique in 0..5 {
            let running = calls.begin(7, unique, call());
            assert_eq!(running.is_some(), unique < 2);
        }
        assert!(calls.interrupt(1).is_none(), "it runs");
        assert!(calls.interrupt(3).is_some());
        assert!(calls.interrupt(3).is_none());
        let queued =
            || calls.0.lock().queued.iter().map(|queued| queued.unique).collect::<Vec<_>>();
        assert_eq!(queued(), [2, 4]);
    }

    #[test]
    fn a_user_has_one_long_seal() {
        let calls = UserCalls::of_long_seals();
        let runs = |user, unique| calls.begin(user, unique, call()).is_some();
        assert!(runs(7, 0) && !runs(7, 1) && !runs(7, 2) && runs(8, 3));
        assert!(calls.interrupt(2).is_some());
        assert_eq!(calls.finish(7).map(|(user, _)| user), Some(7));
    }

    #[test]
    fn users_with_some_user_ids_do_not_delay_the_long_seal_of_another() {
        let calls = UserCalls::of_long_seals();
        let runs = |user: u32| calls.begin(user, user.into(), call()).is_some();
        assert!((100..132).all(runs), "as if they were of one user");
        let of_others = (200..1200).filter(|user| runs(*user)).count();
        assert_eq!(32 + of_others, LONG_SEALS_MAX, "the number of threads is bounded");
    }

    #[test]
    fn the_number_of_calls_that_run_is_limited_and_the_rest_is_queued() {
        let calls = UserCalls::default();
        let begin_while_it_runs = |user| calls.begin(user, user.into(), call()).map(drop);
        let of_one = std::iter::from_fn(|| begin_while_it_runs(1000)).count();
        assert_eq!(of_one, CALLS_OF_USER_MAX);
        // As if they were of one user with many user ids.
        let of_others = (1001..).map_while(begin_while_it_runs).count();
        assert_eq!(of_one + of_others, CALLS_MAX);
        let last = 1001 + u32::try_from(of_others).unwrap();
        // Queued: one of the first user, and one of a user of which none runs.
        let next = |user| calls.finish(user).map(|(user, _)| user);
        assert_eq!(next(1001), Some(last), "the user with the fewest calls");
        assert_eq!(next(1002), None, "the first user has too many");
        assert_eq!(next(1000), Some(1000));
        for _ in 0..CALLS_OF_USER_MAX {
            assert_eq!(next(1000), None);
        }
        (1003..=last).for_each(|user| assert_eq!(next(user), None));
        let state = calls.0.lock();
        assert!(state.running.is_empty() && state.running_of_all == 0 && state.queued.is_empty());
    }
}
