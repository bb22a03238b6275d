//! [`Queue`]: reads, writes and syncs of files in flight, many at a time, for one thread.
//!
//! ```text
//! read, write, sync   -> queued, or refused with the buffer given back
//! submit              -> the devices see what was queued
//! reap                -> what is complete, in any order, each once
//! ```
//!
//! Laws:
//!
//! 1. Every request that was taken comes back as one [`Done`], with its buffer.
//! 2. Requests in flight run in no particular order: who needs one reaps the first before he
//!    submits the second. What was reaped is seen by every reader.
//! 3. A failure is the result of its own request and of no other.

use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// The most requests that a queue takes before they are reaped.
pub const QUEUE_DEPTH_MAX: usize = 1024;

/// How to make a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Requests that were taken and not yet reaped; at most [`QUEUE_DEPTH_MAX`].
    pub depth: usize,
    /// Memory for [`Queue::buffer`], all of it resident, in bytes.
    pub arena_bytes: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 128, arena_bytes: 4 << 20 }
    }
}

/// How a request is carried out.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct IoFlags(u8);

impl IoFlags {
    /// Past the page cache, between the buffer and the devices.
    pub const DIRECT: Self = Self(1);
    /// Through the page cache, and leaves nothing there.
    pub const UNCACHED: Self = Self(2);
    /// Fails with `EAGAIN` ([`Error::WouldBlock`]) where it would have to wait before it is queued.
    pub const NOWAIT: Self = Self(4);
    /// A write that is complete is durable.
    pub const DSYNC: Self = Self(8);
    /// A write goes to the end of the file, whatever its offset.
    pub const APPEND: Self = Self(16);

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for IoFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::DIRECT, "DIRECT"),
            (Self::UNCACHED, "UNCACHED"),
            (Self::NOWAIT, "NOWAIT"),
            (Self::DSYNC, "DSYNC"),
            (Self::APPEND, "APPEND"),
        ];
        let mut set = f.debug_set();
        for (flag, name) in names {
            if self.contains(flag) {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

/// What a sync brings down on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// The file's bytes, and what is needed to read them.
    Data,
    /// Its attributes too.
    All,
}

/// The end of a request.
#[derive(Debug)]
pub struct Done {
    /// The caller's own.
    pub tag: u64,
    /// What the request brought along; empty for a sync.
    pub buffer: Buffer,
    /// Bytes that were read or written: fewer than asked where the file ends, or space ran out.
    pub result: Result<usize>,
}

/// A request that was not taken.
#[derive(Debug)]
pub struct Refused {
    pub buffer: Buffer,
    pub error: Error,
}

/// Requests of one thread, in flight on all devices of a volume. It may move between threads.
#[derive(Debug)]
pub struct Queue {
    depth: usize,
    arena: Arena,
    queued: VecDeque<Request>,
}

#[derive(Debug)]
struct Request {
    file: File,
    tag: u64,
    buffer: Buffer,
    operation: Operation,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read { offset: u64 },
    Write { offset: u64, flags: IoFlags },
    Sync(SyncKind),
}

impl Filesystem {
    /// A queue for one thread.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where there is no memory for it.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let arena = Arena::new(options.arena_bytes).map_err(|_| Error::NoMemory)?;
        let depth = options.depth.clamp(1, QUEUE_DEPTH_MAX);
        Ok(Queue { depth, arena, queued: VecDeque::with_capacity(depth) })
    }
}

impl Queue {
    /// An owned buffer out of the queue's arena, holding whatever its last user left; `None` when
    /// the arena has none that is large enough. It goes back when it is dropped.
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        self.arena.take(bytes)
    }

    /// Requests that were taken and not yet reaped.
    pub fn outstanding(&self) -> usize {
        self.queued.len()
    }

    /// Fills the whole buffer from `offset` on; short at the end of the file.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when `depth` requests are out.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        flags: IoFlags,
        tag: u64,
    ) -> Result<(), Box<Refused>> {
        let _ = flags;
        self.take(Request {
            file: file.clone(),
            tag,
            buffer,
            operation: Operation::Read { offset },
        })
    }

    /// Writes the whole buffer at `offset`.
    pub fn write(
        &mut self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        flags: IoFlags,
        tag: u64,
    ) -> Result<(), Box<Refused>> {
        let operation = Operation::Write { offset, flags };
        self.take(Request { file: file.clone(), tag, buffer, operation })
    }

    /// Brings down what was written and reaped before.
    pub fn sync(&mut self, file: &File, kind: SyncKind, tag: u64) -> Result<(), Box<Refused>> {
        let (buffer, operation) = (Buffer::default(), Operation::Sync(kind));
        self.take(Request { file: file.clone(), tag, buffer, operation })
    }

    /// Lets the devices see what was queued.
    pub fn submit(&mut self) {}

    /// Waits until `min` requests are complete (or all that are out, or until the timeout), adds
    /// all that are to `out`, and says how many.
    pub fn reap(&mut self, min: usize, timeout: Option<Duration>, out: &mut Vec<Done>) -> usize {
        let _ = (min, timeout);
        let reaped = self.queued.len();
        out.extend(self.queued.drain(..).map(Request::run));
        reaped
    }

    fn take(&mut self, request: Request) -> Result<(), Box<Refused>> {
        if self.queued.len() >= self.depth {
            return Err(Box::new(Refused { buffer: request.buffer, error: Error::WouldBlock }));
        }
        self.queued.push_back(request);
        Ok(())
    }
}

impl Request {
    fn run(self) -> Done {
        let Self { file, tag, mut buffer, operation } = self;
        let result = match operation {
            Operation::Read { offset } => file.read_at(offset, &mut buffer),
            Operation::Write { offset, flags } => {
                let written = if flags.contains(IoFlags::APPEND) {
                    file.append(&buffer, Privileges::Keep).map(|(_, written)| written)
                } else {
                    file.write_at(offset, &buffer)
                };
                let synced =
                    || if flags.contains(IoFlags::DSYNC) { file.sync_data() } else { Ok(()) };
                written.and_then(|written| synced().map(|()| written))
            }
            Operation::Sync(SyncKind::Data) => file.sync_data().map(|()| 0),
            Operation::Sync(SyncKind::All) => file.sync_all().map(|()| 0),
        };
        Done { tag, buffer, result }
    }
}
