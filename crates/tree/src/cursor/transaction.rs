//! A position in a tree that follows the running transaction.
//!
//! It keeps its leaf as it was, and the version of the tree at that moment. A step that finds
//! another version searches its key again. So it sees the current items, and no item twice.

use crate::Block;
use crate::cow::{LeafSlot, TransactionTree};
use crate::error::TreeError;
use crate::search::check_forward;
use butternut_format::key::{ItemType, Key};
use std::sync::Arc;

/// The most leaves in one readahead batch.
pub(super) const AHEAD_LEAVES_MAX: usize = 32;

/// A leaf of the tree, and a slot in it that holds an item.
#[derive(Clone, Debug)]
pub(super) struct TransactionPosition {
    pub(super) leaf: Arc<Block>,
    pub(super) slot: usize,
    /// The first key of the next leaf.
    pub(super) next: Option<Key>,
    pub(super) version: u64,
}

/// The readahead of a scan.
#[derive(Clone, Debug, Default)]
pub(super) struct TransactionReadahead {
    /// The leaves of the last batch, and those of them that the scan has not reached.
    batch: usize,
    left: usize,
}

/// One move in a tree of the running transaction.
pub(super) struct Walk<'a> {
    pub(super) tree: &'a TransactionTree,
    pub(super) ahead: Option<&'a mut TransactionReadahead>,
}

impl Walk<'_> {
    /// Finds the first item at or after the key.
    pub(super) fn seek(&mut self, key: &Key) -> Result<Option<TransactionPosition>, TreeError> {
        let mut from = *key;
        let mut found = self.descend(key)?;
        while found.slot >= found.leaf.len() {
            let Some(next) = found.next else { return Ok(None) };
            check_forward(self.tree.id(), &from, &next)?;
            from = next;
            found = self.descend(&next)?;
        }
        Ok(Some(TransactionPosition::from(found)))
    }

    /// Finds the last item at or before the key.
    pub(super) fn seek_last(
        &mut self,
        key: &Key,
    ) -> Result<Option<TransactionPosition>, TreeError> {
        let mut found = self.descend(key)?;
        if found.leaf.key(found.slot) != Some(*key) {
            // A key before the first item of a leaf is before the whole tree: otherwise the descent
            // had ended in the leaf to the left.
            let Some(slot) = found.slot.checked_sub(1) else { return Ok(None) };
            found.slot = slot;
        }
        Ok(Some(TransactionPosition::from(found)))
    }

    pub(super) fn advance(
        &mut self,
        at: TransactionPosition,
    ) -> Result<Option<TransactionPosition>, TreeError> {
        let after = at.slot.saturating_add(1);
        let is_same = at.version == self.tree.version();
        if is_same && after < at.leaf.len() {
            return Ok(Some(TransactionPosition { slot: after, ..at }));
        }
        let next = if is_same { at.next } else { at.key().and_then(Key::successor) };
        let Some((from, next)) = at.key().zip(next) else { return Ok(None) };
        check_forward(self.tree.id(), &from, &next)?;
        self.seek(&next)
    }

    pub(super) fn retreat(
        &mut self,
        at: TransactionPosition,
    ) -> Result<Option<TransactionPosition>, TreeError> {
        let before = at.slot.checked_sub(1).filter(|_| at.version == self.tree.version());
        if let Some(slot) = before {
            return Ok(Some(TransactionPosition { slot, ..at }));
        }
        match at.key().and_then(predecessor) {
            Some(key) => self.seek_last(&key),
            None => Ok(None),
        }
    }

    fn descend(&mut self, key: &Key) -> Result<LeafSlot, TreeError> {
        let leaves = self.ahead.as_deref_mut().map_or(0, TransactionReadahead::next_batch);
        // The leaves to read ahead are those that the descent found: they must not be overwritten.
        let _epoch = (leaves > 0).then(|| self.tree.epochs().enter());
        let found = self.tree.read(|reader| reader.descend(key, leaves))?;
        if !found.ahead.is_empty() {
            self.tree.blocks().read_ahead(&found.ahead);
        }
        Ok(found)
    }
}

impl TransactionReadahead {
    /// Returns how many leaves to read ahead now: batches double, and the next one begins when the
    /// last is used up.
    fn next_batch(&mut self) -> usize {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return 0;
        }
        let leaves = self.batch;
        self.batch = self.batch.saturating_mul(2).clamp(1, AHEAD_LEAVES_MAX);
        self.left = leaves;
        leaves
    }
}

impl TransactionPosition {
    pub(super) fn key(&self) -> Option<Key> {
        self.leaf.key(self.slot)
    }

    /// Returns the slot of the first item at or after the key, if the key is within this leaf and
    /// the tree is unchanged.
    pub(super) fn slot_of(&self, tree: &TransactionTree, key: &Key) -> Option<usize> {
        let last = self.leaf.len().checked_sub(1)?;
        let is_in_leaf = self.leaf.key(0)? <= *key && *key <= self.leaf.key(last)?;
        (is_in_leaf && self.version == tree.version())
            .then(|| self.leaf.find(key).unwrap_or_else(|slot| slot))
    }
}

impl From<LeafSlot> for TransactionPosition {
    fn from(found: LeafSlot) -> Self {
        let LeafSlot { leaf, slot, next, version, .. } = found;
        Self { leaf, slot, next, version }
    }
}

/// Returns the greatest key below this one.
fn predecessor(key: Key) -> Option<Key> {
    if let Some(offset) = key.offset.checked_sub(1) {
        return Some(Key { offset, ..key });
    }
    if let Some(item_type) = key.item_type.0.checked_sub(1) {
        return Some(Key::new(key.objectid, ItemType(item_type), u64::MAX));
    }
    let objectid = key.objectid.checked_sub(1)?;
    Some(Key::new(objectid, ItemType(u8::MAX), u64::MAX))
}
