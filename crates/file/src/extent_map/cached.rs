//! Nowait lookup: whether [`LookupCaches::direct_place`] would return without reading the trees.

use crate::extent_map::caches::LookupCaches;
use crate::extent_map::plain;
use crate::extent_map::view::FileView;
use crate::shared_file::Layer;
use crate::units::{REGION_BYTES, in_memory};
use butternut_format::units::SECTOR_BYTES;
use std::ops::Range;

impl LookupCaches {
    /// Returns whether [`LookupCaches::direct_place`] does not read the trees. The caller holds the
    /// inode lock shared.
    pub(crate) fn is_place_cached(&self, view: &FileView, range: &Range<u64>) -> bool {
        if let Some(shared) = view.shared() {
            match shared.layer(range, &mut Vec::new()) {
                Layer::Tree { end } if end >= range.end => {}
                // The overlay has it, or it is not contiguous.
                Layer::Dirty { .. }
                | Layer::Compressed { .. }
                | Layer::OnDisk { .. }
                | Layer::Tree { .. } => return true,
            }
        }
        let mut at = range.start;
        while at < range.end {
            let Some(map) = self.cached_plain_map(view, at / REGION_BYTES) else { return false };
            let Some((logical, bytes)) = plain::find(&map, at) else { return true };
            let bytes = bytes.min(range.end - at);
            let sectors = in_memory(bytes / SECTOR_BYTES);
            if view.has_checksums() && !self.checksums.has_cached(logical, sectors) {
                return false;
            }
            at += bytes;
        }
        true
    }
}
