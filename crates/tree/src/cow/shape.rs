//! The shape of a tree during an edit: the descent of the writer, splits on the way down, merges on
//! the way up.
//!
//! Laws:
//!
//! 1. Every block on the writer's path belongs to the running transaction.
//! 2. On the way to an insertion every node has space for two more children, so that a leaf can be
//!    split in three without another descent.
//! 3. The key of a child in its parent is the first key of the child.
//! 4. No block but a root is empty. A block that is less than a quarter full is merged with a
//!    neighbour that is in memory and has space. A merge that would read a block or lacks space for
//!    a copy is left out.
//! 5. A split allocates all its blocks before it moves an entry. A removal needs no new block: a
//!    tree that loses its last item keeps the empty leaf as its root.

use super::Stop;
use super::copy::Writer;
use crate::block_edit::{ITEM_BYTES, LeafEdit, NodeEdit};
use crate::search::{child, covering_slot, no_child};
use butternut_format::key::Key;
use butternut_format::node::Child;
use butternut_format::units::{LEVELS_MAX, Logical};
use std::sync::Arc;

/// The path of a descent: address and slot of the block at each level. Level 0 is the leaf.
pub(crate) struct Path {
    steps: [(Logical, usize); LEVELS_MAX],
    /// The level of the root.
    height: usize,
    /// Keys from here on belong to the next leaf.
    pub(crate) bound: Option<Key>,
}

impl Path {
    fn new(height: u8) -> Self {
        Self { steps: [(Logical(0), 0); LEVELS_MAX], height: usize::from(height), bound: None }
    }

    fn set(&mut self, level: usize, at: Logical, slot: usize) {
        if let Some(step) = self.steps.get_mut(level) {
            *step = (at, slot);
        }
    }

    pub(crate) fn step(&self, level: usize) -> Option<(Logical, usize)> {
        (level <= self.height).then(|| self.steps.get(level).copied()).flatten()
    }

    pub(crate) fn leaf(&self) -> (Logical, usize) {
        let [leaf, ..] = self.steps;
        leaf
    }

    pub(crate) fn set_leaf(&mut self, at: Logical, slot: usize) {
        self.set(0, at, slot);
    }
}

/// How a full leaf is split, and where the new item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Items from this slot on move to a right leaf. The new item goes to the left or right one.
    Left(usize),
    Right(usize),
    /// The new item gets a leaf of its own between the two.
    Between,
}

