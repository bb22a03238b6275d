//! Readahead: which pages a reader will need next. A pure state machine that reads nothing itself.
//!
//! ```text
//!          third sequential read      less than half a window ahead: the next window,
//!  Random ------------------> Sequential ------------------------+         twice as large
//!    ^  \                        | jump                <---------+
//!    |   \- 3 equal strides -----|--> Strided --- the next records, more of them each time
//!    +---------------------------+------/ another stride
//! ```
//!
//! Laws:
//!
//! 1. No page is requested twice unless it was evicted before it was read, no page after the end of
//!    the file, and no page that the read itself covers.
//! 2. At most [`WINDOW_PAGES_MAX`] pages are requested ahead of the end of the stream.
//! 3. The window halves when pages were evicted before they were read ([`Readahead::note_miss`]),
//!    begins at the reader again, and does not grow until four windows have been requested. Linux
//!    falls back to its initial window there.
//! 4. Several readers of one region, in any order, count as one stream.

use std::ops::Range;

/// Maximum window, in pages: 4 MiB, as much as a reader of 1 GB/s reads during one disk seek.
pub const WINDOW_PAGES_MAX: u64 = 1024;
/// Initial window, in pages.
const WINDOW_PAGES_MIN: u64 = 64;
/// Windows end at multiples of this: one compressed extent is read as a whole.
const ALIGN_PAGES: u64 = 32;
/// Sequential reads before readahead starts.
const STEPS_MIN: u32 = 2;
/// Maximum distance between the end of a stream and a read that continues it (law 4).
const STREAM_GAP_MAX: u64 = 512;
/// Equal strides before records are requested.
const STRIDES_MIN: u32 = 3;
/// Maximum number of records ahead of the reader.
const RECORDS_MAX: u64 = 16;

/// The readahead state of one reader.
#[derive(Clone, Debug, Default)]
pub struct Readahead {
    /// The page after the furthest page that was read.
    next: u64,
    steps: u32,
    window: u64,
    /// The page after the last page that was requested.
    requested: u64,
    /// The pages of the last read that had been requested before it.
    expected: Range<u64>,
    /// Pages to request before the window may grow again (law 3).
    no_growth_pages: u64,
    last: Range<u64>,
    stride: i64,
    strides: u32,
    records: u64,
}

/// The pages to read ahead after one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadaheadWindow {
    Nothing,
    /// One range of pages.
    Run(Range<u64>),
    /// `count` ranges as long as `first`, the n-th beginning `n * stride` pages after it.
    Strided {
        first: Range<u64>,
        stride: u64,
        count: u64,
    },
}

impl Readahead {
    /// Records a read of `pages` in a file of `file_pages` pages, and returns what to read ahead.
    pub fn read(&mut self, pages: Range<u64>, file_pages: u64) -> ReadaheadWindow {
        if pages.is_empty() {
            return ReadaheadWindow::Nothing;
        }
        let is_close = pages.start.abs_diff(self.next) <= STREAM_GAP_MAX && self.stride == 0;
        self.expected = 0..0;
        if is_close {
            self.expected = self.next.max(pages.start)..self.requested.min(pages.end);
            return self.advance(&pages, file_pages);
        }
        (self.steps, self.window, self.no_growth_pages) = (0, 0, 0);
        (self.next, self.requested) = (pages.end, pages.end);
        self.jump(pages, file_pages)
    }

    /// Returns whether the recent reads were sequential.
    pub fn is_sequential(&self) -> bool {
        self.steps > STEPS_MIN
    }

    /// Returns whether a read of `page` continues in the last page of the previous read. Such reads
    /// do not count as another access to that page.
    pub fn continues_in(&self, page: u64) -> bool {
        !self.last.is_empty() && page + 1 == self.last.end
    }

    /// Records that `page`, of the last read, was neither cached nor being read. If it had been
    /// requested, it was evicted before it was read (law 3).
    pub fn note_miss(&mut self, page: u64) {
        if self.expected.contains(&page) {
            // The other pages of the read are likely to be gone, too; they count once.
            self.expected = 0..0;
            self.note_thrashing();
        }
    }

    fn note_thrashing(&mut self) {
        self.requested = self.next;
        self.window = (self.window / 2).max(WINDOW_PAGES_MIN);
        self.no_growth_pages = 4 * self.window;
        self.records = (self.records / 2).max(1);
    }

