//! Readahead: which pages a reader will want next. A pure state machine; it reads nothing.
//!
//! ```text
//!            follows twice              ahead < half the window: the next window, twice as large
//!  Random ------------------> Sequential -----------------------+
//!    ^  \                        | jumps             <----------+
//!    |   \--- same step thrice --|--> Strided --- the next records, ever more of them
//!    +---------------------------+------/ another step
//! ```
//!
//! Laws:
//!
//! 1. Nothing is asked for twice, nothing behind the end of the file, and no page that the read
//!    itself covers.
//! 2. At most [`WINDOW_PAGES_MAX`] lie ahead of the reader.
//! 3. A window halves when pages are gone before their reader came ([`Readahead::missed`]), and
//!    does not grow again for as long as four windows take.
//! 4. Several readers of one place, who come in any order, are one stream.

use std::ops::Range;

/// Pages ahead, at most: 4 MiB, as many bytes as a reader of a gigabyte a second reads in the time
/// that a disk takes to find them.
pub const WINDOW_PAGES_MAX: u64 = 1024;
/// And to begin with.
const WINDOW_PAGES_MIN: u64 = 64;
/// Windows end at multiples of this: what is packed together is read together.
const ALIGN_PAGES: u64 = 32;
/// Reads that follow one another before anything is read ahead.
const STEPS_MIN: u32 = 2;
/// How far from the end of the last read another may be and still follow it (law 4).
const STRAY_PAGES: u64 = 512;
/// Equal steps before records are asked for.
const STRIDES_MIN: u32 = 3;
/// Records ahead, at most.
const RECORDS_MAX: u64 = 16;

/// One reader's course.
#[derive(Clone, Debug, Default)]
pub struct Readahead {
    /// One behind the furthest page that was read.
    next: u64,
    steps: u32,
    window: u64,
    /// One behind the last page that was asked for.
    asked: u64,
    /// Asked pages for which the window does not grow (law 3).
    penance: u64,
    last: Range<u64>,
    stride: i64,
    strides: u32,
    records: u64,
}

/// What to read ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    Nothing,
    /// These pages.
    Run(Range<u64>),
    /// `count` times as many pages as `first`, each `stride` pages behind the one before.
    Records {
        first: Range<u64>,
        stride: u64,
        count: u64,
    },
}

impl Readahead {
    /// Takes note of a read of `pages` in a file of `file_pages`.
    pub fn read(&mut self, pages: Range<u64>, file_pages: u64) -> Ahead {
        if pages.is_empty() {
            return Ahead::Nothing;
        }
        let is_near = pages.start.abs_diff(self.next) <= STRAY_PAGES && self.stride == 0;
        if is_near {
            return self.go_on(&pages, file_pages);
        }
        (self.steps, self.window, self.penance) = (0, 0, 0);
        (self.next, self.asked) = (pages.end, pages.end);
        self.jump(pages, file_pages)
    }

    /// Whether reads follow one another.
    pub fn is_sequential(&self) -> bool {
        self.steps > STEPS_MIN
    }

    /// Whether a read from `page` on would go on where the last one ended, in its last page
    /// perhaps: reads of parts of pages do not make these hot.
    pub fn continues_in(&self, page: u64) -> bool {
        !self.last.is_empty() && page + 1 == self.last.end
    }

    /// Pages that were read ahead were gone when they were read (law 3).
    pub fn missed(&mut self) {
        self.window = (self.window / 2).max(WINDOW_PAGES_MIN);
        self.penance = 4 * self.window;
        self.records = (self.records / 2).max(1);
    }

    fn go_on(&mut self, pages: &Range<u64>, file_pages: u64) -> Ahead {
        let from = std::mem::replace(&mut self.last, pages.clone());
        // Only what goes on counts: reads to and fro in one place are not a stream.
        if pages.end > self.next {
            // A reader who skips in small, equal steps is one of a stream, too.
            self.next = pages.end;
            self.steps = self.steps.saturating_add(1);
        } else if from.end > pages.end && self.asked <= self.next {
            self.steps = self.steps.saturating_sub(1);
        }
        if !self.is_sequential() {
            return Ahead::Nothing;
        }
        let read = pages.end - pages.start;
        self.window = self.window.max(WINDOW_PAGES_MIN).max(2 * read).min(WINDOW_PAGES_MAX);
        let asked = self.asked.max(self.next);
        if asked - self.next > self.window / 2 {
            return Ahead::Nothing;
        }
        let until = self.next + self.window;
        let until = (until - until % ALIGN_PAGES).min(file_pages);
        if until <= asked {
            return Ahead::Nothing;
        }
        self.asked = until;
        if self.penance > 0 {
            self.penance = self.penance.saturating_sub(until - asked);
        } else {
            self.window = (self.window * 2).min(WINDOW_PAGES_MAX);
        }
        Ahead::Run(asked..until)
    }

