//! [`DataQueue`]: data in flight on all devices of a volume, over one queue pair, for one owner.
//!
//! ```text
//! read, write   -> queued: one device request for a read, one for each copy for a write
//! submit        -> the kernel sees what was queued
//! poll          -> one completion for each read or write, when its last device request is done
//! ```
//!
//! Laws:
//! 1. What is taken comes back as one [`DataDone`], with its buffers. What is not taken gives its
//!    buffers back at once, and has done nothing.
//! 2. A request lies together on its devices ([`Volume::contiguous`]); one that does not is
//!    [`NotTaken::Split`], and the general path's.
//! 3. A write is `Ok` if no more copies of it failed than may (law 1 of [`crate::tolerance`]). All
//!    copies are written from the same memory, which comes back when the last of them is done.
//! 4. A read is not verified here: who takes it does that ([`Volume::verify`]). On a mismatch or an
//!    error he asks [`Volume::read_data`], which tries the other copies.
//! 5. A device request that fails is counted on its device, once, and concerns the request that it
//!    belongs to, and no other.
//! 6. In a steady state neither reads nor writes allocate.
//! 7. Whoever has `&mut` may poll, whichever thread queued. He gets what is complete at once if
//!    that thread waits or sleeps, and with its next timer tick if it computes: a ring that is
//!    prompt even then interrupts it for every completion, which was measured to be half of all
//!    time of random reads of 4 KiB at depth 64.
//! 8. Memory that a device cannot reach directly (borrowed, at an odd address) is transferred by
//!    the thread that queues, then and there.
//! 9. Requests in flight at the same time run in any order: who writes what another writes or reads
//!    waits for that first.

use crate::chunk_map::Follower;
use crate::error::VolumeError;
use crate::request::choose;
use crate::stripe::Place;
use crate::tolerance::{Content, spare_copies};
use crate::volume::Volume;
use crate::write_data::check_shape;
use butternut_device::{
    Backend, Completion, Device, QueueOptions, QueuePair, Request, RequestKind,
};
use butternut_format::units::{Logical, length};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most copies that a profile has: a queue has room for one write of so many at least.
const COPIES_MAX: usize = 4;

/// How to make a data queue.
#[derive(Clone, Debug)]
pub struct DataQueueOptions {
    /// Device requests in flight.
    pub depth: usize,
    /// Memory to register: transfers in it cost less. All of it stays resident.
    pub arenas: Vec<Arena>,
}

impl Default for DataQueueOptions {
    fn default() -> Self {
        Self { depth: 128, arenas: Vec::new() }
    }
}

/// Data requests in flight.
#[derive(Debug)]
pub struct DataQueue {
    /// Those of the volume; says whether it is the same one.
    devices: Arc<[Arc<dyn Device>]>,
    pair: QueuePair,
    chunks: Follower,
    table: Table,
}

/// Requests in flight. The tag of a device request is the place of its request here.
#[derive(Debug)]
struct Table {
    requests: Box<[InFlight]>,
    free: Vec<usize>,
    /// Shared memory in no request.
    spares: Vec<Arc<Buffers>>,
}

#[derive(Debug, Default)]
struct InFlight {
    tag: u64,
    logical: Logical,
    /// Device requests that are not done.
    left: usize,
    /// What the copies of a write share.
    shared: Option<Arc<Buffers>>,
    /// Copies that may fail, and those that did, with their slots. Almost always empty.
    spare: usize,
    failures: Vec<(usize, VolumeError)>,
}

/// The end of a read or a write.
#[derive(Debug)]
pub struct DataDone {
    pub tag: u64,
    pub logical: Logical,
    /// What was lent.
    pub buffers: Buffers,
    pub result: Result<(), VolumeError>,
}

/// Why a request was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// There is no room for its device requests: poll first.
    Full,
    /// It does not lie together on its devices, or no copy's device is there: for the general
    /// path.
    Split,
    /// The general path refuses it too.
    Refused(Box<VolumeError>),
}

