//! Commands that print on-disk structures.

pub(crate) mod dump_super;
pub(crate) mod dump_tree;
pub(crate) mod inode_resolve;
pub(crate) mod logical_resolve;
pub(crate) mod rootid;
pub(crate) mod tree_stats;
