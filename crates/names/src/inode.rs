//! Inodes as changes of names leave them: made, counted, stamped, written.
//!
//! The functions on an [`Inode`] touch memory only. Whoever owns the inode keeps it there, and
//! writes it with [`put_inode`] once per operation.
//!
//! | what happened | size | links | mtime | ctime, sequence, transid |
//! |---|---|---|---|---|
//! | an entry came to a directory or left it | 2 bytes per byte of name | | now | now, + 1 |
//! | an inode gained or lost a name | | +- 1 | | now, + 1 |
//! | mode, owner, attribute, flags | | | | now, + 1 |
//!
//! Laws:
//!
//! 1. A directory has one link, and its size is twice the bytes of the names in it.
//! 2. What a new inode inherits of its directory: the compression flags always; nodatacow, which in
//!    a file brings nodatasum; the group and, for directories, the bit, where the directory is
//!    set-group-id.

use crate::error::{NamesError, corrupt};
use crate::items::{Edit, Look};
use butternut_format::inode::{DeviceNumber, FileKind, Inode, InodeFlags, Time};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino, length};

/// Names that one inode may have.
pub const LINKS_MAX: u32 = 65_535;

/// Permission bits, with set-user-id, set-group-id and sticky.
const PERMISSIONS: u32 = 0o7777;
const SET_GROUP_ID: u32 = 0o2000;

/// When and in which transaction a change happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub generation: Generation,
    pub now: Time,
}

/// What the maker of an inode decides; the rest it inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    pub kind: FileKind,
    /// Permission bits, the umask applied.
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of device nodes; zero for others.
    pub rdev: DeviceNumber,
}

impl NewInode {
    /// The inode as it is when its first name is given. For one without a name (an unnamed
    /// temporary file), set `nlink` to 0.
    pub fn inode(&self, parent: &Inode, moment: Moment) -> Inode {
        let is_directory = self.kind == FileKind::Directory;
        let mut permissions = self.permissions & PERMISSIONS;
        let mut gid = self.gid;
        if parent.mode & SET_GROUP_ID != 0 {
            gid = parent.gid;
            permissions |= if is_directory { SET_GROUP_ID } else { 0 };
        }
        Inode {
            generation: moment.generation,
            transid: moment.generation,
            size: 0,
            bytes_used: 0,
            block_group: 0,
            nlink: 1,
            uid: self.uid,
            gid,
            mode: self.kind.mode_bits() | permissions,
            kind: self.kind,
            rdev: self.rdev,
            flags: inherited_flags(parent.flags, self.kind),
            sequence: 0,
            atime: moment.now,
            ctime: moment.now,
            mtime: moment.now,
            otime: moment.now,
        }
    }
}

/// The flags that an inode of this kind inherits of its directory.
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

/// An inode whose metadata changed: mode, owner, attributes, flags, or where it has its names.
pub fn changed(inode: &mut Inode, moment: Moment) {
    inode.ctime = moment.now;
    inode.sequence = inode.sequence.wrapping_add(1);
    inode.transid = moment.generation;
}

/// A directory that gained an entry.
pub fn entry_added(dir: &mut Inode, name: &[u8], moment: Moment) {
    dir.size = dir.size.saturating_add(entry_bytes(name));
    dir.mtime = moment.now;
    changed(dir, moment);
}

/// A directory that lost an entry.
pub fn entry_removed(dir: &mut Inode, name: &[u8], moment: Moment) {
    dir.size = dir.size.saturating_sub(entry_bytes(name));
    dir.mtime = moment.now;
    changed(dir, moment);
}

/// An inode that gained a name beside others.
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

/// An inode that lost a name. With none left it is an orphan while it is open, and deleted then.
pub fn link_removed(inode: &mut Inode, moment: Moment) {
    inode.nlink = inode.nlink.saturating_sub(1);
    changed(inode, moment);
}

/// What an inode's item holds, `None` where there is no such inode.
pub fn inode(tree: &impl Look, ino: Ino) -> Result<Option<Inode>, NamesError> {
    let key = inode_key(ino);
    let Some(item) = tree.find(&key)? else { return Ok(None) };
    Inode::check(&item).map(Some).map_err(|refused| corrupt(tree.tree_id(), key, refused))
}

/// Writes an inode's item, new or not.
pub fn put_inode(edit: &impl Edit, ino: Ino, inode: &Inode) -> Result<(), NamesError> {
    let (key, bytes) = (inode_key(ino), inode.to_bytes());
    let there = edit.update(&key, &mut |item| {
        if item.len() == bytes.len() {
            item.copy_from_slice(&bytes);
        }
    })?;
    if !there {
        edit.put(&key, &bytes)?;
    }
    Ok(())
}

/// Writes the item of an inode that is new.
pub fn insert_inode(edit: &impl Edit, ino: Ino, inode: &Inode) -> Result<(), NamesError> {
    if edit.insert(&inode_key(ino), &inode.to_bytes())? {
        return Ok(());
    }
    let refused = butternut_format::refused::Refused::new("inode", "in use", "a free number");
    Err(corrupt(edit.tree_id(), inode_key(ino), refused))
}

/// Deletes every item of an inode but the entries of a directory, which must be empty. Each is
/// shown first: what the extents of a file name is the caller's to let go. How many there were.
pub fn remove_inode(
    edit: &impl Edit,
    ino: Ino,
    kind: FileKind,
    see: &mut dyn FnMut(Key, &[u8]),
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
    Ok(edit.remove_range(first..end, see)?)
}

fn inode_key(ino: Ino) -> Key {
    Key::new(ino.0, ItemType::INODE_ITEM, 0)
}

fn entry_bytes(name: &[u8]) -> u64 {
    length(name.len()).saturating_mul(2)
}

#[cfg(test)]
mod tests;
