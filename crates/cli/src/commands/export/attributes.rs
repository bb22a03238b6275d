//! Owners, modes, extended attributes and times of what was copied.
//!
//! The order matters: changing the owner drops set-user-id bits and capabilities, and an attribute
//! of `user.` needs a file that may still be written, so the mode comes after both; an access ACL
//! is part of the mode, so it comes after the mode; times come last.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use butternut::{FileId, FileKind, Stat, Time};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod,
    fsetxattr, lsetxattr, openat, utimensat,
};
use rustix::process::geteuid;

use super::super::walk::WalkPath;
use super::Export;
use super::folder::Folder;
use super::report::Lost;
use crate::flags::ExportArgs;

const ACL: &[u8] = b"system.posix_acl_";
/// Properties of btrfs itself (`btrfs.compression`): nothing on another filesystem.
const PROPERTY: &[u8] = b"btrfs.";

/// What the copy is to keep.
#[expect(clippy::struct_excessive_bools, reason = "switches, each on its own")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Keeping {
    pub(super) owners: bool,
    pub(super) xattrs: bool,
    pub(super) devices: bool,
    /// Owners are left alone because only root may give files away.
    pub(super) owners_need_root: bool,
}

impl Keeping {
    pub(super) fn of(args: &ExportArgs) -> Self {
        let is_root = geteuid().is_root();
        Self {
            owners: is_root && !args.no_owner,
            xattrs: !args.no_xattrs,
            devices: args.devices,
            owners_need_root: !is_root && !args.no_owner,
        }
    }
}

/// Gives an open file or directory what belongs to it.
pub(super) fn finish(export: &Export, fd: BorrowedFd<'_>, stat: &Stat, path: &WalkPath) {
    let report = &export.report;
    give_owner(export, stat, path, |uid, gid| Ok(rustix::fs::fchown(fd, uid, gid)?));
    let set = |name: &[u8], value: &[u8]| Ok(fsetxattr(fd, name, value, XattrFlags::empty())?);
    give_xattrs(export, stat.id, path, |name| !name.starts_with(ACL), &set);
    if let Err(error) = fchmod(fd, mode(export, stat)) {
        report.lost(Lost::Mode, path, &error.into());
    }
    give_xattrs(export, stat.id, path, |name| name.starts_with(ACL), &set);
    if let Err(error) = rustix::fs::futimens(fd, &times(stat)) {
        report.lost(Lost::Times, path, &error.into());
    }
}

/// The same for a symlink, which has no mode and cannot be opened.
pub(super) fn finish_symlink(
    export: &Export,
    folder: &Folder,
    name: &[u8],
    stat: &Stat,
    path: &WalkPath,
) {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    give_owner(export, stat, path, |uid, gid| Ok(chownat(folder, name, uid, gid, flags)?));
    let mut place = format!("/proc/self/fd/{}/", folder.as_fd().as_raw_fd()).into_bytes();
    place.extend_from_slice(name);
    give_xattrs(export, stat.id, path, |_| true, &|name, value| {
        Ok(lsetxattr(place.as_slice(), name, value, XattrFlags::empty())?)
    });
    if let Err(error) = utimensat(folder, name, &times(stat), flags) {
        export.report.lost(Lost::Times, path, &error.into());
    }
}

/// The same for a device, pipe or socket, which must not be opened for real.
pub(super) fn finish_special(
    export: &Export,
    folder: &Folder,
    name: &[u8],
    stat: &Stat,
    path: &WalkPath,
) {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match openat(folder, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(error) => return export.report.io(path, &error.into()),
    };
    // A descriptor of O_PATH takes no changes itself; this path leads to just that file.
    let place = format!("/proc/self/fd/{}", fd.as_raw_fd());
    give_owner(export, stat, path, |uid, gid| Ok(chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?));
    let set = |name: &[u8], value: &[u8]| {
        Ok(rustix::fs::setxattr(place.as_str(), name, value, XattrFlags::empty())?)
    };
    give_xattrs(export, stat.id, path, |name| !name.starts_with(ACL), &set);
    if let Err(error) = chmod(place.as_str(), mode(export, stat)) {
        export.report.lost(Lost::Mode, path, &error.into());
    }
    give_xattrs(export, stat.id, path, |name| name.starts_with(ACL), &set);
    let here = rustix::fs::CWD;
    if let Err(error) = utimensat(here, place.as_str(), &times(stat), AtFlags::empty()) {
        export.report.lost(Lost::Times, path, &error.into());
    }
}

/// Sets one attribute, by name and value.
type SetXattr<'a> = dyn Fn(&[u8], &[u8]) -> io::Result<()> + 'a;

fn give_owner(
    export: &Export,
    stat: &Stat,
    path: &WalkPath,
    give: impl FnOnce(Option<Uid>, Option<Gid>) -> io::Result<()>,
) {
    if !export.keeping.owners {
        return;
    }
    // All ones would mean "leave it".
    let uid = (stat.uid != u32::MAX).then(|| Uid::from_raw(stat.uid));
    let gid = (stat.gid != u32::MAX).then(|| Gid::from_raw(stat.gid));
    if let Err(error) = give(uid, gid) {
        export.report.lost(Lost::Owner, path, &error);
    }
}

fn give_xattrs(
    export: &Export,
    id: FileId,
    path: &WalkPath,
    wanted: impl Fn(&[u8]) -> bool,
    set: &SetXattr<'_>,
) {
    if !export.keeping.xattrs {
        return;
    }
    let names = match export.filesystem.xattr_names(id) {
        Ok(names) => names,
        Err(error) => return export.report.unreadable(path, &error),
    };
    for name in names.iter().filter(|name| wanted(name)) {
        if !export.keeping.owners && lends_rights(name) {
            export.report.left_out(Lost::Xattr(namespace(name)), path, export.keeping);
            continue;
        }
        let value = match export.filesystem.xattr(id, name) {
            Ok(value) => value,
            Err(error) => {
                export.report.unreadable(path, &error);
                continue;
            }
        };
        match set(name, &value) {
            Err(_) if name.starts_with(PROPERTY) => {}
            Err(error) => export.report.lost(Lost::Xattr(namespace(name)), path, &error),
            Ok(()) => {}
        }
    }
}

/// Whether an attribute gives a file rights that its owner may not give it.
fn lends_rights(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

fn namespace(name: &[u8]) -> &'static str {
    match name.split(|byte| *byte == b'.').next().unwrap_or_default() {
        b"security" => "security.*",
        b"trusted" => "trusted.*",
        b"system" => "ACL",
        b"user" => "user.*",
        _ => "unknown",
    }
}

/// A file that changes its owner keeps no bits that would lend the new one's rights.
fn mode(export: &Export, stat: &Stat) -> Mode {
    let lends = stat.kind == FileKind::File && !export.keeping.owners;
    Mode::from_raw_mode(stat.mode & if lends { 0o1777 } else { 0o7777 })
}

fn times(stat: &Stat) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: spec(stat.atime), last_modification: spec(stat.mtime) }
}
