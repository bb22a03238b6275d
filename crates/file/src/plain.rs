//! [`PlainMap`]: where the sectors of one region of a file are on disk as they are, in few bytes.
//!
//! Direct reads ask nothing else of the tree, and a file that was written over at random has a run
//! for each block: a run here takes a fifth of what a mapping does.
//!
//! What is not in a map (holes, packed and inline extents, what is set aside) is for the mapper.

use crate::error::FileError;
use crate::map::{ItemMappings, Mapping, MappingKind};
use crate::source::REGION_BYTES;
use crate::view::FileView;
use butternut_format::file_extent::Compression;
use butternut_format::units::{Logical, SECTOR_BYTES};

/// Contiguous sectors of a region that are contiguous on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainRun {
    /// Sector of the region.
    first: u32,
    sectors: u32,
    logical: Logical,
}

/// The runs of one region, in file order.
pub(crate) type PlainMap = [PlainRun];

/// Reads the map of region `number` from the tree.
pub(crate) fn load(view: &FileView, number: u64) -> Result<Vec<PlainRun>, FileError> {
    let start = number * REGION_BYTES;
    let mut runs: Vec<PlainRun> = Vec::new();
    let _still = view.still_items();
    for mapping in ItemMappings::near(view, start..start.saturating_add(REGION_BYTES)) {
        let Some(run) = plain(&mapping?, start) else { continue };
        match runs.last_mut() {
            Some(last) if last.is_followed_by(&run) => last.sectors += run.sectors,
            _ => runs.push(run),
        }
    }
    Ok(runs)
}

/// Where byte `offset` of the file is, in the map of its region, and how many bytes are together
/// there.
pub(crate) fn find(map: &PlainMap, offset: u64) -> Option<(Logical, u64)> {
    let sector = u32::try_from(offset % REGION_BYTES / SECTOR_BYTES).ok()?;
    let at = map.partition_point(|run| run.first + run.sectors <= sector);
    let run = map.get(at).filter(|run| run.first <= sector)?;
    let skip = u64::from(sector - run.first) * SECTOR_BYTES;
    Some((Logical(run.logical.0 + skip), u64::from(run.sectors) * SECTOR_BYTES - skip))
}

/// The part of a mapping that is whole sectors as they are.
fn plain(mapping: &Mapping, start: u64) -> Option<PlainRun> {
    let MappingKind::Regular { extent, packing, skip } = mapping.kind else { return None };
    if packing.compression != Compression::None {
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
    fn a_byte_is_found_in_its_run_and_nowhere_else() {
        let run = |first, sectors, logical| PlainRun { first, sectors, logical: Logical(logical) };
        let map = [run(0, 2, 1 << 20), run(2, 1, 5 << 20), run(10, 4, 9 << 20)];
        assert_eq!(find(&map, 4096), Some((Logical((1 << 20) + 4096), 4096)));
        assert_eq!(find(&map, REGION_BYTES + 8192), Some((Logical(5 << 20), 4096)));
        assert_eq!(find(&map, 3 * 4096), None);
        assert_eq!(find(&map, 11 * 4096), Some((Logical((9 << 20) + 4096), 3 * 4096)));
        assert_eq!(find(&map, 14 * 4096), None);
    }
}
