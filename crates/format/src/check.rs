//! The laws of a tree block: its header, its slots, and what every item of a leaf holds.
//!
//! The laws of the header and of the slots are in `block`; those of the items are one file per
//! family, chosen here by the type in the item's key:
//!
//! - `subvolume`: what a subvolume, or the tree log, is made of: inodes, names, file extents.
//!
//! An item of a type that no family knows is let through, as the kernel does: a tree may hold what
//! a later feature wrote, and whoever looks for known items does not see it.
//!
//! Each law is at least as strict as the kernel's own tree checker, and never refuses what the
//! kernel or mkfs.btrfs writes.

mod block;
mod subvolume;

pub use block::block;

use crate::key::Key;
use crate::node::BlockRules;
use crate::refused::Refused;
use crate::units::{Generation, TreeId};

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

/// Checks what one item of a leaf holds.
pub fn leaf_item(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    subvolume::item(item, around)
}
