//! The thread that commits: now and then, and when much has changed.
//!
//! Laws:
//!
//! 1. What was changed is on the medium `commit_seconds` later, if the medium lets it. What fails
//!    and can still be written is tried again as much later.
//! 2. The thread has no part in the filesystem's life: when the filesystem goes, it is told to stop
//!    and waited for.
//! 3. Nobody waits for the thread. Who changes things faster than it commits does so himself.

use crate::Filesystem;
use crate::inode_table::InodeEntry;
use crate::latency::Operation;
use crate::mount::Shared;
use crate::writer::Writer;
use crate::{Error, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Tree blocks in memory at which a commit is asked for, and at which a writer makes one himself.
const DIRTY_TREE_BYTES_KICK: u64 = 96 << 20;
const DIRTY_TREE_BYTES_MAX: u64 = 256 << 20;

/// Files with something in memory only, at which a writer brings all of it into the trees himself.
const DIRTY_INODES_MAX: usize = 64 << 10;

/// Writes of a file that are down and in no tree: so many are left for the next time, when others
/// will lie between them.
const PENDING_MIN: u64 = 24 << 10;

/// Changes between two looks at how much there is.
const CHANGES_PER_LOOK: u64 = 512;

/// What operations tell the thread.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The first change since the last commit.
    changed_at: Option<Instant>,
    changes: u64,
    /// Bytes of files that were given up since the last commit.
    freed_bytes: u64,
    is_kicked: bool,
    is_stopped: bool,
    /// Files that have much that is down and in no tree.
    to_merge: Vec<Arc<InodeEntry>>,
}

/// What it is time for.
enum Task {
    Commit,
    Merge(Vec<Arc<InodeEntry>>),
    Stop,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was changed.
    pub(crate) fn changed(&self) {
        let mut state = self.state();
        state.changes = state.changes.wrapping_add(1);
        if state.changed_at.is_none() {
            state.changed_at = Some(Instant::now());
            self.wake.notify_all();
        }
    }

    /// A change gave up so many bytes of a file. They are free after the next commit.
    pub(crate) fn freed(&self, bytes: u64) {
        let mut state = self.state();
        state.freed_bytes = state.freed_bytes.saturating_add(bytes);
    }

