//! [`LogTree`]: one log tree in memory, as sorted leaves, and its form as tree blocks.
//!
//! ```text
//! leaves    [k1..] [k5..] [k9..]      items; an address once the leaf was written
//! blocks      root -> nodes -> leaves composed when the log is written
//! ```
//!
//! Laws:
//!
//! 1. A leaf that was written is not overwritten: a change gives it a new address, because the
//!    superblock on disk may refer to the old one.
//! 2. The inner nodes are composed again whenever a leaf has changed. A log has few of them.
//! 3. The items are sorted by key, and no leaf but the only one is empty.

use crate::Block;
use crate::block_edit::{CHILD_BYTES, ITEM_BYTES, LeafEdit, NodeEdit};
use butternut_format::key::Key;
use butternut_format::node::{Child, HEADER_BYTES, NewBlock};
use butternut_format::units::{Logical, index};
use butternut_sys::buffer::Buffer;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// One item of a log.
pub(crate) type LogItem = (Key, Vec<u8>);

#[derive(Debug, Default)]
struct Leaf {
    items: Vec<LogItem>,
    /// Bytes of slots and data.
    bytes: usize,
    /// Where the leaf was written; `None` if it has changed since.
    at: Option<Logical>,
}

/// A log tree.
#[derive(Debug)]
pub(crate) struct LogTree {
    node_bytes: usize,
    leaves: Vec<Leaf>,
    /// The addresses of the inner nodes that were composed last.
    nodes: Vec<Logical>,
    root: Option<Child>,
    level: u8,
    /// Addresses that the tree no longer uses.
    dropped: Vec<Logical>,
}

/// The root of a log tree that was composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRoot {
    pub(crate) at: Logical,
    pub(crate) level: u8,
}

fn item_bytes(data: &[u8]) -> usize {
    data.len().saturating_add(ITEM_BYTES)
}

impl LogTree {
    pub(crate) fn new(node_bytes: u32) -> Self {
        Self {
            node_bytes: index(node_bytes),
            leaves: vec![Leaf::default()],
            nodes: Vec::new(),
            root: None,
            level: 0,
            dropped: Vec::new(),
        }
    }

    /// Returns the number of blocks that composing the tree anew takes at most.
    pub(crate) fn blocks_max(&self) -> usize {
        self.leaves.len().saturating_add(self.leaves.len() / self.node_capacity()).saturating_add(2)
    }

    /// Returns the number of blocks that [`LogTree::compose`] would compose now.
    pub(crate) fn blocks_changed(&self) -> usize {
        if self.root.is_some() {
            return 0;
        }
        let mut blocks = self.leaves.iter().filter(|leaf| leaf.at.is_none()).count();
        let mut nodes = self.leaves.len();
        while nodes > 1 {
            nodes = nodes.div_ceil(self.node_capacity());
            blocks = blocks.saturating_add(nodes);
        }
        blocks
    }

    fn leaf_capacity(&self) -> usize {
        self.node_bytes.saturating_sub(HEADER_BYTES)
    }

    fn node_capacity(&self) -> usize {
        (self.leaf_capacity() / CHILD_BYTES).max(2)
    }

    /// Whether a leaf can hold an item of this size.
    pub(crate) fn can_hold(&self, data: &[u8]) -> bool {
        item_bytes(data) <= self.leaf_capacity()
    }

    /// Returns the leaf that covers a key.
    fn leaf_of(&self, key: &Key) -> usize {
        let after = self
            .leaves
            .partition_point(|leaf| leaf.items.first().is_some_and(|(first, _)| first <= key));
        after.saturating_sub(1)
    }

    /// Returns a leaf that is about to change (laws 1 and 2).
    fn changed(&mut self, leaf: usize) -> Option<&mut Leaf> {
        let leaf = self.leaves.get_mut(leaf)?;
        self.dropped.extend(leaf.at.take());
        self.root = None;
        Some(leaf)
    }

    /// Whether the log has an item.
    pub(crate) fn has(&self, key: &Key) -> bool {
        let leaf = self.leaves.get(self.leaf_of(key));
        leaf.is_some_and(|leaf| leaf.items.binary_search_by_key(key, |(known, _)| *known).is_ok())
    }

    /// Inserts an item or replaces its data.
    pub(crate) fn put(&mut self, key: Key, data: Vec<u8>) {
        let capacity = self.leaf_capacity();
        let number = self.leaf_of(&key);
        let Some(leaf) = self.changed(number) else { return };
        let added = item_bytes(&data);
        match leaf.items.binary_search_by_key(&key, |(known, _)| *known) {
            Ok(slot) => {
                if let Some((_, old)) = leaf.items.get_mut(slot) {
                    leaf.bytes = leaf.bytes.saturating_sub(item_bytes(old)).saturating_add(added);
                    *old = data;
                }
            }
            Err(slot) => {
                leaf.bytes = leaf.bytes.saturating_add(added);
                leaf.items.insert(slot, (key, data));
            }
        }
        if leaf.bytes > capacity {
            self.split(number);
        }
    }

