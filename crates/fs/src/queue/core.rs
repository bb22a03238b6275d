//! [`Core`]: what of a queue is in flight, and what becomes of it when devices are done.
//!
//! ```text
//! read   placed ----------------------------------> device -> verified (copied) --> done
//! write  begun --> staged with its neighbours ----> device -> each landed ---------> done
//!                  (copied and summed, or summed)             (DSYNC: synced first)
//! ```
//!
//! Laws:
//!
//! 1. Whoever has the core locked may complete what is in flight: the thread that owns the queue,
//!    or one that waits for a file ([`Help`]). Under the lock nobody waits for a file. So no
//!    [`File`] is dropped under it: the last handle of a file without a name deletes the file, and
//!    a thread that helps may hold the lock of that very inode. A request that is complete keeps
//!    its file until the thread that owns the queue takes it ([`Core::take_done`]).
//! 2. Direct writes that follow one another on disk are one device write, up to
//!    [`STAGE_BYTES_MAX`]; where it fails, each is written alone, and fails alone.
//! 3. A read that a device fails, or that its checksums refuse, is read again the general way, from
//!    the other copies.
//! 4. In a steady state nothing is allocated for a read, nor for a write in place: lists keep
//!    their memory.
//! 5. A panic under the lock ends writing to the volume, and leaves nothing that waits for ever: a
//!    request that is still known when the devices have nothing of the queue left has failed, and
//!    one that the panic took along does not come back ([`Core::has_lost`]).

use super::direct::is_reachable;
use super::{Done, IoFlags};
use crate::held::NoRelease;
use crate::lane_counters::LaneCounters;
use crate::latency::{Mark, Operation};
use crate::mount::Shared;
use crate::{Error, File, Result, Switches};
use butternut_file::{DirectRoom, DirectWrite, Help, InFlight};
use butternut_format::units::{Logical, length};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use butternut_tree::TreeError;
use butternut_volume::{
    DataDone, DataQueue, DataQueueOptions, DataWrite, NotTaken, Sums, VolumeError,
};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is staged as one device write, at most.
pub(super) const STAGE_BYTES_MAX: usize = 128 << 10;
/// Buffers that are staged as one device write, at most.
const STAGE_BUFFERS_MAX: usize = 64;
/// Lists of buffers that are kept.
const ROWS_MAX: usize = 64;
const SECTOR: usize = 4096;

#[derive(Debug)]
pub(super) struct Core {
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
    /// Space for the queue's next writes.
    room: Mutex<DirectRoom>,
}

#[derive(Debug)]
struct Inner {
    data: DataQueue,
    slabs: Arena,
    flights: Vec<Flight>,
    free: Vec<usize>,
    staged: Option<Staged>,
    /// Empty lists of buffers, for the next joint writes.
    rows: Vec<Vec<Buffer>>,
    polled: Vec<DataDone>,
    /// When the devices were last seen to be done with something.
    polled_at: Mark,
    done: VecDeque<Ended>,
    /// Writes that are down, and are not done before they are durable.
    unsynced: Vec<(File, Done)>,
    /// Requests that were taken and are neither done nor unsynced.
    in_flight: usize,
}

/// A request that is complete, and the file that it was of (law 1).
pub(super) type Ended = (Done, Option<File>);

/// [`Inner`], locked: meanwhile no handle of a file ends on this thread (law 1).
struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    _no_release: NoRelease,
}

/// What one device request is for. Kept with its lists from use to use.
#[derive(Debug, Default)]
struct Flight {
    read: Option<Reading>,
    writes: Vec<Writing>,
    digests: Vec<u8>,
    /// The writes were copied: their callers' buffers are with them.
    is_slab: bool,
}

/// A direct read on its way.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) file: File,
    pub(super) hold: Option<InFlight>,
    pub(super) tag: u64,
    pub(super) offset: u64,
    /// How long the buffer was, and what the file has of that.
    pub(super) asked: usize,
    pub(super) want: usize,
    pub(super) flags: IoFlags,
    pub(super) since: Mark,
    /// The caller's, where devices cannot reach it: what was read is copied to it.
    pub(super) unreached: Option<Buffer>,
}

