//! [`TreeStats`]: the shape of a tree: blocks per level, and the distances between them.
//!
//! The walk is depth first, parents before children, children in key order: the order in which a
//! read of the whole tree visits the device.

use crate::inspect::{Block, child};
use crate::{Error, Filesystem, Result};
use butternut_format::file_extent::{ExtentBody, FileExtent};
use butternut_format::key::ItemType;
use butternut_format::units::{LEVELS_MAX, Logical, TreeId};

/// The statistics that `inspect tree-stats` shows of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeStats {
    /// Number of levels; 1 if the root is a leaf.
    pub levels: u8,
    /// Number of blocks on each level, leaves first.
    pub blocks: Vec<u64>,
    /// Number of items in all leaves.
    pub items: u64,
    /// Bytes of all blocks.
    pub total_bytes: u64,
    /// Bytes of inline file data in the leaves.
    pub inline_bytes: u64,
    /// Steps of the walk to a block that does not begin where the one before ends: to a higher
    /// address, and to a lower one.
    pub forward_seeks: u64,
    pub backward_seeks: u64,
    /// Distance in bytes of all these steps together, and of the longest.
    pub seek_bytes: u64,
    pub seek_bytes_max: u64,
    /// Runs of contiguous blocks, in the order of the walk.
    pub clusters: u64,
    pub cluster_bytes_min: u64,
    pub cluster_bytes_max: u64,
    /// Bytes from the start of the lowest block to the end of the highest.
    pub spread_bytes: u64,
}

impl Filesystem {
    /// Walks a whole tree. `tree` is its object id: 1 root, 2 extent, 5 top-level subvolume ...
    ///
    /// # Errors
    /// [`Error::NotFound`] if the volume has no such tree, or is deleting it: its nodes may name
    /// blocks that are freed.
    pub fn tree_stats(&self, tree: u64) -> Result<TreeStats> {
        let id = TreeId(tree);
        let _reading = self.forest().enter_read_epoch();
        let tree = self.forest().tree(id)?.ok_or(Error::NotFound)?;
        if id.is_subvolume()
            && self.forest().root_item(id)?.is_none_or(|(_, root)| root.refs() == 0)
        {
            return Err(Error::NotFound);
        }
        let root = tree.root();
        let mut walk = Walk::default();
        walk.stats.levels = root.level.saturating_add(1);
        walk.stats.blocks = vec![0; usize::from(walk.stats.levels).min(LEVELS_MAX)];
        let mut pending = vec![root];
        while let Some(expected) = pending.pop() {
            let block = self.forest().block(&expected)?;
            walk.visit(&block);
            let below = |slot| child(&block, slot, root.tree, expected.end_key);
            pending.extend((0..block.len()).rev().filter_map(below));
        }
        Ok(walk.end())
    }
}

#[derive(Default)]
struct Walk {
    stats: TreeStats,
    /// End of the last block visited, and the bytes of its run so far.
    end: Option<u64>,
    run_bytes: u64,
    lowest: Option<u64>,
    highest: u64,
}

impl Walk {
    fn visit(&mut self, block: &Block) {
        let bytes = u64::try_from(block.bytes().len()).unwrap_or(u64::MAX);
        let Logical(start) = block.logical();
        let stats = &mut self.stats;
        stats.total_bytes = stats.total_bytes.saturating_add(bytes);
        if let Some(count) = stats.blocks.get_mut(usize::from(block.level())) {
            *count += 1;
        }
        if block.is_leaf() {
            stats.items += u64::try_from(block.len()).unwrap_or_default();
            stats.inline_bytes += inline_bytes(block);
        }
        self.step(start);
        let end = start.saturating_add(bytes);
        self.run_bytes = self.run_bytes.saturating_add(bytes);
        self.end = Some(end);
        self.lowest = Some(self.lowest.unwrap_or(start).min(start));
        self.highest = self.highest.max(end);
    }

    /// Counts the step from the last block to the one at `start`.
    fn step(&mut self, start: u64) {
        let Some(end) = self.end.filter(|end| *end != start) else { return };
        if start > end {
            self.stats.forward_seeks += 1;
        } else {
            self.stats.backward_seeks += 1;
        }
        let distance = start.abs_diff(end);
        self.stats.seek_bytes = self.stats.seek_bytes.saturating_add(distance);
        self.stats.seek_bytes_max = self.stats.seek_bytes_max.max(distance);
        self.close_run();
    }

    fn close_run(&mut self) {
        let stats = &mut self.stats;
        let is_first = stats.clusters == 0;
        stats.clusters += 1;
        stats.cluster_bytes_max = stats.cluster_bytes_max.max(self.run_bytes);
        stats.cluster_bytes_min =
            if is_first { self.run_bytes } else { stats.cluster_bytes_min.min(self.run_bytes) };
        self.run_bytes = 0;
    }

    fn end(mut self) -> TreeStats {
        self.close_run();
        self.stats.spread_bytes = self.highest.saturating_sub(self.lowest.unwrap_or(self.highest));
        self.stats
    }
}

/// Returns the bytes of inline file data in a leaf, as stored.
fn inline_bytes(leaf: &Block) -> u64 {
    let items = (0..leaf.len()).filter_map(|slot| leaf.item(slot));
    items
        .filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA)
        .filter_map(|(key, data)| FileExtent::check(data, key.offset).ok())
        .map(|extent| match extent.body {
            ExtentBody::Inline(data) => u64::try_from(data.len()).unwrap_or_default(),
            ExtentBody::Regular { .. }
            | ExtentBody::Preallocated { .. }
            | ExtentBody::Hole { .. } => 0,
        })
        .sum()
}
