//! The superblock copies inside a chunk: ranges that no extent item names, and that must not be
//! allocated.
//!
//! The free space tree counts them as free. When the kernel loads a group, it excludes one stripe
//! unit (with parity, the data of one full stripe) from each copy on, on every device extent of the
//! chunk that holds a copy. In a chunk whose logical address lies below the first copy, it excludes
//! everything up to the first copy too.

use butternut_format::chunk::STRIPE_BYTES;
use butternut_format::super_block::COPY_OFFSETS;
use butternut_format::units::{Logical, length};
use butternut_volume::Layout;
use std::ops::Range;

/// Returns the logical ranges of a chunk that hold superblock copies: sorted, joined, inside the
/// chunk.
pub fn excluded_ranges(layout: &Layout) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let first = COPY_OFFSETS.first().copied().unwrap_or_default();
    if layout.logical().0 < first {
        ranges.push(layout.logical().0..first.min(layout.end()));
    }
    let place_bytes = layout.stripe_bytes();
    for (index, place) in layout.stripes().iter().enumerate() {
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

/// Returns the logical range of the stripe unit from byte `within` of a device extent on.
fn logical_of(layout: &Layout, place: usize, within: u64) -> Option<Range<u64>> {
    let attributes = layout.attributes();
    let (row, in_row) = (within.div_euclid(STRIPE_BYTES), within.rem_euclid(STRIPE_BYTES));
    let data = length(layout.data_elements());
    let (offset, bytes) = if attributes.parities > 0 {
        // The whole row, since its data, its parity or both lie here.
        let row_bytes = STRIPE_BYTES.checked_mul(data)?;
        (row.checked_mul(row_bytes)?.checked_add(in_row)?, row_bytes)
    } else if attributes.is_striped {
        let element = length(place.checked_div(attributes.sub_stripes)?);
        let unit = row.checked_mul(data)?.checked_add(element)?;
        (unit.checked_mul(STRIPE_BYTES)?.checked_add(in_row)?, STRIPE_BYTES)
    } else {
        (within, STRIPE_BYTES)
    };
    let start = layout.logical().checked_add(offset)?;
    let end = start.checked_add(bytes).map_or(layout.end(), |end| end.0.min(layout.end()));
    (start < Logical(end)).then_some(start.0..end)
}
