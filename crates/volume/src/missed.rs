//! [`MissedRanges`]: what of a device other copies have and this one does not, as far as this
//! session knows.
//!
//! Laws:
//! 1. A range is added when a write of it failed on this device and succeeded as a whole, and
//!    removed when a later write of it succeeds here.
//! 2. At most [`RANGES_MAX`] ranges are kept. When one more would be needed, the record is
//!    incomplete from then on: what is not in it may have been missed, too.
//! 3. A reader of a device that has missed nothing takes no lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Ranges of one device: 128 KiB of memory or so.
const RANGES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct MissedRanges {
    /// Set with the first range, and never cleared.
    is_any: AtomicBool,
    is_incomplete: AtomicBool,
    /// Ranges of physical bytes, from their start to their end; none touches another.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl MissedRanges {
    pub(crate) fn add(&self, range: Range<u64>) {
        let mut ranges = self.lock();
        self.is_any.store(true, Ordering::Release);
        let Range { mut start, mut end } = range;
        // Those that overlap it or touch it become one with it.
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

    /// A write of the range has succeeded.
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
            // One that was cut in two: forgetting a part of it is what law 2 allows.
            self.is_incomplete.store(true, Ordering::Release);
            ranges.pop_last();
        }
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.is_any.load(Ordering::Acquire)
            && self.lock().range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Whether more than the ranges that are known may have been missed (law 2).
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(|poisoned| {
            // The change that panicked may have left a range out (law 2).
            self.is_incomplete.store(true, Ordering::Release);
            poisoned.into_inner()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_record_has_exactly_what_was_added_and_not_removed(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 1_u64..9), 0..60),
        ) {
            let missed = MissedRanges::default();
            let mut model = [false; 80];
            for (is_added, start, bytes) in steps {
                let range = start..start + bytes;
                if is_added {
                    missed.add(range.clone());
                } else {
                    missed.remove(&range);
                }
                model[start as usize..(start + bytes) as usize].fill(is_added);
                for (at, want) in (0_u64..).zip(model) {
                    prop_assert_eq!(missed.overlaps(&(at..at + 1)), want, "{}", at);
                }
                let ranges = missed.lock().clone();
                let mut pairs = ranges.iter().zip(ranges.iter().skip(1));
                prop_assert!(pairs.all(|((_, end), (start, _))| end < start));
            }
        }
    }

    #[test]
    fn the_record_is_bounded_and_says_when_it_is_not_all() {
        let missed = MissedRanges::default();
        for nth in 0..RANGES_MAX as u64 {
            missed.add(nth * 8192..nth * 8192 + 4096);
        }
        assert!(!missed.is_incomplete());
        missed.add(1 << 40..(1 << 40) + 4096);
        assert!(missed.is_incomplete() && missed.lock().len() == RANGES_MAX);
        assert!(missed.overlaps(&(0..4096)));
        missed.remove(&(1024..2048));
        assert!(missed.lock().len() <= RANGES_MAX);
    }
}
