//! [`DataReservation`]: disk space that is allocated for dirty data.
//!
//! Laws:
//!
//! 1. Space is taken only after it was added, and once; the rest can be freed.
//! 2. Space is taken in the order in which it was added. Runs are never joined: two that are
//!    adjacent may lie in different block groups, which one extent cannot span.

use butternut_format::units::DiskRange;
use std::collections::VecDeque;

/// Ranges of logical space, in the order in which they are to be used.
#[derive(Debug, Default)]
pub(crate) struct DataReservation {
    runs: VecDeque<DiskRange>,
    bytes: u64,
}

impl DataReservation {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, run: DiskRange) {
        self.bytes += run.bytes();
        self.runs.push_back(run);
    }

    /// Takes the next run, of at most `bytes_max` bytes.
    pub(crate) fn take(&mut self, bytes_max: u64) -> Option<DiskRange> {
        let first = self.runs.front_mut()?;
        let taken = first.take_front(bytes_max);
        if first.is_empty() {
            self.runs.pop_front();
        }
        self.bytes -= taken.bytes();
        Some(taken)
    }

    /// Takes exactly `bytes` contiguous bytes, from the first run that has as many.
    pub(crate) fn take_whole(&mut self, bytes: u64) -> Option<DiskRange> {
        let index = self.runs.iter().position(|run| run.bytes() >= bytes)?;
        let run = self.runs.get_mut(index)?;
        let taken = run.take_front(bytes);
        if run.is_empty() {
            self.runs.remove(index);
        }
        self.bytes -= bytes;
        Some(taken)
    }

    /// Takes what was added last, and leaves `bytes` bytes.
    pub(crate) fn truncate(&mut self, bytes: u64) -> Vec<DiskRange> {
        let mut taken = Vec::new();
        while self.bytes > bytes {
            let Some(last) = self.runs.back_mut() else { break };
            let surplus = last.take_back(self.bytes - bytes);
            self.bytes -= surplus.bytes();
            taken.push(surplus);
            if last.is_empty() {
                self.runs.pop_back();
            }
        }
        taken
    }

    /// Takes everything that is left.
    pub(crate) fn empty(&mut self) -> impl Iterator<Item = DiskRange> {
        self.bytes = 0;
        std::mem::take(&mut self.runs).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> DiskRange {
        DiskRange::of(start..end).expect("in order")
    }

    #[test]
    fn space_is_taken_in_the_order_it_was_added_and_the_rest_is_returned() {
        let mut reservation = DataReservation::default();
        reservation.add(run(100, 110));
        reservation.add(run(110, 120));
        reservation.add(run(50, 60));
        assert_eq!(reservation.bytes(), 30);
        assert_eq!(reservation.take(7), Some(run(100, 107)));
        assert_eq!(reservation.take(15), Some(run(107, 110)));
        assert_eq!(reservation.take(15), Some(run(110, 120)));
        assert_eq!(reservation.take(4), Some(run(50, 54)));
        assert_eq!(reservation.bytes(), 6);
        assert!(reservation.empty().eq(std::iter::once(run(54, 60))));
        assert_eq!((reservation.bytes(), reservation.take(1)), (0, None));
    }

    #[test]
    fn space_that_was_added_last_is_returned_first() {
        let mut reservation = DataReservation::default();
        reservation.add(run(0, 10));
        reservation.add(run(20, 30));
        assert_eq!(reservation.truncate(20), []);
        assert_eq!(reservation.truncate(6), [run(20, 30), run(6, 10)]);
        assert_eq!((reservation.bytes(), reservation.take(100)), (6, Some(run(0, 6))));
    }

    #[test]
    fn contiguous_space_is_taken_from_the_first_run_that_is_long_enough() {
        let mut reservation = DataReservation::default();
        reservation.add(run(0, 4));
        reservation.add(run(10, 20));
        assert_eq!(reservation.take_whole(11), None);
        assert_eq!(reservation.take_whole(6), Some(run(10, 16)));
        assert_eq!(reservation.take_whole(4), Some(run(0, 4)));
        assert_eq!(reservation.take_whole(4), Some(run(16, 20)));
        assert_eq!((reservation.bytes(), reservation.take(1)), (0, None));
    }
}