/// A direct write on its way down.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) file: File,
    pub(super) write: DirectWrite,
    pub(super) tag: u64,
    pub(super) bytes: usize,
    pub(super) flags: IoFlags,
    since: Mark,
    /// The caller's, where it was copied.
    buffer: Option<Buffer>,
    digests: std::ops::Range<usize>,
}

/// Direct writes that will be one device write.
#[derive(Debug)]
struct Staged {
    flight: usize,
    logical: Logical,
    bytes: usize,
    /// What can be one device write from `logical` on.
    bytes_max: usize,
    load: Load,
}

#[derive(Debug)]
enum Load {
    Slab(Buffer),
    Owned(Buffers),
}

/// How a direct write's bytes are kept from changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carry {
    ZeroCopy,
    Bounce,
}

impl Core {
    pub(super) fn new(
        shared: &Arc<Shared>,
        depth: usize,
        arena: &Arena,
        slabs: Arena,
        room: DirectRoom,
    ) -> Arc<Self> {
        let arenas = vec![arena.clone(), slabs.clone()];
        let data = shared.volume().data_queue(&DataQueueOptions { depth: depth * 2, arenas });
        let inner = Inner {
            data,
            slabs,
            flights: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            staged: None,
            rows: Vec::new(),
            polled: Vec::with_capacity(2 * depth),
            polled_at: Mark::default(),
            done: VecDeque::with_capacity(depth),
            unsynced: Vec::new(),
            in_flight: 0,
        };
        let (inner, room) = (Mutex::new(inner), Mutex::new(room));
        Arc::new(Self { shared: Arc::clone(shared), inner, room })
    }

    fn lock(&self) -> Locked<'_> {
        let no_release = NoRelease::begin();
        let inner = self.inner.lock().unwrap_or_else(|poisoned| {
            self.shared.fail_after_panic();
            let mut inner = poisoned.into_inner();
            inner.give_up();
            inner
        });
        Locked { inner, _no_release: no_release }
    }

    /// Whether all that is left of the requests was lost by a panic (law 5).
    pub(super) fn has_lost(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight == 0 && self.inner.is_poisoned()
    }

    /// After a panic: what is left of the run is the room's, since one step takes a part of it.
    pub(super) fn room(&self) -> MutexGuard<'_, DirectRoom> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counters(&self) -> &LaneCounters {
        &self.shared.counters
    }

    pub(super) fn mark(&self) -> Mark {
        self.shared.mark()
    }

    /// Moves what is done to `out`. `ended` is empty, and is so again: it keeps its memory.
    pub(super) fn take_done(&self, ended: &mut VecDeque<Ended>, out: &mut Vec<Done>) {
        std::mem::swap(&mut self.lock().done, ended);
        // The files end here, without the lock.
        out.extend(ended.drain(..).map(|(done, _)| done));
    }

    /// Hands what was queued to the devices, and completes what they have done, waiting for at
    /// least `min` device requests, or so long.
    pub(super) fn poll(&self, min: usize, patience: Option<Duration>) {
        let mut inner = self.lock();
        inner.send_staged(&self.shared);
        inner.poll(&self.shared, min, patience);
    }

    pub(super) fn switches(&self) -> Switches {
        self.shared.switches.now()
    }

    /// Whether what is written there is written more than once.
    pub(super) fn has_copies(&self, logical: Logical) -> bool {
        let chunks = self.shared.volume().chunks();
        chunks.find(logical).is_none_or(|layout| layout.facts().copies > 1)
    }

    /// As [`Inner::read`].
    pub(super) fn read(
        &self,
        reading: Reading,
        place: (Logical, &mut Vec<u8>),
        buffer: Buffer,
    ) -> std::result::Result<(), Box<(Reading, Buffer)>> {
        self.lock().read(&self.shared, reading, place, buffer)
    }

    /// As [`Inner::write`].
    pub(super) fn write(
        &self,
        writing: Writing,
        buffer: Buffer,
        carry: Carry,
    ) -> std::result::Result<(), Box<(Writing, Buffer)>> {
        self.lock().write(&self.shared, writing, buffer, carry)
    }

    /// Memory to copy into, now.
    pub(super) fn memory(&self, bytes: usize) -> Buffer {
        self.lock().slabs.take(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
    }

    /// Requests that are on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    pub(super) fn push_done(&self, done: Done) {
        self.lock().done.push_back((done, None));
    }

    pub(super) fn take_unsynced(&self) -> Vec<(File, Done)> {
        std::mem::take(&mut self.lock().unsynced)
    }
}

