//! The flushers: threads that write dirty pages back, so that writers do not have to.
//!
//! ```text
//! writers --dirty pages, wakeups--> page cache --orders--> flushers --batches--> devices
//!    ^                                  |
//!    +-------- pauses, past a limit ----+
//! ```
//!
//! Laws:
//!
//! 1. A file is locked while the flusher selects its pages and allocates space for them, and not
//!    while the data is written. A flusher that has begun a batch waits for no inode lock: it
//!    writes the batch first.
//! 2. Nothing that another thread waits for depends on a flusher alone: a thread that needs data on
//!    the devices (`sync`, a commit) writes it back in the same way.
//! 3. A throttled writer sleeps with nothing locked, and for a bounded time: a device that accepts
//!    no writes does not block it for ever.
//! 4. The threads do not keep the filesystem open. Closing it stops them and waits for them.
//! 5. One flusher works until it has a batch in flight and there is more to write: then it wakes
//!    the next one. So a second thread runs where checksums and compression keep the first from the
//!    devices, and none runs in vain.
//! 6. A caller that writes files back gets the first failure ([`Filesystem::flush_files`]): the
//!    lost pages are clean afterwards, so the merge that follows cannot find it. A flusher thread
//!    has no caller; the file keeps the error for its next sync.

use crate::background::merger::MergeScope;
use crate::filesystem::Shared;
use crate::inode::table::{InodeEntry, InodeState};
use crate::sync::RwLockWriteGuard;
use crate::{Error, FileId, Filesystem, Result};
use butternut_file::{FileError, FileState, Source, WritebackBatch};
use butternut_format::units::length;
use butternut_pages::{CacheMode, FileKey, PAGE_BYTES, PAUSE_MAX, WritebackReason, WritebackWork};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, available_parallelism, sleep};
use std::time::Duration;

/// Dirty files that a flusher takes up in one pass.
const FILES_PER_PASS: usize = 256;
/// Pauses of one writer in a row while nothing is written back (law 3).
const PAUSES_MAX: u32 = 50;
/// Pause of a flusher that could write nothing back, before it tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// More threads do not help: the queues of the devices are full.
const THREADS_MAX: usize = 4;

/// The pages of some files that are being written back, in one or more batches.
struct WritebackPass<'a> {
    filesystem: &'a Filesystem,
    batch: Option<WritebackBatch>,
    bytes: u64,
    /// The next batch wakes another flusher (law 5).
    wakes_next: bool,
    /// The first failure. Data was lost, or it stayed dirty because extents of its file could not
    /// be looked up.
    result: Result<()>,
}

/// The threads, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Flushers {
    source: Source,
    threads: Vec<JoinHandle<()>>,
}

impl Flushers {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let source = shared.source.clone();
        let mut flushers = Self { source: source.clone(), threads: Vec::new() };
        let count = available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        for _ in 0..count {
            let filesystem = Filesystem::for_thread(Arc::clone(shared));
            let thread = Builder::new().name("butternut-flush".into());
            let thread = thread.spawn(move || filesystem.run_flusher());
            flushers.threads.push(thread.map_err(Error::Committer)?);
        }
        source.set_flusher(true);
        Ok(flushers)
    }
}

