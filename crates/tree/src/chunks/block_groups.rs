//! Block group items: read when a volume is opened for writing, and updated by each commit.
//!
//! Laws:
//!
//! 1. The free space of a group comes from the free space tree, if the volume has a valid one.
//!    Otherwise it is computed from the extent tree.
//! 2. The superblock copies inside a chunk are never free.
//! 3. In every commit, the used bytes of a group's item are the sum of its extent items.
//! 4. Each chunk has a block group of its length and with its type, and each block group has a
//!    chunk. Otherwise the volume is not opened for writing. The kernel's btrfs does not mount it.
//!
//! Left to others: the free space tree (`free_space`), adding and removing groups (`chunks`).

use crate::committed::CommittedTrees;
use crate::error::TreeError;
use crate::transaction::params::VolumeParams;
use crate::tree::Tree;
use butternut_format::block_group::{BlockGroup, RawBlockGroup};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::free_space::{FreeBitmap, check_extent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Bits, Refused, require};
use butternut_format::units::TreeId;
use butternut_space::{Group, GroupChange, Space, excluded_ranges};
use butternut_volume::Layout;
use std::ops::Range;
use zerocopy::IntoBytes;

/// The flags that say what a group holds. The others name its profile.
const TYPE_MASK: u64 =
    BlockGroupFlags::DATA.0 | BlockGroupFlags::METADATA.0 | BlockGroupFlags::SYSTEM.0;

/// What becomes of the changes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Commits write them to the devices.
    AreWritten,
    /// They stay in memory, so a block group needs no device to be writable.
    StayInMemory,
}

/// Reads all block groups into `space`.
pub(crate) fn load(
    trees: &CommittedTrees,
    params: &VolumeParams,
    space: &Space,
    changes: Changes,
) -> Result<(), TreeError> {
    let items = open_tree(trees, params.group_tree())?;
    let mut end = 0;
    for layout in trees.volume().chunks().iter() {
        check_gap(&items, &(end..layout.logical().0))?;
        end = layout.end();
        let item = find_item(&items, params, layout)?;
        let excluded = excluded_ranges(layout);
        let free = if params.has_free_space_tree {
            free_of_tree(trees, layout)?
        } else {
            free_of_extents(trees, params, layout, &excluded)?
        };
        let group = Group {
            start: layout.logical(),
            bytes: layout.bytes(),
            flags: layout.flags(),
            used: item.bytes_used,
            free,
            excluded,
            is_read_only: changes == Changes::AreWritten && !trees.volume().can_write(layout),
        };
        space.add_group(&group).map_err(|error| TreeError::Space(Box::new(error)))?;
    }
    check_gap(&items, &(end..u64::MAX))
}

/// Checks that no block group begins in a range of addresses that is in no chunk (law 4).
fn check_gap(items: &Tree, gap: &Range<u64>) -> Result<(), TreeError> {
    if gap.is_empty() {
        return Ok(());
    }
    let mut cursor = items.cursor();
    cursor.seek_last(&Key::new(gap.end.saturating_sub(1), ItemType(u8::MAX), u64::MAX))?;
    while let Some(key) = cursor.key().filter(|key| key.objectid >= gap.start) {
        if key.item_type == ItemType::BLOCK_GROUP_ITEM {
            let refused = Refused::new("chunk", "none", "one for its block group");
            let source = refused.at(format_args!("block group {}", key.objectid));
            return Err(TreeError::Corrupt { tree: items.id(), source });
        }
        cursor.retreat()?;
    }
    Ok(())
}

fn open_tree(trees: &CommittedTrees, id: TreeId) -> Result<Tree, TreeError> {
    trees.tree(id)?.ok_or(TreeError::NoTree { tree: id })
}

fn find_item(
    items: &Tree,
    params: &VolumeParams,
    layout: &Layout,
) -> Result<BlockGroup, TreeError> {
    let key = Key::new(layout.logical().0, ItemType::BLOCK_GROUP_ITEM, layout.bytes());
    let corrupt = |refused: Refused| TreeError::Corrupt {
        tree: items.id(),
        source: refused.at(format_args!("block group {}", layout.logical())),
    };
    let found = items.find(&key)?;
    let found = found.ok_or_else(|| corrupt(Refused::new("item", "none", "one for its chunk")))?;
    let item = BlockGroup::check(key, found.data(), params.incompat).map_err(corrupt)?;
    let (have, want) = (item.flags.0 & TYPE_MASK, layout.flags().0 & TYPE_MASK);
    require(have == want, "flags", Bits(have), format_args!("{}, as its chunk", Bits(want)))
        .map_err(corrupt)?;
    Ok(item)
}

/// Returns the free ranges of a group by the free space tree.
fn free_of_tree(trees: &CommittedTrees, layout: &Layout) -> Result<Vec<Range<u64>>, TreeError> {
    let tree = open_tree(trees, TreeId::FREE_SPACE)?;
    free_ranges(&tree, layout.logical().0..layout.end())
}

/// Reads the free ranges of one group from its free space extents or bitmaps.
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

/// Returns the ranges of a group that no extent item covers (law 2).
fn free_of_extents(
    trees: &CommittedTrees,
    params: &VolumeParams,
    layout: &Layout,
    excluded: &[Range<u64>],
) -> Result<Vec<Range<u64>>, TreeError> {
    let mut used: Vec<Range<u64>> = excluded.to_vec();
    let extents = open_tree(trees, TreeId::EXTENT)?;
    let mut cursor = extents.scan();
    cursor.seek(&Key::new(layout.logical().0, ItemType(0), 0))?;
    while let Some(key) = cursor.key() {
        if key.objectid >= layout.end() {
            break;
        }
        let bytes = match key.item_type {
            ItemType::EXTENT_ITEM => Some(key.offset),
            ItemType::METADATA_ITEM => Some(u64::from(params.node_bytes)),
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

/// Returns the parts of `whole` that the sorted ranges `used` do not cover.
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

/// Makes the item of a group.
pub(crate) fn encode(change: &GroupChange) -> (Key, Vec<u8>) {
    let raw = RawBlockGroup::of(change.used, change.flags);
    let key = Key::new(change.start.0, ItemType::BLOCK_GROUP_ITEM, change.bytes);
    (key, raw.as_bytes().to_vec())
}
