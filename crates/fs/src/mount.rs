//! Opening a volume: devices, options, the subvolume to show.

use crate::{Error, FileId, Result, id::TOP_LEVEL};
use std::path::{Path, PathBuf};

/// A device or image file, and where in it the volume starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath {
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub offset: u64,
}

impl<P: AsRef<Path>> From<P> for DevicePath {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().to_path_buf(), offset: 0 }
    }
}

/// Which subvolume is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// What the volume has set as its default; the top level where it has not.
    #[default]
    Default,
    Id(u64),
    /// A path from the top level.
    Path(Vec<u8>),
}

/// How to open a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Open although devices are missing, as long as every chunk can still be read.
    pub degraded: bool,
    pub subvolume: Subvolume,
    /// Bytes of tree blocks to keep in memory.
    pub node_cache_bytes: u64,
    /// Inodes to keep in memory.
    pub inode_cache_entries: usize,
    /// Threads for decompression and readahead; 0 is one per core.
    pub workers: usize,
    /// Say nothing when the volume holds a log tree from a crash, whose changes are not shown.
    pub ignore_log: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            degraded: false,
            subvolume: Subvolume::Default,
            node_cache_bytes: 64 << 20,
            inode_cache_entries: 16 << 10,
            workers: 0,
            ignore_log: false,
        }
    }
}

/// Something the owner of a volume should know, found while opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(pub(crate) String);

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What has been read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub device_reads: u64,
    pub device_bytes_read: u64,
    pub node_cache_hits: u64,
    pub node_cache_misses: u64,
}

/// One mounted filesystem. Cloning gives another handle on the same one; all methods may be
/// called from many threads at once.
#[derive(Clone, Debug)]
pub struct Filesystem {
    root: FileId,
}

impl Filesystem {
    /// Opens the volume that `devices` make up, for reading.
    pub fn open(devices: &[DevicePath], options: &MountOptions) -> Result<Self> {
        let _ = (devices, options);
        Self { root: FileId::new(TOP_LEVEL, 256) }.not_yet(FileId::new(TOP_LEVEL, 256))
    }

    /// The root directory of the chosen subvolume.
    pub fn root(&self) -> FileId {
        self.root
    }

    /// What the owner should know about this volume.
    pub fn notices(&self) -> &[Notice] {
        &[]
    }

    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    pub(crate) fn not_yet<T>(&self, _id: FileId) -> Result<T> {
        Err(Error::Unsupported { what: "reading volumes" })
    }
}
