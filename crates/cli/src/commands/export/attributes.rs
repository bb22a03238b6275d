//! Sets owners, modes, extended attributes and times of the copies.
//!
//! The order matters. A change of owner clears set-ID bits and removes capabilities, and setting a
//! `user.` attribute needs a writable file, so the mode is set after both. An access ACL is part of
//! the mode, so ACLs are set after the mode. Times are set last.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use butternut::{FileId, FileKind, Stat, Time};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fsetxattr,
    utimensat,
};

use super::super::walk::WalkPath;
use super::report::NotPreserved;
use super::shared::Export;

const ACL: &[u8] = b"system.posix_acl_";
/// Prefix of btrfs properties (`btrfs.compression`), which other filesystems refuse.
const PROPERTY: &[u8] = b"btrfs.";

/// Sets the attributes of an open file or directory.
pub(super) fn finish(export: &Export, fd: BorrowedFd<'_>, stat: &Stat, path: &WalkPath) {
    let report = &export.report;
    set_owner(export, stat, path, |uid, gid| Ok(rustix::fs::fchown(fd, uid, gid)?));
    let set = |name: &[u8], value: &[u8]| Ok(fsetxattr(fd, name, value, XattrFlags::empty())?);
    set_xattrs(export, stat.id, path, |name| !name.starts_with(ACL), &set);
    if let Err(error) = fchmod(fd, mode(export, stat)) {
        report.not_preserved(NotPreserved::Mode, path, &error.into());
    }
    set_xattrs(export, stat.id, path, |name| name.starts_with(ACL), &set);
    if let Err(error) = rustix::fs::futimens(fd, &times(stat)) {
        report.not_preserved(NotPreserved::Times, path, &error.into());
    }
}

/// Sets the attributes of a symlink, device, FIFO or socket, which is opened with `O_PATH` only.
pub(super) fn finish_special(export: &Export, fd: BorrowedFd<'_>, stat: &Stat, path: &WalkPath) {
    // System calls on an O_PATH descriptor fail; this path refers to the same file.
    let proc_path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    set_owner(export, stat, path, |uid, gid| Ok(chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?));
    let set = |name: &[u8], value: &[u8]| {
        Ok(rustix::fs::setxattr(proc_path.as_str(), name, value, XattrFlags::empty())?)
    };
    set_xattrs(export, stat.id, path, |name| !name.starts_with(ACL), &set);
    // A symlink has no mode.
    if stat.kind != FileKind::Symlink
        && let Err(error) = chmod(proc_path.as_str(), mode(export, stat))
    {
        export.report.not_preserved(NotPreserved::Mode, path, &error.into());
    }
    set_xattrs(export, stat.id, path, |name| name.starts_with(ACL), &set);
    let here = rustix::fs::CWD;
    if let Err(error) = utimensat(here, proc_path.as_str(), &times(stat), AtFlags::empty()) {
        export.report.not_preserved(NotPreserved::Times, path, &error.into());
    }
}

/// Sets one extended attribute, by name and value.
type SetXattr<'a> = dyn Fn(&[u8], &[u8]) -> io::Result<()> + 'a;

fn set_owner(
    export: &Export,
    stat: &Stat,
    path: &WalkPath,
    give: impl FnOnce(Option<Uid>, Option<Gid>) -> io::Result<()>,
) {
    if !export.preserve.owners {
        return;
    }
    // chown(2) takes u32::MAX as "unchanged".
    let uid = (stat.uid != u32::MAX).then(|| Uid::from_raw(stat.uid));
    let gid = (stat.gid != u32::MAX).then(|| Gid::from_raw(stat.gid));
    if let Err(error) = give(uid, gid) {
        export.report.not_preserved(NotPreserved::Owner, path, &error);
    }
}

fn set_xattrs(
    export: &Export,
    id: FileId,
    path: &WalkPath,
    wanted: impl Fn(&[u8]) -> bool,
    set: &SetXattr<'_>,
) {
    each_xattr(export, id, path, wanted, &mut |name, value| match set(name, value) {
        Err(_) if is_property(name) => {}
        Err(error) => {
            export.report.not_preserved(NotPreserved::Xattr(namespace(name)), path, &error);
        }
        Ok(()) => {}
    });
}

/// Calls `each` with the names and values of the extended attributes that are exported.
pub(super) fn each_xattr(
    export: &Export,
    id: FileId,
    path: &WalkPath,
    wanted: impl Fn(&[u8]) -> bool,
    each: &mut dyn FnMut(&[u8], &[u8]),
) {
    if !export.preserve.xattrs {
        return;
    }
    let names = match export.filesystem.xattr_names(id) {
        Ok(names) => names,
        Err(error) => return export.report.unreadable(path, &error),
    };
    for name in names.iter().filter(|name| wanted(name)) {
        if !export.preserve.owners && grants_privileges(name) {
            export.report.skipped(NotPreserved::Xattr(namespace(name)), path, export.preserve);
            continue;
        }
        match export.filesystem.xattr(id, name) {
            Ok(value) => each(name, &value),
            Err(error) => export.report.unreadable(path, &error),
        }
    }
}

/// Whether an attribute is a property of btrfs.
pub(super) fn is_property(name: &[u8]) -> bool {
    name.starts_with(PROPERTY)
}

/// Returns whether an attribute grants privileges that the owner of the file cannot grant.
fn grants_privileges(name: &[u8]) -> bool {
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

fn mode(export: &Export, stat: &Stat) -> Mode {
    Mode::from_raw_mode(mode_bits(export, stat))
}

/// Returns the mode of the copy. Without owners, a file keeps no set-ID bits: they would grant the
/// privileges of the new owner.
pub(super) fn mode_bits(export: &Export, stat: &Stat) -> u32 {
    let strips = stat.kind == FileKind::File && !export.preserve.owners;
    stat.mode & if strips { 0o1777 } else { 0o7777 }
}

fn times(stat: &Stat) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: spec(stat.atime), last_modification: spec(stat.mtime) }
}
