//! [`QueuePair`]: many requests in flight on all devices of a volume.
//!
//! | device | the kernel provides a ring | it does not, or [`RingUse::Never`] |
//! |---|---|---|
//! | file or block device | one ring for all of them | threads of the process-wide pool |
//! | any other | on the calling thread, in `submit` or `run` | the same; `run` uses the pool too |
//!
//! 1. At most `depth` requests are submitted and not yet polled; `submit` returns any further
//!    request.
//! 2. Every request completes exactly once; requests complete in any order.
//! 3. A failure is the result of its own request and of no other.
//! 4. Results and counters are the same with a ring and without, except that a durable write
//!    ([`WriteFrom::is_durable`]) counts one flush more without a ring.
//! 5. Direct transfers that are not aligned use bounce buffers: the ring bounces borrowed requests
//!    up to a size, the device's own blocking calls bounce the rest. Discards block as well,
//!    because no ring operation for them exists on all supported kernels.
//! 6. One thread at a time uses a queue pair, but it may be any thread: a thread with `&mut` can
//!    poll the completions of requests that another thread submitted, without any action of that
//!    thread (law 8 of [`butternut_sys::ring`]). Dropping a queue pair waits for the requests in
//!    flight.
//! 7. A write from several slices or buffers counts once and completes once. The ring sends it to
//!    the device as one write; the blocking call of a file writes the slices one after the other.
//! 8. Neither rings nor threads survive a fork: a process must create its queue pairs itself.

mod bounce;
mod threads;

use crate::device::Device;
use crate::error::{DeviceError, check_range, check_writable};
use crate::file::is_block_aligned;
use crate::request::{Completion, ReadInto, Request, RequestHeader, RequestKind, WriteFrom};
use bounce::{Inspected, Shared};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Load;
use butternut_sys::errno::Errno;
use butternut_sys::event::Event;
use butternut_sys::file::Alignment;
use butternut_sys::ring::{
    Completion as RingCompletion, Operation, RING_DEPTH_MAX, Ring, RingOptions, RingUnavailable,
    Submission,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::Threads;

/// Whether to create an `io_uring`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// Use a ring if the kernel provides one.
    #[default]
    Try,
    /// Use threads.
    Never,
}

/// How to create a queue pair.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Maximum number of requests submitted and not yet polled, up to [`RING_DEPTH_MAX`].
    pub depth: usize,
    pub ring: RingUse,
    /// Memory to register with the ring, which makes transfers in it cheaper. All of it stays
    /// resident.
    pub arenas: Vec<Arena>,
    /// Whether requests complete immediately even while the submitting thread computes, so that
    /// another thread can wait for them (law 6). This interrupts the submitting thread now and
    /// then.
    pub is_prompt: bool,
    /// Signalled at each completion, at the latest when it can be polled.
    pub event: Option<Arc<Event>>,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            depth: 128,
            ring: RingUse::Try,
            arenas: Vec::new(),
            is_prompt: false,
            event: None,
        }
    }
}

/// How requests reach the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Ring,
    /// Threads of the process-wide pool. `refused` is why the kernel provided no ring, if one was
    /// tried.
    Threads {
        refused: Option<RingUnavailable>,
    },
    /// No device is a file: all requests run on the calling thread.
    Inline,
}

/// Submission and completion of requests on the devices of a volume.
#[derive(Debug)]
pub struct QueuePair {
    depth: usize,
    shared: Shared,
    engine: Engine,
    refused: Option<RingUnavailable>,
    /// Completions that are ready to be polled.
    ready: VecDeque<Completion>,
    event: Option<Arc<Event>>,
}

#[derive(Debug)]
enum Engine {
    Ring(Box<Ring<RequestHeader>>),
    Threads(Threads),
    Inline,
}

/// The properties of a device, cached so that a request does not query the device for them.
#[derive(Debug)]
struct Target {
    device: Arc<dyn Device>,
    /// The index of its file in the ring, if it has one.
    file: Option<u32>,
    /// The offset in its file where the device begins, in bytes.
    offset: u64,
    alignment: Alignment,
}

impl QueuePair {
    /// Creates a queue pair with default options and the given depth.
    pub fn new(devices: impl AsRef<[Arc<dyn Device>]>, depth: usize) -> QueuePair {
        QueuePair::with_options(
            devices.as_ref(),
            &QueueOptions { depth, ..QueueOptions::default() },
        )
    }

