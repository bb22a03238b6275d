//! How flushers are woken, and how much each writes back.
//!
//! ```text
//! uncached write --queues its pages, sets the bit--> pending --flusher: clears it, takes the pages
//!                  \--the bit is set already: done
//! ```
//!
//! Laws:
//!
//! 1. A kick wakes no flusher while another kick is pending. No kick is lost: the flusher run that
//!    clears the bit, or a later one, sees what was queued before the kick.
//! 2. Uncached writes do not write back their own pages, except with [`UncachedFlush::Inline`],
//!    which exists for measurements. The flushers write back as many pages as uncached writes have
//!    dirtied ([`UncachedBacklog`]): of the files that have been dirty longest, or with
//!    [`UncachedFlush::Inode`] of the written file.
//! 3. One [`WritebackWork`] is at most [`WORK_PAGES_MAX`] pages. Where more is to be written back,
//!    [`WritebackWork::has_more`] says so, and the flusher wakes another flusher for the rest.
//! 4. All writeback of pages of any file counts against the uncached backlog: pages that are
//!    written back because of a dirty limit are not written back for the backlog again.

use crate::counters::WritebackReason;
use crate::file_key::FileKey;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, rank};
use crate::throttle::DirtyLimits;
use crate::uncached_backlog::{QueuedPages, UncachedBacklog};
use butternut_sys::frames::FRAME_BYTES;
use std::time::Duration;

/// Maximum pages of one [`WritebackWork`] (law 3).
const WORK_PAGES_MAX: usize = 2048;

/// Which thread writes back the pages that uncached writes have dirtied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum UncachedFlush {
    /// A flusher writes back as many pages, of the files that have been dirty longest.
    #[default]
    Device,
    /// A flusher writes back pages of the written file only.
    Inode,
    /// The writing thread writes back its own range before the write returns.
    Inline,
}

/// One portion of writeback for a flusher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritebackWork {
    /// Number of pages to write back, as far as so many are dirty.
    pub pages: usize,
    pub reason: WritebackReason,
    /// The only file to write back, or `None` for any file.
    pub file: Option<FileKey>,
    /// Whether another flusher is needed for more work (law 3).
    pub has_more: bool,
    /// The part of the work that comes from the uncached backlog (law 4).
    uncached: QueuedPages,
}

/// The work queue of all flushers of a cache.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    is_pending: AtomicBool,
    pub(crate) backlog: UncachedBacklog,
    clean_pages_needed: AtomicUsize,
    kicks: AtomicU64,
    state: Mutex<FlusherState, rank::Flushers>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct FlusherState {
    is_stopped: bool,
}

impl Flushers {
    /// Wakes a flusher, unless a kick is pending already (law 1).
    pub(crate) fn kick(&self) {
        if self.is_pending.load(Ordering::SeqCst) || self.is_pending.swap(true, Ordering::SeqCst) {
            return;
        }
        self.kicks.fetch_add(1, Ordering::Relaxed);
        // A flusher checks the bit and starts to wait under this lock, so it cannot miss the wakeup
        // between the two.
        drop(self.state());
        self.wakeup.notify_one();
    }

    /// Queues pages that an uncached write has dirtied, of `file` alone or of any file, and wakes a
    /// flusher.
    pub(crate) fn queue_uncached(&self, file: Option<FileKey>, pages: usize) {
        self.backlog.queue(file, pages);
        self.kick();
    }

    /// Records that `pages` pages of the work were not found dirty.
    pub(crate) fn report_shortfall(&self, work: &WritebackWork, pages: usize) {
        let pages = pages.min(work.uncached.pages);
        if pages > 0 && self.backlog.requeue_on_completion(&work.uncached, pages) {
            self.kick();
        }
    }

    /// Counts a completed writeback that the index shows already.
    pub(crate) fn count_completed(&self) {
        if self.backlog.count_completed() {
            self.kick();
        }
    }

    /// Requests writeback of `pages` pages because an allocation found no clean page to evict.
    pub(crate) fn request_clean_pages(&self, pages: usize) {
        self.clean_pages_needed.store(pages, Ordering::SeqCst);
        self.kick();
    }

    /// Waits for a kick, at most `at_most` long. Returns false if the flushers are to end.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return false;
            }
            if self.is_pending.swap(false, Ordering::SeqCst) {
                return true;
            }
            let Some(at_most) = at_most else {
                state = self.wakeup.wait(state);
                continue;
            };
            let (back, timeout) = self.wakeup.wait_timeout(state, at_most);
            state = back;
            if timeout.timed_out() {
                self.is_pending.store(false, Ordering::SeqCst);
                return !state.is_stopped;
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.state().is_stopped = true;
        self.wakeup.notify_all();
        self.backlog.stop();
    }

    /// Returns the most urgent work, or `None` if there is none. Dirty pages are counted after the
    /// requests were taken, so that every page dirtied before its request is counted (law 1).
    pub(crate) fn next_work(
        &self,
        dirty_pages: impl Fn() -> usize,
        limits: &DirtyLimits,
    ) -> Option<WritebackWork> {
        if let Some(uncached) = self.backlog.take_for_file(WORK_PAGES_MAX) {
            let QueuedPages { file, pages, .. } = uncached;
            let has_more = self.backlog.pages() > 0;
            return Some(WritebackWork {
                pages,
                reason: WritebackReason::Uncached,
                file,
                has_more,
                uncached,
            });
        }
        let uncached = self.backlog.take(WORK_PAGES_MAX, &dirty_pages);
        let (needed, reason) = self.needed(&dirty_pages, limits);
        debug_assert!(uncached.pages <= WORK_PAGES_MAX, "law 3");
        let pages = needed.max(uncached.pages).min(WORK_PAGES_MAX);
        let reason = if needed > 0 { reason } else { WritebackReason::Uncached };
        let has_more = needed > pages || self.backlog.pages() > 0;
        (pages > 0).then_some(WritebackWork { pages, reason, file: None, has_more, uncached })
    }

    /// Returns how many pages exceed a dirty limit, or are needed clean.
    fn needed(
        &self,
        dirty_pages: impl Fn() -> usize,
        limits: &DirtyLimits,
    ) -> (usize, WritebackReason) {
        let pages_of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / FRAME_BYTES;
        let background = pages_of(limits.background_bytes);
        let dirty = dirty_pages();
        let above = dirty.saturating_sub(background);
        if above > 0 && dirty >= pages_of(limits.hard_bytes) {
            return (above, WritebackReason::HardLimit);
        }
        let needed = self.clean_pages_needed.swap(0, Ordering::SeqCst).min(dirty_pages());
        if needed > 0 {
            return (needed, WritebackReason::Pressure);
        }
        (above, WritebackReason::Background)
    }

    /// Returns the number of kicks that woke a flusher.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Ignores poisoning: the state is one flag, so a panic cannot leave it half changed.
    fn state(&self) -> MutexGuard<'_, FlusherState> {
        self.state.lock()
    }
}
