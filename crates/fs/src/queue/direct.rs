//! Direct requests: which of them can be in flight, and how they begin.
//!
//! Laws:
//!
//! 1. A direct read is in flight if its sectors are together on disk as they are; a direct write,
//!    if it changes whole blocks inside the file, may share the file, and finds its space.
//! 2. A request that cannot be in flight is served by the blocking calls, direct all the same.
//! 3. The inode is shared while a request begins, and by the request from then on
//!    (`butternut_file`'s laws of traffic). No lock outlives the call.

use super::core::{Carry, Reading, Writing};
use super::request::{Operation, Request};
use super::{Done, IoFlags, Queue, Refused};
use crate::data::Times;
use crate::inode_table::{Body, InodeEntry};
use crate::{DirectStability, Filesystem, Privileges, Result};
use butternut_file::{DirectWrite, FileState};
use butternut_format::inode::InodeFlags;
use butternut_format::units::length;
use std::sync::RwLockReadGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECTOR: usize = 4096;

/// Writes of one file that are down and in no tree, at which they are merged, and at which who
/// writes does that himself.
const PENDING_KICK: u64 = 32 << 10;
const PENDING_MAX: u64 = 64 << 10;
const PENDING_LOOK: u64 = 256;
const PENDING_STEP: u64 = 2 << 10;
/// What a write waits with the most pending that there may be; with less, the square of that part
/// of it. So those who write come to write as fast as what they write is merged, with no stop.
const PACE_MAX: Duration = Duration::from_micros(40);
/// Shorter waits are gathered.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// Memory that is not aligned to this is copied.
const ALIGN: usize = 512;

/// How a direct write goes on.
enum Way {
    InFlight(DirectWrite, Carry),
    /// With the file alone.
    Alone,
    /// Through the page cache.
    Cached,
}

impl Queue {
    /// Takes a direct request that can be in flight; gives others back.
    pub(super) fn take_direct(
        &mut self,
        request: Request,
    ) -> Result<Option<Request>, Box<Refused>> {
        if !request.flags().contains(IoFlags::DIRECT) {
            return Ok(Some(request));
        }
        match request.operation {
            Operation::Read { offset, flags } if is_whole(offset, request.buffer.len()) => {
                self.read_direct(request, offset, flags)
            }
            Operation::Write { offset, flags, privileges } => {
                self.write_direct(request, offset, flags, privileges)
            }
            Operation::Read { .. } | Operation::Sync(_) => Ok(Some(request)),
        }
    }

