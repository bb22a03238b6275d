//! Fillings: pages of a file that are being read from the disk.
//!
//! Laws:
//!
//! 1. No page is being read for the cache twice at a time.
//! 2. A page that is written to, or invalidated, while it is being read is spoiled: what was read
//!    of it is as it was before, and is not kept.

use std::ops::Range;

/// Pages of one reading.
pub(crate) const FILL_PAGES_MAX: u64 = 1024;

#[derive(Debug, Default)]
pub(crate) struct Fillings {
    next_id: u64,
    under_way: Vec<Filling>,
}

#[derive(Debug)]
struct Filling {
    id: u64,
    pages: Range<u64>,
    /// A bit a page; empty while nothing is spoiled.
    spoiled: Vec<u64>,
}

/// What became of a reading.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    first: u64,
    spoiled: Vec<u64>,
}

impl Filled {
    pub(crate) fn is_good(&self, page: u64) -> bool {
        let (word, bit) = place(page - self.first);
        self.spoiled.get(word).is_none_or(|bits| bits & 1 << bit == 0)
    }
}

fn place(page: u64) -> (usize, u64) {
    (usize::try_from(page / 64).unwrap_or(usize::MAX), page % 64)
}

impl Fillings {
    /// The part at the start of `pages` that nobody is reading.
    pub(crate) fn unclaimed(&self, pages: &Range<u64>) -> Range<u64> {
        let overlapping = self.under_way.iter().filter(|filling| overlap(&filling.pages, pages));
        let first = overlapping.map(|filling| filling.pages.start.max(pages.start)).min();
        pages.start..first.unwrap_or(pages.end)
    }

    pub(crate) fn is_any_in(&self, pages: &Range<u64>) -> bool {
        self.under_way.iter().any(|filling| overlap(&filling.pages, pages))
    }

    /// Begins to read at most [`FILL_PAGES_MAX`].
    pub(crate) fn begin(&mut self, pages: Range<u64>) -> u64 {
        debug_assert!(pages.end - pages.start <= FILL_PAGES_MAX, "a reading is bounded");
        debug_assert!(!self.is_any_in(&pages), "law 1");
        let id = self.next_id;
        self.next_id += 1;
        self.under_way.push(Filling { id, pages, spoiled: Vec::new() });
        id
    }

    pub(crate) fn end(&mut self, id: u64) -> Filled {
        let place = self.under_way.iter().position(|filling| filling.id == id);
        let filling = place.map(|place| self.under_way.swap_remove(place));
        let Some(Filling { pages, spoiled, .. }) = filling else { return Filled::default() };
        Filled { first: pages.start, spoiled }
    }

    /// Law 2.
    pub(crate) fn spoil(&mut self, pages: &Range<u64>) {
        for filling in self.under_way.iter_mut().filter(|filling| overlap(&filling.pages, pages)) {
            let (first, count) = (filling.pages.start, filling.pages.end - filling.pages.start);
            filling.spoiled.resize(place(count - 1).0 + 1, 0);
            for page in pages.start.max(first)..pages.end.min(filling.pages.end) {
                let (word, bit) = place(page - first);
                if let Some(bits) = filling.spoiled.get_mut(word) {
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
    fn what_is_written_to_while_it_is_read_is_spoiled_and_the_rest_is_good() {
        let mut fillings = Fillings::default();
        let (one, two) = (fillings.begin(10..20), fillings.begin(30..40));
        assert_eq!(fillings.unclaimed(&(0..50)), 0..10);
        assert_eq!(fillings.unclaimed(&(20..50)), 20..30);
        assert_eq!(fillings.unclaimed(&(15..50)), 15..15);
        for page in [12, 13, 35, 5] {
            fillings.spoil(&(page..page + 1));
        }
        let filled = fillings.end(one);
        let good: Vec<u64> = (10..20).filter(|page| filled.is_good(*page)).collect();
        assert_eq!(good, [10, 11, 14, 15, 16, 17, 18, 19]);
        assert!(fillings.is_any_in(&(0..31)) && !fillings.is_any_in(&(0..30)));
        assert!(!fillings.end(two).is_good(35));
    }
}
