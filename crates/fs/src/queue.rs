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
//! 1. Every request that was taken comes back as one [`Done`], with its buffer; but those that a
//!    panic of a thread took along.
//! 2. Requests in flight run in no particular order: who needs one reaps the first before he
//!    submits the second. What was reaped is seen by every reader.
//! 3. A failure is the result of its own request and of no other.
//! 4. Nothing that another thread waits for depends on the queue's thread: who waits for a file
//!    completes what is in flight on it himself.
//! 5. Direct requests of whole blocks are in flight together. Everything else is served by the
//!    blocking calls of [`File`], when it is queued.

mod core;
mod direct;
mod request;

use self::core::{Core, Ended};
use self::request::{Operation, Request};
use crate::direct::new_room;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::Help;
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The most requests that a queue takes before they are reaped.
pub const QUEUE_DEPTH_MAX: usize = 1024;

/// How to make a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Requests that were taken and not yet reaped; at most [`QUEUE_DEPTH_MAX`].
    pub depth: usize,
    /// Memory for [`Queue::buffer`], all of it resident, in bytes.
    pub arena_bytes: usize,
    /// Memory that borrowed buffers are copied to, all of it resident, in bytes.
    pub bounce_bytes: usize,
    /// Whose requests they are.
    pub privileges: Privileges,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            depth: 128,
            arena_bytes: 4 << 20,
            bounce_bytes: 8 << 20,
            privileges: Privileges::Keep,
        }
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

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
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
    privileges: Privileges,
    arena: Arena,
    core: Arc<Core>,
    /// Taken and not yet reaped.
    taken: usize,
    /// Empty: what is done is moved through it.
    ended: VecDeque<Ended>,
    /// Digests of the read that is being planned.
    digests: Vec<u8>,
    /// What its writes are to wait, and have not yet.
    owed: Duration,
    /// Writes that were pending on a file when that was last told.
    pending_seen: u64,
}

impl Filesystem {
    /// A queue for one thread.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where there is no memory for it.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let arena = |bytes| Arena::new(bytes).map_err(|_| Error::NoMemory);
        let (own, slabs) = (arena(options.arena_bytes)?, arena(options.bounce_bytes)?);
        let depth = options.depth.clamp(1, QUEUE_DEPTH_MAX);
        let source = &self.shared.source;
        let core = Core::new(&self.shared, depth, &own, slabs, new_room(source));
        let helper: Weak<Core> = Arc::downgrade(&core);
        source.add_helper(helper);
        Ok(Queue {
            depth,
            privileges: options.privileges,
            arena: own,
            core,
            taken: 0,
            ended: VecDeque::with_capacity(depth),
            digests: Vec::with_capacity(64),
            owed: Duration::ZERO,
            pending_seen: 0,
        })
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
        self.taken
    }

    /// Fills the whole buffer from `offset` on; short at the end of the file.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when `depth` requests are out, or for one that is not to wait.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        flags: IoFlags,
        tag: u64,
    ) -> Result<(), Box<Refused>> {
        self.take(file, tag, buffer, Operation::Read { offset, flags })
    }

    /// Writes the whole buffer at `offset`.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write(
        &mut self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        flags: IoFlags,
        tag: u64,
    ) -> Result<(), Box<Refused>> {
        let privileges = self.privileges;
        self.take(file, tag, buffer, Operation::Write { offset, flags, privileges })
    }

    /// Brings down what was written and reaped before.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn sync(&mut self, file: &File, kind: SyncKind, tag: u64) -> Result<(), Box<Refused>> {
        self.take(file, tag, Buffer::default(), Operation::Sync(kind))
    }

    /// Lets the devices see what was queued.
    pub fn submit(&mut self) {
        self.core.poll(0, None);
    }

    /// Waits until `min` requests are complete (or all that are out, or until the timeout), adds
    /// all that are to `out`, and says how many.
    pub fn reap(&mut self, min: usize, timeout: Option<Duration>, out: &mut Vec<Done>) -> usize {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let before = out.len();
        let min = min.min(self.taken);
        self.take_done(out);
        loop {
            // One call submits and waits.
            let wait = usize::from(out.len() - before < min);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.core.poll(wait, left);
            self.take_done(out);
            let reaped = out.len() - before;
            let is_over = left.is_some_and(|left| left.is_zero()) || self.core.has_lost();
            if reaped >= min || is_over {
                self.taken -= reaped;
                return reaped;
            }
        }
    }

    fn take(
        &mut self,
        file: &File,
        tag: u64,
        buffer: Buffer,
        operation: Operation,
    ) -> Result<(), Box<Refused>> {
        if self.taken >= self.depth {
            return Err(self.again(buffer));
        }
        let request = Request { file: file.clone(), tag, buffer, operation, is_fallback: false };
        let Some(request) = self.take_direct(request)? else { return Ok(()) };
        let done = if request.flags().contains(IoFlags::NOWAIT) {
            request.run_at_once().map_err(|request| self.again(request.buffer))?
        } else {
            request.run(|bytes| self.core.memory(bytes))
        };
        self.complete(done);
        Ok(())
    }

    /// Takes a request that is complete already.
    fn complete(&mut self, done: Done) {
        self.taken += 1;
        self.core.push_done(done);
    }

    fn again(&self, buffer: Buffer) -> Box<Refused> {
        self.core.counters().nowait_again.add();
        Box::new(Refused { buffer, error: Error::WouldBlock })
    }

    /// What is done so far, and what was only to be made durable.
    fn take_done(&mut self, out: &mut Vec<Done>) {
        self.finish_synced();
        self.core.take_done(&mut self.ended, out);
    }

    /// Makes durable what is down and was asked to be.
    fn finish_synced(&self) {
        for (file, mut done) in self.core.take_unsynced() {
            if let Err(error) = file.sync_data() {
                done.result = Err(error);
            }
            self.core.push_done(done);
        }
    }
}

impl Drop for Queue {
    /// Everything that was taken is carried out.
    fn drop(&mut self) {
        while self.core.in_flight() > 0 {
            self.core.poll(1, None);
        }
        // No file is left to another thread that helps, and may be the last to have the core.
        self.take_done(&mut Vec::new());
        self.core.give_back_space();
    }
}
