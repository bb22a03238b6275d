//! Fills of the kernel's page cache for one open file, which order them against writes and other
//! changes that bypass that cache.
//!
//! Before the kernel sends a write that bypasses its page cache, it writes back and drops the pages
//! of the range. A reader or a page fault can fill a page again after that and before the write is
//! applied. The page then holds the bytes from before the write. Readers would see those until the
//! page is evicted, and if a store to a mapping dirties the page, its writeback overwrites the
//! write with old bytes.
//!
//! ```text
//! write -- no fill recorded --> applied, while fills of its pages wait
//!   |                              ^
//!   fill recorded --> the kernel invalidates the pages
//! ```
//!
//! 1. While any handle may bypass the cache, a fill is recorded before its bytes are read. Once a
//!    range was changed below the cache, all fills of the file are recorded.
//! 2. A write that bypasses the cache is applied only while no fill of its pages is recorded. A
//!    fill that begins meanwhile is recorded and waits until the write has been applied.
//! 3. A fill is forgotten when an invalidation of its pages ends that began after the fill was
//!    recorded. The kernel has then written back and dropped the pages.
//!    Before a change of a range, the kernel does not drop the pages. So pages that were filled
//!    before the recording count as filled for changes, until they were invalidated once.
//! 4. An invalidation waits for pages that are being filled, so a thread that serves no requests
//!    waits for it. Fills wait only for writes that are being applied, and those wait for neither
//!    fills nor invalidations.
//! 5. At most 1,024 ranges of a file are recorded. A fill that exceeds that joins all of them into
//!    one. An invalidation inside of a range splits that range; one that exceeds the limit joins
//!    the ranges on each side of its pages, so its write can begin.

use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of recorded ranges of a file.
const RANGES_MAX: usize = 1024;

/// Page size. The kernel may fill every page on its own, also one of a large folio.
const PAGE_BYTES: u64 = 4096;

/// The fills of one file, shared by its handles.
#[derive(Default)]
pub(crate) struct Fills {
    /// A handle may bypass the cache (law 1).
    is_recording: AtomicBool,
    state: Mutex<State, rank::KernelFills>,
    applied: Condvar,
    /// Number of WRITE requests from the kernel's page cache that failed.
    lost_writes: AtomicU64,
}

#[derive(Default)]
struct State {
    recorded: RecordedRanges,
    /// Pages that the cache may hold from before the recording; `None` as long as that is all of
    /// them. Only changes look at them: the kernel has dropped the pages of a write.
    unrecorded: Option<RecordedRanges>,
    /// Byte ranges of the writes that are being applied, page-aligned.
    writes: Vec<Range<u64>>,
}

/// Disjoint ranges that the cache may hold: start, then end and number of the fill.
#[derive(Default)]
struct RecordedRanges {
    ranges: BTreeMap<u64, (u64, u64)>,
    /// The number of the next fill.
    next: u64,
}

/// A write that is being applied. Fills of its pages wait until it is dropped.
pub(crate) struct ApplyingWrite<'a> {
    fills: &'a Fills,
    pages: Range<u64>,
}

/// Pages that the kernel must drop before a write is applied. Invalidating them forgets the fills
/// with numbers below `before`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StalePages {
    pub(crate) pages: Range<u64>,
    before: u64,
}

