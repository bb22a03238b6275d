//! Checksums of data: from the checksum tree to one packed digest per sector.
//!
//! The tree, and what waits to go into it, is read a region (1 MiB of logical space) at a time, and
//! regions are kept: files that share extents share their checksums, and a random read finds its
//! digest without a search.
//!
//! ```text
//! item key (EXTENT_CSUM_OBJECTID, EXTENT_CSUM, logical)    data | digest | digest | ...
//! ```
//!
//! Laws:
//!
//! 1. A region holds for each of its sectors the digest, or that the tree has none.
//! 2. Whoever brings digests forgets the regions they are in, before anybody can ask
//!    for those sectors; a region that was being read meanwhile is not kept.

use crate::cache::BoundedCache;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_tree::{Tree, TreeError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const REGION_SHIFT: u32 = 20;
const REGION_SECTORS: usize = 256;
const SECTOR_SHIFT: u32 = 12;
const _: () = assert!(SECTOR_BYTES == 1 << SECTOR_SHIFT);
const _: () = assert!(REGION_SECTORS == 1 << (REGION_SHIFT - SECTOR_SHIFT));

/// The checksums of a volume's data, through a bounded cache.
#[derive(Debug)]
pub(crate) struct SumIndex {
    /// `None` where the volume has no checksum tree: then no sector has a digest.
    tree: Option<Tree>,
    digest_bytes: usize,
    regions: BoundedCache<u64, SumRegion>,
    /// How often digests were brought (law 2).
    changes: AtomicU64,
}

#[derive(Debug)]
struct SumRegion {
    digests: Box<[u8]>,
    /// Sectors that have a digest, one bit each; `None` where all do.
    present: Option<[u64; REGION_SECTORS / 64]>,
}

impl SumIndex {
    pub(crate) fn new(tree: Option<Tree>, digest_bytes: usize, cache_bytes: usize) -> Self {
        let regions = BoundedCache::new(cache_bytes);
        Self { tree, digest_bytes, regions, changes: AtomicU64::new(0) }
    }

    pub(crate) fn digest_bytes(&self) -> usize {
        self.digest_bytes
    }

    /// Appends the digests of `sectors` sectors from `logical` on, up to the first that has none.
    /// Says how many that were.
    pub(crate) fn gather(
        &self,
        logical: Logical,
        sectors: usize,
        digests: &mut Vec<u8>,
    ) -> Result<usize, TreeError> {
        self.gather_noting(logical, sectors, digests, &mut true)
    }

    /// The same; `is_cached` becomes false where the tree had to be asked.
    pub(crate) fn gather_noting(
        &self,
        logical: Logical,
        sectors: usize,
        digests: &mut Vec<u8>,
        is_cached: &mut bool,
    ) -> Result<usize, TreeError> {
        let mut done = 0;
        while done < sectors {
            let Some(at) = logical.checked_add(length(done) << SECTOR_SHIFT) else { break };
            let first = sector_in_region(at);
            let wanted = (sectors - done).min(REGION_SECTORS - first);
            let number = at.0 >> REGION_SHIFT;
            let region = if let Some(region) = self.regions.find(&number) {
                region
            } else {
                *is_cached = false;
                self.region(number)?
            };
            let found = region.run(first, wanted);
            let bytes = first * self.digest_bytes..(first + found) * self.digest_bytes;
            digests.extend_from_slice(region.digests.get(bytes).unwrap_or_default());
            done += found;
            if found < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Whether it is known of some sectors what their digests are.
    pub(crate) fn knows(&self, logical: Logical, sectors: usize) -> bool {
        let last = logical.0.saturating_add(length(sectors.saturating_sub(1)) << SECTOR_SHIFT);
        let mut numbers = logical.0 >> REGION_SHIFT..=last >> REGION_SHIFT;
        numbers.all(|number| self.regions.find(&number).is_some())
    }

    fn region(&self, number: u64) -> Result<Arc<SumRegion>, TreeError> {
        let changes = self.changes.load(Ordering::Acquire);
        let region = Arc::new(self.load(number)?);
        let bytes = region.digests.len() + size_of::<SumRegion>();
        let still_good = || self.changes.load(Ordering::Acquire) == changes;
        self.regions.insert_if(number, Arc::clone(&region), bytes, still_good);
        Ok(region)
    }

    /// These ranges of logical space have other digests now (law 2).
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

    /// Reads a region from the tree.
    fn load(&self, number: u64) -> Result<SumRegion, TreeError> {
        let mut region = SumRegion {
            digests: vec![0; REGION_SECTORS * self.digest_bytes].into_boxed_slice(),
            present: Some([0; REGION_SECTORS / 64]),
        };
        let Some(tree) = &self.tree else { return Ok(region) };
        let start = number << REGION_SHIFT;
        // First what waits for the commit: what does not is in the tree.
        let mut waiting = Vec::new();
        tree.forest().waiting_sums(&(start..start + (1 << REGION_SHIFT)), &mut |at, digests| {
            waiting.push((at, digests.to_vec()));
        });
        let mut cursor = tree.cursor();
        let key = Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, start);
        cursor.seek_last(&key)?;
        if cursor.key().is_none() {
            cursor.seek(&key)?;
        }
        while let Some((found, data)) = cursor.item_parts() {
            let is_sum =
                found.objectid == EXTENT_CSUM_OBJECTID && found.item_type == ItemType::EXTENT_CSUM;
            if is_sum && found.offset >> REGION_SHIFT > number || found > key && !is_sum {
                break;
            }
            if is_sum {
                region.add(start, found.offset, data, self.digest_bytes);
            }
            cursor.advance()?;
        }
        for (at, digests) in waiting {
            region.add(start, at.0, &digests, self.digest_bytes);
        }
        region.settle();
        Ok(region)
    }
}

impl SumRegion {
    /// Takes in what an item whose digests start at `item_start` says of the region at `start`.
    fn add(&mut self, start: u64, item_start: u64, data: &[u8], digest_bytes: usize) {
        let (skip, first) = if item_start < start {
            ((start - item_start) >> SECTOR_SHIFT, 0)
        } else {
            (0, (item_start - start) >> SECTOR_SHIFT)
        };
        let (Ok(skip), Ok(first)) = (usize::try_from(skip), usize::try_from(first)) else { return };
        let theirs = data.get(skip.saturating_mul(digest_bytes)..).unwrap_or_default();
        let ours = self.digests.get_mut(first.saturating_mul(digest_bytes)..).unwrap_or_default();
        let digests = theirs.chunks_exact(digest_bytes).zip(ours.chunks_exact_mut(digest_bytes));
        for (index, (theirs, ours)) in digests.enumerate() {
            ours.copy_from_slice(theirs);
            let sector = first + index;
            if let Some(word) = self.present.as_mut().and_then(|bits| bits.get_mut(sector / 64)) {
                *word |= 1 << (sector % 64);
            }
        }
    }

    fn settle(&mut self) {
        if self.present.is_some_and(|bits| bits.iter().all(|word| *word == u64::MAX)) {
            self.present = None;
        }
    }

    /// How many of `wanted` sectors from `first` on have digests, up to the first that has none.
    fn run(&self, first: usize, wanted: usize) -> usize {
        let Some(bits) = &self.present else { return wanted };
        let has = |sector: usize| {
            bits.get(sector / 64).is_some_and(|word| word >> (sector % 64) & 1 == 1)
        };
        (first..first + wanted).take_while(|sector| has(*sector)).count()
    }
}

/// Which sector of its region an address is in.
fn sector_in_region(logical: Logical) -> usize {
    usize::try_from((logical.0 >> SECTOR_SHIFT) % length(REGION_SECTORS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> SumRegion {
        SumRegion {
            digests: vec![0; REGION_SECTORS * 4].into_boxed_slice(),
            present: Some([0; REGION_SECTORS / 64]),
        }
    }

    #[test]
    fn items_before_inside_and_across_a_region_each_give_their_part() {
        let start = 5 << REGION_SHIFT;
        let mut region = region();
        region.add(start, start - 8192, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], 4);
        region.add(start, start + 8192, &[7; 8], 4);
        region.add(start, start + (255 << SECTOR_SHIFT), &[9; 400], 4);
        region.settle();
        assert_eq!(region.digests[..16], [3, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(region.digests[255 * 4..], [9; 4]);
        assert_eq!((region.run(0, 256), region.run(1, 1), region.run(2, 9)), (1, 0, 2));
        assert_eq!(region.run(255, 1), 1);
    }

    #[test]
    fn a_region_that_one_item_covers_is_whole() {
        let mut region = region();
        region.add(0, 0, &[5; 4 * REGION_SECTORS], 4);
        region.settle();
        assert!(region.present.is_none());
        assert_eq!(region.run(3, 200), 200);
    }
}
