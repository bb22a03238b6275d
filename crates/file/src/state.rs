//! [`FileState`]: one inode's data while it is being written.
//!
//! It owns what is newer than the trees: blocks that are dirty in memory, extents that are on disk
//! but in no tree yet, and the file's size. It does not own names, times or permissions.
//!
//! Locking: there is no lock to take here beyond the caller's. The caller keeps a lock for each
//! inode around its state: shared for everything that takes `&self` and for every read through a
//! [`FileView`] of it, exclusive for what takes `&mut self`. That lock comes before a transaction:
//! calls that edit trees join one themselves, so nobody may hold a handle when making them.
//!
//! Laws:
//!
//! 1. A tree names data only when it is down on every copy.
//! 2. What could not be written was never there: the range reads as before. The writer who asks
//!    is told, and [`FileState::take_error`] tells once more.
//! 3. Space is found before a write is accepted, not when its data goes down.
//! 4. No data is read or written while a transaction handle is open.

use crate::error::FileError;
use crate::source::Source;
use crate::view::FileView;
use butternut_format::inode::Inode;
use butternut_format::units::{Generation, Ino};
use butternut_tree::Tree;
use std::ops::Range;
use std::sync::Arc;

/// What a caller changes in the inode item, in the transaction that also changes its size and byte
/// count: times, sequence, flags. It runs after the file's own fields are set.
pub type Stamp<'a> = &'a mut dyn FnMut(&mut Inode);

/// Whether space set aside behind the end of a file makes the file longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnd {
    Moves,
    Stays,
}

/// One inode's data while it is being written.
#[derive(Debug)]
pub struct FileState {
    view: FileView,
}

/// One of the files of [`FileState::merge_many`].
pub struct Merging<'a> {
    pub file: &'a mut FileState,
    pub stamp: Stamp<'a>,
}

impl FileState {
    /// The state of file `ino` of `tree`, as its inode item says. There is one for each inode at a
    /// time.
    pub fn new(_source: &Source, tree: &Tree, ino: Ino, inode: &Inode) -> Self {
        Self { view: FileView::new(tree.clone(), ino, inode) }
    }

    /// For reads, seeks and lists of extents. It shows every change from now on too.
    pub fn view(&self) -> &FileView {
        &self.view
    }

    pub fn size(&self) -> u64 {
        self.view.size()
    }

    /// Bytes of data space, as `stat` shows them: what is not in the trees yet counts.
    pub fn bytes_used(&self) -> u64 {
        0
    }

    /// Nothing here is newer than the trees.
    pub fn is_clean(&self) -> bool {
        true
    }

    /// Writes all of `bytes`, or as much as there is space for; the file grows as needed.
    pub fn write_at(&mut self, _offset: u64, _bytes: &[u8]) -> Result<usize, FileError> {
        Err(self.read_only())
    }

    /// Sets the size: what is behind it is gone, what is new reads as zeroes.
    pub fn truncate(&mut self, _size: u64, _stamp: Stamp<'_>) -> Result<(), FileError> {
        Err(self.read_only())
    }

    /// Sets space aside for the holes of a range.
    pub fn allocate(
        &mut self,
        _range: Range<u64>,
        _end: FileEnd,
        _stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        Err(self.read_only())
    }

    /// Makes a range read as zeroes and gives its whole blocks back. The size stays.
    pub fn punch_hole(&mut self, _range: Range<u64>, _stamp: Stamp<'_>) -> Result<(), FileError> {
        Err(self.read_only())
    }

    /// Makes a range read as zeroes, with space set aside for it.
    pub fn zero_range(
        &mut self,
        _range: Range<u64>,
        _end: FileEnd,
        _stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        Err(self.read_only())
    }

    /// Brings all dirty data down. The trees do not change.
    pub fn flush(&mut self) -> Result<(), FileError> {
        Self::flush_many(&mut [self])
    }

    /// Brings the dirty data of many files down, as one batch. Each file keeps its own error; the
    /// first is returned.
    pub fn flush_many(_files: &mut [&mut Self]) -> Result<(), FileError> {
        Ok(())
    }

    /// Flushes, then brings the trees up to date in the running transaction.
    pub fn merge(&mut self, stamp: Stamp<'_>) -> Result<Option<Generation>, FileError> {
        Self::merge_many(&mut [Merging { file: self, stamp }])
    }

    /// Merges many files, sharing batches and transaction handles: best in ascending order of
    /// tree and inode. Says which transaction has the last change, if there was any.
    pub fn merge_many(_files: &mut [Merging<'_>]) -> Result<Option<Generation>, FileError> {
        Ok(None)
    }

    /// Throws away what is not in the trees: for an inode that is gone.
    pub fn discard(&mut self) {}

    /// Why data was lost since the last call, if any was: for `fsync`, which reports it once.
    pub fn take_error(&mut self) -> Option<Arc<FileError>> {
        None
    }

    fn read_only(&self) -> FileError {
        FileError::ReadOnly { tree: self.view.tree().id(), ino: self.view.ino() }
    }
}

impl std::fmt::Debug for Merging<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merging").field("file", &self.file).finish_non_exhaustive()
    }
}
