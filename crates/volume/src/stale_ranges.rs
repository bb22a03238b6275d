//! [`StaleRanges`]: ranges of a device whose last write failed in this session, while other mirrors
//! were written.
//!
//! Laws:
//! 1. A range is added when a write of it failed on this device but succeeded as a whole. It is
//!    removed when a later write of it succeeds here.
//! 2. At most [`RANGES_MAX`] ranges are kept. If one more is needed, the record is incomplete from
//!    then on: other ranges may be stale, too.
//! 3. A reader of a device that has had no stale range takes no lock.

use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of ranges of one device: about 128 KiB of memory.
const RANGES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct StaleRanges {
    /// Set with the first range, and never cleared.
    is_any: AtomicBool,
    is_incomplete: AtomicBool,
    /// Ranges of physical bytes, start to end. They neither overlap nor touch each other.
    ranges: Mutex<BTreeMap<u64, u64>, rank::StaleRanges>,
}

impl StaleRanges {
    pub(crate) fn add(&self, range: Range<u64>) {
        let mut ranges = self.lock();
        self.is_any.store(true, Ordering::Release);
        let Range { mut start, mut end } = range;
        // Ranges that overlap it or touch it are joined with it.
        while let Some((&known, &known_end)) = ranges.range(..=end).next_back() {
            if known_end < start {
                break;
            }
            (start, end) = (start.min(known), end.max(known_end));
            ranges.remove(&known);
        }
        if ranges.len() >= RANGES_MAX {
            self.is_incomplete.store(true, Ordering::Release);
            return;
        }
        ranges.insert(start, end);
    }

    /// Removes a range, because a write of it has succeeded.
    pub(crate) fn remove(&self, range: &Range<u64>) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut ranges = self.lock();
        while let Some((&known, &known_end)) = ranges.range(..range.end).next_back() {
            if known_end <= range.start {
                break;
            }
            ranges.remove(&known);
            if known_end > range.end {
                ranges.insert(range.end, known_end);
            }
            if known < range.start {
                ranges.insert(known, range.start);
            }
        }
        if ranges.len() > RANGES_MAX {
            // A range was split in two. Dropping one part is allowed by law 2.
            self.is_incomplete.store(true, Ordering::Release);
            ranges.pop_last();
        }
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.is_any.load(Ordering::Acquire)
            && self.lock().range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Returns whether other ranges may be stale, too (law 2).
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // The interrupted change may have left a range out (law 2).
        self.ranges.lock_or_else(|_| self.is_incomplete.store(true, Ordering::Release))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stale_ranges_are_those_added_and_not_removed(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 1_u64..9), 0..60),
        ) {
            let stale = StaleRanges::default();
            let mut model = [false; 80];
            for (is_added, start, bytes) in steps {
                let range = start..start + bytes;
                if is_added {
                    stale.add(range.clone());
                } else {
                    stale.remove(&range);
                }
                model[start as usize..(start + bytes) as usize].fill(is_added);
                for (at, want) in (0_u64..).zip(model) {
                    prop_assert_eq!(stale.overlaps(&(at..at + 1)), want, "{}", at);
                }
                let ranges = stale.lock().clone();
                let mut pairs = ranges.iter().zip(ranges.iter().skip(1));
                prop_assert!(pairs.all(|((_, end), (start, _))| end < start));
            }
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let stale = StaleRanges::default();
        for nth in 0..RANGES_MAX as u64 {
            stale.add(nth * 8192..nth * 8192 + 4096);
        }
        assert!(!stale.is_incomplete());
        stale.add(1 << 40..(1 << 40) + 4096);
        assert!(stale.is_incomplete() && stale.lock().len() == RANGES_MAX);
        assert!(stale.overlaps(&(0..4096)));
        stale.remove(&(1024..2048));
        assert!(stale.lock().len() <= RANGES_MAX);
    }
}