impl Volume {
    /// A queue of its own over all devices of the volume.
    pub fn data_queue(&self, options: &DataQueueOptions) -> DataQueue {
        let devices = self.lanes.devices();
        let depth = options.depth.max(COPIES_MAX);
        let arenas = options.arenas.clone();
        let pair_options = QueueOptions { depth, arenas, ..QueueOptions::default() };
        let pair = QueuePair::with_options(&devices, &pair_options);
        let depth = pair.depth();
        let table = Table {
            requests: (0..depth).map(|_| InFlight::default()).collect(),
            free: (0..depth).rev().collect(),
            spares: Vec::new(),
        };
        DataQueue { devices, pair, chunks: self.chunks.follow(), table }
    }

    /// How many of `bytes` from an address on can be one request of a data queue; none where no
    /// chunk is.
    pub fn contiguous(&self, logical: Logical, bytes: u64) -> u64 {
        let chunks = self.chunks.load();
        let piece = chunks.find(logical).and_then(|layout| layout.piece(logical, bytes));
        piece.map_or(0, |piece| piece.bytes)
    }
}

impl DataQueue {
    /// Device requests that can still be queued: a read takes one, a write one for each copy.
    pub fn room(&self) -> usize {
        self.pair.room()
    }

    /// Reads and writes that were taken and not yet polled.
    pub fn outstanding(&self) -> usize {
        self.table.outstanding()
    }

    /// How requests reach the devices.
    pub fn backend(&self) -> Backend {
        self.pair.backend()
    }

    /// Reads whole sectors that lie on one stripe of one chunk.
    pub fn read(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffer: Buffer,
        tag: u64,
    ) -> Result<(), (Buffer, NotTaken)> {
        match self.place_read(volume, logical, &buffer) {
            Ok((slot, physical)) => {
                let Some(index) = self.table.enter(tag, logical, 1, 0) else {
                    return Err((buffer, NotTaken::Full));
                };
                let sent = self.pair.submit(Request::read(slot, physical, buffer, length(index)));
                sent.map_err(|back| {
                    self.table.leave(index);
                    (back.abandon().into_one().unwrap_or_default(), NotTaken::Full)
                })
            }
            Err(not_taken) => Err((buffer, not_taken)),
        }
    }

    /// Writes whole sectors to every copy, from the buffers in their order.
    pub fn write(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffers: impl Into<Buffers>,
        tag: u64,
    ) -> Result<(), (Buffers, NotTaken)> {
        self.write_row(volume, logical, buffers.into(), tag)
    }

    /// Lets the kernel see what was queued, without waiting.
    pub fn submit(&mut self) {
        self.pair.kick();
    }

