//! Creation of inodes under a name: files, directories, device nodes, pipes, sockets, symbolic
//! links.

use crate::inode::new_inode::{ITEMS_OF_CREATION, InodeSpec, NewInode, Prepared, next_index};
use crate::inode::table::InodeEntry;
use crate::stats::latency::Operation;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::dir::NAME_BYTES_MAX;
use butternut_format::inode::{DeviceNumber, Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, Found, NewName, Target};
use butternut_tree::Need;

/// Limits of the major and minor number that a device number can hold.
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;

impl Filesystem {
    /// Creates an empty file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotDirectory`], [`Error::NameTooLong`], [`Error::ReadOnly`];
    /// [`Error::NotFound`] if the directory itself has been removed, [`Error::NotPermitted`] if it
    /// is immutable.
    pub fn create(&self, dir: FileId, name: &[u8], new: &NewInode) -> Result<FileId> {
        self.make(dir, name, new, &InodeSpec::of(FileKind::File))
    }

    /// Creates an empty directory.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn mkdir(&self, dir: FileId, name: &[u8], new: &NewInode) -> Result<FileId> {
        self.make(dir, name, new, &InodeSpec::of(FileKind::Directory))
    }

    /// Creates a device node, pipe, socket or file. `rdev` is the major and minor number of a
    /// device node, and ignored for other kinds.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::InvalidArgument`] for a directory or symbolic link.
    pub fn mknod(
        &self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        kind: FileKind,
        rdev: (u32, u32),
    ) -> Result<FileId> {
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                if rdev.0 > MAJOR_MAX || rdev.1 > MINOR_MAX {
                    return Err(Error::InvalidArgument { what: "no device has such a number" });
                }
                DeviceNumber::new(rdev.0, rdev.1)
            }
            FileKind::File | FileKind::Fifo | FileKind::Socket => DeviceNumber::default(),
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::InvalidArgument { what: "mknod makes no such thing" });
            }
        };
        self.make(dir, name, new, &InodeSpec { rdev, ..InodeSpec::of(kind) })
    }

    /// Creates a symbolic link to `text`. Its permissions are 0777, whatever `new` contains.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::NameTooLong`] for a target that does not fit into an
    /// item, [`Error::NotFound`] for an empty one, [`Error::InvalidArgument`] for one with a zero
    /// byte.
    pub fn symlink(&self, dir: FileId, name: &[u8], text: &[u8], new: &NewInode) -> Result<FileId> {
        if text.is_empty() {
            return Err(Error::NotFound);
        }
        if text.contains(&0) {
            let what = "the target of a symlink has no zero byte";
            return Err(Error::InvalidArgument { what });
        }
        let new = NewInode { permissions: 0o777, umask: 0, ..*new };
        self.make(dir, name, &new, &InodeSpec { text, ..InodeSpec::of(FileKind::Symlink) })
    }

    fn make(
        &self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        spec: &InodeSpec<'_>,
    ) -> Result<FileId> {
        let _timed = self.timed(Operation::Create);
        self.with_quota_room(dir.subvolume, || self.make_once(dir, name, new, spec))
    }

    fn make_once(
        &self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        spec: &InodeSpec<'_>,
    ) -> Result<FileId> {
        let writing = self.begin()?;
        let write_state = &*writing;
        check_name(name)?;
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let parent = self.entry_of(write_state, dir)?;
        let mut state = parent.lock();
        let at = Ino(dir.ino);
        if names::lookup(&subvolume.tree, at, name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut parent_inode = self.directory_to_change(&parent)?;
        let limits = names::Limits::of(self.super_block());
        if spec.text.len() > names::symlink_bytes_max(limits) {
            return Err(Error::NameTooLong);
        }
        let index = next_index(&subvolume, &parent, &mut state)?;
        let prepared = Prepared::new(&subvolume, (at, &parent_inode), &mut state, (new, spec))?;
        let entry = prepared.entry(write_state, &subvolume);
        let mut new_state = entry.lock_nested();
        prepared.init_state(&mut new_state);
        let created =
            self.change(write_state, &subvolume, Need::items(ITEMS_OF_CREATION), |change| {
                let inode = prepared.inode(&parent_inode, change.moment);
                entry.set(inode);
                let found = Found { target: Target::Inode(prepared.ino), kind: spec.kind };
                let generation = change.moment.generation;
                let new = NewName { dir: at, name, index, found, generation };
                change.step(names::create(&change.edit, &new, prepared.ino, &inode))?;
                prepared.write_items(change)?;
                names::entry_added(&mut parent_inode, name, change.moment);
                change.put(at, &parent_inode)
            });
        if let Err(error) = created {
            write_state.forget(&entry, &mut new_state);
            return Err(error);
        }
        state.next_index = index.checked_add(1);
        parent.set(parent_inode);
        Ok(entry.id)
    }

    /// Returns the inode item of a directory that gets another entry. The caller holds its inode
    /// lock exclusively.
    pub(crate) fn directory_to_change(&self, dir: &InodeEntry) -> Result<Inode> {
        let inode = self.directory_to_inherit_from(dir)?;
        if inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        Ok(inode)
    }

    /// Returns the inode item of a directory in which an inode without a name is created. As in the
    /// kernel, the directory may be removed while it is open. The caller holds its inode lock.
    pub(crate) fn directory_to_inherit_from(&self, dir: &InodeEntry) -> Result<Inode> {
        let inode = match self.attributes(dir) {
            // The directory existed when its entry was looked up.
            Err(Error::Stale { .. }) => return Err(Error::NotFound),
            inode => inode?,
        };
        if inode.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if inode.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted { what: "the directory is immutable" });
        }
        Ok(inode)
    }
}

/// Checks the name of an entry that is to be created or removed.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() {
        return Err(Error::NotFound);
    }
    if matches!(name, b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::InvalidArgument { what: "no entry has such a name" });
    }
    Ok(())
}
