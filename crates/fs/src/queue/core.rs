//! [`Core`]: the requests of a queue that are in flight, and their completion.
//!
//! ```text
//! read   mapped ----------------------------------> device -> verified (copied) --> done
//! write  begun --> staged with its neighbours ----> device -> each completed -----> done
//!                  (checksummed, copied if borrowed)         (DSYNC: synced first)
//! ```
//!
//! Laws:
//!
//! 1. A thread that has the core locked may complete what is in flight: the thread that owns the
//!    queue, or one that waits for a file ([`RequestOwner`]). Only the owner waits for requests
//!    under this lock, and only the owner waits for the lock: it may be an event loop, and one of
//!    its requests may take long while another thread drains an unrelated file. No thread waits for
//!    a file under this lock. No [`File`] is dropped under it either: the last handle of a file
//!    without a name deletes the file, and a thread that drains the file holds the lock of that
//!    very inode. So a completed request keeps its file until the thread that owns the queue takes
//!    it ([`Core::take_completed`]).
//! 2. Direct writes that are contiguous on disk form one device write of up to [`STAGE_BYTES_MAX`]
//!    bytes. If it fails, each is written alone, and fails alone.
//! 3. A read that a device fails, or whose checksums do not match, is read again through the
//!    general path, from the other mirrors.
//! 4. In a steady state nothing is allocated for a read or for a write in place: lists keep their
//!    memory.
//! 5. A panic under the lock makes the volume read-only, and leaves no thread waiting for ever. A
//!    request that is still known when the devices have none of the queue's requests left has
//!    failed. A request that the panic has lost is not returned ([`Core::has_lost_requests`]).

use super::{Completion, IoFlags};
use crate::filesystem::Shared;
use crate::inode::no_unpin::NoUnpin;
use crate::stats::lane_counters::LaneCounters;
use crate::stats::latency::{Mark, Operation};
use crate::{Error, File, Result, Tunables};
use butternut_file::{AllocationRun, DirectWrite, InFlight, RequestOwner};
use butternut_format::units::{Logical, length};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use butternut_sys::event::Event;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use butternut_sys::wait::Wait;
use butternut_tree::TreeError;
use butternut_volume::{
    Checksums, DataDone, DataQueue, DataQueueOptions, DataWrite, SubmitError, VolumeError,
};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a staged device write, in bytes.
pub(super) const STAGE_BYTES_MAX: usize = 128 << 10;
/// Maximum number of buffers of a staged device write.
const STAGE_BUFFERS_MAX: usize = 64;
/// Maximum number of empty buffer lists that are kept.
const BUFFER_LISTS_MAX: usize = 64;
/// Pause of a thread that waits for requests of a queue which it does not own.
const DRAIN_PAUSE: Duration = Duration::from_micros(50);
const SECTOR: usize = 4096;
/// Memory with less alignment than this, in bytes, is copied.
const ALIGN: usize = 512;

#[derive(Debug)]
pub(super) struct Core {
    shared: Arc<Shared>,
    inner: Mutex<Inner, rank::QueueCore>,
    /// The allocation run of the queue's next writes.
    allocation_run: Mutex<AllocationRun, rank::QueueAllocationRun>,
}

#[derive(Debug)]
struct Inner {
    data: DataQueue,
    bounce_arena: Arena,
    /// The bounce buffer of the next write ([`Core::reserve_bounce`]).
    reserved_bounce: Option<Buffer>,
    device_requests: Vec<DeviceRequest>,
    free: Vec<usize>,
    staged: Option<Staged>,
    /// Empty lists of buffers, for staged device writes.
    buffer_lists: Vec<Vec<Buffer>>,
    polled: Vec<DataDone>,
    /// When the devices last completed something.
    polled_at: Mark,
    done: VecDeque<Completed>,
    /// Completed writes that are not done before they are durable.
    unsynced: Vec<(File, Completion)>,
    /// Requests that were accepted and are neither done nor unsynced.
    in_flight: usize,
    /// A panic was found, and what it has left has failed.
    is_aborted: bool,
    /// Signalled when there may be a completion to take.
    event: Option<Arc<Event>>,
}

