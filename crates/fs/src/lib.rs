//! btrfs in user space, as a library: a mounted filesystem, and the project's only stable
//! interface.
//!
//! [`Filesystem::open`] takes the paths of a volume's devices (or image files) and returns a handle
//! that is cheap to clone and may be used from any number of threads at once. A [`FileId`] names an
//! inode; it is a plain value that stays valid across reopening. A [`File`] reads and writes the
//! data of a file.
//!
//! A volume is opened for reading unless [`MountOptions::read_only`] is off. A change is visible to
//! all handles at once, and on the devices after the next commit: every
//! [`commit_seconds`](MountOptions::commit_seconds), at [`Filesystem::sync`], and when the
//! filesystem is closed. [`File::sync_all`] and [`Filesystem::sync_directory`] make one file or
//! directory durable, usually without a commit. After a crash the volume is in the state of the
//! last commit, with what was synced after it. Callers check permissions themselves; this library
//! enforces the flags of inodes for every caller.
//!
//! In this whole crate, sizes and offsets are bytes in `u64`; names and paths are bytes (`[u8]`),
//! not UTF-8; every byte that is returned has passed its checksum and its structural check; errors
//! are [`Error`], and [`Error::errno`] is the errno of the system call; it converts into
//! [`std::io::Error`], and [`FileCursor`] implements the traits of `std::io`. Calls block the
//! calling thread; a [`Queue`](queue::Queue) keeps many direct requests in flight. No call panics,
//! hangs or allocates memory without bound, whatever the devices contain.
//!
//! This crate never speaks FUSE, prints, or parses command lines.
//!
//! # Examples
//!
//! Read a file by its path:
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
//! use butternut::{DevicePath, Filesystem, MountOptions};
//!
//! let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
//! let file = filesystem.open_path(b"/docs/guide.txt")?;
//! let mut text = vec![0; usize::try_from(file.len())?];
//! file.read_exact_at(0, &mut text)?;
//! assert_eq!(text, b"Start here.\n");
//! # Ok(()) }
//! ```
//!
//! List a directory, and continue the listing later:
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
//! Change a volume, and make the change durable:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |root| std::fs::write(root.join("notes"), "old").unwrap());
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! use butternut::{Filesystem, MountOptions, NewInode, RenameFlags};
//!
//! let options = MountOptions::default().read_only(false);
//! let filesystem = Filesystem::open(&devices, &options)?;
//! let root = filesystem.root();
//! filesystem.create_path(b"notes.new", &NewInode::new(0o644))?.write_all_at(0, b"new")?;
//! filesystem.rename((root, b"notes.new"), (root, b"notes"), RenameFlags::default())?;
//! filesystem.close()?;
//!
//! let filesystem = Filesystem::open(&devices, &MountOptions::default())?;
//! let file = filesystem.open_path(b"notes")?;
//! let mut text = [0; 8];
//! assert_eq!(file.read_at(0, &mut text)?, 3);
//! assert_eq!(&text[..3], b"new");
//! # Ok(()) }
//! ```
//!
//! Use a file that has no name:
//!
//! ```
//! # #[path = "../tests/image/mod.rs"]
//! # mod image;
//! # use image::image_of;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = image_of(&[], |_| {});
//! # let devices = [butternut::DevicePath::from(&image.path)];
//! # use butternut::{Filesystem, MountOptions, NewInode};
//! # let options = MountOptions::default().read_only(false);
//! # let filesystem = Filesystem::open(&devices, &options)?;
//! let unnamed = filesystem.open_unnamed(filesystem.root(), &NewInode::new(0o600))?;
//! unnamed.write_at(0, b"only this handle finds it")?;
//! filesystem.link(unnamed.id(), filesystem.root(), b"name")?;
//! filesystem.unlink(filesystem.root(), b"name")?;
//! assert_eq!(unnamed.metadata()?.nlink, 0);
//! assert_eq!(unnamed.len(), 25);
//! # Ok(()) }
//! ```
//!
//! Get the message and the errno of an error:
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

mod admin;
mod background;
mod change;
mod clock;
mod errno;
mod error;
mod failures;
mod file;
mod filesystem;
mod inode;
pub mod inspect;
mod log;
mod mount;
mod names;
mod notice;
mod options;
pub mod queue;
mod quota;
pub mod receive;
mod replay;
mod send;
pub mod server;
mod space;
pub mod stats;
mod subvolume;
mod sync;
mod tunables;
mod write_state;
mod writing;

pub use butternut_device as device;
pub use butternut_file::{BadCompressor, Compress, Compressor, FileError};
pub use butternut_format as format;
pub use butternut_format::verity::hash::VerityHash;
pub use butternut_names::NamesError;
pub use butternut_pages::UncachedFlush;
pub use butternut_sys::buffer::Buffer;
#[doc(hidden)]
pub use butternut_tree::EnospcInjector;
pub use butternut_tree::TreeError;
pub use butternut_tree::{Qgroup, QgroupLimits, QgroupUsage, QuotaMode, Quotas};
pub use butternut_volume::VolumeError;
pub use butternut_volume::super_blocks::{CopyRefused, CopyReport};
pub use clock::Clock;
pub use error::Error;
pub use failures::FailureWatch;
pub use file::clone::Dedupe;
pub use file::cursor::FileCursor;
pub use file::defragment::{DefragmentOptions, Defragmented, SharedExtents};
pub use file::verity::{SealPart, VerityMeasurement, VerityMetadata, VerityOptions};
pub use file::write::Allocate;
pub use file::{Compression, Extent, ExtentKind, Extents, File, ReadAt};
pub use filesystem::Filesystem;
pub use inode::flags::AttributeFlags;
pub use inode::id::{FileId, TOP_LEVEL};
pub use inode::new_inode::NewInode;
pub use inode::privileges::Privileges;
pub use inode::set_attributes::{SetAttributes, SetTime};
pub use inode::stat::{FileKind, Stat, Time};
pub use names::directory::{DirEntry, FIRST_ENTRY, ReadDir};
pub use names::path::Follow;
pub use names::rename::RenameFlags;
pub use names::set_xattr::SetXattr;
pub use notice::Notice;
pub use options::{DevicePath, MountOptions, Subvolume};
pub use send::{SendOptions, SendProtocol};
pub use space::disk_usage::DiskUsage;
pub use space::statfs::StatFs;
pub use space::usage::{DeviceInfo, GroupUsage, Usage};
pub use subvolume::SubvolumeInfo;
pub use subvolume::create::SnapshotAccess;
pub use subvolume::recursive::RecursiveSnapshot;
pub use tunables::{BadTunable, DirectStability, NamedTunable, Tunables};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
