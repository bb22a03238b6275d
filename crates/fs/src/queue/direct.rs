//! Direct requests: which of them can be in flight, and how they begin.
//!
//! Laws:
//!
//! 1. A direct read is in flight if its sectors are uncompressed and contiguous on disk; a direct
//!    write, if it changes whole blocks inside the file, may share the file, and finds space.
//! 2. A request that cannot be in flight is served by the blocking calls, still as direct I/O.
//! 3. A request holds the inode lock shared while it begins, and keeps the file shared in
//!    `butternut_file` until it completes. No lock outlives the call.

use super::core::{CopyMode, InFlightRead, InFlightWrite, is_reachable};
use super::request::{Operation, Request};
use super::{Completion, IoFlags, Queue, Refused};
use crate::error::may_block;
use crate::file::direct::{Pending, is_block_aligned};
use crate::{DirectStability, Error, Privileges, Result};
use butternut_file::{DirectWrite, Resolved};
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use butternut_sys::wait::Wait;
use std::time::Duration;

const SECTOR: usize = 4096;
/// Change of the number of pending writes at which the committer is asked again to merge.
const PENDING_REPORT_STEP: u64 = 256;
/// Shorter delays are accumulated.
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// How a direct write continues.
enum WritePath {
    InFlight(DirectWrite, CopyMode),
    /// Under the exclusive inode lock.
    Exclusive,
    /// Through the page cache.
    Cached,
}

