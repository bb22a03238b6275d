//! Hard links: the first name of a file is copied, the others are linked to the copy.
//!
//! The export links only to files that it has created: it records device and inode number of a new
//! file, and compares them before each link. A different file under the name of the first copy is
//! not used.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use butternut::{FileId, Stat};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, linkat, openat};

use super::super::walk::{WalkEntry, WalkPath};
use super::directory::{OutputDirectory, below};
use super::report::{NotPreserved, Report};

/// Files whose remaining names are still to be linked.
#[derive(Default)]
pub(super) struct Links {
    top: Option<OwnedFd>,
    made: HashMap<FileId, FirstName>,
}

/// The first name of a file, as this export has created it.
struct FirstName {
    path: WalkPath,
    device: u64,
    inode: u64,
    names_left: u32,
}

impl Links {
    /// Sets the directory in which the walk starts.
    pub(super) fn start(&mut self, top: &OutputDirectory) -> io::Result<()> {
        self.top = Some(top.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Records the file that was created for the first name. If fstat(2) fails, it is not linked
    /// to.
    pub(super) fn remember(&mut self, found: &WalkEntry, stat: &Stat, made: impl AsFd) {
        let Ok(is) = fstat(made) else { return };
        let names_left = stat.nlink.saturating_sub(1);
        let (path, device, inode) = (found.path.clone(), is.st_dev, is.st_ino);
        self.made.insert(found.id, FirstName { path, device, inode, names_left });
    }

    /// Links `name` to the first name of the file. Returns `false` if this is the first name, or if
    /// the link failed, which has been reported; the caller then copies the file.
    pub(super) fn link(
        &mut self,
        directory: &OutputDirectory,
        name: &[u8],
        found: &WalkEntry,
        report: &Report,
    ) -> bool {
        let Some(top) = &self.top else { return false };
        let Some(first) = self.made.get_mut(&found.id) else { return false };
        let linked = first.link(top, directory, name);
        first.names_left = first.names_left.saturating_sub(1);
        if first.names_left == 0 {
            self.made.remove(&found.id);
        }
        match &linked {
            Ok(()) => report.link(),
            // The copy that follows fails with the same error, and reports it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => report.not_preserved(NotPreserved::Link, &found.path, error),
        }
        linked.is_ok()
    }
}

impl FirstName {
    fn link(&self, top: &OwnedFd, directory: &OutputDirectory, name: &[u8]) -> io::Result<()> {
        let names = self.path.names();
        let Some((last, directories)) = names.split_last() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let from = below(top.as_fd(), directories)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&from, *last, flags, Mode::empty())?;
        let is = fstat(&file)?;
        if (is.st_dev, is.st_ino) != (self.device, self.inode) {
            return Err(io::Error::other("the first copy was replaced by another file"));
        }
        // By descriptor, since the name may refer to another file by now.
        let proc_path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, proc_path.as_str(), directory, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}
