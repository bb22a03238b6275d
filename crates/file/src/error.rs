//! [`FileError`]: why a file could not be read or written.

use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, TreeId};
use butternut_tree::TreeError;
use butternut_volume::VolumeError;
use std::sync::Arc;

/// An error of a lookup, a read or a write of one file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FileError {
    /// The subvolume's tree or the checksum tree could not be searched, or the volume is full.
    #[error("{}", cause_of(.0))]
    Tree(#[source] Arc<TreeError>),
    /// An extent item is invalid, or extent items contradict each other.
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
    /// The file has checksums, but none for the data at `offset`, so the data cannot be verified.
    #[error("tree {tree} inode {ino}: no checksum for byte {offset}, at logical {logical}")]
    NoChecksum { tree: TreeId, ino: Ino, offset: u64, logical: Logical },
    /// The compressed data at `offset` matches its checksum, and cannot be decompressed.
    #[error("tree {tree} inode {ino}: the data at byte {offset} cannot be decompressed")]
    Decompress {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Refused,
    },
    /// The data at `offset`, or a hash of it, does not agree with the hashes of fs-verity.
    #[error("tree {tree} inode {ino}: the data at byte {offset} is not what fs-verity sealed")]
    Verity {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Box<Refused>,
    },
    /// Data could not be written. The range reads as before, except where the data was to be
    /// written in place.
    #[error("tree {tree} inode {ino}: cannot write at byte {offset}")]
    Write {
        tree: TreeId,
        ino: Ino,
        offset: u64,
        #[source]
        source: Arc<VolumeError>,
    },
    /// The range ends past the maximum size of a file.
    #[error("tree {tree} inode {ino}: a file has at most {} bytes", crate::units::FILE_BYTES_MAX)]
    TooLarge { tree: TreeId, ino: Ino },
    /// All pages of the page cache are dirty and cannot be written back.
    #[error("tree {tree} inode {ino}: no memory for written data: all cached pages are dirty")]
    NoMemory { tree: TreeId, ino: Ino },
    /// The inode item does not exist any more.
    #[error("tree {tree} inode {ino}: no such inode")]
    Stale { tree: TreeId, ino: Ino },
    /// The call would have to wait, and its caller forbids it. Nothing has changed.
    #[error("the call would block")]
    WouldBlock,
    /// The volume, or the file's subvolume, is not open for writing.
    #[error("tree {tree} inode {ino}: not open for writing")]
    ReadOnly { tree: TreeId, ino: Ino },
}

impl FileError {
    /// Returns whether the call was refused because it would have blocked.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::WouldBlock)
    }

    /// Returns whether the volume is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Tree(tree) if matches!(**tree, TreeError::NoSpace { .. }))
    }

    /// Returns whether the limit of a quota group is reached.
    pub(crate) fn is_quota_exceeded(&self) -> bool {
        matches!(self, Self::Tree(tree) if matches!(**tree, TreeError::QuotaExceeded { .. }))
    }

    /// Returns whether a tree block cannot be read.
    pub(crate) fn is_unreadable_block(&self) -> bool {
        matches!(self, Self::Tree(tree) if matches!(**tree, TreeError::Block { .. }))
    }
}

impl From<TreeError> for FileError {
    fn from(error: TreeError) -> Self {
        if matches!(error, TreeError::WouldBlock) {
            return Self::WouldBlock;
        }
        Self::Tree(Arc::new(error))
    }
}

/// Returns what a failure in a tree means for a file.
fn cause_of(error: &TreeError) -> &'static str {
    if matches!(error, TreeError::NoSpace { .. }) {
        return "the volume is full";
    }
    "the trees that describe a file cannot be searched"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_is_named_as_such() {
        let full = FileError::from(TreeError::NoSpace { bytes: 4096 });
        assert_eq!(full.to_string(), "the volume is full");
        let other = FileError::from(TreeError::NotWritable);
        assert_eq!(other.to_string(), "the trees that describe a file cannot be searched");
    }
}
