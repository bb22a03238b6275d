//! The shape of a tree: blocks per level, how far apart they lie.

use crate::{Filesystem, Result};

/// What `inspect tree-stats` shows of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Number of levels (1: the root is a leaf).
    pub levels: u8,
    /// Blocks on each level, leaves first.
    pub blocks: Vec<u64>,
    /// Items in all leaves.
    pub items: u64,
    /// Bytes of all blocks.
    pub total_bytes: u64,
    /// Bytes of file data in the leaves.
    pub inline_bytes: u64,
    /// Steps from one block to the next in tree order that are not to the following address.
    pub forward_seeks: u64,
    pub backward_seeks: u64,
    pub seek_bytes: u64,
    pub seek_bytes_max: u64,
    /// Runs of blocks that lie one after the other.
    pub clusters: u64,
    pub cluster_bytes: u64,
    pub cluster_bytes_min: u64,
    pub cluster_bytes_max: u64,
    /// From the lowest block to the end of the highest.
    pub spread_bytes: u64,
}

impl Filesystem {
    /// Walks a whole tree. `tree` is its object id: 1 root, 2 extent, 5 top-level subvolume ...
    pub fn tree_stats(&self, tree: u64) -> Result<TreeStats> {
        let _ = tree;
        self.not_yet(self.root())
    }
}