    /// Creates a queue pair. Falls back to threads if the kernel provides no ring.
    pub fn with_options(devices: &[Arc<dyn Device>], options: &QueueOptions) -> QueuePair {
        let depth = options.depth.clamp(1, RING_DEPTH_MAX);
        let reachable = devices.iter().filter_map(|device| device.ring_target());
        let files: Vec<_> = reachable.map(|target| target.file).collect();
        let mut refused = None;
        let engine = if files.is_empty() {
            Engine::Inline
        } else if options.ring == RingUse::Never {
            Engine::Threads(Threads::new(options.event.clone()))
        } else {
            let (arenas, is_prompt) = (options.arenas.clone(), options.is_prompt);
            let ring = RingOptions { depth, arenas, is_prompt, event: options.event.clone() };
            match Ring::new(&files, &ring) {
                Ok(ring) => Engine::Ring(Box::new(ring)),
                Err(cause) => {
                    refused = Some(cause);
                    Engine::Threads(Threads::new(options.event.clone()))
                }
            }
        };
        let shared = Shared::new(targets(devices));
        let (ready, event) = (VecDeque::with_capacity(depth), options.event.clone());
        QueuePair { depth, shared, engine, refused, ready, event }
    }

    /// Returns how requests reach the devices.
    pub fn backend(&self) -> Backend {
        match &self.engine {
            Engine::Ring(_) => Backend::Ring,
            Engine::Threads(_) => Backend::Threads { refused: self.refused },
            Engine::Inline => Backend::Inline,
        }
    }

    /// Returns the maximum number of requests submitted and not yet polled.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of requests that can be submitted now.
    pub fn available(&self) -> usize {
        self.depth.saturating_sub(self.outstanding())
    }

    /// Submits queued requests to the kernel without waiting.
    pub fn kick(&mut self) {
        if let Engine::Ring(ring) = &mut self.engine {
            ring.kick();
            if ring.outstanding() > 0 {
                signal_if_unserved(ring, self.event.as_ref());
            }
        }
    }

    /// Returns the number of requests submitted and not yet polled.
    pub fn outstanding(&self) -> usize {
        let in_engine = match &self.engine {
            Engine::Ring(ring) => ring.outstanding(),
            Engine::Threads(threads) => threads.outstanding(),
            Engine::Inline => 0,
        };
        in_engine + self.ready.len()
    }

