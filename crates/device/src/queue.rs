//! [`QueuePair`]: many requests in flight on all devices of a volume.
//!
//! | device | kernel gives a ring | it does not, or [`RingUse::Never`] |
//! |---|---|---|
//! | file or block device | one ring for all of them | threads of the process-wide pool |
//! | any other | on the calling thread, in `submit` or `run` | the same |
//!
//! 1. At most `depth` requests are submitted and not yet polled; one more is given back.
//! 2. Every request comes back exactly once; requests complete in any order.
//! 3. A failure is the result of its own request and of no other.
//! 4. All results and all counters are the same on both lanes.
//! 5. Direct transfers that are not aligned go through memory of the queue pair: reads in the ring
//!    up to a size, the rest by the device's own blocking calls. Discards block as well, there is
//!    no ring operation for them that all kernels have.
//! 6. A queue pair serves one thread at a time, and any thread: whoever has `&mut` may poll, and
//!    gets completions of requests that another thread submitted while that thread does nothing
//!    (law 8 of [`butternut_sys::ring`]). Dropping it waits for what is in flight.
//! 7. A write from several pieces of memory is one write of the device, and one completion.
//! 8. A ring does not survive a fork, nor do threads: make queue pairs in the process that uses
//!    them.

mod bounce;
mod threads;

use crate::device::Device;
use crate::error::{DeviceError, check_range, check_writable};
use crate::file::is_block_aligned;
use crate::request::{Completion, Outline, ReadInto, Request, RequestKind, WriteFrom};
use bounce::{Looking, Shared};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Load;
use butternut_sys::errno::Errno;
use butternut_sys::file::Alignment;
use butternut_sys::ring::{
    Done, Operation, RING_DEPTH_MAX, Ring, RingOptions, RingRefused, Submission,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::Threads;

/// Whether to ask the kernel for an `io_uring`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// Use one if the kernel gives one.
    #[default]
    Try,
    /// Use threads.
    Never,
}

#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The most requests submitted and not yet polled; at most [`RING_DEPTH_MAX`].
    pub depth: usize,
    pub ring: RingUse,
    /// Memory to register with the ring: transfers in it cost less. All of it stays resident.
    pub arenas: Vec<Arena>,
    /// Completions come at once even while the thread that submitted computes, for a thread that
    /// waits for them in its place (law 6); this costs it an interrupt now and then.
    pub is_prompt: bool,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { depth: 128, ring: RingUse::Try, arenas: Vec::new(), is_prompt: false }
    }
}

/// How requests reach the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Ring,
    /// Of the process-wide pool. `refused` is what the kernel said, if it was asked.
    Threads {
        refused: Option<RingRefused>,
    },
    /// No device is a file: all run on the calling thread.
    Inline,
}

#[derive(Debug)]
pub struct QueuePair {
    depth: usize,
    shared: Shared,
    lane: Lane,
    refused: Option<RingRefused>,
    /// Completions that nobody has polled yet.
    ready: VecDeque<Completion>,
}

#[derive(Debug)]
enum Lane {
    Ring(Box<Ring<Outline>>),
    Threads(Threads),
    Inline,
}

/// What a queue pair remembers of a device, so that a request asks it nothing.
#[derive(Debug)]
struct Target {
    device: Arc<dyn Device>,
    /// Its number in the ring, if it can be reached by one.
    file: Option<u32>,
    /// Where in its file it begins.
    offset: u64,
    alignment: Alignment,
}

impl QueuePair {
    pub fn new(devices: impl AsRef<[Arc<dyn Device>]>, depth: usize) -> QueuePair {
        QueuePair::with_options(
            devices.as_ref(),
            &QueueOptions { depth, ..QueueOptions::default() },
        )
    }

