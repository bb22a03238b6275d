//! The slots of a tree block.

use butternut_format::key::Key;
use butternut_format::node::{HEADER_BYTES, RawHeader, RawItem};
use zerocopy::FromBytes;

/// Returns key, slot and bytes of each item of a leaf.
pub(super) fn items(bytes: &[u8]) -> impl Iterator<Item = (Key, &RawItem, &[u8])> {
    slots::<RawItem>(bytes).iter().map(|slot| {
        let start =
            usize::try_from(slot.offset.get()).ok().and_then(|at| at.checked_add(HEADER_BYTES));
        let data = start.and_then(|start| {
            let end = start.checked_add(usize::try_from(slot.size.get()).ok()?)?;
            bytes.get(start..end)
        });
        (Key::from(&slot.key), slot, data.unwrap_or_default())
    })
}

/// Returns the slots after the header of a block; none if their number exceeds the block size.
pub(super) fn slots<T>(bytes: &[u8]) -> &[T]
where
    T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    let Ok((header, rest)) = RawHeader::ref_from_prefix(bytes) else { return &[] };
    let count = usize::try_from(header.nritems.get()).unwrap_or(usize::MAX);
    <[T]>::ref_from_prefix_with_elems(rest, count).map_or(&[], |(slots, _)| slots)
}
