//! Which extents of a file are written again.
//!
//! The rules are the kernel's. Extents that follow one another in the file and on disk count as one
//! extent, unless they are compressed.
//!
//! ```text
//! hole, inline, preallocated, dirty                     left
//! compression is requested                              written again
//! of at least the threshold, or as long as an extent    left
//!   becomes (16 MiB; 128 KiB of a compressed one)
//! before an extent that is neither, or directly after   written again
//!   one that is written again
//! any other                                             left
//! ```
//!
//! What is written again and follows one another is a run. A run is cut into parts between extents,
//! so that no part makes an extent shorter than it was. A part of one extent is left, unless it is
//! compressed.
//!
//! Shared extents are left where the rule keeps them shared, and are no neighbours to be joined
//! with then.

use super::RewritePart;
use crate::extent_map::{Mapping, MappingKind};
use crate::overlay::EXTENT_BYTES_MAX;
use crate::writeback::BATCH_BYTES_MAX;
use butternut_format::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use butternut_format::units::SECTOR_BYTES;
use std::ops::Range;

/// A mapping of a file, and whether another file, or another snapshot of the file, refers to its
/// extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExaminedExtent {
    pub mapping: Mapping,
    pub is_shared: bool,
}

/// What is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragmentRule {
    /// Length of an extent that is long enough, in bytes.
    pub threshold: u64,
    /// Every extent is compressed.
    pub compresses: bool,
    /// Shared extents are left alone.
    pub keeps_shared: bool,
}

/// What is to be done in a part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefragmentPlan {
    pub parts: Vec<RewritePart>,
    /// Bytes that are left alone because they are shared.
    pub shared_bytes_left: u64,
}

/// Extents that count as one.
#[derive(Debug)]
struct Group {
    range: Range<u64>,
    /// The longest that such an extent becomes; `None` for what is never written again.
    capacity: Option<u64>,
    is_shared: bool,
}

