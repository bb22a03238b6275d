//! FALLOCATE and `COPY_FILE_RANGE`: changes of a range of a file that the kernel makes without its
//! page cache.
//!
//! Before such a request, the kernel writes back the pages of the range, and holds the inode lock,
//! which excludes write(2). It does not exclude stores to mappings: a page that a store dirties
//! after the writeback has the old bytes beside the store, and may be sent at any time, also after
//! the change was applied.
//!
//! 1. A punched, zeroed or copied range is applied as a write that bypasses the cache: only while
//!    the cache holds none of its pages ([`fills`](crate::handles::fills)). Where it may hold some,
//!    the kernel drops them first, and a thread of its own waits for that. No write(2) is in
//!    flight, so that is allowed on every mount.
//! 2. Where readers fill the pages again and again, the change is applied in parts ([`Parts`]).
//!    Where too many requests wait already, or there is no thread, it is applied at once.
//! 3. A copy is durable before the reply where either file was opened with `O_SYNC` or `O_DSYNC`,
//!    or the mount is synchronous, as in kernel btrfs. The kernel syncs after a write, and not
//!    after a copy.
//! 4. The kernel changes the size that it caches when a request has succeeded. So a range that is
//!    zeroed in parts makes the file longer with its last part, and its holes are preallocated
//!    before the first one: there it finds out whether there is space. After an error the kernel
//!    fetches the attributes again, since some parts may have been applied.
//!
//! A store to the part of a page that a copy does not replace may be lost, if it is made during the
//! call: the kernel drops whole pages after a copy. Programs that store to a mapping beside a copy
//! order both by themselves.

use std::ops::Range;
use std::sync::{Arc, mpsc};

use butternut::Allocate;

use crate::connection;
use crate::connection::protocol::{
    CopyFileRangeIn, CopyFileRangeOut, FallocateIn, InHeader, WriteOut, op,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::data::{KillPriv, killing_privileges};
use crate::door::deferred::ThreadSlot;
use crate::door::parts::Parts;
use crate::door::write::INVALIDATIONS_MAX;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};
use crate::handles::OpenFile;
use crate::handles::fills::Fills;

/// Flags of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Maximum number of bytes that one request copies. The kernel sends another request for the rest.
const COPY_BYTES_MAX: u64 = 32 << 20;

/// A file whose range changes, as the kernel names it.
struct Target {
    node: u64,
    open: OpenFile,
    range: Range<u64>,
    /// Whether a call that changes less than the range succeeds, as a short copy.
    may_be_short: bool,
}

/// Changes a part of the range, and returns how many bytes of it were changed.
trait Change: Fn(&Target, Range<u64>) -> ErrnoResult<u64> + Send + 'static {}

impl<C: Fn(&Target, Range<u64>) -> ErrnoResult<u64> + Send + 'static> Change for C {}

/// Makes so many changed bytes durable where they must be, and puts them into the reply.
trait Finish: FnOnce(&Target, u64, &mut Reply) -> ErrnoResult<()> + Send + 'static {}

impl<F: FnOnce(&Target, u64, &mut Reply) -> ErrnoResult<()> + Send + 'static> Finish for F {}

impl Door {
    pub(super) fn allocate(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
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
        let (node, open) = (request.header.nodeid, self.find(request, fallocate.fh)?);
        let range = fallocate.offset..end;
        let target = Target { node, open, range, may_be_short: false };
        let (caller, device) = (request.header, Arc::clone(request.device));
        let kill = of_caller(&caller);
        let changes_data = !matches!(how, Allocate::Extend | Allocate::KeepSize);
        let allocate = move |target: &Target, part: Range<u64>| {
            let (of, whole) = ((target.node, &target.open.file), &target.range);
            let apply = |range: Range<u64>, how| {
                killing_privileges(&caller, &device, of, kill, |privileges| {
                    Ok(of.1.allocate_as(range, how, privileges)?)
                })
            };
            let bytes = part.end - part.start;
            if part == *whole || !matches!(how, Allocate::Zero | Allocate::ZeroKeepSize) {
                return apply(part, how).map(|()| bytes);
            }
            // Law 4.
            if part.start == whole.start {
                apply(whole.clone(), Allocate::KeepSize)?;
            }
            apply(part.clone(), Allocate::ZeroKeepSize)?;
            if part.end == whole.end && how == Allocate::Zero {
                apply(part, Allocate::Extend)?;
            }
            Ok(bytes)
        };
        let finish = |_: &Target, _: u64, _: &mut Reply| Ok(());
        if !changes_data {
            allocate(&target, target.range.clone())?;
            return Ok(Outcome::Reply);
        }
        self.change_range(request, target, 0, reply, (allocate, finish))
    }

