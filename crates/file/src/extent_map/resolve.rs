//! [`LookupCaches::resolve`]: where a range of a file is on disk, for a read past the page cache.
//!
//! The overlay is searched first, since it is newer than the trees. The answer names one contiguous
//! run of sectors, or says that a read [`Plan`] has to find the bytes.

use crate::error::FileError;
use crate::extent_map::caches::LookupCaches;
use crate::extent_map::plain;
use crate::extent_map::plan::{Plan, ReadKind, SegmentKind};
use crate::extent_map::view::FileView;
use crate::shared_file::Layer;
use crate::units::{REGION_BYTES, in_memory};
use crate::wait::Lookup;
use butternut_format::units::{Logical, SECTOR_BYTES};
use butternut_sys::wait::Wait;
use butternut_volume::Checksums;
use std::ops::Range;

/// Where a range of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Contiguous uncompressed sectors on disk. Their checksums were appended.
    OnDisk(DiskPlace),
    /// Anything else: dirty, compressed, inline, a hole, in several places, or without a checksum
    /// where the file has them.
    NeedsPlan,
    /// The trees have to be read, and [`Wait::NoWait`] forbids it.
    WouldBlock,
}

/// Contiguous sectors on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Logical address of the first byte.
    pub logical: Logical,
    /// Their checksums were appended.
    pub has_checksums: bool,
    /// The lookup did not read the trees.
    pub is_cached: bool,
}

impl LookupCaches {
    /// Returns where the sectors of `range` are, and appends their checksums. The caller holds the
    /// inode lock shared.
    pub(crate) fn resolve(
        &self,
        view: &FileView,
        range: &Range<u64>,
        wait: Wait,
        checksums: &mut Vec<u8>,
    ) -> Result<Resolved, FileError> {
        if let Some(shared) = view.shared() {
            match shared.layer(range, checksums) {
                Layer::OnDisk { logical, end, has_checksums } => {
                    let is_whole = end >= range.end && has_checksums == view.has_checksums();
                    let place = DiskPlace { logical, has_checksums, is_cached: true };
                    return Ok(if is_whole {
                        Resolved::OnDisk(place)
                    } else {
                        Resolved::NeedsPlan
                    });
                }
                Layer::Tree { end } if end >= range.end => {}
                Layer::Dirty { .. } | Layer::Compressed { .. } | Layer::Tree { .. } => {
                    return Ok(Resolved::NeedsPlan);
                }
            }
        }
        let mut lookup = Lookup::new(wait);
        let found = self.resolve_in_tree(view, range, &mut lookup, checksums)?;
        Ok(match found {
            Some(place) => Resolved::OnDisk(place),
            None if lookup.would_block() => Resolved::WouldBlock,
            None => Resolved::NeedsPlan,
        })
    }

    fn resolve_in_tree(
        &self,
        view: &FileView,
        range: &Range<u64>,
        lookup: &mut Lookup,
        checksums: &mut Vec<u8>,
    ) -> Result<Option<DiskPlace>, FileError> {
        let Some(logical) = self.run_in_tree(view, range, lookup)? else { return Ok(None) };
        if view.has_checksums() {
            let sectors = in_memory((range.end - range.start) / SECTOR_BYTES);
            let found = self.checksums.gather(logical, sectors, lookup, checksums);
            // After a failure, too: the plan finds the bytes that can be read.
            if found.sectors < sectors {
                return Ok(None);
            }
        }
        let (has_checksums, is_cached) = (view.has_checksums(), lookup.is_cached());
        Ok(Some(DiskPlace { logical, has_checksums, is_cached }))
    }

    /// Logical address of a range, if the tree has it as contiguous uncompressed sectors.
    fn run_in_tree(
        &self,
        view: &FileView,
        range: &Range<u64>,
        lookup: &mut Lookup,
    ) -> Result<Option<Logical>, FileError> {
        let mut start: Option<Logical> = None;
        let mut at = range.start;
        while at < range.end {
            let map = self.plain_map(view, at / REGION_BYTES, lookup)?;
            let found = map.and_then(|map| plain::find(&map, at));
            let Some((logical, bytes)) = found else { return Ok(None) };
            if start.is_some_and(|start| start.0 + (at - range.start) != logical.0) {
                return Ok(None);
            }
            start.get_or_insert(logical);
            at = at.saturating_add(bytes).min(range.end);
        }
        Ok(start)
    }

    /// Returns the answer of [`Self::resolve`] with [`Wait::Block`], found by a plan, for `bytes`
    /// bytes inside the file that start at a sector. [`Self::resolve`] is measured against it.
    pub(crate) fn resolve_by_plan(
        &self,
        plan: &mut Plan,
        view: &FileView,
        offset: u64,
        bytes: usize,
        checksums: &mut Vec<u8>,
    ) -> Result<Resolved, FileError> {
        plan.begin(ReadKind::Demand);
        plan.add(self, view, offset, bytes);
        let failure = plan.reads.first_mut().and_then(|read| read.failure.take());
        if let Some(failure) = failure {
            return Err(failure);
        }
        Ok(single_place(plan, checksums).map_or(Resolved::NeedsPlan, Resolved::OnDisk))
    }
}

/// The place of a plan that consists of contiguous whole sectors.
fn single_place(plan: &Plan, checksums: &mut Vec<u8>) -> Option<DiskPlace> {
    let [segment] = &plan.segments[..] else { return None };
    let (logical, range) = match &segment.kind {
        SegmentKind::Direct { logical, checksums: range }
        | SegmentKind::Edge { logical, checksums: range, skip: 0, .. } => (*logical, range),
        SegmentKind::Zeroes
        | SegmentKind::Buffered { .. }
        | SegmentKind::Inline { .. }
        | SegmentKind::Edge { .. }
        | SegmentKind::Compressed { .. } => return None,
    };
    let Checksums::Stored(found) = plan.checksums(range) else {
        return Some(DiskPlace { logical, has_checksums: false, is_cached: false });
    };
    checksums.extend_from_slice(found);
    Some(DiskPlace { logical, has_checksums: true, is_cached: false })
}
