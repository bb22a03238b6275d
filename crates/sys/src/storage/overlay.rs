//! Finds the file beneath a file of an overlay.
//!
//! 1. A file of an overlay has the inode number of the file in the upper directory, but another
//!    device number, and locks on one do not conflict with locks on the other.
//! 2. The upper directory is looked up by the mount options, as a path of this mount namespace. A
//!    file found there counts only if its inode number is that of the file of the overlay.
//! 3. Files of a lower directory are not searched: an open for writing copies them to the upper
//!    one.
//! 4. Not found: an upper directory that no path of this mount namespace leads to, or whose path
//!    has a comma or a colon; one that the overlay itself is mounted on, so that its path leads
//!    back to the overlay; a file of an overlay beneath a loop device.

use super::{Layer, Storage, Window, storage_at};
use crate::mounts::{self, Mount};
use rustix::fs::fstatfs;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The type of an overlay in the result of statfs(2).
const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;

/// Returns the window of the file in the upper directory that holds the bytes of an open disk, if
/// that is a file of an overlay.
///
/// # Errors
/// The mount table cannot be read.
pub(crate) fn upper_file(fd: &OwnedFd, disk: &Layer) -> io::Result<Option<Layer>> {
    let Storage::File { inode, .. } = disk.storage else { return Ok(None) };
    if !is_overlay(fd) {
        return Ok(None);
    }
    let Ok(id) = mounts::id_of(fd) else { return Ok(None) };
    let found = upper_file_in(&mounts::read()?, id, fd, inode);
    Ok(found.map(|upper| Layer { window: disk.window, ..upper }))
}

fn is_overlay(fd: &OwnedFd) -> bool {
    fstatfs(fd).is_ok_and(|of| u64::try_from(of.f_type) == Ok(OVERLAYFS_SUPER_MAGIC))
}

/// Looks for the file beneath the overlay whose mount has an id.
fn upper_file_in(table: &[Mount], id: u64, fd: &OwnedFd, inode: u64) -> Option<Layer> {
    let mount = table.iter().find(|mount| mount.id == id)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let below = name.strip_prefix(&mount.mountpoint).ok()?;
    let root = mount.root.strip_prefix("/").ok()?;
    let path = Path::new(mount.option("upperdir")?).join(root).join(below);
    let found = storage_at(&path)?;
    let is_it = matches!(found, Storage::File { inode: found, .. } if found == inode);
    is_it.then_some(Layer { storage: found, window: Window::ALL, path: Some(path) })
}
