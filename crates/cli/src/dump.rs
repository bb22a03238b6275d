//! Printers of what lies on disk, in the form of btrfs-progs, so that a diff of the two is empty.

pub(crate) mod dump_super;
pub(crate) mod dump_tree;
pub(crate) mod super_block;
mod tree;
