//! [`Ring`]: reads, writes and flushes of a fixed set of disks over one `io_uring`.
//!
//! 1. *Owned* requests bring their buffers along; the ring keeps them until the kernel has
//!    completed the request, and hands them back exactly once, with the completion.
//! 2. *Borrowed* requests live inside one call of [`Ring::run`], which never returns, nor unwinds,
//!    before the kernel has completed all of them.
//! 3. At most `depth` requests of each sort are out at a time. The kernel's queues are large enough
//!    for both, so that no completion is ever lost or delayed for want of room.
//! 4. A request is complete when all its bytes have come: the rest of a short transfer is submitted
//!    again, as is a transfer that a signal cut or the kernel had no memory for.
//! 5. A ring that is dropped waits for its requests first.
//! 6. The kernel may take the ring away in mid-flight (a process can forbid itself system calls).
//!    Requests that the kernel has not seen then fail with its errno, those that it has seen are
//!    waited for without system calls, and the ring is [broken](Ring::broken) from there on.
//! 7. A steady state allocates nothing: every list is made with the ring, but for the vectors of
//!    writes from several buffers, which are made when so many are first out at once, and kept.
//! 8. Whoever has `&mut` may wait and take completions, whichever thread submitted. The kernel
//!    completes a request in the context of the thread that submitted it, whatever that thread's
//!    own code does, or waits for: at once if the ring [is prompt](RingOptions::is_prompt). Rings
//!    whose completions one thread must ask for (`SINGLE_ISSUER`, `DEFER_TASKRUN`) are never made.
//!
//! How the kernel is asked for a ring, and what it may refuse, is in [`setup`].

mod setup;
mod vector;

pub use setup::{RingOptions, RingRefused};
pub use vector::SEGMENTS_MAX;

use crate::buffers::{Buffers, Load};
use crate::errno::Errno;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use setup::Table;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};
use vector::{Segment, Vector};

/// The deepest ring: requests in flight of each sort.
pub const RING_DEPTH_MAX: usize = 4096;

/// The longest piece of a transfer that is given to the kernel at once.
const PIECE_BYTES_MAX: usize = 1 << 30;

/// Transfers of a batch that are this long on average are handed back one by one as they complete,
/// so that the caller works on one while the others are on their way. Shorter ones are waited for
/// together: one system call for all of them costs less.
const LONG_TRANSFER_BYTES: usize = 32 << 10;

/// How often a transfer that made no progress is submitted again.
const TRIES_MAX: u8 = 64;

/// How long a broken ring sleeps between looks at the completion queue.
const BROKEN_SLEEP: Duration = Duration::from_micros(200);

/// `T` is what the caller wants back with each completion of an owned request.
pub struct Ring<T> {
    uring: IoUring,
    table: Table,
    depth: usize,
    slots: Box<[Slot<T>]>,
    /// Slots that hold nothing.
    free: Vec<u32>,
    /// Slots that were put into the submission queue and that the kernel has not taken yet.
    queued: VecDeque<u32>,
    /// Slots that are to be put into the submission queue again, when there is room.
    again: Vec<u32>,
    /// Completions as they came out of the completion queue.
    reaped: VecDeque<(u64, i32)>,
    done: VecDeque<Done<T>>,
    /// Vectors in no slot.
    vectors: Vec<Vector>,
    owned: usize,
    borrowed: usize,
    broken: Option<Errno>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// Uses neither offset nor memory.
    Flush,
}

/// An owned request.
#[derive(Debug)]
pub struct Submission<T> {
    pub operation: Operation,
    /// The number of the disk, in the order that the ring was made with.
    pub file: u32,
    pub offset: u64,
    /// A read has one buffer of its own.
    pub load: Load,
    /// How far the buffer is to be filled; less than its length if the file may end inside it.
    pub need: usize,
    pub payload: T,
}

/// The completion of an owned request.
#[derive(Debug)]
pub struct Done<T> {
    pub load: Load,
    pub payload: T,
    pub result: Result<(), Errno>,
}

