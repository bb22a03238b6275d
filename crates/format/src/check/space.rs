//! The laws of block groups, of free space, and of the checksums of data.
//!
//! A checksum item has the key (-10, `EXTENT_CSUM`, address) and contains one checksum per sector,
//! as many as fit. The next item begins where it ends, or later.

use super::context::after;
use super::{LeafContext, LeafItem};
use crate::block_group::BlockGroup;
use crate::checksum::EXTENT_CSUM_OBJECTID;
use crate::free_space::{FreeBitmap, FreeRange, FreeSpaceHeader, FreeSpaceInfo, check_extent};
use crate::key::{ItemType, Key};
use crate::refused::{Refused, require};
use crate::units::{SECTOR_BYTES, length};

/// Checks one item whose type is about space or checksums; others pass.
pub(super) fn item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let LeafItem { key, data } = *item;
    match key.item_type {
        ItemType::BLOCK_GROUP_ITEM => {
            let group = BlockGroup::check(key, data, context.rules.incompat)?;
            let previous = context.previous_of(ItemType::BLOCK_GROUP_ITEM);
            let end = previous.and_then(|item| item.key.objectid.checked_add(item.key.offset));
            after(group.logical.0, end)
        }
        ItemType::FREE_SPACE_INFO => FreeSpaceInfo::check(key, data).map(drop),
        ItemType::FREE_SPACE_EXTENT => free(&check_extent(key, data)?, context),
        ItemType::FREE_SPACE_BITMAP => free(&FreeBitmap::check(key, data)?.range, context),
        ItemType::EXTENT_CSUM => checksums(key, data, context),
        _ => Ok(()),
    }
}

/// Checks the header of the older free space cache.
pub(super) fn header(item: &LeafItem<'_>) -> Result<(), Refused> {
    FreeSpaceHeader::check(item.key, item.data).map(drop)
}

/// Checks that a free range does not overlap the previous one, or is inside the group of the
/// previous `FREE_SPACE_INFO`.
fn free(range: &FreeRange, context: &LeafContext<'_>) -> Result<(), Refused> {
    let Some(previous) = context.previous else { return Ok(()) };
    let before = FreeRange::check(previous.key)?;
    match previous.key.item_type {
        ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP => {
            after(range.logical.0, before.end().0)
        }
        ItemType::FREE_SPACE_INFO => {
            let (end, want) = (range.end().0, before.end().0);
            require(end <= want, "end", end, format_args!("at most {want}, the group's"))
        }
        other => Err(Refused::new("type before", other.0, "198 to 200")),
    }
}

fn checksums(key: Key, data: &[u8], context: &LeafContext<'_>) -> Result<(), Refused> {
    require(
        key.objectid == EXTENT_CSUM_OBJECTID,
        "key objectid",
        key.objectid,
        EXTENT_CSUM_OBJECTID,
    )?;
    let start = key.offset;
    require(start.is_multiple_of(SECTOR_BYTES), "key offset", start, "sector aligned")?;
    let checksum_bytes = context.rules.csum.bytes();
    let whole = !data.is_empty() && data.len().is_multiple_of(checksum_bytes);
    require(whole, "item size", data.len(), format_args!("a multiple of {checksum_bytes}, not 0"))?;
    let end = |start: u64, data: &[u8]| {
        let sectors = length(data.len().checked_div(checksum_bytes).unwrap_or_default());
        start.checked_add(sectors.checked_mul(SECTOR_BYTES)?)
    };
    let fits = end(start, data).is_some();
    require(fits, "item size", data.len(), "an end inside the address space")?;
    let previous = context.previous_of(ItemType::EXTENT_CSUM);
    after(start, previous.and_then(|previous| end(previous.key.offset, previous.data)))
}
