//! What the kernel's page cache takes of one open file, so that writes past that cache stay in
//! order with its pages.
//!
//! Before the kernel sends a write that passes its page cache, it writes back and drops the pages
//! of the range. A page can be filled again after that and before the write is applied, by a
//! reader of the cache or by a fault in a mapping. It then holds the bytes from before the write.
//! Readers of the cache would be given those for good. If a store to the mapping makes the page
//! dirty, its writeback would put the old bytes over the write.
//!
//! ```text
//! write -- no fill noted --> applied, while fills of its pages wait
//!   |                              ^
//!   fill noted --> the kernel drops the pages
//! ```
//!
//! 1. A fill is noted before its bytes are read, while any handle may write past the cache.
//! 2. A write past the cache is applied only while no fill of its pages is noted. A fill that is
//!    noted meanwhile waits until the write has been applied.
//! 3. A fill is forgotten when an invalidation of its pages has ended that began after the fill
//!    was noted. The kernel has then sent what was dirty, and has dropped the pages.
//! 4. An invalidation waits for pages that are being filled, so it takes a thread that answers no
//!    requests. Fills wait for writes only, and writes that are being applied wait for neither.
//! 5. At most 1,024 ranges are noted of a file; past that all of them become one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Ranges that are noted of a file, at most.
const RANGES_MAX: usize = 1024;

/// The largest page, or part of one, that the kernel fills on its own.
const PAGE_BYTES: u64 = 4096;

/// The fills of one file, shared by its handles.
#[derive(Default)]
pub(crate) struct Fills {
    /// A handle may write past the cache.
    are_noted: AtomicBool,
    state: Mutex<State>,
    applied: Condvar,
}

#[derive(Default)]
struct State {
    noted: Noted,
    /// The writes past the cache that are being applied.
    writes: Vec<Range<u64>>,
}

/// Ranges that the cache may hold, apart from each other: start, then end and number.
#[derive(Default)]
struct Noted {
    ranges: BTreeMap<u64, (u64, u64)>,
    /// The number of the next fill.
    next: u64,
}

/// A write that is being applied. Dropped, it lets fills go on.
pub(crate) struct Applying<'a> {
    fills: &'a Fills,
    pages: Range<u64>,
}

/// Pages that the kernel must drop before a write past the cache, and the fills that are gone then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stale {
    pub(crate) pages: Range<u64>,
    before: u64,
}

impl Fills {
    /// A handle is about to be opened that may write past the cache.
    pub(crate) fn note_from_now(&self) {
        self.are_noted.store(true, Ordering::SeqCst);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's page cache is about to hold these bytes.
    pub(crate) fn begin_fill(&self, bytes: Range<u64>) {
        if !self.are_noted.load(Ordering::SeqCst) {
            return;
        }
        let pages = whole_pages(bytes);
        let mut state = self.state();
        state.noted.add(pages.clone());
        while state.writes.iter().any(|write| overlap(write, &pages)) {
            state = self.applied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins to apply a write past the cache, unless the kernel has to drop pages first.
    pub(crate) fn begin_write(&self, bytes: Range<u64>) -> Result<Applying<'_>, Stale> {
        let mut state = self.state();
        if !self.are_noted.swap(true, Ordering::SeqCst) {
            // The handle became one that passes the cache after it was opened, by fcntl(2): the
            // fills until now were not noted.
            state.noted.add(0..u64::MAX);
            return Err(Stale { pages: 0..u64::MAX, before: state.noted.next });
        }
        self.try_write(state, whole_pages(bytes))
    }

    /// The same, after the kernel has dropped the pages.
    pub(crate) fn begin_write_after(
        &self,
        dropped: &Stale,
        bytes: Range<u64>,
    ) -> Result<Applying<'_>, Stale> {
        let mut state = self.state();
        state.noted.remove(&dropped.pages, dropped.before);
        self.try_write(state, whole_pages(bytes))
    }

    fn try_write(
        &self,
        mut state: MutexGuard<'_, State>,
        pages: Range<u64>,
    ) -> Result<Applying<'_>, Stale> {
        if state.noted.has(&pages) {
            return Err(Stale { pages, before: state.noted.next });
        }
        state.writes.push(pages.clone());
        Ok(Applying { fills: self, pages })
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        let mut state = self.fills.state();
        if let Some(at) = state.writes.iter().position(|write| *write == self.pages) {
            state.writes.swap_remove(at);
        }
        drop(state);
        self.fills.applied.notify_all();
    }
}

