//! [`FileView`]: one file as one state of its subvolume shows it.

use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::Tree;

use crate::error::FileError;

/// The longest a file can be: offsets are signed 64-bit numbers to everyone who asks.
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// What the reader has to know of an inode. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileView {
    tree: Tree,
    ino: Ino,
    size: u64,
    has_sums: bool,
}

impl FileView {
    /// The file that `inode` describes, number `ino` of the subvolume `tree`.
    pub fn new(tree: Tree, ino: Ino, inode: &Inode) -> Self {
        let has_sums =
            !inode.flags.contains(InodeFlags::NODATASUM) && tree.id() != TreeId::DATA_RELOCATION;
        Self { tree, ino, size: inode.size.min(FILE_BYTES_MAX), has_sums }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Bytes of the file (`i_size`).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the checksum tree vouches for the file's data.
    pub fn has_sums(&self) -> bool {
        self.has_sums
    }

    pub(crate) fn corrupt(&self, refused: Refused) -> FileError {
        FileError::Extents { tree: self.tree.id(), ino: self.ino, source: refused }
    }
}
