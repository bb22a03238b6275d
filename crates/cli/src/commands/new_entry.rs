//! New entries of a directory that other users may change: the destination of an export, or of a
//! stream.
//!
//! 1. A user that may rename the entries of the directory can put another file in the place of a
//!    new one before it is opened by its name. What was opened is checked: it belongs to the
//!    caller, a directory is empty, and any other file has the kind of the new one and no second
//!    name. So the caller gives no file of another user an owner or a mode.
//! 2. Another empty directory of the caller passes that check. So no other user may enter it any
//!    more when it is found empty. One that is not empty is left as it is.
//! 3. A new entry keeps no access list that it has inherited from the directory: its mode would
//!    give the users of that list access later. What is made in a new directory inherits none.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fchmod, fgetxattr, fremovexattr, fstat, getxattr,
    mkdirat, openat, removexattr, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The access lists of a file, and of a directory for what is made in it.
pub(super) const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Makes a directory that only its owner can enter, and opens it. It keeps those of the bits
/// `inherited` that it has inherited.
///
/// # Errors
/// Fails if the name exists, or another directory has replaced the new one (law 1).
pub(super) fn make_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
    inherited: Mode,
) -> io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    open_directory(parent, name, inherited)
}

/// Opens the directory that was just made under a name.
fn open_directory(parent: BorrowedFd<'_>, name: &[u8], inherited: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    let replaced = || io::Error::other("another directory has replaced the new one");
    let found = fstat(&dir)?;
    if !is_own(&found, parent)? || !is_empty(&dir)? {
        return Err(replaced());
    }
    // The lists first: a removed one leaves its permissions in the mode.
    remove_acls(&dir)?;
    let inherited = Mode::from_raw_mode(found.st_mode) & inherited;
    match fchmod(&dir, Mode::RWXU | inherited) {
        // All files of such a filesystem have one owner, or one mode: no directory is private.
        Err(Errno::PERM) if found.st_uid != geteuid().as_raw() => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        changed => changed?,
    }
    // Again: another user may have made an entry before.
    if is_empty(&dir)? { Ok(dir) } else { Err(replaced()) }
}

/// Opens the symlink, device, FIFO or socket that was just made under a name, with `O_PATH`.
///
/// # Errors
/// Fails if another file has replaced the new one (law 1).
pub(super) fn open_new(parent: BorrowedFd<'_>, name: &[u8], kind: FileType) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    let found = fstat(&file)?;
    let is_kind = FileType::from_raw_mode(found.st_mode) == kind;
    if !is_kind || found.st_nlink > 1 || !is_own(&found, parent)? {
        return Err(io::Error::other("another file has replaced the new one"));
    }
    if kind != FileType::Symlink {
        // System calls on an O_PATH descriptor fail; this path refers to the same file.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let has = |name: &[u8]| getxattr(path.as_str(), name, &mut [0_u8; 0]).is_ok();
        remove_each_acl(|name| removexattr(path.as_str(), name), has)?;
    }
    Ok(file)
}

/// Removes the access lists that a new file or directory has inherited (law 3).
pub(super) fn remove_acls(file: impl AsFd) -> io::Result<()> {
    let has = |name: &[u8]| fgetxattr(&file, name, &mut [0_u8; 0]).is_ok();
    remove_each_acl(|name| fremovexattr(&file, name), has)
}

fn remove_each_acl(
    remove: impl Fn(&[u8]) -> rustix::io::Result<()>,
    has: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    for name in ACLS {
        match remove(name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL) => {}
            // Some filesystems give the file another owner, and check that first.
            Err(Errno::PERM) if !has(name) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns whether a file has the owner of the files that this process makes in a directory.
fn is_own(found: &Stat, parent: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(found.st_uid == geteuid().as_raw() || found.st_uid == owner_of_new_files(parent)?)
}

/// Returns the owner of a file that this process makes: some filesystems give all files one owner,
/// or the files of root another one.
fn owner_of_new_files(parent: BorrowedFd<'_>) -> io::Result<u32> {
    let name = format!(".butternut-{:016x}", RandomState::new().hash_one(std::process::id()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(parent, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let owner = fstat(&file).map(|found| found.st_uid);
    unlinkat(parent, name.as_str(), AtFlags::empty())?;
    Ok(owner?)
}

fn is_empty(dir: impl AsFd) -> io::Result<bool> {
    for entry in Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_directory_of_the_caller_that_others_may_change_becomes_private() {
        let scratch = tempfile::tempdir().unwrap();
        let parent = File::open(scratch.path()).unwrap();
        // As if a member of the group had renamed it over the new one.
        for (name, has_entry) in [("inbox", false), ("full", true)] {
            let inbox = scratch.path().join(name);
            fs::create_dir(&inbox).unwrap();
            fs::set_permissions(&inbox, fs::Permissions::from_mode(0o2775)).unwrap();
            if has_entry {
                fs::write(inbox.join("entry"), "").unwrap();
            }
            let opened = open_directory(parent.as_fd(), name.as_bytes(), Mode::SGID);
            assert_eq!(opened.is_err(), has_entry);
            let mode = fs::metadata(&inbox).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, if has_entry { 0o2775 } else { 0o2700 });
        }
    }

    #[test]
    fn a_file_that_replaced_a_new_one_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let parent = File::open(scratch.path()).unwrap();
        make_directory(parent.as_fd(), b"new", Mode::empty()).unwrap();
        let exists = make_directory(parent.as_fd(), b"new", Mode::empty()).unwrap_err();
        assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        symlink("nowhere", at("link")).unwrap();
        open_new(parent.as_fd(), b"link", FileType::Symlink).unwrap();
        // As if they had replaced new ones.
        let directory = |name: &[u8]| open_directory(parent.as_fd(), name, Mode::empty()).map(drop);
        let special = |name: &[u8]| open_new(parent.as_fd(), name, FileType::Symlink).map(drop);
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/file"), "").unwrap();
        symlink("new", at("to-new")).unwrap();
        fs::hard_link(at("to-new"), at("second")).unwrap();
        for found in [directory(b"full"), directory(b"to-new"), special(b"second"), special(b"new")]
        {
            found.unwrap_err();
        }
        if geteuid().is_root() {
            chown(at("new"), Some(12345), None).unwrap();
            rustix::fs::chownat(
                &parent,
                "link",
                Some(rustix::fs::Uid::from_raw(12345)),
                None,
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .unwrap();
            for found in [directory(b"new"), special(b"link")] {
                assert!(found.unwrap_err().to_string().contains("has replaced the new one"));
            }
        }
        let names = fs::read_dir(scratch.path()).unwrap().count();
        assert_eq!(names, 5, "no other file is left");
    }
}
