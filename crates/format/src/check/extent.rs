//! The laws of extents and of keyed references to them.

use super::context::after;
use super::{LeafContext, LeafItem};
use crate::extent::{
    Extent, check_data_ref, check_shared_block_ref, check_shared_data_ref, check_tree_block_ref,
};
use crate::key::{ItemType, Key};
use crate::refused::Refused;

/// Checks one item whose type belongs to the extent tree; others pass.
pub(super) fn item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let LeafItem { key, data } = *item;
    match key.item_type {
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent(key, data, context),
        ItemType::TREE_BLOCK_REF => check_tree_block_ref(key, data).map(drop),
        ItemType::SHARED_BLOCK_REF => check_shared_block_ref(key, data).map(drop),
        ItemType::EXTENT_DATA_REF => check_data_ref(key, data).map(drop),
        ItemType::SHARED_DATA_REF => check_shared_data_ref(key, data).map(drop),
        _ => Ok(()),
    }
}

fn extent(key: Key, data: &[u8], context: &LeafContext<'_>) -> Result<(), Refused> {
    let extent = Extent::check(key, data, context.generation, context.rules)?;
    after(extent.logical.0, context.previous.and_then(|previous| end(&previous, context)))
}

/// Returns where the previous extent ends. Keyed references between two extents have the address of
/// the first.
fn end(previous: &LeafItem<'_>, context: &LeafContext<'_>) -> Option<u64> {
    let bytes = match previous.key.item_type {
        ItemType::EXTENT_ITEM => previous.key.offset,
        ItemType::METADATA_ITEM => u64::from(context.rules.node_bytes),
        _ => return None,
    };
    previous.key.objectid.checked_add(bytes)
}
