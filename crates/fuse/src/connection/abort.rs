//! Aborts a connection through its control file, from the process that serves it.
//!
//! ```text
//! fusectl (/sys/fs/fuse/connections)   ID/abort    ID: the device number of the mount
//! ```
//!
//! 1. The kernel answers every request of an aborted connection with an error, so no thread waits
//!    for one any more. The mounts and the open files stay, and fail.
//! 2. Root mounts the control filesystem for itself, without a mount point. Any other user needs it
//!    where the system has mounted it; the control files of a connection belong to its user.
//! 3. The kernel reuses the number after the end of the superblock. The control file is opened
//!    first; if the connection is alive after that, the file is not that of another connection.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::is_alive;

const TYPE: &str = "fusectl";
const DIRECTORY: &str = "/sys/fs/fuse/connections";

/// Number of bits of the minor number in a device number of the kernel.
const MINOR_BITS: u32 = 20;

/// Aborts the connection of the mount with a device number (major, minor). Does nothing where the
/// connection has ended.
///
/// # Errors
/// The caller may not mount the control filesystem, and the system has not mounted it.
pub(crate) fn abort(connection: &OwnedFd, device: (u32, u32)) -> io::Result<()> {
    if !is_alive(connection) {
        return Ok(());
    }
    let file = match open_control(device) {
        // It has ended meanwhile.
        Err(Errno::NOENT) if !is_alive(connection) => return Ok(()),
        file => file?,
    };
    // Law 3.
    if is_alive(connection) {
        write(&file, b"1")?;
    }
    Ok(())
}

/// Opens the control file (law 2).
fn open_control((major, minor): (u32, u32)) -> rustix::io::Result<OwnedFd> {
    let name = format!("{}/abort", (major << MINOR_BITS) | minor);
    let how = OFlags::WRONLY | OFlags::CLOEXEC;
    match mount_control() {
        Ok(root) => openat(root, name, how, Mode::empty()),
        Err(_) => openat(CWD, format!("{DIRECTORY}/{name}"), how, Mode::empty()),
    }
}

/// Mounts the control filesystem, detached.
fn mount_control() -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen(TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
