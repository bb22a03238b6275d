//! The mount of a whole volume, which is at no place: every place where the volume is mounted is a
//! clone of one of its directories. So all of them are one filesystem for the kernel, with one
//! cache, as the subvolumes of a btrfs of the kernel's are.
//!
//! ```text
//! fsmount -> whole (no place) --open_tree--> clone of a subvolume --move_mount--> a place
//! ```
//!
//! 1. The whole keeps the kernel from ending the filesystem, so it is let go of when the last place
//!    is gone ([`Whole::watch`]). What still has files open then keeps the filesystem by itself.
//! 2. A clone may do nothing that was not asked for: it begins as `nosuid,nodev,noexec`, and its
//!    place is given what it may have.
//! 3. Where the kernel cannot clone from a mount without a place (before Linux 6.15), or the caller
//!    is not root, there is no whole: the volume has one place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use butternut_sys::mounts;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_remount,
    move_mount, open_tree,
};

use crate::attach;
use crate::options::Options;

/// A mount without a place.
#[derive(Debug)]
pub struct Whole {
    /// `None` when it was let go of.
    mount: Mutex<Option<OwnedFd>>,
    device: (u32, u32),
}

/// A clone of a directory of a mount, which has no place yet. It goes when it is dropped.
#[derive(Debug)]
pub struct Clone(OwnedFd);

/// What a place may have of what a mount can restrict.
#[expect(clippy::struct_excessive_bools, reason = "each is a mount option that is on or off")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    pub write: bool,
    pub devices: bool,
    pub set_user_id: bool,
    pub execute: bool,
}

impl From<&Options> for Rights {
    fn from(options: &Options) -> Self {
        let Options { is_writable, devices, set_user_id, execute, .. } = *options;
        Self { write: is_writable, devices, set_user_id, execute }
    }
}

impl Whole {
    /// Mounts a connection at no place.
    pub(crate) fn mount(device: &OwnedFd, options: &Options) -> io::Result<Self> {
        let filesystem = fsopen(attach::TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in attach::settings(device, options) {
            fsconfig_set_string(&filesystem, key, value.as_str())?;
        }
        let flags = attach::given(options)
            .into_iter()
            .chain([(!options.is_writable, "ro"), (options.is_synchronous, "sync")]);
        for (_, flag) in flags.filter(|(is_set, _)| *is_set) {
            fsconfig_set_flag(&filesystem, flag)?;
        }
        fsconfig_create(&filesystem)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        let mount = fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        // Whether the kernel can clone it shows before anything is served from it.
        drop(clone(&mount, Path::new(""))?);
        let device = device_of(&mount)?;
        Ok(Self { mount: Mutex::new(Some(mount)), device })
    }

    /// Clones a directory, by its path from the top of the volume. The connection must be served.
    ///
    /// # Errors
    /// There is no such directory, or the whole was let go of.
    pub fn clone_of(&self, directory: &Path) -> io::Result<Clone> {
        // Held while the clone is made: it finds the filesystem there, or not.
        let mount = self.mount.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = mount.as_ref().ok_or(Errno::NODEV)?;
        let made = clone(mount, directory)?;
        // A volume may have symbolic links where its directories should be.
        if device_of(&made)? == self.device { Ok(made) } else { Err(Errno::XDEV.into()) }
    }

    /// Lets go of the whole.
    pub(crate) fn release(&self) {
        let mount = self.mount.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last reference ends the filesystem, which calls the process that serves it.
        drop(mount);
    }

    /// Starts the thread that lets go of the whole when the last place is gone (law 1).
    pub(crate) fn watch(self: &Arc<Self>) -> io::Result<()> {
        // The kernel reports the changes since the table was opened.
        let table = std::fs::File::open("/proc/self/mountinfo")?;
        let whole = Arc::clone(self);
        let run = move || {
            while whole.has_place() {
                let mut changed = [PollFd::new(&table, PollFlags::PRI)];
                // A signal, at the worst.
                poll(&mut changed, None).map(drop).unwrap_or_default();
            }
            whole.release();
        };
        thread::Builder::new().name("butternut-mnt".into()).spawn(run).map(drop)
    }

    /// Whether the mount table has a place of it. A table that cannot be read may have.
    fn has_place(&self) -> bool {
        mounts::read().map_or(true, |mounts| mounts.iter().any(|m| m.device == self.device))
    }
}

/// The device number of what a descriptor is of. The process that serves it is not asked.
fn device_of(fd: impl AsFd) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = statx(fd, "", flags, StatxFlags::empty())?;
    Ok((seen.stx_dev_major, seen.stx_dev_minor))
}

fn clone(mount: &OwnedFd, directory: &Path) -> io::Result<Clone> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(Clone(open_tree(mount, directory, flags)?))
}

impl Clone {
    /// Takes a clone that another process has made.
    pub fn received(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Gives the clone a place, with rights.
    ///
    /// # Errors
    /// The caller is not root, or there is no such directory. Then there is no new mount.
    pub fn place(self, mountpoint: &Path, rights: Rights) -> io::Result<()> {
        move_mount(&self.0, "", CWD, mountpoint, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let mut flags = MountFlags::BIND | MountFlags::NOATIME;
        for (has, flag) in [
            (rights.write, MountFlags::RDONLY),
            (rights.devices, MountFlags::NODEV),
            (rights.set_user_id, MountFlags::NOSUID),
            (rights.execute, MountFlags::NOEXEC),
        ] {
            if !has {
                flags |= flag;
            }
        }
        mount_remount(mountpoint, flags, "").map_err(|errno| {
            // Another error is the one to tell.
            let how = rustix::mount::UnmountFlags::DETACH;
            rustix::mount::unmount(mountpoint, how).unwrap_or_default();
            errno.into()
        })
    }
}

impl AsFd for Clone {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
