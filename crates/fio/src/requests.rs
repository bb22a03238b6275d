//! [`Requests`]: a job's requests in flight. Each has the slot of its `io_u`.
//!
//! ```text
//! buffers=borrowed   requests use fio's own memory, which fio may change during a write
//! buffers=owned      each slot has a buffer of the queue's arena, which fio uses as its buffer
//! ```
//!
//! Laws:
//!
//! 1. A slot has at most one request in flight, which is reaped once, with its slot.
//! 2. An owned buffer is in its slot, or in the request of that slot. fio does not change the
//!    memory of a request in flight, so its bytes are stable.
//! 3. A request at an address other than that of its slot's buffer uses borrowed memory. fio issues
//!    such a request for the remainder of a short transfer.

use crate::volumes::Volume;
use crate::{FioError, Result, line};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::{Buffer, File};
use std::time::Duration;

/// Bounds of the size of a job's bounce buffers.
const BOUNCE_BYTES_MIN: usize = 1 << 20;
const BOUNCE_BYTES_MAX: usize = 64 << 20;

/// Settings of a job's requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOptions {
    pub(crate) depth: usize,
    pub(crate) flags: IoFlags,
    pub(crate) is_owned: bool,
    /// Size of the largest request, in bytes.
    pub(crate) buffer_bytes: usize,
}

/// An operation on a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Read { offset: u64 },
    Write { offset: u64 },
    Sync(SyncKind),
}

/// The memory of a request.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    /// The first `bytes` bytes of the slot's own buffer.
    Slot {
        bytes: usize,
    },
    /// Memory of the caller.
    Borrowed(Buffer),
}

/// A completed request.
#[derive(Debug)]
pub(crate) struct SlotResult {
    pub(crate) slot: usize,
    /// The number of bytes, or a positive errno.
    pub(crate) result: Result<usize, i32>,
}

#[derive(Debug)]
pub struct Requests {
    queue: Queue,
    flags: IoFlags,
    /// For each slot its owned buffer, unless a request in flight has it.
    slots: Vec<Option<Buffer>>,
    /// Requests reaped from the queue. Those before `returned` were returned to fio.
    done: Vec<Completion>,
    returned: usize,
    failure: Option<String>,
}

impl Requests {
    pub(crate) fn new(volume: &Volume, options: RequestOptions) -> Result<Self> {
        let mut arena_bytes = 0;
        let no_memory = |bytes: usize| FioError::NoMemory { bytes: as_u64(bytes) };
        if options.is_owned {
            // The arena's buffers have power-of-two sizes.
            let buffer = options.buffer_bytes.checked_next_power_of_two();
            arena_bytes = buffer
                .and_then(|bytes| bytes.max(4096).checked_mul(options.depth))
                .ok_or_else(|| no_memory(options.buffer_bytes))?;
        }
        let in_flight = options.buffer_bytes.saturating_mul(options.depth);
        let queue_options = QueueOptions::default()
            .depth(options.depth)
            .arena_bytes(arena_bytes)
            .bounce_bytes(in_flight.saturating_mul(2).clamp(BOUNCE_BYTES_MIN, BOUNCE_BYTES_MAX));
        let queue =
            volume.filesystem().queue(&queue_options).map_err(FioError::library("queue"))?;
        let mut slots = Vec::new();
        for _ in 0..options.depth {
            let buffer = options.is_owned.then(|| queue.buffer(options.buffer_bytes));
            slots.push(buffer.map(|made| made.ok_or_else(|| no_memory(arena_bytes))).transpose()?);
        }
        let done = Vec::with_capacity(options.depth);
        Ok(Self { queue, flags: options.flags, slots, done, returned: 0, failure: None })
    }

    /// Returns the slot's own buffer, if it has one that no request uses.
    pub(crate) fn owned(&mut self, slot: usize) -> Option<&mut Buffer> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`FioError::Full`] if the queue has to be reaped first.
    pub(crate) fn add(
        &mut self,
        slot: usize,
        file: &File,
        request: Request,
        memory: Memory,
    ) -> Result<()> {
        let at = self.slots.get_mut(slot).ok_or(FioError::Shim { what: "no such slot" })?;
        let (buffer, is_own) = match memory {
            Memory::None => (Buffer::default(), false),
            Memory::Borrowed(buffer) => (buffer, false),
            Memory::Slot { bytes } => {
                let owned = at.take_if(|buffer| bytes <= buffer.capacity());
                let mut buffer = owned.ok_or(FioError::Shim { what: "a slot in flight" })?;
                buffer.set_len(bytes);
                (buffer, true)
            }
        };
        let tag = as_u64(slot);
        let queued = match request {
            Request::Read { offset } => self.queue.read(file, offset, buffer, self.flags, tag),
            Request::Write { offset } => self.queue.write(file, offset, buffer, self.flags, tag),
            Request::Sync(kind) => self.queue.sync(file, kind, tag),
        };
        let Err(refused) = queued else { return Ok(()) };
        if is_own {
            *at = Some(refused.buffer);
        }
        if matches!(refused.error, butternut::Error::WouldBlock) {
            return Err(FioError::Full);
        }
        Err(FioError::library(format!("{request:?}"))(refused.error))
    }

    pub(crate) fn submit(&mut self) {
        self.queue.submit();
    }

    /// Waits until [`Requests::next`] can return `min` requests, or until `timeout` has passed.
    pub(crate) fn wait(&mut self, min: usize, timeout: Option<Duration>) {
        if self.returned == self.done.len() {
            self.done.clear();
            self.returned = 0;
        }
        let ready = self.done.len() - self.returned;
        if ready == 0 || ready < min {
            self.queue.reap(min.saturating_sub(ready), timeout, &mut self.done);
        }
    }

    /// Returns the next completed request.
    pub(crate) fn next(&mut self) -> Option<SlotResult> {
        let done = self.done.get_mut(self.returned)?;
        self.returned += 1;
        let buffer = std::mem::take(&mut done.buffer);
        let result = match &done.result {
            Ok(bytes) => Ok(*bytes),
            Err(error) => {
                self.failure.get_or_insert_with(|| format!("a request failed: {}", line(error)));
                Err(error.errno())
            }
        };
        let slot = usize::try_from(done.tag).expect("tags are slots");
        if buffer.is_from_arena() {
            *self.slots.get_mut(slot).expect("tags are slots") = Some(buffer);
        }
        Some(SlotResult { slot, result })
    }

    /// Returns the text of the first failure, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take().filter(|text| !text.is_empty()).inspect(|_| {
            // An empty text keeps later failures out; fio counts them.
            self.failure = Some(String::new());
        })
    }
}

fn as_u64(number: usize) -> u64 {
    u64::try_from(number).expect("usize is at most 64 bits")
}
