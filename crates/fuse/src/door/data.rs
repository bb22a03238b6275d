//! File data: READ and FSYNC. WRITE is in [`write`](super::write), FALLOCATE and `COPY_FILE_RANGE`
//! in [`range_changes`](super::range_changes).
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

use std::os::fd::OwnedFd;

use butternut::{File, Privileges};

use crate::connection;
use crate::connection::protocol::{FsyncIn, InHeader, READ_LOCKOWNER, TransferIn};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::lane::{Lane, O_DIRECT};
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::door::{Door, caller};
use crate::errno::ErrnoResult;
use crate::options::Caching;

/// The set-user-id and set-group-id bits of a mode.
const PRIVILEGES: u32 = 0o6000;

/// Which privileges of a file a change of its data removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillPriv {
    /// The file capabilities. The set-user-id and set-group-id bits stay.
    Capabilities,
    All,
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
