//! A cursor: a position among the items of one tree, and the steps from it.
//!
//! ```text
//! unplaced --seek, seek_last--> placed --advance, retreat--> placed
//!     ^                            |
//!     +---- past either end, or an error
//! ```
//!
//! Placed means: every level from the leaf to the root has a block and a slot in it, and the leaf's
//! slot holds an item. An unplaced cursor has no item, and stepping it stays there.
//!
//! A scanning cursor reads leaves ahead in batches that double with every batch used up, so that a
//! short walk costs no more than its own leaves and a long one keeps the device busy.

mod live;

use crate::Block;
use crate::error::TreeError;
use crate::tree::{Item, Tree, covering_slot, forward};
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::units::{LEVELS_MAX, Logical};
use live::{LiveAhead, LivePosition, Walk};
use std::sync::Arc;

/// The most leaves that one readahead batch holds.
const AHEAD_LEAVES_MAX: usize = 32;

#[derive(Clone, Debug)]
struct Step {
    block: Arc<Block>,
    slot: usize,
    /// The keys of the block stay below this one.
    end: Option<Key>,
}

/// What a scanning cursor has asked for: the children of `parent` below slot `until`.
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
    /// Leaf first. Levels above the root are `None`; so is the leaf while unplaced.
    path: [Option<Step>; LEVELS_MAX],
    ahead: Option<Ahead>,
    /// In a tree of the running transaction, in place of the path.
    live: Option<LivePosition>,
    live_ahead: Option<LiveAhead>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

impl Cursor {
    pub(crate) fn new(tree: Tree, scanning: bool) -> Self {
        let ahead = scanning.then_some(Ahead { leaves: 1, parent: Logical(0), until: 0 });
        let live_ahead = scanning.then(LiveAhead::default);
        Self { tree, path: std::array::from_fn(|_| None), ahead, live: None, live_ahead }
    }

