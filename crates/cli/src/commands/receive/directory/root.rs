//! [`Root`]: the directory of a subvolume while the stream is applied to it.
//!
//! 1. Until the end of the subvolume only the caller can enter the directory: owner, mode and
//!    access lists that the stream gives it are set at the end. Other users can replace nothing in
//!    it that a later command names.
//! 2. It inherits nothing from the directory that it is made in, so what is in it does not either.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use butternut::format::stream::Command;
use butternut::format::uuid::Uuid;
use rustix::fs::{AtFlags, Gid, Mode, Uid, XattrFlags, chownat, fchmod, fremovexattr};
use rustix::io::Errno;

use super::super::super::new_entry::{self, ACLS};
use super::Refusal;

const COMPRESSION: &[u8] = b"btrfs.compression";

/// A directory that is not complete.
pub(super) struct Root {
    pub(super) uuid: Uuid,
    pub(super) name: Vec<u8>,
    dir: OwnedFd,
    /// At most one of each kind, in the order of the stream.
    deferred: Vec<Deferred>,
}

/// A command that is applied at the end (law 1).
enum Deferred {
    Owner {
        uid: u32,
        gid: u32,
    },
    Mode(Mode),
    /// `None` removes the list.
    Acl(&'static [u8], Option<Vec<u8>>),
}

impl Root {
    /// Makes the directory in `parent`.
    pub(super) fn make(parent: BorrowedFd<'_>, name: &[u8], uuid: Uuid) -> Result<Self, Refusal> {
        let dir = new_entry::make_directory(parent, name, Mode::empty())?;
        match fremovexattr(&dir, COMPRESSION) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self { uuid, name: name.to_vec(), dir, deferred: Vec::new() })
    }

    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Keeps a command for the end, if it is about the directory itself and gives others access.
    /// Returns whether it does.
    pub(super) fn defer(&mut self, command: &Command<'_>, is_root: bool, mode: Mode) -> bool {
        if command.path() != Some(b"") {
            return false;
        }
        let list = |name: &[u8]| ACLS.into_iter().find(|list| *list == name);
        let deferred = if let Command::Chown { uid, gid, .. } = *command
            && is_root
        {
            Some(Deferred::Owner { uid, gid })
        } else if let Command::Chmod { .. } = command {
            Some(Deferred::Mode(mode))
        } else if let Command::SetXattr { name, value, .. } = *command {
            list(name).map(|name| Deferred::Acl(name, Some(value.to_vec())))
        } else if let Command::RemoveXattr { name, .. } = *command {
            list(name).map(|name| Deferred::Acl(name, None))
        } else {
            None
        };
        let Some(deferred) = deferred else { return false };
        self.deferred.retain(|other| !deferred.replaces(other));
        self.deferred.push(deferred);
        true
    }

    /// Applies what was kept for the end.
    pub(super) fn finish(&self) -> Result<(), Refusal> {
        for deferred in &self.deferred {
            match deferred {
                Deferred::Owner { uid, gid } => {
                    set_owner(self.dir(), b".", *uid, *gid)?;
                }
                Deferred::Mode(mode) => fchmod(&self.dir, *mode)?,
                Deferred::Acl(name, Some(value)) => {
                    rustix::fs::fsetxattr(&self.dir, *name, value, XattrFlags::empty())?;
                }
                Deferred::Acl(name, None) => fremovexattr(&self.dir, *name)?,
            }
        }
        Ok(())
    }
}

impl Deferred {
    fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Owner { .. }, Self::Owner { .. }) | (Self::Mode(_), Self::Mode(_)) => true,
            (Self::Acl(name, _), Self::Acl(other, _)) => name == other,
            _ => false,
        }
    }
}

/// Sets the owner of an entry of a directory, and follows no symlink.
pub(super) fn set_owner(dir: BorrowedFd<'_>, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    // chown(2) takes u32::MAX as "unchanged".
    let uid = (uid != u32::MAX).then(|| Uid::from_raw(uid));
    let gid = (gid != u32::MAX).then(|| Gid::from_raw(gid));
    Ok(chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}
