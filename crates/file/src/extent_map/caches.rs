//! [`LookupCaches`]: caches of extent maps, checksums and decompressed extents. [`crate::source`]
//! states their laws.

use crate::bounded_cache::BoundedCache;
use crate::checksum_cache::ChecksumCache;
use crate::error::FileError;
use crate::extent_map::plain::{self, PlainMap};
use crate::extent_map::view::FileView;
use crate::extent_map::{ItemMappings, Mapping, MappingKind};
use crate::units::REGION_BYTES;
use crate::wait::Lookup;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;
use std::sync::Arc;

/// The mappings of one region of a file, in file order. Extents that are contiguous on disk are
/// joined.
#[derive(Debug)]
pub(crate) struct Region {
    mappings: Vec<Mapping>,
    /// No leaf was unreadable, so there are no gaps. In another region a gap is no hole: what is
    /// there is not known.
    is_complete: bool,
}

/// Key of a region: tree, inode, number of the region in the file, and version of the file's items.
pub(crate) type RegionKey = (u64, u64, u64, u64);

/// Key of a compressed extent: logical address and generation.
pub(crate) type CompressedKey = (Logical, u64);

/// Key of a block of hashes of fs-verity: tree, inode, offset in the tree of hashes.
pub(crate) type VerityKey = (u64, u64, u64);

/// Caches of the lookups of all files of a volume.
#[derive(Debug)]
pub(crate) struct LookupCaches {
    pub(crate) checksums: ChecksumCache,
    pub(crate) regions: BoundedCache<RegionKey, Region>,
    pub(crate) plain_maps: BoundedCache<RegionKey, PlainMap>,
    pub(crate) decompressed: BoundedCache<CompressedKey, Vec<u8>>,
    pub(crate) verity_blocks: BoundedCache<VerityKey, [u8]>,
}

impl LookupCaches {
    /// Returns the map of the uncompressed extents of region `number`, up to an unreadable leaf;
    /// `None` where it is not in memory and `lookup` must not read the tree.
    pub(crate) fn plain_map(
        &self,
        view: &FileView,
        number: u64,
        lookup: &mut Lookup,
    ) -> Result<Option<Arc<PlainMap>>, FileError> {
        let key = region_key(view, number);
        if let Some(map) = self.plain_maps.find(&key) {
            return Ok(Some(map));
        }
        if !lookup.miss() {
            return Ok(None);
        }
        // Runs that are missing are looked up in the regions, also those behind an unreadable leaf.
        let map: Arc<PlainMap> = Arc::from(plain::load(view, number)?);
        let bytes = size_of_val(&*map) + size_of::<RegionKey>() * 4;
        self.plain_maps.insert(key, Arc::clone(&map), bytes);
        Ok(Some(map))
    }

    /// Returns the mappings of the region of the file that contains byte `offset`, as the tree has
    /// them. If a leaf cannot be read, the region has those that were read and that contain
    /// `offset`. They are cached all the same: lookups beside the leaf do not read it again.
    pub(crate) fn region(&self, view: &FileView, offset: u64) -> Result<Arc<Region>, FileError> {
        let number = offset / REGION_BYTES;
        let key = region_key(view, number);
        let cached = self.regions.find(&key);
        if let Some(region) = &cached
            && (region.is_complete || region.at(offset).is_some())
        {
            return Ok(Arc::clone(region));
        }
        let start = number * REGION_BYTES;
        let end = start.saturating_add(REGION_BYTES);
        let _items = view.lock_items_shared();
        let mut region = match &cached {
            Some(known) => Region { mappings: known.mappings.clone(), ..**known },
            None => load_region(view, start..end)?.0,
        };
        if !region.is_complete && region.at(offset).is_none() {
            // The leaf that cannot be read may be before `offset`.
            let (rest, failure) = load_region(view, offset - offset % SECTOR_BYTES..end)?;
            if rest.at(offset).is_none() {
                return failure.map_or_else(|| Ok(Arc::new(rest)), Err);
            }
            region.insert(rest);
        }
        let region = Arc::new(region);
        if cached.is_some() {
            // The cache keeps what it has.
            self.regions.forget(&key);
        }
        let bytes = region.mappings.len() * size_of::<Mapping>() + size_of::<RegionKey>() * 4;
        self.regions.insert(key, Arc::clone(&region), bytes);
        Ok(region)
    }
}

/// Reads the mappings of a range, up to an unreadable leaf.
fn load_region(
    view: &FileView,
    range: Range<u64>,
) -> Result<(Region, Option<FileError>), FileError> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for mapping in ItemMappings::of_short_range(view, range) {
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(error) if error.is_unreadable_block() => {
                return Ok((Region { mappings, is_complete: false }, Some(error)));
            }
            Err(error) => return Err(error),
        };
        if !mappings.last_mut().is_some_and(|last| last.absorb(&mapping)) {
            mappings.push(mapping);
        }
    }
    Ok((Region { mappings, is_complete: true }, None))
}

impl Region {
    /// The mapping that contains byte `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end() <= offset);
        self.mappings.get(index).filter(|mapping| mapping.offset <= offset)
    }

    /// Inserts the mappings of a part of the region, in place of those that they overlap.
    fn insert(&mut self, part: Self) {
        let ends = part.mappings.first().zip(part.mappings.last());
        let Some(range) = ends.map(|(first, last)| first.offset..last.end()) else { return };
        let first = self.mappings.partition_point(|mapping| mapping.end() <= range.start);
        let last = self.mappings.partition_point(|mapping| mapping.offset < range.end);
        self.mappings.splice(first..last.max(first), part.mappings);
    }
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
