//! Why a file's bytes could not be had.

use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, TreeId};
use butternut_tree::TreeError;
use butternut_volume::VolumeError;
use std::sync::Arc;

/// An error of a map, a seek or a read of one file.
#[derive(Debug, thiserror::Error)]
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
}

impl From<TreeError> for FileError {
    fn from(error: TreeError) -> Self {
        Self::Tree(Arc::new(error))
    }
}