    fn advance(&mut self, pages: &Range<u64>, file_pages: u64) -> ReadaheadWindow {
        let from = std::mem::replace(&mut self.last, pages.clone());
        // Only reads beyond the end of the stream count: reads to and fro in one place are no
        // stream.
        if pages.end > self.next {
            // A reader that skips in small, equal steps counts as a stream, too.
            self.next = pages.end;
            self.steps = self.steps.saturating_add(1);
        } else if from.end > pages.end && self.requested <= self.next {
            self.steps = self.steps.saturating_sub(1);
        }
        if !self.is_sequential() {
            return ReadaheadWindow::Nothing;
        }
        let read = pages.end - pages.start;
        self.window = self.window.max(WINDOW_PAGES_MIN).max(2 * read).min(WINDOW_PAGES_MAX);
        let requested = self.requested.max(self.next);
        if requested - self.next > self.window / 2 {
            return ReadaheadWindow::Nothing;
        }
        let until = self.next + self.window;
        let until = (until - until % ALIGN_PAGES).min(file_pages);
        if until <= requested {
            return ReadaheadWindow::Nothing;
        }
        self.requested = until;
        if self.no_growth_pages > 0 {
            self.no_growth_pages = self.no_growth_pages.saturating_sub(until - requested);
        } else {
            self.window = (self.window * 2).min(WINDOW_PAGES_MAX);
        }
        ReadaheadWindow::Run(requested..until)
    }

    fn jump(&mut self, pages: Range<u64>, file_pages: u64) -> ReadaheadWindow {
        let from = std::mem::replace(&mut self.last, pages.clone());
        let signed = |page: u64| i64::try_from(page).unwrap_or(i64::MAX);
        let stride = signed(pages.start).saturating_sub(signed(from.start));
        let is_alike = pages.end - pages.start == from.end.saturating_sub(from.start);
        if !is_alike || stride != self.stride || stride == 0 {
            self.strides = 0;
            self.records = 0;
            // The first jump away from a stream may be the first of equal strides.
            self.stride = if is_alike && !from.is_empty() { stride } else { 0 };
            if self.stride != 0 {
                self.strides = 1;
            }
            return ReadaheadWindow::Nothing;
        }
        self.strides = self.strides.saturating_add(1);
        if self.records > 0 {
            self.expected = pages.clone();
        }
        let Ok(stride) = u64::try_from(stride) else { return ReadaheadWindow::Nothing };
        if self.strides < STRIDES_MIN {
            return ReadaheadWindow::Nothing;
        }
        self.next_records(&pages, stride, file_pages)
    }

