//! Block groups: what their items say, read when a volume is opened for writing and brought up to
//! date at each commit.
//!
//! Laws:
//!
//! 1. A group's free space is what the free space tree says, where the volume keeps one; else what
//!    the extent tree leaves over.
//! 2. The copies of the superblock that lie in a chunk are never free.
//! 3. `used` of a group's item is the sum of its extents' items, at every commit.
//!
//! Left to others: keeping the free space tree (`free_space`), making groups (`chunks`).

use crate::commit::Step;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::running::Facts;
use crate::tree::Tree;
use butternut_format::block_group::{BlockGroup, RawBlockGroup};
use butternut_format::free_space::{FreeBitmap, check_extent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use butternut_space::{Group, GroupChange, Space, excluded_ranges};
use butternut_volume::Layout;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Reads all groups into `space`.
pub(crate) fn load(forest: &Arc<Forest>, facts: &Facts, space: &Space) -> Result<(), TreeError> {
    let items = open_tree(forest, facts.group_tree())?;
    for layout in forest.volume().chunks().iter() {
        let item = find_item(&items, facts, layout)?;
        let excluded = excluded_ranges(layout);
        let free = if facts.has_free_space_tree {
            free_of_tree(forest, layout)?
        } else {
            free_of_extents(forest, facts, layout, &excluded)?
        };
        let group = Group {
            start: layout.logical(),
            bytes: layout.bytes(),
            flags: item.flags,
            used: item.bytes_used,
            free,
            excluded,
            is_read_only: !forest.volume().can_write(layout),
        };
        space.add_group(&group).map_err(|error| TreeError::Space(Box::new(error)))?;
    }
    Ok(())
}

fn open_tree(forest: &Arc<Forest>, id: TreeId) -> Result<Tree, TreeError> {
    forest.committed_tree(id)?.ok_or(TreeError::NoTree { tree: id })
}

fn find_item(items: &Tree, facts: &Facts, layout: &Layout) -> Result<BlockGroup, TreeError> {
    let key = Key::new(layout.logical().0, ItemType::BLOCK_GROUP_ITEM, layout.bytes());
    let corrupt = |refused: Refused| TreeError::Corrupt {
        tree: items.id(),
        source: refused.at(format_args!("block group {}", layout.logical())),
    };
    let found = items.find(&key)?;
    let found = found.ok_or_else(|| corrupt(Refused::new("item", "none", "one for its chunk")))?;
    BlockGroup::check(key, found.data(), facts.incompat).map_err(corrupt)
}

/// What the free space tree says of a group.
fn free_of_tree(forest: &Arc<Forest>, layout: &Layout) -> Result<Vec<Range<u64>>, TreeError> {
    let tree = open_tree(forest, TreeId::FREE_SPACE)?;
    free_ranges(&tree, layout.logical().0..layout.end())
}

/// The free ranges of one group, out of its extents or bitmaps.
pub(crate) fn free_ranges(tree: &Tree, group: Range<u64>) -> Result<Vec<Range<u64>>, TreeError> {
    let mut free: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| match free.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => free.push(range),
    };
    let mut cursor = tree.scan();
    cursor.seek(&Key::new(group.start, ItemType(0), 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid >= group.end {
            break;
        }
        let corrupt = |refused: Refused| TreeError::Corrupt {
            tree: TreeId::FREE_SPACE,
            source: refused.at(format_args!("item {key}")),
        };
        match key.item_type {
            ItemType::FREE_SPACE_EXTENT => {
                let range = check_extent(key, data).map_err(corrupt)?;
                add(range.logical.0..range.end().0);
            }
            ItemType::FREE_SPACE_BITMAP => {
                let bitmap = FreeBitmap::check(key, data).map_err(corrupt)?;
                bitmap.ranges().for_each(|range| add(range.logical.0..range.end().0));
            }
            _ => {}
        }
        cursor.advance()?;
    }
    Ok(free)
}

/// What the extents of a group leave over (law 2).
fn free_of_extents(
    forest: &Arc<Forest>,
    facts: &Facts,
    layout: &Layout,
    excluded: &[Range<u64>],
) -> Result<Vec<Range<u64>>, TreeError> {
    let mut used: Vec<Range<u64>> = excluded.to_vec();
    let extents = open_tree(forest, TreeId::EXTENT)?;
    let mut cursor = extents.scan();
    cursor.seek(&Key::new(layout.logical().0, ItemType(0), 0))?;
    while let Some(key) = cursor.key() {
        if key.objectid >= layout.end() {
            break;
        }
        let bytes = match key.item_type {
            ItemType::EXTENT_ITEM => Some(key.offset),
            ItemType::METADATA_ITEM => Some(u64::from(facts.node_bytes)),
            _ => None,
        };
        if let Some(bytes) = bytes {
            used.push(key.objectid..key.objectid.saturating_add(bytes));
        }
        cursor.advance()?;
    }
    used.sort_by_key(|range| range.start);
    Ok(complement(layout.logical().0..layout.end(), &used))
}

/// What sorted ranges leave of a whole.
pub(crate) fn complement(whole: Range<u64>, used: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut free = Vec::new();
    let mut at = whole.start;
    for range in used {
        if range.start > at {
            free.push(at..range.start.min(whole.end));
        }
        at = at.max(range.end);
    }
    if at < whole.end {
        free.push(at..whole.end);
    }
    free
}

/// The item of a group.
pub(crate) fn encode(change: &GroupChange) -> (Key, Vec<u8>) {
    let raw = RawBlockGroup::of(change.used, change.flags);
    let key = Key::new(change.start.0, ItemType::BLOCK_GROUP_ITEM, change.bytes);
    (key, raw.as_bytes().to_vec())
}

impl Step<'_> {
    /// Brings the items of groups up to date (law 3). `false`: there was nothing to do.
    pub(crate) fn write_groups(&self) -> Result<bool, TreeError> {
        let changes = self.running.space.take_ledger();
        let tree = self.edit(self.running.facts.group_tree())?;
        for change in &changes {
            let (key, item) = encode(change);
            tree.put(&key, &item)?;
        }
        Ok(!changes.is_empty())
    }

    /// The group that holds an address.
    pub(crate) fn group_of(&self, at: Logical) -> Option<Range<u64>> {
        let chunks = self.forest.volume().chunks();
        chunks.find(at).map(|layout| layout.logical().0..layout.end())
    }
}
