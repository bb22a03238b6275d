//! The trees of the last commit before the volume was opened, from the roots that the superblock
//! names.
//!
//! Left to others: the trees of the running transaction (`transaction::running`).

use crate::blocks::Blocks;
use crate::error::TreeError;
use crate::tree::Tree;
use butternut_format::key::{ItemType, Key};
use butternut_format::root::RootItem;
use butternut_format::units::TreeId;
use butternut_volume::Volume;
use std::sync::Arc;

/// The committed trees of a volume.
#[derive(Debug)]
pub(crate) struct CommittedTrees {
    blocks: Arc<Blocks>,
}

impl CommittedTrees {
    pub(crate) fn new(blocks: Arc<Blocks>) -> Self {
        Self { blocks }
    }

    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.blocks.volume()
    }

    pub(crate) fn root_tree(&self) -> Tree {
        Tree::new(Arc::clone(&self.blocks), self.volume().super_block().root())
    }

    pub(crate) fn chunk_tree(&self) -> Tree {
        Tree::new(Arc::clone(&self.blocks), self.volume().super_block().chunk_root())
    }

    /// Returns the tree with this id, or `None` if the volume has none.
    pub(crate) fn tree(&self, id: TreeId) -> Result<Option<Tree>, TreeError> {
        match id {
            TreeId::ROOT => Ok(Some(self.root_tree())),
            TreeId::CHUNK => Ok(Some(self.chunk_tree())),
            _ => {
                let found = root_item(&self.root_tree(), id)?;
                Ok(found.map(|(_, root)| Tree::new(Arc::clone(&self.blocks), root.block(id))))
            }
        }
    }
}

/// Returns the newest root item of a tree in the root tree, with its key.
pub(crate) fn root_item(roots: &Tree, id: TreeId) -> Result<Option<(Key, RootItem)>, TreeError> {
    let mut cursor = roots.cursor();
    cursor.seek_last(&Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX))?;
    let Some((key, data)) = cursor.key().zip(cursor.data()) else { return Ok(None) };
    if key.objectid != id.0 || key.item_type != ItemType::ROOT_ITEM {
        return Ok(None);
    }
    let root = RootItem::check(key, data).map_err(|refused| TreeError::Corrupt {
        tree: TreeId::ROOT,
        source: refused.at(format_args!("root item {key}")),
    })?;
    Ok(Some((key, root)))
}
