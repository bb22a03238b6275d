//! Paths: from names to an inode, and back.

use crate::{FileId, Filesystem, Result};

/// What to do with a symlink at the end of a path. Symlinks on the way are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// `stat`: go on to what it points at.
    Last,
    /// `lstat`: the symlink itself.
    NotLast,
}

impl Filesystem {
    /// The inode at `path`, which starts at [`Filesystem::root`] with or without a leading `/`.
    /// Absolute symlinks start there too, and `..` never leaves it. At most 40 symlinks.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<FileId> {
        let _ = (path, follow);
        self.not_yet(self.root())
    }

    /// Every path of an inode (one for each hard link), from the root of its subvolume, without a
    /// leading `/`. The subvolume's root itself has the one path "".
    pub fn paths_of(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.not_yet(id)
    }
}