/// One request of a batch whose memory is borrowed. `C` is what the caller's requests share.
pub trait Scoped<C: ?Sized> {
    /// What to transfer; `None` if there is nothing left to do, and then `finish` is not called.
    fn transfer(&mut self, context: &C) -> Option<Transfer<'_>>;

    /// Called once after the transfer.
    fn finish(&mut self, context: &C, result: Result<(), Errno>);
}

/// A transfer between a disk and borrowed memory.
#[derive(Debug)]
pub struct Transfer<'a> {
    pub file: u32,
    pub offset: u64,
    pub memory: Memory<'a>,
    /// As in [`Submission::need`].
    pub need: usize,
}

#[derive(Debug)]
pub enum Memory<'a> {
    ReadInto(&'a mut [u8]),
    WriteFrom(&'a [u8]),
    /// Several pieces, as one transfer.
    WriteRow(&'a [&'a [u8]]),
}

/// One request in flight.
struct Slot<T> {
    operation: Operation,
    file: u32,
    offset: u64,
    start: *mut u8,
    len: usize,
    need: usize,
    done: usize,
    tries: u8,
    /// The memory is not at `start`: it is the owner's buffers, or the borrowed row.
    vector: Option<Vector>,
    row: (*const &'static [u8], usize),
    owner: Owner<T>,
}

enum Owner<T> {
    Nobody,
    Ring { load: Load, payload: T },
    Batch { index: usize },
}

/// What became of a slot whose completion came in.
enum Outcome {
    /// Submitted again, or delivered to `done`.
    Nothing,
    Batch {
        index: usize,
        result: Result<(), Errno>,
    },
}

// SAFETY: the raw pointers in the slots point into buffers that the slots own, or into memory that
// `run` borrows; `run` does not return while such a slot is in use. Only `T` itself must be `Send`.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Owned requests that were submitted and not yet taken by [`Ring::take_done`].
    pub fn outstanding(&self) -> usize {
        self.owned + self.done.len()
    }

    /// Whether transfers into this memory use a registered buffer.
    pub fn is_registered(&self, memory: &[u8]) -> bool {
        self.table.buffer_index(memory.as_ptr().addr(), memory.len()).is_some()
    }

    /// Why the kernel took the ring away, if it did.
    pub fn broken(&self) -> Option<Errno> {
        self.broken
    }

    /// Takes an owned request, or gives it back if `depth` of them are outstanding. The kernel sees
    /// it at the next call of [`Ring::wait`], [`Ring::kick`] or [`Ring::run`].
    pub fn submit(&mut self, submission: Submission<T>) -> Result<(), Submission<T>> {
        if self.outstanding() >= self.depth {
            return Err(submission);
        }
        let slot = self.owned_slot(submission);
        self.owned += 1;
        self.launch(slot);
        Ok(())
    }

    /// Lets the kernel see what was submitted, without waiting.
    pub fn kick(&mut self) {
        if !self.queued.is_empty() {
            self.enter(0, None);
        }
    }

