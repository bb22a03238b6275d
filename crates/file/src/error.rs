//! Why a file's bytes could not be had, or not written.

use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, TreeId};
use butternut_tree::TreeError;
use butternut_volume::VolumeError;
use std::sync::Arc;

/// An error of a map, a seek, a read or a write of one file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FileError {
    /// The subvolume's tree or the checksum tree could not be searched.
    #[error("the trees that describe a file cannot be searched")]
    Tree(#[source] Arc<TreeError>),
    /// The extent items contradict each other, or one of them the format.
    #[error("tree {tree} inode {ino} is corrupt")]
    Extents {
        tree: TreeId,
        ino: Ino,
        #[source]
        source: Refused,
    },
    /// No copy of the data at `offset` is good.
    #[error("tree {tree} inode {ino}: no data at byte {offset}")]
    Data {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Arc<VolumeError>,
    },
    /// The file has checksums, but not for the data at `offset`: nothing vouches for it.
    #[error("tree {tree} inode {ino}: no checksum for byte {offset}, at logical {logical}")]
    NoChecksum { tree: TreeId, ino: Ino, offset: u64, logical: Logical },
    /// The packed data at `offset` is what was written, and cannot be unpacked.
    #[error("tree {tree} inode {ino}: the data at byte {offset} cannot be unpacked")]
    Packed {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Refused,
    },
    /// Data could not be written on every copy; the range reads as before.
    #[error("tree {tree} inode {ino}: cannot write at byte {offset}")]
    Write {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Arc<VolumeError>,
    },
    /// No file reaches as far as was asked.
    #[error("tree {tree} inode {ino}: a file has at most {} bytes", crate::view::FILE_BYTES_MAX)]
    TooLarge { tree: TreeId, ino: Ino },
    /// Everything that the page cache may hold is newer than the disk, and stays so.
    #[error("tree {tree} inode {ino}: no memory for what is written")]
    NoMemory { tree: TreeId, ino: Ino },
    /// The inode item is not there any more.
    #[error("tree {tree} inode {ino}: no such inode")]
    Gone { tree: TreeId, ino: Ino },
    /// The volume, or what the file is in, is not open for writing.
    #[error("tree {tree} inode {ino}: not open for writing")]
    ReadOnly { tree: TreeId, ino: Ino },
}

impl FileError {
    /// The volume is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Tree(tree) if matches!(**tree, TreeError::NoSpace { .. }))
    }
}

impl From<TreeError> for FileError {
    fn from(error: TreeError) -> Self {
        Self::Tree(Arc::new(error))
    }
}
