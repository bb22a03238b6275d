//! What flushers are told: that there is work, and how much.
//!
//! ```text
//! uncached write --adds its pages, sets the bit--> pending --flusher: clears it, takes the pages
//!                  \--bit is set already: nothing to do
//! ```
//!
//! Laws:
//!
//! 1. A kick that finds another one pending costs an addition. No kick is lost: what it added is
//!    seen by the run that clears the bit, or by one after it.
//! 2. Uncached writes never write back themselves (but for the switch position that measures it);
//!    a run owes as many pages as they made dirty since the last one, whatever files those are of.

use crate::cache::FileKey;
use crate::counters::Reason;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::throttle::DirtyLimits;
use butternut_sys::frames::FRAME_BYTES;
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

/// Files that wait to be flushed alone, at most: behind that, the flusher goes for all.
const FILES_MAX: usize = 1024;

/// Who brings down what uncached writes made dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum UncachedFlush {
    /// The flusher, the oldest files first, whatever mode made them dirty.
    #[default]
    Device,
    /// The flusher, that file alone.
    Inode,
    /// The writer, his own range, before he returns.
    Inline,
}

/// What a flusher is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// At least so many pages, if so many are dirty.
    pub pages: usize,
    pub reason: Reason,
    /// Of this file only.
    pub file: Option<FileKey>,
}

/// How flushers are woken.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    is_pending: AtomicBool,
    /// Made dirty by uncached writes, and not answered by a run yet.
    uncached_pages: AtomicUsize,
    pressed_pages: AtomicUsize,
    kicks: AtomicU64,
    bell: Mutex<Bell>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Bell {
    files: VecDeque<(FileKey, usize)>,
    is_stopped: bool,
}

impl Flushers {
    /// There is work. Wakes a flusher, unless somebody has already (law 1).
    pub(crate) fn kick(&self) {
        if self.is_pending.load(Ordering::SeqCst) || self.is_pending.swap(true, Ordering::SeqCst) {
            return;
        }
        self.kicks.fetch_add(1, Ordering::Relaxed);
        // The lock orders this behind a flusher who has looked at the bit, and does not wait yet.
        drop(self.bell());
        self.rung.notify_one();
    }

    /// An uncached write made pages dirty.
    pub(crate) fn add_uncached(&self, pages: usize) {
        self.uncached_pages.fetch_add(pages, Ordering::SeqCst);
        self.kick();
    }

    /// The same; they are to be brought down by themselves.
    pub(crate) fn add_file(&self, file: FileKey, pages: usize) {
        let mut bell = self.bell();
        if let Some((_, waiting)) = bell.files.iter_mut().find(|(key, _)| *key == file) {
            *waiting += pages;
        } else if bell.files.len() < FILES_MAX {
            bell.files.push_back((file, pages));
        } else {
            self.uncached_pages.fetch_add(pages, Ordering::SeqCst);
        }
        drop(bell);
        self.kick();
    }

    /// Memory is wanted, and nothing is clean.
    pub(crate) fn press(&self, pages: usize) {
        self.pressed_pages.store(pages, Ordering::SeqCst);
        self.kick();
    }

    /// Waits for a kick, or for the time to pass. `false`: it is time to stop.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut bell = self.bell();
        loop {
            if bell.is_stopped {
                return false;
            }
            if self.is_pending.swap(false, Ordering::SeqCst) {
                return true;
            }
            let Some(at_most) = at_most else {
                bell = self.rung.wait(bell).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.rung.wait_timeout(bell, at_most);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            bell = back;
            if timeout.timed_out() {
                self.is_pending.store(false, Ordering::SeqCst);
                return !bell.is_stopped;
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.bell().is_stopped = true;
        self.rung.notify_all();
    }

    /// What is to be done, most urgent first; `None`: nothing. The pages that are dirty are counted
    /// behind what was asked for is taken, so that nobody's are forgotten (law 1).
    pub(crate) fn orders(
        &self,
        dirty_pages: impl Fn() -> usize,
        limits: &DirtyLimits,
    ) -> Option<Orders> {
        let pages_of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / FRAME_BYTES;
        let background = pages_of(limits.background_bytes);
        let order = |pages, reason| Some(Orders { pages, reason, file: None });
        let dirty = dirty_pages();
        if dirty > background && dirty >= pages_of(limits.hard_bytes) {
            return order(dirty - background, Reason::HardLimit);
        }
        let pressed = self.pressed_pages.swap(0, Ordering::SeqCst).min(dirty_pages());
        if pressed > 0 {
            return order(pressed, Reason::Pressure);
        }
        if dirty > background {
            return order(dirty - background, Reason::Background);
        }
        if let Some((file, pages)) = self.bell().files.pop_front() {
            return Some(Orders { pages, reason: Reason::Uncached, file: Some(file) });
        }
        let uncached = self.uncached_pages.swap(0, Ordering::SeqCst).min(dirty_pages());
        if uncached > 0 { order(uncached, Reason::Uncached) } else { None }
    }

    /// Kicks that woke somebody.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    fn bell(&self) -> MutexGuard<'_, Bell> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
