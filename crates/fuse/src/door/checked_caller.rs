//! [`CheckedCaller`]: the caller of a change, for checks that the thread of a deferred reply makes.
//!
//! 1. The kernel does not tell through which mount a call comes, and passes it on also where that
//!    is read-only. So changes are refused to an administrator that sees no writable mount of the
//!    volume, and to every other caller that sees a read-only one. A mount table leaves out the
//!    mounts that are not below the root of the caller. So the mount of that root counts, too,
//!    which chroot(2) may have put inside of the volume.
//! 2. The mounts that a caller sees are in its mount table. Users can make the tables of their own
//!    namespaces long, so no worker reads them, and no thread keeps more than one line of them in
//!    memory. A caller with too long a table may change nothing.
//! 3. The caller waits for the reply. So its process id is its own, and its descriptors stay open
//!    unless another thread of it closes them.
//! 4. A descriptor of the caller must be on this mount. A lookup of a file of another filesystem
//!    may wait for the server of that filesystem, so the id of its mount is compared first.

use butternut::{FileId, Filesystem};
use butternut_sys::fuse_node::fuse_node;
use butternut_sys::mounts::{self, Mount};

use crate::connection::protocol::InHeader;
use crate::connection::request::Request;
use crate::door::access::has_permissions;
use crate::door::{Door, caller};
use crate::errno::{Errno, ErrnoResult};

#[derive(Clone, Copy)]
pub(super) struct CheckedCaller {
    header: InHeader,
    pub(super) is_administrator: bool,
    checks_permissions: bool,
    /// The device number (major, minor) of the mount; `None` where it could not be read.
    device: Option<(u32, u32)>,
}

impl Door {
    /// Returns the caller of a request.
    pub(super) fn checked_caller(&self, request: &Request<'_>) -> CheckedCaller {
        CheckedCaller {
            header: request.header,
            is_administrator: self.is_administrator(request),
            checks_permissions: self.options.checks_permissions,
            device: self.device_number,
        }
    }
}

impl CheckedCaller {
    /// Checks that the caller may change the volume through the mounts that it sees (law 1).
    ///
    /// # Errors
    /// `EROFS`; `EPERM` where its mount table cannot be read (law 2).
    pub(super) fn may_change(&self) -> ErrnoResult<()> {
        let Some(device) = self.device else { return Ok(()) };
        // A caller that cannot be read sees no mount that is known to be writable.
        let (mut sees_read_only, mut sees_writable) = (false, false);
        let mut see = |mount: &Mount| {
            let is_read_only = mount.is_read_only();
            sees_read_only |= is_read_only;
            sees_writable |= !is_read_only;
        };
        let (root, mut has_root) = (self.mount_of_root(), false);
        let read = mounts::for_each_of_device(self.header.pid, device, |mount| {
            has_root |= root == Some(mount.id);
            see(mount);
        });
        read.map_err(|_| Errno::EPERM)?;
        if !has_root && root.is_some() {
            let of_root = |mount: &Mount| {
                if root == Some(mount.id) {
                    see(mount);
                }
            };
            mounts::for_each_own_of_device(device, of_root).map_err(|_| Errno::EPERM)?;
        }
        let is_writable = sees_writable && (self.is_administrator || !sees_read_only);
        if is_writable { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// Returns the id of the mount that the root of the caller is on; `None` if that is hidden.
    fn mount_of_root(&self) -> Option<u64> {
        mounts::id_of_root(&caller::directory(self.header.pid)?).ok()
    }

    /// Returns whether the caller may change the attributes of a file.
    pub(super) fn owns(&self, filesystem: &Filesystem, id: FileId) -> ErrnoResult<bool> {
        let owner = filesystem.stat(id)?.uid;
        Ok(self.is_administrator || caller::is_owner(&self.header, owner))
    }

    /// Checks that the caller has permissions for a file, as three bits. A mount that checks no
    /// permissions allows it to every caller.
    ///
    /// # Errors
    /// `EACCES`; errors of reading the attributes.
    pub(super) fn may_access(
        &self,
        filesystem: &Filesystem,
        id: FileId,
        wanted: u16,
    ) -> ErrnoResult<()> {
        if !self.checks_permissions {
            return Ok(());
        }
        has_permissions(filesystem, &self.header, id, wanted)
    }

    /// Returns the user that owns every file that the caller may change; `None` for a caller that
    /// may change the files of all users.
    pub(super) fn limited_to_owner(&self) -> Option<u32> {
        let is_limited = !self.is_administrator && !caller::overrides_ownership(&self.header);
        is_limited.then_some(self.header.uid)
    }

    /// Returns the node id of the file that a descriptor of the caller leads to (law 4).
    ///
    /// # Errors
    /// `EBADF`; `EXDEV` for a file of another mount; `EPERM` if the caller cannot be read.
    pub(super) fn node_of_descriptor(&self, fd: u64) -> ErrnoResult<u64> {
        let process = caller::directory(self.header.pid).ok_or(Errno::EPERM)?;
        let path = process.join(format!("fd/{fd}"));
        let is_open = std::fs::symlink_metadata(&path).is_ok();
        let refused = if is_open { Errno::EXDEV } else { Errno::EBADF };
        let mount = mounts::id_of_descriptor(&process, fd).map_err(|_| refused)?;
        if !self.is_own_mount(mount) {
            return Err(refused);
        }
        let (device, node) = fuse_node(&path).map_err(|_| refused)?;
        if self.device == Some(device) { Ok(node) } else { Err(Errno::EXDEV) }
    }

    /// Returns whether the caller or this process sees a mount of the volume with this id. The
    /// caller may have entered another mount namespace since it opened a file.
    fn is_own_mount(&self, id: u64) -> bool {
        let Some(device) = self.device else { return false };
        let (mut is_own, mut is_theirs) = (false, false);
        let read = mounts::for_each_own_of_device(device, |mount| is_own |= mount.id == id);
        if read.is_ok() && is_own {
            return true;
        }
        let pid = self.header.pid;
        let read = mounts::for_each_of_device(pid, device, |mount| is_theirs |= mount.id == id);
        read.is_ok() && is_theirs
    }
}
