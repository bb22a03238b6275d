//! [`Create`]: creates the inode of a copy, and sets its attributes.
//!
//! 1. What a new file inherits from a directory that existed before is removed.
//! 2. The times of a file are set last.

use butternut::{
    Error, FileId, FileKind, Filesystem, NamesError, NewInode, SetAttributes, SetTime, SetXattr,
    Time,
};

use super::entry::Attributes;
use crate::failure::Failure;
use crate::output::text;

/// The attributes that entries inherit from a directory, besides flags.
pub(super) const INHERITED_XATTRS: [&[u8]; 3] =
    [b"system.posix_acl_access", b"system.posix_acl_default", b"btrfs.compression"];

/// How owners and times of the copies are set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    pub(crate) no_owner: bool,
    /// Limits all times. Access times, which depend on earlier readers, are set to the modification
    /// times.
    pub(crate) epoch: Option<Time>,
}

/// Why a copy does not have all its attributes.
pub(super) struct NotFinished {
    /// The name of the extended attribute that was not set, if it was one.
    xattr: Option<Vec<u8>>,
    error: Box<Error>,
}

impl From<Error> for NotFinished {
    fn from(error: Error) -> Self {
        Self { xattr: None, error: Box::new(error) }
    }
}

impl NotFinished {
    /// Describes it: an attribute that is too large is named, `failed` describes all other errors.
    pub(super) fn described(
        &self,
        path: &[u8],
        failed: impl FnOnce(&[u8], &Error) -> Failure,
    ) -> Failure {
        match (&self.xattr, &*self.error) {
            (Some(xattr), Error::Names(why @ NamesError::AttributeTooLarge { .. })) => {
                let why = format!("the attribute {} is too large: {why}", text::escaped(xattr));
                Failure::new(text::escaped(path), why)
                    .hint("--no-xattrs leaves out extended attributes and access lists")
            }
            (_, error) => failed(path, error),
        }
    }
}

/// Returns whether an attribute does not fit into a block of the volume, which may have space.
pub(super) fn is_attribute_too_large(error: &Error) -> bool {
    matches!(error, Error::Names(NamesError::AttributeTooLarge { .. }))
}

pub(super) struct Create<'a> {
    pub(super) filesystem: &'a Filesystem,
    pub(super) rules: Rules,
}

impl Create<'_> {
    /// Creates a file that is not a directory. `target` is that of a symlink; `existed` is whether
    /// the directory has something to inherit (law 1).
    pub(super) fn make(
        &self,
        dir: FileId,
        name: &[u8],
        found: &Attributes,
        target: &[u8],
        existed: bool,
    ) -> butternut::Result<FileId> {
        let Attributes { kind, rdev, permissions, .. } = *found;
        let new = self.new_inode(found, permissions);
        let fs = self.filesystem;
        let id = match kind {
            FileKind::Symlink => fs.symlink(dir, name, target, &new)?,
            FileKind::File => fs.create(dir, name, &new)?,
            FileKind::Directory
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => fs.mknod(dir, name, &new, kind, rdev)?,
        };
        if existed {
            self.remove_inherited(id, found, permissions)?;
        }
        Ok(id)
    }

    pub(super) fn new_inode(&self, found: &Attributes, permissions: u32) -> NewInode {
        let (uid, gid) = self.owner(found);
        NewInode { uid, gid, ..NewInode::new(permissions) }
    }

    fn owner(&self, found: &Attributes) -> (u32, u32) {
        if self.rules.no_owner { (0, 0) } else { (found.uid, found.gid) }
    }

    /// Removes inherited attributes (law 1).
    pub(super) fn remove_inherited(
        &self,
        id: FileId,
        found: &Attributes,
        permissions: u32,
    ) -> butternut::Result<()> {
        let fs = self.filesystem;
        for name in fs.xattr_names(id)? {
            if INHERITED_XATTRS.contains(&name.as_slice()) {
                fs.remove_xattr(id, &name)?;
            }
        }
        let (uid, gid) = self.owner(found);
        let mode = (found.kind != FileKind::Symlink).then_some(permissions);
        let (uid, gid) = (Some(uid), Some(gid));
        fs.set_attributes(id, &SetAttributes { mode, uid, gid, ..SetAttributes::default() })?;
        Ok(())
    }

    /// Sets mode, extended attributes and times (law 2). The mode is set before ACLs, which are
    /// part of it.
    pub(super) fn finish(
        &self,
        id: FileId,
        found: &Attributes,
        mode: Option<u32>,
    ) -> Result<(), NotFinished> {
        if mode.is_some() && !found.xattrs.is_empty() {
            self.filesystem.set_attributes(id, &SetAttributes { mode, ..Default::default() })?;
        }
        for (name, value) in &found.xattrs {
            let set = self.filesystem.set_xattr(id, name, value, SetXattr::Either);
            set.map_err(|error| NotFinished { xattr: Some(name.clone()), ..error.into() })?;
        }
        let mode = mode.filter(|_| found.xattrs.is_empty());
        Ok(self.set_times(id, self.times(found), mode)?)
    }

    pub(super) fn set_times(
        &self,
        id: FileId,
        (atime, mtime): (Time, Time),
        mode: Option<u32>,
    ) -> butternut::Result<()> {
        let (atime, mtime) = (Some(SetTime::At(atime)), Some(SetTime::At(mtime)));
        let set = SetAttributes { mode, atime, mtime, ..SetAttributes::default() };
        self.filesystem.set_attributes(id, &set).map(drop)
    }

    pub(super) fn times(&self, found: &Attributes) -> (Time, Time) {
        match self.rules.epoch {
            None => (found.atime, found.mtime),
            Some(epoch) => {
                let mtime = found.mtime.min(epoch);
                (mtime, mtime)
            }
        }
    }
}