    pub fn with_options(devices: &[Arc<dyn Device>], options: &QueueOptions) -> QueuePair {
        let depth = options.depth.clamp(1, RING_DEPTH_MAX);
        let reachable = devices.iter().filter_map(|device| device.ring_target());
        let files: Vec<_> = reachable.map(|target| target.file).collect();
        let mut refused = None;
        let lane = if files.is_empty() {
            Lane::Inline
        } else if options.ring == RingUse::Never {
            Lane::Threads(Threads::default())
        } else {
            let (arenas, is_prompt) = (options.arenas.clone(), options.is_prompt);
            let ring = RingOptions { depth, arenas, is_prompt };
            match Ring::new(&files, &ring) {
                Ok(ring) => Lane::Ring(Box::new(ring)),
                Err(cause) => {
                    refused = Some(cause);
                    Lane::Threads(Threads::default())
                }
            }
        };
        let shared = Shared::new(targets(devices));
        QueuePair { depth, shared, lane, refused, ready: VecDeque::with_capacity(depth) }
    }

    pub fn backend(&self) -> Backend {
        match &self.lane {
            Lane::Ring(_) => Backend::Ring,
            Lane::Threads(_) => Backend::Threads { refused: self.refused },
            Lane::Inline => Backend::Inline,
        }
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Requests that can still be submitted.
    pub fn room(&self) -> usize {
        self.depth.saturating_sub(self.outstanding())
    }

    /// Lets the kernel see what was submitted, without waiting.
    pub fn kick(&mut self) {
        if let Lane::Ring(ring) = &mut self.lane {
            ring.kick();
        }
    }

    /// Requests submitted and not yet polled.
    pub fn outstanding(&self) -> usize {
        let in_lane = match &self.lane {
            Lane::Ring(ring) => ring.outstanding(),
            Lane::Threads(threads) => threads.outstanding(),
            Lane::Inline => 0,
        };
        in_lane + self.ready.len()
    }

    /// Takes the request, or gives it back when `depth` requests are out already. It begins to run
    /// at the next [`QueuePair::kick`] or [`QueuePair::poll`] at the latest.
    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.outstanding() >= self.depth {
            return Err(request);
        }
        self.leave_broken_ring();
        let index = request.outline.device;
        let Some(target) = self.shared.targets.get(index) else {
            self.ready.push_back(request.complete(Err(DeviceError::NoDevice { index })));
            return Ok(());
        };
        if let Err(error) = check(&*target.device, &request.outline) {
            self.ready.push_back(request.complete(Err(error)));
            return Ok(());
        }
        match (&mut self.lane, target.file) {
            (Lane::Ring(ring), Some(file)) if target.suits_ring(&request) => {
                target.count(&request.outline);
                return match ring.submit(target.submission(file, request)) {
                    Ok(()) => Ok(()),
                    Err(back) => Err(take_back(back)),
                };
            }
            (Lane::Threads(threads), Some(_)) => {
                threads.submit(Arc::clone(&target.device), request);
            }
            (Lane::Ring(_) | Lane::Threads(_) | Lane::Inline, _) => {
                let device = Arc::clone(&target.device);
                self.ready.push_back(execute(&*device, request));
            }
        }
        Ok(())
    }

