//! WRITE: writeback of the kernel's page cache, writes through it, and writes that bypass it.
//!
//! | mount | handle | the kernel |
//! |---|---|---|
//! | `writeback` | any | writes back cached pages, or bypasses the cache with `O_DIRECT` |
//! | any other | without `O_DIRECT` | sends pages and keeps them cached |
//! | | with `O_DIRECT` | bypasses the cache |
//! | uncached | any | bypasses the cache, and writes back pages of mappings |
//!
//! 1. A write that bypasses the cache is applied only while the cache holds none of its pages
//!    ([`fills`]). Where it may hold some, the kernel invalidates them first, and a thread of its
//!    own waits for that.
//! 2. Where readers fill the pages again and again, such a write is applied in parts ([`Parts`]).
//! 3. A page that the kernel sends and keeps cached counts as a fill. On an uncached mount it keeps
//!    only pages of mappings, and a READ has filled those.
//! 4. The kernel's cache may send a page of an append-only file that a mapping has changed. A page
//!    that differs below the end of the file is not written, and the kernel drops it. That fails
//!    the request only where a handle from before the flag was set may have written the page,
//!    because the kernel reports the error of one page to every program that syncs the file, and to
//!    `umount`.
//! 5. At most [`INVALIDATIONS_MAX`] writes wait for invalidations. Each may occupy one of the
//!    [`BACKGROUND_MAX`] background requests that the kernel needs to send dirty pages, and the
//!    invalidation waits for those pages. A write beyond that bound is applied at once and its
//!    pages are invalidated after it: until then a reader may see the old pages, and a page of a
//!    mapping that was dirtied meanwhile overwrites the write.
//! 6. A write through the cache unlocks its page before the kernel sends it. A store to the same
//!    bytes, made before the write(2) returns, may be sent by the kernel's writeback and be applied
//!    first; then the write takes effect after the store. Programs that change the same bytes both
//!    ways at the same time order that by themselves.
//!
//! [`fills`]: crate::handles::fills

use butternut::server::FileExt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut::{Error, Privileges};

