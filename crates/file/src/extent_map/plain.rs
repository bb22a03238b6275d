//! [`PlainMap`]: where the uncompressed extents of one region of a file are on disk, in few bytes.
//!
//! Direct reads need nothing else of the tree. A file that was overwritten at random has one run
//! for each block, and a run takes a fifth of the memory of a mapping.
//!
//! Holes, compressed, inline and preallocated extents are not in this map, nor anything behind an
//! unreadable leaf; [`crate::extent_map`] finds them.

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::extent_map::{ItemMappings, Mapping, MappingKind};
use crate::units::REGION_BYTES;
use butternut_format::file_extent::Compression;
use butternut_format::units::{Logical, SECTOR_BYTES};

/// Contiguous sectors of a region that are contiguous on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainRun {
    /// First sector, counted from the start of the region.
    first: u32,
    sectors: u32,
    logical: Logical,
}

/// The runs of one region, in file order.
pub(crate) type PlainMap = [PlainRun];

/// Reads the map of region `number` from the tree, up to an unreadable leaf.
pub(crate) fn load(view: &FileView, number: u64) -> Result<Vec<PlainRun>, FileError> {
    let start = number * REGION_BYTES;
    let mut runs: Vec<PlainRun> = Vec::new();
    let _items = view.lock_items_shared();
    for mapping in ItemMappings::of_short_range(view, start..start.saturating_add(REGION_BYTES)) {
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(error) if error.is_unreadable_block() => break,
            Err(error) => return Err(error),
        };
        let Some(run) = plain(&mapping, start) else { continue };
        match runs.last_mut() {
            Some(last) if last.is_followed_by(&run) => last.sectors += run.sectors,
            _ => runs.push(run),
        }
    }
    Ok(runs)
}

/// Returns where byte `offset` of the file is, and how many bytes from there on are contiguous,
/// according to the map of its region.
pub(crate) fn find(map: &PlainMap, offset: u64) -> Option<(Logical, u64)> {
    let sector = u32::try_from(offset % REGION_BYTES / SECTOR_BYTES).ok()?;
    let at = map.partition_point(|run| run.first + run.sectors <= sector);
    let run = map.get(at).filter(|run| run.first <= sector)?;
    let skip = u64::from(sector - run.first) * SECTOR_BYTES;
    Some((Logical(run.logical.0 + skip), u64::from(run.sectors) * SECTOR_BYTES - skip))
}

/// The run of a mapping, if it is uncompressed whole sectors.
fn plain(mapping: &Mapping, start: u64) -> Option<PlainRun> {
    let MappingKind::Regular { extent, encoding, skip } = mapping.kind else { return None };
    if encoding.compression != Compression::None {
        return None;
    }
    let logical = extent.logical.checked_add(skip)?;
    let offset = mapping.offset.checked_sub(start)?;
    if !logical.0.is_multiple_of(SECTOR_BYTES) || !offset.is_multiple_of(SECTOR_BYTES) {
        return None;
    }
    let first = u32::try_from(offset / SECTOR_BYTES).ok()?;
    // The last sector of a file is whole on disk.
    let sectors = u32::try_from(mapping.bytes.div_ceil(SECTOR_BYTES)).ok()?;
    (sectors > 0).then_some(PlainRun { first, sectors, logical })
}

impl PlainRun {
    fn is_followed_by(&self, next: &Self) -> bool {
        let bytes = u64::from(self.sectors) * SECTOR_BYTES;
        self.first + self.sectors == next.first && self.logical.0 + bytes == next.logical.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_run_of_a_byte_and_nothing_in_a_gap() {
        let run = |first, sectors, logical| PlainRun { first, sectors, logical: Logical(logical) };
        let map = [run(0, 2, 1 << 20), run(2, 1, 5 << 20), run(10, 4, 9 << 20)];
        assert_eq!(find(&map, 4096), Some((Logical((1 << 20) + 4096), 4096)));
        assert_eq!(find(&map, REGION_BYTES + 8192), Some((Logical(5 << 20), 4096)));
        assert_eq!(find(&map, 3 * 4096), None);
        assert_eq!(find(&map, 11 * 4096), Some((Logical((9 << 20) + 4096), 3 * 4096)));
        assert_eq!(find(&map, 14 * 4096), None);
    }
}
