//! A position in a tree that follows the running transaction.
//!
//! It holds its leaf as it was, and the count of the tree's edits at that moment. A step that finds
//! another count looks its key up again: it sees what is there now, and never an item twice.

use super::AHEAD_LEAVES_MAX;
use crate::Block;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::live::{LiveTree, Place};
use crate::tree::forward;
use butternut_format::key::{ItemType, Key};
use std::sync::Arc;

/// A leaf of a running tree, and a slot in it that holds an item.
#[derive(Clone, Debug)]
pub(super) struct LivePosition {
    pub(super) leaf: Arc<Block>,
    pub(super) slot: usize,
    /// Where the next leaf begins.
    pub(super) next: Option<Key>,
    pub(super) version: u64,
}

/// How far a scan reads ahead.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveAhead {
    /// Leaves of the last batch, and those of it that are still to come.
    batch: usize,
    left: usize,
}

/// One move in a running tree.
pub(super) struct Walk<'a> {
    pub(super) forest: &'a Forest,
    pub(super) live: &'a LiveTree,
    pub(super) ahead: Option<&'a mut LiveAhead>,
}

impl Walk<'_> {
    /// The first item at or after the key.
    pub(super) fn seek(&mut self, key: &Key) -> Result<Option<LivePosition>, TreeError> {
        let mut from = *key;
        let mut place = self.descend(key)?;
        while place.slot >= place.leaf.len() {
            let Some(next) = place.next else { return Ok(None) };
            forward(self.live.id(), &from, &next)?;
            from = next;
            place = self.descend(&next)?;
        }
        Ok(Some(LivePosition::from(place)))
    }

    /// The last item at or before the key.
    pub(super) fn seek_last(&mut self, key: &Key) -> Result<Option<LivePosition>, TreeError> {
        let mut place = self.descend(key)?;
        if place.leaf.key(place.slot) != Some(*key) {
            // Before the first item of a leaf lies nothing: the leaf to the left would have it.
            let Some(slot) = place.slot.checked_sub(1) else { return Ok(None) };
            place.slot = slot;
        }
        Ok(Some(LivePosition::from(place)))
    }

    pub(super) fn advance(&mut self, at: LivePosition) -> Result<Option<LivePosition>, TreeError> {
        let after = at.slot.saturating_add(1);
        let is_same = at.version == self.live.version();
        if is_same && after < at.leaf.len() {
            return Ok(Some(LivePosition { slot: after, ..at }));
        }
        let next = if is_same { at.next } else { at.key().and_then(Key::successor) };
        let Some((from, next)) = at.key().zip(next) else { return Ok(None) };
        forward(self.live.id(), &from, &next)?;
        self.seek(&next)
    }

    pub(super) fn retreat(&mut self, at: LivePosition) -> Result<Option<LivePosition>, TreeError> {
        let before = at.slot.checked_sub(1).filter(|_| at.version == self.live.version());
        if let Some(slot) = before {
            return Ok(Some(LivePosition { slot, ..at }));
        }
        match at.key().and_then(predecessor) {
            Some(key) => self.seek_last(&key),
            None => Ok(None),
        }
    }

    fn descend(&mut self, key: &Key) -> Result<Place, TreeError> {
        let wanted = self.ahead.as_deref_mut().map_or(0, LiveAhead::wanted);
        // What is read ahead is named by the state that the descent saw.
        let _reading = (wanted > 0).then(|| self.forest.reading());
        let place = self.live.read(self.forest, |reader| reader.descend(key, wanted))?;
        if !place.ahead.is_empty() {
            self.forest.read_ahead(&place.ahead);
        }
        Ok(place)
    }
}

impl LiveAhead {
    /// How many leaves to ask for now: batches double, and the next one begins when the last is
    /// used up.
    fn wanted(&mut self) -> usize {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return 0;
        }
        let wanted = self.batch;
        self.batch = self.batch.saturating_mul(2).clamp(1, AHEAD_LEAVES_MAX);
        self.left = wanted;
        wanted
    }
}

impl LivePosition {
    pub(super) fn key(&self) -> Option<Key> {
        self.leaf.key(self.slot)
    }

    /// Where an item at or after the key is, if that is surely in this leaf, as it is now.
    pub(super) fn slot_of(&self, live: &LiveTree, key: &Key) -> Option<usize> {
        let last = self.leaf.len().checked_sub(1)?;
        let is_here = self.leaf.key(0)? <= *key && *key <= self.leaf.key(last)?;
        (is_here && self.version == live.version())
            .then(|| self.leaf.find(key).unwrap_or_else(|slot| slot))
    }
}

impl From<Place> for LivePosition {
    fn from(place: Place) -> Self {
        let Place { leaf, slot, next, version, .. } = place;
        Self { leaf, slot, next, version }
    }
}

/// The greatest key below this one.
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
