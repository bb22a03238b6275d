//! Changes of extended attributes, and what some of them make of the inode.
//!
//! | attribute | besides |
//! |---|---|
//! | `system.posix_acl_access` | the mode mirrors it; one that says no more is not kept |
//! | `system.posix_acl_default` | what is made in the directory inherits it |
//! | `btrfs.compression` | the inode's compression flags |
//!
//! Who may set which attribute of which inode is the door's to know.

use crate::data::compression_of;
use crate::inode_table::InodeEntry;
use crate::latency::Operation;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{
    self as names, ACCESS_ACL, Acl, COMPRESSION, DEFAULT_ACL, NamesError, PROPERTIES, Xattr,
};
use butternut_tree::Need;

pub use butternut_names::SetXattr;

/// Items that an attribute may change: its own, and the inode's.
const ITEMS_OF_XATTR: u32 = 3;

/// The namespace that everyone who may write to a file or directory has.
const USERS: &[u8] = b"user.";

/// An attribute as it is to be stored, and what becomes of the inode.
struct Planned {
    inode: Inode,
    /// `None`: it is removed.
    value: Option<Vec<u8>>,
}

impl Filesystem {
    /// Sets an extended attribute: its full name (`user.mime_type`), ACLs in the form that the
    /// kernel's `setxattr` takes.
    ///
    /// # Errors
    /// [`Error::Names`] with `EEXIST` or `ENODATA` where `how` does not fit, `ENOSPC` for more than
    /// fits into an item, `EINVAL` for a value that the attribute cannot have;
    /// [`Error::ReadOnly`], [`Error::NotPermitted`] for what is immutable or append-only.
    pub fn set_xattr(&self, id: FileId, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.change_xattr(id, name, how, |inode| plan_set(inode, name, value))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; otherwise as [`Filesystem::set_xattr`].
    pub fn remove_xattr(&self, id: FileId, name: &[u8]) -> Result<()> {
        self.change_xattr(id, name, SetXattr::Replace, |inode| plan_remove(inode, name))
    }

    fn change_xattr(
        &self,
        id: FileId,
        name: &[u8],
        how: SetXattr,
        plan: impl FnOnce(&Inode) -> Result<Planned>,
    ) -> Result<()> {
        let _timed = self.timed(Operation::SetXattr);
        let writer = self.begin()?;
        let subvolume = self.writable_subvolume(writer, id)?;
        let entry = self.entry_of(writer, id)?;
        let mut body = entry.body_mut();
        let inode = self.facts(&entry)?;
        let is_fixed = |flag| inode.flags.contains(flag);
        if is_fixed(InodeFlags::IMMUTABLE) || is_fixed(InodeFlags::APPEND) {
            return Err(Error::NotPermitted { what: "the inode is immutable or append-only" });
        }
        let has_users = matches!(inode.kind, FileKind::File | FileKind::Directory);
        if name.starts_with(USERS) && !has_users {
            return Err(Error::NotPermitted { what: "files and directories have such attributes" });
        }
        let planned = plan(&inode)?;
        entry.set_no_privileges(false);
        self.store_xattr(writer, &subvolume, &entry, name, how, planned)?;
        if matches!(name, DEFAULT_ACL | COMPRESSION) {
            body.handed_down = None;
        }
        if let (Some(file), Some(inode)) = (&mut body.file, entry.known()) {
            file.set_flags(inode.flags);
            if name == COMPRESSION {
                file.set_property(compression_of(&subvolume.tree, Ino(id.ino), &inode)?);
            }
        }
        Ok(())
    }

    fn store_xattr(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        name: &[u8],
        how: SetXattr,
        Planned { mut inode, value }: Planned,
    ) -> Result<()> {
        let ino = Ino(entry.id.ino);
        let has = names::xattr(&subvolume.tree, ino, name)?.is_some();
        let is_acl = matches!(name, ACCESS_ACL | DEFAULT_ACL);
        match (how, has) {
            // As the kernel has it: there is nothing to remove, and that is well.
            (_, false) if is_acl && value.is_none() && inode.mode == self.facts(entry)?.mode => {
                return Ok(());
            }
            // A value is first found too large, then to be there or not: by what sets it.
            _ if value.is_some() => {}
            (SetXattr::Create, true) => return Err(NamesError::AttributeExists.into()),
            (SetXattr::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        self.change(writer, subvolume, Need::items(ITEMS_OF_XATTR), |change| {
            let generation = change.moment.generation;
            match &value {
                Some(value) => {
                    let xattr = Xattr { name, value };
                    names::set_xattr(&change.edit, ino, &xattr, how, generation)?;
                }
                None => {
                    names::remove_xattr(&change.edit, ino, name)?;
                }
            }
            names::changed(&mut inode, change.moment);
            change.put(ino, &inode)
        })?;
        entry.set(inode);
        Ok(())
    }
}

fn plan_set(inode: &Inode, name: &[u8], value: &[u8]) -> Result<Planned> {
    let mut planned = Planned { inode: *inode, value: Some(value.to_vec()) };
    match name {
        ACCESS_ACL | DEFAULT_ACL => {
            require_acls(inode)?;
            if name == DEFAULT_ACL && inode.kind != FileKind::Directory {
                return Err(Error::Denied { what: "a default ACL is a directory's" });
            }
            let acl = Acl::parse(value)?;
            planned.value = acl.as_ref().map(Acl::to_bytes);
            if let (ACCESS_ACL, Some(acl)) = (name, acl) {
                let guarded = acl.guard(inode.mode);
                planned.inode.mode = guarded.mode;
                planned.value = guarded.acl.as_ref().map(Acl::to_bytes);
            }
        }
        _ if name.starts_with(PROPERTIES) => {
            planned.inode.flags = names::flags_with_property(inode, name, value)?;
            planned.value = Some(value.to_vec()).filter(|value| !value.is_empty());
        }
        _ => {}
    }
    Ok(planned)
}

fn plan_remove(inode: &Inode, name: &[u8]) -> Result<Planned> {
    let mut planned = Planned { inode: *inode, value: None };
    if matches!(name, ACCESS_ACL | DEFAULT_ACL) {
        require_acls(inode)?;
    } else if name.starts_with(PROPERTIES) {
        planned.inode.flags = names::flags_with_property(inode, name, b"")?;
    }
    Ok(planned)
}

fn require_acls(inode: &Inode) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        return Err(Error::Unsupported { what: "ACLs of symbolic links" });
    }
    Ok(())
}
