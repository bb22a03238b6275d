//! New inodes: what their maker decides, what they inherit, and the making itself.
//!
//! Inherited of the directory: its group, where it is set-group-id; its default ACL, which then
//! takes the place of the umask; its compression property; its nocow and compression flags.

use crate::change::Change;
use crate::held::forget;
use crate::inode_table::{Body, InodeEntry};
use crate::writer::{WritableSubvolume, Writer};
use crate::{FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{DeviceNumber, Inode, InodeFlags};
use butternut_format::units::{Ino, length};
use butternut_names::{
    self as names, ACCESS_ACL, Acl, COMPRESSION, CompressionProperty, DEFAULT_ACL, SetXattr, Xattr,
};
use butternut_tree::{Need, Tree};
use std::sync::Arc;

/// Items that making an inode may change: its own, its reference, two of the entry, the
/// directory's, an orphan's, the text of a link, and three attributes.
pub(crate) const ITEMS_OF_CREATION: u32 = 10;

/// What the maker of an inode decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// Permission bits to take away, unless the directory has a default ACL: that decides then.
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
}

impl NewInode {
    /// An inode of user and group 0, with these permissions.
    pub fn new(permissions: u32) -> Self {
        Self { permissions, umask: 0, uid: 0, gid: 0 }
    }
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made<'a> {
    pub(crate) kind: FileKind,
    pub(crate) rdev: DeviceNumber,
    /// Of a symbolic link.
    pub(crate) text: &'a [u8],
}

impl Made<'_> {
    pub(crate) fn of(kind: FileKind) -> Self {
        Self { kind, rdev: DeviceNumber::default(), text: &[] }
    }
}

/// What a directory hands down to what is made in it, beside what its inode says.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandedDown {
    acl: Option<Acl>,
    compression: Option<Vec<u8>>,
}

/// An inode that is ready to be written.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    pub(crate) ino: Ino,
    kind: FileKind,
    rdev: DeviceNumber,
    text: &'a [u8],
    new: NewInode,
    permissions: u32,
    flags: Option<InodeFlags>,
    xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl HandedDown {
    fn read(tree: &Tree, dir: Ino) -> Result<Self> {
        let acl = match names::xattr(tree, dir, DEFAULT_ACL)? {
            Some(value) => Acl::parse(&value)?,
            None => None,
        };
        Ok(Self { acl, compression: names::xattr(tree, dir, COMPRESSION)? })
    }
}

impl<'a> Prepared<'a> {
    /// Decides on everything that does not need a transaction.
    pub(crate) fn new(
        subvolume: &WritableSubvolume,
        parent: (Ino, &Inode),
        body: &mut Body,
        (new, made): (&NewInode, &Made<'a>),
    ) -> Result<Self> {
        let handed_down = match &mut body.handed_down {
            Some(known) => known,
            unknown => unknown.insert(HandedDown::read(&subvolume.tree, parent.0)?),
        };
        let Made { kind, rdev, text } = *made;
        let acl = handed_down.acl.as_ref();
        let inherited = names::inherit_acl(acl, kind, new.permissions, new.umask);
        let mut xattrs: Vec<(&'static [u8], Vec<u8>)> = Vec::new();
        let lists = [(ACCESS_ACL, inherited.access), (DEFAULT_ACL, inherited.default)];
        for (name, list) in lists {
            xattrs.extend(list.map(|list| (name, list.to_bytes())));
        }
        let mut flags = None;
        let compression = handed_down.compression.as_deref();
        let own = names::inherited_flags(parent.1.flags, kind);
        if let Some(value) = names::inherited_compression(compression, kind)
            && !own.contains(InodeFlags::NODATACOW)
            && let Some(property) = CompressionProperty::parse(value)
        {
            xattrs.push((COMPRESSION, value.to_vec()));
            flags = Some(property.flags(own));
        }
        let (ino, permissions) = (subvolume.take_ino()?, inherited.permissions);
        Ok(Self { ino, kind, rdev, text, new: *new, permissions, flags, xattrs })
    }

    /// The inode as it is with its first name.
    pub(crate) fn inode(&self, parent: &Inode, change: &Change<'_>) -> Inode {
        let (uid, gid) = (self.new.uid, self.new.gid);
        let (kind, permissions, rdev) = (self.kind, self.permissions, self.rdev);
        let new = names::NewInode { kind, permissions, uid, gid, rdev };
        let mut inode = new.inode(parent, change.moment);
        inode.flags = self.flags.unwrap_or(inode.flags);
        let bytes = length(self.text.len());
        Inode { size: bytes, bytes_used: bytes, ..inode }
    }

    /// Writes what hangs on the inode, which is there.
    pub(crate) fn finish(&self, change: &Change<'_>) -> Result<()> {
        let generation = change.moment.generation;
        for (name, value) in &self.xattrs {
            let xattr = Xattr { name, value };
            let how = SetXattr::Create;
            change.must(names::set_xattr(&change.edit, self.ino, &xattr, how, generation))?;
        }
        if self.kind == FileKind::Symlink {
            let text = names::put_symlink_text(&change.edit, self.ino, self.text, generation);
            change.must(text)?;
        }
        Ok(())
    }

    /// Takes the table's entry of the inode, before any name leads to it: a thread that finds the
    /// name finds this entry. Its number is the highest of its subvolume, so the caller locks its
    /// body last.
    pub(crate) fn entry(&self, writer: &Writer, subvolume: &WritableSubvolume) -> Arc<InodeEntry> {
        writer.table.entry(FileId::new(subvolume.id.0, self.ino.0))
    }

    /// What writers know of an inode that is being made.
    pub(crate) fn fill(&self, body: &mut Body) {
        if self.kind == FileKind::Directory {
            body.next_index = Some(names::INDEX_FIRST);
        }
    }
}

/// The index for the next entry of a directory.
pub(crate) fn next_index(
    subvolume: &WritableSubvolume,
    dir: &InodeEntry,
    body: &mut Body,
) -> Result<u64> {
    if let Some(index) = body.next_index {
        return Ok(index);
    }
    let index = names::next_index(&subvolume.tree, Ino(dir.id.ino))?;
    body.next_index = Some(index);
    Ok(index)
}

impl Filesystem {
    /// A file without a name, held open: it goes with its last handle, unless it is given a name.
    /// `dir` is the directory that it inherits of.
    pub(crate) fn make_unnamed(&self, dir: FileId, new: &NewInode) -> Result<Arc<InodeEntry>> {
        let writer = self.begin()?;
        let subvolume = self.writable_subvolume(writer, dir)?;
        let parent = self.entry_of(writer, dir)?;
        let mut body = parent.body_mut();
        let parent_inode = self.directory_to_change(&parent)?;
        let made = Made::of(FileKind::File);
        let prepared =
            Prepared::new(&subvolume, (Ino(dir.ino), &parent_inode), &mut body, (new, &made))?;
        let entry = prepared.entry(writer, &subvolume);
        let mut own = entry.body_mut();
        prepared.fill(&mut own);
        let made = self.change(writer, &subvolume, Need::items(ITEMS_OF_CREATION), |change| {
            let inode = Inode { nlink: 0, ..prepared.inode(&parent_inode, change) };
            entry.set(inode);
            names::insert_inode(&change.edit, prepared.ino, &inode)?;
            change.must(names::add_orphan(&change.edit, prepared.ino))?;
            prepared.finish(change)
        });
        if let Err(error) = made {
            forget(writer, &entry, &mut own);
            return Err(error);
        }
        own.is_linkable = true;
        entry.hold();
        drop(own);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests;
