//! [`Signal`]: what operations tell the committer thread, and what it does next.

use crate::inode::table::InodeEntry;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Changes between two checks of the limits.
const CHANGES_PER_CHECK: u64 = 512;

/// What operations tell the committer.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State, rank::Committer>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The time of the first change since the last commit.
    changed_at: Option<Instant>,
    changes: u64,
    /// Bytes of files that were freed since the last commit.
    freed_bytes: u64,
    is_kicked: bool,
    is_stopped: bool,
    /// Files with many pending writes.
    to_merge: VecDeque<Arc<InodeEntry>>,
}

/// What the committer does next.
pub(super) enum Work {
    Commit,
    Merge(Arc<InodeEntry>),
    Stop,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether the committer has nothing to do.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        !state.is_kicked && state.changed_at.is_none() && state.to_merge.is_empty()
    }

    /// Records a change.
    pub(crate) fn changed(&self) {
        let mut state = self.state();
        state.changes = state.changes.wrapping_add(1);
        if state.changed_at.is_none() {
            state.changed_at = Some(Instant::now());
            self.wake.notify_all();
        }
    }

    /// Records that a change has freed `bytes` bytes of a file. They can be allocated after the
    /// next commit.
    pub(crate) fn freed(&self, bytes: u64) {
        let mut state = self.state();
        state.freed_bytes = state.freed_bytes.saturating_add(bytes);
    }

    /// Returns how many bytes of files the next commit makes free, at most.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.state().freed_bytes
    }

    /// Returns whether the limits are to be checked.
    pub(super) fn is_check_due(&self) -> bool {
        self.state().changes.is_multiple_of(CHANGES_PER_CHECK)
    }

    /// Wakes the committer to commit now.
    pub(crate) fn kick(&self) {
        self.state().is_kicked = true;
        self.wake.notify_all();
    }

    /// Queues a file for the committer to merge. There is one.
    pub(crate) fn queue_merge(&self, entry: &Arc<InodeEntry>) {
        let mut state = self.state();
        if !state.to_merge.iter().any(|known| known.id == entry.id) {
            state.to_merge.push_back(Arc::clone(entry));
            self.wake.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
    }

    /// Records that a commit begins, which takes up all changes so far.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.changed_at = None;
        state.freed_bytes = 0;
        state.is_kicked = false;
    }

    /// Waits until there is work; commits at the latest `every` after a change.
    pub(super) fn next_work(&self, every: Duration) -> Work {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return Work::Stop;
            }
            let left = state.changed_at.map(|since| every.saturating_sub(since.elapsed()));
            // A commit that is due comes first: writers may queue files as fast as they are merged.
            if state.is_kicked || left.is_some_and(|left| left.is_zero()) {
                return Work::Commit;
            }
            if let Some(entry) = state.to_merge.pop_front() {
                return Work::Merge(entry);
            }
            state = match left {
                None => self.wake.wait(state),
                Some(left) => self.wake.wait_timeout(state, left).0,
            };
        }
    }
}