/// A completed request, and its file (law 1).
pub(super) type Completed = (Completion, Option<File>);

/// [`Inner`], locked: meanwhile no pin is dropped on this thread (law 1).
struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    _no_unpin: NoUnpin,
}

/// The requests that one device request serves. It is reused with its lists.
#[derive(Debug, Default)]
struct DeviceRequest {
    read: Option<InFlightRead>,
    writes: Vec<InFlightWrite>,
    checksums: Vec<u8>,
    /// The writes were copied to a bounce buffer; their callers' buffers are in `writes`.
    is_bounced: bool,
}

/// A direct read in flight.
#[derive(Debug)]
pub(super) struct InFlightRead {
    pub(super) file: File,
    pub(super) in_flight_token: Option<InFlight>,
    pub(super) tag: u64,
    pub(super) offset: u64,
    /// Length of the buffer, and how many of its bytes are below the end of the file.
    pub(super) buffer_len: usize,
    pub(super) bytes: usize,
    pub(super) flags: IoFlags,
    pub(super) since: Mark,
    /// The caller's buffer, if devices cannot transfer to it: the read is copied to it.
    pub(super) caller_buffer: Option<Buffer>,
}

/// A direct write in flight.
#[derive(Debug)]
pub(super) struct InFlightWrite {
    pub(super) file: File,
    pub(super) write: DirectWrite,
    pub(super) tag: u64,
    pub(super) bytes: usize,
    pub(super) flags: IoFlags,
    since: Mark,
    /// The caller's buffer, if it was copied.
    buffer: Option<Buffer>,
    checksums: std::ops::Range<usize>,
}

/// Direct writes that will form one device write.
#[derive(Debug)]
struct Staged {
    request: usize,
    logical: Logical,
    bytes: usize,
    /// Maximum size of a device write at `logical`.
    bytes_max: usize,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Bounced(Buffer),
    Owned(Buffers),
}

/// How a direct write's bytes are kept from changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMode {
    ZeroCopy,
    Bounce,
}

impl Core {
    pub(super) fn new(
        shared: &Arc<Shared>,
        depth: usize,
        arenas: (&Arena, Arena),
        allocation_run: AllocationRun,
        event: Option<Arc<Event>>,
    ) -> Arc<Self> {
        let (arena, bounce_arena) = arenas;
        let arenas = vec![arena.clone(), bounce_arena.clone()];
        let volume = shared.volume();
        let copies = volume.chunks().iter().map(|layout| layout.attributes().copies).max();
        // Each request may be a write of all copies: then a request never waits for another one.
        let device_requests = depth * copies.map_or(2, |copies| copies.max(2));
        let options = DataQueueOptions { depth: device_requests, arenas, event: event.clone() };
        let data = volume.data_queue(&options);
        let inner = Inner {
            data,
            bounce_arena,
            reserved_bounce: None,
            device_requests: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            staged: None,
            buffer_lists: Vec::new(),
            polled: Vec::with_capacity(device_requests),
            polled_at: Mark::default(),
            done: VecDeque::with_capacity(depth),
            unsynced: Vec::new(),
            in_flight: 0,
            is_aborted: false,
            event,
        };
        let (inner, allocation_run) = (Mutex::new(inner), Mutex::new(allocation_run));
        Arc::new(Self { shared: Arc::clone(shared), inner, allocation_run })
    }

