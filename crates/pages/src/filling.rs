//! Fills in progress: which pages of a file are being read from the disk.
//!
//! Laws:
//!
//! 1. A page is in at most one fill at a time.
//! 2. A page that is written to or invalidated while it is being read is spoiled: the bytes read
//!    may be older than that change, so they are not cached.

use std::ops::Range;

/// Maximum pages of one fill.
pub(crate) const FILL_PAGES_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(crate) struct Fills {
    next_id: u64,
    in_progress: Vec<FillInProgress>,
}

#[derive(Debug)]
struct FillInProgress {
    id: u64,
    pages: Range<u64>,
    /// One bit for each page; empty while no page is spoiled.
    spoiled: Vec<u64>,
}

/// The spoiled pages of a fill that has ended.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    first: u64,
    spoiled: Vec<u64>,
}

impl Filled {
    pub(crate) fn is_unspoiled(&self, page: u64) -> bool {
        let (word, bit) = bit_of(page - self.first);
        self.spoiled.get(word).is_none_or(|bits| bits & 1 << bit == 0)
    }
}

fn bit_of(page: u64) -> (usize, u64) {
    (usize::try_from(page / 64).unwrap_or(usize::MAX), page % 64)
}

impl Fills {
    /// Returns the part at the start of `pages` that is in no fill.
    pub(crate) fn unclaimed(&self, pages: &Range<u64>) -> Range<u64> {
        let overlapping = self.in_progress.iter().filter(|fill| overlap(&fill.pages, pages));
        let first = overlapping.map(|fill| fill.pages.start.max(pages.start)).min();
        pages.start..first.unwrap_or(pages.end)
    }

    pub(crate) fn is_any_in(&self, pages: &Range<u64>) -> bool {
        self.in_progress.iter().any(|fill| overlap(&fill.pages, pages))
    }

    /// Begins a fill of at most [`FILL_PAGES_MAX`] pages and returns its id.
    pub(crate) fn begin(&mut self, pages: Range<u64>) -> u64 {
        debug_assert!(
            pages.end - pages.start <= FILL_PAGES_MAX,
            "a fill has at most FILL_PAGES_MAX pages"
        );
        debug_assert!(!self.is_any_in(&pages), "law 1");
        let id = self.next_id;
        self.next_id += 1;
        self.in_progress.push(FillInProgress { id, pages, spoiled: Vec::new() });
        id
    }

    pub(crate) fn end(&mut self, id: u64) -> Filled {
        let position = self.in_progress.iter().position(|fill| fill.id == id);
        let fill = position.map(|position| self.in_progress.swap_remove(position));
        let Some(FillInProgress { pages, spoiled, .. }) = fill else { return Filled::default() };
        Filled { first: pages.start, spoiled }
    }

    /// Marks pages as spoiled in every fill in progress (law 2).
    pub(crate) fn spoil(&mut self, pages: &Range<u64>) {
        for fill in self.in_progress.iter_mut().filter(|fill| overlap(&fill.pages, pages)) {
            let (first, count) = (fill.pages.start, fill.pages.end - fill.pages.start);
            fill.spoiled.resize(bit_of(count - 1).0 + 1, 0);
            for page in pages.start.max(first)..pages.end.min(fill.pages.end) {
                let (word, bit) = bit_of(page - first);
                if let Some(bits) = fill.spoiled.get_mut(word) {
                    *bits |= 1 << bit;
                }
            }
        }
    }
}

fn overlap(one: &Range<u64>, two: &Range<u64>) -> bool {
    one.start < two.end && two.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_written_during_a_fill_are_spoiled_and_others_are_not() {
        let mut fills = Fills::default();
        let (one, two) = (fills.begin(10..20), fills.begin(30..40));
        assert_eq!(fills.unclaimed(&(0..50)), 0..10);
        assert_eq!(fills.unclaimed(&(20..50)), 20..30);
        assert_eq!(fills.unclaimed(&(15..50)), 15..15);
        for page in [12, 13, 35, 5] {
            fills.spoil(&(page..page + 1));
        }
        let filled = fills.end(one);
        let unspoiled: Vec<u64> = (10..20).filter(|page| filled.is_unspoiled(*page)).collect();
        assert_eq!(unspoiled, [10, 11, 14, 15, 16, 17, 18, 19]);
        assert!(fills.is_any_in(&(0..31)) && !fills.is_any_in(&(0..30)));
        assert!(!fills.end(two).is_unspoiled(35));
    }
}
