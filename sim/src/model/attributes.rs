//! Operations on attributes: modes, owners, times, xattrs, ACLs and attribute flags.

use super::{Answer, Body, Inode, Model};
use crate::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use crate::bytes::Bytes;
use crate::content::pattern;
use crate::errno;
use crate::generator::COLLIDING;
use crate::operation::{Operation, Setting, flags};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

const XATTR_NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: u64 = 65_536;

impl Model {
    pub(super) fn attribute_operation(&mut self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Chmod { at, mode } => self.chmod(at, *mode),
            Operation::Chown { at, uid, gid } => self.chown(at, *uid, *gid),
            Operation::Times { at, atime, mtime } => self.guarded(at).map(|inode| {
                inode.atime = atime.or(inode.atime);
                inode.mtime = mtime.or(inode.mtime);
            }),
            Operation::SetXattr { at, name, bytes, seed, how } => {
                self.set_xattr(at, name, *bytes, *seed, *how)
            }
            Operation::RemoveXattr { at, name } => self.remove_xattr(at, name),
            Operation::SetAcl { at, is_default, acl } => {
                self.set_acl(at, *is_default, acl.as_ref())
            }
            Operation::SetFlags { at, flags } => self.set_flags(at, *flags),
            _ => return None,
        })
    }

    /// Returns an inode whose attributes may change.
    fn guarded(&mut self, at: &Bytes) -> Answer<&mut Inode> {
        let ino = self.lookup(at)?;
        let inode = self.inode(ino);
        if inode.is_guarded() {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(inode)?;
        Ok(self.inode_mut(ino))
    }

    fn chmod(&mut self, at: &Bytes, mode: u32) -> Answer<()> {
        let ino = self.lookup(at)?;
        if matches!(self.inode(ino).body, Body::Symlink(_)) {
            return Err(errno::NOT_SUPPORTED);
        }
        let inode = self.guarded(at)?;
        inode.mode = mode & 0o7777;
        inode.access = inode.access.as_ref().map(|acl| acl.with_permissions(mode));
        Ok(())
    }

    fn chown(&mut self, at: &Bytes, uid: Option<u32>, gid: Option<u32>) -> Answer<()> {
        let inode = self.guarded(at)?;
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        if !inode.is_directory() {
            // A change of the owner clears the set-id bits for every caller.
            inode.mode &= !SET_UID;
            if inode.mode & GROUP_EXECUTE != 0 {
                inode.mode &= !SET_GID;
            }
        }
        Ok(())
    }

    /// Returns an inode whose xattr of this name may be set or removed.
    fn for_xattr(&mut self, at: &Bytes, name: &Bytes) -> Answer<&mut Inode> {
        let inode = self.guarded(at)?;
        let is_user = name.0.starts_with(b"user.");
        match inode.body {
            Body::Symlink(_) | Body::Special(..) if is_user => Err(errno::NOT_PERMITTED),
            _ => Ok(inode),
        }
    }

    fn set_xattr(
        &mut self,
        at: &Bytes,
        name: &Bytes,
        bytes: u64,
        seed: u64,
        how: Setting,
    ) -> Answer<()> {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(errno::OUT_OF_RANGE);
        }
        if bytes > XATTR_VALUE_BYTES_MAX {
            return Err(errno::TOO_BIG);
        }
        let bytes_max = self.rules.xattr_bytes_max();
        let inode = self.for_xattr(at, name)?;
        if name.0.len() as u64 + bytes > bytes_max {
            return Err(errno::NO_SPACE);
        }
        let is_there = inode.xattrs.contains_key(name);
        match how {
            Setting::Create if is_there => return Err(errno::EXISTS),
            Setting::Replace if !is_there => return Err(errno::NO_DATA),
            Setting::Any | Setting::Create | Setting::Replace => {}
        }
        let entry_bytes = |name: &Bytes, bytes: u64| name.0.len() as u64 + bytes;
        let beside = inode.xattrs.iter().filter(|(other, _)| collide(other, name));
        let beside: u64 =
            beside.map(|(other, value)| entry_bytes(other, value.0.len() as u64 + 30)).sum();
        if beside > 0 && beside + entry_bytes(name, bytes) > bytes_max {
            return Err(errno::NO_SPACE);
        }
        let value = pattern(seed, usize::try_from(bytes).expect("fits memory"));
        inode.xattrs.insert(name.clone(), Bytes(value));
        Ok(())
    }

    fn remove_xattr(&mut self, at: &Bytes, name: &Bytes) -> Answer<()> {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(errno::OUT_OF_RANGE);
        }
        let inode = self.for_xattr(at, name)?;
        inode.xattrs.remove(name).map(drop).ok_or(errno::NO_DATA)
    }

    fn set_acl(&mut self, at: &Bytes, is_default: bool, acl: Option<&Acl>) -> Answer<()> {
        let inode = self.guarded(at)?;
        if matches!(inode.body, Body::Symlink(_)) {
            return Err(errno::NOT_SUPPORTED);
        }
        if is_default {
            if !inode.is_directory() {
                return if acl.is_some() { Err(errno::ACCESS) } else { Ok(()) };
            }
            inode.default = acl.cloned();
            return Ok(());
        }
        if let Some(acl) = acl {
            inode.mode = inode.mode & !0o777 | acl.permissions();
        }
        inode.access = acl.filter(|acl| !acl.is_plain()).cloned();
        Ok(())
    }

    fn set_flags(&mut self, at: &Bytes, wanted: u32) -> Answer<()> {
        let ino = self.lookup(at)?;
        let compression = self.rules.compression;
        self.may_change_subvolume(self.inode(ino))?;
        let inode = self.inode_mut(ino);
        let is_empty = match &inode.body {
            Body::File(content) => content.size() == 0,
            Body::Directory(_) => true,
            Body::Symlink(_) | Body::Special(..) => return Err(errno::NOT_A_TTY),
        };
        // DIRSYNC applies to directories only.
        let wanted = if inode.is_directory() { wanted } else { wanted & !flags::DIR_SYNC };
        let compression_flags = flags::COMPRESS | flags::NO_COMPRESS;
        let has = |set: u32, flag: u32| set & flag != 0;
        let excluded =
            if has(wanted, flags::COMPRESS) { flags::NO_COMPRESS | flags::NO_COW } else { 0 };
        if has(wanted, excluded)
            || has(inode.flags, flags::NO_COW) && has(wanted, compression_flags)
            || has(wanted, flags::NO_COW) && has(inode.flags, compression_flags)
        {
            return Err(errno::INVALID);
        }
        let kept = if is_empty { 0 } else { flags::NO_COW };
        inode.flags = wanted & !kept | inode.flags & kept;
        let name = Bytes::from("btrfs.compression");
        if wanted & flags::COMPRESS == 0 {
            inode.xattrs.remove(&name);
        } else {
            inode.xattrs.insert(name, Bytes::from(compression));
        }
        Ok(())
    }
}

/// Returns whether two different generated names share an item.
fn collide(one: &Bytes, other: &Bytes) -> bool {
    COLLIDING.iter().any(|pair| {
        let stem =
            |name: &Bytes, end: &str| name.0.strip_suffix(end.as_bytes()).map(<[u8]>::to_vec);
        let stems = |a: &str, b: &str| stem(one, a).zip(stem(other, b));
        let found = stems(pair[0], pair[1]).or_else(|| stems(pair[1], pair[0]));
        found.is_some_and(|(one, other)| one == other)
    })
}

impl Inode {
    /// Returns all xattrs as listxattr shows them, including ACLs.
    pub(super) fn all_xattrs(&self) -> std::collections::BTreeMap<Bytes, Bytes> {
        let mut all = self.xattrs.clone();
        for (name, acl) in [(ACCESS_NAME, &self.access), (DEFAULT_NAME, &self.default)] {
            if let Some(acl) = acl {
                all.insert(name.into(), Bytes(acl.to_xattr()));
            }
        }
        all
    }
}
