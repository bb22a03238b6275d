//! [`ChecksumCache`]: checksums of data, one for each sector.
//!
//! The checksum tree, and the pending checksums that are not in it yet, are read one region (1 MiB
//! of logical space) at a time, and regions are cached: files that share extents share their
//! checksums, and a random read finds its checksum without a search.
//!
//! ```text
//! item key (EXTENT_CSUM_OBJECTID, EXTENT_CSUM, logical)    data | checksum | checksum | ...
//! ```
//!
//! Laws:
//!
//! 1. A region holds for each of its sectors the checksum, or that there is none, or that this is
//!    not known because a leaf cannot be read. A sector that is not known is never one without a
//!    checksum: its data would be trusted unverified.
//! 2. A thread that adds checksums drops the regions that contain them from the cache before any
//!    reader can need them; a region that was being read meanwhile is not cached.
//! 3. An unreadable leaf fails the sectors whose checksums may be in it. The others of its region
//!    are known and cached.

use crate::bounded_cache::BoundedCache;
use crate::wait::Lookup;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_tree::{Forest, Tree, TreeError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const REGION_SHIFT: u32 = 20;
const REGION_SECTORS: usize = 256;
const SECTOR_SHIFT: u32 = 12;
const _: () = assert!(SECTOR_BYTES == 1 << SECTOR_SHIFT);
const _: () = assert!(REGION_SECTORS == 1 << (REGION_SHIFT - SECTOR_SHIFT));

/// The checksums of a volume's data, in a bounded cache.
#[derive(Debug)]
pub(crate) struct ChecksumCache {
    forest: Arc<Forest>,
    /// `None` where the volume has no checksum tree: then no sector has a checksum.
    tree: Option<Tree>,
    checksum_bytes: usize,
    regions: BoundedCache<u64, ChecksumRegion>,
    /// How often checksums were added (law 2).
    changes: AtomicU64,
}

#[derive(Debug)]
struct ChecksumRegion {
    checksums: Box<[u8]>,
    /// Sectors that have a checksum, one bit each; `None` where all have one.
    present: Option<[u64; REGION_SECTORS / 64]>,
    /// Sectors that are known, one bit each; `None` where all are (law 1).
    known: Option<[u64; REGION_SECTORS / 64]>,
}

/// What [`ChecksumCache::gather`] found.
#[derive(Debug)]
#[must_use]
pub(crate) struct Gathered {
    /// How many checksums were appended.
    pub(crate) sectors: usize,
    /// Why it is not known whether the next sector has a checksum.
    pub(crate) failure: Option<TreeError>,
}

impl ChecksumCache {
    pub(crate) fn new(
        forest: Arc<Forest>,
        tree: Option<Tree>,
        checksum_bytes: usize,
        cache_bytes: usize,
    ) -> Self {
        let regions = BoundedCache::new(cache_bytes);
        Self { forest, tree, checksum_bytes, regions, changes: AtomicU64::new(0) }
    }

    pub(crate) fn checksum_bytes(&self) -> usize {
        self.checksum_bytes
    }

    /// Appends the checksums of `sectors` sectors from `logical` on, up to the first that has none,
    /// or whose checksum cannot be read, or is not in memory where `lookup` must not read the tree.
    pub(crate) fn gather(
        &self,
        logical: Logical,
        sectors: usize,
        lookup: &mut Lookup,
        checksums: &mut Vec<u8>,
    ) -> Gathered {
        let mut done = 0;
        while done < sectors {
            let Some(at) = logical.checked_add(length(done) << SECTOR_SHIFT) else { break };
            let first = sector_in_region(at);
            let wanted = (sectors - done).min(REGION_SECTORS - first);
            let region = match self.region(at.0 >> REGION_SHIFT, first, lookup) {
                Ok(Some(region)) => region,
                Ok(None) => break,
                Err(error) => return Gathered { sectors: done, failure: Some(error) },
            };
            let found = region.run(first, wanted);
            let bytes = first * self.checksum_bytes..(first + found) * self.checksum_bytes;
            checksums.extend_from_slice(region.checksums.get(bytes).unwrap_or_default());
            done += found;
            if found < wanted && region.knows(first + found) {
                break;
            }
        }
        Gathered { sectors: done, failure: None }
    }

    /// Returns a region that knows `sector`; `None` where it is not in memory and `lookup` must not
    /// read the tree.
    fn region(
        &self,
        number: u64,
        sector: usize,
        lookup: &mut Lookup,
    ) -> Result<Option<Arc<ChecksumRegion>>, TreeError> {
        let cached = self.regions.find(&number);
        if let Some(region) = cached.as_ref().filter(|region| region.knows(sector)) {
            return Ok(Some(Arc::clone(region)));
        }
        if !lookup.miss() {
            return Ok(None);
        }
        let changes = self.changes.load(Ordering::Acquire);
        let region = Arc::new(self.load(number, sector)?);
        if cached.is_some() {
            // The cache keeps what it has.
            self.regions.forget(&number);
        }
        let bytes = region.checksums.len() + size_of::<ChecksumRegion>();
        let is_current = || self.changes.load(Ordering::Acquire) == changes;
        self.regions.insert_if(number, Arc::clone(&region), bytes, is_current);
        Ok(Some(region))
    }

    /// Drops the regions of these ranges, whose checksums have changed (law 2).
    pub(crate) fn forget(&self, ranges: impl Iterator<Item = Range<u64>>) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let mut forgotten = None;
        for range in ranges.filter(|range| !range.is_empty()) {
            for number in range.start >> REGION_SHIFT..=(range.end - 1) >> REGION_SHIFT {
                if forgotten != Some(number) {
                    self.regions.forget(&number);
                    forgotten = Some(number);
                }
            }
        }
    }

    /// Reads a region from the tree and from the pending checksums. Fails if `sector` is not known.
    fn load(&self, number: u64, sector: usize) -> Result<ChecksumRegion, TreeError> {
        let mut region = ChecksumRegion::new(self.checksum_bytes);
        let Some(tree) = &self.tree else { return Ok(region) };
        let start = number << REGION_SHIFT;
        // Pending checksums are read first: those that a commit moves meanwhile are found in the
        // tree.
        let mut waiting = Vec::new();
        self.forest.pending_checksums(
            &(start..start + (1 << REGION_SHIFT)),
            &mut |at, checksums| {
                waiting.push((at, checksums.to_vec()));
            },
        );
        let mut failure = None;
        let known = self.add_items(&mut region, tree, start, 0, &mut failure);
        if failure.is_some() {
            region.known = Some([0; REGION_SECTORS / 64]);
            region.set_known(0..known);
            if !region.knows(sector) {
                let known = self.add_items(&mut region, tree, start, sector, &mut failure);
                region.set_known(sector..known);
            }
        }
        for (at, checksums) in waiting {
            region.add(start, at.0, &checksums, self.checksum_bytes);
        }
        region.drop_full_bitmap();
        match failure {
            Some(failure) if !region.knows(sector) => Err(failure),
            _ => Ok(region),
        }
    }

    /// Adds the items of a region from sector `first` on, up to an unreadable leaf. Returns the end
    /// of the sectors that are known then.
    fn add_items(
        &self,
        region: &mut ChecksumRegion,
        tree: &Tree,
        start: u64,
        first: usize,
        failure: &mut Option<TreeError>,
    ) -> usize {
        let mut known = first;
        match self.try_add_items(region, tree, start, &mut known) {
            Ok(()) => REGION_SECTORS,
            Err(error) => {
                *failure = Some(error);
                known
            }
        }
    }

    /// Adds the items of a region from sector `known` on, and moves `known` behind each of them.
    fn try_add_items(
        &self,
        region: &mut ChecksumRegion,
        tree: &Tree,
        start: u64,
        known: &mut usize,
    ) -> Result<(), TreeError> {
        let mut cursor = tree.cursor();
        let first = start + (length(*known) << SECTOR_SHIFT);
        let key = Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, first);
        cursor.seek_last(&key)?;
        if cursor.key().is_none() {
            cursor.seek(&key)?;
        }
        while let Some((found, data)) = cursor.item_parts() {
            let is_checksum =
                found.objectid == EXTENT_CSUM_OBJECTID && found.item_type == ItemType::EXTENT_CSUM;
            if is_checksum && found.offset >> REGION_SHIFT > start >> REGION_SHIFT
                || found > key && !is_checksum
            {
                break;
            }
            if is_checksum {
                let end = region.add(start, found.offset, data, self.checksum_bytes);
                *known = end.max(*known);
                if *known >= REGION_SECTORS {
                    break;
                }
            }
            cursor.advance()?;
        }
        Ok(())
    }
}

