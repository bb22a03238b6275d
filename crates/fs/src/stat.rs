//! What an inode is: kind, mode, owner, sizes, times.
//!
//! Every field is what the kernel's `statx` shows for the same image mounted read-only.

use crate::{FileId, Filesystem, Result};

/// A point in time. `secs` counts from 1970 and may be negative; `nanos` is below 1e9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub secs: i64,
    pub nanos: u32,
}

/// The kinds of inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// The attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub id: FileId,
    /// The inode number inside its subvolume (what the kernel's `stat` shows).
    pub ino: u64,
    pub kind: FileKind,
    /// Permission bits *and* the type bits (`S_IFMT`), as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes. For a directory, as the kernel shows it: twice the bytes of its names.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub block_bytes: u32,
    /// 1 for directories, as btrfs has it.
    pub nlink: u32,
    /// Major and minor number of a device node, else (0, 0).
    pub rdev: (u32, u32),
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// When the inode was made; zero where the filesystem that wrote it did not keep it.
    pub btime: Time,
    /// The inode's generation (`i_generation`).
    pub generation: u64,
    /// `BTRFS_INODE_*` bits (nodatasum 1, nodatacow 2, readonly 4, nocompress 8, prealloc 16,
    /// sync 32, immutable 64, append 128, nodump 256, noatime 512, dirsync 1024, compress 2048);
    /// fs-verity and other read-only-compatible bits are in the upper 32.
    pub flags: u64,
}

impl Filesystem {
    /// The attributes of `id`.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale) where there is no such inode.
    pub fn stat(&self, id: FileId) -> Result<Stat> {
        self.not_yet(id)
    }
}
