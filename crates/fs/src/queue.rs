//! [`Queue`]: asynchronous reads, writes and syncs of files, many in flight at a time, for one
//! thread.
//!
//! ```text
//! read, write, sync   -> queued, or refused with the buffer returned
//! submit              -> the devices see what was queued
//! reap                -> completed requests, in any order, each once
//! ```
//!
//! Laws:
//!
//! 1. Every request that was accepted is returned once as a [`Completion`] with its buffer,
//!    except for requests that a panic of a thread has lost.
//! 2. Requests in flight complete in no particular order. A caller that needs an order reaps the
//!    first before it submits the second. Every reader sees the result of a request that was
//!    reaped.
//! 3. A failure is the result of its own request and of no other.
//! 4. A thread that never reaps its queue blocks no other thread: a thread that waits for a file
//!    completes the requests in flight on it itself.
//! 5. Direct requests of whole blocks are in flight together, except for those that `direct` cannot
//!    begin. These and all other requests are served by the blocking calls of [`File`] when they
//!    are queued.

mod core;
mod direct;
mod request;

use self::core::{Completed, Core};
use self::request::{Operation, Request};
use crate::error::is_refused;
use crate::file::allocation_runs::new_allocation_run;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::RequestOwner;
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::event::Event;
use butternut_sys::wait::Wait;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum depth of a queue: the number of requests that it accepts before they are reaped.
pub const QUEUE_DEPTH_MAX: usize = 1024;

/// The options of a queue. Every option has a method of its name that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Maximum number of requests that are accepted and not yet reaped; at most
    /// [`QUEUE_DEPTH_MAX`].
    pub depth: usize,
    /// Memory for [`Queue::buffer`], in bytes, all of it resident.
    pub arena_bytes: usize,
    /// Memory for bounce buffers, to which borrowed buffers are copied, in bytes, all of it
    /// resident.
    pub bounce_bytes: usize,
    /// The privileges that writes strip.
    pub privileges: Privileges,
    /// Whether the queue has a descriptor for pollers ([`Queue::event`]).
    pub has_event: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            depth: 128,
            arena_bytes: 4 << 20,
            bounce_bytes: 8 << 20,
            privileges: Privileges::Keep,
            has_event: false,
        }
    }
}

crate::options::setters! { QueueOptions:
    depth: usize,
    arena_bytes: usize,
    bounce_bytes: usize,
    privileges: Privileges,
    has_event: bool,
}

/// Flags of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct IoFlags(u8);

impl IoFlags {
    /// Past the page cache, between the buffer and the devices (`O_DIRECT`).
    pub const DIRECT: Self = Self(1);
    /// Through the page cache, leaving no pages behind (`RWF_DONTCACHE`).
    pub const UNCACHED: Self = Self(2);
    /// Fails with `EAGAIN` ([`Error::WouldBlock`]) and without effect if it would block before it
    /// is queued (`RWF_NOWAIT`). A direct write that crosses the stripes of a RAID0 or RAID10 chunk
    /// is several writes of devices, which are waited for: it always fails so.
    pub const NOWAIT: Self = Self(4);
    /// A write completes when it is durable (`RWF_DSYNC`).
    pub const DSYNC: Self = Self(8);
    /// A write appends to the file; its offset is ignored (`RWF_APPEND`).
    pub const APPEND: Self = Self(16);

    /// Returns these flags and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these flags except for those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a request with these flags may block.
    pub(crate) const fn wait(self) -> Wait {
        if self.contains(Self::NOWAIT) { Wait::NoWait } else { Wait::Block }
    }

    /// Returns whether all flags of `other` are set.
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

/// What a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// The file's data, and the metadata that is needed to read it.
    Data,
    /// The file's attributes too.
    All,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Completion {
    /// The caller's tag of the request.
    pub tag: u64,
    /// The buffer of the request; empty for a sync.
    pub buffer: Buffer,
    /// Number of bytes that were read or written: fewer than requested at the end of the file, or
    /// if space ran out.
    pub result: Result<usize>,
}

/// A request that was not accepted.
#[derive(Debug)]
pub struct Refused {
    pub buffer: Buffer,
    pub error: Error,
}

/// Submits and reaps requests on all devices of a volume, for one thread. It may move between
/// threads.
#[derive(Debug)]
pub struct Queue {
    depth: usize,
    privileges: Privileges,
    arena: Arena,
    core: Arc<Core>,
    event: Option<Arc<Event>>,
    /// Requests that are accepted and not yet reaped.
    outstanding: usize,
    /// Empty between calls: completions are moved through it.
    completed: VecDeque<Completed>,
    /// Checksums of the read that is being planned.
    checksums: Vec<u8>,
    /// Throttle delay of its writes, accumulated but not yet slept.
    throttle_delay: Duration,
    /// The number of pending writes of a file when the committer was last asked to merge it.
    pending_seen: u64,
}

impl Filesystem {
    /// Returns a queue for one thread.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if its memory, or its descriptor, cannot be allocated.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let arena = |bytes| Arena::new(bytes).map_err(|_| Error::NoMemory);
        let (own, bounce) = (arena(options.arena_bytes)?, arena(options.bounce_bytes)?);
        let depth = options.depth.clamp(1, QUEUE_DEPTH_MAX);
        let source = &self.shared.source;
        let event = options.has_event.then(|| Event::new().map(Arc::new));
        let event = event.transpose().map_err(|_| Error::NoMemory)?;
        let run = new_allocation_run(source);
        let core = Core::new(&self.shared, depth, (&own, bounce), run, event.clone());
        let owner: Weak<Core> = Arc::downgrade(&core);
        source.add_request_owner(owner);
        Ok(Queue {
            depth,
            privileges: options.privileges,
            arena: own,
            core,
            event,
            outstanding: 0,
            completed: VecDeque::with_capacity(depth),
            checksums: Vec::with_capacity(64),
            throttle_delay: Duration::ZERO,
            pending_seen: 0,
        })
    }
}

