//! Which inodes differ between two trees of subvolumes, and in what.
//!
//! Laws:
//!
//! 1. A block that both trees share at the same place is not read, nor is anything below it.
//! 2. Each step moves one of the trees to a larger key, so the comparison ends.

use crate::Result;
use crate::inspect::{Block, child};
use crate::send::watch::Watch;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_tree::Tree;
use std::cmp::Ordering;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Object ids of inodes; above are the orphan items and others.
const INODES: RangeInclusive<u64> = 256..=u64::MAX - 256;

/// What differs of an inode, beside its inode item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) names: bool,
    pub(crate) xattrs: bool,
    pub(crate) data: bool,
}

impl Parts {
    /// The parts of an inode that has nothing in common with that of its number in the other tree.
    pub(crate) const ALL: Self = Self { names: true, xattrs: true, data: true };
}

/// The inodes that differ, by rising number.
#[derive(Debug, Default)]
struct Found(Vec<(u64, Parts)>);

/// A position in one of the trees: an item of a leaf, or a child that was not read.
struct Side<'a> {
    tree: &'a Tree,
    /// From the root down.
    steps: Vec<Step>,
}

struct Step {
    block: Arc<Block>,
    slot: usize,
    /// The keys of the block are below this one.
    end: Option<Key>,
}

/// Returns the inodes of which an item is in one tree only, or differs. Without an old tree, that
/// is every inode of the new one.
pub(crate) fn changed_inodes(
    old: Option<&Tree>,
    new: &Tree,
    watch: &Watch<'_>,
) -> Result<Vec<(u64, Parts)>> {
    let mut found = Found::default();
    match old {
        Some(old) => compare(old, new, watch, &mut found)?,
        None => scan(new, watch, &mut found)?,
    }
    Ok(found.0)
}

fn scan(tree: &Tree, watch: &Watch<'_>, found: &mut Found) -> Result<()> {
    let mut cursor = tree.scan();
    cursor.seek(&Key::new(*INODES.start(), ItemType(0), 0))?;
    while let Some(key) = cursor.key() {
        watch.check()?;
        if !INODES.contains(&key.objectid) {
            break;
        }
        found.note(key);
        cursor.advance()?;
    }
    Ok(())
}

fn compare(old: &Tree, new: &Tree, watch: &Watch<'_>, found: &mut Found) -> Result<()> {
    if is_same_block(&old.root(), &new.root()) {
        return Ok(());
    }
    let (mut old, mut new) = (Side::open(old)?, Side::open(new)?);
    loop {
        watch.check()?;
        match (old.key(), new.key()) {
            (None, None) => return Ok(()),
            (Some(_), None) => old.pass(found)?,
            (None, Some(_)) => new.pass(found)?,
            (Some(before), Some(after)) => match before.cmp(&after) {
                Ordering::Less => old.pass(found)?,
                Ordering::Greater => new.pass(found)?,
                Ordering::Equal => pass_both(&mut old, &mut new, found)?,
            },
        }
    }
}

/// Moves on from two places with the same key.
fn pass_both(old: &mut Side<'_>, new: &mut Side<'_>, found: &mut Found) -> Result<()> {
    match old.level().cmp(&new.level()) {
        Ordering::Less => return new.descend(),
        Ordering::Greater => return old.descend(),
        Ordering::Equal => {}
    }
    let is_shared = match (old.child(), new.child()) {
        (Some(old), Some(new)) => is_same_block(&old, &new),
        _ => false,
    };
    if !is_shared && old.level() > 0 {
        old.descend()?;
        return new.descend();
    }
    if !is_shared
        && let Some((key, data)) = new.item()
        && old.item() != Some((key, data))
    {
        found.note(key);
    }
    old.advance();
    new.advance();
    Ok(())
}

fn is_same_block(one: &Expected, other: &Expected) -> bool {
    (one.logical, one.generation, one.level) == (other.logical, other.generation, other.level)
}

impl<'a> Side<'a> {
    fn open(tree: &'a Tree) -> Result<Self> {
        let mut side = Self { tree, steps: Vec::new() };
        side.enter(&tree.root())?;
        Ok(side)
    }

    fn enter(&mut self, expected: &Expected) -> Result<()> {
        let block = self.tree.block(expected)?;
        if !block.is_empty() {
            self.steps.push(Step { block, slot: 0, end: expected.end_key });
        }
        Ok(())
    }

    fn key(&self) -> Option<Key> {
        self.steps.last().and_then(|step| step.block.key(step.slot))
    }

    fn level(&self) -> u8 {
        self.steps.last().map_or(0, |step| step.block.level())
    }

    fn item(&self) -> Option<(Key, &[u8])> {
        self.steps.last().and_then(|step| step.block.item(step.slot))
    }

    fn child(&self) -> Option<Expected> {
        let step = self.steps.last()?;
        child(&step.block, step.slot, self.tree.id(), step.end)
    }

    /// Reads the child at this place, and moves to its first slot.
    fn descend(&mut self) -> Result<()> {
        let Some(child) = self.child() else {
            self.advance();
            return Ok(());
        };
        let depth = self.steps.len();
        self.enter(&child)?;
        if self.steps.len() == depth {
            // The child has no slots.
            self.advance();
        }
        Ok(())
    }

    /// Notes an item that the other tree does not have, or reads the child at this place.
    fn pass(&mut self, found: &mut Found) -> Result<()> {
        if self.level() > 0 {
            return self.descend();
        }
        if let Some((key, _)) = self.item() {
            found.note(key);
        }
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        while let Some(step) = self.steps.last_mut() {
            step.slot = step.slot.saturating_add(1);
            if step.slot < step.block.len() {
                return;
            }
            self.steps.pop();
        }
    }
}

impl Found {
    fn note(&mut self, key: Key) {
        if !INODES.contains(&key.objectid) {
            return;
        }
        if self.0.last().is_none_or(|(ino, _)| *ino != key.objectid) {
            self.0.push((key.objectid, Parts::default()));
        }
        let Some((_, parts)) = self.0.last_mut() else { return };
        match key.item_type {
            ItemType::INODE_REF | ItemType::INODE_EXTREF => parts.names = true,
            ItemType::XATTR_ITEM => parts.xattrs = true,
            ItemType::EXTENT_DATA => parts.data = true,
            _ => {}
        }
    }
}
