//! [`LeafContext`]: what the check of an item knows besides the item, and laws of two neighbours.

use crate::key::{ItemType, Key};
use crate::node::BlockRules;
use crate::refused::{Refused, require};
use crate::units::{Generation, TreeId};
use std::fmt;

/// An item of a leaf: its key and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct LeafItem<'a> {
    pub key: Key,
    pub data: &'a [u8],
}

/// The context of an item that is checked.
#[derive(Clone, Copy, Debug)]
pub struct LeafContext<'a> {
    /// The item in the previous slot, if any. It has passed its own check.
    pub previous: Option<LeafItem<'a>>,
    /// The owner in the header of the leaf.
    pub owner: TreeId,
    /// The generation of the leaf: no item in it can be newer.
    pub generation: Generation,
    pub rules: &'a BlockRules,
}

impl<'a> LeafContext<'a> {
    /// Returns the previous item if its key has this type.
    pub(super) fn previous_of(&self, item_type: ItemType) -> Option<LeafItem<'a>> {
        self.previous.filter(|previous| previous.key.item_type == item_type)
    }
}

/// Checks that a range does not begin before the previous one ends.
pub(super) fn after(start: u64, previous_end: impl Into<Option<u64>>) -> Result<(), Refused> {
    let end = previous_end.into().unwrap_or_default();
    require(start >= end, "start", start, AtLeast(end))
}

struct AtLeast(u64);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at least {}, where the item before ends", self.0)
    }
}
