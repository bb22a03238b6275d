//! A detached mount of the whole volume, from which every other mount of the volume is cloned.
//!
//! All mounts share one superblock and one kernel cache, as the mounts of several subvolumes of
//! kernel btrfs do.
//!
//! ```text
//! fsmount(2) -> detached mount -- open_tree(2) --> clone of a directory -- move_mount(2) --> mount
//! ```
//!
//! 1. The detached mount keeps the superblock alive, so it is closed when the last attached mount
//!    is gone ([`DetachedMount::watch`]) and no clone is still to be attached
//!    ([`DetachedMount::begin_clone`]). One lock guards both decisions. Open files then keep the
//!    superblock alive by themselves. A signal that ends the mount closes it at once, also for a
//!    pending clone, which may wait for a device that does not respond: a clone that is not made
//!    yet fails, and one that is made keeps the superblock alive.
//! 2. A clone starts with `nosuid,nodev,noexec`. It gets its own options, also `ro`, before it is
//!    attached, so no program can use it with more permissions than were requested.
//! 3. There is no detached mount where the kernel cannot clone one (before Linux 6.15) or the
//!    caller is not root. The volume has one mount then.
//! 4. The path of a directory is resolved without following symlinks, because users of the volume
//!    can create them. The directory found must have the id that the library found; otherwise the
//!    call fails.
//! 5. The thread that resolves the path waits for a reply of its own process, so its descriptor
//!    table contains only the mount ([`private_fd_table`]).
//! 6. A mount of a block device (type `fuseblk`) is not kept once a clone of it is attached:
//!    umount(2) of the last attached mount waits for DESTROY only if no other mount of the
//!    superblock is left. For each further clone the kernel makes a new detached mount of the same
//!    superblock, which it finds by a path of the device. The path of the first mount may lead to
//!    another file by then, so other paths of the device follow it ([`MountedDevice`]).
//! 7. The end of the last mount of a block device sends DESTROY, and the thread that closes that
//!    mount waits for the reply, so it is closed as law 5 says ([`MountFd`]).
//! 8. No clone is made of a mount whose connection has ended: it would never work.

use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use butternut::FileId;
use butternut_sys::block_device::BlockDevice;
use butternut_sys::{mounts, private_fd_table};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree,
};

use crate::connection;
use crate::options::Options;
use crate::session::attach;

/// How long a thread waits for the end of a mount that it closes.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// The block size of the superblock of a block device, in bytes. The kernel refuses a size that is
/// smaller than the logical blocks of the device, or larger than a memory page.
pub const BLOCK_BYTES: u32 = 4096;

/// The attributes of a detached mount, and of a clone until it gets its own (law 2).
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NOATIME);

/// A mount of the whole volume that is not attached to any mount point.
#[derive(Debug)]
pub struct DetachedMount {
    /// The lock is not held during a path lookup in the mount: a worker thread must serve that
    /// lookup, and may itself wait for the lock.
    state: Mutex<State, rank::DetachedMount>,
    device: (u32, u32),
    /// The connection, for law 8. A strong reference would keep it from ending.
    connection: Weak<OwnedFd>,
    /// The block device, for a mount of one (law 6).
    block_device: Option<MountedDevice>,
}

/// A mounted block device, and the paths that led to it when it was mounted.
#[derive(Clone, Debug)]
struct MountedDevice {
    device: BlockDevice,
    /// The source of the mount, and the same path without symlinks.
    paths: Vec<PathBuf>,
}

/// The kernel makes no further mount of a mounted block device.
#[derive(Debug, thiserror::Error)]
enum MountAgainError {
    #[error("{} cannot be mounted again", path.display())]
    Refused {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} does not lead to the mounted block device {}:{} any more", path.display(),
        device.0.0, device.0.1)]
    Moved { path: PathBuf, device: BlockDevice },
}

#[derive(Debug)]
struct State {
    /// `None` once it was closed, or is not kept (law 6).
    mount: Option<Arc<MountFd>>,
    /// Clones are no longer made.
    is_closed: bool,
    /// Number of [`PendingClone`]s.
    pending_clones: usize,
}

