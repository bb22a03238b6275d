//! The committer: the thread that commits the running transaction, at an interval and when much has
//! changed.
//!
//! Laws:
//!
//! 1. A change is on the devices `commit_seconds` later, if they take it. A failed write that can
//!    still succeed is retried at the next interval.
//! 2. The thread does not keep the filesystem open. Closing the filesystem stops the thread and
//!    waits for it.
//! 3. No operation waits for the thread. A thread that dirties more memory than the limits allow
//!    commits itself.

use crate::Filesystem;
use crate::inode::table::InodeEntry;
use crate::mount::Shared;
use crate::stats::latency::Operation;
use crate::write_state::WriteState;
use crate::{Error, Result};
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of dirty tree blocks at which the committer is woken, and at which a writer commits
/// itself.
const DIRTY_TREE_BYTES_KICK: u64 = 96 << 20;
const DIRTY_TREE_BYTES_MAX: u64 = 256 << 20;

/// Number of dirty inodes at which a writer writes all of them back itself.
const DIRTY_INODES_MAX: usize = 64 << 10;

/// Pending writes of a file that a background merge leaves for the next one, when extents that lie
/// between them will be pending too.
const PENDING_MIN: u64 = 24 << 10;

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
    to_merge: Vec<Arc<InodeEntry>>,
}

/// What the committer does next.
enum Work {
    Commit,
    Merge(Vec<Arc<InodeEntry>>),
    Stop,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
    fn is_check_due(&self) -> bool {
        self.state().changes.is_multiple_of(CHANGES_PER_CHECK)
    }

    /// Wakes the committer to commit now.
    pub(crate) fn kick(&self) {
        self.state().is_kicked = true;
        self.wake.notify_all();
    }

    /// Queues a file for the committer to merge.
    pub(crate) fn queue_merge(&self, entry: &Arc<InodeEntry>) {
        let mut state = self.state();
        if !state.to_merge.iter().any(|known| known.id == entry.id) {
            state.to_merge.push(Arc::clone(entry));
            self.wake.notify_all();
        }
    }

    fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
    }

    /// Records that a commit begins, which takes up all changes so far.
    fn begin(&self) {
        let mut state = self.state();
        state.changed_at = None;
        state.freed_bytes = 0;
        state.is_kicked = false;
    }

    /// Waits until there is work; commits at the latest `every` after a change.
    fn next_work(&self, every: Duration) -> Work {
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
            if !state.to_merge.is_empty() {
                return Work::Merge(std::mem::take(&mut state.to_merge));
            }
            state = match left {
                None => self.wake.wait(state),
                Some(left) => self.wake.wait_timeout(state, left).0,
            };
        }
    }
}

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread; `every` is not zero.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        signal: Arc<Signal>,
        every: Duration,
    ) -> Result<Self> {
        let (signal_of_thread, shared) = (Arc::clone(&signal), Arc::clone(shared));
        let run = move || {
            let filesystem = Filesystem::for_thread(shared);
            let _watch = filesystem.forest().watch_panics();
            loop {
                match signal_of_thread.next_work(every) {
                    // A failure is kept: the volume is read-only then, with the cause.
                    Work::Commit => drop(filesystem.write_back_and_commit()),
                    Work::Merge(entries) => filesystem.merge_queued(&entries),
                    Work::Stop => return,
                }
            }
        };
        let thread = Builder::new().name("butternut-commit".into()).spawn(run);
        Ok(Self { signal, thread: Some(thread.map_err(Error::Committer)?) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Filesystem {
    /// Writes everything that was changed before the call to the devices: file data and metadata.
    ///
    /// # Errors
    /// Data that could not be written, now or since the last sync of all files, whether or not a
    /// sync of its file has returned that error already; or a commit that failed. On a filesystem
    /// that is open for reading only, or was abandoned, this does nothing.
    pub fn sync(&self) -> Result<()> {
        let done = self.write_back_and_commit();
        let lost = self.shared.source.check_errors(&self.shared.errors);
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As [`FilesystemExt::sync_names`](crate::server::FilesystemExt::sync_names).
    pub(crate) fn sync_names(&self) -> Result<()> {
        match self.write_back_and_commit() {
            Err(Error::File(_)) => self.commit(),
            done => done,
        }
    }

    /// As [`FilesystemExt::sync_unreported`](crate::server::FilesystemExt::sync_unreported).
    pub(crate) fn sync_unreported(&self) -> Result<()> {
        let done = self.write_back_and_commit();
        let lost = self.shared.source.take_unreported_error();
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As `sync_and_keep_errors` of [`FilesystemExt`](crate::server::FilesystemExt).
    pub(crate) fn sync_and_keep_errors(&self) -> Result<()> {
        let done = self.write_back_and_commit();
        let lost = self.shared.source.peek_unreported_error();
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As [`FilesystemExt::sync_best_effort`](crate::server::FilesystemExt::sync_best_effort).
    pub(crate) fn sync_best_effort(&self) {
        drop(self.write_back_and_commit());
    }

    /// Writes all files back and commits. A loss of file data is kept for the next sync.
    fn write_back_and_commit(&self) -> Result<()> {
        let Some(write_state) = &self.shared.write_state else { return Ok(()) };
        // Also when nothing is committed: the committer has more work until its signal is cleared.
        write_state.signal.begin();
        if write_state.is_abandoned() {
            return Ok(());
        }
        let written = self.write_back_all(write_state);
        let committed = self.commit();
        if written.is_err() && self.is_writable() {
            // Some data may still be in memory only, and there may be no further change (law 1).
            write_state.signal.changed();
        }
        written.and(committed)
    }

    /// Merges the pending extents of some files. A file keeps an error of it for its next sync.
    fn merge_queued(&self, entries: &[Arc<InodeEntry>]) {
        let Some(write_state) =
            self.shared.write_state.as_ref().filter(|write_state| !write_state.is_abandoned())
        else {
            return;
        };
        for entry in entries {
            drop(self.merge_down_to(write_state, entry, PENDING_MIN));
        }
    }

    /// Commits. The first call that finds that commits have become impossible returns the cause as
    /// [`Error::Commit`]; later calls return that the volume is read-only.
    pub(crate) fn commit(&self) -> Result<()> {
        let was_read_only = self.write_error().is_some();
        let _timed = self.timed(Operation::Commit);
        // The file data in memory may be half a change, or may not be marked dirty.
        if self.shared.source.pages().is_poisoned() {
            self.fail_after_panic();
        }
        let failed = if was_read_only { Error::Tree } else { Error::Commit };
        self.forest().commit().map(drop).map_err(failed)
    }

    /// Keeps the dirty data in memory within its limits (law 3).
    pub(crate) fn throttle(&self, write_state: &WriteState) -> Result<()> {
        if self.has_much_to_write_back(write_state) {
            // A file keeps its writeback error for its next sync.
            drop(self.write_back_all(write_state));
        }
        if self.has_much_to_commit(write_state)? {
            self.commit()?;
        }
        Ok(())
    }

    /// Returns whether [`Self::throttle`] would do nothing.
    pub(crate) fn is_below_limits(&self, write_state: &WriteState) -> Result<bool> {
        Ok(!self.has_much_to_write_back(write_state) && !self.has_much_to_commit(write_state)?)
    }

    fn has_much_to_write_back(&self, write_state: &WriteState) -> bool {
        let source = &self.shared.source;
        (source.is_over_dirty_limit() && !source.has_flusher())
            || write_state.dirty_count() >= DIRTY_INODES_MAX
    }

    /// Checks the dirty tree blocks every [`CHANGES_PER_CHECK`] changes, and wakes the committer
    /// early enough to commit before the limit.
    fn has_much_to_commit(&self, write_state: &WriteState) -> Result<bool> {
        if !write_state.signal.is_check_due() {
            return Ok(false);
        }
        let dirty = self.forest().dirty_bytes()?;
        if dirty >= DIRTY_TREE_BYTES_KICK {
            write_state.signal.kick();
        }
        Ok(dirty >= DIRTY_TREE_BYTES_MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests;
