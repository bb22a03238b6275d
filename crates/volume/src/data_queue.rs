//! [`DataQueue`]: data requests in flight on all devices of a volume, over one queue pair, for one
//! owner.
//!
//! ```text
//! read, write   -> queued: one device request for a read, one for each mirror for a write
//! submit        -> the kernel sees what was queued
//! poll          -> one completion for each read or write, when its last device request is done
//! ```
//!
//! Laws:
//! 1. An accepted request returns as one [`DataDone`] with its buffers. A refused request returns
//!    its buffers at once and has had no effect.
//! 2. A request must be contiguous on its devices ([`Volume::contiguous`]). One that is not is
//!    refused with [`SubmitError::Split`], and the caller uses [`Volume::read_data`] or
//!    [`Volume::write_data`].
//! 3. A write is `Ok` if at most as many mirrors failed as are tolerated (law 1 of
//!    [`crate::tolerance`]). All mirrors are written from the same memory, which is returned when
//!    the last one is done.
//! 4. Reads are not verified here; the caller verifies them ([`Volume::verify`]). After a mismatch
//!    or an error it calls [`Volume::read_data`], which tries the other mirrors.
//! 5. A failed device request is counted once on its device, and affects only the request that it
//!    belongs to.
//! 6. In a steady state neither reads nor writes allocate memory.
//! 7. Any thread with `&mut` may poll, whichever thread queued. It sees completions at once if the
//!    queueing thread waits or sleeps, and at that thread's next timer tick if it computes. A ring
//!    without this delay interrupts the thread for every completion, which was measured to be half
//!    of all CPU time of random 4 KiB reads at depth 64. A queue with an event has such a ring,
//!    because the thread that waits for the event may not be the one that queues.
//! 8. Over a ring, memory that a device cannot access directly (borrowed, at an unaligned address)
//!    is transferred synchronously by the thread that queues.
//! 9. Requests in flight at the same time complete in any order. A caller that writes a range waits
//!    for other requests in flight on that range first.
//! 10. A queue serves the volume that it was made for. With another volume every call is refused
//!     with [`VolumeError::OtherQueue`], and changes nothing.

use crate::chunk_map::ChunkReader;
use crate::error::VolumeError;
use crate::read_batch::choose;
use crate::stripe::IoStripe;
use crate::tolerance::{Content, failures_allowed};
use crate::volume::Volume;
use crate::write_data::check_shape;
use butternut_device::{
    Backend, Completion, Device, QueueOptions, QueuePair, Request, RequestKind,
};
use butternut_format::units::{Logical, length};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use butternut_sys::event::Event;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The highest number of mirrors of any profile. A queue has at least that many slots, so that it
/// can accept a write.
const COPIES_MAX: usize = 4;

/// Options of a data queue.
#[derive(Clone, Debug)]
pub struct DataQueueOptions {
    /// Maximum number of device requests in flight.
    pub depth: usize,
    /// Memory to register; transfers in it cost less CPU time. All of it stays resident.
    pub arenas: Vec<Arena>,
    /// Signalled at each completion of a device request.
    pub event: Option<Arc<Event>>,
}

impl Default for DataQueueOptions {
    fn default() -> Self {
        Self { depth: 128, arenas: Vec::new(), event: None }
    }
}

/// Data requests in flight.
#[derive(Debug)]
pub struct DataQueue {
    /// The devices of the volume, to check that it is the same one.
    devices: Arc<[Arc<dyn Device>]>,
    pair: QueuePair,
    chunks: ChunkReader,
    table: Table,
}

/// Requests in flight. The tag of a device request is the index of its request here.
#[derive(Debug)]
struct Table {
    requests: Box<[InFlight]>,
    free: Vec<usize>,
    /// Shared memory that no request uses.
    spares: Vec<Arc<Buffers>>,
}

#[derive(Debug, Default)]
struct InFlight {
    tag: u64,
    logical: Logical,
    /// Device requests that have not completed.
    left: usize,
    /// The memory that all mirrors of a write share.
    shared: Option<Arc<Buffers>>,
    /// How many mirrors may fail, and the mirrors that did, with their slots. Almost always empty.
    failures_allowed: usize,
    failures: Vec<(usize, VolumeError)>,
}

/// The completion of a read or a write.
#[derive(Debug)]
pub struct DataDone {
    pub tag: u64,
    pub logical: Logical,
    /// The memory of the request.
    pub buffers: Buffers,
    pub result: Result<(), VolumeError>,
}

/// Why a request was not accepted.
#[derive(Debug)]
pub enum SubmitError {
    /// There are not enough free slots for its device requests. The caller polls first.
    Full,
    /// It is not contiguous on its devices, or every mirror of a read is missing or known to be
    /// stale. The caller uses [`Volume::read_data`] or [`Volume::write_data`].
    Split,
    /// [`Volume::read_data`] and [`Volume::write_data`] refuse it, too.
    Refused(Box<VolumeError>),
}