    /// Makes a move in a running tree; `None` in a committed one. An error unplaces the cursor.
    fn walk(
        &mut self,
        step: impl FnOnce(
            &mut Walk<'_>,
            Option<LivePosition>,
        ) -> Result<Option<LivePosition>, TreeError>,
    ) -> Option<Result<(), TreeError>> {
        let live = self.tree.running()?;
        let forest = self.tree.forest();
        let mut walk = Walk { forest, live, ahead: self.live_ahead.as_mut() };
        let from = self.live.take();
        Some(step(&mut walk, from).map(|to| self.live = to))
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Moves to the first item at or after the key.
    pub fn seek(&mut self, key: &Key) -> Result<(), TreeError> {
        let moved = self.walk(|walk, from| match from {
            Some(at) => match at.slot_of(walk.live, key) {
                Some(slot) => Ok(Some(LivePosition { slot, ..at })),
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

    /// The key here, or `None` past either end.
    pub fn key(&self) -> Option<Key> {
        self.item_parts().map(|(key, _)| key)
    }

    /// The item's bytes here, or `None` past either end.
    pub fn data(&self) -> Option<&[u8]> {
        self.item_parts().map(|(_, data)| data)
    }

    /// Key and bytes here, or `None` past either end.
    pub fn item_parts(&self) -> Option<(Key, &[u8])> {
        let (leaf, slot) = self.position()?;
        leaf.item(slot)
    }

    /// The item here, kept alive on its own.
    pub fn item(&self) -> Option<Item> {
        let (leaf, slot) = self.position()?;
        Item::new(Arc::clone(leaf), slot)
    }

    /// The leaf the cursor is in, and its slot there.
    pub fn position(&self) -> Option<(&Arc<Block>, usize)> {
        if let Some(at) = &self.live {
            return Some((&at.leaf, at.slot));
        }
        self.leaf().map(|leaf| (&leaf.block, leaf.slot))
    }

    /// Moves to the next item.
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

    /// Moves to the item before.
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

    /// Runs a move; an error leaves the cursor unplaced, never half-way.
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

    /// Where the first item at or after the key is, if that is surely in the leaf held now.
    fn slot_in_leaf(&self, key: &Key) -> Option<usize> {
        let block = &self.leaf()?.block;
        let last = block.len().checked_sub(1)?;
        if block.key(0)? <= *key && *key <= block.key(last)? {
            return Some(block.find(key).unwrap_or_else(|slot| slot));
        }
        None
    }

    /// Fills the path down to the leaf that covers the key; the slot there is the first item at or
    /// after it, or one past the last.
    fn descend_to(&mut self, key: &Key) -> Result<usize, TreeError> {
        self.unplace();
        let mut expected = self.tree.root();
        loop {
            let block = self.tree.forest().block(&expected)?;
            if block.level() == 0 {
                let slot = block.find(key).unwrap_or_else(|slot| slot);
                self.hold(block, slot, expected.end_key);
                return Ok(slot);
            }
            let slot = covering_slot(&block, key).unwrap_or(0);
            let end = expected.end_key;
            expected = self.tree.child(&block, slot, end)?;
            self.hold(block, slot, end);
        }
    }

    fn step(&mut self, direction: Direction) -> Result<(), TreeError> {
        let Some(leaf) = self.leaf() else { return Ok(()) };
        match beside(&leaf.block, leaf.slot, direction) {
            Some(slot) => {
                self.set_leaf_slot(slot);
                Ok(())
            }
            None => self.next_leaf(direction),
        }
    }

    /// Climbs to the lowest level that has a slot beside, then goes down its near edge.
    fn next_leaf(&mut self, direction: Direction) -> Result<(), TreeError> {
        let turn = self.path.iter().skip(1).enumerate().find_map(|(below, step)| {
            let step = step.as_ref()?;
            beside(&step.block, step.slot, direction).map(|slot| (below, step, slot))
        });
        let Some((below, step, slot)) = turn else {
            self.unplace();
            return Ok(());
        };
        let from = self.key();
        let (block, end) = (Arc::clone(&step.block), step.end);
        let mut expected = self.tree.child(&block, slot, end)?;
        self.hold(block, slot, end);
        for _ in 0..=below {
            let block = self.tree.forest().block(&expected)?;
            let slot = match direction {
                Direction::Forward => 0,
                Direction::Backward => block.len().saturating_sub(1),
            };
            let end = expected.end_key;
            if block.level() > 0 {
                expected = self.tree.child(&block, slot, end)?;
            }
            self.hold(block, slot, end);
        }
        match (direction, from, self.key()) {
            (Direction::Forward, Some(from), Some(to)) => forward(self.tree.id(), &from, &to),
            (Direction::Backward, Some(from), Some(to)) => forward(self.tree.id(), &to, &from),
            (_, None, _) | (_, _, None) => Ok(()),
        }
    }

    fn hold(&mut self, block: Arc<Block>, slot: usize, end: Option<Key>) {
        if block.level() == 1 {
            self.read_ahead(&block, slot, end);
        }
        if let Some(step) = self.path.get_mut(usize::from(block.level())) {
            *step = Some(Step { block, slot, end });
        }
    }

    /// Asks for the leaves from `slot` on when the last batch of this parent is used up.
    fn read_ahead(&mut self, parent: &Block, slot: usize, end: Option<Key>) {
        let Some(ahead) = &mut self.ahead else { return };
        if ahead.parent == parent.logical() && slot < ahead.until {
            return;
        }
        if ahead.leaves > 1 {
            let until = slot.saturating_add(ahead.leaves).min(parent.len());
            let below = |slot| self.tree.child(parent, slot, end).ok();
            let wanted: Vec<Expected> = (slot..until).filter_map(below).collect();
            self.tree.forest().read_ahead(&wanted);
            ahead.until = until;
        } else {
            ahead.until = slot.saturating_add(1);
        }
        ahead.parent = parent.logical();
        ahead.leaves = ahead.leaves.saturating_mul(2).min(AHEAD_LEAVES_MAX);
    }
}

/// The slot next to this one in the block, if it has one there.
fn beside(block: &Block, slot: usize, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Forward => slot.checked_add(1).filter(|next| *next < block.len()),
        Direction::Backward => slot.checked_sub(1),
    }
}
