//! Directories: lookup, listing, links, extended attributes.
//!
//! A cookie is where to go on: passing the cookie of an entry to [`Filesystem::read_dir`] gives
//! the entries after it. It is made of the entry's index, so it stays true across reopening and
//! whatever else is in the directory: 0 starts at `.`, 1 at `..`, 2 at the first real entry.

use crate::{FileId, FileKind, Filesystem, Result};

/// The cookie at which a listing starts with the first real entry, past `.` and `..`.
pub const FIRST_ENTRY: u64 = 2;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    /// What the name leads to: for a subvolume, its root directory.
    pub id: FileId,
    pub kind: FileKind,
    /// Pass this to [`Filesystem::read_dir`] to go on after this entry.
    pub cookie: u64,
}

/// The entries of a directory, in the order of their index.
pub struct ReadDir {
    pub(crate) never: std::convert::Infallible,
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.never {}
    }
}

impl Filesystem {
    /// The inode that `name` leads to. `.` and `..` are names too; `..` of the volume's root is
    /// the root itself. Crosses into subvolumes.
    pub fn lookup(&self, dir: FileId, name: &[u8]) -> Result<FileId> {
        let _ = name;
        self.not_yet(dir)
    }

    /// The directory that `dir` is in. The root of a subvolume is in its parent subvolume; the
    /// filesystem's [`root`](Filesystem::root) is its own parent.
    pub fn parent(&self, dir: FileId) -> Result<FileId> {
        self.not_yet(dir)
    }

    /// Lists `dir` from `cookie` on: 0 for everything with `.` and `..`, [`FIRST_ENTRY`] for
    /// everything without them, an entry's [`cookie`](DirEntry::cookie) for what comes after it.
    pub fn read_dir(&self, dir: FileId, cookie: u64) -> Result<ReadDir> {
        let _ = cookie;
        self.not_yet(dir)
    }

    /// The text of a symlink, at most 4095 bytes.
    pub fn read_link(&self, id: FileId) -> Result<Vec<u8>> {
        self.not_yet(id)
    }

    /// The names of all extended attributes, as stored: with their namespace
    /// (`user.`, `trusted.`, `security.`, `system.posix_acl_*`, `btrfs.`).
    pub fn xattr_names(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.not_yet(id)
    }

    /// The value of one extended attribute. ACLs are in the form that the kernel's `getxattr`
    /// gives.
    ///
    /// # Errors
    /// [`Error::NoAttribute`](crate::Error::NoAttribute) where the inode has none of that name.
    pub fn xattr(&self, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        let _ = name;
        self.not_yet(id)
    }
}