impl Volume {
    /// Makes a queue over all devices of the volume.
    pub fn data_queue(&self, options: &DataQueueOptions) -> DataQueue {
        let devices = self.queues.devices();
        let depth = options.depth.max(COPIES_MAX);
        let (arenas, event) = (options.arenas.clone(), options.event.clone());
        // The thread that waits for the event may not be the one that submits.
        let is_prompt = event.is_some();
        let pair_options =
            QueueOptions { depth, arenas, event, is_prompt, ..QueueOptions::default() };
        let pair = QueuePair::with_options(&devices, &pair_options);
        let depth = pair.depth();
        let table = Table {
            requests: (0..depth).map(|_| InFlight::default()).collect(),
            free: (0..depth).rev().collect(),
            spares: Vec::new(),
        };
        DataQueue { devices, pair, chunks: self.chunks.reader(), table }
    }

    /// Returns how many of `bytes` from an address on can be one request of a data queue; 0 if the
    /// address is in no chunk.
    pub fn contiguous(&self, logical: Logical, bytes: u64) -> u64 {
        let chunks = self.chunks.load();
        let segment = chunks.find(logical).and_then(|layout| layout.segment(logical, bytes));
        segment.map_or(0, |segment| segment.bytes)
    }
}

impl DataQueue {
    /// Returns how many device requests can be queued: a read needs one, a write one for each
    /// mirror.
    pub fn available(&self) -> usize {
        self.pair.available()
    }

    /// Returns how many reads and writes were accepted and not yet returned by [`DataQueue::poll`].
    pub fn outstanding(&self) -> usize {
        self.table.outstanding()
    }

    /// Returns how requests are submitted to the devices.
    pub fn backend(&self) -> Backend {
        self.pair.backend()
    }

    /// Queues a read of whole sectors.
    ///
    /// # Errors
    ///
    /// Returns the buffer if the read was not accepted.
    pub fn read(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffer: Buffer,
        tag: u64,
    ) -> Result<(), (Buffer, SubmitError)> {
        match self.map_read(volume, logical, &buffer) {
            Ok((slot, physical)) => {
                let Some(index) = self.table.enter(tag, logical, 1, 0) else {
                    return Err((buffer, SubmitError::Full));
                };
                let sent = self.pair.submit(Request::read(slot, physical, buffer, length(index)));
                sent.map_err(|back| {
                    self.table.leave(index);
                    (back.abandon().into_one().unwrap_or_default(), SubmitError::Full)
                })
            }
            Err(error) => Err((buffer, error)),
        }
    }

    /// Queues a write of whole sectors to every mirror, from the buffers in their order.
    ///
    /// # Errors
    ///
    /// Returns the buffers if the write was not accepted.
    pub fn write(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffers: impl Into<Buffers>,
        tag: u64,
    ) -> Result<(), (Buffers, SubmitError)> {
        self.write_buffers(volume, logical, buffers.into(), tag)
    }

    /// Submits what was queued, without waiting.
    pub fn submit(&mut self) {
        self.pair.kick();
    }

