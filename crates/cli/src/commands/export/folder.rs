//! Directories that are being written into.
//!
//! 1. A directory is reached through the open directory above it, and never through a symlink.
//! 2. While files are made in it, only its owner may enter; it gets its mode, owner and times when
//!    the last reference goes, after everything in it and below it.
//! 3. A directory that was there before stays as it was.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use butternut::Stat;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::walk::{Found, WalkPath};
use super::{Export, attributes};

/// How a directory is opened: itself, not what a symlink points at.
const OPEN: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// An open directory.
pub(super) struct Folder {
    fd: OwnedFd,
    /// What it still has to get; the one outside the export gets nothing.
    unfinished: Option<(Stat, WalkPath, Arc<Export>)>,
    /// Kept so that a directory is finished before the one it is in.
    _above: Option<Arc<Folder>>,
}

impl Folder {
    /// A directory that is not the export's: the one that DEST is in, or DEST itself where a whole
    /// volume is copied into a directory that exists (law 3).
    pub(super) fn outside(file: &File) -> io::Result<Arc<Self>> {
        let fd = file.try_clone()?.into();
        Ok(Arc::new(Self { fd, _above: None, unfinished: None }))
    }

    /// Makes a directory that must not exist yet.
    pub(super) fn make(
        above: &Arc<Self>,
        name: &[u8],
        found: &Found,
        export: &Arc<Export>,
    ) -> io::Result<Arc<Self>> {
        mkdirat(above, name, Mode::RWXU)?;
        let fd = openat(above, name, OPEN, Mode::empty())?;
        export.report.directory();
        let above = Some(Arc::clone(above));
        Ok(Arc::new(Self::unfinished(fd, above, found, export)))
    }

    fn unfinished(
        fd: OwnedFd,
        above: Option<Arc<Self>>,
        found: &Found,
        export: &Arc<Export>,
    ) -> Self {
        let stat = export.filesystem.stat(found.id);
        let stat = stat.map_err(|error| export.report.unreadable(&found.path, &error)).ok();
        let unfinished = stat.map(|stat| (stat, found.path.clone(), Arc::clone(export)));
        Self { fd, _above: above, unfinished }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some((stat, path, export)) = self.unfinished.take() {
            attributes::finish(&export, self.fd.as_fd(), &stat, &path);
        }
    }
}

/// Opens the directory that `names` lead to from `top`, without following a symlink.
pub(super) fn below(top: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut at = top.try_clone_to_owned()?;
    for name in names {
        at = openat(&at, *name, OPEN, Mode::empty())?;
    }
    Ok(at)
}

/// Whether a name can stand in a directory without leading out of it.
pub(super) fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// One descriptor is open per directory on the way and per waiting file: takes all that are to be
/// had. Where that fails the old limit stands, and a copy that passes it says so.
pub(in super::super) fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::is_safe;

    #[test]
    fn names_that_lead_out_of_a_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"../x", b"a\0b"] {
            assert!(!is_safe(name), "{name:?}");
        }
        assert!(is_safe(b"...") && is_safe(b"\xff") && is_safe(b"a\nb"));
    }
}
