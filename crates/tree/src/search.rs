//! One step of a descent: from a node to the child that covers a key.
//!
//! Left to others: where the blocks come from (`blocks`), whole descents (`tree`, `cursor`, `cow`).

use crate::Block;
use crate::error::TreeError;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::units::TreeId;

/// Returns the slot whose child covers the key, or `None` if the key is before the whole block.
pub(crate) fn covering_slot(block: &Block, key: &Key) -> Option<usize> {
    match block.find(key) {
        Ok(slot) => Some(slot),
        Err(slot) => slot.checked_sub(1),
    }
}

/// Returns the expected child in a slot of a node; `None` for a leaf, or if the node lacks the
/// slot. The keys of the node itself are below `end`, if that is given.
#[inline]
pub(crate) fn child(
    parent: &Block,
    slot: usize,
    tree: TreeId,
    end: Option<Key>,
) -> Option<Expected> {
    let (child, level) = parent.child(slot).zip(parent.level().checked_sub(1))?;
    Some(Expected {
        logical: child.logical,
        generation: child.generation,
        level,
        tree,
        first_key: Some(child.key),
        end_key: parent.key(slot.saturating_add(1)).or(end),
    })
}

/// Checks that a step of a scan leads to a greater key, so that no loop over items of a corrupt
/// tree is endless.
pub(crate) fn check_forward(tree: TreeId, from: &Key, to: &Key) -> Result<(), TreeError> {
    require(to > from, "key", to, format_args!("above {from}, the key before"))
        .map_err(|source| TreeError::Corrupt { tree, source })
}

pub(crate) fn no_child(parent: &Block, slot: usize) -> TreeError {
    let refused = Refused::new("slot", slot, "one of the block");
    TreeError::Corrupt {
        tree: parent.owner(),
        source: refused.at(format_args!("node {}", parent.logical())),
    }
}