impl Help for Core {
    fn help(&self, patience: Duration) {
        if self.in_flight() > 0 {
            self.poll(1, Some(patience));
        }
    }

    fn give_back_space(&self) {
        self.room().give_back();
    }
}

impl Inner {
    /// A read of whole sectors that are together on disk. Gives it back where the general path has
    /// to do it.
    fn read(
        &mut self,
        shared: &Shared,
        mut reading: Reading,
        (logical, digests): (Logical, &mut Vec<u8>),
        mut buffer: Buffer,
    ) -> std::result::Result<(), Box<(Reading, Buffer)>> {
        let bytes = reading.want.next_multiple_of(SECTOR);
        if !is_reachable(&buffer) {
            let Some(slab) = self.slab(shared, bytes, reading.flags) else {
                return Err(Box::new((reading, buffer)));
            };
            reading.unreached = Some(std::mem::replace(&mut buffer, slab));
        }
        buffer.set_len(bytes);
        let flight = self.enter();
        loop {
            match self.data.read(shared.volume(), logical, buffer, length(flight)) {
                Ok(()) => break,
                Err((back, NotTaken::Full)) => {
                    buffer = back;
                    self.poll(shared, 1, None);
                }
                Err((back, NotTaken::Split | NotTaken::Refused(_))) => {
                    self.free.push(flight);
                    let mut back = reading.unreached.take().unwrap_or(back);
                    back.set_len(reading.asked);
                    return Err(Box::new((reading, back)));
                }
            }
        }
        let place = &mut self.flights[flight];
        std::mem::swap(&mut place.digests, digests);
        place.read = Some(reading);
        self.in_flight += 1;
        Ok(())
    }

    /// Takes a direct write that has begun. Gives it back where it would have to wait for memory
    /// and may not.
    fn write(
        &mut self,
        shared: &Shared,
        mut writing: Writing,
        buffer: Buffer,
        carry: Carry,
    ) -> std::result::Result<(), Box<(Writing, Buffer)>> {
        let (logical, bytes) = (writing.write.logical(), writing.bytes);
        let joins = self
            .staged
            .as_ref()
            .is_some_and(|staged| staged.takes(logical, bytes, carry) && writing.write.is_new());
        if !joins {
            self.send_staged(shared);
            let load = match carry {
                Carry::ZeroCopy => Load::Owned(Buffers::default()),
                Carry::Bounce => match self.slab(shared, bytes.max(STAGE_BYTES_MAX), writing.flags)
                {
                    Some(slab) => Load::Slab(slab),
                    None => return Err(Box::new((writing, buffer))),
                },
            };
            let flight = self.enter();
            self.flights[flight].is_slab = carry == Carry::Bounce;
            let most = length(STAGE_BYTES_MAX.max(bytes));
            let bytes_max = shared.volume().contiguous(logical, most);
            let bytes_max = usize::try_from(bytes_max).unwrap_or(STAGE_BYTES_MAX);
            self.staged = Some(Staged { flight, logical, bytes: 0, bytes_max, load });
        }
        let Some(staged) = &mut self.staged else { return Ok(()) };
        let flight = &mut self.flights[staged.flight];
        let first = flight.digests.len();
        let has_sums = writing.write.wants_digests();
        match &mut staged.load {
            Load::Slab(slab) => {
                let place = &mut slab.whole_mut()[staged.bytes..staged.bytes + bytes];
                if has_sums {
                    shared.volume().copy_and_sum(&buffer, 0, place, &mut flight.digests);
                } else {
                    buffer.copy_to(0, place);
                }
                writing.buffer = Some(buffer);
            }
            Load::Owned(buffers) => {
                if has_sums {
                    shared.volume().sum_buffer(&buffer, &mut flight.digests);
                }
                match buffers {
                    Buffers::One(_) if staged.bytes == 0 => *buffers = Buffers::One(buffer),
                    Buffers::One(first) => {
                        let mut row = self.rows.pop().unwrap_or_default();
                        row.push(std::mem::take(first));
                        row.push(buffer);
                        *buffers = Buffers::Many(row);
                    }
                    Buffers::Many(row) => row.push(buffer),
                }
            }
        }
        writing.digests = first..flight.digests.len();
        staged.bytes += bytes;
        let is_alone = !writing.write.is_new() || staged.bytes >= staged.bytes_max;
        flight.writes.push(writing);
        self.in_flight += 1;
        if is_alone {
            self.send_staged(shared);
        }
        Ok(())
    }

