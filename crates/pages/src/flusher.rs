//! What flushers are told: that there is work, and how much.
//!
//! ```text
//! uncached write --adds its pages, sets the bit--> pending --flusher: clears it, takes the pages
//!                  \--bit is set already: nothing to do
//!
//! flusher --could not: they are on their way--> owed --something lands: kicks--> pending
//! ```
//!
//! Laws:
//!
//! 1. A kick that finds another one pending costs an addition. No kick is lost: what it added is
//!    seen by the run that clears the bit, or by one after it.
//! 2. Uncached writes never write back themselves (but for the switch position that measures it);
//!    a run owes as many pages as they made dirty since the last one, whatever files those are of.
//! 3. An order is what one flusher does at a time ([`ORDER_PAGES_MAX`]). Who has begun one, of
//!    more, wakes another flusher for the rest.
//! 4. A page that is on its way and dirty again cannot be sent: a run that meets one still owes
//!    it, until what was on its way has landed.

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
/// Pages of one order (law 3).
pub(crate) const ORDER_PAGES_MAX: usize = 2048;
/// One writeback that has landed, as [`Flushers::traffic`] counts them; one on its way is 1.
const LANDED: u64 = 1 << 32;

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
    /// There is more to do than this (law 3).
    pub has_more: bool,
    /// What had landed when the order was given.
    landed: u64,
}

/// How flushers are woken.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    is_pending: AtomicBool,
    /// Made dirty by uncached writes, and not answered by a run yet.
    uncached_pages: AtomicUsize,
    pressed_pages: AtomicUsize,
    /// Writebacks that have landed, and those on their way (law 4).
    traffic: AtomicU64,
    has_owed: AtomicBool,
    kicks: AtomicU64,
    bell: Mutex<Bell>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Bell {
    files: VecDeque<(FileKey, usize)>,
    /// To be looked for again when something lands (law 4).
    owed: Vec<(Option<FileKey>, usize)>,
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
        self.add_to(&mut self.bell(), Some(file), pages);
        self.kick();
    }

    fn add_to(&self, bell: &mut Bell, file: Option<FileKey>, pages: usize) {
        if let Some(file) = file {
            if let Some((_, waiting)) = bell.files.iter_mut().find(|(key, _)| *key == file) {
                *waiting += pages;
                return;
            }
            if bell.files.len() < FILES_MAX {
                bell.files.push_back((file, pages));
                return;
            }
        }
        self.uncached_pages.fetch_add(pages, Ordering::SeqCst);
    }

    /// So many pages of an order were not found to be sent (law 4). Without anything that was on
    /// its way since the order was given, they are not there.
    pub(crate) fn owe(&self, orders: &Orders, pages: usize) {
        let mut bell = self.bell();
        bell.owed.push((orders.file, pages));
        // Whoever lands behind this look finds the bit.
        self.has_owed.store(true, Ordering::SeqCst);
        let traffic = self.traffic.load(Ordering::SeqCst);
        if landed(traffic) != orders.landed {
            self.call_in(bell);
        } else if traffic.is_multiple_of(LANDED) {
            bell.owed.pop();
            self.has_owed.store(!bell.owed.is_empty(), Ordering::SeqCst);
        }
    }

    /// So many writebacks are on their way. Before anybody can find that their pages are.
    pub(crate) fn note_sent(&self, writebacks: usize) {
        self.traffic.fetch_add(u64::try_from(writebacks).unwrap_or(0), Ordering::SeqCst);
    }

    /// One of them has landed, and the index says so.
    pub(crate) fn note_landed(&self) {
        self.traffic.fetch_add(LANDED - 1, Ordering::SeqCst);
        if self.has_owed.load(Ordering::SeqCst) {
            self.call_in(self.bell());
        }
    }

    /// What is owed is to be done now.
    fn call_in(&self, mut bell: MutexGuard<'_, Bell>) {
        for (file, pages) in std::mem::take(&mut bell.owed) {
            self.add_to(&mut bell, file, pages);
        }
        self.has_owed.store(false, Ordering::SeqCst);
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
        let landed = landed(self.traffic.load(Ordering::SeqCst));
        let order = |file, wanted: usize, reason| {
            let (pages, has_more) = (wanted.min(ORDER_PAGES_MAX), wanted > ORDER_PAGES_MAX);
            Some(Orders { pages, reason, file, has_more, landed })
        };
        let dirty = dirty_pages();
        if dirty > background && dirty >= pages_of(limits.hard_bytes) {
            return order(None, dirty - background, Reason::HardLimit);
        }
        let pressed = take(&self.pressed_pages, &dirty_pages);
        if pressed > 0 {
            return order(None, pressed, Reason::Pressure);
        }
        if dirty > background {
            return order(None, dirty - background, Reason::Background);
        }
        let mut bell = self.bell();
        if let Some((file, pages)) = bell.files.pop_front() {
            if pages > ORDER_PAGES_MAX {
                bell.files.push_back((file, pages - ORDER_PAGES_MAX));
            }
            return order(Some(file), pages, Reason::Uncached);
        }
        drop(bell);
        let uncached = take(&self.uncached_pages, &dirty_pages);
        if uncached > 0 { order(None, uncached, Reason::Uncached) } else { None }
    }

    /// Kicks that woke somebody.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    fn bell(&self) -> MutexGuard<'_, Bell> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what is wanted, as far as it is dirty; leaves what is more than an order.
fn take(wanted: &AtomicUsize, dirty_pages: impl Fn() -> usize) -> usize {
    let pages = wanted.swap(0, Ordering::SeqCst).min(dirty_pages());
    if pages > ORDER_PAGES_MAX {
        wanted.fetch_add(pages - ORDER_PAGES_MAX, Ordering::SeqCst);
    }
    pages
}

/// What has landed, of a count of both.
fn landed(traffic: u64) -> u64 {
    traffic / LANDED
}