    /// Returns how many bytes of files the next commit makes free, at most.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.state().freed_bytes
    }

    /// It is time to look at how much has changed.
    fn is_time_to_look(&self) -> bool {
        self.state().changes.is_multiple_of(CHANGES_PER_LOOK)
    }

    /// Asks for a commit soon.
    pub(crate) fn kick(&self) {
        self.state().is_kicked = true;
        self.wake.notify_all();
    }

    /// Asks for what is down of a file to be brought into the trees.
    pub(crate) fn want_merge(&self, entry: &Arc<InodeEntry>) {
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

    /// A commit begins: it takes up what was changed so far.
    fn begin(&self) {
        let mut state = self.state();
        state.changed_at = None;
        state.freed_bytes = 0;
        state.is_kicked = false;
    }

    /// Waits until it is time for something.
    fn wait(&self, every: Duration) -> Task {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if state.is_kicked {
                return Task::Commit;
            }
            if !state.to_merge.is_empty() {
                return Task::Merge(std::mem::take(&mut state.to_merge));
            }
            let Some(since) = state.changed_at else {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = every.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Task::Commit;
            }
            let waited = self.wake.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread; `every` is never zero.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        signal: Arc<Signal>,
        every: Duration,
    ) -> Result<Self> {
        let (told, shared) = (Arc::clone(&signal), Arc::clone(shared));
        let run = move || {
            let filesystem = Filesystem { shared, life: None };
            let _watch = filesystem.forest().watch_panics();
            loop {
                match told.wait(every) {
                    // What fails here is kept: the volume is read-only then, and says why.
                    Task::Commit => drop(filesystem.bring_down()),
                    Task::Merge(entries) => filesystem.merge_some(&entries),
                    Task::Stop => return,
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
    /// Brings everything that was changed before the call down on the devices: file data and
    /// metadata.
    ///
    /// # Errors
    /// Data that could not be written, now or since the last sync of all files, whether or not a
    /// sync of its file has returned that already; or a commit that failed. On a
    /// filesystem that is not open for writing, or was abandoned, there is nothing to do.
    pub fn sync(&self) -> Result<()> {
        let done = self.bring_down();
        let lost = self.shared.source.check_errors(&self.shared.errors);
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// As [`Filesystem::sync`], for a caller that asks for names: it returns no loss of file data,
    /// which stays for a sync of the file and for the next [`Filesystem::sync`].
    ///
    /// # Errors
    /// A commit that failed.
    pub fn sync_names(&self) -> Result<()> {
        match self.bring_down() {
            Err(Error::File(_)) => self.commit(),
            done => done,
        }
    }

    /// As [`Filesystem::sync`], for a caller that is about to end the use of the volume: of data
    /// that was lost, it returns only what no sync has returned yet, neither one of the file nor
    /// one of all files.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn sync_untold(&self) -> Result<()> {
        let done = self.bring_down();
        let lost = self.shared.source.take_untold_error();
        done.and(lost.map_or(Ok(()), |error| Err(error.into())))
    }

    /// Commits, where nothing depends on its success: an error is kept for the next sync.
    pub fn settle(&self) {
        drop(self.bring_down());
    }

    /// The same, by nobody who could be told: what was lost is kept for who asks.
    fn bring_down(&self) -> Result<()> {
        let Some(writer) = &self.shared.writer else { return Ok(()) };
        if writer.is_abandoned() {
            return Ok(());
        }
        writer.signal.begin();
        let written = self.write_back(writer);
        let committed = self.commit();
        if written.is_err() && self.is_writable() {
            // Some of it may still be in memory only, and nothing else may change (law 1).
            writer.signal.changed();
        }
        written.and(committed)
    }

    /// Brings what is down of some files into the trees. What is lost by it is kept for who asks.
    fn merge_some(&self, entries: &[Arc<InodeEntry>]) {
        let Some(writer) = self.shared.writer.as_ref().filter(|writer| !writer.is_abandoned())
        else {
            return;
        };
        for entry in entries {
            drop(self.merge_down_to(writer, entry, PENDING_MIN));
        }
    }

    /// Commits. The one who finds that this is not possible any more hears of a failure; whoever
    /// comes later hears that the volume is read-only.
    pub(crate) fn commit(&self) -> Result<()> {
        let was_read_only = self.write_error().is_some();
        let _timed = self.timed(Operation::Commit);
        // What memory has of the files may be half a change, or not be known to be dirty.
        if self.shared.source.pages().is_poisoned() {
            self.fail_after_panic();
        }
        let failed = if was_read_only { Error::Tree } else { Error::Commit };
        self.forest().commit().map(drop).map_err(failed)
    }

    /// Keeps what is in memory only within its limits (law 3).
    pub(crate) fn throttle(&self, writer: &Writer) -> Result<()> {
        if self.has_much_to_write_back(writer) {
            // Whoever syncs a file is told of what it lost.
            drop(self.write_back(writer));
        }
        if self.has_much_to_commit(writer)? {
            self.commit()?;
        }
        Ok(())
    }

    /// Whether that would have nothing to do.
    pub(crate) fn is_calm(&self, writer: &Writer) -> Result<bool> {
        Ok(!self.has_much_to_write_back(writer) && !self.has_much_to_commit(writer)?)
    }

    fn has_much_to_write_back(&self, writer: &Writer) -> bool {
        let source = &self.shared.source;
        (source.is_over_dirty_limit() && !source.has_flusher())
            || writer.dirty_count() >= DIRTY_INODES_MAX
    }

    /// Looks now and then; has a commit begin while there is room.
    fn has_much_to_commit(&self, writer: &Writer) -> Result<bool> {
        if !writer.signal.is_time_to_look() {
            return Ok(false);
        }
        let dirty = self.forest().dirty_bytes()?;
        if dirty >= DIRTY_TREE_BYTES_KICK {
            writer.signal.kick();
        }
        Ok(dirty >= DIRTY_TREE_BYTES_MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests;
