//! File data: READ, FALLOCATE, `COPY_FILE_RANGE` and FSYNC. WRITE is in [`write`](super::write).
//!
//! 1. With write-back caching the kernel sends a write at any later time. A write from its cache
//!    was permitted when the program made it.
//! 2. With write-back caching the kernel also keeps the times of a file, and sends them at any
//!    later time. The calls here do not set them.
//! 3. A write from the cache, or with `O_DIRECT`, is written completely or fails (`lane`).
//! 4. Every other change of file data removes the set-user-id and set-group-id bits and the file
//!    capabilities, as filesystems of the kernel do. The kernel does that itself where it can.
//!    Otherwise it sets a flag in the request, or the request does not say; then a call of root
//!    removes only the capabilities, and a call of any other user removes all.
//! 5. A copy is durable before the reply where either file was opened with `O_SYNC` or `O_DSYNC`,
//!    or the mount is synchronous, as in kernel btrfs. The kernel syncs after a write, and not
//!    after a copy.

use std::os::fd::OwnedFd;

use butternut::{Allocate, File, Privileges};

use crate::connection;
use crate::connection::protocol::{
    CopyFileRangeIn, CopyFileRangeOut, FallocateIn, FsyncIn, InHeader, READ_LOCKOWNER, TransferIn,
    WriteOut, op,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::lane::{Lane, O_DIRECT};
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::door::{Door, caller};
use crate::errno::{Errno, ErrnoResult};
use crate::options::Caching;

/// Flags of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Maximum number of bytes that one request copies. The kernel sends another request for the rest.
const COPY_BYTES_MAX: u64 = 32 << 20;

/// The set-user-id and set-group-id bits of a mode.
const PRIVILEGES: u32 = 0o6000;

/// Which privileges of a file a change of its data removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillPriv {
    /// The file capabilities. The set-user-id and set-group-id bits stay.
    Capabilities,
    All,
}

impl KillPriv {
    /// The privileges to remove where the request does not say (law 4).
    fn of_caller(request: &Request<'_>) -> Self {
        if request.header.uid == 0 { Self::Capabilities } else { Self::All }
    }
}

impl Door {
    pub(super) fn lane(&self, flags: u32) -> Lane {
        if flags & O_DIRECT != 0 {
            Lane::Direct
        } else if self.options.caching == Caching::Nothing {
            Lane::Uncached
        } else {
            Lane::KernelCached
        }
    }

    pub(super) fn read(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let read: TransferIn = request.take()?;
        let open = self.find(request, read.fh)?;
        if read.transfer_flags & READ_LOCKOWNER == 0 {
            open.fills.begin_fill(read.range());
        }
        let lane = self.lane(read.flags);
        let bytes = usize::try_from(read.size.min(TRANSFER_BYTES_MAX)).unwrap_or(0);
        let filled = lane.read(&open.file, read.offset, reply.spare(bytes))?;
        reply.advance(filled);
        Ok(())
    }

    pub(super) fn sync(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        let sync: FsyncIn = request.take()?;
        Ok(self.file(request, sync.fh)?.sync_all()?)
    }

    pub(super) fn allocate(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let fallocate: FallocateIn = request.take()?;
        let how = match fallocate.mode {
            0 => Allocate::Extend,
            KEEP_SIZE => Allocate::KeepSize,
            PUNCH => Allocate::PunchHole,
            ZERO_RANGE => Allocate::Zero,
            ZERO_KEEP => Allocate::ZeroKeepSize,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let end = fallocate.offset.checked_add(fallocate.length).ok_or(Errno::EINVAL)?;
        let file = self.file(request, fallocate.fh)?;
        let of = (request.header.nodeid, &file);
        let kill = KillPriv::of_caller(request);
        killing_privileges(&request.header, request.device, of, kill, |privileges| {
            Ok(file.allocate_as(fallocate.offset..end, how, privileges)?)
        })
    }

    pub(super) fn copy_range(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let copy: CopyFileRangeIn = request.take()?;
        let (from, to) = (self.find(request, copy.fh_in)?, self.handles.get(copy.fh_out)?);
        let end = copy.off_in.saturating_add(copy.len.min(COPY_BYTES_MAX));
        let (of, kill) = ((copy.nodeid_out, &to.file), KillPriv::of_caller(request));
        let bytes_copied =
            killing_privileges(&request.header, request.device, of, kill, |privileges| {
                Ok(to.file.copy_range_as(copy.off_out, &from.file, copy.off_in..end, privileges)?)
            })?;
        let is_synchronous = from.is_synchronous || to.is_synchronous;
        if bytes_copied > 0 && (is_synchronous || self.options.is_synchronous.is_set()) {
            to.file.sync_all()?;
        }
        if request.header.opcode == op::COPY_FILE_RANGE_64 {
            return reply.push(&CopyFileRangeOut { bytes_copied });
        }
        reply.push(&WriteOut { size: u32::try_from(bytes_copied).unwrap_or(0), padding: 0 })
    }
}

/// Runs a change that removes privileges of a file. Where the mode may have changed, makes the
/// kernel fetch the attributes again.
pub(super) fn killing_privileges<T>(
    caller: &InHeader,
    device: &OwnedFd,
    (node, file): (u64, &File),
    kill: KillPriv,
    change: impl FnOnce(Privileges) -> ErrnoResult<T>,
) -> ErrnoResult<T> {
    let stat = file.metadata()?;
    let changed = change(match kill {
        KillPriv::Capabilities => Privileges::StripCapabilities,
        KillPriv::All => caller::privileges(caller, &stat),
    });
    if stat.mode & PRIVILEGES != 0 {
        connection::invalidate_attributes(device, node);
    }
    changed
}
