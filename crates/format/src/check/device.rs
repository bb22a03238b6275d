//! The laws of the chunk tree and of the device tree.

use super::context::after;
use super::{LeafContext, LeafItem};
use crate::chunk::Chunk;
use crate::device_extent::{DEV_STATS, DeviceExtent, DeviceStats, RawDeviceReplace};
use crate::device_item::DeviceItem;
use crate::key::{ItemType, Key};
use crate::refused::{Refused, require};

/// Checks one item whose type belongs to the chunk tree or the device tree; others pass.
pub(super) fn item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let LeafItem { key, data } = *item;
    match key.item_type {
        ItemType::CHUNK_ITEM => chunk(key, data, context),
        ItemType::DEV_ITEM => DeviceItem::check(key, data).map(drop),
        ItemType::DEV_EXTENT => extent(key, data, context),
        ItemType::PERSISTENT_ITEM if key.objectid == DEV_STATS => {
            DeviceStats::check(data).map(drop)
        }
        ItemType::DEV_REPLACE => {
            require(key.objectid == 0, "key objectid", key.objectid, 0)?;
            RawDeviceReplace::check(data).map(drop)
        }
        _ => Ok(()),
    }
}

fn chunk(key: Key, data: &[u8], context: &LeafContext<'_>) -> Result<(), Refused> {
    let chunk = Chunk::check(key, data, context.rules.incompat)?;
    if let Some(previous) = context.previous_of(ItemType::CHUNK_ITEM) {
        let previous = Chunk::check(previous.key, previous.data, context.rules.incompat)?;
        after(chunk.logical.0, previous.end().0)?;
    }
    Ok(())
}

fn extent(key: Key, data: &[u8], context: &LeafContext<'_>) -> Result<(), Refused> {
    let extent = DeviceExtent::check(key, data)?;
    if let Some(previous) = context.previous_of(ItemType::DEV_EXTENT) {
        let previous = DeviceExtent::check(previous.key, previous.data)?;
        if previous.devid == extent.devid {
            after(extent.offset.0, previous.end().0)?;
        }
    }
    Ok(())
}
