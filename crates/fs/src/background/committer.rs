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

use crate::background::merger::MergeScope;
use crate::background::signal::{Signal, Work};
use crate::error::may_block;
use crate::filesystem::Shared;
use crate::server::LossReport;
use crate::stats::latency::Operation;
use crate::write_state::WriteState;
use crate::writing::Writing;
use crate::{Error, Filesystem, Result};
use butternut_sys::wait::Wait;
use butternut_tree::TreeError;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Bytes of dirty tree blocks at which the committer is woken, and at which a writer commits
/// itself.
const DIRTY_TREE_BYTES_KICK: u64 = 96 << 20;
const DIRTY_TREE_BYTES_MAX: u64 = 256 << 20;

/// Number of dirty inodes at which a writer writes all of them back itself.
const DIRTY_INODES_MAX: usize = 64 << 10;

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
                    Work::Merge(entry) => {
                        let write_state = filesystem.shared.write_state.as_ref();
                        if let Some(write_state) = write_state.filter(|it| !it.is_abandoned()) {
                            filesystem.merge_queued(write_state, &entry);
                        }
                    }
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
    /// that is open for reading only, or was abandoned, this writes nothing. Where writing has
    /// ended with an error, the first call returns it.
    pub fn sync(&self) -> Result<()> {
        let done = self.write_back_and_commit().and_then(|()| self.take_end_error());
        let lost = self.shared.source.check_errors(&self.shared.errors);
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As [`FilesystemExt::sync_whole`](crate::server::FilesystemExt::sync_whole).
    pub(crate) fn sync_whole(&self) -> Result<()> {
        if let Some(write_state) = &self.shared.write_state
            && !write_state.is_abandoned()
        {
            self.write_back_all(write_state, MergeScope::Acknowledged)?;
            let lost = self.shared.source.check_errors_and_keep(&self.shared.errors);
            lost.map_or(Ok(()), |error| Err(Error::from(error)))?;
        }
        self.sync()
    }

    /// As [`FilesystemExt::sync_names`](crate::server::FilesystemExt::sync_names).
    pub(crate) fn sync_names(&self) -> Result<()> {
        let done = match self.write_back_then_commit() {
            (Err(Error::File(_)), committed) => committed,
            (written, committed) => written.and(committed),
        };
        done.and_then(|()| self.take_end_error())
    }

    /// As [`FilesystemExt::sync_unreported`](crate::server::FilesystemExt::sync_unreported).
    pub(crate) fn sync_unreported(&self) -> Result<()> {
        self.sync_with(LossReport::Unreported)
    }

    /// As `sync_and_keep_errors` of [`FilesystemExt`](crate::server::FilesystemExt).
    pub(crate) fn sync_and_keep_errors(&self) -> Result<()> {
        self.sync_with(LossReport::Keep)
    }

    /// As [`FilesystemExt::syncfs`](crate::server::FilesystemExt::syncfs).
    pub(crate) fn syncfs(&self) -> Result<()> {
        self.sync_with(LossReport::Syncfs)
    }

    fn sync_with(&self, report: LossReport) -> Result<()> {
        let committed = self.write_back_and_commit();
        let reported = self.report_losses(report);
        committed.and(reported)
    }

    /// As [`FilesystemExt::report_losses`](crate::server::FilesystemExt::report_losses).
    pub(crate) fn report_losses(&self, report: LossReport) -> Result<()> {
        let source = &self.shared.source;
        let (ended, lost) = match report {
            LossReport::Unreported => (self.take_end_error(), source.take_unreported_error()),
            LossReport::Keep => (self.check_end_error(), source.peek_unreported_error()),
            LossReport::Syncfs => {
                let lost = source.check_errors_and_keep(&self.shared.syncfs_errors);
                (self.check_end_error(), lost)
            }
        };
        ended.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As [`FilesystemExt::sync_best_effort`](crate::server::FilesystemExt::sync_best_effort).
    pub(crate) fn sync_best_effort(&self) {
        drop(self.write_back_and_commit());
    }

    /// As [`FilesystemExt::end_writes`](crate::server::FilesystemExt::end_writes).
    pub(crate) fn end_writes(&self) {
        let Some(write_state) = &self.shared.write_state else { return };
        if !write_state.is_abandoned() {
            let synced = self.sync_names();
            // From here on changes and syncs are refused. What changed meanwhile is written, too.
            write_state.abandon();
            let written = self.write_back_all(write_state, MergeScope::Whole);
            let failed = match self.commit() {
                // What stayed dirty in memory is lost now, and no file has recorded that.
                Ok(()) => written.err(),
                // The first error has the cause, if there are two.
                Err(error) => Some(synced.err().unwrap_or(error)),
            };
            if let Some(error) = failed {
                write_state.set_end_error(error);
            }
        }
        // After the last writes, also where some have failed.
        if let Err(error) = self.forest().end_writes() {
            write_state.set_end_error(error.into());
        }
    }

    /// Returns once why the end of writing failed, if it did.
    fn take_end_error(&self) -> Result<()> {
        let write_state = self.shared.write_state.as_deref();
        write_state.and_then(WriteState::take_end_error).map_or(Ok(()), Err)
    }

    /// Fails if the end of writing failed, and leaves the cause to the next sync that takes it.
    fn check_end_error(&self) -> Result<()> {
        let write_state = self.shared.write_state.as_deref();
        if write_state.is_some_and(WriteState::has_end_error) {
            return Err(Error::Tree(TreeError::Ended));
        }
        Ok(())
    }

    /// Writes all files back and commits. A loss of file data is kept for the next sync, so the
    /// error of the commit comes first: callers that pass over losses learn of it. Does nothing on
    /// a filesystem that was abandoned, or whose writing has ended.
    pub(crate) fn write_back_and_commit(&self) -> Result<()> {
        let (written, committed) = self.write_back_then_commit();
        committed.and(written)
    }

    /// As [`Self::write_back_and_commit`], and returns the results of both: only the first call
    /// that finds that commits have become impossible gets the cause ([`Self::commit`]).
    fn write_back_then_commit(&self) -> (Result<()>, Result<()>) {
        let Some(write_state) = &self.shared.write_state else { return (Ok(()), Ok(())) };
        // Also when nothing is committed: the committer has more work until its signal is cleared.
        write_state.signal.begin();
        if write_state.is_abandoned() {
            return (Ok(()), Ok(()));
        }
        let written = self.write_back_all(write_state, MergeScope::Acknowledged);
        let committed = self.commit();
        if written.is_err() && self.is_writable() {
            // Some data may still be in memory only, and there may be no further change (law 1).
            write_state.signal.changed();
        }
        (written, committed)
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

    /// Begins an operation that writes: checks that the filesystem is writable, and brings its
    /// dirty memory below the limits. No snapshot is made before the result is dropped. The caller
    /// has nothing locked.
    pub(crate) fn begin(&self) -> Result<Writing<'_>> {
        self.begin_as(Wait::Block)
    }

    /// As [`Self::begin`]; whether it may wait for dirty memory to be written back is the caller's
    /// choice.
    pub(crate) fn begin_as(&self, wait: Wait) -> Result<Writing<'_>> {
        let write_state = self.may_begin()?;
        self.throttle(write_state, wait)?;
        Writing::begin(write_state, wait).ok_or(Error::WouldBlock)
    }

    /// Keeps the dirty data in memory, and the queue of orphans, within their limits (law 3).
    fn throttle(&self, write_state: &WriteState, wait: Wait) -> Result<()> {
        if self.has_much_to_write_back(write_state) {
            may_block(wait)?;
            // A file keeps its writeback error for its next sync.
            drop(self.write_back_all(write_state, MergeScope::Whole));
        }
        if self.has_much_to_commit(write_state)? {
            may_block(wait)?;
            self.commit()?;
        }
        if wait == Wait::Block
            && let Some((entry, evicting)) = write_state.cleaner.next_to_help()
        {
            // If deleting fails, the next open for writing finds the orphan item.
            drop(self.evict_orphan_while(&entry, &|| true));
            drop(evicting);
        }
        Ok(())
    }

    fn has_much_to_write_back(&self, write_state: &WriteState) -> bool {
        let source = &self.shared.source;
        (source.is_over_dirty_limit() && !source.has_flusher())
            || write_state.dirty_count() >= DIRTY_INODES_MAX
    }

    /// Checks the dirty tree blocks when their check is due, and wakes the committer
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