impl ChecksumRegion {
    /// Returns a region that is known to have no checksum.
    fn new(checksum_bytes: usize) -> Self {
        Self {
            checksums: vec![0; REGION_SECTORS * checksum_bytes].into_boxed_slice(),
            present: Some([0; REGION_SECTORS / 64]),
            known: None,
        }
    }

    /// Copies the checksums of an item that starts at `item_start` into the region that starts at
    /// `start`. Returns the end of the item's sectors in the region, or 0 if it has none there.
    fn add(&mut self, start: u64, item_start: u64, data: &[u8], checksum_bytes: usize) -> usize {
        let (skip, first) = if item_start < start {
            ((start - item_start) >> SECTOR_SHIFT, 0)
        } else {
            (0, (item_start - start) >> SECTOR_SHIFT)
        };
        let (Ok(skip), Ok(first)) = (usize::try_from(skip), usize::try_from(first)) else {
            return 0;
        };
        let theirs = data.get(skip.saturating_mul(checksum_bytes)..).unwrap_or_default();
        let ours =
            self.checksums.get_mut(first.saturating_mul(checksum_bytes)..).unwrap_or_default();
        let checksums =
            theirs.chunks_exact(checksum_bytes).zip(ours.chunks_exact_mut(checksum_bytes));
        let mut end = 0;
        for (index, (theirs, ours)) in checksums.enumerate() {
            ours.copy_from_slice(theirs);
            let sector = first + index;
            for bits in [&mut self.present, &mut self.known].into_iter().flatten() {
                set_bit(bits, sector);
            }
            end = sector + 1;
        }
        end
    }

