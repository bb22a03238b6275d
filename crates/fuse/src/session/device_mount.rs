//! A mount of a block device, made before the volume on it is opened.
//!
//! ```text
//! DeviceMount::new -> Filesystem::open -> mount_attempt -> Mounted::start, which attaches it
//!             \-> dropped: the kernel releases the device
//! ```
//!
//! A mount of type `fuse` has no block device, and the kernel sends its process no request for
//! sync(2) and umount(2). A mount of type `fuseblk` has one, and the kernel sends SYNCFS (since
//! Linux 6.18) and DESTROY, whose reply umount(2) waits for.
//!
//! 1. The kernel opens the device exclusively, as it does for its own filesystems: other mounts and
//!    exclusive opens fail as long as the mount exists, and the mount fails where there is one. So
//!    the mount is made first. The process then opens the device without `O_EXCL`
//!    ([`MountOptions::mounted_device`](butternut::MountOptions::mounted_device)).
//! 2. No program can reach the mount before it is attached, and the kernel sends no request before
//!    the reply to INIT. A sync(2) of another program waits for that reply, as it waits for a mount
//!    of the kernel's own filesystems that is being made. It goes on when the mount is dropped.
//! 3. A forced unmount and an abort end the connection without DESTROY. The kernel holds the device
//!    for the superblock all the same, until its last mount is gone and its last open file is
//!    closed. The process writes to the device until then; afterwards another program may use it.
//!    So each write of the volume looks whether the superblock still exists, and claims the device
//!    again where it does not
//!    ([`set_mount_watch`](butternut::server::FilesystemExt::set_mount_watch)).
//! 4. This needs `CAP_SYS_ADMIN` in the initial user namespace.

use crate::connection;
use crate::options::Options;
use crate::session::detached_mount::DetachedMount;
use crate::session::{FuseError, MountGuard};
use butternut::Filesystem;
use butternut::server::FilesystemExt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A detached mount of a block device that no thread serves yet.
#[derive(Debug)]
pub struct DeviceMount {
    // Dropped first: without a connection the end of the mount waits for no reply.
    connection: Arc<OwnedFd>,
    detached: DetachedMount,
}

impl DeviceMount {
    /// Mounts the block device that `options` names as the source.
    ///
    /// # Errors
    /// /dev/fuse is missing, or the kernel refuses the mount: with `EBUSY` where the device is in
    /// use, `EPERM` without the capability (law 4), `ENODEV` without the type `fuseblk`, and
    /// `EINVAL` before Linux 6.15.
    pub fn new(options: &Options) -> Result<Self, FuseError> {
        let connection = connection::open().map_err(FuseError::NoDevice)?;
        let detached = DetachedMount::mount_block_device(&connection, options)
            .map_err(FuseError::MountFailed)?;
        Ok(Self { connection: Arc::new(connection), detached })
    }

    /// Lets a filesystem on the device notice the end of this mount. Called as soon as the volume
    /// is open: the kernel releases the device when this is dropped, and the filesystem may still
    /// have changes to write.
    pub fn watch(&self, filesystem: &Filesystem) {
        // A strong reference would keep the connection from ending.
        let connection = Arc::downgrade(&self.connection);
        let is_mounted = move || connection.upgrade().is_some_and(connection::has_superblock);
        filesystem.set_mount_watch(Box::new(is_mounted));
    }

    /// Returns the device number (major, minor) of the block device, which is that of the mount.
    pub fn device(&self) -> (u32, u32) {
        self.detached.device()
    }

    pub(super) fn into_guard(self) -> MountGuard {
        MountGuard::of(self.connection, self.detached)
    }
}
