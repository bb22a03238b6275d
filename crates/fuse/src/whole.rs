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
//! 2. A clone may do nothing that was not asked for: it begins as `nosuid,nodev,noexec`, and gets
//!    what it may have, and `ro`, before it has a place: no program sees it otherwise.
//! 3. Where the kernel cannot clone from a mount without a place (before Linux 6.15), or the caller
//!    is not root, there is no whole: the volume has one place.
//! 4. A directory is found without following a symlink, which users of the volume can put there,
//!    and it is the one that the library found, or there is no clone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use butternut::FileId;
use butternut_sys::mounts;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
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
        drop(clone(&mount)?);
        let seen = seen(&mount)?;
        let device = (seen.stx_dev_major, seen.stx_dev_minor);
        Ok(Self { mount: Mutex::new(Some(mount)), device })
    }

    /// Clones a directory, by its path from the top of the volume. The connection must be served.
    ///
    /// # Errors
    /// There is no such directory, or it is not `id`, or the whole was let go of.
    pub fn clone_of(&self, id: FileId, directory: &Path) -> io::Result<Clone> {
        // Held while the clone is made: it finds the filesystem there, or not.
        let mount = self.mount.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = mount.as_ref().ok_or(Errno::NODEV)?;
        if directory.as_os_str().is_empty() {
            return clone(mount);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        let found = openat2(mount, directory, flags, Mode::empty(), how)?;
        // It may have been renamed, and another be there now. An id that is too large to be shown
        // as a number is not compared.
        let is_it = |number| seen(&found).map(|seen| seen.stx_ino == number);
        if !id.folded().map_or(Ok(true), is_it)? {
            return Err(Errno::NOENT.into());
        }
        clone(&found)
    }

    /// The device number (major, minor) of all its places.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
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

/// What the kernel knows of what a descriptor is of. The process that serves it is not asked.
fn seen(fd: impl AsFd) -> io::Result<Statx> {
    Ok(statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?)
}

/// Clones the directory that a descriptor is of.
fn clone(directory: impl AsFd) -> io::Result<Clone> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(Clone(open_tree(directory, "", flags)?))
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
        let (mut set, mut clear) = (MountAttrFlags::empty(), MountAttrFlags::empty());
        for (has, flag) in [
            (rights.write, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (rights.devices, MountAttrFlags::MOUNT_ATTR_NODEV),
            (rights.set_user_id, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (rights.execute, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ] {
            if has { &mut clear } else { &mut set }.insert(flag);
        }
        mounts::set_attributes(&self.0, set, clear)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(&self.0, "", CWD, mountpoint, flags)?)
    }
}

impl AsFd for Clone {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