    /// Submits a request. It starts at the next [`QueuePair::kick`] or [`QueuePair::poll`] at the
    /// latest.
    ///
    /// # Errors
    /// Returns the request if `depth` requests are outstanding.
    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.outstanding() >= self.depth {
            return Err(request);
        }
        self.replace_broken_ring();
        let index = request.header.device;
        let Some(target) = self.shared.targets.get(index) else {
            let error = DeviceError::NoDevice { index };
            self.push_ready(request.complete(Err(error)));
            return Ok(());
        };
        if let Err(error) = check(&*target.device, &request.header) {
            self.push_ready(request.complete(Err(error)));
            return Ok(());
        }
        match (&mut self.engine, target.file) {
            (Engine::Ring(ring), Some(file)) if target.suits_ring(&request) => {
                target.count(&request.header);
                return match ring.submit(target.submission(file, request)) {
                    Ok(()) => Ok(()),
                    Err(back) => Err(into_request(back)),
                };
            }
            (Engine::Threads(threads), Some(_)) => {
                threads.submit(Arc::clone(&target.device), request);
            }
            (Engine::Ring(_) | Engine::Threads(_) | Engine::Inline, _) => {
                let device = Arc::clone(&target.device);
                self.push_ready(execute(&*device, request));
            }
        }
        Ok(())
    }

    /// Waits until `min` requests have completed (or all outstanding ones, or until the timeout),
    /// and appends all available completions to `out`. Returns their number.
    pub fn poll(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> usize {
        self.poll_each(min, timeout, |completion| out.push(completion))
    }

    /// Does the same as [`QueuePair::poll`], and calls `each` with every completion.
    pub fn poll_each(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        mut each: impl FnMut(Completion),
    ) -> usize {
        let mut count = self.ready.len();
        self.ready.drain(..).for_each(&mut each);
        // A timeout whose end cannot be represented means no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let min = min.saturating_sub(count);
        match &mut self.engine {
            Engine::Ring(ring) => {
                ring.wait(min, deadline);
                if ring.has_completion() || ring.is_starved() {
                    signal_if_unserved(ring, self.event.as_ref());
                }
                while let Some(done) = ring.next_completion() {
                    each(complete(&self.shared.targets, done));
                    count += 1;
                }
            }
            Engine::Threads(threads) => {
                let mut completions = Vec::new();
                threads.wait(min, deadline, &mut completions);
                count += completions.len();
                completions.into_iter().for_each(each);
            }
            Engine::Inline => {}
        }
        count
    }

    /// Runs a batch of reads to the end and stores the result in each of them.
    pub fn run(&mut self, batch: &mut [ReadInto<'_>]) {
        self.replace_broken_ring();
        match &mut self.engine {
            Engine::Ring(ring) => ring.run(batch, &self.shared, None),
            Engine::Threads(threads) => threads.run(batch, |read| self.shared.targets.read(read)),
            Engine::Inline => batch.iter_mut().for_each(|read| self.shared.targets.read(read)),
        }
    }

    /// Runs a batch as [`QueuePair::run`] does. Calls `inspect` with reads that have succeeded
    /// while others are still in flight: for all, some or none of them.
    pub fn run_inspecting(
        &mut self,
        batch: &mut [ReadInto<'_>],
        inspect: &(dyn Fn(&ReadInto<'_>) + Sync),
    ) {
        self.replace_broken_ring();
        if let Engine::Ring(ring) = &mut self.engine {
            ring.run(batch, &Inspected { shared: &self.shared, inspect }, None);
        } else {
            self.run(batch);
        }
    }

    /// Runs a batch of writes to the end and stores the result in each of them.
    pub fn run_writes(&mut self, batch: &mut [WriteFrom<'_>]) {
        self.run_writes_meanwhile(batch, None);
    }

    /// Runs a batch as [`QueuePair::run_writes`] does, and calls `meanwhile` once on this thread,
    /// if possible while the devices are busy.
    pub fn run_writes_meanwhile(
        &mut self,
        batch: &mut [WriteFrom<'_>],
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) {
        self.replace_broken_ring();
        if !batch.is_empty()
            && let Engine::Ring(ring) = &mut self.engine
        {
            ring.run(batch, &self.shared, meanwhile);
            return;
        }
        if let Some(work) = meanwhile.take() {
            work();
        }
        match &mut self.engine {
            Engine::Ring(_) => {}
            Engine::Threads(threads) => {
                threads.run(batch, |write| self.shared.targets.write(write));
            }
            Engine::Inline => batch.iter_mut().for_each(|write| self.shared.targets.write(write)),
        }
    }

    fn push_ready(&mut self, completion: Completion) {
        self.ready.push_back(completion);
        if let Some(event) = &self.event {
            event.signal();
        }
    }

    /// Replaces a ring that the kernel refuses to serve by threads.
    fn replace_broken_ring(&mut self) {
        let Engine::Ring(ring) = &mut self.engine else { return };
        let Some(errno) = ring.broken() else { return };
        ring.wait(usize::MAX, None);
        while let Some(done) = ring.next_completion() {
            self.ready.push_back(complete(&self.shared.targets, done));
        }
        if let Some(event) = &self.event {
            event.signal();
        }
        self.refused = Some(RingUnavailable::Failed(errno));
        self.engine = Engine::Threads(Threads::new(self.event.clone()));
    }
}

/// Signals the event for requests that the kernel has never seen: it has not signalled their
/// completions if the ring is broken, and never will if nothing submits them again.
fn signal_if_unserved<T>(ring: &Ring<T>, event: Option<&Arc<Event>>) {
    if let Some(event) = event
        && (ring.broken().is_some() || ring.is_starved())
    {
        event.signal();
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

/// The devices of a queue pair, by index.
#[derive(Debug)]
struct Targets(Vec<Target>);

impl Targets {
    fn get(&self, index: usize) -> Option<&Target> {
        self.0.get(index)
    }

    /// Runs one read of a batch by the device's own blocking call.
    fn read(&self, read: &mut ReadInto<'_>) {
        read.result = match self.get(read.device) {
            None => Err(DeviceError::NoDevice { index: read.device }),
            Some(target) => target.device.read_at(read.offset, read.buf),
        };
    }

    fn write(&self, write: &mut WriteFrom<'_>) {
        write.result = match self.get(write.device) {
            None => Err(DeviceError::NoDevice { index: write.device }),
            Some(target) => {
                let written = target.device.write_vectored_at(write.offset, write.slices());
                let flush = || if write.is_durable { target.device.flush() } else { Ok(()) };
                written.and_then(|()| flush())
            }
        };
    }
}

impl Target {
    /// Returns whether the ring can run the request without a bounce. A buffer has capacity for
    /// whole blocks, so the length of a read need not be aligned.
    fn suits_ring(&self, request: &Request) -> bool {
        let buffers = request.load.as_slice();
        let offset = self.offset + request.header.offset;
        let aligned = |len| is_block_aligned(self.alignment, offset, len);
        let in_memory = |buffer: &Buffer| {
            buffer.as_ptr().addr().is_multiple_of(self.alignment.memory_bytes as usize)
        };
        match request.header.kind {
            RequestKind::Read => buffers.iter().all(|buffer| {
                aligned(0) && in_memory(buffer) && self.blocks(buffer.len()) <= buffer.capacity()
            }),
            RequestKind::Write => {
                buffers.iter().all(|buffer| aligned(buffer.len() as u64) && in_memory(buffer))
            }
            RequestKind::Flush => true,
            RequestKind::Discard => false,
        }
    }

    fn blocks(&self, len: usize) -> usize {
        len.next_multiple_of(self.alignment.offset_bytes as usize)
    }

    fn submission(&self, file: u32, request: Request) -> Submission<RequestHeader> {
        let (header, mut load) = request.into_parts();
        let need = load.bytes();
        let operation = match header.kind {
            RequestKind::Read => {
                if let Some(buffer) = load.one_mut() {
                    buffer.set_len(self.blocks(need));
                }
                Operation::Read
            }
            RequestKind::Write => Operation::Write,
            RequestKind::Flush | RequestKind::Discard => Operation::Flush,
        };
        let offset = self.offset + header.offset;
        Submission { operation, file, offset, load, need, user_data: header }
    }

    fn count(&self, header: &RequestHeader) {
        let counters = self.device.counters();
        match header.kind {
            RequestKind::Read => counters.count_read(header.len()),
            RequestKind::Write => counters.count_write(header.len()),
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

fn check(device: &dyn Device, header: &RequestHeader) -> Result<(), DeviceError> {
    let RequestHeader { offset, bytes, kind, .. } = *header;
    match kind {
        RequestKind::Read => check_range(device, offset, bytes),
        RequestKind::Write | RequestKind::Discard => {
            check_writable(device)?;
            check_range(device, offset, bytes)
        }
        RequestKind::Flush => Ok(()),
    }
}

fn into_request(submission: Submission<RequestHeader>) -> Request {
    let Submission { user_data, load, .. } = submission;
    Request::from_parts(user_data, with_original_length(&user_data, load))
}

/// Restores the length of a read buffer, which was extended to whole blocks.
fn with_original_length(header: &RequestHeader, mut load: Load) -> Load {
    if header.kind == RequestKind::Read
        && let Some(buffer) = load.one_mut()
    {
        buffer.set_len(header.len());
    }
    load
}

/// Converts a completion of the ring into one of the queue pair.
fn complete(targets: &Targets, done: RingCompletion<RequestHeader>) -> Completion {
    let RingCompletion { load, user_data: header, result } = done;
    let result = result.map_err(|cause| match targets.get(header.device) {
        None => DeviceError::NoDevice { index: header.device },
        Some(target) => failure(&*target.device, &header, cause),
    });
    header.complete(with_original_length(&header, load), result)
}

fn failure(device: &dyn Device, header: &RequestHeader, cause: Errno) -> DeviceError {
    let RequestHeader { offset, bytes, kind, .. } = *header;
    match kind {
        RequestKind::Read => DeviceError::read(device, offset, bytes, cause),
        RequestKind::Write => DeviceError::write(device, offset, bytes, cause),
        RequestKind::Flush => DeviceError::flush(device, cause),
        RequestKind::Discard => DeviceError::discard(device, offset, bytes, cause),
    }
}

/// Runs a request by the device's own blocking calls.
fn execute(device: &dyn Device, mut request: Request) -> Completion {
    let RequestHeader { offset, bytes, kind, .. } = request.header;
    let result = match kind {
        RequestKind::Read => match request.load.one_mut() {
            Some(buffer) => device.read_at(offset, buffer),
            None => Err(DeviceError::read(device, offset, bytes, Errno::INVALID)),
        },
        RequestKind::Write => {
            let buffers: Vec<&[u8]> =
                request.load.as_slice().iter().map(|buffer| &**buffer).collect();
            device.write_vectored_at(offset, &buffers)
        }
        RequestKind::Flush => device.flush(),
        RequestKind::Discard => device.discard(offset, bytes),
    };
    request.complete(result)
}
