//! [`LookupCaches`]: caches of extent maps, checksums and decompressed extents. [`crate::source`]
//! states their laws.

use crate::bounded_cache::BoundedCache;
use crate::checksum_cache::ChecksumCache;
use crate::error::FileError;
use crate::extent_map::plain::{self, PlainMap};
use crate::extent_map::view::FileView;
use crate::extent_map::{ItemMappings, Mapping, MappingKind};
use crate::units::REGION_BYTES;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;
use std::sync::Arc;

/// The mappings of one region of a file, without gaps. Extents that are contiguous on disk are
/// joined.
pub(crate) type Region = [Mapping];

/// Key of a region: tree, inode, number of the region in the file, and version of the file's items.
pub(crate) type RegionKey = (u64, u64, u64, u64);

/// Key of a compressed extent: logical address and generation.
pub(crate) type CompressedKey = (Logical, u64);

/// Caches of the lookups of all files of a volume.
#[derive(Debug)]
pub(crate) struct LookupCaches {
    pub(crate) checksums: ChecksumCache,
    pub(crate) regions: BoundedCache<RegionKey, Region>,
    pub(crate) plain_maps: BoundedCache<RegionKey, PlainMap>,
    pub(crate) decompressed: BoundedCache<CompressedKey, Vec<u8>>,
}

impl LookupCaches {
    /// Returns the map of the uncompressed extents of region `number`, up to an unreadable leaf.
    /// Sets `is_cached` to false if the tree had to be read.
    pub(crate) fn plain_map(
        &self,
        view: &FileView,
        number: u64,
        is_cached: &mut bool,
    ) -> Result<Arc<PlainMap>, FileError> {
        let key = region_key(view, number);
        if let Some(map) = self.plain_maps.find(&key) {
            return Ok(map);
        }
        *is_cached = false;
        let (map, failure) = plain::load(view, number)?;
        let map: Arc<PlainMap> = Arc::from(map);
        if failure.is_none() {
            let bytes = size_of_val(&*map) + size_of::<RegionKey>() * 4;
            self.plain_maps.insert(key, Arc::clone(&map), bytes);
        }
        Ok(map)
    }

    /// As [`Self::plain_map`], if it is in memory.
    pub(crate) fn cached_plain_map(&self, view: &FileView, number: u64) -> Option<Arc<PlainMap>> {
        self.plain_maps.find(&region_key(view, number))
    }

    /// Returns the mappings of the region of the file that contains byte `offset`, as the tree has
    /// them. If a leaf cannot be read, the region has a part of them that contains `offset`, and is
    /// not cached: what is missing is not a hole.
    pub(crate) fn region(&self, view: &FileView, offset: u64) -> Result<Arc<Region>, FileError> {
        let number = offset / REGION_BYTES;
        let key = region_key(view, number);
        if let Some(region) = self.regions.find(&key) {
            return Ok(region);
        }
        let start = number * REGION_BYTES;
        let end = start.saturating_add(REGION_BYTES);
        let _items = view.lock_items_shared();
        let (region, failure) = load_region(view, start..end)?;
        if failure.is_none() {
            let bytes = region.len() * size_of::<Mapping>() + size_of::<RegionKey>() * 4;
            self.regions.insert(key, Arc::clone(&region), bytes);
            return Ok(region);
        }
        if mapping_at(&region, offset).is_some() {
            return Ok(region);
        }
        // The leaf that cannot be read may be before `offset`.
        match load_region(view, offset - offset % SECTOR_BYTES..end)? {
            (region, Some(failure)) if mapping_at(&region, offset).is_none() => Err(failure),
            (region, _) => Ok(region),
        }
    }
}

/// Reads the mappings of a range, up to an unreadable leaf.
fn load_region(
    view: &FileView,
    range: Range<u64>,
) -> Result<(Arc<Region>, Option<FileError>), FileError> {
    let mut region: Vec<Mapping> = Vec::new();
    for mapping in ItemMappings::of_short_range(view, range) {
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(error) if error.is_unreadable_block() => {
                return Ok((Arc::from(region), Some(error)));
            }
            Err(error) => return Err(error),
        };
        if !region.last_mut().is_some_and(|last| last.absorb(&mapping)) {
            region.push(mapping);
        }
    }
    Ok((Arc::from(region), None))
}

fn region_key(view: &FileView, number: u64) -> RegionKey {
    (view.tree().id().0, view.ino().0, number, view.items_version())
}

impl Mapping {
    /// Extends the mapping by `next`, if that is contiguous with it. Returns whether it did.
    fn absorb(&mut self, next: &Self) -> bool {
        match (&mut self.kind, &next.kind) {
            (MappingKind::Hole, MappingKind::Hole) => {}
            (
                MappingKind::Regular { extent, encoding, skip },
                MappingKind::Regular { extent: follower, encoding: its_encoding, skip: its_skip },
            ) => {
                // Only a run of an uncompressed extent lies inside the extent on disk.
                let is_plain = encoding.compression == Compression::None
                    && its_encoding.compression == Compression::None;
                if !is_plain {
                    return false;
                }
                let (start, end) =
                    (extent.logical.0 + *skip, extent.logical.0 + *skip + self.bytes);
                if end != follower.logical.0 + its_skip {
                    return false;
                }
                *extent = DiskExtent { logical: Logical(start), bytes: self.bytes + next.bytes };
                *skip = 0;
            }
            _ => return false,
        }
        self.bytes += next.bytes;
        true
    }
}

/// The mapping of a region that contains byte `offset`.
pub(crate) fn mapping_at(region: &Region, offset: u64) -> Option<&Mapping> {
    let index = region.partition_point(|mapping| mapping.end() <= offset);
    region.get(index).filter(|mapping| mapping.offset <= offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent_map::Encoding;
    use butternut_format::units::Generation;

    #[test]
    fn compressed_extents_at_the_end_of_the_address_space_are_not_joined() {
        let encoding = Encoding {
            compression: Compression::Zlib,
            ram_bytes: 128 << 10,
            generation: Generation(1),
        };
        let extent = DiskExtent { logical: Logical(u64::MAX - 8191), bytes: SECTOR_BYTES };
        let kind = MappingKind::Regular { extent, encoding, skip: 0 };
        let mut mapping = Mapping { offset: 0, bytes: 128 << 10, kind };
        assert!(!mapping.absorb(&Mapping { offset: 128 << 10, ..mapping }));
    }
}
