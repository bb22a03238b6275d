//! [`CleanerSignal`]: what operations tell the cleaner thread, when it looks again, and what it
//! tells those that wait for it.
//!
//! 1. Of the threads that remove the last name or the last pin of a large orphan, one at a time
//!    deletes it itself. The others leave theirs to the cleaner, so that a program which deletes
//!    many large files at once occupies one thread of a server. With [`LARGE_MAX`] of them queued,
//!    and without a cleaner thread, every thread deletes its own. A thread that is to wait for no
//!    device leaves each of its orphans to the cleaner, however many are queued.
//! 2. The cleaner deletes queued orphans in the order in which they were queued. While more than
//!    [`QUEUED_MAX`] are queued, each operation that writes deletes a small one first, the last
//!    one, so that their number is bounded. The large ones that are left when the cleaner stops
//!    have an orphan item (law 1 of `inode/pin.rs`).
//! 3. While a deleted subvolume is left because its inodes are pinned, the last unpin of one wakes
//!    the cleaner.
//! 4. A thread that waits for deletions waits for those that were queued or had begun before, also
//!    by callers, and no longer than the cleaner thread runs. No thread that deletes waits.

use crate::inode::table::InodeEntry;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Read-only subvolumes whose orphans the cleaner has yet to look for. The orphans of others stay
/// until the volume is opened again.
const READ_ONLY_MAX: usize = 4096;

/// Maximum number of large orphans that callers leave to the cleaner.
pub(super) const LARGE_MAX: usize = 4096;

/// Number of queued orphans above which operations help to delete them.
pub(super) const QUEUED_MAX: usize = 4096;

/// Pause between two looks for space that was freed, while a deletion has found none.
const POLL: Duration = Duration::from_millis(100);

/// What operations tell the cleaner.
#[derive(Debug, Default)]
pub(crate) struct CleanerSignal {
    state: Mutex<State, rank::Cleaner>,
    wake: Condvar,
    /// Whether `left` has any, for a look without the lock.
    has_left: AtomicBool,
    /// For those that wait until a subvolume is freed.
    freed: Condvar,
    /// For those that wait until queued orphans are deleted.
    evicted: Condvar,
}

/// What the cleaner looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Orphans that are queued.
    Orphans,
    /// Deleted subvolumes, too.
    All,
}

/// Which thread deletes an orphan, if it may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictBy {
    Caller,
    Cleaner,
}

/// An orphan that a thread deletes, until this is dropped: then it is deleted or left.
#[derive(Debug)]
pub(crate) struct Evicting<'a> {
    signal: &'a CleanerSignal,
    number: u64,
    /// A caller that keeps others from deleting theirs (law 1).
    is_alone: bool,
}

impl Drop for Evicting<'_> {
    fn drop(&mut self) {
        let mut state = self.signal.state();
        state.pending.remove(&self.number);
        if self.is_alone {
            state.is_caller_evicting = false;
        }
        drop(state);
        self.signal.evicted.notify_all();
    }
}

/// The run of the cleaner thread. However it ends, no thread waits for it afterwards.
#[derive(Debug)]
pub(super) struct Running<'a>(&'a CleanerSignal);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The cleaner thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    None,
    Runs,
    Stopped,
}

/// An orphan that the cleaner is to delete, with its number.
#[derive(Debug)]
struct Queued {
    number: u64,
    entry: Arc<InodeEntry>,
    by: EvictBy,
}

#[derive(Debug, Default)]
struct State {
    is_due: bool,
    thread: Thread,
    /// A caller deletes a large orphan.
    is_caller_evicting: bool,
    /// Orphans that the cleaner is to delete.
    evictions: VecDeque<Queued>,
    /// How many of them callers have left that could have deleted them.
    large: usize,
    /// Number of the last of them.
    last: u64,
    /// Subvolumes of the orphans that are queued or being deleted, by their numbers.
    pending: BTreeMap<u64, u64>,
    /// Number of threads that wait for them.
    awaiting: usize,
    /// Number of subvolumes that were freed.
    cleaned: u64,
    /// Deleted subvolumes that are left because they are in use (law 3).
    left: BTreeSet<u64>,
    /// Read-only subvolumes that were used for the first time.
    read_only: BTreeSet<u64>,
}

