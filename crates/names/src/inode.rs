//! Inodes: how a change of names changes their attributes, and their items.
//!
//! The functions on an [`Inode`] change memory only. The caller keeps the inode in memory, and
//! writes it with [`put_inode`] once per operation.
//!
//! | change | size | links | mtime | ctime, sequence, transid |
//! |---|---|---|---|---|
//! | a directory gets or loses an entry | 2 bytes per byte of name | | now | now, + 1 |
//! | an inode gets or loses a name | | +- 1 | | now, + 1 |
//! | mode, owner, attribute, flags | | | | now, + 1 |
//!
//! Laws:
//!
//! 1. A directory has one link, and its size is twice the bytes of the names in it.
//! 2. A new inode inherits from its directory the compression flags and nodatacow. A nodatacow file
//!    is nodatasum too. It inherits the group of a set-group-id directory, and, if it is a
//!    directory, that bit.

use crate::error::{NamesError, corrupt};
use crate::items::{EditItems, ReadItems};
use butternut_format::inode::{DeviceNumber, FileKind, Inode, InodeFlags, Time};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino, length};

/// Maximum number of names of one inode.
pub const LINKS_MAX: u32 = 65_535;

/// Permission bits, with set-user-id, set-group-id and sticky.
const PERMISSIONS: u32 = 0o7777;
const SET_GROUP_ID: u32 = 0o2000;

/// The time and the transaction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub generation: Generation,
    pub now: Time,
}

/// The attributes of a new inode that are not inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    pub kind: FileKind,
    /// Permission bits after the umask is applied.
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    /// The device number of a device node; zero for other kinds.
    pub rdev: DeviceNumber,
}

impl NewInode {
    /// Returns the inode with one name. For an inode without a name (`O_TMPFILE`), set `nlink` to
    /// 0.
    pub fn inode(&self, parent: &Inode, moment: Moment) -> Inode {
        let is_directory = self.kind == FileKind::Directory;
        let mut permissions = self.permissions & PERMISSIONS;
        let mut gid = self.gid;
        if parent.mode & SET_GROUP_ID != 0 {
            gid = parent.gid;
            permissions |= if is_directory { SET_GROUP_ID } else { 0 };
        }
        let flags = inherited_flags(parent.flags, self.kind);
        Self { permissions, gid, ..*self }.without_parent(flags, moment)
    }

    /// Returns the inode with one name and these flags. It inherits nothing.
    pub fn without_parent(&self, flags: InodeFlags, moment: Moment) -> Inode {
        Inode {
            generation: moment.generation,
            transid: moment.generation,
            size: 0,
            bytes_used: 0,
            block_group: 0,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            mode: self.kind.mode_bits() | self.permissions & PERMISSIONS,
            kind: self.kind,
            rdev: self.rdev,
            flags,
            sequence: 0,
            atime: moment.now,
            ctime: moment.now,
            mtime: moment.now,
            otime: moment.now,
        }
    }
}

/// Returns the flags that an inode of this kind inherits from its directory.
pub fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = InodeFlags::default();
    if parent.contains(InodeFlags::NOCOMPRESS) {
        flags = flags.with(InodeFlags::NOCOMPRESS);
    } else if parent.contains(InodeFlags::COMPRESS) {
        flags = flags.with(InodeFlags::COMPRESS);
    }
    if parent.contains(InodeFlags::NODATACOW) {
        flags = flags.with(InodeFlags::NODATACOW);
        if kind == FileKind::File {
            flags = flags.with(InodeFlags::NODATASUM);
        }
    }
    flags
}

/// Updates an inode whose metadata changed: mode, owner, attributes, flags or names.
pub fn changed(inode: &mut Inode, moment: Moment) {
    inode.ctime = moment.now;
    inode.sequence = inode.sequence.wrapping_add(1);
    inode.transid = moment.generation;
}

/// Updates a directory that got an entry.
pub fn entry_added(dir: &mut Inode, name: &[u8], moment: Moment) {
    dir.size = dir.size.saturating_add(entry_bytes(name));
    dir.mtime = moment.now;
    changed(dir, moment);
}

/// Updates a directory that lost an entry.
pub fn entry_removed(dir: &mut Inode, name: &[u8], moment: Moment) {
    dir.size = dir.size.saturating_sub(entry_bytes(name));
    dir.mtime = moment.now;
    changed(dir, moment);
}

/// Updates an inode that got another name.
///
/// # Errors
/// [`NamesError::TooManyLinks`], and nothing is changed.
pub fn link_added(inode: &mut Inode, moment: Moment) -> Result<(), NamesError> {
    if inode.nlink >= LINKS_MAX {
        return Err(NamesError::TooManyLinks);
    }
    inode.nlink = inode.nlink.saturating_add(1);
    changed(inode, moment);
    Ok(())
}

/// Updates an inode that lost a name. Without any name it is an orphan while it is in use, and is
/// deleted after that.
pub fn link_removed(inode: &mut Inode, moment: Moment) {
    inode.nlink = inode.nlink.saturating_sub(1);
    changed(inode, moment);
}

/// Reads the item of an inode. Returns `None` if there is no such inode.
pub fn inode(tree: &impl ReadItems, ino: Ino) -> Result<Option<Inode>, NamesError> {
    let key = inode_key(ino);
    let Some(item) = tree.find(&key)? else { return Ok(None) };
    Inode::check(&item).map(Some).map_err(|refused| corrupt(tree.tree_id(), key, refused))
}

/// Inserts or replaces the item of an inode.
pub fn put_inode(edit: &impl EditItems, ino: Ino, inode: &Inode) -> Result<(), NamesError> {
    let (key, bytes) = (inode_key(ino), inode.to_bytes());
    let is_found = edit.update(&key, &mut |item| {
        if item.len() == bytes.len() {
            item.copy_from_slice(&bytes);
        }
    })?;
    if !is_found {
        edit.put(&key, &bytes)?;
    }
    Ok(())
}

/// Inserts the item of a new inode.
///
/// # Errors
/// The number is in use.
pub fn insert_inode(edit: &impl EditItems, ino: Ino, inode: &Inode) -> Result<(), NamesError> {
    if edit.insert(&inode_key(ino), &inode.to_bytes())? {
        return Ok(());
    }
    let refused = butternut_format::refused::Refused::new("inode", "in use", "a free number");
    Err(corrupt(edit.edited_tree(), inode_key(ino), refused))
}

/// Removes every item of an inode, and passes each to `visit` first, which frees the extents of a
/// file. A directory must be empty; items of entries are not removed. Returns the number of items.
pub fn remove_inode(
    edit: &impl EditItems,
    ino: Ino,
    kind: FileKind,
    visit: &mut dyn FnMut(Key, &[u8]),
) -> Result<u64, NamesError> {
    let first = Key::new(ino.0, ItemType(0), 0);
    let end = match kind {
        FileKind::Directory => Key::new(ino.0, ItemType::DIR_ITEM, 0),
        FileKind::File
        | FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => Key::new(ino.0.saturating_add(1), ItemType(0), 0),
    };
    Ok(edit.remove_range(first..end, visit)?)
}

fn inode_key(ino: Ino) -> Key {
    Key::new(ino.0, ItemType::INODE_ITEM, 0)
}

fn entry_bytes(name: &[u8]) -> u64 {
    length(name.len()).saturating_mul(2)
}

#[cfg(test)]
mod tests;