    fn set_known(&mut self, sectors: Range<usize>) {
        if let Some(known) = &mut self.known {
            sectors.into_iter().for_each(|sector| set_bit(known, sector));
        }
    }

    /// Whether it is known if a sector has a checksum (law 1).
    fn knows(&self, sector: usize) -> bool {
        self.known.as_ref().is_none_or(|known| has_bit(known, sector))
    }

    fn drop_full_bitmap(&mut self) {
        if self.present.is_some_and(|bits| bits.iter().all(|word| *word == u64::MAX)) {
            self.present = None;
        }
    }

    /// How many of `wanted` sectors from `first` on have checksums, up to the first that has none.
    fn run(&self, first: usize, wanted: usize) -> usize {
        let Some(bits) = &self.present else { return wanted };
        (first..first + wanted).take_while(|sector| has_bit(bits, *sector)).count()
    }
}

fn set_bit(bits: &mut [u64], sector: usize) {
    if let Some(word) = bits.get_mut(sector / 64) {
        *word |= 1 << (sector % 64);
    }
}

fn has_bit(bits: &[u64], sector: usize) -> bool {
    bits.get(sector / 64).is_some_and(|word| word >> (sector % 64) & 1 == 1)
}

/// Index of a sector in its region.
fn sector_in_region(logical: Logical) -> usize {
    usize::try_from((logical.0 >> SECTOR_SHIFT) % length(REGION_SECTORS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> ChecksumRegion {
        ChecksumRegion::new(4)
    }

    #[test]
    fn a_sector_behind_damage_is_unknown_until_it_has_a_checksum() {
        let mut region = region();
        region.known = Some([0; REGION_SECTORS / 64]);
        region.set_known(0..10);
        assert_eq!(region.add(0, 8192, &[7; 8], 4), 4);
        assert_eq!((region.knows(9), region.knows(10), region.run(0, 20)), (true, false, 0));
        region.add(0, 30 << SECTOR_SHIFT, &[7; 8], 4);
        assert_eq!((region.knows(29), region.knows(30), region.knows(32)), (false, true, false));
        assert!(region.known.is_some());
    }

    #[test]
    fn items_before_inside_and_across_a_region_each_contribute() {
        let start = 5 << REGION_SHIFT;
        let mut region = region();
        region.add(start, start - 8192, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], 4);
        region.add(start, start + 8192, &[7; 8], 4);
        region.add(start, start + (255 << SECTOR_SHIFT), &[9; 400], 4);
        region.drop_full_bitmap();
        assert_eq!(region.checksums[..16], [3, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(region.checksums[255 * 4..], [9; 4]);
        assert_eq!((region.run(0, 256), region.run(1, 1), region.run(2, 9)), (1, 0, 2));
        assert_eq!(region.run(255, 1), 1);
    }

    #[test]
    fn a_region_covered_by_one_item_needs_no_bitmap() {
        let mut region = region();
        region.add(0, 0, &[5; 4 * REGION_SECTORS], 4);
        region.drop_full_bitmap();
        assert!(region.present.is_none());
        assert_eq!(region.run(3, 200), 200);
    }
}
