//! The laws of block groups, of free space, and of the checksums of data.
//!
//! A checksum item has the key (-10, `EXTENT_CSUM`, address) and holds one digest per sector, as
//! many as fit; the next item begins where it ends, or later.

use super::{Around, LeafItem, after};
use crate::block_group::BlockGroup;
use crate::checksum::EXTENT_CSUM_OBJECTID;
use crate::free_space::{FreeBitmap, FreeRange, FreeSpaceHeader, FreeSpaceInfo, check_extent};
use crate::key::{ItemType, Key};
use crate::refused::{Refused, require};
use crate::units::{SECTOR_BYTES, length};

/// Checks one item whose type speaks of space, or of what data sums to; others pass.
pub(super) fn item(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    let LeafItem { key, data } = *item;
    match key.item_type {
        ItemType::BLOCK_GROUP_ITEM => {
            let group = BlockGroup::check(key, data, around.rules.incompat)?;
            let previous = around.previous_of(ItemType::BLOCK_GROUP_ITEM);
            let end = previous.and_then(|item| item.key.objectid.checked_add(item.key.offset));
            after(group.logical.0, end)
        }
        ItemType::FREE_SPACE_INFO => FreeSpaceInfo::check(key, data).map(drop),
        ItemType::FREE_SPACE_EXTENT => free(&check_extent(key, data)?, around),
        ItemType::FREE_SPACE_BITMAP => free(&FreeBitmap::check(key, data)?.range, around),
        ItemType::EXTENT_CSUM => checksums(key, data, around),
        _ => Ok(()),
    }
}

/// Checks the head of the older cache of free space.
pub(super) fn header(item: &LeafItem<'_>) -> Result<(), Refused> {
    FreeSpaceHeader::check(item.key, item.data).map(drop)
}

/// A free range lies behind the one before it, or inside the group that was named before it.
fn free(range: &FreeRange, around: &Around<'_>) -> Result<(), Refused> {
    let Some(previous) = around.previous else { return Ok(()) };
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

fn checksums(key: Key, data: &[u8], around: &Around<'_>) -> Result<(), Refused> {
    require(
        key.objectid == EXTENT_CSUM_OBJECTID,
        "key objectid",
        key.objectid,
        EXTENT_CSUM_OBJECTID,
    )?;
    let start = key.offset;
    require(start.is_multiple_of(SECTOR_BYTES), "key offset", start, "sector aligned")?;
    let digest_bytes = around.rules.csum.bytes();
    let whole = !data.is_empty() && data.len().is_multiple_of(digest_bytes);
    require(whole, "item size", data.len(), format_args!("a multiple of {digest_bytes}, not 0"))?;
    let end = |start: u64, data: &[u8]| {
        let sectors = length(data.len().checked_div(digest_bytes).unwrap_or_default());
        start.checked_add(sectors.checked_mul(SECTOR_BYTES)?)
    };
    let fits = end(start, data).is_some();
    require(fits, "item size", data.len(), "an end inside the address space")?;
    let previous = around.previous_of(ItemType::EXTENT_CSUM);
    after(start, previous.and_then(|previous| end(previous.key.offset, previous.data)))
}