    /// Waits until `min` requests are complete (at most all in flight), at most `timeout` long, and
    /// appends all that are complete to `out`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`VolumeError::OtherQueue`] if the queue was made for another volume. All requests are then
    /// still in flight.
    pub fn poll(
        &mut self,
        volume: &Volume,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<DataDone>,
    ) -> Result<usize, VolumeError> {
        self.check_volume(volume)?;
        let before = out.len();
        let want = min.min(self.outstanding());
        // A deadline beyond the range of `Instant` is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let done = out.len().saturating_sub(before);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let table = &mut self.table;
            self.pair.poll_each(want.saturating_sub(done), left, |completion| {
                out.extend(table.complete(volume, completion));
            });
            let done = out.len().saturating_sub(before);
            if done >= want || left.is_some_and(|left| left.is_zero()) {
                return Ok(done);
            }
        }
    }

    /// Returns where a read goes: a slot, and the address on that device.
    fn map_read(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffer: &Buffer,
    ) -> Result<(usize, u64), SubmitError> {
        self.check_volume(volume).map_err(refused)?;
        check_shape(logical, buffer.len()).map_err(refused)?;
        if self.available() == 0 {
            return Err(SubmitError::Full);
        }
        let bytes = length(buffer.len());
        let chunks = self.chunks.load(&volume.chunks);
        let layout = chunks.find(logical).ok_or(SubmitError::Split)?;
        let segment = layout.segment(logical, bytes).filter(|segment| segment.bytes == bytes);
        let (_, slot, physical) = segment
            .and_then(|segment| choose(volume, layout, &segment))
            .ok_or(SubmitError::Split)?;
        Ok((slot, physical))
    }

    fn write_buffers(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffers: Buffers,
        tag: u64,
    ) -> Result<(), (Buffers, SubmitError)> {
        let bytes = buffers.bytes();
        let checked = self.check_volume(volume).and_then(|()| check_shape(logical, bytes));
        if let Err(error) = checked {
            return Err((buffers, refused(error)));
        }
        let chunks = self.chunks.load(&volume.chunks);
        let layout = chunks.find(logical);
        let segment = layout.and_then(|layout| layout.segment(logical, length(bytes)));
        let Some((layout, segment)) = layout.zip(segment).filter(|(_, p)| p.bytes == length(bytes))
        else {
            return Err((buffers, SubmitError::Split));
        };
        let may_write = volume.check_may_write().map_err(VolumeError::from);
        let checked = may_write.and_then(|()| volume.check_mirrors(layout, &segment));
        if let Err(error) = checked {
            return Err((buffers, refused(error)));
        }
        let copies = layout.mirrors(&segment);
        if self.pair.available() < copies.len() {
            return Err((buffers, SubmitError::Full));
        }
        let failures_allowed = failures_allowed(layout, Content::Data);
        let Some(index) = self.table.enter(tag, logical, copies.len(), failures_allowed) else {
            return Err((buffers, SubmitError::Full));
        };
        // The mirrors were checked. `usize::MAX` is no device, so a request to it fails.
        let slot_and_place =
            |stripe: &IoStripe| (stripe.slot.unwrap_or(usize::MAX), segment.physical(stripe).0);
        if let [one] = copies {
            let (slot, physical) = slot_and_place(one);
            let sent = self.pair.submit(Request::write(slot, physical, buffers, length(index)));
            return sent.map_err(|back| {
                self.table.leave(index);
                (back.abandon().into_buffers().unwrap_or_default(), SubmitError::Full)
            });
        }
        let shared = self.table.share(buffers);
        for stripe in copies {
            let (slot, physical) = slot_and_place(stripe);
            let load = Arc::clone(&shared);
            let sent = self.pair.submit(Request::write(slot, physical, load, length(index)));
            assert!(sent.is_ok(), "the free slots for all mirrors were checked");
        }
        self.table.lend(index, shared);
        Ok(())
    }

    /// Checks that `volume` is the one that the queue was made for: an address on its devices means
    /// nothing on others.
    fn check_volume(&self, volume: &Volume) -> Result<(), VolumeError> {
        if volume.queues.is_over(&self.devices) { Ok(()) } else { Err(VolumeError::OtherQueue) }
    }
}

impl Table {
    fn enter(
        &mut self,
        tag: u64,
        logical: Logical,
        left: usize,
        failures_allowed: usize,
    ) -> Option<usize> {
        let index = self.free.pop()?;
        let request = self.requests.get_mut(index)?;
        *request =
            InFlight { tag, logical, left, shared: None, failures_allowed, failures: Vec::new() };
        Some(index)
    }

    fn leave(&mut self, index: usize) {
        self.free.push(index);
    }

    fn share(&mut self, buffers: Buffers) -> Arc<Buffers> {
        let mut spare = self.spares.pop().unwrap_or_default();
        match Arc::get_mut(&mut spare) {
            Some(memory) => {
                *memory = buffers;
                spare
            }
            None => Arc::new(buffers),
        }
    }

    fn lend(&mut self, index: usize, shared: Arc<Buffers>) {
        if let Some(request) = self.requests.get_mut(index) {
            request.shared = Some(shared);
        }
    }

    fn outstanding(&self) -> usize {
        self.requests.len().saturating_sub(self.free.len())
    }

    /// Processes the completion of a device request. Returns its read or write, if that is complete
    /// now.
    fn complete(&mut self, volume: &Volume, completion: Completion) -> Option<DataDone> {
        let Completion { tag, device, kind, offset, bytes, load, result } = completion;
        let index = usize::try_from(tag).ok()?;
        let request = self.requests.get_mut(index)?;
        if let Err(source) = result {
            let error = match kind {
                RequestKind::Write => volume.write_failure(device, offset, bytes, source),
                RequestKind::Read | RequestKind::Flush | RequestKind::Discard => {
                    volume.read_failure(device, offset, bytes, source)
                }
            };
            request.failures.push((device, error));
        } else if kind == RequestKind::Write {
            volume.remove_stale_range(device, offset, bytes);
        }
        request.left = request.left.saturating_sub(1);
        if request.left > 0 {
            return None;
        }
        let failures = std::mem::take(&mut request.failures);
        let result = if failures.len() <= request.failures_allowed {
            volume.record_failed_mirrors(Some(request.logical), &failures);
            Ok(())
        } else {
            failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
        };
        let (tag, logical) = (request.tag, request.logical);
        let buffers = match request.shared.take() {
            None => load.into_buffers().unwrap_or_default(),
            Some(mut shared) => {
                drop(load);
                let memory = Arc::get_mut(&mut shared).expect("no mirror uses the memory any more");
                let buffers = std::mem::take(memory);
                self.spares.push(shared);
                buffers
            }
        };
        self.free.push(index);
        Some(DataDone { tag, logical, buffers, result })
    }
}

fn refused(error: VolumeError) -> SubmitError {
    SubmitError::Refused(Box::new(error))
}
