//! [`FileView`]: one file as one state of its subvolume shows it, or, where it is being written, as
//! it is.

use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_pages::FileKey;
use butternut_tree::Tree;

use crate::error::FileError;
use crate::error_sequence::ErrorCursor;
use crate::live::Live;
use std::sync::{Arc, RwLockReadGuard};

/// The longest a file can be: offsets are signed 64-bit numbers to everyone who asks.
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// What the reader has to know of an inode. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileView {
    tree: Tree,
    ino: Ino,
    size: u64,
    has_sums: bool,
    /// There where the file is being written: then it knows the size, and what is newer than the
    /// tree.
    live: Option<Arc<Live>>,
}

impl FileView {
    /// The file that `inode` describes, number `ino` of the subvolume `tree`. Nobody writes it
    /// while its volume is open; a file that may be written has a [`crate::FileState`], and that
    /// its own view.
    pub fn new(tree: Tree, ino: Ino, inode: &Inode) -> Self {
        let has_sums =
            !inode.flags.contains(InodeFlags::NODATASUM) && tree.id() != TreeId::DATA_RELOCATION;
        Self { tree, ino, size: inode.size.min(FILE_BYTES_MAX), has_sums, live: None }
    }

    /// The same file, while it is being written.
    pub(crate) fn written(self, live: Arc<Live>) -> Self {
        Self { live: Some(live), ..self }
    }

    pub(crate) fn live(&self) -> Option<&Arc<Live>> {
        self.live.as_ref()
    }

    /// Another number whenever the file reads otherwise.
    pub(crate) fn version(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.version())
    }

    /// Another number whenever the tree's items of the file are others.
    pub(crate) fn stamp(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.stamp())
    }

    /// Kept while the file's items are read.
    pub(crate) fn still_items(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.live.as_ref().map(|live| live.still_items())
    }

    /// Returns the place in the file's errors that a new handle begins at.
    pub fn error_cursor(&self) -> ErrorCursor {
        self.live.as_ref().map(|live| live.errors().cursor()).unwrap_or_default()
    }

    /// Returns why data of the file was lost since the last check with this cursor, once.
    pub fn check_errors(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.live.as_ref()?.errors().check(cursor)
    }

    /// Whose pages the cache has.
    pub fn key(&self) -> FileKey {
        FileKey { tree: self.tree.id().0, ino: self.ino.0 }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Bytes of the file (`i_size`).
    pub fn size(&self) -> u64 {
        self.live.as_ref().map_or(self.size, |live| live.size())
    }

    /// Whether the checksum tree vouches for the file's data.
    pub fn has_sums(&self) -> bool {
        self.live.as_ref().map_or(self.has_sums, |live| live.has_sums())
    }

    pub(crate) fn corrupt(&self, refused: Refused) -> FileError {
        FileError::Extents { tree: self.tree.id(), ino: self.ino, source: refused }
    }
}
