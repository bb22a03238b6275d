//! Reads of extended attributes and of the targets of symbolic links.

use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::units::Ino;
use butternut_names as names;

/// Maximum length of the target of a symbolic link, as in the kernel: a block without the NUL.
const SYMLINK_BYTES_MAX: u64 = 4095;

/// Maximum number of attributes that are listed for one inode.
const XATTRS_MAX: usize = 1 << 16;

impl Filesystem {
    /// Returns the target of a symbolic link, at most 4095 bytes.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for other kinds of inodes.
    pub fn read_link(&self, id: FileId) -> Result<Vec<u8>> {
        if self.stat(id)?.kind != FileKind::Symlink {
            return Err(Error::WrongKind { want: "a symbolic link" });
        }
        self.symlink_text(id, SYMLINK_BYTES_MAX)
    }

    /// Returns the names of all extended attributes, with their namespace (`user.`, `trusted.`,
    /// `security.`, `system.posix_acl_*`, `btrfs.`).
    pub fn xattr_names(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.stat(id)?;
        if id.is_placeholder() {
            return Ok(Vec::new());
        }
        Ok(names::xattr_names(&self.tree_of(id)?, Ino(id.ino), XATTRS_MAX)?)
    }

    /// Returns the value of an extended attribute. ACLs are in the format of the kernel's
    /// `getxattr`.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if the inode has no attribute of that name.
    pub fn xattr(&self, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        if id.is_placeholder() {
            return self.stat(id).and(Err(Error::NoAttribute));
        }
        match names::xattr(&self.tree_of(id)?, Ino(id.ino), name)? {
            Some(value) => Ok(value),
            None => self.inode(id).and(Err(Error::NoAttribute)),
        }
    }
}
