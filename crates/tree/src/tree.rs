//! One tree: a root that stays as it was looked up, or follows the running transaction, and the
//! exact search in it.
//!
//! Left to others: ordered iteration (`cursor`), where blocks come from (`forest`).

use crate::Block;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::live::LiveTree;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::units::TreeId;
use std::sync::Arc;

/// A tree: as of one root block, or, on a volume that was opened for writing, as the running
/// transaction has it. Cheap to clone; every clone sees the same state.
#[derive(Clone, Debug)]
pub struct Tree {
    forest: Arc<Forest>,
    root: Root,
}

#[derive(Clone, Debug)]
enum Root {
    Fixed(Expected),
    Live(Arc<LiveTree>),
}

/// A leaf slot. It keeps its block alive.
#[derive(Clone, Debug)]
pub struct Item {
    block: Arc<Block>,
    slot: usize,
}

impl Tree {
    pub(crate) fn new(forest: Arc<Forest>, root: Expected) -> Self {
        Self { forest, root: Root::Fixed(root) }
    }

    pub(crate) fn live(forest: Arc<Forest>, live: Arc<LiveTree>) -> Self {
        Self { forest, root: Root::Live(live) }
    }

    pub(crate) fn running(&self) -> Option<&Arc<LiveTree>> {
        match &self.root {
            Root::Fixed(_) => None,
            Root::Live(live) => Some(live),
        }
    }

    pub fn id(&self) -> TreeId {
        match &self.root {
            Root::Fixed(root) => root.tree,
            Root::Live(live) => live.id(),
        }
    }

    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// What the root block must be: address, generation and level.
    pub fn root(&self) -> Expected {
        match &self.root {
            Root::Fixed(root) => *root,
            Root::Live(live) => live.root(),
        }
    }

    /// Counts the edits of a tree that follows the running transaction: while the number stays, so
    /// does everything that was read since it was asked for.
    pub fn edits(&self) -> u64 {
        self.running().map_or(0, |live| live.version())
    }

    /// The item with exactly this key. Allocates nothing when the path to it is cached.
    pub fn find(&self, key: &Key) -> Result<Option<Item>, TreeError> {
        let root = match &self.root {
            Root::Fixed(root) => root,
            Root::Live(live) => {
                let place = live.read(&self.forest, |reader| reader.descend(key, 0))?;
                let is_it = place.leaf.key(place.slot) == Some(*key);
                return Ok(is_it.then(|| Item { block: place.leaf, slot: place.slot }));
            }
        };
        let mut end = root.end_key;
        let mut held = self.forest.hold(root)?;
        loop {
            let block = held.block();
            if block.level() == 0 {
                let found = block.find(key).ok();
                return Ok(found.map(|slot| Item { block: held.into_arc(), slot }));
            }
            let Some(slot) = covering_slot(block, key) else { return Ok(None) };
            let child = self.child(block, slot, end)?;
            end = child.end_key;
            held = self.forest.hold(&child)?;
        }
    }

    /// A position in this tree, for a few steps from a key.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.clone(), false)
    }

    /// A position in this tree, for a walk over many items: leaves ahead are read in batches.
    pub fn scan(&self) -> Cursor {
        Cursor::new(self.clone(), true)
    }

    /// What the block in a slot of an inner node must be. The keys of that node stay below `end`.
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

    pub fn key(&self) -> Key {
        self.parts().0
    }

    pub fn data(&self) -> &[u8] {
        self.parts().1
    }

    fn parts(&self) -> (Key, &[u8]) {
        self.block.item(self.slot).expect("an item is made only of a slot its leaf has")
    }
}

/// The slot whose child covers the key, or `None` where the key is before the whole block.
pub(crate) fn covering_slot(block: &Block, key: &Key) -> Option<usize> {
    match block.find(key) {
        Ok(slot) => Some(slot),
        Err(slot) => slot.checked_sub(1),
    }
}

/// What the block in a slot of an inner node must be; `None` for a leaf, or a slot it has not. The
/// keys of the node itself stay below `end`, where that is known.
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

/// A walk must come to greater keys with each step; a tree in which it does not is refused, so that
/// no loop over items goes on for ever.
pub(crate) fn forward(tree: TreeId, from: &Key, to: &Key) -> Result<(), TreeError> {
    require(to > from, "key", to, format_args!("above {from}, which a walk came from"))
        .map_err(|source| TreeError::Corrupt { tree, source })
}

pub(crate) fn no_child(parent: &Block, slot: usize) -> TreeError {
    let refused = Refused::new("slot", slot, "one the block has");
    TreeError::Corrupt {
        tree: parent.owner(),
        source: refused.at(format_args!("node {}", parent.logical())),
    }
}
