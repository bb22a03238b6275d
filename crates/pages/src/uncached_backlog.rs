//! [`UncachedBacklog`]: pages that uncached writes have dirtied and that no flusher was given yet.
//!
//! ```text
//! writer --queue--> queued --take--> work of a flusher --shortfall, pages under--> outstanding
//!   ^                |  ^                              writeback                      |
//!   +--- waits ------+  +----------------- a writeback completes ---------------------+
//! ```
//!
//! Laws:
//!
//! 1. A writer dirties a page before it queues it, and the dirty pages are counted again when
//!    pages are taken. So no more pages of "any file" are taken than are dirty.
//! 2. A page can be redirtied while it is under writeback; it cannot be submitted again until that
//!    write completes. If a flusher found fewer pages than it took, and any writeback was in flight
//!    since it took them, the shortfall is outstanding. It is queued again when a writeback
//!    completes.
//! 3. A writer that is far ahead of the flushers waits until they have taken more. So the queued
//!    pages stay few enough for the CPU caches to hold them.

use crate::file_key::FileKey;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of files that are queued by themselves. Pages of further files are queued as
/// pages of any file.
const FILES_MAX: usize = 1024;
/// One completed writeback in [`UncachedBacklog::writebacks`]; one in flight counts 1.
const COMPLETED: u64 = 1 << 32;

#[derive(Debug, Default)]
pub(crate) struct UncachedBacklog {
    state: Mutex<State, rank::UncachedBacklog>,
    taken: Condvar,
    has_outstanding: AtomicBool,
    /// Completed writebacks in the upper half, writebacks in flight in the lower.
    writebacks: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Queued pages of any file.
    any_file: usize,
    /// Queued pages of particular files.
    files: VecDeque<(FileKey, usize)>,
    /// The sum of the pages in `files`.
    in_files: usize,
    /// Law 2.
    outstanding: Vec<(Option<FileKey>, usize)>,
    is_stopped: bool,
}

/// Pages that a flusher took from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedPages {
    pub(crate) file: Option<FileKey>,
    pub(crate) pages: usize,
    /// The number of completed writebacks when the pages were taken.
    completed: u64,
}

impl UncachedBacklog {
    /// Queues dirty pages of `file` for writeback of that file alone, or of any file.
    pub(crate) fn queue(&self, file: Option<FileKey>, pages: usize) {
        self.state().add(file, pages);
    }

    /// Takes at most `pages_max` pages of the file that was queued first.
    pub(crate) fn take_for_file(&self, pages_max: usize) -> Option<QueuedPages> {
        let completed = self.completed();
        let mut state = self.state();
        let (file, all) = state.files.pop_front()?;
        let pages = all.min(pages_max);
        if all > pages {
            state.files.push_back((file, all - pages));
        }
        state.in_files -= pages;
        self.taken.notify_all();
        Some(QueuedPages { file: Some(file), pages, completed })
    }

    /// Takes at most `pages_max` pages of any file, and no more than are dirty (law 1).
    pub(crate) fn take(&self, pages_max: usize, dirty_pages: impl Fn() -> usize) -> QueuedPages {
        let completed = self.completed();
        let mut state = self.state();
        let all = state.any_file.min(dirty_pages());
        let pages = all.min(pages_max);
        if state.any_file > 0 {
            state.any_file = all - pages;
            self.taken.notify_all();
        }
        QueuedPages { file: None, pages, completed }
    }

    /// Records that `pages` of the pages taken could not be submitted (law 2). Returns whether they
    /// are queued again already.
    pub(crate) fn requeue_on_completion(&self, taken: &QueuedPages, pages: usize) -> bool {
        let mut state = self.state();
        state.outstanding.push((taken.file, pages));
        // A writeback that completes after the load below sees this flag.
        self.has_outstanding.store(true, Ordering::SeqCst);
        let writebacks = self.writebacks.load(Ordering::SeqCst);
        let has_completed = writebacks / COMPLETED != taken.completed;
        if has_completed {
            self.requeue_outstanding(&mut state);
        } else if writebacks.is_multiple_of(COMPLETED) {
            // No writeback was in flight, so the pages were not under writeback.
            state.outstanding.pop();
            self.has_outstanding.store(!state.outstanding.is_empty(), Ordering::SeqCst);
        }
        has_completed
    }

    /// Counts writebacks as in flight. Called before other threads can see their pages under
    /// writeback.
    pub(crate) fn count_begun(&self, writebacks: usize) {
        self.writebacks.fetch_add(u64::try_from(writebacks).unwrap_or(0), Ordering::SeqCst);
    }

    /// Counts one writeback as completed. Called after the index shows it. Returns whether
    /// outstanding pages were queued again.
    pub(crate) fn count_completed(&self) -> bool {
        self.writebacks.fetch_add(COMPLETED - 1, Ordering::SeqCst);
        self.has_outstanding.load(Ordering::SeqCst) && self.requeue_outstanding(&mut self.state())
    }

    /// Returns the number of queued pages.
    pub(crate) fn pages(&self) -> usize {
        self.state().pages()
    }

    /// Waits until at most `pages_max` pages are queued, at most `at_most` long (law 3). Returns
    /// whether that is so.
    pub(crate) fn wait_until_below(&self, pages_max: usize, at_most: Duration) -> bool {
        // `at_most` bounds the whole wait, however often other threads take pages meanwhile.
        let is_above = |state: &mut State| state.pages() > pages_max && !state.is_stopped;
        let (state, _) = self.taken.wait_timeout_while(self.state(), at_most, is_above);
        state.is_stopped || state.pages() <= pages_max
    }

    /// Ends all waits, because no flusher takes pages from now on.
    pub(crate) fn stop(&self) {
        self.state().is_stopped = true;
        self.taken.notify_all();
    }

    fn requeue_outstanding(&self, state: &mut State) -> bool {
        let outstanding = std::mem::take(&mut state.outstanding);
        let is_some = !outstanding.is_empty();
        for (file, pages) in outstanding {
            state.add(file, pages);
        }
        self.has_outstanding.store(false, Ordering::SeqCst);
        is_some
    }

    fn completed(&self) -> u64 {
        self.writebacks.load(Ordering::SeqCst) / COMPLETED
    }

    /// Ignores poisoning. A wrong count makes a flusher look for pages in vain, or a writer wait
    /// until its timeout. Which pages are dirty is recorded in the indexes, not here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn add(&mut self, file: Option<FileKey>, pages: usize) {
        let is_listable = self.files.len() < FILES_MAX;
        match (file, self.files.iter_mut().find(|(key, _)| Some(*key) == file)) {
            (_, Some((_, all))) => *all += pages,
            (Some(file), None) if is_listable => self.files.push_back((file, pages)),
            (Some(_) | None, None) => {
                self.any_file += pages;
                return;
            }
        }
        self.in_files += pages;
    }

    fn pages(&self) -> usize {
        self.any_file + self.in_files
    }
}
