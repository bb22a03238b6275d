//! [`CleanerSignal`]: what operations tell the cleaner thread, when it looks again, and what it
//! tells those that wait for it.
//!
//! 1. Of the threads that remove the last name or the last pin of a large orphan, one at a time
//!    deletes it itself. The others leave theirs to the cleaner, so that a program which deletes
//!    many large files at once occupies one thread of a server. With [`EVICTIONS_MAX`] of them
//!    queued, and without a cleaner thread, every thread deletes its own.
//! 2. Queued orphans are deleted in the order in which they were queued. What is left when the
//!    cleaner stops has an orphan item (law 1 of `inode/pin.rs`).

use crate::inode::table::InodeEntry;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a subvolume with open files is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// Read-only subvolumes whose orphans the cleaner has yet to look for. The orphans of others stay
/// until the volume is opened again.
const READ_ONLY_MAX: usize = 4096;

/// Maximum number of orphans that are queued.
const EVICTIONS_MAX: usize = 4096;

/// What operations tell the cleaner.
#[derive(Debug, Default)]
pub(crate) struct CleanerSignal {
    state: Mutex<State, rank::Cleaner>,
    wake: Condvar,
    /// For those that wait until a subvolume is freed.
    freed: Condvar,
    /// For those that wait until queued orphans are deleted.
    evicted: Condvar,
}

/// A caller that deletes a large orphan itself, until this is dropped.
#[derive(Debug)]
pub(crate) struct Evicting<'a> {
    signal: &'a CleanerSignal,
    /// It keeps others from doing so (law 1).
    is_alone: bool,
}

impl Drop for Evicting<'_> {
    fn drop(&mut self) {
        if self.is_alone {
            self.signal.state().is_caller_evicting = false;
        }
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

#[derive(Debug, Default)]
struct State {
    is_due: bool,
    thread: Thread,
    /// A caller deletes a large orphan.
    is_caller_evicting: bool,
    /// Orphans that the cleaner is to delete.
    evictions: VecDeque<Arc<InodeEntry>>,
    /// Numbers of orphans that were queued, and of those that are deleted or left.
    queued: u64,
    evicted: u64,
    /// Number of threads that wait for that.
    awaiting: usize,
    /// Number of subvolumes that were freed.
    cleaned: u64,
    /// Read-only subvolumes that were used for the first time.
    read_only: BTreeSet<u64>,
}

impl State {
    fn is_stopped(&self) -> bool {
        self.thread == Thread::Stopped
    }
}

impl CleanerSignal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins the deletion of a large orphan. Returns `None` if it is left to the cleaner (law 1).
    pub(crate) fn begin_eviction(&self, entry: &Arc<InodeEntry>) -> Option<Evicting<'_>> {
        let mut state = self.state();
        let is_alone = !state.is_caller_evicting;
        let is_left = state.thread == Thread::Runs && state.evictions.len() < EVICTIONS_MAX;
        if is_alone || !is_left {
            state.is_caller_evicting = true;
            return Some(Evicting { signal: self, is_alone });
        }
        state.evictions.push_back(Arc::clone(entry));
        state.queued += 1;
        state.is_due = true;
        drop(state);
        self.wake.notify_all();
        None
    }

    /// Returns the next orphan that the cleaner is to delete.
    pub(super) fn next_eviction(&self) -> Option<Arc<InodeEntry>> {
        let mut state = self.state();
        if state.is_stopped() { None } else { state.evictions.pop_front() }
    }

    /// Records that the cleaner has deleted an orphan, or that it could not.
    pub(super) fn has_evicted(&self) {
        let mut state = self.state();
        state.evicted += 1;
        drop(state);
        self.evicted.notify_all();
    }

    /// Waits until the orphans that are queued now are deleted. Returns whether there were any. The
    /// caller holds no lock that a deletion takes.
    pub(crate) fn wait_until_evicted(&self) -> bool {
        let mut state = self.state();
        let until = state.queued;
        let was_queued = state.evicted < until;
        state.awaiting += 1;
        while state.evicted < until && !state.is_stopped() {
            state = self.evicted.wait(state);
        }
        state.awaiting -= 1;
        was_queued
    }

    /// Returns whether a thread waits until orphans are deleted.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.state().awaiting > 0
    }

    pub(super) fn start(&self) {
        self.state().thread = Thread::Runs;
    }

    /// Records that a subvolume was deleted.
    pub(crate) fn request(&self) {
        self.state().is_due = true;
        self.wake.notify_all();
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

    /// Waits until there may be something to free. Returns `false` at the end.
    pub(super) fn wait(&self, has_left: bool) -> bool {
        let mut state = self.state();
        while !state.is_due && !state.is_stopped() {
            if has_left {
                state = self.wake.wait_timeout(state, RETRY).0;
                break;
            }
            state = self.wake.wait(state);
        }
        state.is_due = false;
        !state.is_stopped()
    }
}
