//! What the flags of an inode, and of its subvolume, let be done through an open file.
//!
//! Laws:
//!
//! 1. A handle checks the flags at every change; or they were checked when it was opened, as the
//!    kernel does it ([`File::checked_at_open`]).
//! 2. A handle that was opened to append to an append-only file changes nothing below the end of
//!    the file, by whatever call ([`File::only_appending`]). The kernel remembers that in its
//!    inode; in front of FUSE its inode does not know the flag, and `fcntl`, a mapping and
//!    `copy_file_range` lead past `O_APPEND`.
//!    What such a handle is refused is refused before the file loses its privileges.
//! 3. Space is allocated in an immutable file, and bytes are copied into it, through no handle,
//!    whenever that was opened: those calls check the flag themselves in the kernel too.

use crate::{Error, File, FileId, Filesystem, Result};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::root::RootFlags;
use butternut_format::units::{TreeId, length};

const BELOW_END: Error = Error::NotPermitted { what: "the file is append-only" };

/// When the flags of an inode are checked for a handle (law 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Checks {
    #[default]
    EachTime,
    AtOpen,
    /// At the open, which was for appending to an append-only file (law 2).
    AtOpenToAppend,
}

impl File {
    /// Returns the same handle, for a caller that checked the flags of the inode when it opened the
    /// file, as the kernel does: later changes of the flags do not concern it.
    #[must_use]
    pub fn checked_at_open(mut self) -> Self {
        self.checks = Checks::AtOpen;
        self
    }

    /// Returns the same handle, for a caller that opened an append-only file to append to it (law
    /// 2). Otherwise as [`File::checked_at_open`].
    #[must_use]
    pub fn only_appending(mut self) -> Self {
        self.checks = Checks::AtOpenToAppend;
        self
    }

    /// Compares `bytes` at `offset` with what the file holds there, up to its end, and returns how
    /// many of them are below the end. A cache in front of this library sends whole pages: those of
    /// an append-only file begin with bytes that must be as they are.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] where they differ; what reading can return.
    pub fn unchanged_below_end(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let below = self.size().saturating_sub(offset).min(length(bytes.len()));
        let below = usize::try_from(below).unwrap_or(bytes.len());
        let mut held = vec![0; below];
        let mut done = 0;
        while done < below {
            match self.read_at(offset + length(done), &mut held[done..])? {
                0 => break,
                more => done += more,
            }
        }
        if held[..done] == bytes[..done] { Ok(done) } else { Err(BELOW_END) }
    }

    pub(crate) fn may_write(&self, inode: &Inode) -> Result<()> {
        match self.checks {
            Checks::EachTime => Filesystem::may_write(inode),
            Checks::AtOpen | Checks::AtOpenToAppend => Ok(()),
        }
    }

    /// Refuses a change at `offset` before anything is done (law 2). That is checked again when the
    /// file is locked.
    pub(crate) fn may_begin_at(&self, offset: Option<u64>) -> Result<()> {
        let is_below = offset.is_some_and(|offset| offset < self.size());
        if self.checks == Checks::AtOpenToAppend && is_below { Err(BELOW_END) } else { Ok(()) }
    }

    /// Whether bytes at `offset` may be written in a file of `end` bytes; `None`: at its end.
    pub(crate) fn may_write_at(&self, inode: &Inode, end: u64, offset: Option<u64>) -> Result<()> {
        let is_append_only = inode.flags.contains(InodeFlags::APPEND);
        let is_refused = match self.checks {
            Checks::EachTime => is_append_only && offset.is_some_and(|offset| offset != end),
            Checks::AtOpen => false,
            Checks::AtOpenToAppend => offset.is_some_and(|offset| offset < end),
        };
        if is_refused { Err(BELOW_END) } else { Ok(()) }
    }
}

impl Filesystem {
    /// Checks that the filesystem and the subvolume of an inode are open for writing, before
    /// anything is written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Stale`] without such a subvolume.
    pub fn check_writable(&self, id: FileId) -> Result<()> {
        let writer = self.may_begin()?;
        if writer.known_subvolume(id).is_some() {
            return Ok(());
        }
        let root = self.forest().root_item(TreeId(id.subvolume))?.ok_or(Error::Stale { id })?.1;
        if root.flags().contains(RootFlags::READ_ONLY) {
            return Err(Error::ReadOnly { what: "the subvolume" });
        }
        Ok(())
    }

    /// Whether the flags of a file let its bytes be changed anywhere.
    pub(crate) fn may_write(inode: &Inode) -> Result<()> {
        if inode.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted { what: "the file is immutable" });
        }
        Ok(())
    }
}