    /// Waits until at least `min` completions can be taken (or all that are outstanding), or until
    /// the deadline.
    pub fn wait(&mut self, min: usize, deadline: Option<Instant>) {
        let min = min.min(self.outstanding());
        self.harvest();
        while self.done.len() < min {
            let left = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                left => left,
            };
            self.enter(min - self.done.len(), left);
            self.harvest();
        }
        if !self.queued.is_empty() {
            self.kick();
            self.harvest();
        }
    }

    pub fn take_done(&mut self) -> Option<Done<T>> {
        self.done.pop_front()
    }

    /// Runs a batch to the end; each request's `finish` tells its result. What there is to do
    /// `meanwhile` is done once, as soon as the disk has something to do.
    pub fn run<C: ?Sized, S: Scoped<C>>(
        &mut self,
        batch: &mut [S],
        context: &C,
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) {
        let items = batch.as_mut_ptr();
        let count = batch.len();
        // Law 2: whatever happens below, the guard's drop waits for the borrowed slots.
        let guard = Guard { ring: self };
        let ring = &mut *guard.ring;
        let mut next = 0;
        let mut bytes: usize = 0;
        while next < count || ring.borrowed > 0 {
            while next < count && ring.borrowed < ring.depth {
                // SAFETY: `next` is below the length of the batch, and no reference to this item
                // exists. What `transfer` borrows from it stays borrowed, as a raw pointer, until
                // the slot is complete, and the item is not touched again before that.
                let item = unsafe { &mut *items.wrapping_add(next) };
                if let Some(transfer) = item.transfer(context) {
                    bytes = bytes.saturating_add(transfer.need);
                    let slot = Slot::borrowed(transfer, next, &mut ring.vectors);
                    ring.borrowed += 1;
                    ring.launch(slot);
                }
                next += 1;
            }
            if let Some(work) = meanwhile.take() {
                if ring.borrowed > 0 {
                    ring.enter(0, None);
                }
                work();
            }
            if ring.borrowed > 0 {
                // With more to come, a quarter of what is out is waited for: the disk always has
                // something to do, and one system call moves many requests.
                let want = if bytes / next >= LONG_TRANSFER_BYTES {
                    1
                } else if next < count {
                    ring.borrowed.div_ceil(4)
                } else {
                    ring.borrowed
                };
                ring.enter(want, None);
            }
            ring.reap();
            while let Some(completion) = ring.reaped.pop_front() {
                let (index, result) = match ring.settle(completion) {
                    Outcome::Nothing => continue,
                    Outcome::Batch { index, result } => (index, result),
                };
                // SAFETY: the index was given out above; the kernel has completed the transfer, so
                // nothing refers to the item any more.
                let item = unsafe { &mut *items.wrapping_add(index) };
                item.finish(context, result);
            }
        }
    }

    fn owned_slot(&mut self, submission: Submission<T>) -> Slot<T> {
        let Submission { operation, file, offset, load, need, payload } = submission;
        let is_own = matches!(load, Load::Owned(Buffers::One(_)));
        assert!(is_own || operation != Operation::Read, "a read has one buffer of its own");
        let len = load.bytes();
        assert!(need <= len || operation == Operation::Flush, "need is inside the buffer");
        let (start, vector) = match load.as_slice() {
            [one] => (one.start().as_ptr(), None),
            [] => (std::ptr::null_mut(), None),
            _ => (std::ptr::null_mut(), Some(self.vectors.pop().unwrap_or_default())),
        };
        let owner = Owner::Ring { load, payload };
        Slot { operation, file, offset, start, len, need, vector, owner, ..Slot::empty() }
    }

    /// Puts a request into a free slot and into the submission queue.
    fn launch(&mut self, slot: Slot<T>) {
        let index = self.free.pop().expect("there are slots for `depth` of both sorts (law 3)");
        self.slots[index as usize] = slot;
        self.again.push(index);
        self.refill();
    }

    /// Moves slots from `again` to the submission queue while there is room.
    fn refill(&mut self) {
        while let Some(index) = self.again.pop() {
            if let Some(errno) = self.broken {
                self.reaped.push_back((u64::from(index), -errno.0));
                continue;
            }
            let entry = self.entry(index);
            // SAFETY: the slot's memory stays valid until its completion: it is owned by the slot
            // (law 1), or borrowed by a `run` that does not return before (law 2).
            let pushed = unsafe { self.uring.submission().push(&entry) };
            if pushed.is_err() {
                self.again.push(index);
                self.enter(0, None);
                continue;
            }
            self.queued.push_back(index);
        }
    }

    fn entry(&mut self, index: u32) -> squeue::Entry {
        let table = &self.table;
        let slot = &mut self.slots[index as usize];
        let fd = Fd(table.target(slot.file));
        let offset = slot.offset.wrapping_add(slot.done as u64);
        let segment = match (&mut slot.vector, &slot.owner) {
            (Some(vector), Owner::Ring { load, .. }) => {
                let row = load.as_slice().iter();
                let row = row.map(|buffer| (buffer.start().as_ptr(), buffer.len()));
                vector.fill(row, slot.done, PIECE_BYTES_MAX)
            }
            (Some(vector), Owner::Batch { .. }) => {
                let (first, count) = slot.row;
                // SAFETY: a slot of a batch with a vector has a row, which `run` borrows until the
                // slot is complete (law 2).
                let row = unsafe { std::slice::from_raw_parts(first, count) }.iter();
                let row = row.map(|piece| (piece.as_ptr().cast_mut(), piece.len()));
                vector.fill(row, slot.done, PIECE_BYTES_MAX)
            }
            (Some(_) | None, _) => Segment {
                start: slot.start.wrapping_add(slot.done),
                len: (slot.len - slot.done).min(PIECE_BYTES_MAX),
                vector: None,
            },
        };
        let Segment { start, len, vector } = segment;
        let registered = table.buffer_index(start.addr(), len);
        let bytes = u32::try_from(len).expect("a piece is at most 1 GiB");
        let entry = match (slot.operation, vector, registered) {
            (Operation::Write, Some((list, count)), _) => {
                opcode::Writev::new(fd, list, count).offset(offset).build()
            }
            (Operation::Read, _, Some(buffer)) => {
                opcode::ReadFixed::new(fd, start, bytes, buffer).offset(offset).build()
            }
            (Operation::Read, _, None) => {
                opcode::Read::new(fd, start, bytes).offset(offset).build()
            }
            (Operation::Write, None, Some(buffer)) => {
                opcode::WriteFixed::new(fd, start, bytes, buffer).offset(offset).build()
            }
            (Operation::Write, None, None) => {
                opcode::Write::new(fd, start, bytes).offset(offset).build()
            }
            (Operation::Flush, ..) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        entry.flags(table.entry_flags()).user_data(u64::from(index))
    }

    /// One `io_uring_enter`: submits what is queued and waits for `want` completions. Returns early
    /// on a signal or the timeout.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        if self.broken.is_some() {
            self.enter_broken(want, timeout);
            return;
        }
        let entered = match timeout {
            None => self.uring.submitter().submit_and_wait(want),
            Some(timeout) => {
                let time = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(want, &args)
            }
        };
        let left = self.uring.submission().len();
        let taken = self.queued.len().saturating_sub(left);
        self.queued.drain(..taken);
        match entered.map_err(Errno::from) {
            Ok(_) | Err(Errno(libc::EINTR | libc::ETIME)) => {}
            // The kernel is short of memory for requests, or wants its completions reaped first:
            // the caller reaps next. Something in flight frees memory; if nothing is, time must.
            Err(Errno::AGAIN | Errno::BUSY) => std::thread::sleep(BROKEN_SLEEP),
            Err(errno) => self.break_down(errno),
        }
    }

    /// Law 6.
    fn break_down(&mut self, errno: Errno) {
        self.broken = Some(errno);
        while let Some(index) = self.queued.pop_front().or_else(|| self.again.pop()) {
            self.reaped.push_back((u64::from(index), -errno.0));
        }
    }

    /// The completion queue is shared memory, and completions arrive on any way into the kernel.
    fn enter_broken(&mut self, want: usize, timeout: Option<Duration>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = || deadline.is_some_and(|at| Instant::now() >= at);
        while want > 0 && self.uring.completion().is_empty() && self.reaped.is_empty() {
            if is_late() {
                break;
            }
            std::thread::sleep(BROKEN_SLEEP);
        }
    }

    fn reap(&mut self) {
        let completions = self.uring.completion();
        self.reaped.extend(completions.map(|entry| (entry.user_data(), entry.result())));
    }

    /// Reaps, and settles all; for use while nothing is borrowed.
    fn harvest(&mut self) {
        self.reap();
        while let Some(completion) = self.reaped.pop_front() {
            let outcome = self.settle(completion);
            assert!(matches!(outcome, Outcome::Nothing), "nothing is borrowed outside of `run`");
        }
    }

    /// Decides about the slot of one completion.
    fn settle(&mut self, (user_data, answer): (u64, i32)) -> Outcome {
        let index = u32::try_from(user_data).expect("the user data is a slot's number");
        let broken = self.broken.is_some();
        let slot = &mut self.slots[index as usize];
        let result = match slot.advance(answer) {
            Some(result) => result,
            None if broken => Err(Errno::IO),
            None => {
                self.again.push(index);
                self.refill();
                return Outcome::Nothing;
            }
        };
        self.free.push(index);
        self.vectors.extend(slot.vector.take());
        match std::mem::replace(&mut slot.owner, Owner::Nobody) {
            Owner::Ring { load, payload } => {
                self.owned -= 1;
                self.done.push_back(Done { load, payload, result });
                Outcome::Nothing
            }
            Owner::Batch { index } => {
                self.borrowed -= 1;
                Outcome::Batch { index, result }
            }
            Owner::Nobody => unreachable!("a completion belongs to a slot in use"),
        }
    }
}