impl Writer<'_> {
    /// Descends to the leaf that covers the key, and copies the blocks on the path. The slot in the
    /// leaf is that of the first item at or after the key. The second value is `Ok` if the key is
    /// there.
    pub(crate) fn descend(
        &mut self,
        key: &Key,
        is_growing: bool,
    ) -> Result<(Path, Result<usize, usize>), Stop> {
        let mut at = self.cow_root()?;
        let mut path = Path::new(self.state.root.level);
        loop {
            let level = usize::from(self.dirty(at)?.level());
            if level == 0 {
                let found = self.dirty(at)?.find(key);
                path.set(0, at, found.unwrap_or_else(|slot| slot));
                return Ok((path, found));
            }
            if is_growing && self.is_nearly_full(at)? {
                at = self.split_node(&mut path, level, at, key)?;
            }
            let node = self.dirty(at)?;
            let slot = covering_slot(node, key).unwrap_or(0);
            path.bound = node.key(slot.saturating_add(1)).or(path.bound);
            path.set(level, at, slot);
            at = self.cow_child(at, slot, path.bound)?;
        }
    }

    fn is_nearly_full(&mut self, at: Logical) -> Result<bool, Stop> {
        let node = self.node_mut(at)?;
        Ok(node.len().saturating_add(2) > node.capacity())
    }

    /// Adds a new root above the old one.
    fn grow_root(&mut self, path: &mut Path) -> Result<(), Stop> {
        let old = self.state.root;
        let level = old.level.saturating_add(1);
        if usize::from(level) >= LEVELS_MAX {
            return Err(no_child(self.dirty(old.logical)?, usize::from(level)).into());
        }
        let key = self.dirty(old.logical)?.key(0).unwrap_or_default();
        let root = self.create(level)?;
        let child = Child { key, logical: old.logical, generation: self.generation };
        self.node_mut(root)?.insert(0, &child);
        self.set_root(root, level);
        path.height = usize::from(level);
        path.set(path.height, root, 0);
        Ok(())
    }

    /// Splits a full node. Returns the half that covers the key.
    fn split_node(
        &mut self,
        path: &mut Path,
        level: usize,
        at: Logical,
        key: &Key,
    ) -> Result<Logical, Stop> {
        if level == path.height {
            self.grow_root(path)?;
        }
        let block_level = self.dirty(at)?.level();
        let len = self.dirty(at)?.len();
        // If keys are appended in rising order, the left half stays full.
        let is_append = self.dirty(at)?.key(len.saturating_sub(1)).is_some_and(|last| last < *key);
        let middle = if is_append { len.saturating_sub(3) } else { len / 2 };
        let right = self.create(block_level)?;
        let was_torn = std::mem::replace(&mut self.is_torn, true);
        self.with_two_dirty(at, right, |left, right| {
            NodeEdit::new(left).move_tail(middle, &mut NodeEdit::new(right));
        })?;
        let first = self.dirty(right)?.key(0).unwrap_or_default();
        self.link_child(path, level, right, first)?;
        self.is_torn = was_torn;
        if *key < first {
            // The bound that the parents gave was that of the whole node.
            path.bound = Some(first);
            return Ok(at);
        }
        if let Some((_, slot)) = path.steps.get_mut(level.saturating_add(1)) {
            *slot = slot.saturating_add(1);
        }
        Ok(right)
    }

    /// Adds a new block of `level` to its parent, behind the block of the path.
    fn link_child(
        &mut self,
        path: &Path,
        level: usize,
        new: Logical,
        key: Key,
    ) -> Result<(), Stop> {
        let above = level.saturating_add(1);
        let Some((parent, slot)) = path.step(above) else {
            return Err(no_child(self.dirty(new)?, above).into());
        };
        let child = Child { key, logical: new, generation: self.generation };
        if self.node_mut(parent)?.insert(slot.saturating_add(1), &child) {
            return Ok(());
        }
        Err(no_child(self.dirty(parent)?, slot).into())
    }

    /// Splits the leaf of the path for a new item of `size` bytes, and moves the path to the leaf
    /// and slot of that item.
    pub(crate) fn split_leaf(
        &mut self,
        path: &mut Path,
        key: &Key,
        size: usize,
    ) -> Result<(), Stop> {
        if path.height == 0 {
            self.grow_root(path)?;
        }
        let (left, slot) = path.leaf();
        let split = {
            let leaf = self.leaf_mut(left)?;
            plan_split(&leaf, slot, size.saturating_add(ITEM_BYTES))
        };
        let right = self.create(0)?;
        let middle = match split {
            Split::Left(_) | Split::Right(_) => None,
            Split::Between => Some(self.create(0).inspect_err(|_| self.free_block(right))?),
        };
        self.is_torn = true;
        let from = match split {
            Split::Left(from) | Split::Right(from) => from,
            Split::Between => slot,
        };
        self.with_two_dirty(left, right, |left, right| {
            LeafEdit::new(left).move_tail(from, &mut LeafEdit::new(right));
        })?;
        let first = self.dirty(right)?.key(0).unwrap_or(*key);
        match split {
            Split::Left(_) => self.link_child(path, 0, right, first)?,
            Split::Right(from) => {
                let first = if from == slot { *key } else { first };
                self.link_child(path, 0, right, first)?;
                path.set_leaf(right, slot.saturating_sub(from));
                self.step_right(path);
            }
            Split::Between => {
                self.link_child(path, 0, right, first)?;
                if let Some(middle) = middle {
                    self.link_child(path, 0, middle, *key)?;
                    path.set_leaf(middle, 0);
                    self.step_right(path);
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "a method like the other steps of a writer")]
    fn step_right(&self, path: &mut Path) {
        if let Some((_, slot)) = path.steps.get_mut(1) {
            *slot = slot.saturating_add(1);
        }
    }

    /// Edits two dirty blocks at the same time.
    fn with_two_dirty<R>(
        &mut self,
        first: Logical,
        second: Logical,
        edit: impl FnOnce(&mut [u8], &mut [u8]) -> R,
    ) -> Result<R, Stop> {
        self.dirty_mut(first)?;
        let Some(mut second_block) = self.state.dirty.remove(&second) else {
            return Err(no_child(self.dirty(first)?, 0).into());
        };
        let result = self
            .dirty_mut(first)
            .map(|block| edit(block.bytes_mut(), Arc::make_mut(&mut second_block).bytes_mut()));
        self.state.dirty.insert(second, second_block);
        result
    }

    /// Sets the key of the block at `level` in its parents (law 3).
    pub(crate) fn fix_first_key(
        &mut self,
        path: &Path,
        level: usize,
        key: &Key,
    ) -> Result<(), Stop> {
        for above in level.saturating_add(1)..=path.height {
            let Some((at, slot)) = path.step(above) else { break };
            self.node_mut(at)?.set_key(slot, key);
            if slot > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Restores law 4 after items were removed from the leaf of the path, from `slot` on.
    pub(crate) fn rebalance_leaf(&mut self, path: &Path) -> Result<(), Stop> {
        let (leaf, slot) = path.leaf();
        let (len, used, leaf_bytes) = {
            let leaf = self.leaf_mut(leaf)?;
            (leaf.len(), leaf.used(), leaf.used().saturating_add(leaf.free()))
        };
        if path.height == 0 {
            return Ok(());
        }
        if len == 0 {
            return self.remove_empty_leaf(path);
        }
        if slot == 0 {
            let first = self.dirty(leaf)?.key(0).unwrap_or_default();
            self.fix_first_key(path, 0, &first)?;
        }
        if used < leaf_bytes / 4 {
            return self.merge(path, 0);
        }
        Ok(())
    }

    /// Removes the empty leaf of the path from the tree. If it is the only leaf, it becomes the
    /// root instead (law 5).
    fn remove_empty_leaf(&mut self, path: &Path) -> Result<(), Stop> {
        let (leaf, _) = path.leaf();
        let nodes = (1..=path.height).filter_map(|level| path.step(level)).map(|(at, _)| at);
        let nodes: Vec<Logical> = nodes.collect();
        for node in &nodes {
            if self.dirty(*node)?.len() > 1 {
                self.free_block(leaf);
                return self.remove_child(path, 1);
            }
        }
        for node in nodes {
            self.free_block(node);
        }
        self.set_root(leaf, 0);
        Ok(())
    }

    /// Removes the child of the path from the node at `level`.
    fn remove_child(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let Some((at, slot)) = path.step(level) else { return Ok(()) };
        self.node_mut(at)?.remove(slot);
        self.rebalance_node(path, level)
    }

    fn rebalance_node(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let Some((at, slot)) = path.step(level) else { return Ok(()) };
        let (len, capacity) = {
            let node = self.node_mut(at)?;
            (node.len(), node.capacity())
        };
        if len == 0 {
            if level < path.height {
                self.free_block(at);
                return self.remove_child(path, level.saturating_add(1));
            }
            return Err(no_child(self.dirty(at)?, slot).into());
        }
        if slot == 0 {
            let first = self.dirty(at)?.key(0).unwrap_or_default();
            self.fix_first_key(path, level, &first)?;
        }
        if level == path.height {
            return self.shrink_root();
        }
        if len < capacity / 4 {
            return self.merge(path, level);
        }
        Ok(())
    }

    /// Removes roots that have one child.
    fn shrink_root(&mut self) -> Result<(), Stop> {
        loop {
            let root = self.state.root;
            if root.level == 0 || self.dirty(root.logical)?.len() != 1 {
                return Ok(());
            }
            let Some(child) = optional(self.cow_child(root.logical, 0, None))? else {
                return Ok(());
            };
            let level = root.level.saturating_sub(1);
            self.free_block(root.logical);
            self.set_root(child, level);
        }
    }

    /// Merges the block of the path at `level` with its left or right neighbour, if one has space.
    fn merge(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let above = level.saturating_add(1);
        let Some((parent, slot)) = path.step(above) else { return Ok(()) };
        let left = slot.checked_sub(1);
        let len = self.dirty(parent)?.len();
        let right = slot.checked_add(1).filter(|right| *right < len);
        for (into, from) in [left.zip(Some(slot)), Some(slot).zip(right)].into_iter().flatten() {
            let neighbour = if from == slot { into } else { from };
            if !self.fits_into_one(parent, slot, neighbour)? {
                continue;
            }
            let Some(left) = optional(self.cow_child(parent, into, None))? else { continue };
            let Some(right) = optional(self.cow_child(parent, from, None))? else { continue };
            let is_leaf = level == 0;
            let merged =
                self.with_two_dirty(left, right, |left, right| append(left, right, is_leaf))?;
            if merged {
                self.free_block(right);
                self.node_mut(parent)?.remove(from);
                return self.rebalance_node(path, above);
            }
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// Whether two neighbours fit into three quarters of one block. Checked before one of them is
    /// copied for a merge.
    fn fits_into_one(&self, parent: Logical, slot: usize, neighbour: usize) -> Result<bool, Stop> {
        let node = self.dirty(parent)?;
        let mut used: usize = 0;
        for slot in [slot, neighbour] {
            let Some(expected) = child(node, slot, self.id, None) else { return Ok(false) };
            let block = match self.find(&expected) {
                Ok(block) => block,
                Err(Stop::Missing(_)) => return Ok(false),
                Err(stop) => return Err(stop),
            };
            used = used.saturating_add(block.bytes().len().saturating_sub(block.bytes_free()));
        }
        Ok(used <= self.running.params.node_len() / 4 * 3)
    }
}

/// Appends all of `right` to `left`, if it fits.
fn append(left: &mut [u8], right: &mut [u8], is_leaf: bool) -> bool {
    if !is_leaf {
        let (mut left, right) = (NodeEdit::new(left), NodeEdit::new(right));
        return left.append_all(&right);
    }
    let (mut left, mut right) = (LeafEdit::new(left), LeafEdit::new(right));
    left.append_all(&mut right)
}

/// Converts a missing block or a lack of space to `None`: a merge is optional.
fn optional(result: Result<Logical, Stop>) -> Result<Option<Logical>, Stop> {
    match result {
        Ok(at) => Ok(Some(at)),
        Err(Stop::Missing(_) | Stop::Failed(crate::TreeError::NoSpace { .. })) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Finds the most even split that fits the new item, which needs `need` bytes with its slot.
fn plan_split(leaf: &LeafEdit<'_>, slot: usize, need: usize) -> Split {
    let len = leaf.len();
    if slot == len {
        return Split::Right(len);
    }
    if slot == 0 {
        return Split::Left(0);
    }
    let leaf_bytes = leaf.used().saturating_add(leaf.free());
    let total = leaf.used().saturating_add(need);
    let mut best: Option<(usize, Split)> = None;
    let mut left: usize = 0;
    let mut consider = |left: usize, split: Split| {
        let right = total.saturating_sub(left);
        let fuller = left.max(right);
        if fuller <= leaf_bytes && best.is_none_or(|(fullest, _)| fuller < fullest) {
            best = Some((fuller, split));
        }
    };
    for from in 1..len {
        left = left.saturating_add(leaf.size(from.saturating_sub(1))).saturating_add(ITEM_BYTES);
        if from <= slot {
            consider(left, Split::Right(from));
        }
        if from >= slot {
            consider(left.saturating_add(need), Split::Left(from));
        }
    }
    best.map_or(Split::Between, |(_, split)| split)
}
