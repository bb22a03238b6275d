//! [`Stat`]: kind, mode, owner, sizes and times of an inode.
//!
//! Every field has the value that the kernel's `statx` shows for the same image mounted read-only,
//! except for the times of a placeholder.

use crate::inode::cache::InodeCache;
use crate::inode::table::Lookup;
use crate::{Error, FileId, Filesystem, Result};
use butternut_format::inode::{self, Inode};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{SECTOR_BYTES, TreeId};

const NANOS_MAX: u32 = 999_999_999;

/// Bytes in the unit of [`Stat::blocks`].
const BLOCK_BYTES: u64 = 512;

pub use butternut_format::inode::FileKind;

/// A point in time. `secs` counts from 1970 and may be negative; `nanos` is below 1e9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub secs: i64,
    pub nanos: u32,
}

/// The attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    pub id: FileId,
    /// The inode number in its subvolume, as the kernel's `stat` shows it.
    pub ino: u64,
    pub kind: FileKind,
    /// Permission bits *and* the type bits (`S_IFMT`), as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// In bytes. For a directory, twice the bytes of its names, as in the kernel.
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub block_bytes: u32,
    /// Always 1 for directories, as in btrfs.
    pub nlink: u32,
    /// Major and minor number of a device node, else (0, 0).
    pub rdev: (u32, u32),
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// The creation time; zero if the implementation that wrote the inode did not record it.
    pub btime: Time,
    /// The inode's generation (`i_generation`).
    pub generation: u64,
    /// `BTRFS_INODE_*` bits (nodatasum 1, nodatacow 2, readonly 4, nocompress 8, prealloc 16,
    /// sync 32, immutable 64, append 128, nodump 256, noatime 512, dirsync 1024, compress 2048);
    /// fs-verity and other read-only-compatible bits are in the upper 32.
    pub flags: u64,
}

impl From<inode::Time> for Time {
    fn from(time: inode::Time) -> Self {
        Self { secs: time.secs, nanos: time.nanos.min(NANOS_MAX) }
    }
}

impl Filesystem {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode.
    pub fn stat(&self, id: FileId) -> Result<Stat> {
        match id.placeholder_dir() {
            None => self.inode(id).map(|inode| stat_of(id, &inode)),
            Some(dir) => self.inode(dir).map(|dir| placeholder(id, &dir)),
        }
    }

    /// Returns an inode item, from memory or from its tree.
    pub(crate) fn inode(&self, id: FileId) -> Result<Inode> {
        if let Some(write_state) = &self.shared.write_state {
            match write_state.table.lookup(id) {
                Lookup::Cached(inode) => return Ok(inode),
                Lookup::UseEntry => {}
                Lookup::ReadTree => {
                    let inode = self.read_inode(id)?;
                    // A thread that has added an entry meanwhile may be half-way through a change.
                    if !write_state.table.has(id) {
                        return Ok(inode);
                    }
                }
            }
            return self.attributes(&write_state.table.entry(id));
        }
        let cache: &InodeCache = &self.shared.inodes;
        if let Some(inode) = cache.find(id) {
            return Ok(inode);
        }
        let inode = self.read_inode(id)?;
        cache.insert(id, inode);
        Ok(inode)
    }

    /// Reads the inode item of `id` from its tree.
    pub(crate) fn read_inode(&self, id: FileId) -> Result<Inode> {
        let key = Key::new(id.ino, ItemType::INODE_ITEM, 0);
        let item = self.in_tree_of(id, |tree| Ok(tree.find(&key)?))?.ok_or(Error::Stale { id })?;
        Inode::check(item.data()).map_err(|refused| Error::Corrupt {
            tree: TreeId(id.subvolume),
            source: refused.at(format_args!("item {key}")),
        })
    }

    pub(crate) fn directory(&self, id: FileId) -> Result<Inode> {
        let inode = self.inode(id)?;
        if inode.kind == FileKind::Directory { Ok(inode) } else { Err(Error::NotDirectory) }
    }
}

fn stat_of(id: FileId, inode: &Inode) -> Stat {
    let is_device = matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let sectors = inode.bytes_used.div_ceil(SECTOR_BYTES);
    Stat {
        id,
        ino: id.ino,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        blocks: sectors.saturating_mul(SECTOR_BYTES / BLOCK_BYTES),
        block_bytes: 4096,
        nlink: inode.nlink,
        rdev: if is_device { (inode.rdev.major(), inode.rdev.minor()) } else { (0, 0) },
        atime: inode.atime.into(),
        mtime: inode.mtime.into(),
        ctime: inode.ctime.into(),
        btime: inode.otime.into(),
        generation: inode.generation.0,
        flags: inode.flags.0,
    }
}

/// Returns the attributes of a placeholder. It has the owner and access time of the directory that
/// contains it. The kernel shows the current time as its other times; here they are the
/// directory's, so that they do not change from call to call.
fn placeholder(id: FileId, dir: &Inode) -> Stat {
    Stat {
        id,
        ino: FileId::PLACEHOLDER_INO,
        kind: FileKind::Directory,
        mode: FileKind::Directory.mode_bits() | 0o755,
        uid: dir.uid,
        gid: dir.gid,
        size: 0,
        blocks: 0,
        block_bytes: 4096,
        nlink: 1,
        rdev: (0, 0),
        atime: dir.atime.into(),
        mtime: dir.mtime.into(),
        ctime: dir.ctime.into(),
        btime: Time::default(),
        generation: 0,
        flags: 0,
    }
}
