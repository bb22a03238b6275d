//! Extended attributes, and the four that the mount itself answers.

use butternut::server::FilesystemExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use butternut::{SetAttributes, SetXattr};

use crate::connection::mount_xattrs::{
    DAEMON_XATTR, LOST_XATTR, PROCESS_NAMESPACE_XATTR, SYNC_DONE, SYNC_SHUT_DOWN, SYNC_XATTR,
};
use crate::connection::protocol::{
    GetxattrIn, SETXATTR_ACL_KILL_SGID, SetxattrIn, SetxattrShortIn,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, caller};
use crate::errno::{Errno, ErrnoResult};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

const PROCESS_NAMESPACE: &str = "/proc/self/ns/pid";

const SET_GROUP_ID: u32 = 0o2000;

/// The namespaces of attributes that a volume stores.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl Door {
    pub(super) fn set_has_long_setxattr(&self, has: bool) {
        self.has_long_setxattr.store(has, Ordering::Relaxed);
    }

    pub(super) fn xattr(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let get: GetxattrIn = request.take()?;
        let name = request.name()?;
        if name == DAEMON_XATTR.as_bytes() {
            return reply.push_xattr(get.size, std::process::id().to_string().as_bytes());
        }
        if name == PROCESS_NAMESPACE_XATTR.as_bytes() {
            let namespace = std::fs::metadata(PROCESS_NAMESPACE).map_err(|_| Errno::EIO)?;
            return reply.push_xattr(get.size, namespace.ino().to_string().as_bytes());
        }
        if name == SYNC_XATTR.as_bytes() {
            // A loss of file data is returned once to the user that mounted, or to root, because
            // they unmount by this attribute. Other users do not take it from them.
            if caller::is_owner_of_mount(&request.header) {
                self.filesystem.sync_unreported()?;
            } else {
                self.filesystem.sync_and_keep_errors()?;
            }
            let value = if self.is_shut_down() { SYNC_SHUT_DOWN } else { SYNC_DONE };
            return reply.push_xattr(get.size, value);
        }
        if name == LOST_XATTR.as_bytes() {
            let lost = self.lost_writes.load(Ordering::Relaxed);
            return reply.push_xattr(get.size, lost.to_string().as_bytes());
        }
        kind_of(name)?;
        let value = self.filesystem.xattr(self.node(request)?, name)?;
        reply.push_xattr(get.size, &value)
    }

    pub(super) fn xattr_names(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let get: GetxattrIn = request.take()?;
        let mut list = Vec::new();
        for name in self.filesystem.xattr_names(self.node(request)?)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        reply.push_xattr(get.size, &list)
    }

    pub(super) fn set_xattr(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
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
            _ => return Err(Errno::EINVAL),
        };
        let is_acl = kind_of(name)?;
        let id = self.node(request)?;
        self.filesystem.set_xattr(id, name, value, how)?;
        // The kernel sets the flag for a default ACL too, which changes no mode.
        if name == ACLS[0] && set.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            let mode = self.filesystem.stat(id)?.mode & !SET_GROUP_ID;
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            self.filesystem.set_attributes(id, &set)?;
        }
        self.acl_changed(is_acl, request);
        Ok(())
    }

    pub(super) fn remove_xattr(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        let name = request.name()?;
        let is_acl = kind_of(name)?;
        self.filesystem.remove_xattr(self.node(request)?, name)?;
        self.acl_changed(is_acl, request);
        Ok(())
    }

    /// An ACL changes the mode. A kernel that does not handle ACLs does not expect that, and must
    /// fetch the attributes again.
    fn acl_changed(&self, is_acl: bool, request: &Request<'_>) {
        if is_acl && !self.options.checks_permissions {
            self.invalidate_attributes(request.header.nodeid);
        }
    }
}

/// Returns whether a name is that of an ACL. As in the kernel, fails with `EOPNOTSUPP` for a name
/// in no namespace of a volume, and with `EINVAL` for a namespace alone.
fn kind_of(name: &[u8]) -> ErrnoResult<bool> {
    if ACLS.contains(&name) {
        return Ok(true);
    }
    if NAMESPACES.contains(&name) {
        return Err(Errno::EINVAL);
    }
    let is_in = |space: &&[u8]| name.starts_with(space);
    if NAMESPACES.iter().any(is_in) { Ok(false) } else { Err(Errno::EOPNOTSUPP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_as_the_kernel_refuses_them() {
        for name in [&b"user.a"[..], b"trusted.a", b"security.a", b"btrfs.a"] {
            assert_eq!(kind_of(name), Ok(false));
        }
        for name in ACLS {
            assert_eq!(kind_of(name), Ok(true));
        }
        for name in NAMESPACES {
            assert_eq!(kind_of(name), Err(Errno::EINVAL));
        }
        for name in [&b""[..], b"user", b"os2.a", b"system.", b"system.a"] {
            assert_eq!(kind_of(name), Err(Errno::EOPNOTSUPP));
        }
    }
}
