//! What flushers are told: that there is work, and how much.
//!
//! ```text
//! uncached write --adds its pages, sets the bit--> pending --flusher: clears it, takes the pages
//!                  \--bit is set already: nothing more to do
//! ```
//!
//! Laws:
//!
//! 1. A kick that finds another one pending wakes nobody. No kick is lost: what was added before it
//!    is seen by the run that clears the bit, or by one after it.
//! 2. Uncached writes never write back themselves (but for the switch position that measures it);
//!    a run owes as many pages as they made dirty since the last one, whatever files those are of
//!    ([`Debts`]).
//! 3. An order is what one flusher does at a time ([`ORDER_PAGES_MAX`]). Who has begun one, of
//!    more, wakes another flusher for the rest.
//! 4. What uncached writes made dirty is part of every order for pages of any file: who brings
//!    down more than he owes has paid that too.

use crate::cache::FileKey;
use crate::counters::Reason;
use crate::debts::{Debt, Debts};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::throttle::DirtyLimits;
use butternut_sys::frames::FRAME_BYTES;
use std::sync::PoisonError;
use std::time::Duration;

/// Pages of one order (law 3).
const ORDER_PAGES_MAX: usize = 2048;

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
    /// How much of it uncached writes made dirty (law 4).
    debt: Debt,
}

/// How flushers are woken.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    is_pending: AtomicBool,
    pub(crate) debts: Debts,
    pressed_pages: AtomicUsize,
    kicks: AtomicU64,
    bell: Mutex<Bell>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Bell {
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

    /// An uncached write made pages of a file dirty, to be brought down by themselves; or of any.
    pub(crate) fn add_uncached(&self, file: Option<FileKey>, pages: usize) {
        self.debts.add(file, pages);
        self.kick();
    }

    /// So many pages of an order were not there to be sent.
    pub(crate) fn fall_short(&self, orders: &Orders, pages: usize) {
        let pages = pages.min(orders.debt.pages);
        if pages > 0 && self.debts.owe(&orders.debt, pages) {
            self.kick();
        }
    }

    /// A writeback has landed, and the index says so.
    pub(crate) fn note_landed(&self) {
        if self.debts.note_landed() {
            self.kick();
        }
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
        self.debts.close();
    }

    /// What is to be done, most urgent first; `None`: nothing. The pages that are dirty are counted
    /// behind what was asked for is taken, so that nobody's are forgotten (law 1).
    pub(crate) fn orders(
        &self,
        dirty_pages: impl Fn() -> usize,
        limits: &DirtyLimits,
    ) -> Option<Orders> {
        if let Some(debt) = self.debts.take_of_file(ORDER_PAGES_MAX) {
            let Debt { file, pages, .. } = debt;
            let has_more = self.debts.pages() > 0;
            return Some(Orders { pages, reason: Reason::Uncached, file, has_more, debt });
        }
        let debt = self.debts.take(ORDER_PAGES_MAX, &dirty_pages);
        let (wanted, reason) = self.wanted(&dirty_pages, limits);
        let pages = wanted.max(debt.pages).min(ORDER_PAGES_MAX);
        let reason = if wanted > 0 { reason } else { Reason::Uncached };
        let has_more = wanted > pages || self.debts.pages() > 0;
        (pages > 0).then_some(Orders { pages, reason, file: None, has_more, debt })
    }

    /// How many pages are more than may be dirty, or are wanted clean.
    fn wanted(&self, dirty_pages: impl Fn() -> usize, limits: &DirtyLimits) -> (usize, Reason) {
        let pages_of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / FRAME_BYTES;
        let background = pages_of(limits.background_bytes);
        let dirty = dirty_pages();
        let above = dirty.saturating_sub(background);
        if above > 0 && dirty >= pages_of(limits.hard_bytes) {
            return (above, Reason::HardLimit);
        }
        let pressed = self.pressed_pages.swap(0, Ordering::SeqCst).min(dirty_pages());
        if pressed > 0 {
            return (pressed, Reason::Pressure);
        }
        (above, Reason::Background)
    }

    /// Kicks that woke somebody.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// After a panic: the bell is one flag, which is whole.
    fn bell(&self) -> MutexGuard<'_, Bell> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
