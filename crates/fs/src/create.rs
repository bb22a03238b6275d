//! Making inodes under a name: files, directories, device nodes, pipes, sockets, symbolic links.

use crate::held::forget;
use crate::inode_table::InodeEntry;
use crate::latency::Operation;
use crate::new_inode::{ITEMS_OF_CREATION, Made, NewInode, Prepared, next_index};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::dir::NAME_BYTES_MAX;
use butternut_format::inode::{DeviceNumber, Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, Found, NewName, Target};
use butternut_tree::Need;

/// The bits that a device number has room for.
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;

impl Filesystem {
    /// Makes an empty file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotDirectory`], [`Error::NameTooLong`], [`Error::ReadOnly`];
    /// [`Error::NotFound`] where the directory itself has been removed, [`Error::NotPermitted`]
    /// where it is immutable.
    pub fn create(&self, dir: FileId, name: &[u8], new: &NewInode) -> Result<FileId> {
        self.make(dir, name, new, &Made::of(FileKind::File))
    }

    /// Makes an empty directory.
    pub fn mkdir(&self, dir: FileId, name: &[u8], new: &NewInode) -> Result<FileId> {
        self.make(dir, name, new, &Made::of(FileKind::Directory))
    }

    /// Makes a device node, pipe, socket or file. `rdev` is the major and minor number of a device
    /// node, and counts for nothing else.
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
        self.make(dir, name, new, &Made { rdev, ..Made::of(kind) })
    }

    /// Makes a symbolic link to `text`. Its permissions are all set, whatever `new` says.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::NameTooLong`] for a text that does not fit into an item,
    /// [`Error::NotFound`] for an empty one.
    pub fn symlink(&self, dir: FileId, name: &[u8], text: &[u8], new: &NewInode) -> Result<FileId> {
        if text.is_empty() {
            return Err(Error::NotFound);
        }
        let new = NewInode { permissions: 0o777, umask: 0, ..*new };
        self.make(dir, name, &new, &Made { text, ..Made::of(FileKind::Symlink) })
    }

    fn make(&self, dir: FileId, name: &[u8], new: &NewInode, made: &Made<'_>) -> Result<FileId> {
        let _timed = self.timed(Operation::Create);
        let writer = self.begin()?;
        check_name(name)?;
        let subvolume = self.writable_subvolume(writer, dir)?;
        let parent = self.entry_of(writer, dir)?;
        let mut body = parent.body_mut();
        let at = Ino(dir.ino);
        if names::lookup(&subvolume.tree, at, name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut parent_inode = self.directory_to_change(&parent)?;
        let limits = names::Limits::of(self.super_block());
        if made.text.len() > names::symlink_bytes_max(limits) {
            return Err(Error::NameTooLong);
        }
        let index = next_index(&subvolume, &parent, &mut body)?;
        let prepared = Prepared::new(&subvolume, (at, &parent_inode), &mut body, (new, made))?;
        let entry = prepared.entry(writer, &subvolume);
        let mut own = entry.body_mut();
        prepared.fill(&mut own);
        let made = self.change(writer, &subvolume, Need::items(ITEMS_OF_CREATION), |change| {
            let inode = prepared.inode(&parent_inode, change);
            entry.set(inode);
            let leads = Found { target: Target::Inode(prepared.ino), kind: made.kind };
            let generation = change.moment.generation;
            let new = NewName { dir: at, name, index, leads, generation };
            names::create(&change.edit, &new, prepared.ino, &inode)?;
            prepared.finish(change)?;
            names::entry_added(&mut parent_inode, name, change.moment);
            change.put(at, &parent_inode)
        });
        if let Err(error) = made {
            forget(writer, &entry, &mut own);
            return Err(error);
        }
        body.next_index = index.checked_add(1);
        parent.set(parent_inode);
        Ok(entry.id)
    }

    /// A directory that gets another entry. The caller has its body.
    pub(crate) fn directory_to_change(&self, dir: &InodeEntry) -> Result<Inode> {
        let inode = match self.facts(dir) {
            // It was there when its entry was taken in hand.
            Err(Error::Stale { .. }) => return Err(Error::NotFound),
            inode => inode?,
        };
        if inode.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        if inode.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted { what: "the directory is immutable" });
        }
        Ok(inode)
    }
}

/// Checks the name of an entry that is to be made or removed.
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