    pub(super) fn copy_range(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let copy: CopyFileRangeIn = request.take()?;
        let (from, to) = (self.find(request, copy.fh_in)?, self.handles.get(copy.fh_out)?);
        let bytes = copy.len.min(COPY_BYTES_MAX);
        let range = copy.off_out..copy.off_out.saturating_add(bytes);
        let target = Target { node: copy.nodeid_out, open: to, range, may_be_short: true };
        let (caller, device) = (request.header, Arc::clone(request.device));
        let kill = of_caller(&caller);
        let is_mount_synchronous = self.options.is_synchronous.clone();
        let is_synchronous = from.is_synchronous || target.open.is_synchronous;
        let copy_part = move |target: &Target, part: Range<u64>| {
            let at = copy.off_in.saturating_add(part.start - copy.off_out);
            let source = at..at.saturating_add(part.end - part.start);
            let to = &target.open.file;
            killing_privileges(&caller, &device, (target.node, to), kill, |privileges| {
                Ok(to.copy_range_as(part.start, &from.file, source, privileges)?)
            })
        };
        let finish = move |target: &Target, bytes_copied: u64, reply: &mut Reply| {
            if bytes_copied > 0 && (is_synchronous || is_mount_synchronous.is_set()) {
                target.open.file.sync_all()?;
            }
            if caller.opcode == op::COPY_FILE_RANGE_64 {
                return reply.push(&CopyFileRangeOut { bytes_copied });
            }
            let size = u32::try_from(bytes_copied).unwrap_or(0);
            reply.push(&WriteOut { size, padding: 0 })
        };
        let reply_bytes = size_of::<CopyFileRangeOut>();
        self.change_range(request, target, reply_bytes, reply, (copy_part, finish))
    }

    /// Applies a change of file data that the kernel makes without its page cache, while the cache
    /// holds none of its pages (law 1). A reply that is deferred has at most `bytes` bytes.
    fn change_range<C: Change, F: Finish>(
        &self,
        request: &Request<'_>,
        target: Target,
        bytes: usize,
        reply: &mut Reply,
        (change, finish): (C, F),
    ) -> ErrnoResult<Outcome> {
        let fills = Arc::clone(&target.open.fills);
        let stale = match fills.begin_change(target.range.clone()) {
            Ok(applying) => {
                let done = change(&target, target.range.clone())?;
                drop(applying);
                return finish(&target, done, reply).map(|()| Outcome::Reply);
            }
            Err(stale) => stale,
        };
        let slot = ThreadSlot::begin(&self.invalidating_writes, INVALIDATIONS_MAX);
        if let Some(slot) = slot {
            let device = Arc::clone(request.device);
            let (sender, receiver) = mpsc::channel::<(Target, C, F)>();
            let deferred = self.reply_deferred(request, bytes, move |reply| {
                let (target, change, finish) = receiver.recv().map_err(|_| Errno::EIO)?;
                let parts = Parts {
                    fills: &fills,
                    device: &device,
                    node: target.node,
                    range: target.range.clone(),
                    may_be_short: target.may_be_short,
                };
                let apply = |part| change(&target, part);
                let done = parts.apply_after(stale, Fills::begin_change, apply);
                // The sync may take long, and others may wait for a slot.
                drop(slot);
                let finished = done.and_then(|done| finish(&target, done, reply));
                // Law 4.
                finished.inspect_err(|_| connection::invalidate_attributes(&device, target.node))
            });
            if deferred.is_ok() {
                let sent = sender.send((target, change, finish));
                return sent.map_or(Err(Errno::EIO), |()| deferred);
            }
        }
        let done = change(&target, target.range.clone())?;
        finish(&target, done, reply).map(|()| Outcome::Reply)
    }
}

/// Returns which privileges are removed where the request does not say (law 4 of `data`).
fn of_caller(caller: &InHeader) -> KillPriv {
    if caller.uid == 0 { KillPriv::Capabilities } else { KillPriv::All }
}
