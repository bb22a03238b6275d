//! New entries of a directory that other users may change: the destination of an export, or of a
//! stream.
//!
//! 1. A user that may rename the entries of the directory can put another file in the place of a
//!    new one before it is opened by its name. What was opened is checked: it belongs to the
//!    caller, a directory is empty, and any other file has the kind of the new one and no second
//!    name. So the caller gives no file of another user an owner or a mode.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, unlinkat};
use rustix::process::geteuid;

/// Makes a directory that only its owner can enter, and opens it.
///
/// # Errors
/// Fails if the name exists, or another directory has replaced the new one (law 1).
pub(super) fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    open_directory(parent, name)
}

/// Opens the directory that was just made under a name.
fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    if !is_own(&fstat(&dir)?, parent)? || !is_empty(&dir)? {
        return Err(io::Error::other("another directory has replaced the new one"));
    }
    Ok(dir)
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
    Ok(file)
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
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_file_that_replaced_a_new_one_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let parent = File::open(scratch.path()).unwrap();
        make_directory(parent.as_fd(), b"new").unwrap();
        let exists = make_directory(parent.as_fd(), b"new").unwrap_err();
        assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        symlink("nowhere", at("link")).unwrap();
        open_new(parent.as_fd(), b"link", FileType::Symlink).unwrap();
        // As if they had replaced new ones.
        let directory = |name: &[u8]| open_directory(parent.as_fd(), name).map(drop);
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
