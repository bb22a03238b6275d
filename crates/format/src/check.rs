//! The laws of a tree block: its header, its slots, and every item of a leaf.
//!
//! The laws of the header and of the slots are in `block`. Those of the items are in one file per
//! family, selected by the type in the item's key:
//!
//! - `device`: chunks, devices, device extents, error counts, replacement.
//! - `space`: block groups, free space, checksums of data.
//! - `extent`: extents and references to them.
//! - `root`: roots of trees, names of subvolumes, quota groups.
//! - `subvolume`: items of subvolumes and of the tree log: inodes, names, file extents.
//!
//! An item of an unknown type passes, as in the kernel: a later feature may have written it, and
//! code that searches for known items does not find it.
//!
//! Each law is at least as strict as the kernel's tree checker, and accepts everything that the
//! kernel or mkfs.btrfs writes.

mod block;
mod context;
mod device;
mod extent;
mod root;
mod space;
mod subvolume;

pub use block::{below_end, block};
pub use context::{LeafContext, LeafItem};

use crate::free_space::FREE_SPACE_OBJECTID;
use crate::inode::Inode;
use crate::key::ItemType;
use crate::node::TreeBlock;
use crate::refused::Refused;
use std::ops::Deref;

/// Checks one item of a leaf.
///
/// # Errors
/// The first law that the item violates.
pub fn leaf_item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    match item.key.item_type {
        ItemType(0) if item.key.objectid == FREE_SPACE_OBJECTID => space::header(item),
        ItemType::CHUNK_ITEM
        | ItemType::DEV_ITEM
        | ItemType::DEV_EXTENT
        | ItemType::PERSISTENT_ITEM
        | ItemType::DEV_REPLACE => device::item(item, context),
        ItemType::BLOCK_GROUP_ITEM
        | ItemType::FREE_SPACE_INFO
        | ItemType::FREE_SPACE_EXTENT
        | ItemType::FREE_SPACE_BITMAP
        | ItemType::EXTENT_CSUM => space::item(item, context),
        ItemType::EXTENT_ITEM
        | ItemType::METADATA_ITEM
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF => extent::item(item, context),
        ItemType::ROOT_ITEM
        | ItemType::ROOT_REF
        | ItemType::ROOT_BACKREF
        | ItemType::QGROUP_STATUS
        | ItemType::QGROUP_INFO
        | ItemType::QGROUP_LIMIT
        | ItemType::QGROUP_RELATION => root::item(item, context),
        ItemType::RAID_STRIPE => {
            Err(Refused::new("key type", item.key.item_type.0, "none of raid-stripe-tree"))
        }
        _ => subvolume::item(item, context),
    }
}

/// Checks what must hold of a leaf beyond the other laws where the volume is open for writing: no
/// inode has unknown read-only compatible flags. As in the kernel, the whole leaf is refused.
///
/// # Errors
/// An inode has such a flag.
pub fn writable_leaf<B: Deref<Target = [u8]>>(leaf: &TreeBlock<B>) -> Result<(), Refused> {
    for slot in 0..leaf.len() {
        let Some((key, data)) = leaf.item(slot) else { continue };
        if key.item_type == ItemType::INODE_ITEM {
            let inode = Inode::check(data).and_then(|inode| inode.flags.check_writable());
            inode.map_err(|refused| refused.at(format_args!("item {slot} {key}")))?;
        }
    }
    Ok(())
}