use crate::connection::protocol::{
    InHeader, TransferIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER, WriteOut,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::data::{KillPriv, killing_privileges};
use crate::door::deferred::ThreadSlot;
use crate::door::lane::{Lane, O_DSYNC, Writer};
use crate::door::negotiation::BACKGROUND_MAX;
use crate::door::parts::Parts;
use crate::door::{Door, Outcome};
use crate::errno::ErrnoResult;
use crate::handles::OpenFile;
use crate::handles::fills::{Fills, StalePages};
use crate::options::Caching;

/// Maximum number of writes and range changes that wait for invalidations: a third of the
/// background requests.
pub(super) const INVALIDATIONS_MAX: u64 = BACKGROUND_MAX as u64 / 3;

/// A WRITE request without its data.
struct WriteRequest {
    header: InHeader,
    transfer: TransferIn,
    open: OpenFile,
    lane: Lane,
    device: Arc<OwnedFd>,
}

impl Door {
    pub(super) fn write(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let transfer: TransferIn = request.take()?;
        let bytes = request.data(transfer.size)?;
        let open = self.find(request, transfer.fh)?;
        let is_from_cache = transfer.transfer_flags & WRITE_CACHE != 0;
        let lane = self.lane(if is_from_cache { 0 } else { transfer.flags });
        let device = Arc::clone(request.device);
        let write = WriteRequest { header: request.header, transfer, open, lane, device };
        if !write.bypasses_cache() {
            if self.options.caching != Caching::Nothing {
                write.open.fills.begin_fill(transfer.range());
            }
            let applied = if is_from_cache && write.open.is_append_only {
                self.write_mapped_page(request, &write, bytes)
            } else {
                write.apply(transfer.offset, bytes)
            };
            if applied.is_err() && is_from_cache {
                write.open.fills.count_lost_write();
                self.lost_writes.count(write.open.file.id().subvolume);
            }
            WriteRequest::put_reply(applied?, reply)?;
            return Ok(Outcome::Reply);
        }
        let stale = match write.open.fills.begin_write(transfer.range()) {
            Ok(_applying) => {
                WriteRequest::put_reply(write.apply(transfer.offset, bytes)?, reply)?;
                return Ok(Outcome::Reply);
            }
            Err(stale) => stale,
        };
        let slot = ThreadSlot::begin(&self.invalidating_writes, INVALIDATIONS_MAX);
        let Some(slot) = slot else {
            let applied = write.apply(transfer.offset, bytes);
            self.invalidate_range_deferred(request, stale.pages);
            WriteRequest::put_reply(applied?, reply)?;
            return Ok(Outcome::Reply);
        };
        let bytes = bytes.to_vec();
        // Only the pages of the write: the kernel may hold no inode lock (law 1 of `deferred`).
        self.reply_deferred(request, size_of::<WriteOut>(), move |reply| {
            let _slot = slot;
            WriteRequest::put_reply(write.apply_after_invalidation(stale, &bytes)?, reply)
        })
    }
}

impl Door {
    /// Writes a page of an append-only file (law 4).
    fn write_mapped_page(
        &self,
        request: &Request<'_>,
        write: &WriteRequest,
        bytes: &[u8],
    ) -> ErrnoResult<usize> {
        let (file, offset) = (&write.open.file, write.transfer.offset);
        let unchanged = file.unchanged_below_end(offset, bytes).or_else(|error| {
            // Deferred, because the kernel has locked the page until this request is answered.
            let all = 0..u64::MAX;
            self.invalidate_range_deferred(request, all);
            let is_of_mapping = matches!(error, Error::NotPermitted { .. })
                && !self.handles.has_unrestricted_writer(file.id());
            if is_of_mapping { Ok(bytes.len()) } else { Err(error) }
        })?;
        let (at, rest) = (offset.saturating_add(unchanged as u64), &bytes[unchanged..]);
        Ok(unchanged + write.lane.write(file, at, rest, Writer::KernelWriteback)?)
    }
}

/// Returns whether the kernel sends a write that bypasses its page cache. Such a write has a lock
/// owner.
///
/// `O_DIRECT` in the flags of the file does not decide this: a program may set it by fcntl(2) after
/// the kernel has begun a write through its cache. The kernel has locked the pages of such a write
/// until the reply, so invalidating them before would wait for ever.
fn bypasses_cache(transfer_flags: u32, handle_bypasses: bool) -> bool {
    transfer_flags & WRITE_CACHE == 0 && (handle_bypasses || transfer_flags & WRITE_LOCKOWNER != 0)
}

impl WriteRequest {
    fn has(&self, flag: u32) -> bool {
        self.transfer.transfer_flags & flag != 0
    }

    fn bypasses_cache(&self) -> bool {
        bypasses_cache(self.transfer.transfer_flags, self.open.bypasses_cache)
    }

    /// Applies the write after the kernel has invalidated the pages that it may have cached.
    fn apply_after_invalidation(&self, stale: StalePages, bytes: &[u8]) -> ErrnoResult<usize> {
        let range = self.transfer.range();
        let index = |at: u64| usize::try_from(at - range.start).unwrap_or(bytes.len());
        let parts = Parts {
            fills: &self.open.fills,
            device: &self.device,
            node: self.header.nodeid,
            range: range.clone(),
            may_be_short: true,
        };
        let written = parts.apply_after(stale, Fills::begin_write, |part| {
            let data = &bytes[index(part.start)..index(part.end)];
            Ok(self.apply(part.start, data)? as u64)
        })?;
        Ok(index(range.start + written))
    }

    fn apply(&self, offset: u64, bytes: &[u8]) -> ErrnoResult<usize> {
        let open = &self.open;
        let write_as = |writer| self.lane.write(&open.file, offset, bytes, writer);
        let written = if self.has(WRITE_CACHE) {
            write_as(Writer::KernelWriteback)?
        } else if self.has(WRITE_KILL_SUIDGID) {
            let of = (self.header.nodeid, &open.file);
            killing_privileges(&self.header, &self.device, of, KillPriv::All, |privileges| {
                write_as(Writer::Program(privileges))
            })?
        } else if open.bypasses_cache {
            write_as(Writer::Program(Privileges::StripCapabilities))?
        } else {
            write_as(Writer::Program(Privileges::Keep))?
        };
        // The kernel itself syncs after writes through its cache, and after writes that bypass it
        // one at a time. It also sets the flag where the mount is synchronous.
        if open.bypasses_cache && !self.has(WRITE_CACHE) && self.transfer.flags & O_DSYNC != 0 {
            open.file.sync_data()?;
        }
        Ok(written)
    }

    fn put_reply(written: usize, reply: &mut Reply) -> ErrnoResult<()> {
        reply.push(&WriteOut { size: u32::try_from(written).unwrap_or(0), padding: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn waiting_writes_leave_requests_for_the_kernels_writeback() {
        let count = Arc::default();
        let begin = || ThreadSlot::begin(&count, INVALIDATIONS_MAX);
        let mut waiting: Vec<ThreadSlot> = std::iter::from_fn(begin).collect();
        assert_eq!(waiting.len() as u64, INVALIDATIONS_MAX);
        assert!(waiting.pop().is_some() && begin().is_some());
        drop(waiting);
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_write_that_bypasses_the_cache_has_a_lock_owner_or_such_a_handle() {
        assert!(!bypasses_cache(0, false), "through the cache");
        assert!(bypasses_cache(WRITE_LOCKOWNER, false));
        assert!(bypasses_cache(0, true));
        assert!(!bypasses_cache(WRITE_CACHE, true), "a page of a mapping");
    }
}
