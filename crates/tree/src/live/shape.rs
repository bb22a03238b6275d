//! The shape of a tree while it is edited: the descent of a writer, splits on the way down, merges
//! on the way up.
//!
//! Laws:
//!
//! 1. Every block on a writer's path belongs to the running transaction.
//! 2. On the way to an insertion every node has room for two more children, so that a leaf can be
//!    split in three without looking up again.
//! 3. A parent's key for a child is the child's first key.
//! 4. No block but a root is empty. Blocks under a quarter full are merged with a neighbour that is
//!    in memory and has room; a merge that would need more is left out, and nothing is lost by it.

use super::Stop;
use super::cow::Writer;
use crate::edit::{ITEM_BYTES, LeafEdit, NodeEdit};
use crate::tree::{child, covering_slot, no_child};
use butternut_format::key::Key;
use butternut_format::node::Child;
use butternut_format::units::{LEVELS_MAX, Logical};
use std::sync::Arc;

/// The nodes passed on the way down: address and slot, by level; level 0 is the leaf.
pub(crate) struct Path {
    steps: [(Logical, usize); LEVELS_MAX],
    /// The root's level.
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

/// Where the two halves of a leaf part, and where the new item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Items from here on move right; the new one stays left, or goes right.
    Left(usize),
    Right(usize),
    /// It takes a leaf of its own between the two.
    Between,
}

