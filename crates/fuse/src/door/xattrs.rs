//! Extended attributes, and two that the mount itself answers.

use std::sync::atomic::Ordering;

use butternut::{SetAttributes, SetXattr};

use crate::door::Door;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::{DAEMON_XATTR, SYNC_XATTR};
use crate::wire::{GetxattrIn, SETXATTR_ACL_KILL_SGID, SetxattrIn, SetxattrShortIn};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

const SET_GROUP_ID: u32 = 0o2000;

/// The namespaces that a volume keeps.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl Door {
    pub(super) fn set_has_long_setxattr(&self, has: bool) {
        self.has_long_setxattr.store(has, Ordering::Relaxed);
    }

    pub(super) fn xattr(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let asked: GetxattrIn = request.take()?;
        let name = request.name()?;
        if name == DAEMON_XATTR.as_bytes() {
            return reply.sized(asked.size, std::process::id().to_string().as_bytes());
        }
        if name == SYNC_XATTR.as_bytes() {
            self.filesystem.sync()?;
            return reply.sized(asked.size, b"1");
        }
        let value = self.filesystem.xattr(self.node(request)?, name)?;
        reply.sized(asked.size, &value)
    }

    pub(super) fn xattr_names(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let asked: GetxattrIn = request.take()?;
        let mut list = Vec::new();
        for name in self.filesystem.xattr_names(self.node(request)?)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        reply.sized(asked.size, &list)
    }

    pub(super) fn set_xattr(&self, request: &mut Request<'_>) -> Answer<()> {
        let set = if self.has_long_setxattr.load(Ordering::Relaxed) {
            request.take::<SetxattrIn>()?
        } else {
            let short: SetxattrShortIn = request.take()?;
            SetxattrIn { size: short.size, flags: short.flags, ..SetxattrIn::default() }
        };
        let name = request.name()?;
        let value = request.data(set.size)?;
        let how = match set.flags {
            0 => SetXattr::Either,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Refusal::INVALID),
        };
        let is_acl = kind_of(name)?;
        let id = self.node(request)?;
        self.filesystem.set_xattr(id, name, value, how)?;
        // The kernel says so of a default ACL too, which changes no mode.
        if name == ACLS[0] && set.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            let mode = self.filesystem.stat(id)?.mode & !SET_GROUP_ID;
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            self.filesystem.set_attributes(id, &set)?;
        }
        self.acl_changed(is_acl, request);
        Ok(())
    }

    pub(super) fn remove_xattr(&self, request: &mut Request<'_>) -> Answer<()> {
        let name = request.name()?;
        let is_acl = kind_of(name)?;
        self.filesystem.remove_xattr(self.node(request)?, name)?;
        self.acl_changed(is_acl, request);
        Ok(())
    }

    /// An ACL changes the mode. The kernel expects that only where it knows of ACLs.
    fn acl_changed(&self, is_acl: bool, request: &Request<'_>) {
        if is_acl && !self.manner.checks_permissions {
            self.invalidate_attributes(request.header.nodeid);
        }
    }
}

/// Whether a name is an ACL's; names in no namespace of a volume are refused.
fn kind_of(name: &[u8]) -> Answer<bool> {
    if ACLS.contains(&name) {
        return Ok(true);
    }
    let has_rest = |space: &&[u8]| name.starts_with(space) && name.len() > space.len();
    if NAMESPACES.iter().any(has_rest) { Ok(false) } else { Err(Refusal::UNSUPPORTED) }
}
