//! The laws of a tree block: its header, its slots, and what every item of a leaf holds.
//!
//! The laws of the header and of the slots are in `block`; those of the items are one file per
//! family, chosen here by the type in the item's key:
//!
//! - `device`: chunks, devices, device extents, counts, replacement.
//! - `space`: block groups, free space, checksums of data.
//! - `extent`: extents and what refers to them.
//! - `root`: roots of trees, names of subvolumes, quota groups.
//! - `subvolume`: what a subvolume, or the tree log, is made of: inodes, names, file extents.
//!
//! An item of a type that no family knows is let through, as the kernel does: a tree may hold what
//! a later feature wrote, and whoever looks for known items does not see it.
//!
//! Each law is at least as strict as the kernel's own tree checker, and never refuses what the
//! kernel or mkfs.btrfs writes.

mod block;
mod device;
mod extent;
mod root;
mod space;
mod subvolume;

pub use block::{below_end, block};

use crate::free_space::FREE_SPACE_OBJECTID;
use crate::key::{ItemType, Key};
use crate::node::BlockRules;
use crate::refused::{Refused, require};
use crate::units::{Generation, TreeId};
use std::fmt;

/// An item of a leaf: its key, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct LeafItem<'a> {
    pub key: Key,
    pub data: &'a [u8],
}

/// What is known around an item while it is checked.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The item in the slot before, if any. It has passed its own check.
    pub previous: Option<LeafItem<'a>>,
    /// The tree that the leaf's header names.
    pub owner: TreeId,
    /// The generation that the leaf was written in: nothing in it can be newer.
    pub generation: Generation,
    pub rules: &'a BlockRules,
}

impl<'a> Around<'a> {
    /// The item before, where its key is of this type.
    fn previous_of(&self, item_type: ItemType) -> Option<LeafItem<'a>> {
        self.previous.filter(|previous| previous.key.item_type == item_type)
    }
}

/// Checks what one item of a leaf holds.
pub fn leaf_item(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    match item.key.item_type {
        ItemType(0) if item.key.objectid == FREE_SPACE_OBJECTID => space::header(item),
        ItemType::CHUNK_ITEM
        | ItemType::DEV_ITEM
        | ItemType::DEV_EXTENT
        | ItemType::PERSISTENT_ITEM
        | ItemType::DEV_REPLACE => device::item(item, around),
        ItemType::BLOCK_GROUP_ITEM
        | ItemType::FREE_SPACE_INFO
        | ItemType::FREE_SPACE_EXTENT
        | ItemType::FREE_SPACE_BITMAP
        | ItemType::EXTENT_CSUM => space::item(item, around),
        ItemType::EXTENT_ITEM
        | ItemType::METADATA_ITEM
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF => extent::item(item, around),
        ItemType::ROOT_ITEM
        | ItemType::ROOT_REF
        | ItemType::ROOT_BACKREF
        | ItemType::QGROUP_STATUS
        | ItemType::QGROUP_INFO
        | ItemType::QGROUP_LIMIT
        | ItemType::QGROUP_RELATION => root::item(item, around),
        ItemType::RAID_STRIPE => {
            Err(Refused::new("key type", item.key.item_type.0, "none of raid-stripe-tree"))
        }
        _ => subvolume::item(item, around),
    }
}

/// The law of ranges that lie one after another: none begins before the last one's end.
fn after(start: u64, previous_end: impl Into<Option<u64>>) -> Result<(), Refused> {
    let end = previous_end.into().unwrap_or_default();
    require(start >= end, "start", start, AtLeast(end))
}

struct AtLeast(u64);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at least {}, where the item before ends", self.0)
    }
}
