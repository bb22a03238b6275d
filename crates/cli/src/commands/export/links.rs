//! Hard links: the first name of a file is copied, the others are linked to it.
//!
//! A file is linked to only if this export made it: its device and inode number are kept from when
//! it was made, and compared before each link. What else stands under the name of the first copy
//! is not touched.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use butternut::{FileId, Stat};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, linkat, openat};

use super::super::walk::{Found, WalkPath};
use super::folder::{Folder, below};
use super::report::{Lost, Report};

/// Files of which more names are expected.
#[derive(Default)]
pub(super) struct Links {
    top: Option<OwnedFd>,
    made: HashMap<FileId, First>,
}

/// A file's first name, as this export made it.
struct First {
    path: WalkPath,
    device: u64,
    inode: u64,
    names_left: u32,
}

impl Links {
    /// `top` is the directory in which the walk starts.
    pub(super) fn start(&mut self, top: &Folder) -> io::Result<()> {
        self.top = Some(top.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Keeps which file was made for the first name. One that cannot be looked at is not linked to.
    pub(super) fn remember(&mut self, found: &Found, stat: &Stat, made: impl AsFd) {
        let Ok(is) = fstat(made) else { return };
        let names_left = stat.nlink.saturating_sub(1);
        let (path, device, inode) = (found.path.clone(), is.st_dev, is.st_ino);
        self.made.insert(found.id, First { path, device, inode, names_left });
    }

    /// Links `name` to the file's first name. False where this is the first, which the caller
    /// copies, or where the link cannot be made, which is said and then copied too.
    pub(super) fn link(
        &mut self,
        folder: &Folder,
        name: &[u8],
        found: &Found,
        report: &Report,
    ) -> bool {
        let Some(top) = &self.top else { return false };
        let Some(first) = self.made.get_mut(&found.id) else { return false };
        let linked = first.link(top, folder, name);
        first.names_left = first.names_left.saturating_sub(1);
        if first.names_left == 0 {
            self.made.remove(&found.id);
        }
        match &linked {
            Ok(()) => report.link(),
            // The copy that follows finds the same, and says it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => report.lost(Lost::Link, &found.path, error),
        }
        linked.is_ok()
    }
}

impl First {
    fn link(&self, top: &OwnedFd, folder: &Folder, name: &[u8]) -> io::Result<()> {
        let names = self.path.names();
        let Some((last, folders)) = names.split_last() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let from = below(top.as_fd(), folders)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&from, *last, flags, Mode::empty())?;
        let is = fstat(&file)?;
        if (is.st_dev, is.st_ino) != (self.device, self.inode) {
            return Err(io::Error::other("another file has taken the place of the first copy"));
        }
        // The descriptor, not the name, which may lead elsewhere by now.
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, place.as_str(), folder, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}
