//! Decides whether the file of a loop device can be a file of a disk, without calling a filesystem
//! that another process or machine serves: such a filesystem may not respond, and the loop driver
//! then does not either.
//!
//! The loop driver shows the path of the file, and the mount table the mounts on that path:
//!
//! ```text
//! /data/a/image    /data    ext4          may hold the file: then it is hidden
//!                  /data/a  fuse.sshfs    the path leads here
//! ```
//!
//! 1. A file that only served filesystems of the path can hold, and that are not the disk's, is
//!    not a file of the disk.
//! 2. A filesystem of the disk that a served one hides is searched for the path through a copy of
//!    its mount, which nothing covers. Only root can make such a copy; for other callers the path
//!    leads where the mount table shows.
//! 3. A hidden filesystem that cannot be searched may hold the file, so the loop driver is queried.
//! 4. A filesystem whose files have other device numbers than its mount may hold any file.
//! 5. The path is taken as one of this mount namespace.

use super::{Layer, Storage};
use crate::mounts::{self, Mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::path::Path;

/// Filesystem types, up to the dot of a subtype, that another process or machine serves.
const SERVED: [&str; 9] = ["fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs"];
/// Filesystem types that give files device numbers of their own (law 4).
const OWN_NUMBERS: [&str; 3] = ["btrfs", "bcachefs", "overlay"];

/// Returns whether the file of a loop device, by its path, is certainly not a file of the disk.
pub(super) fn is_elsewhere(path: &Path, disk: &[Layer], table: &[Mount]) -> bool {
    let on_path = || table.iter().filter(|mount| path.starts_with(&mount.mountpoint));
    let is_foreign = |mount: &&Mount| is_served(mount) && !may_hold(mount, disk);
    if !on_path().any(|mount| is_foreign(&mount)) {
        return false;
    }
    let deepest =
        on_path().map(|mount| &mount.mountpoint).max_by_key(|place| place.as_os_str().len());
    let shown = deepest.and_then(|place| mounts::topmost(table, place));
    if shown.is_some_and(|mount| may_hold(mount, disk)) {
        return false;
    }
    on_path()
        .filter(|mount| may_hold(mount, disk))
        .all(|mount| lacks_file(mount, path, disk, table))
}

/// Returns whether another process or machine serves the filesystem of a mount.
pub(crate) fn is_served(mount: &Mount) -> bool {
    SERVED.contains(&mount.kind.split('.').next().unwrap_or_default())
}

/// Returns whether a file of the disk can be on the filesystem of a mount.
fn may_hold(mount: &Mount, disk: &[Layer]) -> bool {
    let (major, minor) = mount.device;
    let own = makedev(major, minor);
    let has_own_numbers = OWN_NUMBERS.contains(&mount.kind.as_str());
    disk.iter().any(|layer| match layer.storage {
        Storage::File { device, .. } => device == own || has_own_numbers,
        Storage::Device(_) => false,
    })
}

/// Returns whether a mount that others hide is known to have no file of the disk at the path (laws
/// 2 and 3).
fn lacks_file(mount: &Mount, path: &Path, disk: &[Layer], table: &[Mount]) -> bool {
    let place = &mount.mountpoint;
    let is_covered = mounts::topmost(table, place).is_none_or(|top| top.id != mount.id);
    let behind_served = table.iter().any(|other| {
        is_served(other) && other.mountpoint != *place && place.starts_with(&other.mountpoint)
    });
    if is_covered || (behind_served && place != Path::new("/")) {
        return false;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = match open_tree(CWD, place, flags) {
        Ok(copy) => copy,
        Err(error) => return error == Errno::PERM,
    };
    let Ok(below) = path.strip_prefix(place) else { return false };
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = match openat2(&copy, below, how, Mode::empty(), resolve) {
        Ok(file) => file,
        // The driver marks the path of a file that has lost this name.
        Err(Errno::NOENT) => return !path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)"),
        Err(Errno::NOTDIR | Errno::LOOP) => return true,
        Err(_) => return false,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(seen) = statx(&file, "", flags, StatxFlags::INO) else { return false };
    let device = makedev(seen.stx_dev_major, seen.stx_dev_minor);
    let found = Storage::File { device, inode: seen.stx_ino };
    !disk.iter().any(|layer| layer.storage == found)
}
