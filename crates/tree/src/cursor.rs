//! Cursors: a position among the items of one tree, and steps from it.
//!
//! ```text
//! unplaced --seek, seek_last--> placed --advance, retreat--> placed
//!     ^                            |
//!     +---- past either end, or an error
//! ```
//!
//! A placed cursor in a tree with a fixed root has a block and a slot at every level from the root
//! to the leaf, and the slot of the leaf holds an item. In a tree of the running transaction it has
//! only the leaf ([`transaction`]). An unplaced cursor has no item, and a step leaves it unplaced.
//!
//! A scanning cursor reads leaves ahead in batches. Each batch is twice as long as the last one, up
//! to [`AHEAD_LEAVES_MAX`] leaves, so that a short scan reads few leaves too many and a long one
//! keeps the device busy.

mod transaction;

use crate::Block;
use crate::error::TreeError;
use crate::search::{check_forward, covering_slot};
use crate::tree::{Item, Tree};
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::units::{LEVELS_MAX, Logical};
use std::sync::Arc;
use transaction::{AHEAD_LEAVES_MAX, TransactionPosition, TransactionReadahead, Walk};

#[derive(Clone, Debug)]
struct Step {
    block: Arc<Block>,
    slot: usize,
    /// The keys of the block are below this one.
    end: Option<Key>,
}

/// The readahead of a scanning cursor: the children of `parent` below slot `until` were read.
#[derive(Clone, Debug)]
struct Ahead {
    leaves: usize,
    parent: Logical,
    until: usize,
}

/// A position in a tree.
#[derive(Clone, Debug)]
pub struct Cursor {
    tree: Tree,
    /// Leaf first. Levels above the root are `None`. In an unplaced cursor all are.
    path: [Option<Step>; LEVELS_MAX],
    ahead: Option<Ahead>,
    /// The position in a tree of the running transaction; `path` is not used then.
    position: Option<TransactionPosition>,
    transaction_readahead: Option<TransactionReadahead>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

impl Cursor {
    pub(crate) fn new(tree: Tree, scanning: bool) -> Self {
        let ahead = scanning.then_some(Ahead { leaves: 1, parent: Logical(0), until: 0 });
        let transaction_readahead = scanning.then(TransactionReadahead::default);
        Self {
            tree,
            path: std::array::from_fn(|_| None),
            ahead,
            position: None,
            transaction_readahead,
        }
    }

    /// Moves in a tree of the running transaction; `None` in another tree. An error makes the
    /// cursor unplaced.
    fn walk(
        &mut self,
        step: impl FnOnce(
            &mut Walk<'_>,
            Option<TransactionPosition>,
        ) -> Result<Option<TransactionPosition>, TreeError>,
    ) -> Option<Result<(), TreeError>> {
        let tree = self.tree.transaction_tree()?;
        let mut walk = Walk { tree, ahead: self.transaction_readahead.as_mut() };
        let from = self.position.take();
        Some(step(&mut walk, from).map(|to| self.position = to))
    }

    /// Returns the tree of the cursor.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Moves to the first item at or after the key.
    ///
    /// # Errors
    /// A block cannot be read or is corrupt. The cursor is unplaced then.
    pub fn seek(&mut self, key: &Key) -> Result<(), TreeError> {
        let moved = self.walk(|walk, from| match from {
            Some(at) => match at.slot_of(walk.tree, key) {
                Some(slot) => Ok(Some(TransactionPosition { slot, ..at })),
                None => walk.seek(key),
            },
            None => walk.seek(key),
        });
        if let Some(moved) = moved {
            return moved;
        }
        if let Some(slot) = self.slot_in_leaf(key) {
            self.set_leaf_slot(slot);
            return Ok(());
        }
        self.placed(|cursor| {
            let slot = cursor.descend_to(key)?;
            cursor.set_leaf_slot(slot);
            if cursor.item_parts().is_none() {
                cursor.next_leaf(Direction::Forward)
            } else {
                Ok(())
            }
        })
    }