    fn jump(&mut self, pages: Range<u64>, file_pages: u64) -> Ahead {
        let from = std::mem::replace(&mut self.last, pages.clone());
        let signed = |page: u64| i64::try_from(page).unwrap_or(i64::MAX);
        let stride = signed(pages.start).saturating_sub(signed(from.start));
        let is_alike = pages.end - pages.start == from.end.saturating_sub(from.start);
        if !is_alike || stride != self.stride || stride == 0 {
            self.strides = 0;
            self.records = 0;
            // The first jump away from a stream may be a stream's beginning.
            self.stride = if is_alike && !from.is_empty() { stride } else { 0 };
            if self.stride != 0 {
                self.strides = 1;
            }
            return Ahead::Nothing;
        }
        self.strides = self.strides.saturating_add(1);
        let Ok(stride) = u64::try_from(stride) else { return Ahead::Nothing };
        if self.strides < STRIDES_MIN {
            return Ahead::Nothing;
        }
        self.ask_for_records(&pages, stride, file_pages)
    }

    fn ask_for_records(&mut self, pages: &Range<u64>, stride: u64, file_pages: u64) -> Ahead {
        let read = pages.end - pages.start;
        // `records` is how many lie ahead; this read used one.
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
            return Ahead::Nothing;
        }
        Ahead::Records { first: first..first + read, stride, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn asked(ahead: &Ahead) -> Vec<u64> {
        match ahead {
            Ahead::Nothing => Vec::new(),
            Ahead::Run(run) => run.clone().collect(),
            Ahead::Records { first, stride, count } => (0..*count)
                .flat_map(|number| first.start + number * stride..first.end + number * stride)
                .collect(),
        }
    }

    #[test]
    fn a_stream_is_read_ahead_in_growing_windows_and_no_page_is_missed() {
        let mut course = Readahead::default();
        let mut ready = HashSet::new();
        let (mut late, mut windows) = (Vec::new(), Vec::new());
        for page in (0..10_000).step_by(4) {
            late.extend((page..page + 4).filter(|page| !ready.contains(page)));
            let ahead = course.read(page..page + 4, 10_000);
            windows.extend(matches!(ahead, Ahead::Run(_)).then(|| asked(&ahead).len()));
            ready.extend(asked(&ahead));
        }
        assert_eq!(late, (0..12).collect::<Vec<u64>>(), "only the first three reads wait");
        assert!(windows.iter().is_sorted() || windows.last() < windows.get(windows.len() - 2));
        assert_eq!(ready.len(), 10_000 - 12);
    }

    #[test]
    fn random_reads_ask_for_nothing() {
        let mut course = Readahead::default();
        let mut state = 1u64;
        for _ in 0..1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let page = (state >> 33) % 1_000_000;
            assert_eq!(course.read(page..page + 1, 1_000_000), Ahead::Nothing);
        }
    }

    #[test]
    fn reads_to_and_fro_in_one_place_ask_for_nothing() {
        let mut course = Readahead::default();
        for turn in 0..100 {
            assert_eq!(course.read(turn % 2..turn % 2 + 1, 1000), Ahead::Nothing);
        }
    }

    #[test]
    fn records_in_equal_steps_are_found_ready() {
        let mut course = Readahead::default();
        let mut ready = HashSet::new();
        let starts: Vec<u64> = (0..100).map(|record| record * 1000).collect();
        let late = starts.iter().filter(|start| {
            let is_late = !ready.contains(*start);
            ready.extend(asked(&course.read(**start..**start + 2, 98_002)));
            is_late
        });
        assert_eq!(late.count(), 5, "the first ones, and the one behind the end");
        assert!(ready.iter().all(|page| *page < 98_002));
    }

    #[test]
    fn a_window_that_was_lost_is_asked_for_in_smaller_parts() {
        let mut course = Readahead::default();
        let mut page = 0;
        let mut go = |course: &mut Readahead, reads: u64| -> usize {
            let longest = (0..reads)
                .map(|_| {
                    page += 8;
                    asked(&course.read(page - 8..page, u64::MAX)).len()
                })
                .max();
            longest.unwrap_or(0)
        };
        let large = go(&mut course, 400);
        course.missed();
        course.missed();
        course.missed();
        let small = go(&mut course, 100);
        assert!(small * 2 <= large, "{small} after {large}");
        assert!(go(&mut course, 2000) > small, "it grows again");
    }

    proptest! {
        #[test]
        fn asked_pages_are_ahead_bounded_and_inside(
            reads in prop::collection::vec((0..5000u64, 1..300u64, any::<bool>()), 1..80),
        ) {
            let mut course = Readahead::default();
            let mut at = 0;
            for (jump, pages, is_jump) in reads {
                if is_jump {
                    at = jump;
                }
                let ahead = course.read(at..at + pages, 5000);
                at += pages;
                let found = asked(&ahead);
                prop_assert!(found.iter().all(|page| *page < 5000));
                prop_assert!(found.len() <= 2 * usize::try_from(WINDOW_PAGES_MAX).unwrap());
                if let Ahead::Run(run) = ahead {
                    prop_assert!(run.start >= at && run.end <= at + WINDOW_PAGES_MAX + STRAY_PAGES);
                }
            }
        }
    }
}
