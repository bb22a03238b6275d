//! Direct lookup: where the sectors of a direct read are.

use crate::error::FileError;
use crate::extent_map::caches::LookupCaches;
use crate::extent_map::plain;
use crate::extent_map::view::FileView;
use crate::shared_file::Layer;
use crate::units::{REGION_BYTES, in_memory};
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;

/// Where the contiguous sectors of a direct read are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPlace {
    /// Logical address of the first byte.
    pub logical: Logical,
    /// Their checksums were appended.
    pub has_checksums: bool,
    /// The lookup did not read the trees.
    pub is_cached: bool,
}

impl LookupCaches {
    /// Returns where the sectors of `range` are and appends their checksums; `None` where they are
    /// not contiguous uncompressed sectors. The caller holds the inode lock shared.
    pub(crate) fn direct_place(
        &self,
        view: &FileView,
        range: &Range<u64>,
        checksums: &mut Vec<u8>,
    ) -> Result<Option<DirectPlace>, FileError> {
        if let Some(shared) = view.shared() {
            match shared.layer(range, checksums) {
                Layer::OnDisk { logical, end, has_checksums } => {
                    let is_whole = end >= range.end && has_checksums == view.has_checksums();
                    let place = DirectPlace { logical, has_checksums, is_cached: true };
                    return Ok(is_whole.then_some(place));
                }
                Layer::Tree { end } if end >= range.end => {}
                Layer::Dirty { .. } | Layer::Compressed { .. } | Layer::Tree { .. } => {
                    return Ok(None);
                }
            }
        }
        let mut is_cached = true;
        let Some(logical) = self.run_in_tree(view, range, &mut is_cached)? else {
            return Ok(None);
        };
        let mut has_checksums = false;
        if view.has_checksums() {
            let sectors = in_memory((range.end - range.start) / SECTOR_BYTES);
            let found = self.checksums.gather_tracking(logical, sectors, checksums, &mut is_cached);
            // The caller then plans the read, which finds the bytes that can be read.
            if found.sectors < sectors {
                return Ok(None);
            }
            has_checksums = true;
        }
        Ok(Some(DirectPlace { logical, has_checksums, is_cached }))
    }

    /// Logical address of a range, if the tree has it as contiguous uncompressed sectors.
    fn run_in_tree(
        &self,
        view: &FileView,
        range: &Range<u64>,
        is_cached: &mut bool,
    ) -> Result<Option<Logical>, FileError> {
        let mut start: Option<Logical> = None;
        let mut at = range.start;
        while at < range.end {
            let map = self.plain_map(view, at / REGION_BYTES, is_cached)?;
            let Some((logical, bytes)) = plain::find(&map, at) else { return Ok(None) };
            if start.is_some_and(|start| start.0 + (at - range.start) != logical.0) {
                return Ok(None);
            }
            start.get_or_insert(logical);
            at = at.saturating_add(bytes).min(range.end);
        }
        Ok(start)
    }
}
