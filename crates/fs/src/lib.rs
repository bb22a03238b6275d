//! btrfs in user space: one mounted filesystem, the only stable interface.
//!
//! [`Filesystem::open`] takes the paths of a volume's devices (or image files) and gives a handle
//! that is cheap to clone and may be used from any number of threads at once. Inodes are named by
//! [`FileId`], a plain value that stays true across reopening; file data is read through a
//! [`File`].
//!
//! Everywhere in this crate: sizes and offsets are bytes in `u64`; names and paths are bytes
//! (`[u8]`), not UTF-8; every byte that is returned has passed its checksum and its structural
//! check; errors are [`Error`], and [`Error::errno`] is what a system call would have said.
//!
//! This crate never speaks FUSE, prints, or parses command lines.

mod attribute;
mod backref;
mod directory;
mod disk_usage;
mod errno;
mod error;
mod extent_items;
mod extent_owners;
mod file;
mod id;
mod inode_cache;
mod inspect;
mod mount;
mod path;
mod root;
mod stat;
mod statfs;
mod subvolume;
mod tree_stats;
mod usage;

pub use butternut_device as device;
pub use butternut_format as format;
pub use directory::{DirEntry, FIRST_ENTRY, ReadDir};
pub use disk_usage::DiskUsage;
pub use error::Error;
pub use extent_owners::ExtentOwner;
pub use file::{Compression, Extent, ExtentKind, Extents, File, ReadAt};
pub use id::FileId;
pub use inspect::{Block, ChunkInfo, Inspect, SuperCopy, TreeRoot};
pub use mount::{Counters, DevicePath, Filesystem, MountOptions, Notice, Subvolume};
pub use path::Follow;
pub use stat::{FileKind, Stat, Time};
pub use statfs::StatFs;
pub use subvolume::SubvolumeInfo;
pub use tree_stats::TreeStats;
pub use usage::{DeviceInfo, GroupUsage, Usage};

/// What every call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
