//! [`Room`]: disk space that is held for data which is not written yet.
//!
//! Laws:
//!
//! 1. What is taken was added, once; what is left can be given back.
//! 2. It is handed out in the order it came, in runs as long as they came: two that touch may be
//!    of two block groups, in which no extent can be.

use std::collections::VecDeque;
use std::ops::Range;

/// Ranges of logical space, in the order in which they are to be used.
#[derive(Debug, Default)]
pub(crate) struct Room {
    runs: VecDeque<Range<u64>>,
    bytes: u64,
}

impl Room {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, run: Range<u64>) {
        self.bytes += run.end - run.start;
        self.runs.push_back(run);
    }

    /// The next run, of at most `bytes_max` bytes.
    pub(crate) fn take(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        let first = self.runs.front_mut()?;
        let end = first.end.min(first.start.saturating_add(bytes_max));
        let taken = first.start..end;
        first.start = end;
        if first.is_empty() {
            self.runs.pop_front();
        }
        self.bytes -= taken.end - taken.start;
        Some(taken)
    }

    /// Exactly `bytes` bytes in one run, of the first that has as many.
    pub(crate) fn take_whole(&mut self, bytes: u64) -> Option<Range<u64>> {
        let index = self.runs.iter().position(|run| run.end - run.start >= bytes)?;
        let run = self.runs.get_mut(index)?;
        let taken = run.start..run.start + bytes;
        run.start = taken.end;
        if run.is_empty() {
            self.runs.remove(index);
        }
        self.bytes -= bytes;
        Some(taken)
    }

    /// Everything that is left.
    pub(crate) fn empty(&mut self) -> impl Iterator<Item = Range<u64>> {
        self.bytes = 0;
        std::mem::take(&mut self.runs).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_in_the_order_it_came_and_what_is_left_comes_back() {
        let mut room = Room::default();
        room.add(100..110);
        room.add(110..120);
        room.add(50..60);
        assert_eq!(room.bytes(), 30);
        assert_eq!(room.take(7), Some(100..107));
        assert_eq!(room.take(15), Some(107..110));
        assert_eq!(room.take(15), Some(110..120));
        assert_eq!(room.take(4), Some(50..54));
        assert_eq!(room.bytes(), 6);
        assert!(room.empty().eq(std::iter::once(54..60)));
        assert_eq!((room.bytes(), room.take(1)), (0, None));
    }

    #[test]
    fn a_whole_run_comes_of_the_first_that_is_long_enough() {
        let mut room = Room::default();
        room.add(0..4);
        room.add(10..20);
        assert_eq!(room.take_whole(11), None);
        assert_eq!(room.take_whole(6), Some(10..16));
        assert_eq!(room.take_whole(4), Some(0..4));
        assert_eq!(room.take_whole(4), Some(16..20));
        assert_eq!((room.bytes(), room.take(1)), (0, None));
    }
}