impl<T> Slot<T> {
    fn empty() -> Slot<T> {
        let (operation, owner) = (Operation::Flush, Owner::Nobody);
        let (start, vector) = (std::ptr::null_mut(), None);
        let (file, offset, len, need, done, tries) = (0, 0, 0, 0, 0, 0);
        let row = (std::ptr::null(), 0);
        Slot { operation, file, offset, start, len, need, done, tries, vector, row, owner }
    }

    fn borrowed(transfer: Transfer<'_>, index: usize, vectors: &mut Vec<Vector>) -> Slot<T> {
        let Transfer { file, offset, memory, need } = transfer;
        let mut slot = Slot { file, offset, need, owner: Owner::Batch { index }, ..Slot::empty() };
        (slot.operation, slot.start, slot.len) = match memory {
            Memory::ReadInto(memory) => (Operation::Read, memory.as_mut_ptr(), memory.len()),
            // The kernel only reads from it.
            Memory::WriteFrom(memory) => {
                (Operation::Write, memory.as_ptr().cast_mut(), memory.len())
            }
            Memory::WriteRow(row) => {
                slot.vector = Some(vectors.pop().unwrap_or_default());
                slot.row = (row.as_ptr().cast(), row.len());
                let bytes = row.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
                (Operation::Write, std::ptr::null_mut(), bytes)
            }
        };
        assert!(need <= slot.len, "need is inside the memory");
        slot
    }