impl Queue {
    /// Accepts a direct request that can be in flight; returns all others.
    pub(super) fn accept_direct(
        &mut self,
        request: Request,
    ) -> Result<Option<Request>, Box<Refused>> {
        if !request.flags().contains(IoFlags::DIRECT) {
            return Ok(Some(request));
        }
        match request.operation {
            Operation::Read { offset, flags } if is_block_aligned(offset, request.buffer.len()) => {
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
        let wait = flags.wait();
        let entry = file.pin.as_deref().map(crate::server::Pin::entry);
        let Ok(state) = entry.map(|entry| entry.lock_shared_as(wait)).transpose() else {
            return Err(self.refuse_eagain(buffer));
        };
        let left = file.len().saturating_sub(offset);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if bytes == 0 {
            self.complete(Completion { tag, buffer, result: Ok(0) });
            return Ok(None);
        }
        let range = offset..offset.saturating_add(length(bytes.next_multiple_of(SECTOR)));
        self.checksums.clear();
        let is_short = bytes <= SECTOR;
        // If the tunable turns the short path off, only the general one is left. A plan may read
        // the trees.
        let is_simple = is_short && self.core.tunables().simple_read;
        let by_plan = is_short && !is_simple && wait == Wait::Block;
        let (source, view, checksums) = (file.source(), file.view(), &mut self.checksums);
        let resolved = if view.is_sealed() {
            // The blocking call verifies it by the hashes of fs-verity.
            Ok(Resolved::NeedsPlan)
        } else if by_plan {
            source.resolve_by_plan(view, offset, bytes, checksums)
        } else {
            source.resolve(view, &range, wait, checksums)
        };
        let place = match resolved {
            Ok(Resolved::OnDisk(place)) => place,
            Ok(Resolved::WouldBlock) => return Err(self.refuse_eagain(buffer)),
            Ok(Resolved::NeedsPlan) => {
                drop(state);
                return Ok(Some(Request { file, tag, buffer, operation, is_fallback }));
            }
            Err(error) => {
                self.complete(Completion { tag, buffer, result: Err(error.into()) });
                return Ok(None);
            }
        };
        let in_flight_token = file.view().begin_request();
        drop(state);
        let buffer_len = buffer.len();
        let caller_buffer = None;
        let reading = InFlightRead {
            file,
            in_flight_token,
            tag,
            offset,
            buffer_len,
            bytes,
            flags,
            since,
            caller_buffer,
        };
        match self.core.read(reading, (place.logical, &mut self.checksums), buffer) {
            Ok(()) => {
                let counters = self.core.counters();
                if place.is_cached && is_simple {
                    counters.dio_read_simple.add();
                } else {
                    counters.dio_read_general.add();
                }
                self.outstanding += 1;
                Ok(None)
            }
            Err(back) => {
                let (InFlightRead { file, .. }, buffer) = *back;
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
        if self.throttle_delay >= PAUSE_MIN && !flags.contains(IoFlags::NOWAIT) {
            self.core.poll(0, None);
            std::thread::sleep(std::mem::take(&mut self.throttle_delay));
        }
        let path = match self.begin_write(&file, offset, &buffer, flags, privileges) {
            Ok(path) => path,
            Err(Error::WouldBlock) => return Err(self.refuse_eagain(buffer)),
            Err(error) => {
                self.complete(Completion { tag, buffer, result: Err(error) });
                return Ok(None);
            }
        };
        let (write, copy_mode) = match path {
            WritePath::InFlight(write, copy_mode) => (write, copy_mode),
            WritePath::Exclusive => {
                return Ok(Some(Request { file, tag, buffer, operation, is_fallback }));
            }
            WritePath::Cached => {
                let flags = flags.without(IoFlags::DIRECT);
                let operation = Operation::Write { offset, flags, privileges };
                return Ok(Some(Request { file, tag, buffer, operation, is_fallback: true }));
            }
        };
        let writing = InFlightWrite::new(&file, write, (tag, since), buffer.len(), flags);
        self.core.write(writing, buffer, copy_mode);
        let counters = self.core.counters();
        counters.dio_write_shared.add();
        match copy_mode {
            CopyMode::ZeroCopy => counters.dio_write_zero_copy.add(),
            CopyMode::Bounce => counters.dio_write_bounced.add(),
        }
        self.outstanding += 1;
        Ok(None)
    }

    /// Begins a direct write.
    fn begin_write(
        &mut self,
        file: &crate::File,
        offset: u64,
        buffer: &Buffer,
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<WritePath> {
        let pin = file.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let wait = flags.wait();
        let writing = filesystem.begin_as(wait)?;
        let write_state = &*writing;
        let tunables = filesystem.tunables();
        let is_stable = buffer.is_stable() || tunables.direct_stability == DirectStability::Trust;
        let falls_back = !is_stable && tunables.direct_stability == DirectStability::Buffered;
        if falls_back && file.view().has_checksums() {
            return Ok(WritePath::Cached);
        }
        if !is_block_aligned(offset, buffer.len()) || flags.contains(IoFlags::APPEND) {
            return Ok(WritePath::Exclusive);
        }
        let mut state = filesystem.lock_shared_to_write(write_state, entry, wait)?;
        match Pending::of(&state) {
            Pending::Few => {}
            Pending::Many { count, pause } => {
                self.throttle_delay += pause;
                if count.abs_diff(self.pending_seen) >= PENDING_REPORT_STEP {
                    self.pending_seen = count;
                    write_state.queue_merge(entry);
                }
            }
            Pending::TooMany => {
                // For a thread that may not wait, the committer makes room. Without one, a write
                // that may wait does.
                write_state.queue_merge(entry);
                may_block(wait)?;
                drop(state);
                filesystem.merge_excess(write_state, entry);
                state = entry.lock_shared();
            }
        }
        let range = offset..offset.saturating_add(length(buffer.len()));
        let allocation = (&mut *self.core.allocation_run(), wait);
        let Some(write) = file.begin_shared_write(&state, &range, privileges, allocation)? else {
            return Ok(WritePath::Exclusive);
        };
        let needs_stable = write.wants_checksums() || self.core.has_copies(write.logical());
        if needs_stable && falls_back {
            if let Some(data) = &state.file {
                data.refuse_direct_write(write);
            }
            return Ok(WritePath::Cached);
        }
        let is_fit = is_reachable(buffer) && (is_stable || !needs_stable);
        let copy_mode = if is_fit { CopyMode::ZeroCopy } else { CopyMode::Bounce };
        if wait == Wait::NoWait && !self.can_submit_nowait(&write, buffer.len(), copy_mode) {
            if let Some(data) = &state.file {
                data.refuse_direct_write(write);
            }
            return Err(Error::WouldBlock);
        }
        file.note_shared_write(write_state, entry, &state);
        Ok(WritePath::InFlight(write, copy_mode))
    }

    /// Returns whether a write can be submitted without a wait. Reserves a buffer for it, if it is
    /// copied. Several writes of devices are waited for.
    fn can_submit_nowait(&self, write: &DirectWrite, bytes: usize, copy_mode: CopyMode) -> bool {
        let is_zero_copy = copy_mode == CopyMode::ZeroCopy;
        self.core.is_contiguous(write.logical(), bytes)
            && (is_zero_copy || self.core.reserve_bounce(write, bytes))
    }
}
