//! WRITE: from the kernel's page cache, through it, and past it.
//!
//! | mount | handle | the kernel |
//! |---|---|---|
//! | `writeback` | any | writes back what it cached, or passes the cache with `O_DIRECT` |
//! | any other | without `O_DIRECT` | keeps the pages that it sends |
//! | | with `O_DIRECT` | passes the cache |
//! | uncached | any | passes the cache, and writes back the pages of mappings |
//!
//! 1. A write past the cache is applied while the cache holds none of its pages ([`fills`]). Where
//!    it may hold some, the kernel drops them first, which a thread of its own waits for.
//! 2. Where pages are filled again and again, such a write is applied piece by piece: each piece is
//!    halved, down to a page, until the kernel keeps it free of pages for long enough.
//! 3. What the kernel keeps of what it sends counts as a fill. On an uncached mount it keeps only
//!    pages of mappings, which a READ filled.
//! 4. Of an append-only file, the kernel's cache may send what a mapping changed. A page that
//!    differs below the end is not written, and the kernel drops it. That is an error only where a
//!    handle from before the flag may have written it: an error of one page is told to every
//!    program that syncs the file, and to `umount`.
//! 5. At most [`WAITING_MAX`] writes wait for the kernel to drop pages: each may hold one of the
//!    [`BACKGROUND_MAX`] requests without which the kernel cannot send a dirty page, and dropping
//!    that page waits for it. A write past that bound is applied at once, and its pages are dropped
//!    after it: a reader may see them until then, and a page of a mapping that a store has made
//!    dirty meanwhile is written over it.
//!
//! [`fills`]: crate::fills

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use butternut::{Error, Privileges};

use crate::connection;
use crate::door::data::{Keeps, stripping};
use crate::door::lane::{Lane, Writer};
use crate::door::negotiation::BACKGROUND_MAX;
use crate::door::{Door, Wanted};
use crate::fills::Stale;
use crate::handles::Open;
use crate::options::Caching;
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{
    InHeader, TransferIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER, WriteOut,
};

/// A program wants its write durable.
const O_DSYNC: u32 = 0o10000;

/// Invalidations that a piece of a write may need before it is halved. Pages that were dirty need a
/// second one.
const ROUNDS_MAX: u32 = 4;
const PAGE_BYTES: u64 = 4096;

/// Writes that may wait for the kernel to drop pages: a third of what it may have in flight.
const WAITING_MAX: u64 = BACKGROUND_MAX as u64 / 3;

/// One WRITE, without its bytes.
struct Write {
    header: InHeader,
    asked: TransferIn,
    open: Open,
    lane: Lane,
    device: Arc<OwnedFd>,
}

impl Door {
    pub(super) fn write(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let asked: TransferIn = request.take()?;
        let bytes = request.data(asked.size)?;
        let open = self.find(request, asked.fh)?;
        let is_from_cache = asked.transfer_flags & WRITE_CACHE != 0;
        let lane = self.lane(if is_from_cache { 0 } else { asked.flags });
        let device = Arc::clone(request.device);
        let write = Write { header: request.header, asked, open, lane, device };
        if !write.passes_cache() {
            if self.manner.caching != Caching::Nothing {
                write.open.fills.begin_fill(asked.range());
            }
            let applied = if is_from_cache && write.open.only_appends {
                self.write_mapped(request, &write, bytes)
            } else {
                write.apply(asked.offset, bytes)
            };
            if applied.is_err() && is_from_cache {
                self.lost_writes.fetch_add(1, Ordering::Relaxed);
            }
            Write::answer(applied?, reply)?;
            return Ok(Wanted::Reply);
        }
        let stale = match write.open.fills.begin_write(asked.range()) {
            Ok(_applying) => {
                Write::answer(write.apply(asked.offset, bytes)?, reply)?;
                return Ok(Wanted::Reply);
            }
            Err(stale) => stale,
        };
        let Some(waiting) = Waiting::begin(&self.waiting_writes) else {
            let applied = write.apply(asked.offset, bytes);
            self.drop_pages_aside(request);
            Write::answer(applied?, reply)?;
            return Ok(Wanted::Reply);
        };
        let bytes = bytes.to_vec();
        self.answer_aside(request, size_of::<WriteOut>(), move |reply| {
            let _waiting = waiting;
            Write::answer(write.apply_after(stale, &bytes)?, reply)
        })
    }
}

/// One of the writes that wait for the kernel to drop pages (law 5).
struct Waiting(Arc<AtomicU64>);

