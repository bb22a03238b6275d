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
use crate::direct::{Pending, is_whole};
use crate::inode_table::{Body, InodeEntry};
use crate::{DirectStability, Privileges, Result};
use butternut_file::{DirectWrite, Patience};
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use std::sync::RwLockReadGuard;
use std::time::Duration;

const SECTOR: usize = 4096;
/// How far what is pending goes before that is told again.
const PENDING_LOOK: u64 = 256;
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
        let unreached = None;
        let reading = Reading { file, hold, tag, offset, asked, want, flags, since, unreached };
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
        buffer: &Buffer,
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
        let pending = body.as_deref().map_or(Pending::Few, Pending::of);
        if !waits && (pending == Pending::TooMany || !filesystem.is_calm(writer)?) {
            return Ok(None);
        }
        match pending {
            Pending::Few => {}
            Pending::Many { count, pause } => {
                self.owed += pause;
                if count.abs_diff(self.pending_seen) >= PENDING_LOOK {
                    self.pending_seen = count;
                    writer.signal.want_merge(entry);
                }
            }
            Pending::TooMany => {
                drop(body);
                filesystem.merge_first(writer, entry);
                body = Some(entry.body());
            }
        }
        let Some(body) = body else { return Ok(Some(Way::Alone)) };
        let range = offset..offset + length(buffer.len());
        let patience = if waits { Patience::Any } else { Patience::None };
        let room = (&mut *self.core.room(), patience);
        let Some(write) = file.begin_shared_write(&body, &range, privileges, room)? else {
            return Ok(Some(Way::Alone));
        };
        let needs_stable = write.wants_digests() || self.core.has_copies(write.logical());
        if needs_stable && falls_back {
            write.fail(file.source());
            return Ok(Some(Way::Cached));
        }
        let is_fit = is_reachable(buffer) && (is_stable || !needs_stable);
        let carry = if is_fit { Carry::ZeroCopy } else { Carry::Bounce };
        file.note_shared_write(writer, entry, &body);
        Ok(Some(Way::InFlight(write, carry)))
    }
}

/// Whether devices can transfer in this memory.
pub(super) fn is_reachable(buffer: &Buffer) -> bool {
    buffer.as_ptr().addr().is_multiple_of(ALIGN)
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