    /// Takes the kernel's answer in; `None` if the request must go on (law 4).
    fn advance(&mut self, answer: i32) -> Option<Result<(), Errno>> {
        let Ok(count) = usize::try_from(answer) else {
            let errno = Errno(answer.saturating_neg());
            self.tries += 1;
            // A thread that ends takes some of its requests with it: "cancelled".
            let passing = matches!(errno.0, libc::EAGAIN | libc::EINTR | libc::ECANCELED);
            return (!passing || self.tries >= TRIES_MAX).then_some(Err(errno));
        };
        if self.operation == Operation::Flush {
            return Some(Ok(()));
        }
        self.done += count.min(self.len - self.done);
        if self.done >= self.need {
            Some(Ok(()))
        } else if count == 0 {
            Some(Err(Errno::NO_DATA))
        } else {
            None
        }
    }
}

/// Waits, when dropped, until the kernel holds no borrowed memory.
struct Guard<'a, T> {
    ring: &'a mut Ring<T>,
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Only unwinding leaves anything to do. What was reaped and not settled comes first.
        let ring = &mut *self.ring;
        while ring.borrowed > 0 {
            while let Some(completion) = ring.reaped.pop_front() {
                // The batch is gone: nobody is told.
                let (Outcome::Nothing | Outcome::Batch { .. }) = ring.settle(completion);
            }
            if ring.borrowed > 0 {
                ring.enter(1, None);
                ring.reap();
            }
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.owned > 0 {
            self.done.clear();
            self.wait(1, None);
        }
        self.table.unregister(&self.uring);
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("depth", &self.depth)
            .field("owned", &self.owned)
            .field("done", &self.done.len())
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
