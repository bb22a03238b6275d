//! [`FileView`]: one file as one state of its subvolume shows it, or, while it is being written, in
//! its current state.

use crate::shared_file::InFlight;
use crate::units::FILE_BYTES_MAX;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_pages::FileKey;
use butternut_tree::Tree;

use crate::error::FileError;
use crate::error_sequence::ErrorCursor;
use crate::sealed_file::SealedFile;
use crate::shared_file::SharedFile;
use butternut_sys::lock::RwLockReadGuard;
use std::sync::Arc;

/// What a reader has to know of an inode. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileView {
    tree: Tree,
    ino: Ino,
    size: u64,
    has_checksums: bool,
    /// Set where the file is being written. It then has the current size, and the data that is
    /// newer than the tree.
    shared: Option<Arc<SharedFile>>,
    /// Set where fs-verity has sealed the file, and nothing is written to it. While it is open for
    /// writing, [`SharedFile::verity`] tells.
    verity: Option<Arc<SealedFile>>,
}

impl FileView {
    /// Returns a view of the file that `inode` describes, inode `ino` of the subvolume `tree`. The
    /// file must not change while its volume is open; a file that may be written has a
    /// [`crate::FileState`], which has its own view.
    pub fn new(tree: Tree, ino: Ino, inode: &Inode) -> Self {
        let has_checksums =
            !inode.flags.contains(InodeFlags::NODATASUM) && tree.id() != TreeId::DATA_RELOCATION;
        let is_sealed = inode.flags.contains(InodeFlags::VERITY);
        let verity = is_sealed.then(|| Arc::new(SealedFile::new(tree.clone(), ino)));
        let size = inode.size.min(FILE_BYTES_MAX);
        Self { tree, ino, size, has_checksums, shared: None, verity }
    }

    /// Returns the view of the same file while it is being written.
    pub(crate) fn with_shared(self, shared: Arc<SharedFile>) -> Self {
        if let Some(verity) = self.verity.clone() {
            shared.set_verity(verity);
        }
        Self { shared: Some(shared), verity: None, ..self }
    }

    /// Returns what verifies the reads of a file that fs-verity has sealed.
    pub(crate) fn verity(&self) -> Option<&Arc<SealedFile>> {
        self.verity.as_ref().or_else(|| self.shared.as_ref()?.verity())
    }

    /// Returns whether fs-verity has sealed the file, so that its reads are verified.
    pub fn is_sealed(&self) -> bool {
        self.verity().is_some()
    }

    pub(crate) fn shared(&self) -> Option<&Arc<SharedFile>> {
        self.shared.as_ref()
    }

    /// Changes whenever the file's contents change.
    pub(crate) fn data_version(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.data_version())
    }

    /// Changes whenever the file's items in the tree change.
    pub(crate) fn items_version(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.items_version())
    }

    /// Locks the file's items for reading.
    pub(crate) fn lock_items_shared(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.shared.as_ref().map(|shared| shared.lock_items_shared())
    }

    /// Returns the position in the file's writeback errors at which a new handle begins.
    pub fn error_cursor(&self) -> ErrorCursor {
        self.shared.as_ref().map(|shared| shared.errors().cursor()).unwrap_or_default()
    }

    /// Returns a position behind the file's writeback errors so far, for [`FileView::error_after`].
    pub fn error_position(&self) -> ErrorCursor {
        self.shared.as_ref().map(|shared| shared.errors().position()).unwrap_or_default()
    }

    /// Returns the last writeback error, if it was recorded after `since`. It is left for the
    /// handles of the file, and `since` stays where it is.
    pub fn error_after(&self, since: &ErrorCursor) -> Option<FileError> {
        self.shared.as_ref()?.errors().after(since)
    }

    /// Returns the last writeback error since the previous check with this cursor, once.
    pub fn check_errors(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.shared.as_ref()?.errors().check(cursor)
    }

    /// Returns the key of the file's pages in the page cache.
    pub fn key(&self) -> FileKey {
        FileKey { tree: self.tree.id().0, ino: self.ino.0 }
    }

    /// Returns the tree of the subvolume.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the size of the file in bytes (`i_size`).
    pub fn size(&self) -> u64 {
        self.shared.as_ref().map_or(self.size, |shared| shared.size())
    }

    /// Returns whether the file's data has checksums.
    pub fn has_checksums(&self) -> bool {
        self.shared.as_ref().map_or(self.has_checksums, |shared| shared.has_checksums())
    }

    /// Records that a request is in flight until the result is dropped. The caller holds the inode
    /// lock shared. Returns `None` for a file that cannot be written, which is never drained.
    pub fn begin_request(&self) -> Option<InFlight> {
        self.shared().map(SharedFile::begin_request)
    }

    pub(crate) fn corrupt(&self, refused: Refused) -> FileError {
        FileError::Extents { tree: self.tree.id(), ino: self.ino, source: refused }
    }
}
