//! [`Map`]: which ranges of a sparse file the data of its member is for.
//!
//! 1. Ranges are in order, do not overlap, are within the file, and have as many bytes as the
//!    member.
//! 2. A map has at most [`RANGES_MAX`] ranges, so that its memory is bounded.

use std::ops::Range;

/// Maximum number of ranges of a file: of 16 bytes each.
pub(super) const RANGES_MAX: usize = 4 << 20;

/// The data of a file with holes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) size: u64,
    pub(super) ranges: Vec<Range<u64>>,
}

impl Map {
    /// Checks a map: `numbers` are offsets and lengths in turn, `stored` is the number of bytes
    /// that the member has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(size: u64, numbers: &[u64], stored: u64) -> Result<Self, &'static str> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("its sparse map has an offset without a length");
        }
        if pairs.len() > RANGES_MAX {
            return Err("its sparse map has more than 4194304 ranges");
        }
        let (mut ranges, mut end, mut bytes) = (Vec::new(), 0, 0_u64);
        for [start, length] in pairs.iter().copied() {
            let range = start..start.checked_add(length).ok_or("its sparse map overflows")?;
            if start < end || range.end > size {
                return Err("its sparse map has ranges that overlap or are behind its end");
            }
            end = range.end;
            bytes += length;
            if length > 0 {
                ranges.push(range);
            }
        }
        if bytes == stored {
            Ok(Self { size, ranges })
        } else {
            Err("its sparse map is for another number of bytes than it has")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_of_the_data_are_taken() {
        let map = Map::check(100, &[0, 5, 10, 5, 100, 0], 10);
        assert_eq!(map, Ok(Map { size: 100, ranges: vec![0..5, 10..15] }));
        for (size, numbers, stored) in [
            (100, &[0, 5, 10][..], 5),
            (100, &[0, 5, 4, 5], 10),
            (100, &[10, 5, 0, 5], 10),
            (100, &[96, 5], 5),
            (100, &[0, 5], 6),
            (u64::MAX, &[u64::MAX, 5], 5),
        ] {
            assert!(Map::check(size, numbers, stored).is_err(), "{numbers:?}");
        }
    }
}
