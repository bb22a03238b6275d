//! One tree, with a fixed root or following the running transaction, and the search for a key in
//! it.
//!
//! Left to others: ordered iteration (`cursor`), reading blocks (`blocks`).

use crate::Block;
use crate::blocks::Blocks;
use crate::cow::TransactionTree;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::search::{child, covering_slot, no_child};
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::units::{Logical, TreeId};
use butternut_volume::Volume;
use std::sync::Arc;

/// A tree: with a fixed root block, or, on a volume that is open for writing, as the running
/// transaction has it. Clones are cheap and see the same state.
#[derive(Clone, Debug)]
pub struct Tree {
    blocks: Arc<Blocks>,
    root: Root,
}

#[derive(Clone, Debug)]
enum Root {
    Fixed(Expected),
    Transaction(Arc<TransactionTree>),
}

/// A leaf slot. It keeps its block alive.
#[derive(Clone, Debug)]
pub struct Item {
    block: Arc<Block>,
    slot: usize,
}

impl Tree {
    pub(crate) fn new(blocks: Arc<Blocks>, root: Expected) -> Self {
        Self { blocks, root: Root::Fixed(root) }
    }

    pub(crate) fn in_transaction(tree: Arc<TransactionTree>) -> Self {
        Self { blocks: Arc::clone(tree.blocks()), root: Root::Transaction(tree) }
    }

    pub(crate) fn transaction_tree(&self) -> Option<&Arc<TransactionTree>> {
        match &self.root {
            Root::Fixed(_) => None,
            Root::Transaction(tree) => Some(tree),
        }
    }

    /// Returns the id of the tree.
    pub fn id(&self) -> TreeId {
        match &self.root {
            Root::Fixed(root) => root.tree,
            Root::Transaction(tree) => tree.id(),
        }
    }

    /// Returns the volume of the tree.
    pub fn volume(&self) -> &Arc<Volume> {
        self.blocks.volume()
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Returns the expected root block: address, generation and level.
    pub fn root(&self) -> Expected {
        match &self.root {
            Root::Fixed(root) => *root,
            Root::Transaction(tree) => tree.root(),
        }
    }

    /// Returns a counter that each edit of a tree in the running transaction increments; 0 for a
    /// fixed tree. While it is unchanged, so are all items that were read since it was read.
    pub fn version(&self) -> u64 {
        self.transaction_tree().map_or(0, |tree| tree.version())
    }

    /// Returns the item with exactly this key. Allocates nothing if the blocks of its path are
    /// cached.
    ///
    /// # Errors
    /// A block of the path cannot be read or is corrupt.
    pub fn find(&self, key: &Key) -> Result<Option<Item>, TreeError> {
        let root = match &self.root {
            Root::Fixed(root) => root,
            Root::Transaction(tree) => {
                let found = tree.read(|reader| reader.descend(key, 0))?;
                let is_found = found.leaf.key(found.slot) == Some(*key);
                return Ok(is_found.then(|| Item { block: found.leaf, slot: found.slot }));
            }
        };
        let mut end = root.end_key;
        let mut guard = self.blocks.borrow(root)?;
        loop {
            let block = guard.block();
            if block.level() == 0 {
                let found = block.find(key).ok();
                return Ok(found.map(|slot| Item { block: guard.into_arc(), slot }));
            }
            let Some(slot) = covering_slot(block, key) else { return Ok(None) };
            let child = self.child(block, slot, end)?;
            end = child.end_key;
            guard = self.blocks.borrow(&child)?;
        }
    }

    /// Returns the addresses of the blocks on the way to a key, from the root to the one of
    /// `level`. That one is not read: nodes of a tree that is being deleted name blocks that are
    /// freed.
    ///
    /// # Errors
    /// A block above that level cannot be read or is corrupt.
    pub fn path(&self, key: &Key, level: u8) -> Result<Vec<Logical>, TreeError> {
        if let Root::Transaction(tree) = &self.root {
            return tree.read(|reader| reader.path(key, level));
        }
        let (mut expected, mut path) = (self.root(), Vec::new());
        loop {
            path.push(expected.logical);
            if expected.level <= level {
                return Ok(path);
            }
            let block = self.blocks.read(&expected)?;
            let slot = covering_slot(&block, key).unwrap_or(0);
            expected = self.child(&block, slot, expected.end_key)?;
        }
    }

    /// Returns a block of the tree, which may be one that the running transaction has not written.
    ///
    /// # Errors
    /// The block cannot be read or is corrupt.
    pub fn block(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        match &self.root {
            Root::Fixed(_) => self.blocks.read(expected),
            Root::Transaction(tree) => tree.read(|reader| reader.block(expected)),
        }
    }

    /// Creates a cursor for a few steps from a key.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.clone(), false)
    }

    /// Creates a cursor for a scan of many items: it reads leaves ahead in batches.
    pub fn scan(&self) -> Cursor {
        Cursor::new(self.clone(), true)
    }

    /// Returns the expected child in a slot of a node, whose own keys are below `end`.
    pub(crate) fn child(
        &self,
        parent: &Block,
        slot: usize,
        end: Option<Key>,
    ) -> Result<Expected, TreeError> {
        child(parent, slot, self.id(), end).ok_or_else(|| no_child(parent, slot))
    }
}

impl Item {
    pub(crate) fn new(block: Arc<Block>, slot: usize) -> Option<Self> {
        block.item(slot).is_some().then_some(Self { block, slot })
    }

    /// Returns the key.
    pub fn key(&self) -> Key {
        self.parts().0
    }

    /// Returns the data.
    pub fn data(&self) -> &[u8] {
        self.parts().1
    }

    fn parts(&self) -> (Key, &[u8]) {
        self.block.item(self.slot).expect("the leaf of an item has its slot")
    }
}