    /// Moves to the last item at or before the key.
    ///
    /// # Errors
    /// A block cannot be read or is corrupt. The cursor is unplaced then.
    pub fn seek_last(&mut self, key: &Key) -> Result<(), TreeError> {
        if let Some(moved) = self.walk(|walk, _| walk.seek_last(key)) {
            return moved;
        }
        self.placed(|cursor| {
            let slot = cursor.descend_to(key)?;
            cursor.set_leaf_slot(slot);
            let at_key = cursor.item_parts().is_some_and(|(found, _)| found == *key);
            if at_key { Ok(()) } else { cursor.step(Direction::Backward) }
        })
    }

    /// Returns the key at the cursor, or `None` past either end.
    pub fn key(&self) -> Option<Key> {
        self.item_parts().map(|(key, _)| key)
    }

    /// Returns the data at the cursor, or `None` past either end.
    pub fn data(&self) -> Option<&[u8]> {
        self.item_parts().map(|(_, data)| data)
    }

    /// Returns key and data at the cursor, or `None` past either end.
    pub fn item_parts(&self) -> Option<(Key, &[u8])> {
        let (leaf, slot) = self.position()?;
        leaf.item(slot)
    }

    /// Returns the item at the cursor. It stays valid when the cursor moves.
    pub fn item(&self) -> Option<Item> {
        let (leaf, slot) = self.position()?;
        Item::new(Arc::clone(leaf), slot)
    }

    /// Returns the leaf of the cursor, and the slot in it.
    pub fn position(&self) -> Option<(&Arc<Block>, usize)> {
        if let Some(at) = &self.position {
            return Some((&at.leaf, at.slot));
        }
        self.leaf().map(|leaf| (&leaf.block, leaf.slot))
    }

    /// Moves to the next item.
    ///
    /// # Errors
    /// A block cannot be read or is corrupt. The cursor is unplaced then.
    pub fn advance(&mut self) -> Result<(), TreeError> {
        let step = |walk: &mut Walk<'_>, from| match from {
            Some(at) => walk.advance(at),
            None => Ok(None),
        };
        if let Some(moved) = self.walk(step) {
            return moved;
        }
        self.placed(|cursor| cursor.step(Direction::Forward))
    }

