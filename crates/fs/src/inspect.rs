//! The volume's raw structures, for tools that show them: superblock copies, trees, blocks.

use crate::{Error, Filesystem, Result};
use butternut_format::node::Expected;
use butternut_format::units::{Generation, Logical, TreeId};

/// A view of the volume below files. Blocks are verified; superblock copies are as they lie.
#[derive(Clone, Debug)]
pub struct Inspect {
    pub(crate) filesystem: Filesystem,
}

/// One copy of the superblock, good or bad.
#[derive(Clone, Debug)]
pub struct SuperCopy {
    /// The device's path or name.
    pub device: String,
    /// 0, 1 or 2.
    pub copy: u32,
    /// Where on the device, in bytes.
    pub offset: u64,
    /// The 4096 bytes.
    pub bytes: Vec<u8>,
}

/// The root block of a tree, and the key of its root item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    pub tree: TreeId,
    /// The offset of the root item's key: for a snapshot, the generation it was made in.
    pub key_offset: u64,
    pub logical: Logical,
    pub generation: Generation,
    pub level: u8,
}

impl TreeRoot {
    /// What the root block must be, for [`Inspect`] to read it.
    pub fn expected(&self) -> Expected {
        Expected {
            logical: self.logical,
            generation: self.generation,
            level: self.level,
            tree: self.tree,
            first_key: None,
        }
    }
}

impl Filesystem {
    pub fn inspect(&self) -> Inspect {
        Inspect { filesystem: self.clone() }
    }
}

impl Inspect {
    /// Every superblock copy that fits on each device, device by device.
    pub fn super_copies(&self) -> Result<Vec<SuperCopy>> {
        self.filesystem.not_yet(self.filesystem.root())
    }

    /// Root tree, chunk tree (and log root tree) from the superblock, then every tree with a root
    /// item, in key order.
    pub fn tree_roots(&self) -> Result<Vec<TreeRoot>> {
        Err(Error::Unsupported { what: "listing trees" })
    }
}
