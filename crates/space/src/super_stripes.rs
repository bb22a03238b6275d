//! Where superblock copies lie inside a chunk: bytes that no extent names, and that must not be
//! handed out all the same.
//!
//! The free space tree calls them free; the kernel leaves a stripe unit from each copy on out when
//! it loads a group, wherever the chunk lies over one. Of a chunk whose address is below the first
//! copy's everything up to there is left out as well.

use butternut_format::chunk::STRIPE_BYTES;
use butternut_format::super_block::COPY_OFFSETS;
use butternut_format::units::{Logical, length};
use butternut_volume::Layout;
use std::ops::Range;

/// The logical ranges of a chunk that hold superblock copies: sorted, joined, inside the chunk.
pub fn excluded_ranges(layout: &Layout) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let first = COPY_OFFSETS.first().copied().unwrap_or_default();
    if layout.logical().0 < first {
        ranges.push(layout.logical().0..first.min(layout.end()));
    }
    let place_bytes = layout.place_bytes();
    for (index, place) in layout.places().iter().enumerate() {
        for copy in COPY_OFFSETS {
            let Some(within) = copy.checked_sub(place.physical.0) else { continue };
            if within >= place_bytes {
                continue;
            }
            if let Some(range) = logical_of(layout, index, within) {
                ranges.push(range);
            }
        }
    }
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            Some(_) | None => joined.push(range),
        }
    }
    joined
}

/// The addresses that a byte of a place, and the rest of its unit, stand for.
fn logical_of(layout: &Layout, place: usize, within: u64) -> Option<Range<u64>> {
    let facts = layout.facts();
    let (row, in_row) = (within.div_euclid(STRIPE_BYTES), within.rem_euclid(STRIPE_BYTES));
    let data = length(layout.data_elements());
    let (offset, bytes) = if facts.parities > 0 {
        // The whole row: its data, its parity or both lie here.
        let row_bytes = STRIPE_BYTES.checked_mul(data)?;
        (row.checked_mul(row_bytes)?.checked_add(in_row)?, row_bytes)
    } else if facts.is_striped {
        let element = length(place.checked_div(facts.sub_stripes)?);
        let unit = row.checked_mul(data)?.checked_add(element)?;
        (unit.checked_mul(STRIPE_BYTES)?.checked_add(in_row)?, STRIPE_BYTES)
    } else {
        (within, STRIPE_BYTES)
    };
    let start = layout.logical().checked_add(offset)?;
    let end = start.checked_add(bytes).map_or(layout.end(), |end| end.0.min(layout.end()));
    (start < Logical(end)).then_some(start.0..end)
}
