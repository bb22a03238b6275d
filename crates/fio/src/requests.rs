//! [`Requests`]: a job's requests in flight, each in the slot of its io unit.
//!
//! ```text
//! buffers=borrowed   the queue moves fio's memory itself; it may change on the way
//! buffers=owned      each slot has a buffer of the queue's arena, which fio uses in place
//! ```
//!
//! Laws:
//!
//! 1. One request per slot is in flight; it is reaped once, with its slot.
//! 2. An owned buffer is in its slot, or in the request of that slot. fio leaves its memory alone
//!    in between, so that it is stable.
//! 3. What fio asks for at an address that is not its slot's is borrowed: the rest of a request
//!    that came back short.

use crate::volumes::Volume;
use crate::{FioError, Result, line};
use butternut::{Buffer, Done, File, IoFlags, Queue, QueueOptions, SyncKind};
use std::time::Duration;

/// Bounds of the memory that a job's borrowed buffers are copied to, where they are.
const BOUNCE_BYTES_MIN: usize = 1 << 20;
const BOUNCE_BYTES_MAX: usize = 64 << 20;

/// How a job's requests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) depth: usize,
    pub(crate) flags: IoFlags,
    pub(crate) is_owned: bool,
    /// The largest request.
    pub(crate) buffer_bytes: usize,
}

/// What is asked of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Read { offset: u64 },
    Write { offset: u64 },
    Sync(SyncKind),
}

/// The memory that a request moves.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    /// So many bytes of the slot's own buffer.
    Slot {
        bytes: usize,
    },
    /// The caller's.
    Borrowed(Buffer),
}

/// A reaped request.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) slot: usize,
    /// Bytes, or an errno.
    pub(crate) result: Result<usize, i32>,
}

#[derive(Debug)]
pub struct Requests {
    queue: Queue,
    flags: IoFlags,
    /// The owned buffers that no request has.
    slots: Vec<Option<Buffer>>,
    /// Reaped from the queue; those before `handed_on` went on to fio.
    done: Vec<Done>,
    handed_on: usize,
    failure: Option<String>,
}

impl Requests {
    pub(crate) fn new(volume: &Volume, how: How) -> Result<Self> {
        let mut arena_bytes = 0;
        let no_memory = |bytes: usize| FioError::NoMemory { bytes: as_u64(bytes) };
        if how.is_owned {
            // The arena cuts powers of two.
            let buffer = how.buffer_bytes.checked_next_power_of_two();
            arena_bytes = buffer
                .and_then(|bytes| bytes.max(4096).checked_mul(how.depth))
                .ok_or_else(|| no_memory(how.buffer_bytes))?;
        }
        let in_flight = how.buffer_bytes.saturating_mul(how.depth);
        let options = QueueOptions {
            depth: how.depth,
            arena_bytes,
            bounce_bytes: in_flight.saturating_mul(2).clamp(BOUNCE_BYTES_MIN, BOUNCE_BYTES_MAX),
            ..QueueOptions::default()
        };
        let queue = volume.filesystem().queue(&options).map_err(FioError::library("queue"))?;
        let mut slots = Vec::new();
        for _ in 0..how.depth {
            let buffer = how.is_owned.then(|| queue.buffer(how.buffer_bytes));
            slots.push(buffer.map(|made| made.ok_or_else(|| no_memory(arena_bytes))).transpose()?);
        }
        let done = Vec::with_capacity(how.depth);
        Ok(Self { queue, flags: how.flags, slots, done, handed_on: 0, failure: None })
    }

    /// The slot's own buffer, where it has one and no request has that.
    pub(crate) fn owned(&mut self, slot: usize) -> Option<&mut Buffer> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// # Errors
    /// [`FioError::Full`] where the queue has to be reaped first.
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
        let taken = match request {
            Request::Read { offset } => self.queue.read(file, offset, buffer, self.flags, tag),
            Request::Write { offset } => self.queue.write(file, offset, buffer, self.flags, tag),
            Request::Sync(kind) => self.queue.sync(file, kind, tag),
        };
        let Err(refused) = taken else { return Ok(()) };
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

    /// Waits until `min` can be taken with [`Requests::next`], or as long as `timeout` says.
    pub(crate) fn wait(&mut self, min: usize, timeout: Option<Duration>) {
        if self.handed_on == self.done.len() {
            self.done.clear();
            self.handed_on = 0;
        }
        let ready = self.done.len() - self.handed_on;
        if ready == 0 || ready < min {
            self.queue.reap(min.saturating_sub(ready), timeout, &mut self.done);
        }
    }

    /// The next request that is complete.
    pub(crate) fn next(&mut self) -> Option<Ended> {
        let done = self.done.get_mut(self.handed_on)?;
        self.handed_on += 1;
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
        Some(Ended { slot, result })
    }

    /// What failed first, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take().filter(|text| !text.is_empty()).inspect(|_| {
            // Later ones are counted by fio, not told.
            self.failure = Some(String::new());
        })
    }
}

fn as_u64(number: usize) -> u64 {
    u64::try_from(number).expect("usize is at most 64 bits")
}
