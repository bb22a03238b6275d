//! What hangs on an inode beside its data: symlink text and extended attributes.

use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::units::Ino;
use butternut_names as names;

/// Bytes in the longest symlink: a block, as the kernel has it, without the NUL.
const SYMLINK_BYTES_MAX: u64 = 4095;

/// Attributes listed of one inode.
const XATTRS_MAX: usize = 1 << 16;

impl Filesystem {
    /// The text of a symlink, at most 4095 bytes.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for anything else.
    pub fn read_link(&self, id: FileId) -> Result<Vec<u8>> {
        if self.stat(id)?.kind != FileKind::Symlink {
            return Err(Error::WrongKind { want: "a symbolic link" });
        }
        self.symlink_text(id, SYMLINK_BYTES_MAX)
    }

    /// The names of all extended attributes, as stored: with their namespace
    /// (`user.`, `trusted.`, `security.`, `system.posix_acl_*`, `btrfs.`).
    pub fn xattr_names(&self, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.stat(id)?;
        if id.is_placeholder() {
            return Ok(Vec::new());
        }
        Ok(names::xattr_names(&self.tree_of(id)?, Ino(id.ino), XATTRS_MAX)?)
    }

    /// The value of one extended attribute. ACLs are in the form that the kernel's `getxattr`
    /// gives.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] where the inode has none of that name.
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