impl Waiting {
    /// Counts one more, unless there are [`WAITING_MAX`].
    fn begin(count: &Arc<AtomicU64>) -> Option<Self> {
        let more = |waiting| (waiting < WAITING_MAX).then_some(waiting + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Door {
    /// Law 4.
    fn write_mapped(&self, request: &Request<'_>, write: &Write, bytes: &[u8]) -> Answer<usize> {
        let (file, offset) = (&write.open.file, write.asked.offset);
        let unchanged = file.unchanged_below_end(offset, bytes).or_else(|error| {
            // The page is locked until this request is answered.
            self.drop_pages_aside(request);
            let is_of_mapping = matches!(error, Error::NotPermitted { .. })
                && !self.handles.is_written_freely(file.id());
            if is_of_mapping { Ok(bytes.len()) } else { Err(error) }
        })?;
        let (at, rest) = (offset.saturating_add(unchanged as u64), &bytes[unchanged..]);
        Ok(unchanged + write.lane.write(file, at, rest, Writer::Cache)?)
    }
}

/// Whether the kernel sends a write without its page cache. Such a write names a lock owner.
///
/// `O_DIRECT` among the flags of the file does not tell: a program may set it with fcntl(2) after
/// the kernel has begun a write through its cache. The kernel keeps the pages of that one locked
/// until it is answered, so to have them dropped first would wait for ever.
fn passes_cache(transfer_flags: u32, handle_passes: bool) -> bool {
    transfer_flags & WRITE_CACHE == 0 && (handle_passes || transfer_flags & WRITE_LOCKOWNER != 0)
}

impl Write {
    fn has(&self, flag: u32) -> bool {
        self.asked.transfer_flags & flag != 0
    }

    fn passes_cache(&self) -> bool {
        passes_cache(self.asked.transfer_flags, self.open.passes_cache)
    }

    /// Applies the write when the kernel has dropped the pages that it may have.
    fn apply_after(&self, stale: Stale, bytes: &[u8]) -> Answer<usize> {
        let (start, end) = (self.asked.offset, self.asked.range().end);
        let index = |at: u64| usize::try_from(at - start).unwrap_or(bytes.len());
        let (mut piece, mut rounds) = (start..end, 0);
        let mut begun = Err(stale);
        loop {
            match begun {
                Err(stale) => {
                    connection::drop_pages(&self.device, self.header.nodeid, &stale.pages);
                    rounds += 1;
                    if rounds > ROUNDS_MAX {
                        (piece.end, rounds) = (half(&piece), 0);
                    }
                    begun = self.open.fills.begin_write_after(&stale, piece.clone());
                }
                Ok(applying) => {
                    let part = &bytes[index(piece.start)..index(piece.end)];
                    let written = match self.apply(piece.start, part) {
                        // What is written already is told, as for any short write.
                        Err(_) if piece.start > start => 0,
                        written => written?,
                    };
                    drop(applying);
                    let at = piece.start + written as u64;
                    if written < part.len() || at == end {
                        return Ok(index(at));
                    }
                    (piece, rounds) = (at..end.min(at + part.len() as u64), 0);
                    begun = self.open.fills.begin_write(piece.clone());
                }
            }
        }
    }

    fn apply(&self, offset: u64, bytes: &[u8]) -> Answer<usize> {
        let open = &self.open;
        let write_as = |writer| self.lane.write(&open.file, offset, bytes, writer);
        let written = if self.has(WRITE_CACHE) {
            write_as(Writer::Cache)?
        } else if self.has(WRITE_KILL_SUIDGID) {
            let of = (self.header.nodeid, &open.file);
            stripping(&self.header, &self.device, of, Keeps::Nothing, |privileges| {
                write_as(Writer::Program(privileges))
            })?
        } else if open.passes_cache {
            write_as(Writer::Program(Privileges::StripCapabilities))?
        } else {
            write_as(Writer::Program(Privileges::Keep))?
        };
        // What goes through its cache, or past it one at a time, the kernel syncs itself.
        if open.passes_cache && !self.has(WRITE_CACHE) && self.asked.flags & O_DSYNC != 0 {
            open.file.sync_data()?;
        }
        Ok(written)
    }

    fn answer(written: usize, reply: &mut Reply) -> Answer<()> {
        reply.put(&WriteOut { size: u32::try_from(written).unwrap_or(0), padding: 0 })
    }
}

/// Where the first half of a range ends: with a page, and not before its first page does.
fn half(of: &Range<u64>) -> u64 {
    let middle = (of.start + (of.end - of.start) / 2) / PAGE_BYTES * PAGE_BYTES;
    let first_end = (of.start / PAGE_BYTES + 1) * PAGE_BYTES;
    middle.max(first_end).min(of.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_writes_wait_as_leave_the_kernel_requests_for_its_pages() {
        let count = Arc::new(AtomicU64::new(0));
        let begin = || Waiting::begin(&count);
        let mut waiting: Vec<Waiting> = std::iter::from_fn(begin).collect();
        assert_eq!(waiting.len() as u64, WAITING_MAX);
        assert!(waiting.pop().is_some() && begin().is_some());
        drop(waiting);
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_range_is_halved_down_to_what_one_page_holds_of_it() {
        assert_eq!(half(&(0..1 << 20)), 1 << 19);
        assert_eq!(half(&(100..3 * 4096)), 4096);
        assert_eq!(half(&(4000..4200)), 4096);
        assert_eq!(half(&(0..4096)), 4096);
        assert_eq!(half(&(8..16)), 16);
        assert_eq!(half(&(5000..5000 + 4096)), 8192);
    }

    #[test]
    fn a_write_past_the_cache_is_told_by_its_lock_owner_or_handle() {
        assert!(!passes_cache(0, false), "through the cache, whatever the flags of the file");
        assert!(passes_cache(WRITE_LOCKOWNER, false));
        assert!(passes_cache(0, true));
        assert!(!passes_cache(WRITE_CACHE, true), "a page of a mapping");
    }
}
