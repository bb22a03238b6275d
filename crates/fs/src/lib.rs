//! btrfs in user space: one mounted filesystem, the only stable interface.
//!
//! [`Filesystem::open`] takes the paths of a volume's devices (or image files) and gives a handle
//! that is cheap to clone and may be used from any number of threads at once. Inodes are named by
//! [`FileId`], a plain value that stays true across reopening; file data is read and written
//! through a [`File`].
//!
//! A volume is opened for reading unless [`MountOptions::read_only`] is off. What is changed then
//! is seen by everyone at once, and is on the devices after the next commit: every
//! [`commit_seconds`](MountOptions::commit_seconds), with [`Filesystem::sync`] and
//! [`File::sync_all`], and when the filesystem is closed. A crash leaves the last commit. Who may
//! change what is for the caller to know; what an inode's flags forbid is forbidden to everyone.
//!
//! Everywhere in this crate: sizes and offsets are bytes in `u64`; names and paths are bytes
//! (`[u8]`), not UTF-8; every byte that is returned has passed its checksum and its structural
//! check; errors are [`Error`], and [`Error::errno`] is what a system call would have said. Calls
//! block the thread that makes them. No call panics, hangs or takes memory without bound, whatever
//! the devices hold.
//!
//! This crate never speaks FUSE, prints, or parses command lines.
//!
//! # Examples
//!
//! Read a file, by its path:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |root| {
//! #     std::fs::create_dir(root.join("docs")).unwrap();
//! #     std::fs::write(root.join("docs/guide.txt"), "Start here.\n").unwrap();
//! # });
//! # let image = &image.path;
//! use butternut::{DevicePath, Filesystem, Follow, MountOptions};
//!
//! let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
//! let guide = filesystem.resolve(b"/docs/guide.txt", Follow::Last)?;
//! let file = filesystem.open_file(guide)?;
//! let mut text = vec![0; usize::try_from(file.size())?];
//! let read = file.read_at(0, &mut text)?;
//! assert_eq!(&text[..read], b"Start here.\n");
//! # Ok(()) }
//! ```
//!
//! List a directory, and keep the place to go on from:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |root| {
//! #     for name in ["a", "b", "c"] {
//! #         std::fs::write(root.join(name), name).unwrap();
//! #     }
//! # });
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! use butternut::{Filesystem, FIRST_ENTRY, MountOptions};
//!
//! let filesystem = Filesystem::open(&devices, &MountOptions::default())?;
//! let mut listing = filesystem.read_dir(filesystem.root(), FIRST_ENTRY)?;
//! let first = listing.next().ok_or("no entries")??;
//! println!("{} is a {:?}", first.name.escape_ascii(), first.kind);
//!
//! // Later, perhaps in another process: the entries after the first.
//! let rest = filesystem.read_dir(filesystem.root(), first.cookie)?;
//! assert_eq!(rest.count(), 2);
//! # Ok(()) }
//! ```
//!
//! Change a volume, and know that it is done:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |root| std::fs::write(root.join("notes"), "old").unwrap());
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! use butternut::{Filesystem, Follow, MountOptions, NewInode, RenameFlags};
//!
//! let options = MountOptions { read_only: false, ..MountOptions::default() };
//! let filesystem = Filesystem::open(&devices, &options)?;
//! let root = filesystem.root();
//! let id = filesystem.create(root, b"notes.new", &NewInode::new(0o644))?;
//! filesystem.open_file(id)?.write_at(0, b"new")?;
//! filesystem.rename((root, b"notes.new"), (root, b"notes"), RenameFlags::default())?;
//! filesystem.close()?;
//!
//! let filesystem = Filesystem::open(&devices, &MountOptions::default())?;
//! let file = filesystem.open_file(filesystem.resolve(b"notes", Follow::Last)?)?;
//! let mut text = [0; 8];
//! assert_eq!(file.read_at(0, &mut text)?, 3);
//! assert_eq!(&text[..3], b"new");
//! # Ok(()) }
//! ```
//!
//! Keep a file in being while it is in use, whatever becomes of its names:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |_| {});
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! # use butternut::{Filesystem, MountOptions, NewInode};
//! # let options = MountOptions { read_only: false, ..MountOptions::default() };
//! # let filesystem = Filesystem::open(&devices, &options)?;
//! let unnamed = filesystem.open_unnamed(filesystem.root(), &NewInode::new(0o600))?;
//! unnamed.write_at(0, b"nobody else can find this")?;
//! filesystem.link(unnamed.id(), filesystem.root(), b"now they can")?;
//! filesystem.unlink(filesystem.root(), b"now they can")?;
//! assert_eq!(unnamed.stat()?.nlink, 0);
//! assert_eq!(unnamed.size(), 25);
//! # Ok(()) }
//! ```
//!
//! Tell what is wrong in words and in numbers:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |_| {});
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! use butternut::{Filesystem, Follow, MountOptions};
//!
//! let filesystem = Filesystem::open(&devices, &MountOptions::default())?;
//! let error = filesystem.resolve(b"nowhere", Follow::Last).unwrap_err();
//! assert_eq!(error.to_string(), "no such file or directory");
//! assert_eq!(error.errno(), 2); // ENOENT
//! # Ok(()) }
//! ```
//!
//! The programs in `examples/` list a whole tree and copy a file out.