    /// Splits a leaf into leaves that fit a block each. Appended items leave the left one full.
    fn split(&mut self, number: usize) {
        let capacity = self.leaf_capacity();
        let is_last = number.saturating_add(1) == self.leaves.len();
        let Some(leaf) = self.leaves.get_mut(number) else { return };
        let fill = if is_last { capacity } else { capacity / 2 };
        let mut parts = vec![Leaf::default()];
        for item in std::mem::take(&mut leaf.items) {
            let bytes = item_bytes(&item.1);
            let is_full = parts.last().is_some_and(|part| {
                !part.items.is_empty() && part.bytes.saturating_add(bytes) > fill
            });
            if is_full {
                parts.push(Leaf::default());
            }
            if let Some(part) = parts.last_mut() {
                part.bytes = part.bytes.saturating_add(bytes);
                part.items.push(item);
            }
        }
        self.leaves.splice(number..=number, parts);
    }

    /// Removes the items in a range of keys.
    pub(crate) fn remove(&mut self, keys: &RangeInclusive<Key>) {
        let mut number = self.leaf_of(keys.start());
        while let Some(leaf) = self.leaves.get(number) {
            if leaf.items.first().is_some_and(|(first, _)| first > keys.end()) {
                break;
            }
            let from = leaf.items.partition_point(|(key, _)| key < keys.start());
            let to = leaf.items.partition_point(|(key, _)| key <= keys.end());
            if from < to
                && let Some(leaf) = self.changed(number)
            {
                leaf.items.drain(from..to);
                leaf.bytes = leaf.items.iter().map(|(_, data)| item_bytes(data)).sum();
                if leaf.items.is_empty() && self.leaves.len() > 1 {
                    self.leaves.remove(number);
                    continue;
                }
            }
            number = number.saturating_add(1);
        }
    }

    /// Returns the addresses that the tree used until its last change.
    pub(crate) fn take_dropped(&mut self) -> Vec<Logical> {
        std::mem::take(&mut self.dropped)
    }

    /// Composes the blocks that changed since the last call, and returns the root. `allocate`
    /// returns the address of a new block. If it fails, the tree must not be used any more.
    pub(crate) fn compose<E>(
        &mut self,
        new: &NewBlock,
        allocate: &mut dyn FnMut() -> Result<Logical, E>,
        blocks: &mut Vec<Arc<Block>>,
    ) -> Result<LogRoot, E> {
        if let Some(root) = self.root {
            return Ok(LogRoot { at: root.logical, level: self.level });
        }
        let mut children = Vec::with_capacity(self.leaves.len());
        let bytes = self.node_bytes;
        for leaf in &mut self.leaves {
            let logical = if let Some(at) = leaf.at {
                at
            } else {
                let logical = allocate()?;
                blocks.push(compose_leaf(bytes, &leaf.items, &NewBlock { logical, ..*new }));
                *leaf.at.insert(logical)
            };
            let key = leaf.items.first().map(|(key, _)| *key).unwrap_or_default();
            children.push(Child { key, logical, generation: new.generation });
        }
        self.dropped.append(&mut self.nodes);
        self.level = 0;
        while children.len() > 1 {
            self.level = self.level.saturating_add(1);
            let mut parents = Vec::new();
            for below in children.chunks(self.node_capacity()) {
                let logical = allocate()?;
                self.nodes.push(logical);
                let new = NewBlock { logical, level: self.level, ..*new };
                blocks.push(compose_node(bytes, below, &new));
                let key = below.first().map(|child| child.key).unwrap_or_default();
                parents.push(Child { key, logical, generation: new.generation });
            }
            children = parents;
        }
        let root = children.first().copied().unwrap_or(Child {
            key: Key::MIN,
            logical: Logical(0),
            generation: new.generation,
        });
        self.root = Some(root);
        Ok(LogRoot { at: root.logical, level: self.level })
    }
}

fn compose_leaf(bytes: usize, items: &[LogItem], new: &NewBlock) -> Arc<Block> {
    let mut block = Block::compose(Buffer::zeroed(bytes), new);
    let mut leaf = LeafEdit::new(block.bytes_mut());
    for (slot, (key, data)) in items.iter().enumerate() {
        let place = leaf.insert(slot, key, data.len());
        assert!(place.is_some(), "the items of a leaf fit its block");
        if let Some(place) = place {
            place.copy_from_slice(data);
        }
    }
    Arc::new(block)
}

fn compose_node(bytes: usize, children: &[Child], new: &NewBlock) -> Arc<Block> {
    let mut block = Block::compose(Buffer::zeroed(bytes), new);
    let mut node = NodeEdit::new(block.bytes_mut());
    for (slot, child) in children.iter().enumerate() {
        let is_inserted = node.insert(slot, child);
        assert!(is_inserted, "the children of a node fit its block");
    }
    Arc::new(block)
}

#[cfg(test)]
mod tests;