impl Noted {
    fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.remove(&pages, u64::MAX);
        self.ranges.insert(pages.start, (pages.end, number));
        if self.ranges.len() > RANGES_MAX {
            let start = self.ranges.keys().next().copied().unwrap_or(0);
            let end = self.ranges.values().map(|(end, _)| *end).max().unwrap_or(0);
            self.ranges = BTreeMap::from([(start, (end, number))]);
        }
    }

    /// Forgets these pages of every fill with a number below `before`.
    fn remove(&mut self, pages: &Range<u64>, before: u64) {
        while let Some((start, (end, number))) = self.find(pages, before) {
            self.ranges.remove(&start);
            if start < pages.start {
                self.ranges.insert(start, (pages.start, number));
            }
            if end > pages.end {
                self.ranges.insert(pages.end, (end, number));
            }
        }
    }

    fn find(&self, pages: &Range<u64>, before: u64) -> Option<(u64, (u64, u64))> {
        let ahead = self.ranges.range(..pages.end).rev();
        let overlapping = ahead.take_while(|(_, (end, _))| *end > pages.start);
        let mut found = overlapping.filter(|(_, (_, number))| *number < before);
        found.next().map(|(start, range)| (*start, *range))
    }

    fn has(&self, pages: &Range<u64>) -> bool {
        self.find(pages, u64::MAX).is_some()
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn whole_pages(bytes: Range<u64>) -> Range<u64> {
    let end = bytes.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
    bytes.start / PAGE_BYTES * PAGE_BYTES..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const PAGE: u64 = PAGE_BYTES;

    fn noting() -> Fills {
        let fills = Fills::default();
        fills.note_from_now();
        fills
    }

    #[test]
    fn a_write_waits_until_the_pages_of_noted_fills_are_dropped() {
        let fills = noting();
        fills.begin_fill(0..3 * PAGE);
        drop(fills.begin_write(3 * PAGE..4 * PAGE).ok().unwrap());
        let stale = fills.begin_write(PAGE + 8..PAGE + 16).err().unwrap();
        assert_eq!(stale.pages, PAGE..2 * PAGE);
        drop(fills.begin_write_after(&stale, PAGE + 8..PAGE + 16).ok().unwrap());
        drop(fills.begin_write(PAGE..2 * PAGE).ok().unwrap());
        assert!(fills.begin_write(0..1).is_err() && fills.begin_write(2 * PAGE..3 * PAGE).is_err());
    }

    #[test]
    fn a_fill_that_comes_during_the_invalidation_asks_for_another() {
        let fills = noting();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write(0..8).err().unwrap();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write_after(&stale, 0..8).err().unwrap();
        assert!(fills.begin_write_after(&stale, 0..8).is_ok());
    }

    #[test]
    fn a_write_does_not_take_another_ones_invalidation_for_its_own() {
        let fills = noting();
        fills.begin_fill(0..PAGE);
        let first = fills.begin_write(0..8).err().unwrap();
        let second = fills.begin_write(8..16).err().unwrap();
        assert!(fills.begin_write_after(&first, 0..8).is_ok());
        assert!(fills.begin_write_after(&second, 8..16).is_ok());
    }

    #[test]
    fn a_fill_waits_for_the_writes_that_are_being_applied_to_its_pages() {
        let fills = noting();
        let applying = fills.begin_write(8..16).ok().unwrap();
        fills.begin_fill(PAGE..2 * PAGE);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                fills.begin_fill(0..PAGE);
                tell.send(()).unwrap();
            });
            // The fill is noted before it waits, so writes that come later do not overtake it.
            while fills.begin_write(0..8).is_ok() {
                thread::yield_now();
            }
            assert!(told.try_recv().is_err());
            drop(applying);
            told.recv().unwrap();
        });
    }

    #[test]
    fn what_was_not_noted_counts_as_filled() {
        let fills = Fills::default();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write(0..8).err().unwrap();
        assert_eq!(stale.pages, 0..u64::MAX);
        drop(fills.begin_write_after(&stale, 0..8).ok().unwrap());
        drop(fills.begin_write(1 << 40..1 << 41).ok().unwrap());
    }

    #[test]
    fn ranges_are_few_and_none_is_forgotten() {
        let fills = noting();
        for number in 0..3 * RANGES_MAX as u64 {
            fills.begin_fill(2 * number * PAGE..(2 * number + 1) * PAGE);
        }
        assert!(fills.state().noted.ranges.len() <= RANGES_MAX);
        for number in 0..3 * RANGES_MAX as u64 {
            assert!(fills.begin_write(2 * number * PAGE..2 * number * PAGE + 1).is_err());
        }
    }
}
