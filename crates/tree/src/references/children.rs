//! The children of a tree block: the blocks below a node, and the data extents that a leaf of a
//! subvolume names.
//!
//! Left to others: when references change (`cow::copy`, `drop_tree`).

use super::{Content, References, Referrer};
use crate::Block;
use crate::error::TreeError;
use crate::search::child;
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::units::TreeId;

/// A block or a data extent that a tree block refers to.
pub(crate) enum ChildRef<'a> {
    Block(Expected),
    Data(Key, FileExtent<'a>),
}

/// Returns the children of a block of `tree`.
///
/// # Errors
/// An item is corrupt: no reference count has changed.
pub(crate) fn children(tree: TreeId, block: &Block) -> Result<Vec<ChildRef<'_>>, TreeError> {
    let mut children = Vec::with_capacity(block.len());
    for slot in 0..block.len() {
        if let Some(expected) = child(block, slot, tree, None) {
            children.push(ChildRef::Block(expected));
            continue;
        }
        let Some((key, data)) = block.item(slot) else { continue };
        if key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let extent = FileExtent::check(data, key.offset).map_err(|refused| {
            let source = refused.at(format_args!("leaf {}: {key}", block.logical()));
            TreeError::Corrupt { tree, source }
        })?;
        children.push(ChildRef::Data(key, extent));
    }
    Ok(children)
}

/// Adds `delta` to the references that `referrer` has to each of `children`.
pub(crate) fn change_child_refs(
    references: &mut References,
    node_bytes: u32,
    children: &[ChildRef<'_>],
    referrer: Referrer,
    delta: i64,
) {
    for child in children {
        match child {
            ChildRef::Block(block) => {
                let content = Content::block(block.level, block.first_key);
                let reference = referrer.to_block();
                references.change(block.logical, node_bytes.into(), content, reference, delta);
            }
            ChildRef::Data(key, extent) => {
                if let Some((start, bytes, reference)) = referrer.to_data(key, extent) {
                    references.change(start, bytes, Content::Data, reference, delta);
                }
            }
        }
    }
}