    /// Waits until `min` requests are complete (or all that are out, or the timeout), and adds all
    /// that are to `out`. Says how many.
    pub fn poll(
        &mut self,
        volume: &Volume,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<DataDone>,
    ) -> usize {
        self.check_volume(volume);
        let before = out.len();
        let want = min.min(self.outstanding());
        // A time too far away to be told is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let done = out.len().saturating_sub(before);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let table = &mut self.table;
            self.pair.poll_each(want.saturating_sub(done), left, |completion| {
                out.extend(table.settle(volume, completion));
            });
            let done = out.len().saturating_sub(before);
            if done >= want || left.is_some_and(|left| left.is_zero()) {
                return done;
            }
        }
    }

    /// Where a read goes: a slot, and the place on its device.
    fn place_read(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffer: &Buffer,
    ) -> Result<(usize, u64), NotTaken> {
        self.check_volume(volume);
        check_shape(logical, buffer.len()).map_err(refused)?;
        if self.room() == 0 {
            return Err(NotTaken::Full);
        }
        let bytes = length(buffer.len());
        let chunks = self.chunks.load(&volume.chunks);
        let layout = chunks.find(logical).ok_or(NotTaken::Split)?;
        let piece = layout.piece(logical, bytes).filter(|piece| piece.bytes == bytes);
        let (_, slot, physical) =
            piece.and_then(|piece| choose(volume, layout, &piece)).ok_or(NotTaken::Split)?;
        Ok((slot, physical))
    }

    fn write_row(
        &mut self,
        volume: &Volume,
        logical: Logical,
        buffers: Buffers,
        tag: u64,
    ) -> Result<(), (Buffers, NotTaken)> {
        self.check_volume(volume);
        let bytes = buffers.bytes();
        if let Err(error) = check_shape(logical, bytes) {
            return Err((buffers, refused(error)));
        }
        let chunks = self.chunks.load(&volume.chunks);
        let layout = chunks.find(logical);
        let piece = layout.and_then(|layout| layout.piece(logical, length(bytes)));
        let Some((layout, piece)) = layout.zip(piece).filter(|(_, p)| p.bytes == length(bytes))
        else {
            return Err((buffers, NotTaken::Split));
        };
        if let Err(error) = volume.check_places(layout, &piece) {
            return Err((buffers, refused(error)));
        }
        let copies = layout.copies(&piece);
        if self.pair.room() < copies.len() {
            return Err((buffers, NotTaken::Full));
        }
        let spare = spare_copies(layout, Content::Data);
        let Some(index) = self.table.enter(tag, logical, copies.len(), spare) else {
            return Err((buffers, NotTaken::Full));
        };
        // The places were checked: `usize::MAX` is no device, and says so.
        let slot_and_place =
            |place: &Place| (place.slot.unwrap_or(usize::MAX), piece.physical(place).0);
        if let [one] = copies {
            let (slot, physical) = slot_and_place(one);
            let sent = self.pair.submit(Request::write(slot, physical, buffers, length(index)));
            return sent.map_err(|back| {
                self.table.leave(index);
                (back.abandon().into_buffers().unwrap_or_default(), NotTaken::Full)
            });
        }
        let shared = self.table.share(buffers);
        for place in copies {
            let (slot, physical) = slot_and_place(place);
            let load = Arc::clone(&shared);
            let sent = self.pair.submit(Request::write(slot, physical, load, length(index)));
            assert!(sent.is_ok(), "there was room for all copies");
        }
        self.table.lend(index, shared);
        Ok(())
    }

    /// A place on the devices of one volume is nothing on those of another.
    fn check_volume(&self, volume: &Volume) {
        let same = volume.lanes.is_over(&self.devices);
        assert!(same, "a data queue serves the volume that it was made for");
    }
}

impl Table {
    fn enter(&mut self, tag: u64, logical: Logical, left: usize, spare: usize) -> Option<usize> {
        let index = self.free.pop()?;
        let request = self.requests.get_mut(index)?;
        *request = InFlight { tag, logical, left, shared: None, spare, failures: Vec::new() };
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

    /// Takes one completion in; says what is done by it.
    fn settle(&mut self, volume: &Volume, completion: Completion) -> Option<DataDone> {
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
            volume.remove_missed(device, offset, bytes);
        }
        request.left = request.left.saturating_sub(1);
        if request.left > 0 {
            return None;
        }
        let failures = std::mem::take(&mut request.failures);
        let result = if failures.len() <= request.spare {
            volume.note_missed_copies(Some(request.logical), &failures);
            Ok(())
        } else {
            failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
        };
        let (tag, logical) = (request.tag, request.logical);
        let buffers = match request.shared.take() {
            None => load.into_buffers().unwrap_or_default(),
            Some(mut shared) => {
                drop(load);
                let memory = Arc::get_mut(&mut shared).expect("every copy gave its share back");
                let buffers = std::mem::take(memory);
                self.spares.push(shared);
                buffers
            }
        };
        self.free.push(index);
        Some(DataDone { tag, logical, buffers, result })
    }
}

fn refused(error: VolumeError) -> NotTaken {
    NotTaken::Refused(Box::new(error))
}
