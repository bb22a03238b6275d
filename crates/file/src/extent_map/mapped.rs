//! Lookup of a direct read by way of a read plan, without the shorter
//! [`LookupCaches::direct_place`].

use crate::error::FileError;
use crate::extent_map::caches::LookupCaches;
use crate::extent_map::direct::DirectPlace;
use crate::extent_map::plan::{Plan, ReadKind, SegmentKind};
use crate::extent_map::view::FileView;
use butternut_volume::Checksums;

impl LookupCaches {
    /// As [`Self::direct_place`], for bytes inside the file that start at a sector.
    pub(crate) fn mapped_place(
        &self,
        plan: &mut Plan,
        view: &FileView,
        offset: u64,
        bytes: usize,
        checksums: &mut Vec<u8>,
    ) -> Result<Option<DirectPlace>, FileError> {
        plan.begin(ReadKind::Demand);
        plan.add(self, view, offset, bytes);
        let failure = plan.reads.first_mut().and_then(|read| read.failure.take());
        failure.map_or_else(|| Ok(single_place(plan, checksums)), Err)
    }
}

/// The place of a plan that consists of contiguous whole sectors.
fn single_place(plan: &Plan, checksums: &mut Vec<u8>) -> Option<DirectPlace> {
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
        return Some(DirectPlace { logical, has_checksums: false, is_cached: false });
    };
    checksums.extend_from_slice(found);
    Some(DirectPlace { logical, has_checksums: true, is_cached: false })
}