    /// Waits until `min` completions are there (or all that are out, or the timeout), and adds
    /// everything that is complete to `out`. Says how many.
    pub fn poll(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> usize {
        self.poll_each(min, timeout, |completion| out.push(completion))
    }

    /// The same; shows each completion.
    pub fn poll_each(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        mut each: impl FnMut(Completion),
    ) -> usize {
        let mut count = self.ready.len();
        self.ready.drain(..).for_each(&mut each);
        // A time too far away to be told is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let min = min.saturating_sub(count);
        match &mut self.lane {
            Lane::Ring(ring) => {
                ring.wait(min, deadline);
                while let Some(done) = ring.take_done() {
                    each(complete(&self.shared.targets, done));
                    count += 1;
                }
            }
            Lane::Threads(threads) => {
                let mut arrived = Vec::new();
                threads.wait(min, deadline, &mut arrived);
                count += arrived.len();
                arrived.into_iter().for_each(each);
            }
            Lane::Inline => {}
        }
        count
    }

    /// Runs the batch to the end. Each request has its own result.
    pub fn run(&mut self, batch: &mut [ReadInto<'_>]) {
        self.leave_broken_ring();
        match &mut self.lane {
            Lane::Ring(ring) => ring.run(batch, &self.shared, None),
            Lane::Threads(threads) => threads.run(batch, |read| self.shared.targets.read(read)),
            Lane::Inline => batch.iter_mut().for_each(|read| self.shared.targets.read(read)),
        }
    }

    /// As [`QueuePair::run`]; `look` may be shown reads that succeeded while others are still on
    /// their way. It is called for all of them, some or none.
    pub fn run_looking(
        &mut self,
        batch: &mut [ReadInto<'_>],
        look: &(dyn Fn(&ReadInto<'_>) + Sync),
    ) {
        self.leave_broken_ring();
        if let Lane::Ring(ring) = &mut self.lane {
            ring.run(batch, &Looking { shared: &self.shared, look }, None);
        } else {
            self.run(batch);
        }
    }

    /// The same for writes.
    pub fn run_writes(&mut self, batch: &mut [WriteFrom<'_>]) {
        self.run_writes_meanwhile(batch, None);
    }

    /// The same; what there is to do `meanwhile` is done once, on this thread, and if possible
    /// while the devices are at work.
    pub fn run_writes_meanwhile(
        &mut self,
        batch: &mut [WriteFrom<'_>],
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) {
        self.leave_broken_ring();
        if !batch.is_empty()
            && let Lane::Ring(ring) = &mut self.lane
        {
            ring.run(batch, &self.shared, meanwhile);
            return;
        }
        if let Some(work) = meanwhile.take() {
            work();
        }
        match &mut self.lane {
            Lane::Ring(_) => {}
            Lane::Threads(threads) => threads.run(batch, |write| self.shared.targets.write(write)),
            Lane::Inline => batch.iter_mut().for_each(|write| self.shared.targets.write(write)),
        }
    }

    /// A ring that the kernel took away is replaced by threads.
    fn leave_broken_ring(&mut self) {
        let Lane::Ring(ring) = &mut self.lane else { return };
        let Some(errno) = ring.broken() else { return };
        ring.wait(usize::MAX, None);
        while let Some(done) = ring.take_done() {
            self.ready.push_back(complete(&self.shared.targets, done));
        }
        self.refused = Some(RingRefused::Failed(errno));
        self.lane = Lane::Threads(Threads::default());
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let mut last = Vec::with_capacity(self.outstanding());
        while self.outstanding() > 0 {
            self.poll(usize::MAX, None, &mut last);
            last.clear();
        }
    }
}

/// The devices of a queue pair, by number.
#[derive(Debug)]
struct Targets(Vec<Target>);

impl Targets {
    fn get(&self, index: usize) -> Option<&Target> {
        self.0.get(index)
    }

    /// Runs one read of a batch by the device's own call.
    fn read(&self, read: &mut ReadInto<'_>) {
        read.result = match self.get(read.device) {
            None => Err(DeviceError::NoDevice { index: read.device }),
            Some(target) => target.device.read_at(read.offset, read.buf),
        };
    }

    fn write(&self, write: &mut WriteFrom<'_>) {
        write.result = match self.get(write.device) {
            None => Err(DeviceError::NoDevice { index: write.device }),
            Some(target) => target.device.write_row_at(write.offset, write.pieces()),
        };
    }
}

impl Target {
    /// Whether the ring can do it without a bounce. A buffer has room for whole blocks, so a read's
    /// length does not matter.
    fn suits_ring(&self, request: &Request) -> bool {
        let row = request.load.as_slice();
        let offset = self.offset + request.outline.offset;
        let aligned = |len| is_block_aligned(self.alignment, offset, len);
        let in_memory = |buffer: &Buffer| {
            buffer.as_ptr().addr().is_multiple_of(self.alignment.memory_bytes as usize)
        };
        match request.outline.kind {
            RequestKind::Read => row.iter().all(|buffer| {
                aligned(0) && in_memory(buffer) && self.blocks(buffer.len()) <= buffer.capacity()
            }),
            RequestKind::Write => {
                row.iter().all(|buffer| aligned(buffer.len() as u64) && in_memory(buffer))
            }
            RequestKind::Flush => true,
            RequestKind::Discard => false,
        }
    }

    fn blocks(&self, len: usize) -> usize {
        len.next_multiple_of(self.alignment.offset_bytes as usize)
    }

    fn submission(&self, file: u32, request: Request) -> Submission<Outline> {
        let (outline, mut load) = request.into_parts();
        let need = load.bytes();
        let operation = match outline.kind {
            RequestKind::Read => {
                if let Some(buffer) = load.one_mut() {
                    buffer.set_len(self.blocks(need));
                }
                Operation::Read
            }
            RequestKind::Write => Operation::Write,
            RequestKind::Flush | RequestKind::Discard => Operation::Flush,
        };
        let offset = self.offset + outline.offset;
        Submission { operation, file, offset, load, need, payload: outline }
    }

    fn count(&self, outline: &Outline) {
        let counters = self.device.counters();
        match outline.kind {
            RequestKind::Read => counters.count_read(outline.len()),
            RequestKind::Write => counters.count_write(outline.len()),
            RequestKind::Flush => counters.count_flush(),
            RequestKind::Discard => counters.count_discard(),
        }
    }
}

fn targets(devices: &[Arc<dyn Device>]) -> Targets {
    let mut next_file = 0;
    let target = |device: &Arc<dyn Device>| {
        let ring_target = device.ring_target();
        let file = ring_target.map(|_| next_file);
        next_file += u32::from(file.is_some());
        let offset = ring_target.map_or(0, |target| target.offset);
        let (device, alignment) = (Arc::clone(device), device.alignment());
        Target { device, file, offset, alignment }
    };
    Targets(devices.iter().map(target).collect())
}

fn check(device: &dyn Device, outline: &Outline) -> Result<(), DeviceError> {
    let Outline { offset, bytes, kind, .. } = *outline;
    match kind {
        RequestKind::Read => check_range(device, offset, bytes),
        RequestKind::Write | RequestKind::Discard => {
            check_writable(device)?;
            check_range(device, offset, bytes)
        }
        RequestKind::Flush => Ok(()),
    }
}

fn take_back(submission: Submission<Outline>) -> Request {
    let Submission { payload, load, .. } = submission;
    Request::from_parts(payload, restored(&payload, load))
}

/// The memory of a request, as long as it was.
fn restored(outline: &Outline, mut load: Load) -> Load {
    if outline.kind == RequestKind::Read
        && let Some(buffer) = load.one_mut()
    {
        buffer.set_len(outline.len());
    }
    load
}

/// A completion of the ring as one of the queue pair.
fn complete(targets: &Targets, done: Done<Outline>) -> Completion {
    let Done { load, payload: outline, result } = done;
    let result = result.map_err(|cause| match targets.get(outline.device) {
        None => DeviceError::NoDevice { index: outline.device },
        Some(target) => failure(&*target.device, &outline, cause),
    });
    outline.complete(restored(&outline, load), result)
}

fn failure(device: &dyn Device, outline: &Outline, cause: Errno) -> DeviceError {
    let Outline { offset, bytes, kind, .. } = *outline;
    match kind {
        RequestKind::Read => DeviceError::read(device, offset, bytes, cause),
        RequestKind::Write => DeviceError::write(device, offset, bytes, cause),
        RequestKind::Flush => DeviceError::flush(device, cause),
        RequestKind::Discard => DeviceError::discard(device, offset, bytes, cause),
    }
}

/// Runs a request by the device's own blocking calls.
fn execute(device: &dyn Device, mut request: Request) -> Completion {
    let Outline { offset, bytes, kind, .. } = request.outline;
    let result = match kind {
        RequestKind::Read => match request.load.one_mut() {
            Some(buffer) => device.read_at(offset, buffer),
            None => Err(DeviceError::read(device, offset, bytes, Errno::INVALID)),
        },
        RequestKind::Write => {
            let row: Vec<&[u8]> = request.load.as_slice().iter().map(|buffer| &**buffer).collect();
            device.write_row_at(offset, &row)
        }
        RequestKind::Flush => device.flush(),
        RequestKind::Discard => device.discard(offset, bytes),
    };
    request.complete(result)
}