mod at_once;
mod attribute;
mod backref;
mod change;
mod checks;
mod clock;
mod committer;
mod create;
mod data;
mod direct;
mod directory;
mod dirty_inodes;
mod disk_usage;
mod errno;
mod error;
mod extent_items;
mod extent_owners;
mod file;
mod flusher;
mod held;
mod histogram;
mod id;
mod idle;
mod inode_cache;
mod inode_flags;
mod inode_table;
mod inspect;
mod lane_counters;
mod latency;
mod link;
mod mount;
mod new_inode;
mod path;
mod queue;
mod rename;
mod root;
mod set_attributes;
mod set_xattr;
mod stat;
mod statfs;
mod stats;
mod subvolume;
mod switches;
mod sync;
mod tree_stats;
mod troubles;
mod unlink;
mod upkeep;
mod usage;
mod write_back;
mod writer;

pub use butternut_device as device;
pub use butternut_file::{BadPacker, Compress, Packer};
pub use butternut_format as format;
pub use butternut_pages::{
    CacheLimits, DirtyLimits, PageCounters, Reason as WritebackReason, UncachedFlush,
};
pub use butternut_sys::buffer::Buffer;
pub use butternut_tree::Refusals;
pub use butternut_volume::RescueCounts;
pub use clock::Clock;
pub use data::{Allocate, Privileges};
pub use directory::{DirEntry, FIRST_ENTRY, ReadDir};
pub use disk_usage::DiskUsage;
pub use error::Error;
pub use extent_owners::ExtentOwner;
pub use file::{Compression, Extent, ExtentKind, Extents, File, ReadAt};
pub use held::Held;
pub use histogram::Latency;
pub use id::FileId;
pub use inode_flags::AttributeFlags;
pub use inspect::{Block, ChunkInfo, Inspect, SuperCopy, TreeRoot};
pub use lane_counters::LaneCounts;
pub use latency::Operation;
pub use mount::{Counters, DevicePath, Filesystem, MountOptions, Notice, Subvolume};
pub use new_inode::NewInode;
pub use path::Follow;
pub use queue::{Done, IoFlags, QUEUE_DEPTH_MAX, Queue, QueueOptions, Refused, SyncKind};
pub use rename::RenameFlags;
pub use set_attributes::{SetAttributes, SetTime};
pub use set_xattr::SetXattr;
pub use stat::{FileKind, Stat, Time};
pub use statfs::StatFs;
pub use stats::{DeviceCounts, MemoryUse, Stats};
pub use subvolume::SubvolumeInfo;
pub use switches::{BadSwitch, DirectStability, NamedSwitch, Switches};
pub use tree_stats::TreeStats;
pub use troubles::TroubleWatch;
pub use usage::{DeviceInfo, GroupUsage, Usage};

/// What every call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