impl Drop for Flushers {
    fn drop(&mut self) {
        self.source.set_flusher(false);
        self.source.pages().stop_flushers();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Filesystem {
    /// The loop of a flusher thread.
    fn run_flusher(&self) {
        let pages = self.shared.source.pages();
        let _watch = self.forest().watch_panics();
        while pages.wait_for_work(None) {
            while let Some(orders) = pages.next_work() {
                // Pages of the uncached backlog are ordered once; they are not retried here.
                if self.write_back_ordered(&orders) == 0
                    && orders.reason != WritebackReason::Uncached
                {
                    break;
                }
            }
        }
    }

    /// Writes back what the page cache orders, and returns the number of bytes written.
    fn write_back_ordered(&self, orders: &WritebackWork) -> u64 {
        let Some(write_state) =
            self.shared.write_state.as_ref().filter(|write_state| !write_state.is_abandoned())
        else {
            return 0;
        };
        let pages = self.shared.source.pages();
        let keys = orders.file.map_or_else(|| pages.oldest_dirty(FILES_PER_PASS), |key| vec![key]);
        let mut pass = WritebackPass::new(self);
        pass.wakes_next = orders.has_more;
        let ordered = length(orders.pages).saturating_mul(PAGE_BYTES);
        let mut inline = Vec::new();
        for key in keys {
            let left = ordered.saturating_sub(pass.bytes);
            if left == 0 {
                break;
            }
            let Some(entry) = write_state.dirty_entry(id_of(key)) else { continue };
            if pass.add_file(&entry, left, orders.reason) > 0 {
                pages.file(key).move_to_dirty_tail();
            } else if pass.has_dirty_inline(&entry) {
                inline.push(entry);
            }
        }
        let (mut bytes, result) = pass.finish();
        if result.is_err() && bytes == 0 {
            // Without a pause, the same data would be retried in a loop.
            sleep(RETRY_PAUSE);
        }
        if bytes < ordered {
            let written = usize::try_from(bytes / PAGE_BYTES).unwrap_or(usize::MAX);
            pages.report_shortfall(orders, orders.pages.saturating_sub(written));
        }
        if bytes < ordered && orders.reason != WritebackReason::Uncached {
            // Inline data becomes clean when it is merged into the trees.
            inline.sort_by_key(|entry| entry.id);
            let before = pages.dirty_bytes();
            for batch in inline.chunks(FILES_PER_PASS / 2) {
                drop(self.merge_files(write_state, batch, MergeScope::Whole));
            }
            bytes += before.saturating_sub(pages.dirty_bytes());
        }
        bytes
    }

    /// Writes the data of some files back, without holding their locks meanwhile. Continues after a
    /// failure, and returns the first one (law 6).
    pub(crate) fn flush_files(
        &self,
        entries: &[Arc<InodeEntry>],
        reason: WritebackReason,
    ) -> Result<()> {
        let mut pass = WritebackPass::new(self);
        for entry in entries {
            pass.add_file(entry, u64::MAX, reason);
        }
        pass.finish().1
    }

    /// Throttles a writer that has just dirtied `bytes` bytes, if the dirty limits are exceeded or
    /// if uncached writes are far ahead of the flushers (law 3).
    pub(crate) fn balance_dirty_pages(&self, bytes: usize, stay: CacheMode) {
        let (pages, outstanding) = (self.shared.source.pages(), &self.shared.outstanding_io);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut pause = pages.pause(outstanding.now(), bytes);
        if stay == CacheMode::Uncached {
            pages.wait_for_uncached_backlog(PAUSE_MAX * PAUSES_MAX);
        }
        for _ in 0..PAUSES_MAX {
            if pause.is_zero() {
                return;
            }
            let is_stopped = || pages.dirty_bytes() >= pages.limits().dirty.hard_bytes;
            if !is_stopped() {
                return sleep(pause);
            }
            if !outstanding.wait_while(pause, is_stopped) {
                return;
            }
            pause = pages.pause(outstanding.now(), 0);
        }
    }
}

impl<'a> WritebackPass<'a> {
    fn new(filesystem: &'a Filesystem) -> Self {
        Self { filesystem, batch: None, bytes: 0, wakes_next: false, result: Ok(()) }
    }

    /// Adds at most `bytes_max` dirty bytes of a file to the pass; returns how many it added.
    fn add_file(
        &mut self,
        entry: &Arc<InodeEntry>,
        bytes_max: u64,
        reason: WritebackReason,
    ) -> u64 {
        let before = self.bytes;
        while self.bytes - before < bytes_max {
            let left = bytes_max - (self.bytes - before);
            let mut state = self.lock(entry);
            let Some(file) = &mut state.file else { break };
            if file.dirty_bytes() == 0 {
                break;
            }
            // The file keeps an error for its next sync, too.
            let (more, planned) = file.start_writeback(left.min(WritebackBatch::BYTES_MAX), reason);
            drop(state);
            self.note(planned);
            let Some(more) = more else { break };
            self.bytes += more.bytes();
            if self.batch.is_none() {
                self.filesystem.shared.outstanding_io.add();
            }
            self.batch = Some(more.join(self.batch.take()));
            if self.batch.as_ref().is_some_and(WritebackBatch::is_full) {
                self.write_batch();
            }
        }
        self.bytes - before
    }

    fn has_dirty_inline(&mut self, entry: &Arc<InodeEntry>) -> bool {
        self.lock(entry).file.as_deref().is_some_and(FileState::has_dirty_inline)
    }

    /// Locks a file, after writing the batch if the lock is not free (law 1).
    fn lock<'b>(&mut self, entry: &'b InodeEntry) -> RwLockWriteGuard<'b, InodeState> {
        if self.batch.is_some()
            && let Some(state) = entry.try_lock_without_drain()
        {
            return state;
        }
        self.write_batch();
        entry.lock_without_drain()
    }

    fn write_batch(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let (pages, outstanding) =
            (self.filesystem.shared.source.pages(), &self.filesystem.shared.outstanding_io);
        let bytes = batch.bytes();
        if std::mem::take(&mut self.wakes_next) {
            pages.kick();
        }
        pages.writeback_started(outstanding.now());
        let written = batch.write_and_complete();
        pages.writeback_ended(outstanding.now(), if written.is_ok() { bytes } else { 0 });
        outstanding.complete();
        self.note(written);
    }

    /// Keeps the first failure.
    fn note(&mut self, done: std::result::Result<(), FileError>) {
        if let (Ok(()), Err(error)) = (&self.result, done) {
            self.result = Err(error.into());
        }
    }

    /// Writes the last batch. Returns the number of bytes of the whole pass, and its first failure.
    fn finish(mut self) -> (u64, Result<()>) {
        self.write_batch();
        (self.bytes, self.result)
    }
}

fn id_of(key: FileKey) -> FileId {
    FileId::new(key.tree, key.ino)
}
