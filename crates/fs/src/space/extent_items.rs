//! Items of the extent tree: the extent at an address, and the references to it.
//!
//! References are stored inline in the extent's item as far as they fit, and as keyed items at the
//! same address otherwise; here they form one list.

use crate::{Error, Result};
use butternut_format::extent::{
    DataRef, Extent, ExtentKind, InlineRef, check_data_ref, check_shared_block_ref,
    check_shared_data_ref, check_tree_block_ref,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_tree::{Cursor, Tree};

/// One reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// File extents by tree, inode and offset.
    Data(DataRef),
    /// File extents in this leaf.
    SharedData { leaf: Logical },
    /// A tree that contains the block.
    Block { tree: TreeId },
    /// A node that refers to the block.
    SharedBlock { node: Logical },
}

/// An extent of the extent tree.
#[derive(Clone, Debug)]
pub(crate) struct ExtentRecord {
    pub(crate) start: Logical,
    pub(crate) bytes: u64,
    pub(crate) generation: Generation,
    /// The level of a tree block; `None` for data.
    pub(crate) level: Option<u8>,
    inline: Vec<Reference>,
}

impl ExtentRecord {
    /// Returns the extent that starts at an address.
    pub(crate) fn at(tree: &Tree, start: Logical) -> Result<Option<Self>> {
        let found = Self::at_or_below(tree, start)?;
        Ok(found.filter(|record| record.start == start))
    }

    /// Returns the extent that contains an address.
    pub(crate) fn covering(tree: &Tree, logical: Logical) -> Result<Option<Self>> {
        let found = Self::at_or_below(tree, logical)?;
        Ok(found.filter(|record| logical.0 - record.start.0 < record.bytes))
    }

    /// Returns the last extent that starts at or below an address. Extents do not overlap.
    fn at_or_below(tree: &Tree, logical: Logical) -> Result<Option<Self>> {
        let mut cursor = tree.cursor();
        let mut above = Key::new(logical.0, ItemType::METADATA_ITEM, u64::MAX);
        loop {
            cursor.seek_last(&above)?;
            let Some(key) = cursor.key() else { return Ok(None) };
            if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                return Self::here(&cursor).map(Some);
            }
            // Another item at this address: a block group, or references to a deleted extent.
            above = if key.objectid < above.objectid || key.item_type > above.item_type {
                Key::new(key.objectid, ItemType::METADATA_ITEM, u64::MAX)
            } else {
                let Some(below) = key.objectid.checked_sub(1) else { return Ok(None) };
                Key::new(below, ItemType::METADATA_ITEM, u64::MAX)
            };
        }
    }

    /// Returns the extent of the item at the cursor.
    fn here(cursor: &Cursor) -> Result<Self> {
        let (Some((key, data)), Some((leaf, _))) = (cursor.item_parts(), cursor.position()) else {
            return Err(Error::NotFound);
        };
        let rules = cursor.tree().volume().block_rules();
        let extent = Extent::check(key, data, leaf.generation(), &rules)
            .map_err(|refused| corrupt(key, refused))?;
        let mut inline = Vec::new();
        for reference in extent.inline_refs() {
            inline.extend(reference_of(reference.map_err(|refused| corrupt(key, refused))?));
        }
        Ok(Self {
            start: extent.logical,
            bytes: extent.bytes,
            generation: extent.generation,
            level: match extent.kind {
                ExtentKind::Data => None,
                ExtentKind::TreeBlock { level, .. } => Some(level),
            },
            inline,
        })
    }

    /// Returns all references, inline and keyed, at most `limit`.
    pub(crate) fn references(&self, tree: &Tree, limit: u64) -> Result<Vec<Reference>> {
        let mut references = self.inline.clone();
        let mut cursor = tree.cursor();
        cursor.seek(&Key::new(self.start.0, ItemType::TREE_BLOCK_REF, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.objectid != self.start.0 || key.item_type > ItemType::SHARED_DATA_REF {
                break;
            }
            if references.len() as u64 >= limit {
                return Err(Error::LimitExceeded { what: "references to one extent", limit });
            }
            references.extend(keyed(key, data).map_err(|refused| corrupt(key, refused))?);
            cursor.advance()?;
        }
        Ok(references)
    }
}

fn reference_of(reference: InlineRef) -> Option<Reference> {
    match reference {
        InlineRef::Owner(_) => None,
        InlineRef::TreeBlock(tree) => Some(Reference::Block { tree }),
        InlineRef::SharedBlock(node) => Some(Reference::SharedBlock { node }),
        InlineRef::Data(data) => Some(Reference::Data(data)),
        InlineRef::SharedData { parent, .. } => Some(Reference::SharedData { leaf: parent }),
    }
}

fn keyed(key: Key, data: &[u8]) -> Result<Option<Reference>, Refused> {
    Ok(match key.item_type {
        ItemType::TREE_BLOCK_REF => {
            Some(Reference::Block { tree: check_tree_block_ref(key, data)? })
        }
        ItemType::SHARED_BLOCK_REF => {
            Some(Reference::SharedBlock { node: check_shared_block_ref(key, data)? })
        }
        ItemType::EXTENT_DATA_REF => Some(Reference::Data(check_data_ref(key, data)?)),
        ItemType::SHARED_DATA_REF => {
            let (leaf, _) = check_shared_data_ref(key, data)?;
            Some(Reference::SharedData { leaf })
        }
        _ => None,
    })
}

fn corrupt(key: Key, refused: Refused) -> Error {
    Error::Corrupt { tree: TreeId::EXTENT, source: refused.at(format_args!("item {key}")) }
}
