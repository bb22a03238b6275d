//! Directories that an export creates.
//!
//! 1. A directory is opened relative to the descriptor of its parent, and never through a symlink.
//! 2. While files are created in it, only its owner can enter it. Its mode, owner and times are set
//!    when its last reference is dropped, after everything below it.
//! 3. A directory that existed before is not changed, also if another user puts it in the place of
//!    a new one: what is made in such a directory is checked after it was opened, and inherits no
//!    access list from it ([`new_entry`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use butternut::Stat;
use rustix::fs::{FileType, Mode, OFlags, mkdirat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::new_entry;
use super::super::walk::{WalkEntry, WalkPath};
use super::attributes;
use super::shared::Export;

/// Flags that open a directory and refuse a symlink.
const OPEN: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// An open directory.
pub(super) struct OutputDirectory {
    fd: OwnedFd,
    /// The attributes still to be set; `None` for a directory that existed before.
    unfinished: Option<(Stat, WalkPath, Arc<Export>)>,
    /// Held so that a directory is finished before its parent.
    _parent: Option<Arc<OutputDirectory>>,
}

impl OutputDirectory {
    /// Wraps a directory that existed before (law 3): the parent of DEST, or DEST itself if a whole
    /// volume is copied into it.
    pub(super) fn outside(file: &File) -> io::Result<Arc<Self>> {
        let fd = file.try_clone()?.into();
        Ok(Arc::new(Self { fd, _parent: None, unfinished: None }))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// Fails if the name exists, or another directory has replaced the new one.
    pub(super) fn make(
        parent: &Arc<Self>,
        name: &[u8],
        found: &WalkEntry,
        export: &Arc<Export>,
    ) -> io::Result<Arc<Self>> {
        let fd = if parent.is_private() {
            mkdirat(parent, name, Mode::RWXU)?;
            openat(parent, name, OPEN, Mode::empty())?
        } else {
            // What is made in it has its group, if the directory has inherited that.
            new_entry::make_directory(parent.as_fd(), name, Mode::SGID)?
        };
        export.report.directory();
        let parent = Some(Arc::clone(parent));
        Ok(Arc::new(Self::unfinished(fd, parent, found, export)))
    }

    /// Opens the symlink, device, FIFO or socket that was just made under a name, with `O_PATH`.
    ///
    /// # Errors
    /// Fails if another file has replaced it.
    pub(super) fn open_new(&self, name: &[u8], kind: FileType) -> io::Result<OwnedFd> {
        if self.is_private() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return Ok(openat(self, name, flags, Mode::empty())?);
        }
        new_entry::open_new(self.as_fd(), name, kind)
    }

    /// Removes from a file that was just made what it has inherited from a directory that existed
    /// before (law 3).
    ///
    /// # Errors
    /// An access list cannot be removed.
    pub(super) fn inherit_nothing(&self, file: impl AsFd) -> io::Result<()> {
        if self.is_private() { Ok(()) } else { new_entry::remove_acls(file) }
    }

    /// Returns whether only this process changes the directory (law 2).
    fn is_private(&self) -> bool {
        self.unfinished.is_some()
    }

    fn unfinished(
        fd: OwnedFd,
        parent: Option<Arc<Self>>,
        found: &WalkEntry,
        export: &Arc<Export>,
    ) -> Self {
        let stat = export.filesystem.stat(found.id);
        let stat = stat.map_err(|error| export.report.unreadable(&found.path, &error)).ok();
        let unfinished = stat.map(|stat| (stat, found.path.clone(), Arc::clone(export)));
        Self { fd, _parent: parent, unfinished }
    }
}

impl AsFd for OutputDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        if let Some((stat, path, export)) = self.unfinished.take() {
            attributes::finish(&export, self.fd.as_fd(), &stat, &path);
        }
    }
}

/// Opens the directory at the path `names` below `top`, without following symlinks.
pub(super) fn below(top: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut at = top.try_clone_to_owned()?;
    for name in names {
        at = openat(&at, *name, OPEN, Mode::empty())?;
    }
    Ok(at)
}

/// Returns whether a name is valid for a directory entry and cannot leave the directory.
pub(super) fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Raises the limit of open files to its maximum: a copy holds one descriptor for each directory on
/// the current path and for each queued file. If this fails, the old limit applies.
pub(in super::super) fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::is_safe;

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"../x", b"a\0b"] {
            assert!(!is_safe(name), "{name:?}");
        }
        assert!(is_safe(b"...") && is_safe(b"\xff") && is_safe(b"a\nb"));
    }
}