    fn next_records(
        &mut self,
        pages: &Range<u64>,
        stride: u64,
        file_pages: u64,
    ) -> ReadaheadWindow {
        let read = pages.end - pages.start;
        // `records` counts those ahead of the last read; this read used one of them.
        let ahead = self.records.saturating_sub(1);
        let most = (WINDOW_PAGES_MAX / read).min(RECORDS_MAX);
        let wanted = (2 * ahead).clamp(2, most.max(2)).min(most);
        let mut count = wanted.saturating_sub(ahead);
        let first = pages.start.saturating_add(stride.saturating_mul(ahead + 1));
        let fits = |count: u64| {
            let last = stride.checked_mul(count - 1).and_then(|skip| first.checked_add(skip));
            last.and_then(|last| last.checked_add(read)).is_some_and(|end| end <= file_pages)
        };
        while count > 0 && !fits(count) {
            count -= 1;
        }
        self.records = ahead + count;
        if count == 0 {
            return ReadaheadWindow::Nothing;
        }
        ReadaheadWindow::Strided { first: first..first + read, stride, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn requested(ahead: &ReadaheadWindow) -> Vec<u64> {
        match ahead {
            ReadaheadWindow::Nothing => Vec::new(),
            ReadaheadWindow::Run(run) => run.clone().collect(),
            ReadaheadWindow::Strided { first, stride, count } => (0..*count)
                .flat_map(|number| first.start + number * stride..first.end + number * stride)
                .collect(),
        }
    }

    #[test]
    fn a_stream_is_read_ahead_in_growing_windows_without_gaps() {
        let mut readahead = Readahead::default();
        let mut ready = HashSet::new();
        let (mut late, mut windows) = (Vec::new(), Vec::new());
        for page in (0..10_000).step_by(4) {
            late.extend((page..page + 4).filter(|page| !ready.contains(page)));
            let ahead = readahead.read(page..page + 4, 10_000);
            windows
                .extend(matches!(ahead, ReadaheadWindow::Run(_)).then(|| requested(&ahead).len()));
            ready.extend(requested(&ahead));
        }
        assert_eq!(late, (0..12).collect::<Vec<u64>>(), "only the first three reads wait");
        assert!(windows.iter().is_sorted() || windows.last() < windows.get(windows.len() - 2));
        assert_eq!(ready.len(), 10_000 - 12);
    }

    #[test]
    fn random_reads_request_nothing() {
        let mut readahead = Readahead::default();
        let mut state = 1u64;
        for _ in 0..1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let page = (state >> 33) % 1_000_000;
            assert_eq!(readahead.read(page..page + 1, 1_000_000), ReadaheadWindow::Nothing);
        }
    }

    #[test]
    fn reads_to_and_fro_in_one_place_request_nothing() {
        let mut readahead = Readahead::default();
        for read in 0..100 {
            assert_eq!(readahead.read(read % 2..read % 2 + 1, 1000), ReadaheadWindow::Nothing);
        }
    }

    #[test]
    fn strided_records_are_read_ahead() {
        let mut readahead = Readahead::default();
        let mut ready = HashSet::new();
        let starts: Vec<u64> = (0..100).map(|record| record * 1000).collect();
        let late = starts.iter().filter(|start| {
            let is_late = !ready.contains(*start);
            ready.extend(requested(&readahead.read(**start..**start + 2, 98_002)));
            is_late
        });
        assert_eq!(late.count(), 5, "the first four, and the one after the end");
        assert!(ready.iter().all(|page| *page < 98_002));
    }

    #[test]
    fn thrashing_shrinks_the_window_for_a_while() {
        let mut readahead = Readahead::default();
        let mut page = 0;
        let mut longest_window = |readahead: &mut Readahead, reads: u64| -> usize {
            let longest = (0..reads)
                .map(|_| {
                    page += 8;
                    requested(&readahead.read(page - 8..page, u64::MAX)).len()
                })
                .max();
            longest.unwrap_or(0)
        };
        let large = longest_window(&mut readahead, 400);
        readahead.note_thrashing();
        readahead.note_thrashing();
        readahead.note_thrashing();
        let small = longest_window(&mut readahead, 40);
        assert!(small * 2 <= large, "{small} after {large}");
        assert!(longest_window(&mut readahead, 2000) > small, "it grows again");
    }

    #[test]
    fn only_a_missing_page_that_was_requested_shrinks_the_window() {
        let mut readahead = Readahead::default();
        for page in (0..4000).step_by(8) {
            readahead.read(page..page + 8, u64::MAX);
        }
        assert_eq!(readahead.window, WINDOW_PAGES_MAX);
        // Pages before the read, after it, and of a read that goes back.
        readahead.note_miss(3991);
        readahead.note_miss(4000);
        readahead.read(3900..3908, u64::MAX);
        readahead.note_miss(3900);
        assert_eq!(readahead.window, WINDOW_PAGES_MAX);
        readahead.read(4000..4008, u64::MAX);
        (4000..4008).for_each(|page| readahead.note_miss(page));
        assert_eq!(readahead.window, WINDOW_PAGES_MAX / 2, "one read counts once");
        let again = readahead.read(4008..4016, u64::MAX);
        assert_eq!(requested(&again).first(), Some(&4016), "evicted pages are requested again");
    }

    proptest! {
        #[test]
        fn requested_pages_are_ahead_bounded_and_within_the_file(
            reads in prop::collection::vec((0..5000u64, 1..300u64, any::<bool>()), 1..80),
        ) {
            let mut readahead = Readahead::default();
            let mut at = 0;
            for (jump, pages, is_jump) in reads {
                if is_jump {
                    at = jump;
                }
                let ahead = readahead.read(at..at + pages, 5000);
                at += pages;
                let found = requested(&ahead);
                prop_assert!(found.iter().all(|page| *page < 5000));
                prop_assert!(found.len() <= 2 * usize::try_from(WINDOW_PAGES_MAX).unwrap());
                if let ReadaheadWindow::Run(run) = ahead {
                    let end_max = at + WINDOW_PAGES_MAX + STREAM_GAP_MAX;
                    prop_assert!(run.start >= at && run.end <= end_max);
                }
            }
        }
    }
}
