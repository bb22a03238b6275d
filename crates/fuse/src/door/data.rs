//! A file's bytes: read, moved, preallocated, synced. WRITE is in [`write`](super::write).
//!
//! 1. The kernel caches what is written, and sends it when it likes. What it sends from its cache
//!    was allowed when the program wrote it.
//! 2. The times of a file that the kernel caches are the kernel's, which sends them when it likes:
//!    nothing here sets them.
//! 3. A write from the cache, or with `O_DIRECT`, succeeds whole or not at all (`lane`).
//! 4. Whatever else changes a file's bytes takes its privileges away, as the kernel's own
//!    filesystems do. The kernel sees to that itself where it can: where it cannot, it says so in
//!    the request, or whoever is not root counts as someone who may not keep them.

use std::os::fd::OwnedFd;

use butternut::{Allocate, File, Privileges};

use crate::caller;
use crate::connection;
use crate::door::Door;
use crate::door::lane::{Lane, O_DIRECT};
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::options::Caching;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{
    CopyFileRangeIn, CopyFileRangeOut, FallocateIn, FsyncIn, InHeader, READ_LOCKOWNER, TransferIn,
    WriteOut, op,
};

/// What `fallocate` may be asked for, together.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Bytes that one request copies; the kernel asks for the rest with another.
const COPY_BYTES_MAX: u64 = 32 << 20;

/// The bits of a mode that are privileges.
const PRIVILEGES: u32 = 0o6000;

/// What someone who changes a file's bytes may keep of its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Set-user-id and set-group-id.
    Mode,
    Nothing,
}

impl Keeps {
    /// Where the request does not say (law 4).
    fn of_caller(request: &Request<'_>) -> Self {
        if request.header.uid == 0 { Self::Mode } else { Self::Nothing }
    }
}

impl Door {
    pub(super) fn lane(&self, flags: u32) -> Lane {
        if flags & O_DIRECT != 0 {
            Lane::Direct
        } else if self.manner.caching == Caching::Nothing {
            Lane::Uncached
        } else {
            Lane::Kernel
        }
    }

    pub(super) fn read(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let read: TransferIn = request.take()?;
        let open = self.find(request, read.fh)?;
        if read.transfer_flags & READ_LOCKOWNER == 0 {
            open.fills.begin_fill(read.range());
        }
        let lane = self.lane(read.flags);
        let bytes = usize::try_from(read.size.min(TRANSFER_BYTES_MAX)).unwrap_or(0);
        let filled = lane.read(&open.file, read.offset, reply.room(bytes))?;
        reply.filled(filled);
        Ok(())
    }

    pub(super) fn sync(&self, request: &mut Request<'_>) -> Answer<()> {
        let sync: FsyncIn = request.take()?;
        Ok(self.file(request, sync.fh)?.sync_all()?)
    }

    pub(super) fn allocate(&self, request: &mut Request<'_>) -> Answer<()> {
        const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let asked: FallocateIn = request.take()?;
        let how = match asked.mode {
            0 => Allocate::Extend,
            KEEP_SIZE => Allocate::KeepSize,
            PUNCH => Allocate::PunchHole,
            ZERO_RANGE => Allocate::Zero,
            ZERO_KEEP => Allocate::ZeroKeepSize,
            _ => return Err(Refusal::UNSUPPORTED),
        };
        let end = asked.offset.checked_add(asked.length).ok_or(Refusal::INVALID)?;
        let file = self.file(request, asked.fh)?;
        let of = (request.header.nodeid, &file);
        let keeps = Keeps::of_caller(request);
        stripping(&request.header, request.device, of, keeps, |privileges| {
            Ok(file.allocate_as(asked.offset..end, how, privileges)?)
        })
    }

    pub(super) fn copy_range(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let copy: CopyFileRangeIn = request.take()?;
        let (from, to) = (self.file(request, copy.fh_in)?, self.handles.find(copy.fh_out)?.file);
        let end = copy.off_in.saturating_add(copy.len.min(COPY_BYTES_MAX));
        let (of, keeps) = ((copy.nodeid_out, &to), Keeps::of_caller(request));
        let bytes_copied = stripping(&request.header, request.device, of, keeps, |privileges| {
            Ok(to.copy_range_as(copy.off_out, &from, copy.off_in..end, privileges)?)
        })?;
        if request.header.opcode == op::COPY_FILE_RANGE_64 {
            return reply.put(&CopyFileRangeOut { bytes_copied });
        }
        reply.put(&WriteOut { size: u32::try_from(bytes_copied).unwrap_or(0), padding: 0 })
    }
}

/// Makes a change that costs a file its privileges; the kernel hears of it if it had any.
pub(super) fn stripping<T>(
    caller: &InHeader,
    device: &OwnedFd,
    (node, file): (u64, &File),
    keeps: Keeps,
    change: impl FnOnce(Privileges) -> Answer<T>,
) -> Answer<T> {
    let stat = file.stat()?;
    let changed = change(match keeps {
        Keeps::Mode => Privileges::StripCapabilities,
        Keeps::Nothing => caller::privileges(caller, &stat),
    });
    if stat.mode & PRIVILEGES != 0 {
        connection::invalidate_attributes(device, node);
    }
    changed
}
