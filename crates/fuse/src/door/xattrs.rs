//! Extended attributes, and the four that the mount itself answers; SYNCFS.

use butternut::server::{FilesystemExt, LossReport};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use butternut::{SetAttributes, SetXattr};

use crate::connection::mount_xattrs::{
    DAEMON_XATTR, LOST_IN_SUBVOLUME_XATTR, LOST_XATTR, PROCESS_NAMESPACE_XATTR, SYNC_DONE,
    SYNC_SHUT_DOWN, SYNC_XATTR,
};
use crate::connection::protocol::{
    GetxattrIn, SETXATTR_ACL_KILL_SGID, SetxattrIn, SetxattrShortIn,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::volume_syncs::Shared;
use crate::door::{Door, Outcome, caller};
use crate::errno::{Errno, ErrnoResult};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

const PROCESS_NAMESPACE: &str = "/proc/self/ns/pid";

/// Bytes that the reply about the sync attribute needs at most.
const SYNC_REPLY_BYTES: usize = 64;

const SET_GROUP_ID: u32 = 0o2000;

/// The namespaces of attributes that a volume stores.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl Door {
    pub(super) fn set_has_long_setxattr(&self, has: bool) {
        self.has_long_setxattr.store(has, Ordering::Relaxed);
    }

    pub(super) fn xattr(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let get: GetxattrIn = request.take()?;
        let name = request.name()?;
        if name == SYNC_XATTR.as_bytes() {
            return self.sync_volume(get.size, request, reply);
        }
        self.push_xattr(get.size, name, request, reply).map(|()| Outcome::Reply)
    }

    fn push_xattr(
        &self,
        size: u32,
        name: &[u8],
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        if name == DAEMON_XATTR.as_bytes() {
            return reply.push_xattr(size, std::process::id().to_string().as_bytes());
        }
        if name == PROCESS_NAMESPACE_XATTR.as_bytes() {
            let namespace = std::fs::metadata(PROCESS_NAMESPACE).map_err(|_| Errno::EIO)?;
            return reply.push_xattr(size, namespace.ino().to_string().as_bytes());
        }
        if name == LOST_XATTR.as_bytes() {
            return reply.push_xattr(size, self.lost_writes.all().to_string().as_bytes());
        }
        if name == LOST_IN_SUBVOLUME_XATTR.as_bytes() {
            let lost = self.lost_writes.of_subvolume(self.node(request)?.subvolume);
            return reply.push_xattr(size, lost.to_string().as_bytes());
        }
        kind_of(name)?;
        let value = self.filesystem.xattr(self.node(request)?, name)?;
        reply.push_xattr(size, &value)
    }

    /// Commits everything, with what the kernel has not sent of it (`unsent`). A caller that has
    /// made the kernel send it, by syncfs(2), knows only that some WRITE requests are queued: FUSE
    /// does not let syncfs(2) wait for them, and another worker may serve this request first.
    fn sync_volume(
        &self,
        size: u32,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let filesystem = self.filesystem.clone();
        let is_shut_down = Arc::clone(&self.is_shut_down);
        // A loss of file data is returned once to the user that mounted, or to root, because they
        // unmount by this attribute. Other users do not take it from them.
        let is_owner = caller::is_owner_of_mount(&request.header);
        let report = if is_owner { LossReport::Unreported } else { LossReport::Keep };
        let sync = move |shared: Shared, reply: &mut Reply| {
            let reported = filesystem.report_losses(report).map_err(Errno::from);
            shared.committed.and(reported)?;
            shared.sent?;
            let is_shut_down = is_shut_down.load(Ordering::Acquire);
            reply.push_xattr(size, if is_shut_down { SYNC_SHUT_DOWN } else { SYNC_DONE })
        };
        if self.is_shut_down() || self.unsent_files().is_empty() {
            return sync(self.commit_alone(), reply).map(|()| Outcome::Reply);
        }
        self.reply_after_unsent(request, SYNC_REPLY_BYTES, sync);
        Ok(Outcome::NoReply)
    }

    /// Commits everything for syncfs(2) and sync(2), with what the kernel has not sent (`unsent`):
    /// neither waits for that (Linux 6.18). The kernel drops the result where the caller is
    /// sync(2), so a loss of file data is left for the sync of the file and for the unmount.
    pub(super) fn sync_filesystem(&self, request: &Request<'_>) -> ErrnoResult<Outcome> {
        let (filesystem, is_shut_down) = (self.filesystem.clone(), Arc::clone(&self.is_shut_down));
        let sync = move |shared: Shared| {
            let reported = filesystem.report_losses(LossReport::Syncfs).map_err(Errno::from);
            shared.committed.and(reported)?;
            // A shutdown that overtakes the sync leaves nothing to commit, and everything is lost.
            if is_shut_down.load(Ordering::Acquire) {
                return Err(Errno::EIO);
            }
            shared.sent
        };
        if self.unsent_files().is_empty() {
            return sync(self.commit_alone()).map(|()| Outcome::Reply);
        }
        self.reply_after_unsent(request, 0, move |shared, _| sync(shared));
        Ok(Outcome::NoReply)
    }

    /// Commits for one sync, where the kernel has nothing to send.
    fn commit_alone(&self) -> Shared {
        let committed = self.filesystem.write_back_and_commit().map_err(Errno::from);
        Shared { sent: Ok(()), committed }
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
