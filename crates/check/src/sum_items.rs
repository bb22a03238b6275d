//! The checksum tree: which sectors have checksums.
//!
//! 1. Items do not overlap.
//! 2. What has checksums is allocated as data.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::stray::stray;
use crate::walk::Survey;
use butternut_format::key::ItemType;
use butternut_format::units::{SECTOR_BYTES, TreeId, length};

pub(crate) struct SumSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) digest_bytes: usize,
}

/// The range that a checksum item is for.
pub(crate) fn range_of(start: u64, data: &[u8], digest_bytes: usize) -> (u64, u64) {
    let sectors = length(data.len().checked_div(digest_bytes).unwrap_or_default());
    (start, start.saturating_add(sectors.saturating_mul(SECTOR_BYTES)))
}

impl SumSurvey<'_> {
    fn overlap(&self, start: u64, end: u64) {
        let want = format!("at least {end}, where the item before ends");
        self.reader.sink().add(Kind::SumsOverlap, "tree checksum", "item", start, want);
    }
}

impl Survey for SumSurvey<'_> {
    type Out = Spans;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Spans {
        let mut out = Spans::default();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            if key.item_type != ItemType::EXTENT_CSUM {
                stray(self.reader, TreeId::CHECKSUM, leaf, key);
                continue;
            }
            let (start, end) = range_of(key.offset, data, self.digest_bytes);
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

/// Law 2.
pub(crate) fn check_allocated(sums: &Spans, allocated: &Spans, sink: &Sink<'_>) {
    for range in sums.iter() {
        let data = allocated.within(range.start, range.end).filter(|span| span.is_data);
        let mut at = range.start;
        let say = |from: u64, to: u64| {
            if to > from {
                let place = format!("checksums of {from} + {}", to - from);
                sink.add(Kind::SumsUnallocated, place, "data extent", "none", "one");
            }
        };
        for span in data {
            say(at, span.start);
            at = span.end;
        }
        say(at, range.end);
    }
}