impl State {
    fn is_stopped(&self) -> bool {
        self.thread == Thread::Stopped
    }

    /// Counts an orphan that has left the queue.
    fn has_left(&mut self, queued: &Queued) {
        self.large -= usize::from(queued.by == EvictBy::Caller);
    }
}

impl CleanerSignal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins the deletion of an orphan that is large, or that the caller leaves to the cleaner.
    /// Returns `None` if it is left (law 1).
    pub(crate) fn begin_eviction(
        &self,
        entry: &Arc<InodeEntry>,
        by: EvictBy,
    ) -> Option<Evicting<'_>> {
        let mut state = self.state();
        let is_alone = !state.is_caller_evicting && by == EvictBy::Caller;
        let has_place = by == EvictBy::Cleaner || state.large < LARGE_MAX;
        let is_left = state.thread == Thread::Runs && has_place;
        state.last += 1;
        let number = state.last;
        state.pending.insert(number, entry.id.subvolume);
        if is_alone || !is_left {
            state.is_caller_evicting |= is_alone;
            return Some(Evicting { signal: self, number, is_alone });
        }
        state.large += usize::from(by == EvictBy::Caller);
        state.evictions.push_back(Queued { number, entry: Arc::clone(entry), by });
        drop(state);
        self.wake.notify_all();
        None
    }

    /// Returns the number of the last orphan that was queued or whose deletion has begun.
    pub(super) fn last(&self) -> u64 {
        self.state().last
    }

    /// Returns the next orphan that the cleaner is to delete, of those up to a number.
    pub(super) fn next_eviction(&self, until: u64) -> Option<(Arc<InodeEntry>, Evicting<'_>)> {
        let mut state = self.state();
        let is_next = |queued: &Queued| queued.number <= until;
        if state.is_stopped() || !state.evictions.front().is_some_and(is_next) {
            return None;
        }
        self.take_eviction(&mut state)
    }

    /// Returns a queued orphan, also after the cleaner was stopped.
    pub(super) fn next_eviction_at_end(&self) -> Option<(Arc<InodeEntry>, Evicting<'_>)> {
        self.take_eviction(&mut self.state())
    }

    fn take_eviction(&self, state: &mut State) -> Option<(Arc<InodeEntry>, Evicting<'_>)> {
        let queued = state.evictions.pop_front()?;
        state.has_left(&queued);
        Some(self.evicting(queued))
    }

    /// Returns the last queued orphan for a caller to delete, if too many are queued and it is
    /// small (law 2).
    pub(crate) fn next_to_help(&self) -> Option<(Arc<InodeEntry>, Evicting<'_>)> {
        let mut state = self.state();
        let is_small = |queued: &Queued| queued.by == EvictBy::Cleaner;
        if state.evictions.len() <= QUEUED_MAX || !state.evictions.back().is_some_and(is_small) {
            return None;
        }
        state.evictions.pop_back().map(|queued| self.evicting(queued))
    }

    fn evicting(&self, queued: Queued) -> (Arc<InodeEntry>, Evicting<'_>) {
        let Queued { number, entry, .. } = queued;
        (entry, Evicting { signal: self, number, is_alone: false })
    }

    /// Waits until orphans that are queued or being deleted now are deleted (law 4): those in
    /// the subvolumes that `concerns` returns of all that have some. Returns whether there were
    /// any. The caller holds no lock that a deletion takes.
    pub(crate) fn wait_until_evicted(
        &self,
        concerns: &dyn Fn(&BTreeSet<u64>) -> BTreeSet<u64>,
    ) -> bool {
        let state = self.state();
        let (until, all) = (state.last, state.pending.values().copied().collect());
        drop(state);
        let concerned = concerns(&all);
        let is_pending = |state: &State| {
            let pending = state.pending.range(..=until);
            pending.into_iter().any(|(_, subvolume)| concerned.contains(subvolume))
        };
        let mut state = self.state();
        let was_pending = is_pending(&state);
        state.awaiting += 1;
        while is_pending(&state) && !state.is_stopped() {
            state = self.evicted.wait(state);
        }
        state.awaiting -= 1;
        was_pending
    }

    /// Returns whether a thread waits until orphans are deleted.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.state().awaiting > 0
    }

    /// Returns the number of queued orphans.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.state().evictions.len()
    }

    /// Whether the cleaner has left a subvolume that is in use.
    #[cfg(test)]
    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Whether the cleaner has begun with all read-only subvolumes that were used.
    #[cfg(test)]
    pub(super) fn has_taken_read_only(&self) -> bool {
        self.state().read_only.is_empty()
    }

    pub(super) fn start(&self) {
        self.state().thread = Thread::Runs;
    }

    /// Stops when what it returns is dropped, also by a panic of the cleaner thread.
    pub(super) fn stop_at_end(&self) -> Running<'_> {
        Running(self)
    }

    /// Records that a subvolume was deleted.
    pub(crate) fn request(&self) {
        self.state().is_due = true;
        self.wake.notify_all();
    }

    /// Records the deleted subvolumes that are left because they are in use (law 3). One that is
    /// unpinned while this is called is looked at again at the next retry.
    pub(crate) fn set_left(&self, left: &[u64]) {
        self.state().left = left.iter().copied().collect();
        self.has_left.store(!left.is_empty(), Ordering::Release);
    }

    /// Records that an inode of a subvolume has no pin any more (law 3).
    pub(crate) fn is_unpinned(&self, subvolume: u64) {
        if self.has_left.load(Ordering::Acquire) && self.state().left.contains(&subvolume) {
            self.request();
        }
    }

    /// Records that a read-only subvolume is used, which may have orphans that a crash has left.
    pub(crate) fn request_orphans(&self, subvolume: u64) {
        let mut state = self.state();
        if state.read_only.len() < READ_ONLY_MAX {
            state.read_only.insert(subvolume);
            state.is_due = true;
            self.wake.notify_all();
        }
    }

    /// Returns the read-only subvolumes that were used since the last call.
    pub(crate) fn take_read_only(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.state().read_only)
    }

    /// Records that a subvolume was freed.
    pub(crate) fn has_cleaned(&self) {
        let mut state = self.state();
        state.cleaned = state.cleaned.wrapping_add(1);
        drop(state);
        self.freed.notify_all();
    }

    /// Returns the number of subvolumes that were freed.
    pub(crate) fn cleaned(&self) -> u64 {
        self.state().cleaned
    }

    /// Waits until the number of subvolumes that were freed is not `seen`, at most for a time.
    pub(crate) fn wait_until_cleaned(&self, seen: u64, at_most: Duration) {
        let state = self.state();
        if state.cleaned == seen && !state.is_stopped() {
            drop(self.freed.wait_timeout(state, at_most));
        }
    }

    pub(super) fn stop(&self) {
        self.state().thread = Thread::Stopped;
        self.wake.notify_all();
        self.freed.notify_all();
        self.evicted.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().is_stopped()
    }

    /// Waits until orphans are queued, or until there may be something else to free: at `retry` at
    /// the latest. Where `has_space` is given, it is called every [`POLL`]. Returns `None` at the
    /// end.
    pub(super) fn wait(
        &self,
        retry: Option<Instant>,
        has_space: Option<&dyn Fn() -> bool>,
    ) -> Option<Look> {
        let mut state = self.state();
        loop {
            if state.is_stopped() {
                return None;
            }
            let now = Instant::now();
            if std::mem::take(&mut state.is_due) || retry.is_some_and(|retry| retry <= now) {
                return Some(Look::All);
            }
            if !state.evictions.is_empty() {
                return Some(Look::Orphans);
            }
            state = match (retry, has_space) {
                (Some(retry), None) => self.wake.wait_timeout(state, retry - now).0,
                (None, None) => self.wake.wait(state),
                (retry, Some(has_space)) => {
                    let left = retry.map_or(POLL, |retry| POLL.min(retry - now));
                    drop(self.wake.wait_timeout(state, left));
                    if has_space() {
                        return Some(Look::All);
                    }
                    self.state()
                }
            };
        }
    }
}