impl Fills {
    /// Counts a WRITE request from the kernel's page cache that failed. The kernel does not repeat
    /// it.
    pub(crate) fn count_lost_write(&self) {
        self.lost_writes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of WRITE requests from the kernel's page cache that failed.
    pub(crate) fn lost_writes(&self) -> u64 {
        self.lost_writes.load(Ordering::Acquire)
    }

    /// Starts to record fills. Must be called before a handle is opened that may bypass the cache.
    pub(crate) fn start_recording(&self) {
        self.is_recording.store(true, Ordering::SeqCst);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records that the kernel's page cache is about to hold these bytes. Waits for writes that are
    /// being applied to them.
    pub(crate) fn begin_fill(&self, bytes: Range<u64>) {
        if !self.is_recording.load(Ordering::SeqCst) {
            return;
        }
        let pages = whole_pages(bytes);
        let mut state = self.state();
        state.recorded.add(pages.clone());
        while state.writes.iter().any(|write| overlap(write, &pages)) {
            state = self.applied.wait(state);
        }
    }

    /// Begins to apply a write that bypasses the cache. Fails where pages must be invalidated
    /// first. The kernel may hold no inode lock, so these are pages of the write only: one that a
    /// write(2) has just changed must not be dropped.
    pub(crate) fn begin_write(&self, bytes: Range<u64>) -> Result<ApplyingWrite<'_>, StalePages> {
        let mut state = self.state();
        if !self.is_recording.swap(true, Ordering::SeqCst) {
            // A program set O_DIRECT by fcntl(2) after it opened the file: earlier fills were not
            // recorded.
            state.recorded.add(0..u64::MAX);
        }
        self.try_write(state, whole_pages(bytes))
    }

    /// As [`Self::begin_write`], for a change before which the kernel has written the pages back
    /// and kept them.
    pub(crate) fn begin_change(&self, bytes: Range<u64>) -> Result<ApplyingWrite<'_>, StalePages> {
        let mut state = self.state();
        self.is_recording.store(true, Ordering::SeqCst);
        let pages = whole_pages(bytes);
        let unrecorded = state.unrecorded.get_or_insert_with(RecordedRanges::all);
        if unrecorded.has(&pages) {
            return Err(StalePages { pages, before: state.recorded.next });
        }
        self.try_write(state, pages)
    }

    /// Begins to apply a write or change after the kernel has dropped the pages of `dropped`.
    pub(crate) fn begin_write_after(
        &self,
        dropped: &StalePages,
        bytes: Range<u64>,
    ) -> Result<ApplyingWrite<'_>, StalePages> {
        let mut state = self.state();
        state.recorded.remove(&dropped.pages, dropped.before);
        if let Some(unrecorded) = &mut state.unrecorded {
            unrecorded.remove(&dropped.pages, u64::MAX);
        }
        self.try_write(state, whole_pages(bytes))
    }

    fn try_write(
        &self,
        mut state: MutexGuard<'_, State>,
        pages: Range<u64>,
    ) -> Result<ApplyingWrite<'_>, StalePages> {
        if state.recorded.has(&pages) {
            return Err(StalePages { pages, before: state.recorded.next });
        }
        state.writes.push(pages.clone());
        Ok(ApplyingWrite { fills: self, pages })
    }
}

impl Drop for ApplyingWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.fills.state();
        if let Some(at) = state.writes.iter().position(|write| *write == self.pages) {
            state.writes.swap_remove(at);
        }
        drop(state);
        self.fills.applied.notify_all();
    }
}

impl RecordedRanges {
    fn all() -> Self {
        let mut ranges = Self::default();
        ranges.add(0..u64::MAX);
        ranges
    }

    fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.remove(&pages, u64::MAX);
        self.ranges.insert(pages.start, (pages.end, number));
        if self.ranges.len() > RANGES_MAX {
            self.ranges = joined(&self.ranges).into_iter().collect();
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
        if self.ranges.len() > RANGES_MAX {
            self.join_around(pages);
        }
    }