    fn read_direct(
        &mut self,
        request: Request,
        offset: u64,
        flags: IoFlags,
    ) -> Result<Option<Request>, Box<Refused>> {
        let since = self.core.mark();
        let Request { file, tag, buffer, operation, is_fallback } = request;
        let body = match shared(file.held.as_deref().map(crate::Held::entry), flags) {
            Ok(body) => body,
            Err(Busy) => return Err(self.again(buffer)),
        };
        let left = file.size().saturating_sub(offset);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            self.complete(Done { tag, buffer, result: Ok(0) });
            return Ok(None);
        }
        let range = offset..offset + length(want.next_multiple_of(SECTOR));
        self.digests.clear();
        let waits = !flags.contains(IoFlags::NOWAIT);
        if !waits && !file.source().knows_place(file.view(), &range) {
            return Err(self.again(buffer));
        }
        // Without the short way, the general one is all there is.
        let is_short = want <= SECTOR;
        let is_mapped = is_short && !self.core.switches().simple_read;
        let (source, view, digests) = (file.source(), file.view(), &mut self.digests);
        let place = if is_mapped {
            source.mapped_place(view, offset, want, digests)
        } else {
            source.direct_place(view, &range, digests)
        };
        let place = match place {
            Ok(place) => place,
            Err(error) => {
                self.complete(Done { tag, buffer, result: Err(error.into()) });
                return Ok(None);
            }
        };
        let Some(place) = place else {
            drop(body);
            return Ok(Some(Request { file, tag, buffer, operation, is_fallback }));
        };
        let hold = file.view().begin_request();
        drop(body);
        let asked = buffer.len();
        let reading = Reading { file, hold, tag, offset, asked, want, since };
        match self.core.read(reading, (place.logical, &mut self.digests), buffer) {
            Ok(()) => {
                let counters = self.core.counters();
                if place.is_cached && is_short {
                    counters.dio_read_simple.add();
                } else {
                    counters.dio_read_general.add();
                }
                self.taken += 1;
                Ok(None)
            }
            Err(back) => {
                let (Reading { file, .. }, buffer) = *back;
                Ok(Some(Request { file, tag, buffer, operation, is_fallback }))
            }
        }
    }

    fn write_direct(
        &mut self,
        request: Request,
        offset: u64,
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Option<Request>, Box<Refused>> {
        let since = self.core.mark();
        let Request { file, tag, buffer, operation, is_fallback } = request;
        if self.owed >= PAUSE_MIN && !flags.contains(IoFlags::NOWAIT) {
            self.core.poll(0, None);
            std::thread::sleep(std::mem::take(&mut self.owed));
        }
        let way = match self.begin_write(&file, offset, &buffer, flags, privileges) {
            Ok(Some(way)) => way,
            Ok(None) => return Err(self.again(buffer)),
            Err(error) => {
                self.complete(Done { tag, buffer, result: Err(error) });
                return Ok(None);
            }
        };
        let (write, carry) = match way {
            Way::InFlight(write, carry) => (write, carry),
            Way::Alone => {
                return Ok(Some(Request { file, tag, buffer, operation, is_fallback }));
            }
            Way::Cached => {
                let flags = flags.without(IoFlags::DIRECT);
                let operation = Operation::Write { offset, flags, privileges };
                return Ok(Some(Request { file, tag, buffer, operation, is_fallback: true }));
            }
        };
        let writing = Writing::new(&file, write, (tag, since), buffer.len(), flags);
        match self.core.write(writing, buffer, carry) {
            Ok(()) => {
                let counters = self.core.counters();
                counters.dio_write_shared.add();
                match carry {
                    Carry::ZeroCopy => counters.dio_write_zero_copy.add(),
                    Carry::Bounce => counters.dio_write_bounced.add(),
                }
                self.taken += 1;
                Ok(None)
            }
            Err(refused) => {
                let (writing, buffer) = *refused;
                writing.give_up();
                Err(self.again(buffer))
            }
        }
    }

    /// Begins a direct write; `None` if it would have to wait, and may not.
    fn begin_write(
        &mut self,
        file: &crate::File,
        offset: u64,
        buffer: &butternut_sys::buffer::Buffer,
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Option<Way>> {
        let held = file.held()?;
        let (filesystem, entry) = (held.filesystem(), held.entry());
        let waits = !flags.contains(IoFlags::NOWAIT);
        let writer = if waits { filesystem.begin()? } else { filesystem.may_begin()? };
        let switches = filesystem.switches();
        let is_stable = buffer.is_stable() || switches.direct_stability == DirectStability::Trust;
        let falls_back = !is_stable && switches.direct_stability == DirectStability::Buffered;
        if falls_back && file.view().has_sums() {
            return Ok(Some(Way::Cached));
        }
        if !is_whole(offset, buffer.len()) || flags.contains(IoFlags::APPEND) {
            return Ok(Some(Way::Alone));
        }
        let Ok(mut body) = shared(Some(entry), flags) else { return Ok(None) };
        let state = body.as_ref().and_then(|body| body.file.as_ref());
        let pending = state.map_or(0, FileState::pending_writes);
        if !waits && (pending >= PENDING_MAX || !filesystem.is_calm(writer)?) {
            return Ok(None);
        }
        if pending >= PENDING_MAX {
            drop(body);
            // What is lost by it is for whoever syncs.
            drop(filesystem.merge_down_to(writer, entry, PENDING_MAX - PENDING_STEP));
            body = Some(entry.body());
        } else if pending >= PENDING_KICK {
            self.owed += pace(pending);
            if pending.is_multiple_of(PENDING_LOOK) {
                writer.signal.want_merge(entry);
            }
        }
        let inode = filesystem.facts(entry)?;
        Filesystem::may_write(&inode)?;
        let may_share = match privileges {
            Privileges::Keep => true,
            Privileges::StripCapabilities | Privileges::Strip | Privileges::StripForeign => {
                entry.has_no_privileges()
            }
        };
        let Some(body) = body
            .filter(|_| may_share && switches.nosec && !inode.flags.contains(InodeFlags::APPEND))
        else {
            return Ok(Some(Way::Alone));
        };
        let Some(state) = &body.file else { return Ok(Some(Way::Alone)) };
        let range = offset..offset + length(buffer.len());
        let Some(write) = state.begin_direct_write(&range, &mut self.core.room())? else {
            return Ok(Some(Way::Alone));
        };
        let needs_stable = write.wants_digests() || self.core.has_copies(write.logical());
        if needs_stable && falls_back {
            write.fail(file.source());
            return Ok(Some(Way::Cached));
        }
        let is_aligned = buffer.as_ptr().addr().is_multiple_of(ALIGN);
        let is_fit = is_aligned && (is_stable || !needs_stable);
        let carry = if is_fit { Carry::ZeroCopy } else { Carry::Bounce };
        if file.times == Times::Now {
            let now = writer.clock.now();
            entry.update(|inode| {
                (inode.mtime, inode.ctime) = (now, now);
                inode.sequence = inode.sequence.wrapping_add(1);
            });
            body.is_stamp_due.store(true, Ordering::Release);
        }
        if !entry.is_listed() {
            writer.mark_dirty(entry);
            writer.signal.changed();
        }
        Ok(Some(Way::InFlight(write, carry)))
    }
}

/// What a write owes with so many pending.
fn pace(pending: u64) -> Duration {
    let part = |most: u64| most * (pending - PENDING_KICK) / (PENDING_MAX - PENDING_KICK);
    let nanos = u64::try_from(PACE_MAX.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos((part(nanos) * part(1 << 10)) >> 10)
}

/// A lock that would have to be waited for.
struct Busy;

/// The inode shared, or at once or not at all.
fn shared(
    entry: Option<&std::sync::Arc<InodeEntry>>,
    flags: IoFlags,
) -> Result<Option<RwLockReadGuard<'_, Body>>, Busy> {
    let Some(entry) = entry else { return Ok(None) };
    if !flags.contains(IoFlags::NOWAIT) {
        return Ok(Some(entry.body()));
    }
    entry.try_body().map(Some).ok_or(Busy)
}

fn is_whole(offset: u64, bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(SECTOR) && offset.is_multiple_of(length(SECTOR))
}