impl Group {
    fn of(extent: &ExaminedExtent) -> Self {
        let ExaminedExtent { mapping, is_shared } = *extent;
        let capacity = match mapping.kind {
            MappingKind::Regular { encoding, .. } if mapping.bytes <= EXTENT_BYTES_MAX => {
                Some(match encoding.compression {
                    Compression::None => BATCH_BYTES_MAX,
                    Compression::Zlib | Compression::Lzo | Compression::Zstd => {
                        COMPRESSED_BYTES_MAX
                    }
                })
            }
            // A longer one is no extent that a filesystem writes: the number of parts is bounded.
            MappingKind::Regular { .. }
            | MappingKind::Hole
            | MappingKind::Preallocated { .. }
            | MappingKind::Inline { .. }
            | MappingKind::Buffered => None,
        };
        Self { range: mapping.offset..mapping.end(), capacity, is_shared }
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Joins extents that count as one.
fn groups(extents: &[ExaminedExtent]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut last: Option<&ExaminedExtent> = None;
    for extent in extents {
        let is_joined = last.is_some_and(|last| {
            last.is_shared == extent.is_shared
                && extent.mapping.bytes <= EXTENT_BYTES_MAX
                && follows(&last.mapping, &extent.mapping)
        });
        match groups.last_mut().filter(|_| is_joined) {
            Some(group) => group.range.end = extent.mapping.end(),
            None => groups.push(Group::of(extent)),
        }
        last = Some(extent);
    }
    groups
}

/// Whether a mapping follows another one in the file and, uncompressed, on disk.
fn follows(one: &Mapping, next: &Mapping) -> bool {
    let start = |mapping: &Mapping| match mapping.kind {
        MappingKind::Regular { extent, encoding, skip } => {
            let is_plain = encoding.compression == Compression::None;
            is_plain.then(|| extent.logical.0.saturating_add(skip))
        }
        MappingKind::Hole
        | MappingKind::Preallocated { .. }
        | MappingKind::Inline { .. }
        | MappingKind::Buffered => None,
    };
    one.end() == next.offset
        && start(one).is_some_and(|at| start(next) == Some(at.saturating_add(one.bytes)))
}

/// Returns the number of extents with data among mappings that follow one another: those that are
/// contiguous on disk count as one, inline and dirty data as one each.
pub fn count_extents(mappings: &[Mapping]) -> usize {
    let is_data = |mapping: &&Mapping| {
        !matches!(mapping.kind, MappingKind::Hole | MappingKind::Preallocated { .. })
    };
    let joined = mappings.windows(2).filter(|pair| follows(&pair[0], &pair[1])).count();
    mappings.iter().filter(is_data).count() - joined
}

/// Returns where the last of some extents begins that follow one another, with those that count as
/// one extent with it; 0 if there are none.
pub fn start_of_last_extent(mappings: &[Mapping]) -> u64 {
    let mut start = mappings.last().map_or(0, |last| last.offset);
    for pair in mappings.windows(2).rev().take_while(|pair| follows(&pair[0], &pair[1])) {
        start = pair[0].offset;
    }
    start
}

impl DefragmentRule {
    /// Returns what is to be done in `range` with extents of a file that follow one another, and
    /// the end of what is written again. `reached` is that end of the extents before; the last
    /// extent is only a neighbour if it begins at or after the end of `range`.
    pub fn plan(
        &self,
        extents: &[ExaminedExtent],
        range: &Range<u64>,
        reached: u64,
    ) -> (DefragmentPlan, u64) {
        let groups = groups(extents);
        let mut plan = DefragmentPlan::default();
        if self.keeps_shared {
            let (all, _) = self.select(&groups, range, reached, false);
            let shared = groups.iter().zip(all).filter(|(group, is)| *is && group.is_shared);
            let bytes = shared.map(|(group, _)| overlap(&group.range, range));
            plan.shared_bytes_left = bytes.map(|part| part.end - part.start).sum();
        }
        let (selected, reached) = self.select(&groups, range, reached, self.keeps_shared);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (group, _) in groups.iter().zip(selected).filter(|(_, is)| *is) {
            let mut rest = overlap(&group.range, range);
            if let Some(last) = parts.last_mut().filter(|last| last.end == rest.start) {
                let space = last.start.saturating_add(BATCH_BYTES_MAX) - last.end;
                let is_whole = self.compresses || rest.end - rest.start <= space;
                last.end += if is_whole { space.min(rest.end - rest.start) } else { 0 };
                rest.start = last.end;
            }
            while !rest.is_empty() {
                let end = rest.end.min(rest.start.saturating_add(BATCH_BYTES_MAX));
                parts.push(rest.start..end);
                rest.start = end;
            }
        }
        let parts = parts.into_iter().map(|part| part_of(part, extents));
        plan.parts = parts.filter(|part| self.compresses || part.count > 1).collect();
        (plan, reached)
    }

    /// Returns for each group whether it is written again, and the end of the last one that is.
    fn select(
        &self,
        groups: &[Group],
        range: &Range<u64>,
        mut reached: u64,
        keeps_shared: bool,
    ) -> (Vec<bool>, u64) {
        let is_short = |group: &Group| {
            let short = |capacity| group.bytes() < self.threshold.min(capacity);
            group.capacity.is_some_and(short) && !(keeps_shared && group.is_shared)
        };
        let mut selected = vec![false; groups.len()];
        for (number, (group, selected)) in groups.iter().zip(&mut selected).enumerate() {
            if overlap(&group.range, range).is_empty() {
                continue;
            }
            let is_free = group.capacity.is_some() && !(keeps_shared && group.is_shared);
            let next = groups.get(number + 1);
            let has_neighbour = || next.is_some_and(is_short) || reached == group.range.start;
            *selected = if self.compresses { is_free } else { is_short(group) && has_neighbour() };
            if *selected {
                reached = group.range.end;
            }
        }
        (selected, reached)
    }
}

/// Returns the part of a range of blocks.
fn part_of(range: Range<u64>, extents: &[ExaminedExtent]) -> RewritePart {
    debug_assert!(range.start.is_multiple_of(SECTOR_BYTES), "extents begin at blocks");
    let first = extents.partition_point(|extent| extent.mapping.end() <= range.start);
    let rest = extents.iter().skip(first);
    let inside = rest.take_while(|extent| extent.mapping.offset < range.end);
    let cut = |extent: &ExaminedExtent| ExaminedExtent {
        mapping: extent.mapping.within(&range),
        ..*extent
    };
    let extents: Vec<ExaminedExtent> = inside.map(cut).collect();
    let mappings: Vec<Mapping> = extents.iter().map(|extent| extent.mapping).collect();
    RewritePart { range, count: count_extents(&mappings), extents }
}

/// The part of a range that is inside another one, perhaps empty.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent_map::Encoding;
    use butternut_format::file_extent::DiskExtent;
    use butternut_format::units::{Generation, Logical};

    const BLOCK: u64 = SECTOR_BYTES;
    const KIB_256: DefragmentRule =
        DefragmentRule { threshold: 256 << 10, compresses: false, keeps_shared: true };
    const ALL: Range<u64> = 0..u64::MAX;

    /// Extents of so many blocks, one after the other. An address of 0 is a hole.
    fn file(extents: &[(u64, u64, Compression, bool)]) -> Vec<ExaminedExtent> {
        let mut offset = 0;
        let extent = |&(blocks, at, compression, is_shared): &(u64, u64, Compression, bool)| {
            let bytes = blocks * BLOCK;
            let extent = DiskExtent { logical: Logical(at * BLOCK), bytes };
            let encoding = Encoding { compression, ram_bytes: bytes, generation: Generation(7) };
            let kind = MappingKind::Regular { extent, encoding, skip: 0 };
            let kind = if at == 0 { MappingKind::Hole } else { kind };
            let mapping = Mapping { offset, bytes, kind };
            offset += bytes;
            ExaminedExtent { mapping, is_shared }
        };
        extents.iter().map(extent).collect()
    }

    fn plain(blocks: u64, at: u64) -> (u64, u64, Compression, bool) {
        (blocks, at, Compression::None, false)
    }

    /// The ranges that are written again, in blocks.
    fn ranges(rule: DefragmentRule, extents: &[ExaminedExtent]) -> Vec<(u64, u64)> {
        let (plan, _) = rule.plan(extents, &ALL, u64::MAX);
        let parts = plan.parts.iter();
        parts.map(|part| (part.range.start / BLOCK, part.range.end / BLOCK)).collect()
    }

    #[test]
    fn only_short_extents_with_a_neighbour_are_written_again() {
        let lone = file(&[plain(3, 100), plain(5, 0), plain(3, 200)]);
        assert!(ranges(KIB_256, &lone).is_empty());
        let two = file(&[plain(3, 100), plain(3, 200), plain(5, 0), plain(1, 300)]);
        assert_eq!(ranges(KIB_256, &two), [(0, 6)]);
        let full = file(&[plain(64, 100), plain(3, 300), plain(64, 400), plain(63, 500)]);
        assert!(ranges(KIB_256, &full).is_empty());
    }

    #[test]
    fn contiguous_extents_count_as_one() {
        let joined = file(&[plain(2, 100), plain(2, 102), plain(2, 104)]);
        assert!(ranges(KIB_256, &joined).is_empty());
        let long = file(&[plain(32, 100), plain(32, 132), plain(2, 300), plain(2, 400)]);
        assert_eq!(ranges(KIB_256, &long), [(64, 68)]);
        let mappings: Vec<Mapping> = long.iter().map(|extent| extent.mapping).collect();
        assert_eq!(count_extents(&mappings), 3);
    }

    #[test]
    fn full_compressed_extents_are_left_unless_compression_is_requested() {
        let compressed = |blocks, at| (blocks, at, Compression::Zstd, false);
        let full = file(&[compressed(32, 100), compressed(32, 200), compressed(4, 300)]);
        assert!(ranges(KIB_256, &full).is_empty());
        let short = file(&[compressed(4, 100), compressed(4, 101)]);
        assert_eq!(ranges(KIB_256, &short), [(0, 8)]);
        let all = DefragmentRule { compresses: true, ..KIB_256 };
        assert_eq!(ranges(all, &full), [(0, 68)]);
    }

    #[test]
    fn shared_extents_are_left_and_counted_or_written_again() {
        let shared = |blocks, at| (blocks, at, Compression::None, true);
        let mixed = file(&[plain(1, 100), shared(2, 200), plain(1, 300), plain(1, 400)]);
        let (plan, _) = KIB_256.plan(&mixed, &ALL, u64::MAX);
        assert_eq!(plan.shared_bytes_left, 2 * BLOCK);
        assert_eq!(ranges(KIB_256, &mixed), [(3, 5)]);
        let breaks = DefragmentRule { keeps_shared: false, ..KIB_256 };
        assert_eq!(ranges(breaks, &mixed), [(0, 5)]);
        assert_eq!(breaks.plan(&mixed, &ALL, u64::MAX).0.shared_bytes_left, 0);
    }

    #[test]
    fn a_range_cuts_extents_and_parts_are_bounded() {
        let two = file(&[plain(8, 100), plain(8, 300)]);
        let (plan, reached) = KIB_256.plan(&two, &(4 * BLOCK..12 * BLOCK), u64::MAX);
        assert_eq!(plan.parts.len(), 1);
        assert_eq!(plan.parts[0].range, 4 * BLOCK..12 * BLOCK);
        assert_eq!((plan.parts[0].count, reached), (2, 16 * BLOCK));
        let many: Vec<_> = (1..=9000).map(|number| plain(1, 2 * number)).collect();
        let (plan, _) = KIB_256.plan(&file(&many), &ALL, u64::MAX);
        let bytes = |part: &RewritePart| part.range.end - part.range.start;
        assert!(plan.parts.iter().all(|part| bytes(part) <= BATCH_BYTES_MAX));
        assert_eq!(plan.parts.iter().map(bytes).sum::<u64>(), 9000 * BLOCK);
    }

    #[test]
    fn parts_end_between_extents() {
        let mib = 256;
        let rule = DefragmentRule { threshold: 32 << 20, ..KIB_256 };
        let long = file(&[plain(7 * mib, 1), plain(8 * mib, 9999), plain(3 * mib, 1)]);
        assert_eq!(ranges(rule, &long), [(0, 15 * mib)]);
        let longer = file(&[plain(17 * mib, 1), plain(mib, 9999), plain(mib, 1)]);
        assert_eq!(ranges(rule, &longer), [(17 * mib, 19 * mib)]);
        let all = DefragmentRule { compresses: true, ..rule };
        assert_eq!(ranges(all, &longer), [(0, 16 * mib), (16 * mib, 19 * mib)]);
    }

    #[test]
    fn an_extent_of_any_length_makes_few_parts() {
        let all = DefragmentRule { compresses: true, ..KIB_256 };
        assert!(ranges(all, &file(&[plain(1 << 48, 1), plain(1, 9)])).len() == 1);
    }

    #[test]
    fn what_was_reached_before_is_a_neighbour() {
        let lone = file(&[plain(3, 100), plain(70, 200)]);
        assert_eq!(KIB_256.plan(&lone, &ALL, 0).1, 3 * BLOCK);
        assert_eq!(KIB_256.plan(&lone, &ALL, u64::MAX).1, u64::MAX);
    }

    #[test]
    fn an_extent_of_any_length_that_follows_a_short_one_makes_few_parts() {
        let all = DefragmentRule { compresses: true, ..KIB_256 };
        assert!(ranges(all, &file(&[plain(1, 1), plain(1 << 24, 2)])).len() <= 1);
        // Contiguous extents of an ordinary length still count as one.
        let two = file(&[plain(1 << 15, 1), plain(1 << 15, 1 + (1 << 15))]);
        assert_eq!(ranges(all, &two).len(), 16);
    }
}