/// The descriptor of a mount that is not attached (law 7).
#[derive(Debug)]
struct MountFd(Option<OwnedFd>);

impl MountFd {
    fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for MountFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is closed by the drop only").as_fd()
    }
}

impl Drop for MountFd {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            private_fd_table::close(fd, CLOSE_WAIT);
        }
    }
}

/// Keeps a detached mount open while a clone of it is made and attached.
#[derive(Debug)]
pub struct PendingClone(Arc<DetachedMount>);

impl Drop for PendingClone {
    fn drop(&mut self) {
        self.0.state().pending_clones -= 1;
        self.0.release_unused();
    }
}

/// A clone of one directory, not attached yet. Dropping it unmounts it.
#[derive(Debug)]
pub struct ClonedMount(MountFd);

/// The permissions of one mount: each `false` becomes `ro`, `nodev`, `nosuid` or `noexec`.
#[expect(clippy::struct_excessive_bools, reason = "each is a mount option that is on or off")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountPermissions {
    pub write: bool,
    pub devices: bool,
    pub set_user_id: bool,
    pub execute: bool,
}

impl From<&Options> for MountPermissions {
    fn from(options: &Options) -> Self {
        let Options { is_writable, devices, set_user_id, execute, .. } = *options;
        Self { write: is_writable, devices, set_user_id, execute }
    }
}

