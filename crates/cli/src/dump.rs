//! Prints on-disk structures in the format of btrfs-progs, so that a diff of both outputs is empty.

pub(crate) mod dump_super;
pub(crate) mod dump_tree;
pub(crate) mod super_block;
pub(crate) mod tree;
