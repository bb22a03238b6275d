//! The parts of two equal ranges that can be shared and are not.
//!
//! 1. A part is in an extent with data of both files; holes of either stay holes.
//! 2. A part whose bytes are stored at one place for both files is shared already. Of an encoded
//!    extent, all bytes are at one place: to refer to another part of it saves nothing.
//! 3. Parts are multiples of a sector, except at the end of the range.

use std::ops::Range;

use crate::place::{DataExtent, Location, Place, Problem, SECTOR_BYTES, Skip};

/// Bytes of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The parts to share, as offsets from the beginning of the range, in order and apart.
    pub(crate) unshared: Vec<Range<u64>>,
    /// Bytes that are shared already, in whole sectors.
    pub(crate) shared_bytes: u64,
}

/// Rounds a length up to sectors.
pub(crate) fn in_sectors(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES)
}

/// Returns the extents with data of a range of a file, in order.
pub(crate) fn extents_of<P: Place>(
    place: &P,
    file: &P::File,
    range: Range<u64>,
) -> Result<Vec<DataExtent>, Problem<P::Error>> {
    let (mut from, mut all) = (range.start, Vec::new());
    while from < range.end {
        let some = place.extents(file, from)?;
        let Some(reached) = some.last().map(DataExtent::end) else { break };
        if reached <= from {
            return Err(Problem::Skip(Skip::Changed));
        }
        all.extend(some.into_iter().filter(|extent| extent.offset < range.end));
        from = reached;
    }
    Ok(all)
}

/// Compares the extents of a source from `source_from` and of a target from `target_from`, for
/// `bytes` bytes.
pub(crate) fn compare(
    source: &[DataExtent],
    source_from: u64,
    target: &[DataExtent],
    target_from: u64,
    bytes: u64,
) -> Parts {
    let mut parts = Parts::default();
    let sources = source.iter().filter_map(|extent| relative(extent, source_from, bytes));
    let targets = target.iter().filter_map(|extent| relative(extent, target_from, bytes));
    let (mut sources, mut targets) = (sources.peekable(), targets.peekable());
    while let (Some((from, source_at)), Some((to, target_at))) = (sources.peek(), targets.peek()) {
        let both = from.start.max(to.start)..from.end.min(to.end);
        let (source_ends, target_ends) = (from.end <= to.end, to.end <= from.end);
        if both.start < both.end {
            let source_at = source_at.plus(both.start - from.start);
            let target_at = target_at.plus(both.start - to.start);
            parts.add(both, source_at, target_at);
        }
        if source_ends {
            sources.next();
        }
        if target_ends {
            targets.next();
        }
    }
    parts
}

/// Returns the part of an extent that is in a range, and where it is stored.
fn relative(extent: &DataExtent, from: u64, bytes: u64) -> Option<(Range<u64>, Location)> {
    let start = extent.offset.max(from);
    let end = extent.end().min(from.saturating_add(bytes));
    let location = extent.location.plus(start.checked_sub(extent.offset)?);
    (start < end).then(|| (start - from..end - from, location))
}

impl Parts {
    fn add(&mut self, range: Range<u64>, source: Location, target: Location) {
        if source == Location::Inline || target == Location::Inline {
            return;
        }
        if source == target && source != Location::Buffered {
            self.shared_bytes += in_sectors(range.end - range.start);
            return;
        }
        match self.unshared.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.unshared.push(range),
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn at(offset: u64, bytes: u64, address: u64) -> DataExtent {
        DataExtent { offset, bytes, location: Location::Stored { address } }
    }

    #[test]
    fn parts_are_where_both_have_data_at_different_places() {
        let source = [at(0, 8192, 1 << 20), at(12288, 8192, 2 << 20)];
        let target = [at(40960, 4096, 1 << 20), at(45056, 12288, 3 << 20)];
        let parts = compare(&source, 0, &target, 40960, 20480);
        assert_eq!(parts.shared_bytes, 4096);
        assert_eq!(parts.unshared, [4096..8192, 12288..16384]);
        // The parts of one range, whatever the borders of extents.
        let target = [at(0, 4096, 5 << 20), at(4096, 4096, 9 << 20), at(8192, 4096, 1)];
        assert_eq!(compare(&source, 0, &target, 0, 8192).unshared, vec![(0..8192)]);
        // The middle of one extent is the beginning of another.
        let parts = compare(&source, 4096, &[at(0, 4096, (1 << 20) + 4096)], 0, 4096);
        assert_eq!((parts.shared_bytes, parts.unshared.len()), (4096, 0));
    }

    #[test]
    fn encoded_extents_are_one_place() {
        let stored = |location| DataExtent { offset: 0, bytes: 8192, location };
        let one = [stored(Location::Encoded { address: 4096 })];
        for offset in [0, 4096] {
            let other = DataExtent { offset, bytes: 4096, ..one[0] };
            assert_eq!(compare(&one, 0, &[other], offset, 4096).shared_bytes, 4096);
            assert_eq!(compare(&[other], offset, &one, 4096, 4096).shared_bytes, 4096);
        }
        let others = [Location::Stored { address: 4096 }, Location::Encoded { address: 8192 }];
        for other in others.map(stored) {
            assert_eq!(compare(&one, 0, &[other], 0, 4096).unshared.len(), 1);
        }
    }

    #[test]
    fn the_end_counts_in_sectors_and_inline_data_is_left_alone() {
        let one = [at(0, 5000, 0)];
        assert_eq!(compare(&one, 0, &one, 0, 5000).shared_bytes, 8192);
        assert_eq!(compare(&one, 0, &[at(0, 5000, 1 << 30)], 0, 5000).unshared, vec![(0..5000)]);
        let inline = [DataExtent { offset: 0, bytes: 4096, location: Location::Inline }];
        assert_eq!(compare(&one, 0, &inline, 0, 4096), Parts::default());
        let buffered = [DataExtent { offset: 0, bytes: 4096, location: Location::Buffered }];
        assert_eq!(compare(&buffered, 0, &buffered, 0, 4096).unshared, vec![(0..4096)]);
    }
}
