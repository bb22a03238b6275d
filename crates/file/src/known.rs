//! Whether it is known where a direct read's sectors are: what [`Source::direct_place`] would say
//! without a look at the trees.

use crate::live::Layer;
use crate::plain;
use crate::source::{REGION_BYTES, Source, in_memory};
use crate::view::FileView;
use butternut_format::units::SECTOR_BYTES;
use std::ops::Range;

impl Source {
    /// Whether [`Source::direct_place`] asks nothing of the trees. The caller shares the file.
    pub fn knows_place(&self, view: &FileView, range: &Range<u64>) -> bool {
        if let Some(live) = view.live() {
            match live.layer(range, &mut Vec::new()) {
                Layer::Tree { end } if end >= range.end => {}
                // It is here, or nowhere in one run.
                Layer::Dirty { .. }
                | Layer::Packed { .. }
                | Layer::Written { .. }
                | Layer::Tree { .. } => return true,
            }
        }
        let mut at = range.start;
        while at < range.end {
            let Some(map) = self.known_plain_map(view, at / REGION_BYTES) else { return false };
            let Some((logical, bytes)) = plain::find(&map, at) else { return true };
            let bytes = bytes.min(range.end - at);
            let sectors = in_memory(bytes / SECTOR_BYTES);
            if view.has_sums() && !self.sums().knows(logical, sectors) {
                return false;
            }
            at += bytes;
        }
        true
    }
}