impl Queue {
    /// Returns an owned buffer from the queue's arena, with unspecified content; `None` if the
    /// arena has none that is large enough. It returns to the arena when it is dropped.
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        self.arena.allocate(bytes)
    }

    /// Returns a descriptor that is readable when [`Queue::reap`] may return completions without
    /// waiting; `None` without [`QueueOptions::has_event`]. A `reap` makes it unreadable. Call
    /// [`Queue::submit`] before you wait for the descriptor, and then `reap` with a minimum of 0,
    /// which may return nothing. The wait may be interrupted (`EINTR`), also without a signal.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(|event| event.as_fd())
    }

    /// Returns the number of requests that are accepted and not yet reaped.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Queues a read of the whole buffer from `offset`. It is short at the end of the file.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if `depth` requests are outstanding, or for a request that would block
    /// and may not.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        flags: IoFlags,
        tag: u64,
    ) -> Result<(), Box<Refused>> {
        self.accept(file, tag, buffer, Operation::Read { offset, flags })
    }

    /// Queues a write of the whole buffer at `offset`.
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
        self.accept(file, tag, buffer, Operation::Write { offset, flags, privileges })
    }

    /// Queues a sync of everything that was written to the file and reaped before.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn sync(&mut self, file: &File, kind: SyncKind, tag: u64) -> Result<(), Box<Refused>> {
        self.accept(file, tag, Buffer::default(), Operation::Sync(kind))
    }

    /// Submits all queued requests to the devices, and waits for none of them.
    pub fn submit(&mut self) {
        self.core.poll(0, None);
    }

    /// Waits until `min` requests are complete, or all outstanding ones, or until the timeout.
    /// Appends all completions to `out` and returns their number.
    pub fn reap(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> usize {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let before = out.len();
        let min = min.min(self.outstanding);
        // Cleared first: what completes from now on signals again.
        if let Some(event) = &self.event {
            event.clear();
        }
        self.take_completed(out);
        loop {
            // One call submits and waits.
            let wait = usize::from(out.len() - before < min);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            self.core.poll(wait, left);
            self.take_completed(out);
            let reaped = out.len() - before;
            let is_over = left.is_some_and(|left| left.is_zero()) || self.core.has_lost_requests();
            if reaped >= min || is_over {
                self.outstanding -= reaped;
                return reaped;
            }
        }
    }

    fn accept(
        &mut self,
        file: &File,
        tag: u64,
        buffer: Buffer,
        operation: Operation,
    ) -> Result<(), Box<Refused>> {
        if self.outstanding >= self.depth {
            return Err(self.refuse_eagain(buffer));
        }
        let request = Request { file: file.clone(), tag, buffer, operation, is_fallback: false };
        let Some(request) = self.accept_direct(request)? else { return Ok(()) };
        let done = request.run(|bytes| self.core.memory(bytes));
        if is_refused(&done.result) {
            return Err(self.refuse_eagain(done.buffer));
        }
        self.complete(done);
        Ok(())
    }

    /// Accepts a request that is complete already.
    fn complete(&mut self, done: Completion) {
        self.outstanding += 1;
        self.core.push_completion(done);
    }

    fn refuse_eagain(&self, buffer: Buffer) -> Box<Refused> {
        self.core.counters().nowait_again.add();
        Box::new(Refused { buffer, error: Error::WouldBlock })
    }

    /// Appends all completions to `out`, after syncing the writes that have to be durable.
    fn take_completed(&mut self, out: &mut Vec<Completion>) {
        self.finish_synced();
        self.core.take_completed(&mut self.completed, out);
    }

    /// Syncs the files of completed writes that have to be durable.
    fn finish_synced(&self) {
        for (file, mut done) in self.core.take_unsynced() {
            if let Err(error) = file.sync_data() {
                done.result = Err(error);
            }
            self.core.push_completion(done);
        }
    }
}

impl Drop for Queue {
    /// Completes all accepted requests.
    fn drop(&mut self) {
        while self.core.in_flight() > 0 {
            self.core.poll(1, None);
            self.take_completed(&mut Vec::new());
        }
        // A thread that drains a file may have the last reference to the core, and must then find
        // no file in it to drop.
        self.take_completed(&mut Vec::new());
        self.core.release_space();
    }
}
