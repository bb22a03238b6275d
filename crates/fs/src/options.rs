//! [`MountOptions`], and what names a volume: [`DevicePath`] and [`Subvolume`].

use crate::{Clock, Tunables};
use butternut_device::partitions::{PartitionError, PartitionTable};
use butternut_device::{FileDevice, OpenDevice, Sharing};
use butternut_file::Compress;
use butternut_tree::EnospcInjector;
use butternut_volume::super_blocks;
use std::path::{Path, PathBuf};

/// A device or image file, and the offset at which the volume starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath {
    pub path: PathBuf,
    /// Offset from the start of the file, in bytes.
    pub offset: u64,
    /// The size of the device in bytes; `None` means up to the end of the file.
    pub bytes: Option<u64>,
}

impl DevicePath {
    /// Returns the partition with a number, of the disk or image at `path`. Nothing outside of it
    /// is read or written.
    ///
    /// # Errors
    /// The disk cannot be read or has no partition table, or the partition does not exist, is not
    /// inside the disk, or overlaps another one.
    pub fn partition(path: impl AsRef<Path>, number: u32) -> Result<Self, PartitionError> {
        let path = path.as_ref().to_path_buf();
        let table = PartitionTable::of_path(&path)?;
        let found = table.find(number)?;
        Ok(Self { offset: found.start, bytes: Some(found.bytes), path })
    }

    /// Returns whether the device is a seed: volumes that grew from it read it, and none writes to
    /// it. A device whose superblock cannot be read is none.
    pub fn is_seed(&self) -> bool {
        let sharing = Sharing::Unlocked;
        let (offset, bytes) = (self.offset, self.bytes);
        let how = OpenDevice { offset, bytes, sharing, ..OpenDevice::default() };
        let opened = FileDevice::open(&self.path, &how);
        let super_block = opened.ok().and_then(|opened| super_blocks::choose(&opened, None).ok());
        super_block.is_some_and(|super_block| super_block.is_seeding())
    }
}

impl<P: AsRef<Path>> From<P> for DevicePath {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().to_path_buf(), offset: 0, bytes: None }
    }
}

/// Which subvolume is the root of a handle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// The default subvolume of the volume; the top level if none is set.
    #[default]
    Default,
    Id(u64),
    /// The path of a subvolume from the top level. Symbolic links on it are not followed
    /// ([`Filesystem::subvolume_at`](crate::Filesystem::subvolume_at)).
    Path(Vec<u8>),
}

/// How to open a volume. Every option has a method of its name that sets it:
///
/// ```
/// let options = butternut::MountOptions::default().read_only(false).commit_seconds(5);
/// assert_eq!(options.commit_seconds, 5);
/// ```
#[expect(clippy::struct_excessive_bools, reason = "options, each on its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Open for reading only: the default.
    pub read_only: bool,
    /// Commit interval in seconds. 0: no committer runs, and commits happen only at a sync and when
    /// the limits on dirty memory are exceeded (256 MiB of tree blocks); see
    /// [`Filesystem::abandon`](crate::Filesystem::abandon).
    pub commit_seconds: u32,
    /// Commit when space is short, so that freed space can be allocated: deleting on a full volume
    /// may need that. Without it, such operations fail with no space.
    pub commits_for_space: bool,
    /// For tests: fails reservations although there is space.
    #[doc(hidden)]
    pub enospc_injector: Option<EnospcInjector>,
    /// The clock for the times of inodes and commits.
    pub clock: Clock,
    /// Open with devices missing, as long as every chunk can still be read.
    pub degraded: bool,
    /// Compress written data with this algorithm; flags and properties of files and directories
    /// override it.
    pub compress: Option<Compress>,
    pub subvolume: Subvolume,
    /// Size of the node cache (tree blocks in memory), in bytes: at least 64 blocks, and none at 0,
    /// where each search reads the devices.
    pub node_cache_bytes: u64,
    /// Size of the page cache, clean and dirty, in bytes.
    pub page_cache_bytes: u64,
    /// Bytes of data that may be on the devices and not in the trees yet, of all files together; a
    /// file may have 256 MiB in any case. Each 4 KiB of them take about 180 bytes of memory where
    /// they were written one by one, and keep the space of what they replace in use until a merge.
    pub pending_bytes: u64,
    /// Number of inodes to keep in memory, besides those in use: about 200 bytes each, or 400 bytes
    /// on a volume that is open for writing.
    pub inode_cache_entries: usize,
    /// Number of threads for compression, decompression and readahead; 0 is one per core.
    pub workers: usize,
    /// Show the last commit of a volume that was not unmounted cleanly, without replaying its log
    /// tree. Only for reading: a volume with a log is then not opened for writing.
    pub ignore_log: bool,
    /// The tunables of the I/O path.
    pub tunables: Tunables,
    /// Use only this superblock copy (0 to 2) of every device.
    pub super_copy: Option<usize>,
    /// The device number (major, minor) of a block device of the volume that the caller has mounted
    /// with type `fuseblk`. The kernel's mount holds the device exclusively, so it is opened
    /// without `O_EXCL`.
    pub mounted_device: Option<(u32, u32)>,
    /// Register the devices with the rings (`io_uring`) of the volume, which makes requests
    /// slightly cheaper. The rings of a process that is killed keep registered devices open, and
    /// locked, as long as one of its threads waits in the kernel. A server whose clients can make
    /// that last sets this to false.
    pub registers_devices: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: true,
            commit_seconds: 30,
            commits_for_space: true,
            enospc_injector: None,
            clock: Clock::default(),
            degraded: false,
            compress: None,
            subvolume: Subvolume::Default,
            node_cache_bytes: 64 << 20,
            page_cache_bytes: 256 << 20,
            pending_bytes: 3 << 29,
            inode_cache_entries: 128 << 10,
            workers: 0,
            ignore_log: false,
            tunables: Tunables::default(),
            super_copy: None,
            mounted_device: None,
            registers_devices: true,
        }
    }
}

/// Defines, for each field of a structure of options, a method of its name that sets it.
macro_rules! setters {
    ($options:ident: $($(#[$meta:meta])* $name:ident: $kind:ty),* $(,)?) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "`](field@Self::", stringify!($name))]
                #[doc = ")."]
                $(#[$meta])*
                #[must_use]
                pub fn $name(mut self, $name: $kind) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}

pub(crate) use setters;

setters! { MountOptions:
    read_only: bool,
    commit_seconds: u32,
    commits_for_space: bool,
    #[doc(hidden)]
    enospc_injector: Option<EnospcInjector>,
    clock: Clock,
    degraded: bool,
    compress: Option<Compress>,
    subvolume: Subvolume,
    node_cache_bytes: u64,
    page_cache_bytes: u64,
    pending_bytes: u64,
    inode_cache_entries: usize,
    workers: usize,
    ignore_log: bool,
    tunables: Tunables,
    super_copy: Option<usize>,
    mounted_device: Option<(u32, u32)>,
    registers_devices: bool,
}
