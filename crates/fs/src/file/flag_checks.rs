//! What the flags of an inode, and of its subvolume, allow through an open file.
//!
//! Laws:
//!
//! 1. A handle checks the flags at every change, unless they were checked when it was opened, as
//!    the kernel does it ([`File::checked_at_open`]).
//! 2. A handle that was opened to append to an append-only file changes nothing below the end of
//!    the file, by whatever call ([`File::only_appending`]). The kernel keeps that flag in its
//!    inode; in front of FUSE the kernel's inode does not have it, and `fcntl`, a mapping and
//!    `copy_file_range` get past `O_APPEND`. Such a change is refused before the file loses its
//!    privileges.
//! 3. While fs-verity is being enabled on a file, every change of its bytes or size fails with
//!    `ETXTBSY`, through whatever handle.
//! 4. No handle allocates space in an immutable file or copies bytes into it, whenever it was
//!    opened: in the kernel too, those calls check the flag themselves.

use crate::file::Checks;
use crate::inode::table::InodeEntry;
use crate::{Error, File, FileId, Filesystem, Result};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::root::RootFlags;
use butternut_format::units::{TreeId, length};

const BELOW_END: Error = Error::NotPermitted { what: "the file is append-only" };

impl File {
    /// As [`FileExt::checked_at_open`](crate::server::FileExt::checked_at_open).
    #[must_use]
    pub(crate) fn checked_at_open(mut self) -> Self {
        self.checks = Checks::AtOpen;
        self
    }

    /// As [`FileExt::only_appending`](crate::server::FileExt::only_appending).
    #[must_use]
    pub(crate) fn only_appending(mut self) -> Self {
        self.checks = Checks::AtOpenToAppend;
        self
    }

    /// As [`FileExt::unchanged_below_end`](crate::server::FileExt::unchanged_below_end).
    pub(crate) fn unchanged_below_end(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let below = self.len().saturating_sub(offset).min(length(bytes.len()));
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
        Filesystem::may_change_content(inode)?;
        self.pin()?.entry().may_change_content()?;
        match self.checks {
            Checks::EachTime => Filesystem::may_write(inode),
            Checks::AtOpen | Checks::AtOpenToAppend => Ok(()),
        }
    }

    /// Refuses a change at `offset` before anything is changed (law 2). The check is repeated when
    /// the file is locked.
    pub(crate) fn may_begin_at(&self, offset: Option<u64>) -> Result<()> {
        let is_below = offset.is_some_and(|offset| offset < self.len());
        if self.checks == Checks::AtOpenToAppend && is_below { Err(BELOW_END) } else { Ok(()) }
    }

    /// Checks that bytes at `offset` may be written to a file of `end` bytes; `None` is its end.
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

impl InodeEntry {
    /// Fails while fs-verity is being enabled on the file (law 3). The caller holds the inode lock.
    pub(crate) fn may_change_content(&self) -> Result<()> {
        if self.is_being_sealed() { Err(Error::BeingSealed) } else { Ok(()) }
    }
}

impl Filesystem {
    /// As [`FilesystemExt::check_writable`](crate::server::FilesystemExt::check_writable).
    pub(crate) fn check_writable(&self, id: FileId) -> Result<()> {
        let write_state = self.may_begin()?;
        if write_state.cached_subvolume(id).is_some() {
            return Ok(());
        }
        let root = self.forest().root_item(TreeId(id.subvolume))?.ok_or(Error::Stale { id })?.1;
        if root.flags().contains(RootFlags::READ_ONLY) {
            return Err(Error::ReadOnly { what: "the subvolume" });
        }
        Ok(())
    }

    /// Fails for a file that fs-verity has sealed. No handle is exempt: the kernel seals a file
    /// only while no handle on it is open for writing.
    pub(crate) fn may_change_content(inode: &Inode) -> Result<()> {
        if inode.flags.contains(InodeFlags::VERITY) {
            return Err(Error::NotPermitted { what: "the file is sealed by fs-verity" });
        }
        Ok(())
    }

    /// Checks that the flags of a file allow any change of its bytes.
    pub(crate) fn may_write(inode: &Inode) -> Result<()> {
        if inode.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted { what: "the file is immutable" });
        }
        Ok(())
    }
}