    fn lock(&self) -> Locked<'_> {
        let no_unpin = NoUnpin::begin();
        let inner = self.inner.lock_or_else(|inner| self.abort(inner));
        Locked { inner, _no_unpin: no_unpin }
    }

    /// As [`Self::lock`], unless another thread has the core locked.
    fn try_lock(&self) -> Option<Locked<'_>> {
        let no_unpin = NoUnpin::begin();
        let mut inner = self.inner.try_lock()?;
        if self.inner.is_poisoned() {
            self.abort(&mut inner);
        }
        Some(Locked { inner, _no_unpin: no_unpin })
    }

    fn abort(&self, inner: &mut Inner) {
        self.shared.fail_after_panic();
        inner.abort();
    }

    /// Returns whether all outstanding requests were lost by a panic (law 5).
    pub(super) fn has_lost_requests(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight == 0 && self.inner.is_poisoned()
    }

    /// Recovers from poisoning: one step takes a part of the run, so it is consistent after a
    /// panic.
    pub(super) fn allocation_run(&self) -> MutexGuard<'_, AllocationRun> {
        self.allocation_run.lock()
    }

    pub(super) fn counters(&self) -> &LaneCounters {
        &self.shared.counters
    }

    pub(super) fn mark(&self) -> Mark {
        self.shared.mark()
    }

    /// Moves all completions to `out`. `completed` is empty before and after: it keeps its memory.
    pub(super) fn take_completed(
        &self,
        completed: &mut VecDeque<Completed>,
        out: &mut Vec<Completion>,
    ) {
        std::mem::swap(&mut self.lock().done, completed);
        // The files are dropped here, without the lock.
        out.extend(completed.drain(..).map(|(done, _)| done));
    }

    /// Submits what was queued, and completes what the devices have done. Waits for at least `min`
    /// device requests, or until the timeout; not while there are completions that the caller has
    /// not taken, because another thread may have completed all that the caller waits for.
    pub(super) fn poll(&self, min: usize, timeout: Option<Duration>) {
        let mut inner = self.lock();
        inner.send_staged(&self.shared);
        let min = if inner.done.is_empty() && inner.unsynced.is_empty() { min } else { 0 };
        inner.poll(&self.shared, min, timeout);
    }

    pub(super) fn tunables(&self) -> Tunables {
        self.shared.tunables.now()
    }

    /// Returns whether the profile stores more than one copy of what is written at `logical`.
    pub(super) fn has_copies(&self, logical: Logical) -> bool {
        let chunks = self.shared.volume().chunks();
        chunks.find(logical).is_none_or(|layout| layout.attributes().copies > 1)
    }

    /// Returns whether a write of `bytes` bytes at `logical` is one write of each device.
    pub(super) fn is_contiguous(&self, logical: Logical, bytes: usize) -> bool {
        let bytes = length(bytes);
        self.shared.volume().contiguous(logical, bytes) >= bytes
    }

    /// As [`Inner::read`].
    pub(super) fn read(
        &self,
        reading: InFlightRead,
        place: (Logical, &mut Vec<u8>),
        buffer: Buffer,
    ) -> std::result::Result<(), Box<(InFlightRead, Buffer)>> {
        self.lock().read(&self.shared, reading, place, buffer)
    }

    /// As [`Inner::write`].
    pub(super) fn write(&self, writing: InFlightWrite, buffer: Buffer, copy_mode: CopyMode) {
        self.lock().write(&self.shared, writing, buffer, copy_mode);
    }

    /// Reserves a buffer for the next write, which is copied and may not wait. Returns `false` if
    /// none is free. A write that joins the staged one needs none.
    pub(super) fn reserve_bounce(&self, write: &DirectWrite, bytes: usize) -> bool {
        let mut inner = self.lock();
        if !inner.joins(write, bytes, CopyMode::Bounce) {
            inner.reserved_bounce = inner.bounce_arena.allocate(bytes.max(STAGE_BYTES_MAX));
            return inner.reserved_bounce.is_some();
        }
        true
    }

    /// Returns a buffer to copy into, without waiting.
    pub(super) fn memory(&self, bytes: usize) -> Buffer {
        self.lock().bounce_arena.allocate(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    pub(super) fn push_completion(&self, done: Completion) {
        let mut inner = self.lock();
        inner.done.push_back((done, None));
        inner.signal();
    }

    pub(super) fn take_unsynced(&self) -> Vec<(File, Completion)> {
        std::mem::take(&mut self.lock().unsynced)
    }
}

impl RequestOwner for Core {
    /// Pauses without the lock (law 1). If another thread has the core locked, that thread
    /// completes the requests.
    fn complete_some(&self, timeout: Duration) {
        if let Some(mut inner) = self.try_lock() {
            let before = inner.in_flight;
            if before > 0 {
                inner.send_staged(&self.shared);
                inner.poll(&self.shared, 0, None);
            }
            if before == 0 || inner.in_flight < before {
                return;
            }
        }
        std::thread::sleep(timeout.min(DRAIN_PAUSE));
    }

    fn release_space(&self) {
        self.allocation_run().release();
    }
}

impl Inner {
    /// Submits a read of whole sectors that are contiguous on disk. Returns it if it needs the
    /// general path.
    fn read(
        &mut self,
        shared: &Shared,
        mut reading: InFlightRead,
        (logical, checksums): (Logical, &mut Vec<u8>),
        mut buffer: Buffer,
    ) -> std::result::Result<(), Box<(InFlightRead, Buffer)>> {
        let bytes = reading.bytes.next_multiple_of(SECTOR);
        if !is_reachable(&buffer) {
            let Some(bounce) = self.bounce_buffer(shared, bytes, reading.flags) else {
                return Err(Box::new((reading, buffer)));
            };
            reading.caller_buffer = Some(std::mem::replace(&mut buffer, bounce));
        }
        buffer.set_len(bytes);
        let request = self.new_device_request();
        loop {
            match self.data.read(shared.volume(), logical, buffer, length(request)) {
                Ok(()) => break,
                Err((back, SubmitError::Full)) => {
                    buffer = back;
                    self.poll(shared, 1, None);
                }
                Err((back, SubmitError::Split | SubmitError::Refused(_))) => {
                    self.free.push(request);
                    let mut back = reading.caller_buffer.take().unwrap_or(back);
                    back.set_len(reading.buffer_len);
                    return Err(Box::new((reading, back)));
                }
            }
        }
        let place = &mut self.device_requests[request];
        std::mem::swap(&mut place.checksums, checksums);
        place.read = Some(reading);
        self.in_flight += 1;
        Ok(())
    }

    /// Returns whether a write would join the staged one.
    fn joins(&self, write: &DirectWrite, bytes: usize, copy_mode: CopyMode) -> bool {
        let takes = |staged: &Staged| staged.takes(write.logical(), bytes, copy_mode);
        write.is_new() && self.staged.as_ref().is_some_and(takes)
    }

    /// Stages a direct write that has begun. A write that may not wait has a reserved buffer, if it
    /// is copied.
    fn write(
        &mut self,
        shared: &Shared,
        mut writing: InFlightWrite,
        buffer: Buffer,
        copy_mode: CopyMode,
    ) {
        let (logical, bytes) = (writing.write.logical(), writing.bytes);
        let reserved = self.reserved_bounce.take();
        if !self.joins(&writing.write, bytes, copy_mode) {
            let limit = length(STAGE_BYTES_MAX.max(bytes));
            let bytes_max = shared.volume().contiguous(logical, limit);
            let bytes_max = usize::try_from(bytes_max).unwrap_or(STAGE_BYTES_MAX);
            self.send_staged(shared);
            let payload = match copy_mode {
                CopyMode::ZeroCopy => Payload::Owned(Buffers::default()),
                CopyMode::Bounce => {
                    let bytes = bytes.max(STAGE_BYTES_MAX);
                    let bounce =
                        reserved.or_else(|| self.bounce_buffer(shared, bytes, writing.flags));
                    // Another thread may have submitted what this write was to join.
                    Payload::Bounced(bounce.unwrap_or_else(|| Buffer::zeroed(bytes)))
                }
            };
            let request = self.new_device_request();
            self.device_requests[request].is_bounced = copy_mode == CopyMode::Bounce;
            self.staged = Some(Staged { request, logical, bytes: 0, bytes_max, payload });
        }
        let Some(staged) = &mut self.staged else { return };
        let request = &mut self.device_requests[staged.request];
        let first = request.checksums.len();
        let has_checksums = writing.write.wants_checksums();
        match &mut staged.payload {
            Payload::Bounced(bounce) => {
                let place = &mut bounce.whole_mut()[staged.bytes..staged.bytes + bytes];
                if has_checksums {
                    shared.volume().copy_and_checksum(&buffer, 0, place, &mut request.checksums);
                } else {
                    buffer.copy_to(0, place);
                }
                writing.buffer = Some(buffer);
            }
            Payload::Owned(buffers) => {
                if has_checksums {
                    shared.volume().checksum_buffer(&buffer, &mut request.checksums);
                }
                match buffers {
                    Buffers::One(_) if staged.bytes == 0 => *buffers = Buffers::One(buffer),
                    Buffers::One(first) => {
                        let mut row = self.buffer_lists.pop().unwrap_or_default();
                        row.push(std::mem::take(first));
                        row.push(buffer);
                        *buffers = Buffers::Many(row);
                    }
                    Buffers::Many(row) => row.push(buffer),
                }
            }
        }
        writing.checksums = first..request.checksums.len();
        staged.bytes += bytes;
        let is_alone = !writing.write.is_new() || staged.bytes >= staged.bytes_max;
        request.writes.push(writing);
        self.in_flight += 1;
        if is_alone {
            self.send_staged(shared);
        }
    }

    /// Returns a bounce buffer; waits until one is free, if the request may block.
    fn bounce_buffer(&mut self, shared: &Shared, bytes: usize, flags: IoFlags) -> Option<Buffer> {
        loop {
            if let Some(bounce) = self.bounce_arena.allocate(bytes) {
                return Some(bounce);
            }
            if flags.wait() == Wait::NoWait {
                return None;
            }
            if self.data.outstanding() == 0 {
                return Some(Buffer::zeroed(bytes));
            }
            self.poll(shared, 1, None);
        }
    }

    /// Returns the index of an unused device request.
    fn new_device_request(&mut self) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.device_requests.push(DeviceRequest::default());
            self.device_requests.len() - 1
        });
        self.device_requests[index].checksums.clear();
        index
    }

    /// Submits the staged write.
    fn send_staged(&mut self, shared: &Shared) {
        let Some(Staged { request, logical, bytes, payload, .. }) = self.staged.take() else {
            return;
        };
        let mut buffers = match payload {
            Payload::Bounced(mut bounce) => {
                bounce.set_len(bytes);
                Buffers::One(bounce)
            }
            Payload::Owned(buffers) => buffers,
        };
        loop {
            match self.data.write(shared.volume(), logical, buffers, length(request)) {
                Ok(()) => return,
                Err((back, SubmitError::Full)) => {
                    buffers = back;
                    self.poll(shared, 1, None);
                }
                Err((buffers, SubmitError::Split | SubmitError::Refused(_))) => {
                    self.write_singly(shared, request, buffers);
                    return;
                }
            }
        }
    }

    /// Submits what was queued, and completes what the devices have done.
    fn poll(&mut self, shared: &Shared, min: usize, timeout: Option<Duration>) {
        let mut polled = std::mem::take(&mut self.polled);
        let poll = self.data.poll(shared.volume(), min, timeout, &mut polled);
        debug_assert!(poll.is_ok(), "the queue is over the devices of this volume");
        if !polled.is_empty() {
            self.polled_at = shared.mark();
        }
        for done in polled.drain(..) {
            self.complete(shared, done);
        }
        self.polled = polled;
    }

    fn complete(&mut self, shared: &Shared, done: DataDone) {
        let DataDone { tag, buffers, result, .. } = done;
        let Some(index) =
            usize::try_from(tag).ok().filter(|index| *index < self.device_requests.len())
        else {
            return;
        };
        if let Some(reading) = self.device_requests[index].read.take() {
            let buffer = buffers.into_one().unwrap_or_default();
            self.complete_read(shared, index, reading, buffer, &result);
        } else if result.is_err() {
            // Law 2.
            self.write_singly(shared, index, buffers);
        } else {
            self.complete_writes(shared, index, buffers, &mut |_| Ok(()));
        }
    }

    fn complete_read(
        &mut self,
        shared: &Shared,
        index: usize,
        reading: InFlightRead,
        mut buffer: Buffer,
        result: &std::result::Result<(), VolumeError>,
    ) {
        let InFlightRead {
            file,
            in_flight_token,
            tag,
            offset,
            buffer_len,
            bytes,
            since,
            caller_buffer,
            ..
        } = reading;
        let checksums = &self.device_requests[index].checksums;
        let expected =
            if checksums.is_empty() { Checksums::None } else { Checksums::Stored(checksums) };
        let is_good = result.is_ok() && shared.volume().verify(&buffer, expected);
        let result = if is_good {
            Ok(bytes)
        } else {
            // Law 3. The read is still in flight, so its extent has not been freed.
            shared.counters.read_retry_mirror.add();
            let read = file.read_in_flight(offset, &mut buffer[..bytes]);
            self.polled_at = shared.mark();
            read
        };
        shared.latencies.record(Operation::DirectRead, since, self.polled_at);
        drop(in_flight_token);
        if let Some(mut own) = caller_buffer {
            if result.is_ok() {
                own.whole_mut()[..bytes].copy_from_slice(&buffer[..bytes]);
            }
            buffer = own;
        }
        buffer.set_len(buffer_len);
        self.free.push(index);
        self.finish(file, false, Completion { tag, buffer, result });
    }

    /// Completes the writes of a device request, or fails those that failed, and returns their
    /// buffers.
    fn complete_writes(
        &mut self,
        shared: &Shared,
        index: usize,
        buffers: Buffers,
        outcome: &mut dyn FnMut(usize) -> Result<()>,
    ) {
        let request = &mut self.device_requests[index];
        let (is_bounced, checksums) = (request.is_bounced, std::mem::take(&mut request.checksums));
        let mut writes = std::mem::take(&mut request.writes);
        let (first, mut others) = match buffers {
            Buffers::One(buffer) => (Some(buffer), Vec::new()),
            Buffers::Many(buffers) => (None, buffers),
        };
        let mut own = first.into_iter().chain(others.drain(..));
        for (number, writing) in writes.drain(..).enumerate() {
            let InFlightWrite { file, write, tag, bytes, flags, since, buffer, checksums: range } =
                writing;
            let result = outcome(number);
            shared.latencies.record(Operation::DirectWrite, since, self.polled_at);
            match &result {
                Ok(()) => write.complete(file.source(), checksums.get(range).unwrap_or_default()),
                Err(_) => write.fail(file.source()),
            }
            drop(write);
            let buffer = if is_bounced { buffer } else { own.next() };
            let buffer = buffer.unwrap_or_default();
            let is_durable = !flags.contains(IoFlags::DSYNC) || result.is_err();
            let done = Completion { tag, buffer, result: result.map(|()| bytes) };
            self.finish(file, !is_durable, done);
        }
        drop(own);
        if others.capacity() > 0 && self.buffer_lists.len() < BUFFER_LISTS_MAX {
            self.buffer_lists.push(others);
        }
        let request = &mut self.device_requests[index];
        (request.writes, request.checksums) = (writes, checksums);
        self.free.push(index);
    }

    /// Writes each write of a device request alone, so that each has its own result.
    fn write_singly(&mut self, shared: &Shared, index: usize, buffers: Buffers) {
        let mut results: VecDeque<Result<()>> = VecDeque::new();
        {
            let request = &self.device_requests[index];
            let bounce = request.is_bounced.then(|| buffers.as_slice().first()).flatten();
            let mut at = 0;
            let mut rows = Vec::with_capacity(request.writes.len());
            for (number, writing) in request.writes.iter().enumerate() {
                let bytes = match bounce {
                    Some(bounce) => bounce.get(at..at + writing.bytes).unwrap_or_default(),
                    None => buffers.as_slice().get(number).map_or(&[][..], |buffer| buffer),
                };
                rows.push(DataWrite::new(writing.write.logical(), bytes));
                at += writing.bytes;
            }
            shared.volume().write_data(&mut rows);
            self.polled_at = shared.mark();
            results.extend(rows.into_iter().map(|row| row.result.map_err(Error::Volume)));
        }
        self.complete_writes(shared, index, buffers, &mut |_| {
            results.pop_front().unwrap_or(Ok(()))
        });
        // No request of the data queue has completed, which would have signalled.
        self.signal();
    }

    fn signal(&self) {
        if let Some(event) = &self.event {
            event.signal();
        }
    }

    /// Fails what a panic has left (law 5), once the devices have none of the queue's requests.
    /// Called at every lock after a panic.
    fn abort(&mut self) {
        self.in_flight = self.data.outstanding() + usize::from(self.staged.is_some());
        if self.in_flight > 0 {
            return;
        }
        let before = self.done.len();
        let failed = |tag, buffer| {
            let error = Error::Tree(TreeError::Panicked);
            Completion { tag, buffer: Option::unwrap_or_default(buffer), result: Err(error) }
        };
        for request in &mut self.device_requests {
            if let Some(InFlightRead { file, in_flight_token, tag, caller_buffer, .. }) =
                request.read.take()
            {
                drop(in_flight_token);
                self.done.push_back((failed(tag, caller_buffer), Some(file)));
            }
            for writing in request.writes.drain(..) {
                let InFlightWrite { file, write, tag, buffer, .. } = writing;
                write.fail(file.source());
                drop(write);
                self.done.push_back((failed(tag, buffer), Some(file)));
            }
        }
        // Once even if nothing has failed: the caller may wait for requests that are lost.
        let is_first = !std::mem::replace(&mut self.is_aborted, true);
        if is_first || self.done.len() > before {
            self.signal();
        }
    }

    fn finish(&mut self, file: File, wants_sync: bool, done: Completion) {
        // After a panic, the count is an estimate (law 5).
        self.in_flight = self.in_flight.saturating_sub(1);
        if wants_sync {
            self.unsynced.push((file, done));
        } else {
            self.done.push_back((done, Some(file)));
        }
    }
}

/// Returns whether devices can transfer to and from this memory.
pub(super) fn is_reachable(buffer: &Buffer) -> bool {
    buffer.as_ptr().addr().is_multiple_of(ALIGN)
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Staged {
    /// Returns whether a write continues where this ends, in the same kind of memory.
    fn takes(&self, logical: Logical, bytes: usize, copy_mode: CopyMode) -> bool {
        let follows = self.logical.0 + length(self.bytes) == logical.0;
        let fits = self.bytes + bytes <= self.bytes_max.min(STAGE_BYTES_MAX);
        let is_same = match &self.payload {
            Payload::Bounced(_) => copy_mode == CopyMode::Bounce,
            Payload::Owned(buffers) => {
                copy_mode == CopyMode::ZeroCopy && buffers.as_slice().len() < STAGE_BUFFERS_MAX
            }
        };
        follows && fits && is_same
    }
}

impl InFlightWrite {
    pub(super) fn new(
        file: &File,
        write: DirectWrite,
        (tag, since): (u64, Mark),
        bytes: usize,
        flags: IoFlags,
    ) -> Self {
        let file = file.clone();
        Self { file, write, tag, bytes, flags, since, buffer: None, checksums: 0..0 }
    }
}

#[cfg(test)]
mod tests;
