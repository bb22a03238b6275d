//! New inodes: what the caller chooses, what they inherit, and their creation.
//!
//! A new inode inherits from its directory: the group, if the directory is set-group-id; the
//! default ACL, which then replaces the umask; the compression property; the nocow and compression
//! flags.

use crate::change::Change;
use crate::inode::inheritance::Inheritance;
use crate::inode::table::{InodeEntry, InodeState};
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{DeviceNumber, Inode, InodeFlags};
use butternut_format::units::{Generation, Ino, length};
use butternut_names::{
    self as names, ACCESS_ACL, COMPRESSION, CompressionProperty, DEFAULT_ACL, EditItems, Moment,
    NamesError, SetXattr, Xattr,
};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that creating an inode may change: its own, its reference, two of the entry, the
/// directory's, an orphan's, the text of a symbolic link, and three attributes.
pub(crate) const ITEMS_OF_CREATION: u32 = 10;

/// What the caller chooses for a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// Permission bits to clear, unless the directory has a default ACL, which applies instead.
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
}

impl NewInode {
    /// Returns a description of an inode of user and group 0 with these permissions.
    pub fn new(permissions: u32) -> Self {
        Self { permissions, umask: 0, uid: 0, gid: 0 }
    }
}

/// The kind of a new inode, with the data of its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeSpec<'a> {
    pub(crate) kind: FileKind,
    pub(crate) rdev: DeviceNumber,
    /// The target of a symbolic link.
    pub(crate) text: &'a [u8],
}

impl InodeSpec<'_> {
    pub(crate) fn of(kind: FileKind) -> Self {
        Self { kind, rdev: DeviceNumber::default(), text: &[] }
    }
}

/// A new inode whose items can be written.
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

impl<'a> Prepared<'a> {
    /// Computes everything that does not need a transaction.
    pub(crate) fn new(
        subvolume: &WritableSubvolume,
        parent: (Ino, &Inode),
        state: &mut InodeState,
        (new, spec): (&NewInode, &InodeSpec<'a>),
    ) -> Result<Self> {
        let inheritance = match &mut state.inheritance {
            Some(known) => known,
            unknown => unknown.insert(Inheritance::read(&subvolume.tree, parent.0)?),
        };
        let InodeSpec { kind, rdev, text } = *spec;
        let acl = inheritance.acl.as_ref();
        let inherited = names::inherit_acl(acl, kind, new.permissions, new.umask);
        let mut xattrs: Vec<(&'static [u8], Vec<u8>)> = Vec::new();
        let lists = [(ACCESS_ACL, inherited.access), (DEFAULT_ACL, inherited.default)];
        for (name, list) in lists {
            xattrs.extend(list.map(|list| (name, list.to_bytes())));
        }
        let mut flags = None;
        let compression = inheritance.compression.as_deref();
        let inherited_flags = names::inherited_flags(parent.1.flags, kind);
        if let Some(value) = names::inherited_compression(compression, kind)
            && !inherited_flags.contains(InodeFlags::NODATACOW)
            && let Some(property) = CompressionProperty::parse(value)
        {
            xattrs.push((COMPRESSION, value.to_vec()));
            flags = Some(property.flags(inherited_flags));
        }
        let (ino, permissions) = (subvolume.allocate_ino()?, inherited.permissions);
        Ok(Self { ino, kind, rdev, text, new: *new, permissions, flags, xattrs })
    }

    /// Returns the inode item with one link.
    pub(crate) fn inode(&self, parent: &Inode, moment: Moment) -> Inode {
        let (uid, gid) = (self.new.uid, self.new.gid);
        let (kind, permissions, rdev) = (self.kind, self.permissions, self.rdev);
        let new = names::NewInode { kind, permissions, uid, gid, rdev };
        let mut inode = new.inode(parent, moment);
        inode.flags = self.flags.unwrap_or(inode.flags);
        let bytes = length(self.text.len());
        Inode { size: bytes, bytes_used: bytes, ..inode }
    }

    /// Writes the items that belong to the inode, whose own item exists: extended attributes, and
    /// the target of a symbolic link.
    pub(crate) fn write_items(&self, change: &Change<'_>) -> Result<()> {
        change.step(self.put_items(&change.edit, change.moment.generation))
    }

    /// As [`Self::write_items`], for edits of a commit.
    pub(crate) fn put_items(
        &self,
        edit: &impl EditItems,
        generation: Generation,
    ) -> Result<(), NamesError> {
        for (name, value) in &self.xattrs {
            let xattr = Xattr { name, value };
            names::set_xattr(edit, self.ino, &xattr, SetXattr::Create, generation)?;
        }
        if self.kind == FileKind::Symlink {
            names::put_symlink_target(edit, self.ino, self.text, generation)?;
        }
        Ok(())
    }

    /// Returns the table's entry of the inode. It is taken before any name leads to the inode, so
    /// that a thread that finds the name finds this entry. The inode number is the highest of its
    /// subvolume, so the caller locks this inode last.
    pub(crate) fn entry(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
    ) -> Arc<InodeEntry> {
        write_state.table.entry(FileId::new(subvolume.id.0, self.ino.0))
    }

    /// Fills in the state of a new inode.
    pub(crate) fn init_state(&self, state: &mut InodeState) {
        if self.kind == FileKind::Directory {
            state.next_index = Some(names::INDEX_FIRST);
        }
    }
}

/// Returns the index for the next entry of a directory.
pub(crate) fn next_index(
    subvolume: &WritableSubvolume,
    dir: &InodeEntry,
    state: &mut InodeState,
) -> Result<u64> {
    if let Some(index) = state.next_index {
        return Ok(names::check_index(subvolume.id, index)?);
    }
    let index = names::next_index(&subvolume.tree, Ino(dir.id.ino))?;
    state.next_index = Some(index);
    Ok(index)
}

impl Filesystem {
    /// Creates a file without a name and pins it: it is deleted with its last pin, unless it is
    /// given a name. It inherits from the directory `dir`.
    pub(crate) fn make_unnamed(&self, dir: FileId, new: &NewInode) -> Result<Arc<InodeEntry>> {
        self.with_quota_room(dir.subvolume, || self.make_unnamed_once(dir, new))
    }

    fn make_unnamed_once(&self, dir: FileId, new: &NewInode) -> Result<Arc<InodeEntry>> {
        let writing = self.begin()?;
        let write_state = &*writing;
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let parent = self.entry_of(write_state, dir)?;
        let mut state = parent.lock();
        let parent_inode = self.directory_to_inherit_from(&parent)?;
        let spec = InodeSpec::of(FileKind::File);
        let prepared =
            Prepared::new(&subvolume, (Ino(dir.ino), &parent_inode), &mut state, (new, &spec))?;
        let entry = prepared.entry(write_state, &subvolume);
        let mut new_state = entry.lock_nested();
        prepared.init_state(&mut new_state);
        let created =
            self.change(write_state, &subvolume, Need::items(ITEMS_OF_CREATION), |change| {
                let inode = Inode { nlink: 0, ..prepared.inode(&parent_inode, change.moment) };
                entry.set(inode);
                change.step(names::insert_inode(&change.edit, prepared.ino, &inode))?;
                change.step(names::add_orphan(&change.edit, prepared.ino))?;
                prepared.write_items(change)
            });
        if let Err(error) = created {
            write_state.forget(&entry, &mut new_state);
            return Err(error);
        }
        new_state.is_linkable = true;
        entry.pin();
        drop(new_state);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests;
