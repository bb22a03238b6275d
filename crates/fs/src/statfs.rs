//! How full the volume is, in the kernel's `statfs` terms.

use crate::{Filesystem, Result};

/// The answer of `statfs(2)`. Block counts are units of `block_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    /// btrfs has no fixed number of inodes: 0, as the kernel says.
    pub files: u64,
    pub files_free: u64,
    pub name_bytes_max: u32,
    /// `f_fsid`, distinct per volume and subvolume.
    pub fsid: u64,
}

impl Filesystem {
    pub fn statfs(&self) -> Result<StatFs> {
        self.not_yet(self.root())
    }
}
