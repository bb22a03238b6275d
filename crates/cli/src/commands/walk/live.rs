//! [`LiveWalk`]: the files and directories below a directory of a mounted filesystem.
//!
//! 1. Files and directories are opened without following symbolic links and without waiting, and
//!    nothing else is opened: a directory that another user changes meanwhile leads to no device,
//!    no FIFO and nowhere else.
//! 2. What is mounted below the directory is not opened, as it may belong to another user, or to a
//!    server that does not answer.
//! 3. Each directory that is being visited holds a descriptor, and at most [`DEPTH_MAX`] are.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, openat2, statx,
};
use rustix::io::Errno;

use super::WalkPath;

/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 500;

/// How files and directories are opened (law 1).
pub(crate) const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// How names below a directory are resolved (laws 1 and 2).
pub(crate) const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A walk that enters the directories which its caller passes to [`LiveWalk::enter`].
#[derive(Default)]
pub(crate) struct LiveWalk {
    levels: Vec<Level>,
}

/// A directory whose entries are being visited.
struct Level {
    dir: OwnedFd,
    path: WalkPath,
    entries: std::vec::IntoIter<(Vec<u8>, FileType)>,
}

impl LiveWalk {
    /// Visits the entries of a directory next.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for too many nested directories; errors of reading the directory.
    pub(crate) fn enter(&mut self, dir: OwnedFd, path: &WalkPath) -> Result<(), Errno> {
        if self.levels.len() >= DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let entries = entries(&dir)?.into_iter();
        self.levels.push(Level { dir, path: path.clone(), entries });
        Ok(())
    }
}

impl Iterator for LiveWalk {
    /// The path of a file or directory, and what it was when it was opened.
    type Item = (WalkPath, Result<(FileType, OwnedFd), Errno>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let level = self.levels.last_mut()?;
            let Some((name, kind)) = level.entries.next() else {
                self.levels.pop();
                continue;
            };
            let kind = if kind == FileType::Unknown { kind_at(&level.dir, &name) } else { kind };
            if !matches!(kind, FileType::Directory | FileType::RegularFile) {
                continue;
            }
            let opened = openat2(&level.dir, OsStr::from_bytes(&name), OPEN, Mode::empty(), BELOW);
            match opened.and_then(|fd| Ok((kind_of(&fd)?, fd))) {
                // Law 2.
                Err(Errno::XDEV) => {}
                found => return Some((level.path.child(name), found)),
            }
        }
    }
}

/// Returns the kind of an open file.
pub(crate) fn kind_of(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

/// Returns the kind of an entry whose directory does not tell it.
fn kind_at(dir: &OwnedFd, name: &[u8]) -> FileType {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(dir, OsStr::from_bytes(name), flags, StatxFlags::TYPE);
    found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.stx_mode.into()))
}

fn entries(dir: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let mut all = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            all.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(all)
}
