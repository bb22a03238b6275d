//! Changes of extended attributes, and of what depends on some of them.
//!
//! | attribute | changes besides |
//! |---|---|
//! | `system.posix_acl_access` | the mode mirrors it; an ACL that equals the mode is not stored |
//! | `system.posix_acl_default` | new inodes in the directory inherit it |
//! | `btrfs.compression` | the inode's compression flags; only files and directories have it |
//!
//! Callers check which attributes of which inodes may be set.

use crate::file::alter::named_compression;
use crate::inode::table::InodeEntry;
use crate::stats::latency::Operation;
use crate::write_state::{WritableSubvolume, WriteState};
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

/// The namespace of attributes that need only write permission.
const USERS: &[u8] = b"user.";

/// Namespaces, which are no names of attributes.
const NAMESPACES: [&[u8]; 4] = [USERS, b"trusted.", b"security.", PROPERTIES];

/// An attribute as it is to be stored, and the inode item afterwards.
struct Planned {
    inode: Inode,
    /// `None` removes the attribute.
    value: Option<Vec<u8>>,
}

impl Filesystem {
    /// Sets an extended attribute by its full name (`user.mime_type`). ACLs are in the format of
    /// the kernel's `setxattr`.
    ///
    /// # Errors
    /// [`Error::Names`] with `EEXIST` or `ENODATA` as `how` demands, `ENOSPC` for a value that does
    /// not fit into an item, `EINVAL` for an invalid value; [`Error::ReadOnly`];
    /// [`Error::NotPermitted`] for an inode that is immutable or append-only.
    pub fn set_xattr(&self, id: FileId, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.with_quota_room(id.subvolume, || {
            self.change_xattr(id, name, how, |inode| plan_set(inode, name, value))
        })
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
        let writing = self.begin()?;
        let write_state = &*writing;
        let subvolume = self.writable_subvolume(write_state, id)?;
        let entry = self.entry_of(write_state, id)?;
        let mut state = entry.lock();
        let inode = self.attributes(&entry)?;
        let is_fixed = |flag| inode.flags.contains(flag);
        if is_fixed(InodeFlags::IMMUTABLE) || is_fixed(InodeFlags::APPEND) {
            return Err(Error::NotPermitted { what: "the inode is immutable or append-only" });
        }
        let is_file_or_directory = matches!(inode.kind, FileKind::File | FileKind::Directory);
        if name.starts_with(USERS) && !is_file_or_directory {
            return Err(Error::NotPermitted {
                what: "only files and directories have such attributes",
            });
        }
        let planned = plan(&inode)?;
        // As in the kernel, a valid property has no effect on an inode that has no use for it.
        if name.starts_with(PROPERTIES) && !is_file_or_directory {
            return Ok(());
        }
        entry.set_no_privileges(false);
        // Nothing may fail after the change.
        let compression = named_compression(planned.inode.flags, planned.value.as_deref());
        self.store_xattr(write_state, &subvolume, &entry, name, how, planned)?;
        if matches!(name, DEFAULT_ACL | COMPRESSION) {
            state.inheritance = None;
        }
        if let (Some(file), Some(inode)) = (&mut state.file, entry.cached()) {
            file.set_flags(inode.flags);
            if name == COMPRESSION {
                file.set_property(compression);
            }
        }
        Ok(())
    }

    fn store_xattr(
        &self,
        write_state: &WriteState,
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
            // As in the kernel, removing an ACL that is not there succeeds.
            (_, false)
                if is_acl && value.is_none() && inode.mode == self.attributes(entry)?.mode =>
            {
                return Ok(());
            }
            // The call that sets a value checks its size first, and then whether the attribute
            // exists.
            _ if value.is_some() => {}
            (SetXattr::Create, true) => return Err(NamesError::AttributeExists.into()),
            (SetXattr::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        let need = Need::items(ITEMS_OF_XATTR);
        // What removes an attribute succeeds at a limit.
        let need = if value.is_some() { need } else { need.deleting() };
        self.change(write_state, subvolume, need, |change| {
            let generation = change.moment.generation;
            match &value {
                Some(value) => {
                    let xattr = Xattr { name, value };
                    change.step(names::set_xattr(&change.edit, ino, &xattr, how, generation))?;
                }
                None => {
                    change.step(names::remove_xattr(&change.edit, ino, name))?;
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
    if NAMESPACES.contains(&name) {
        let what = "the name of an attribute is more than its namespace";
        return Err(NamesError::Invalid { what }.into());
    }
    match name {
        ACCESS_ACL | DEFAULT_ACL => {
            require_acls(inode)?;
            if name == DEFAULT_ACL && inode.kind != FileKind::Directory {
                return Err(Error::Denied { what: "a default ACL is a directory's" });
            }
            let acl = Acl::parse(value)?;
            planned.value = acl.as_ref().map(Acl::to_bytes);
            if let (ACCESS_ACL, Some(acl)) = (name, acl) {
                let applied = acl.apply_to(inode.mode);
                planned.inode.mode = applied.mode;
                planned.value = applied.acl.as_ref().map(Acl::to_bytes);
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