    /// Moves to the previous item.
    ///
    /// # Errors
    /// A block cannot be read or is corrupt. The cursor is unplaced then.
    pub fn retreat(&mut self) -> Result<(), TreeError> {
        let step = |walk: &mut Walk<'_>, from| match from {
            Some(at) => walk.retreat(at),
            None => Ok(None),
        };
        if let Some(moved) = self.walk(step) {
            return moved;
        }
        self.placed(|cursor| cursor.step(Direction::Backward))
    }

    fn leaf(&self) -> Option<&Step> {
        let [leaf, ..] = &self.path;
        leaf.as_ref()
    }

    fn set_leaf_slot(&mut self, slot: usize) {
        let [leaf, ..] = &mut self.path;
        if let Some(leaf) = leaf {
            leaf.slot = slot;
        }
    }

    fn unplace(&mut self) {
        self.path.fill(None);
    }

    /// Runs a move. An error makes the cursor unplaced.
    fn placed(
        &mut self,
        move_it: impl FnOnce(&mut Self) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let moved = move_it(self);
        if moved.is_err() {
            self.unplace();
        }
        moved
    }

    /// Returns the slot of the first item at or after the key, if the key is within the current
    /// leaf.
    fn slot_in_leaf(&self, key: &Key) -> Option<usize> {
        let block = &self.leaf()?.block;
        let last = block.len().checked_sub(1)?;
        if block.key(0)? <= *key && *key <= block.key(last)? {
            return Some(block.find(key).unwrap_or_else(|slot| slot));
        }
        None
    }

    /// Fills the path down to the leaf that covers the key. Returns the slot of the first item at
    /// or after it, or the number of items.
    fn descend_to(&mut self, key: &Key) -> Result<usize, TreeError> {
        self.unplace();
        let mut expected = self.tree.root();
        loop {
            let block = self.tree.blocks().read(&expected)?;
            if block.level() == 0 {
                let slot = block.find(key).unwrap_or_else(|slot| slot);
                self.set_step(block, slot, expected.end_key);
                return Ok(slot);
            }
            let slot = covering_slot(&block, key).unwrap_or(0);
            let end = expected.end_key;
            expected = self.tree.child(&block, slot, end)?;
            self.set_step(block, slot, end);
        }
    }

    fn step(&mut self, direction: Direction) -> Result<(), TreeError> {
        let Some(leaf) = self.leaf() else { return Ok(()) };
        match next_slot(&leaf.block, leaf.slot, direction) {
            Some(slot) => {
                self.set_leaf_slot(slot);
                Ok(())
            }
            None => self.next_leaf(direction),
        }
    }

    /// Climbs to the lowest level with a further slot in this direction, then descends to the
    /// nearest leaf below it.
    fn next_leaf(&mut self, direction: Direction) -> Result<(), TreeError> {
        let found = self.path.iter().skip(1).enumerate().find_map(|(below, step)| {
            let step = step.as_ref()?;
            next_slot(&step.block, step.slot, direction).map(|slot| (below, step, slot))
        });
        let Some((below, step, slot)) = found else {
            self.unplace();
            return Ok(());
        };
        let from = self.key();
        let (block, end) = (Arc::clone(&step.block), step.end);
        let mut expected = self.tree.child(&block, slot, end)?;
        self.set_step(block, slot, end);
        for _ in 0..=below {
            let block = self.tree.blocks().read(&expected)?;
            let slot = match direction {
                Direction::Forward => 0,
                Direction::Backward => block.len().saturating_sub(1),
            };
            let end = expected.end_key;
            if block.level() > 0 {
                expected = self.tree.child(&block, slot, end)?;
            }
            self.set_step(block, slot, end);
        }
        match (direction, from, self.key()) {
            (Direction::Forward, Some(from), Some(to)) => check_forward(self.tree.id(), &from, &to),
            (Direction::Backward, Some(from), Some(to)) => {
                check_forward(self.tree.id(), &to, &from)
            }
            (_, None, _) | (_, _, None) => Ok(()),
        }
    }

    fn set_step(&mut self, block: Arc<Block>, slot: usize, end: Option<Key>) {
        if block.level() == 1 {
            self.read_ahead(&block, slot, end);
        }
        if let Some(step) = self.path.get_mut(usize::from(block.level())) {
            *step = Some(Step { block, slot, end });
        }
    }

    /// Reads the leaves from `slot` on ahead, if the last batch of this parent is used up.
    fn read_ahead(&mut self, parent: &Block, slot: usize, end: Option<Key>) {
        let Some(ahead) = &mut self.ahead else { return };
        if ahead.parent == parent.logical() && slot < ahead.until {
            return;
        }
        if ahead.leaves > 1 {
            let until = slot.saturating_add(ahead.leaves).min(parent.len());
            let below = |slot| self.tree.child(parent, slot, end).ok();
            let leaves: Vec<Expected> = (slot..until).filter_map(below).collect();
            self.tree.blocks().read_ahead(&leaves);
            ahead.until = until;
        } else {
            ahead.until = slot.saturating_add(1);
        }
        ahead.parent = parent.logical();
        ahead.leaves = ahead.leaves.saturating_mul(2).min(AHEAD_LEAVES_MAX);
    }
}

/// Returns the slot next to this one in the block, if there is one.
fn next_slot(block: &Block, slot: usize, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Forward => slot.checked_add(1).filter(|next| *next < block.len()),
        Direction::Backward => slot.checked_sub(1),
    }
}
