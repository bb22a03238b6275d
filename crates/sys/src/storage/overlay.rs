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
use crate::mounts;
use rustix::fs::fstatfs;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The type of an overlay in the result of statfs(2).
const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;

/// Returns the file in the upper directory that holds the bytes of an open file, if that is a file
/// of an overlay.
pub(crate) fn upper_file(fd: &OwnedFd, storage: Storage) -> Option<Layer> {
    let Storage::File { inode, .. } = storage else { return None };
    let kind = u64::try_from(fstatfs(fd).ok()?.f_type).ok()?;
    if kind != OVERLAYFS_SUPER_MAGIC {
        return None;
    }
    let id = mounts::id_of(fd).ok()?;
    let table = mounts::read().ok()?;
    let mount = table.iter().find(|mount: &&mounts::Mount| mount.id == id)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let below = name.strip_prefix(&mount.mountpoint).ok()?;
    let root = mount.root.strip_prefix("/").ok()?;
    let path = Path::new(mount.option("upperdir")?).join(root).join(below);
    let found = storage_at(&path)?;
    let is_it = matches!(found, Storage::File { inode: found, .. } if found == inode);
    is_it.then_some(Layer { storage: found, window: Window::ALL, path: Some(path) })
}