    /// Memory to copy into; waits for some to come back, if the request may.
    fn slab(&mut self, shared: &Shared, bytes: usize, flags: IoFlags) -> Option<Buffer> {
        loop {
            if let Some(slab) = self.slabs.take(bytes) {
                return Some(slab);
            }
            if flags.contains(IoFlags::NOWAIT) {
                return None;
            }
            if self.data.outstanding() == 0 {
                return Some(Buffer::zeroed(bytes));
            }
            self.poll(shared, 1, None);
        }
    }

    /// A place for a flight.
    fn enter(&mut self) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() - 1
        });
        self.flights[index].digests.clear();
        index
    }

    /// Hands what is staged to the data queue.
    fn send_staged(&mut self, shared: &Shared) {
        let Some(Staged { flight, logical, bytes, load, .. }) = self.staged.take() else { return };
        let mut buffers = match load {
            Load::Slab(mut slab) => {
                slab.set_len(bytes);
                Buffers::One(slab)
            }
            Load::Owned(buffers) => buffers,
        };
        loop {
            match self.data.write(shared.volume(), logical, buffers, length(flight)) {
                Ok(()) => return,
                Err((back, NotTaken::Full)) => {
                    buffers = back;
                    self.poll(shared, 1, None);
                }
                Err((buffers, NotTaken::Split | NotTaken::Refused(_))) => {
                    self.write_singly(shared, flight, buffers);
                    return;
                }
            }
        }
    }

    /// Hands what was queued to the devices, and waits for so many of them.
    fn poll(&mut self, shared: &Shared, min: usize, patience: Option<Duration>) {
        let mut polled = std::mem::take(&mut self.polled);
        self.data.poll(shared.volume(), min, patience, &mut polled);
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
        let Some(index) = usize::try_from(tag).ok().filter(|index| *index < self.flights.len())
        else {
            return;
        };
        if let Some(reading) = self.flights[index].read.take() {
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
        reading: Reading,
        mut buffer: Buffer,
        result: &std::result::Result<(), VolumeError>,
    ) {
        let Reading { file, hold, tag, offset, asked, want, since, unreached, .. } = reading;
        let digests = &self.flights[index].digests;
        let sums = if digests.is_empty() { Sums::None } else { Sums::Packed(digests) };
        let is_good = result.is_ok() && shared.volume().verify(&buffer, sums);
        let result = if is_good {
            Ok(want)
        } else {
            // Law 3. It is still in flight: nobody has changed where it is.
            shared.counters.read_retry_mirror.add();
            let read = file.read_in_flight(offset, &mut buffer[..want]);
            self.polled_at = shared.mark();
            read
        };
        shared.latencies.record(Operation::DirectRead, since, self.polled_at);
        drop(hold);
        if let Some(mut own) = unreached {
            if result.is_ok() {
                own.whole_mut()[..want].copy_from_slice(&buffer[..want]);
            }
            buffer = own;
        }
        buffer.set_len(asked);
        self.free.push(index);
        self.finish(file, false, Done { tag, buffer, result });
    }

    /// Lands the writes of a flight that went well, fails the others, and gives the buffers back.
    fn complete_writes(
        &mut self,
        shared: &Shared,
        index: usize,
        buffers: Buffers,
        outcome: &mut dyn FnMut(usize) -> Result<()>,
    ) {
        let flight = &mut self.flights[index];
        let (is_slab, digests) = (flight.is_slab, std::mem::take(&mut flight.digests));
        let mut writes = std::mem::take(&mut flight.writes);
        let (first, mut others) = match buffers {
            Buffers::One(buffer) => (Some(buffer), Vec::new()),
            Buffers::Many(buffers) => (None, buffers),
        };
        let mut own = first.into_iter().chain(others.drain(..));
        for (number, writing) in writes.drain(..).enumerate() {
            let Writing { file, write, tag, bytes, flags, since, buffer, digests: sums } = writing;
            let result = outcome(number);
            shared.latencies.record(Operation::DirectWrite, since, self.polled_at);
            match &result {
                Ok(()) => write.land(file.source(), digests.get(sums).unwrap_or_default()),
                Err(_) => write.fail(file.source()),
            }
            drop(write);
            let buffer = if is_slab { buffer } else { own.next() };
            let buffer = buffer.unwrap_or_default();
            let is_durable = !flags.contains(IoFlags::DSYNC) || result.is_err();
            let done = Done { tag, buffer, result: result.map(|()| bytes) };
            self.finish(file, !is_durable, done);
        }
        drop(own);
        if others.capacity() > 0 && self.rows.len() < ROWS_MAX {
            self.rows.push(others);
        }
        let flight = &mut self.flights[index];
        (flight.writes, flight.digests) = (writes, digests);
        self.free.push(index);
    }

    /// Writes each write of a flight for itself, so that each has its own result.
    fn write_singly(&mut self, shared: &Shared, index: usize, buffers: Buffers) {
        let mut results: VecDeque<Result<()>> = VecDeque::new();
        {
            let flight = &self.flights[index];
            let slab = flight.is_slab.then(|| buffers.as_slice().first()).flatten();
            let mut at = 0;
            let mut rows = Vec::with_capacity(flight.writes.len());
            for (number, writing) in flight.writes.iter().enumerate() {
                let bytes = match slab {
                    Some(slab) => slab.get(at..at + writing.bytes).unwrap_or_default(),
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
    }

    /// Law 5, on every lock after a panic.
    fn give_up(&mut self) {
        self.in_flight = self.data.outstanding() + usize::from(self.staged.is_some());
        if self.in_flight > 0 {
            return;
        }
        let failed = |tag, buffer| {
            let error = Error::Tree(TreeError::Panicked);
            Done { tag, buffer: Option::unwrap_or_default(buffer), result: Err(error) }
        };
        for flight in &mut self.flights {
            if let Some(Reading { file, hold, tag, unreached, .. }) = flight.read.take() {
                drop(hold);
                self.done.push_back((failed(tag, unreached), Some(file)));
            }
            for writing in flight.writes.drain(..) {
                let Writing { file, write, tag, buffer, .. } = writing;
                write.fail(file.source());
                drop(write);
                self.done.push_back((failed(tag, buffer), Some(file)));
            }
        }
    }

    fn finish(&mut self, file: File, wants_sync: bool, done: Done) {
        // After a panic it is an estimate (law 5).
        self.in_flight = self.in_flight.saturating_sub(1);
        if wants_sync {
            self.unsynced.push((file, done));
        } else {
            self.done.push_back((done, Some(file)));
        }
    }
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
    /// Whether a write goes on where this ends, in the same kind of memory.
    fn takes(&self, logical: Logical, bytes: usize, carry: Carry) -> bool {
        let follows = self.logical.0 + length(self.bytes) == logical.0;
        let fits = self.bytes + bytes <= self.bytes_max.min(STAGE_BYTES_MAX);
        let is_same = match &self.load {
            Load::Slab(_) => carry == Carry::Bounce,
            Load::Owned(buffers) => {
                carry == Carry::ZeroCopy && buffers.as_slice().len() < STAGE_BUFFERS_MAX
            }
        };
        follows && fits && is_same
    }
}

impl Writing {
    pub(super) fn new(
        file: &File,
        write: DirectWrite,
        (tag, since): (u64, Mark),
        bytes: usize,
        flags: IoFlags,
    ) -> Self {
        let file = file.clone();
        Self { file, write, tag, bytes, flags, since, buffer: None, digests: 0..0 }
    }

    /// Nothing of it was done.
    pub(super) fn give_up(self) {
        self.write.fail(self.file.source());
    }
}

#[cfg(test)]
mod tests;