    /// Joins the ranges before these pages, those inside of them, and those behind them. No range
    /// crosses an end of the pages where one was split.
    fn join_around(&mut self, pages: &Range<u64>) {
        let mut inside = self.ranges.split_off(&pages.start);
        let behind = inside.split_off(&pages.end);
        self.ranges = [&self.ranges, &inside, &behind].into_iter().filter_map(joined).collect();
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

/// Returns the range from the first to the last of these ranges, with the number of the latest
/// fill.
fn joined(ranges: &BTreeMap<u64, (u64, u64)>) -> Option<(u64, (u64, u64))> {
    let (start, _) = ranges.first_key_value()?;
    let (_, (end, _)) = ranges.last_key_value()?;
    let number = ranges.values().map(|(_, number)| *number).max()?;
    Some((*start, (*end, number)))
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

    fn recording() -> Fills {
        let fills = Fills::default();
        fills.start_recording();
        fills
    }

    #[test]
    fn a_write_waits_until_the_pages_of_recorded_fills_are_invalidated() {
        let fills = recording();
        fills.begin_fill(0..3 * PAGE);
        drop(fills.begin_write(3 * PAGE..4 * PAGE).ok().unwrap());
        let stale = fills.begin_write(PAGE + 8..PAGE + 16).err().unwrap();
        assert_eq!(stale.pages, PAGE..2 * PAGE);
        drop(fills.begin_write_after(&stale, PAGE + 8..PAGE + 16).ok().unwrap());
        drop(fills.begin_write(PAGE..2 * PAGE).ok().unwrap());
        assert!(fills.begin_write(0..1).is_err() && fills.begin_write(2 * PAGE..3 * PAGE).is_err());
    }

    #[test]
    fn a_fill_during_the_invalidation_requires_another_one() {
        let fills = recording();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write(0..8).err().unwrap();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write_after(&stale, 0..8).err().unwrap();
        assert!(fills.begin_write_after(&stale, 0..8).is_ok());
    }

    #[test]
    fn each_of_two_writes_begins_after_its_own_invalidation() {
        let fills = recording();
        fills.begin_fill(0..PAGE);
        let first = fills.begin_write(0..8).err().unwrap();
        let second = fills.begin_write(8..16).err().unwrap();
        assert!(fills.begin_write_after(&first, 0..8).is_ok());
        assert!(fills.begin_write_after(&second, 8..16).is_ok());
    }

    #[test]
    fn a_fill_waits_for_writes_that_are_being_applied_to_its_pages() {
        let fills = recording();
        let applying = fills.begin_write(8..16).ok().unwrap();
        fills.begin_fill(PAGE..2 * PAGE);
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                fills.begin_fill(0..PAGE);
                sender.send(()).unwrap();
            });
            // The fill is recorded before it waits, so later writes do not overtake it.
            while fills.begin_write(0..8).is_ok() {
                thread::yield_now();
            }
            assert!(receiver.try_recv().is_err());
            drop(applying);
            receiver.recv().unwrap();
        });
    }

    #[test]
    fn a_write_without_recording_drops_its_own_pages_only() {
        let fills = Fills::default();
        fills.begin_fill(0..PAGE);
        let stale = fills.begin_write(PAGE + 8..PAGE + 16).err().unwrap();
        assert_eq!(stale.pages, PAGE..2 * PAGE, "the kernel may hold no inode lock");
        drop(fills.begin_write_after(&stale, PAGE + 8..PAGE + 16).ok().unwrap());
        assert!(fills.begin_write(0..8).is_err(), "it was filled before the recording");
        assert!(fills.begin_write(1 << 40..1 << 41).is_err());
    }

    #[test]
    fn a_change_counts_the_fills_from_before_the_recording() {
        let fills = Fills::default();
        // A page of a mapping, before another handle is opened with `O_DIRECT`.
        fills.begin_fill(0..PAGE);
        fills.start_recording();
        let stale = fills.begin_change(8..16).err().unwrap();
        assert_eq!(stale.pages, 0..PAGE);
        drop(fills.begin_write_after(&stale, 8..16).ok().unwrap());
        drop(fills.begin_change(0..PAGE).ok().unwrap());
        assert!(fills.begin_change(PAGE..PAGE + 1).is_err());
        // The kernel has dropped the pages of a write before it sent it.
        drop(fills.begin_write(5 * PAGE..6 * PAGE).ok().unwrap());
    }

    #[test]
    fn many_fills_are_joined_and_none_is_forgotten() {
        let fills = recording();
        for number in 0..3 * RANGES_MAX as u64 {
            fills.begin_fill(2 * number * PAGE..(2 * number + 1) * PAGE);
        }
        assert!(fills.state().recorded.ranges.len() <= RANGES_MAX);
        for number in 0..3 * RANGES_MAX as u64 {
            assert!(fills.begin_write(2 * number * PAGE..2 * number * PAGE + 1).is_err());
        }
    }
    #[test]
    fn invalidations_split_ranges_no_further_than_the_limit() {
        let fills = recording();
        fills.begin_fill(0..u64::MAX);
        for number in 0..3 * RANGES_MAX as u64 {
            let bytes = 2 * number * PAGE..2 * number * PAGE + 1;
            let stale = fills.begin_write(bytes.clone()).err().unwrap();
            drop(fills.begin_write_after(&stale, bytes).ok().unwrap());
            assert!(fills.state().recorded.ranges.len() <= RANGES_MAX);
            assert!(fills.begin_write((2 * number + 1) * PAGE..(2 * number + 2) * PAGE).is_err());
        }
        for number in 0..3 * RANGES_MAX as u64 {
            assert!(
                fills.begin_write((2 * number + 1) * PAGE..(2 * number + 2) * PAGE).is_err(),
                "no fill is forgotten"
            );
        }
    }
}
