//! [`LossWatch`]: notices writes that the kernel had cached for a mount, and that were lost because
//! the mount could not write them, as on a full volume.
//!
//! On a FUSE mount, syncfs(2) returns when the WRITE requests are queued (Linux 6.18). One that
//! fails after that is reported by fsync(2) and close(2) of its file only. The mount counts them.

use std::fs::File;
use std::io;

use butternut_fuse::{LOST_IN_SUBVOLUME_XATTR, LOST_XATTR};

/// The number of lost writes of a mount when a command began.
pub(crate) struct LossWatch {
    /// The attribute that counts them.
    name: &'static str,
    /// `None`: the filesystem does not count them.
    before: Option<u64>,
}

impl LossWatch {
    /// Begins, at a file of the mount.
    pub(crate) fn begin(mounted: &File) -> Self {
        Self { name: LOST_XATTR, before: count(mounted, LOST_XATTR) }
    }

    /// As [`Self::begin`], for the writes to files of the subvolume of a file alone.
    pub(crate) fn begin_in_subvolume(file: &File) -> Self {
        let name = LOST_IN_SUBVOLUME_XATTR;
        Self { name, before: count(file, name) }
    }

    /// Returns whether the filesystem counts lost writes.
    pub(crate) fn is_counted(&self) -> bool {
        self.before.is_some()
    }

    /// Fails if writes were lost since the begin.
    ///
    /// # Errors
    /// Of the kind of `EIO`.
    pub(crate) fn check(&self, mounted: &File) -> io::Result<()> {
        if self.before.is_none() || self.before == count(mounted, self.name) {
            return Ok(());
        }
        Err(io::Error::other("input/output error: writes to open files were lost meanwhile"))
    }
}

fn count(mounted: &File, name: &str) -> Option<u64> {
    let mut value = [0; 20];
    let bytes = rustix::fs::fgetxattr(mounted, name, &mut value[..]).ok()?;
    std::str::from_utf8(value.get(..bytes)?).ok()?.parse().ok()
}
