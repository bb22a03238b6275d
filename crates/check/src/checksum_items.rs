//! Reads the checksum tree.
//!
//! 1. Checksum items do not overlap.
//! 2. Sectors with checksums are inside data extents.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::misplaced::misplaced;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::walk::Survey;
use butternut_format::key::ItemType;
use butternut_format::units::{SECTOR_BYTES, TreeId, length};

pub(crate) struct ChecksumSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) checksum_bytes: usize,
}

/// Returns the start and end of the range that a checksum item covers.
pub(crate) fn range_of(start: u64, data: &[u8], checksum_bytes: usize) -> (u64, u64) {
    let sectors = length(data.len().checked_div(checksum_bytes).unwrap_or_default());
    (start, start.saturating_add(sectors.saturating_mul(SECTOR_BYTES)))
}

impl ChecksumSurvey<'_> {
    fn overlap(&self, start: u64, end: u64) {
        let want = format!("at least {end}, where the item before ends");
        self.reader.sink().add(Kind::ChecksumsOverlap, "tree checksum", "item", start, want);
    }
}

impl Survey for ChecksumSurvey<'_> {
    type Out = Spans;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Spans {
        let mut out = Spans::default();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            if key.item_type != ItemType::EXTENT_CSUM {
                misplaced(self.reader, TreeId::CHECKSUM, leaf, key);
                continue;
            }
            let (start, end) = range_of(key.offset, data, self.checksum_bytes);
            if let Err(before) = out.push(start, end, true) {
                self.overlap(start, before);
            }
        }
        out
    }

    fn join(&self, left: &mut Spans, right: Spans) {
        if let Err((start, end)) = left.append(right) {
            self.overlap(start, end);
        }
    }
}

/// Checks law 2.
pub(crate) fn check_allocated(sums: &Spans, allocated: &Spans, sink: &Sink<'_>) {
    for range in sums.iter() {
        let data = allocated.within(range.start, range.end).filter(|span| span.is_data);
        let mut at = range.start;
        let report = |from: u64, to: u64| {
            if to > from {
                let place = format!("checksums of {from} + {}", to - from);
                sink.add(Kind::ChecksumsUnallocated, place, "data extent", "none", "one");
            }
        };
        for span in data {
            report(at, span.start);
            at = span.end;
        }
        report(at, range.end);
    }
}