impl Writer<'_> {
    /// Goes down to the leaf that covers the key; the leaf's slot is that of the first item at or
    /// after it. `Ok` in the second place: the key is there.
    pub(crate) fn descend(
        &mut self,
        key: &Key,
        is_growing: bool,
    ) -> Result<(Path, Result<usize, usize>), Stop> {
        let mut at = self.own_root()?;
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
            at = self.own_child(at, slot, path.bound)?;
        }
    }

    fn is_nearly_full(&mut self, at: Logical) -> Result<bool, Stop> {
        let node = self.node_mut(at)?;
        Ok(node.len().saturating_add(2) > node.capacity())
    }

    /// Puts a new root above the old one.
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

    /// Splits a full node and gives the half that covers the key.
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
        // Keys that only rise leave full nodes behind.
        let is_behind = self.dirty(at)?.key(len.saturating_sub(1)).is_some_and(|last| last < *key);
        let middle = if is_behind { len.saturating_sub(3) } else { len / 2 };
        let right = self.create(block_level)?;
        self.with_two(at, right, |left, right| {
            NodeEdit::new(left).move_tail(middle, &mut NodeEdit::new(right));
        })?;
        let first = self.dirty(right)?.key(0).unwrap_or_default();
        self.adopt(path, level, right, first)?;
        if *key < first {
            // What the parents said of where this half ends was true before the split.
            path.bound = Some(first);
            return Ok(at);
        }
        if let Some((_, slot)) = path.steps.get_mut(level.saturating_add(1)) {
            *slot = slot.saturating_add(1);
        }
        Ok(right)
    }

    /// Names a new block of `level` in its parent, behind the one the path is in.
    fn adopt(&mut self, path: &Path, level: usize, new: Logical, key: Key) -> Result<(), Stop> {
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

    /// Makes room in the leaf of the path for an item of `size` bytes, and moves the path's leaf
    /// to where it goes.
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
        let from = match split {
            Split::Left(from) | Split::Right(from) => from,
            Split::Between => slot,
        };
        self.with_two(left, right, |left, right| {
            LeafEdit::new(left).move_tail(from, &mut LeafEdit::new(right));
        })?;
        let first = self.dirty(right)?.key(0).unwrap_or(*key);
        match split {
            Split::Left(_) => self.adopt(path, 0, right, first)?,
            Split::Right(from) => {
                let first = if from == slot { *key } else { first };
                self.adopt(path, 0, right, first)?;
                path.set_leaf(right, slot.saturating_sub(from));
                self.step_right(path);
            }
            Split::Between => {
                self.adopt(path, 0, right, first)?;
                let middle = self.create(0)?;
                self.adopt(path, 0, middle, *key)?;
                path.set_leaf(middle, 0);
                self.step_right(path);
            }
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "reads as one of the moves of a writer")]
    fn step_right(&self, path: &mut Path) {
        if let Some((_, slot)) = path.steps.get_mut(1) {
            *slot = slot.saturating_add(1);
        }
    }

    /// Edits two blocks at once.
    fn with_two<R>(
        &mut self,
        first: Logical,
        second: Logical,
        edit: impl FnOnce(&mut [u8], &mut [u8]) -> R,
    ) -> Result<R, Stop> {
        self.dirty_mut(first)?;
        let Some(mut taken) = self.state.dirty.remove(&second) else {
            return Err(no_child(self.dirty(first)?, 0).into());
        };
        let result = self
            .dirty_mut(first)
            .map(|block| edit(block.bytes_mut(), Arc::make_mut(&mut taken).bytes_mut()));
        self.state.dirty.insert(second, taken);
        result
    }

    /// Carries a new first key of the block at `level` up to its parents (law 3).
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

    /// Mends the shape after items were taken out of the path's leaf, from `slot` on (law 4).
    pub(crate) fn settle(&mut self, path: &Path) -> Result<(), Stop> {
        let (leaf, slot) = path.leaf();
        let (len, used, room) = {
            let leaf = self.leaf_mut(leaf)?;
            (leaf.len(), leaf.used(), leaf.used().saturating_add(leaf.free()))
        };
        if path.height == 0 {
            return Ok(());
        }
        if len == 0 {
            self.discard(leaf);
            return self.remove_child(path, 1);
        }
        if slot == 0 {
            let first = self.dirty(leaf)?.key(0).unwrap_or_default();
            self.fix_first_key(path, 0, &first)?;
        }
        if used < room / 4 {
            return self.merge(path, 0);
        }
        Ok(())
    }

    /// Takes the path's child out of its node at `level`.
    fn remove_child(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let Some((at, slot)) = path.step(level) else { return Ok(()) };
        self.node_mut(at)?.remove(slot);
        self.settle_node(path, level)
    }

    fn settle_node(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let Some((at, slot)) = path.step(level) else { return Ok(()) };
        let (len, capacity) = {
            let node = self.node_mut(at)?;
            (node.len(), node.capacity())
        };
        if len == 0 {
            if level < path.height {
                self.discard(at);
                return self.remove_child(path, level.saturating_add(1));
            }
            let leaf = self.create(0)?;
            self.discard(at);
            self.set_root(leaf, 0);
            return Ok(());
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

    /// Takes away roots that have one child.
    fn shrink_root(&mut self) -> Result<(), Stop> {
        loop {
            let root = self.state.root;
            if root.level == 0 || self.dirty(root.logical)?.len() != 1 {
                return Ok(());
            }
            let Some(child) = optional(self.own_child(root.logical, 0, None))? else {
                return Ok(());
            };
            let level = root.level.saturating_sub(1);
            self.discard(root.logical);
            self.set_root(child, level);
        }
    }

    /// Merges the path's block at `level` with the one to its left or right, if one has room.
    fn merge(&mut self, path: &Path, level: usize) -> Result<(), Stop> {
        let above = level.saturating_add(1);
        let Some((parent, slot)) = path.step(above) else { return Ok(()) };
        let left = slot.checked_sub(1);
        let len = self.dirty(parent)?.len();
        let right = slot.checked_add(1).filter(|right| *right < len);
        for (into, from) in [left.zip(Some(slot)), Some(slot).zip(right)].into_iter().flatten() {
            let beside = if from == slot { into } else { from };
            if !self.fits_beside(parent, slot, beside)? {
                continue;
            }
            let Some(left) = optional(self.own_child(parent, into, None))? else { continue };
            let Some(right) = optional(self.own_child(parent, from, None))? else { continue };
            let is_leaf = level == 0;
            let merged = self.with_two(left, right, |left, right| append(left, right, is_leaf))?;
            if merged {
                self.discard(right);
                self.node_mut(parent)?.remove(from);
                return self.settle_node(path, above);
            }
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// Whether two neighbours fit one block, a quarter of it left free: asked before any of them
    /// is copied for it.
    fn fits_beside(&self, parent: Logical, slot: usize, beside: usize) -> Result<bool, Stop> {
        let node = self.dirty(parent)?;
        let mut used: usize = 0;
        for slot in [slot, beside] {
            let Some(expected) = child(node, slot, self.id, None) else { return Ok(false) };
            let block = match self.find(&expected) {
                Ok(block) => block,
                Err(Stop::Missing(_)) => return Ok(false),
                Err(stop) => return Err(stop),
            };
            used = used.saturating_add(block.bytes().len().saturating_sub(block.bytes_free()));
        }
        Ok(used <= self.running.facts.node_len() / 4 * 3)
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

/// What a merge can do without: blocks that are not in memory, and new space.
fn optional(result: Result<Logical, Stop>) -> Result<Option<Logical>, Stop> {
    match result {
        Ok(at) => Ok(Some(at)),
        Err(Stop::Missing(_) | Stop::Failed(crate::TreeError::NoSpace { .. })) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Finds the most even split in which the new item, `need` bytes with its slot, fits.
fn plan_split(leaf: &LeafEdit<'_>, slot: usize, need: usize) -> Split {
    let len = leaf.len();
    if slot == len {
        return Split::Right(len);
    }
    if slot == 0 {
        return Split::Left(0);
    }
    let room = leaf.used().saturating_add(leaf.free());
    let total = leaf.used().saturating_add(need);
    let mut best: Option<(usize, Split)> = None;
    let mut left: usize = 0;
    let mut consider = |left: usize, split: Split| {
        let right = total.saturating_sub(left);
        let fuller = left.max(right);
        if fuller <= room && best.is_none_or(|(least, _)| fuller < least) {
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