impl MountPermissions {
    /// Returns the mount attributes to set for these permissions, and those to clear.
    pub fn attributes(self) -> (MountAttrFlags, MountAttrFlags) {
        let (mut set, mut clear) = (MountAttrFlags::empty(), MountAttrFlags::empty());
        for (has, flag) in [
            (self.write, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (self.devices, MountAttrFlags::MOUNT_ATTR_NODEV),
            (self.set_user_id, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (self.execute, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ] {
            if has { &mut clear } else { &mut set }.insert(flag);
        }
        (set, clear)
    }
}

impl DetachedMount {
    /// Creates a detached mount of a connection.
    pub(crate) fn mount(connection: &OwnedFd, options: &Options) -> io::Result<Self> {
        let filesystem = fsopen(attach::TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
        configure(&filesystem, connection, options)?;
        fsconfig_create(&filesystem)?;
        Self::of(&filesystem, None)
    }

    /// Creates a detached mount of a connection and of the block device that `options` names as the
    /// source. The kernel then holds the device exclusively.
    ///
    /// # Errors
    /// `EBUSY`: the device is in use, also by such a mount.
    pub(crate) fn mount_block_device(connection: &OwnedFd, options: &Options) -> io::Result<Self> {
        let filesystem = fsopen(attach::BLOCK_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
        configure(&filesystem, connection, options)?;
        fsconfig_set_string(&filesystem, "blksize", BLOCK_BYTES.to_string())?;
        // Without this, the kernel would return the superblock of another process.
        fsconfig_create_exclusive(&filesystem)?;
        let source = PathBuf::from(&options.source);
        let resolved = source.canonicalize();
        Self::of(&filesystem, Some([source].into_iter().chain(resolved).collect()))
    }

    /// `paths` are those of the block device, for a mount of one.
    fn of(filesystem: &OwnedFd, paths: Option<Vec<PathBuf>>) -> io::Result<Self> {
        let mount = fsmount(filesystem, FsMountFlags::FSMOUNT_CLOEXEC, ATTRIBUTES)?;
        // Fails now, before any request is served, where the kernel cannot clone the mount.
        drop(clone(&mount)?);
        let device = device_of(&mount)?;
        let block_device = paths.map(|paths| MountedDevice { device: BlockDevice(device), paths });
        let mount = Some(Arc::new(MountFd::new(mount)));
        let state = State { mount, is_closed: false, pending_clones: 0 };
        Ok(Self { state: Mutex::new(state), device, connection: Weak::new(), block_device })
    }

    /// Sets the connection of the mount.
    pub(crate) fn of_connection(self, connection: &Arc<OwnedFd>) -> Self {
        Self { connection: Arc::downgrade(connection), ..self }
    }

    /// Returns whether the kernel still sends the requests of the mount.
    fn is_served(&self) -> bool {
        self.connection.upgrade().is_some_and(connection::is_alive)
    }

    /// Returns whether this is a mount of a block device.
    pub(crate) fn is_of_block_device(&self) -> bool {
        self.block_device.is_some()
    }

    /// Clones a directory, by its path from the top-level directory of the volume. Worker threads
    /// must already serve the connection.
    ///
    /// # Errors
    /// There is no such directory, or its id is not `id`, or the detached mount was closed, or its
    /// connection has ended.
    pub fn clone_directory(&self, id: FileId, directory: &Path) -> io::Result<ClonedMount> {
        let (mount, is_closed) = {
            let state = self.state();
            (state.mount.clone(), state.is_closed)
        };
        if is_closed {
            return Err(Errno::NODEV.into());
        }
        let directory = directory.to_path_buf();
        let clone = match (mount, &self.block_device) {
            // This reference keeps the superblock alive until the clone is made.
            (Some(mount), _) => {
                private_fd_table::call(mount.as_fd(), |at| clone_in(at, id, &directory))?
            }
            (None, Some(block_device)) => {
                let block_device = block_device.clone();
                private_fd_table::open(move || {
                    let whole = block_device.mount_again()?;
                    clone_in(whole.as_fd(), id, &directory)
                })?
            }
            (None, None) => return Err(Errno::NODEV.into()),
        };
        let clone = ClonedMount::from_fd(clone);
        if self.is_served() { Ok(clone) } else { Err(Errno::NODEV.into()) }
    }

    /// Keeps the detached mount open until the clone that the caller is about to make is attached.
    /// Returns `None` if the detached mount was closed or its connection has ended: the volume is
    /// being unmounted.
    pub fn begin_clone(self: &Arc<Self>) -> Option<PendingClone> {
        let is_served = self.is_served();
        let mut state = self.state();
        if state.is_closed || !is_served {
            return None;
        }
        state.pending_clones += 1;
        Some(PendingClone(Arc::clone(self)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the device number (major, minor) that all mounts of the volume have.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Closes the detached mount.
    pub(crate) fn release(&self) {
        let mount = {
            let mut state = self.state();
            state.is_closed = true;
            state.mount.take()
        };
        // Not under the lock: the last reference ends the superblock, and the kernel then sends
        // requests to this process.
        drop(mount);
    }

    /// Closes the detached mount of a block device, of which a clone is attached (law 6).
    pub(crate) fn close_after_attach(&self) {
        if self.is_of_block_device() {
            let mount = self.state().mount.take();
            drop(mount);
        }
    }

    /// Starts the thread that closes the detached mount when the last attached one is gone (law 1).
    pub(crate) fn watch(self: &Arc<Self>) -> io::Result<()> {
        if self.is_of_block_device() {
            return Ok(());
        }
        // poll(2) reports changes since the file was opened.
        let table = std::fs::File::open("/proc/self/mountinfo")?;
        let detached = Arc::clone(self);
        let run = move || {
            while !detached.release_unused() {
                let mut changed = [PollFd::new(&table, PollFlags::PRI)];
                // A signal only causes one more look at the mount table.
                poll(&mut changed, None).map(drop).unwrap_or_default();
            }
        };
        thread::Builder::new().name("butternut-mnt".into()).spawn(run).map(drop)
    }

    /// Closes the detached mount if no attached mount is left and no clone is pending (law 1).
    /// Returns whether it is closed.
    fn release_unused(&self) -> bool {
        if self.is_of_block_device() {
            return false;
        }
        let mut state = self.state();
        let is_used = state.mount.is_some() && (state.pending_clones > 0 || self.is_mounted());
        state.is_closed |= !is_used;
        let unused = if is_used { None } else { state.mount.take() };
        drop(state);
        // Not under the lock: the last reference ends the superblock, and the kernel then sends
        // requests to this process.
        drop(unused);
        !is_used
    }

    /// Returns whether the mount table has an attached mount of the volume. Returns `true` where
    /// the table cannot be read.
    fn is_mounted(&self) -> bool {
        mounts::read_own_of_device(self.device).map_or(true, |mounts| !mounts.is_empty())
    }
}

/// Returns the attributes that the kernel has cached, without a request to the serving process.
fn cached_statx(fd: impl AsFd) -> io::Result<Statx> {
    Ok(statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?)
}

/// Returns the device number (major, minor) of a mount.
fn device_of(mount: impl AsFd) -> io::Result<(u32, u32)> {
    let root = cached_statx(mount)?;
    Ok((root.stx_dev_major, root.stx_dev_minor))
}

/// Sets the options of a new superblock.
fn configure(filesystem: &OwnedFd, connection: &OwnedFd, options: &Options) -> io::Result<()> {
    for (key, value) in attach::settings(connection, options) {
        fsconfig_set_string(filesystem, key, value.as_str())?;
    }
    let flags = attach::connection_flags(options)
        .into_iter()
        .chain([(!options.is_writable, "ro"), (options.is_synchronous, "sync")]);
    for (_, flag) in flags.filter(|(is_set, _)| *is_set) {
        fsconfig_set_flag(filesystem, flag)?;
    }
    Ok(())
}

impl MountedDevice {
    /// Makes a detached mount of the superblock that the device is mounted with (law 6).
    fn mount_again(&self) -> io::Result<OwnedFd> {
        let device = self.device;
        let known = self.paths.iter().cloned().chain(device.kernel_path());
        let path = known.into_iter().find(|path| BlockDevice::at(path) == Some(device));
        let Some(path) = path else {
            let path = self.paths.first().cloned().unwrap_or_default();
            return Err(io::Error::other(MountAgainError::Moved { path, device }));
        };
        mount_at(&path, device.0)
            .map_err(|source| io::Error::other(MountAgainError::Refused { path, source }))
    }
}

/// Makes a detached mount of the superblock of the block device that a path leads to.
fn mount_at(source: &Path, device: (u32, u32)) -> io::Result<OwnedFd> {
    let mounted = |is_read_only: bool| {
        let filesystem = fsopen(attach::BLOCK_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&filesystem, "source", source)?;
        if is_read_only {
            fsconfig_set_flag(&filesystem, "ro")?;
        }
        // Without a descriptor of /dev/fuse, the kernel makes no new superblock.
        fsconfig_create(&filesystem)?;
        fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, ATTRIBUTES)
    };
    let mount = match mounted(false) {
        // A remount has made the superblock read-only.
        Err(Errno::BUSY) => mounted(true)?,
        mount => mount?,
    };
    if device_of(&mount)? == device { Ok(mount) } else { Err(Errno::NODEV.into()) }
}

/// Clones a directory, by its path from the root of a mount of the whole volume (law 4).
fn clone_in(whole: BorrowedFd<'_>, id: FileId, directory: &Path) -> io::Result<OwnedFd> {
    if directory.as_os_str().is_empty() {
        return clone(whole);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    let found = openat2(whole, directory, flags, Mode::empty(), how)?;
    // Another directory may have been renamed to this path. An id without a folded form is shown to
    // users as a hash, and is not compared.
    let is_it = |number| cached_statx(&found).map(|statx| statx.stx_ino == number);
    if !id.folded().map_or(Ok(true), is_it)? {
        return Err(Errno::NOENT.into());
    }
    clone(&found)
}

/// Clones the directory of a descriptor.
fn clone(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(directory, "", flags)?)
}

impl ClonedMount {
    /// Wraps the descriptor of a clone that another process has made.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(MountFd::new(fd))
    }

    /// Sets the mount's permissions and attaches it to a mount point.
    ///
    /// # Errors
    /// The caller is not root, or the mount point does not exist. No mount is attached then.
    pub fn attach(self, mountpoint: &Path, permissions: MountPermissions) -> io::Result<()> {
        let (set, clear) = permissions.attributes();
        mounts::set_attributes(&self.0, set, clear)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(&self.0, "", CWD, mountpoint, flags)?)
    }
}

impl AsFd for ClonedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
