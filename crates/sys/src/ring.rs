//! [`Ring`]: reads, writes and flushes of a fixed set of disks over one `io_uring`.
//!
//! 1. *Owned* requests bring their buffers along. The ring keeps the buffers until the kernel has
//!    completed the request, and returns them exactly once, with the completion.
//! 2. *Borrowed* requests exist only inside one call of [`Ring::run`], which neither returns nor
//!    unwinds before the kernel has completed all of them.
//! 3. At most `depth` requests of each kind are in flight at a time. The kernel's queues are large
//!    enough for both kinds, so no completion is lost or delayed by a full queue.
//! 4. A request is complete when all its bytes have been transferred: the rest of a short transfer
//!    is submitted again, as is a request that a signal interrupted or that failed for lack of
//!    kernel memory or threads. After [`TRIES_MAX`] such failures the thread that takes the
//!    completion does it by a system call (`synchronous`): only the disk can fail a request.
//! 5. Dropping a ring waits for its requests.
//! 6. The kernel may refuse further use of a ring while requests are in flight (a process can
//!    forbid itself system calls). Requests that the kernel has not seen then fail with its errno,
//!    those that it has seen are waited for without system calls, and the ring is
//!    [broken](Ring::broken) from then on.
//! 7. A steady state allocates nothing: every list is allocated with the ring, except the vectors
//!    of writes from several buffers, which are allocated when that many are first in flight, and
//!    kept.
//! 8. Any thread that has `&mut` may wait and take completions, whichever thread submitted the
//!    requests. The kernel completes a request in the context of the thread that submitted it,
//!    whatever that thread computes or waits for; it does so immediately if the ring [is
//!    prompt](RingOptions::is_prompt). The ring never sets the flags that tie completions to one
//!    thread (`SINGLE_ISSUER`, `DEFER_TASKRUN`).
//! 9. While the kernel has no memory for requests it takes none, and they stay queued: every call
//!    submits them again. If the kernel has no earlier request, no completion tells a thread that
//!    waits for the event to call. The owner of the ring signals it then ([`Ring::is_starved`]).
//!
//! How a ring is created, and what the kernel may refuse, is in `setup`.

mod setup;
mod synchronous;
mod vector;

pub use setup::{RingOptions, RingUnavailable};
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

/// Maximum depth of a ring: requests in flight of each kind.
pub const RING_DEPTH_MAX: usize = 4096;

/// The longest part of a transfer that is submitted as one request, in bytes.
const SUBMIT_BYTES_MAX: usize = 1 << 30;

/// If the transfers of a batch average at least this many bytes, each is finished as soon as it
/// completes, so that the caller processes one while the others are in flight. Shorter transfers
/// are waited for together, because one system call for all of them costs less.
const LONG_TRANSFER_BYTES: usize = 32 << 10;

/// Number of submissions of a request without progress, before it is done without the ring.
const TRIES_MAX: u8 = 4;

/// Sleep between two polls of the completion queue of a broken ring.
const BROKEN_SLEEP: Duration = Duration::from_micros(200);

/// An `io_uring` over a fixed set of disks. `T` is returned with the completion of an owned
/// request.
pub struct Ring<T> {
    uring: IoUring,
    table: Table,
    depth: usize,
    slots: Box<[Slot<T>]>,
    /// Indices of unused slots.
    free: Vec<u32>,
    /// Slots in the submission queue that the kernel has not taken yet.
    queued: VecDeque<u32>,
    /// Slots that wait for a free entry of the submission queue.
    resubmit: Vec<u32>,
    /// User data and result of completions that were taken from the completion queue.
    reaped: VecDeque<(u64, i32)>,
    done: VecDeque<Completion<T>>,
    /// Vectors that no slot uses.
    vectors: Vec<Vector>,
    owned: usize,
    borrowed: usize,
    broken: Option<Errno>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// Ignores offset and memory.
    Flush,
}

/// An owned request.
#[derive(Debug)]
pub struct Submission<T> {
    pub operation: Operation,
    /// The index of the disk in the list that the ring was created with.
    pub file: u32,
    pub offset: u64,
    /// The memory. A read has exactly one buffer, not shared.
    pub load: Load,
    /// The number of bytes to transfer. It is less than the length of the buffer if the file may
    /// end inside the buffer.
    pub need: usize,
    pub user_data: T,
}

/// The completion of an owned request.
#[derive(Debug)]
pub struct Completion<T> {
    pub load: Load,
    pub user_data: T,
    pub result: Result<(), Errno>,
}

/// One request of a batch that borrows its memory. `C` is shared by the requests of the batch.
pub trait BorrowedRequest<C: ?Sized> {
    /// Returns what to transfer. Returns `None` if no I/O is needed; `finish` is then not called.
    fn transfer(&mut self, context: &C) -> Option<Transfer<'_>>;

    /// Handles the result. Called once after the transfer.
    fn finish(&mut self, context: &C, result: Result<(), Errno>);
}

/// A transfer between a disk and borrowed memory.
#[derive(Debug)]
pub struct Transfer<'a> {
    pub file: u32,
    pub offset: u64,
    pub memory: Memory<'a>,
    /// The number of bytes to transfer; see [`Submission::need`].
    pub need: usize,
    /// Of a write: it completes when it is on the medium (`RWF_DSYNC`).
    pub is_durable: bool,
}

/// The borrowed memory of a transfer, and its direction.
#[derive(Debug)]
pub enum Memory<'a> {
    ReadInto(&'a mut [u8]),
    WriteFrom(&'a [u8]),
    /// Several slices, written as one transfer.
    WriteVectored(&'a [&'a [u8]]),
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
    /// Failed submissions since the last progress.
    tries: u8,
    /// The segments, if the memory is not contiguous at `start`: it is the owner's buffers, or the
    /// borrowed slices.
    vector: Option<Vector>,
    row: (*const &'static [u8], usize),
    is_durable: bool,
    owner: Owner<T>,
}

enum Owner<T> {
    None,
    Ring { load: Load, user_data: T },
    Batch { index: usize },
}

/// What happens to a slot after an answer of the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Complete(Result<(), Errno>),
    Submit,
    /// The calling thread transfers the rest (law 4).
    Call,
}

/// What `complete_slot` did with a slot.
enum Outcome {
    /// The request was submitted again, or its completion was added to `done`.
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
    /// Returns the maximum number of requests of each kind in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of owned requests that were submitted and not yet returned by
    /// [`Ring::next_completion`].
    pub fn outstanding(&self) -> usize {
        self.owned + self.done.len()
    }

    /// Returns whether transfers into this memory use a registered buffer.
    pub fn is_registered(&self, memory: &[u8]) -> bool {
        self.table.buffer_index(memory.as_ptr().addr(), memory.len()).is_some()
    }

    /// Returns whether requests are queued and the kernel has none: it will not signal the event
    /// (law 9).
    pub fn is_starved(&self) -> bool {
        let waiting = self.queued.len() + self.resubmit.len();
        waiting > 0 && self.slots.len() - self.free.len() == waiting
    }

    /// Returns the error with which the kernel refused further use of the ring, if it did.
    pub fn broken(&self) -> Option<Errno> {
        self.broken
    }

    /// Queues an owned request. The kernel sees it at the next call of [`Ring::wait`],
    /// [`Ring::kick`] or [`Ring::run`].
    ///
    /// # Errors
    /// Returns the request if `depth` requests are outstanding.
    pub fn submit(&mut self, submission: Submission<T>) -> Result<(), Submission<T>> {
        if self.outstanding() >= self.depth {
            return Err(submission);
        }
        let slot = self.owned_slot(submission);
        self.owned += 1;
        self.start_request(slot);
        Ok(())
    }

    /// Submits queued requests to the kernel without waiting for completions.
    pub fn kick(&mut self) {
        if !self.queued.is_empty() {
            self.enter(0, None);
        }
    }

    /// Waits until at least `min` completions are available (or all outstanding ones), or until the
    /// deadline.
    pub fn wait(&mut self, min: usize, deadline: Option<Instant>) {
        let min = min.min(self.outstanding());
        self.reap_owned();
        while self.done.len() < min {
            let left = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                left => left,
            };
            self.enter(min - self.done.len(), left);
            self.reap_owned();
        }
        if !self.queued.is_empty() {
            self.kick();
            self.reap_owned();
        }
    }

    /// Returns whether [`Ring::next_completion`] returns one.
    pub fn has_completion(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns a completion, if one is available.
    pub fn next_completion(&mut self) -> Option<Completion<T>> {
        self.done.pop_front()
    }

    /// Runs a batch until all requests are complete. The `finish` of each request gets its result.
    /// `meanwhile` is called once, as soon as the disk has requests.
    pub fn run<C: ?Sized, S: BorrowedRequest<C>>(
        &mut self,
        batch: &mut [S],
        context: &C,
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) {
        let items = batch.as_mut_ptr();
        let count = batch.len();
        // Law 2: if anything below unwinds, dropping the guard waits for the borrowed slots.
        let guard = Guard { ring: self };
        let ring = &mut *guard.ring;
        let mut next = 0;
        let mut bytes: usize = 0;
        while next < count || ring.borrowed > 0 {
            while next < count && ring.borrowed < ring.depth {
                // SAFETY: `next` is below the length of the batch, and no reference to this item
                // exists. What `transfer` borrows from it stays borrowed, as a raw pointer, until
                // the slot is complete, and the item is not accessed before that.
                let item = unsafe { &mut *items.wrapping_add(next) };
                if let Some(transfer) = item.transfer(context) {
                    bytes = bytes.saturating_add(transfer.need);
                    let slot = Slot::borrowed(transfer, next, &mut ring.vectors);
                    ring.borrowed += 1;
                    ring.start_request(slot);
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
                // If the batch has more requests, the thread waits for a quarter of those in
                // flight: the disk always has work, and one system call submits many requests.
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
                let (index, result) = match ring.complete_slot(completion) {
                    Outcome::Nothing => continue,
                    Outcome::Batch { index, result } => (index, result),
                };
                // SAFETY: the index was submitted above. The kernel has completed the transfer, so
                // nothing refers to the item any more.
                let item = unsafe { &mut *items.wrapping_add(index) };
                item.finish(context, result);
            }
        }
    }

    fn owned_slot(&mut self, submission: Submission<T>) -> Slot<T> {
        let Submission { operation, file, offset, load, need, user_data } = submission;
        let is_own = matches!(load, Load::Owned(Buffers::One(_)));
        assert!(
            is_own || operation != Operation::Read,
            "a read has exactly one buffer, not shared"
        );
        let len = load.bytes();
        assert!(
            need <= len || operation == Operation::Flush,
            "need is at most the length of the buffer"
        );
        let (start, vector) = match load.as_slice() {
            [one] => (one.start().as_ptr(), None),
            [] => (std::ptr::null_mut(), None),
            _ => (std::ptr::null_mut(), Some(self.vectors.pop().unwrap_or_default())),
        };
        let owner = Owner::Ring { load, user_data };
        Slot { operation, file, offset, start, len, need, vector, owner, ..Slot::empty() }
    }

    /// Stores a request in a free slot and adds it to the submission queue.
    fn start_request(&mut self, slot: Slot<T>) {
        let index =
            self.free.pop().expect("there are slots for `depth` requests of both kinds (law 3)");
        self.slots[index as usize] = slot;
        self.resubmit.push(index);
        self.refill();
    }

    /// Moves slots from `resubmit` to the submission queue until it is full.
    fn refill(&mut self) {
        while let Some(index) = self.resubmit.pop() {
            if let Some(errno) = self.broken {
                self.reaped.push_back((u64::from(index), -errno.0));
                continue;
            }
            let entry = self.entry(index);
            // SAFETY: the slot's memory stays valid until its completion: the slot owns it (law 1),
            // or a `run` that does not return earlier borrows it (law 2).
            let pushed = unsafe { self.uring.submission().push(&entry) };
            if pushed.is_err() {
                self.resubmit.push(index);
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
        let Segment { start, len, vector } = slot.segment();
        let registered = table.buffer_index(start.addr(), len);
        let bytes = u32::try_from(len).expect("one request is at most 1 GiB");
        let how = slot.write_flags();
        let entry = match (slot.operation, vector, registered) {
            (Operation::Write, Some((list, count)), _) => {
                opcode::Writev::new(fd, list, count).offset(offset).rw_flags(how).build()
            }
            (Operation::Read, _, Some(buffer)) => {
                opcode::ReadFixed::new(fd, start, bytes, buffer).offset(offset).build()
            }
            (Operation::Read, _, None) => {
                opcode::Read::new(fd, start, bytes).offset(offset).build()
            }
            (Operation::Write, None, Some(buffer)) => {
                opcode::WriteFixed::new(fd, start, bytes, buffer)
                    .offset(offset)
                    .rw_flags(how)
                    .build()
            }
            (Operation::Write, None, None) => {
                opcode::Write::new(fd, start, bytes).offset(offset).rw_flags(how).build()
            }
            (Operation::Flush, ..) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        entry.flags(table.entry_flags()).user_data(u64::from(index))
    }

    /// Calls `io_uring_enter` once: submits queued requests and waits for `want` completions.
    /// Returns early on a signal or the timeout.
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
            // The kernel has no memory for requests, or needs completions reaped first. The caller
            // reaps next. A completion frees memory; if nothing is in flight, retry after a sleep.
            Err(Errno::AGAIN | Errno::BUSY) => std::thread::sleep(BROKEN_SLEEP),
            Err(errno) => self.set_broken(errno),
        }
    }

    /// Fails all requests that the kernel has not seen (law 6).
    fn set_broken(&mut self, errno: Errno) {
        self.broken = Some(errno);
        while let Some(index) = self.queued.pop_front().or_else(|| self.resubmit.pop()) {
            self.reaped.push_back((u64::from(index), -errno.0));
        }
    }

    /// Polls the completion queue without system calls. It is shared memory, and the kernel adds
    /// completions to it on any entry of the thread into the kernel.
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

    /// Reaps and handles all completions. Called while no request is borrowed.
    fn reap_owned(&mut self) {
        self.reap();
        while let Some(completion) = self.reaped.pop_front() {
            let outcome = self.complete_slot(completion);
            assert!(matches!(outcome, Outcome::Nothing), "no request is borrowed outside of `run`");
        }
    }

    /// Handles one completion: submits the rest of the transfer, or completes it and frees the
    /// slot.
    fn complete_slot(&mut self, (user_data, answer): (u64, i32)) -> Outcome {
        let index = u32::try_from(user_data).expect("the user data is the index of a slot");
        let broken = self.broken.is_some();
        let slot = &mut self.slots[index as usize];
        let result = match slot.advance(answer) {
            Next::Complete(result) => result,
            Next::Submit if !broken => {
                self.resubmit.push(index);
                self.refill();
                return Outcome::Nothing;
            }
            Next::Submit | Next::Call => self.transfer_synchronously(index),
        };
        self.free.push(index);
        let slot = &mut self.slots[index as usize];
        self.vectors.extend(slot.vector.take());
        match std::mem::replace(&mut slot.owner, Owner::None) {
            Owner::Ring { load, user_data } => {
                self.owned -= 1;
                self.done.push_back(Completion { load, user_data, result });
                Outcome::Nothing
            }
            Owner::Batch { index } => {
                self.borrowed -= 1;
                Outcome::Batch { index, result }
            }
            Owner::None => unreachable!("a completion belongs to a slot in use"),
        }
    }
}

impl<T> Slot<T> {
    fn empty() -> Slot<T> {
        let (operation, owner) = (Operation::Flush, Owner::None);
        let (start, vector) = (std::ptr::null_mut(), None);
        let (file, offset, len, need, done, tries) = (0, 0, 0, 0, 0, 0);
        let row = (std::ptr::null(), 0);
        let is_durable = false;
        Slot {
            operation,
            file,
            offset,
            start,
            len,
            need,
            done,
            tries,
            vector,
            row,
            is_durable,
            owner,
        }
    }

    fn borrowed(transfer: Transfer<'_>, index: usize, vectors: &mut Vec<Vector>) -> Slot<T> {
        let Transfer { file, offset, memory, need, is_durable } = transfer;
        let owner = Owner::Batch { index };
        let mut slot = Slot { file, offset, need, is_durable, owner, ..Slot::empty() };
        (slot.operation, slot.start, slot.len) = match memory {
            Memory::ReadInto(memory) => (Operation::Read, memory.as_mut_ptr(), memory.len()),
            // The kernel only reads this memory.
            Memory::WriteFrom(memory) => {
                (Operation::Write, memory.as_ptr().cast_mut(), memory.len())
            }
            Memory::WriteVectored(row) => {
                slot.vector = Some(vectors.pop().unwrap_or_default());
                slot.row = (row.as_ptr().cast(), row.len());
                let bytes = row.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
                (Operation::Write, std::ptr::null_mut(), bytes)
            }
        };
        assert!(need <= slot.len, "need is at most the length of the memory");
        slot
    }

    /// Returns the memory of the next submission.
    fn segment(&mut self) -> Segment {
        match (&mut self.vector, &self.owner) {
            (Some(vector), Owner::Ring { load, .. }) => {
                let row = load.as_slice().iter();
                let row = row.map(|buffer| (buffer.start().as_ptr(), buffer.len()));
                vector.fill(row, self.done, SUBMIT_BYTES_MAX)
            }
            (Some(vector), Owner::Batch { .. }) => {
                let (first, count) = self.row;
                // SAFETY: a slot of a batch with a vector has a list of slices, which `run` borrows
                // until the slot is complete (law 2).
                let row = unsafe { std::slice::from_raw_parts(first, count) }.iter();
                let row = row.map(|piece| (piece.as_ptr().cast_mut(), piece.len()));
                vector.fill(row, self.done, SUBMIT_BYTES_MAX)
            }
            (Some(_) | None, _) => Segment {
                start: self.start.wrapping_add(self.done),
                len: (self.len - self.done).min(SUBMIT_BYTES_MAX),
                vector: None,
            },
        }
    }

    fn write_flags(&self) -> libc::c_int {
        if self.is_durable { libc::RWF_DSYNC } else { 0 }
    }

    /// Applies the kernel's answer to the slot (law 4).
    fn advance(&mut self, answer: i32) -> Next {
        let Ok(count) = usize::try_from(answer) else {
            let errno = Errno(answer.saturating_neg());
            self.tries += 1;
            // ECANCELED: the submitting thread has ended, or the kernel may start no thread of its
            // own for a request that blocks.
            // A flush also returns what the writeback of the file has met, once: these two then
            // stand for data that is lost, and the next flush would succeed.
            let is_repeatable = self.operation != Operation::Flush;
            let is_transient = matches!(errno.0, libc::EINTR | libc::ECANCELED)
                || is_repeatable && matches!(errno.0, libc::EAGAIN | libc::ENOMEM);
            return match is_transient {
                true if self.tries < TRIES_MAX => Next::Submit,
                true => Next::Call,
                false => Next::Complete(Err(errno)),
            };
        };
        self.progress(count).map_or(Next::Submit, Next::Complete)
    }

    /// Counts transferred bytes. Returns `None` if the rest must be transferred.
    fn progress(&mut self, count: usize) -> Option<Result<(), Errno>> {
        if self.operation == Operation::Flush {
            return Some(Ok(()));
        }
        self.done += count.min(self.len - self.done);
        self.tries = 0;
        if self.done >= self.need {
            Some(Ok(()))
        } else if count == 0 {
            Some(Err(Errno::NO_DATA))
        } else {
            None
        }
    }
}

/// Waits, when dropped, until the kernel uses no borrowed memory.
struct Guard<'a, T> {
    ring: &'a mut Ring<T>,
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Slots are still borrowed only when unwinding. Reaped completions are handled first.
        let ring = &mut *self.ring;
        while ring.borrowed > 0 {
            while let Some(completion) = ring.reaped.pop_front() {
                // The batch no longer exists, so its results are discarded.
                let (Outcome::Nothing | Outcome::Batch { .. }) = ring.complete_slot(completion);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: usize) -> Slot<()> {
        Slot { operation: Operation::Read, len: bytes, need: bytes, ..Slot::empty() }
    }

    #[test]
    fn only_failures_without_progress_are_counted() {
        let rounds = 2 * usize::from(TRIES_MAX);
        let mut slot = read(rounds + 1);
        for _ in 0..rounds {
            assert_eq!(slot.advance(-libc::EAGAIN), Next::Submit);
            assert_eq!(slot.advance(1), Next::Submit);
        }
        assert_eq!(slot.advance(1), Next::Complete(Ok(())));
    }

    #[test]
    fn a_transfer_without_progress_leaves_the_ring_after_the_last_try() {
        for errno in [libc::EAGAIN, libc::EINTR, libc::ECANCELED, libc::ENOMEM] {
            let mut slot = read(1);
            for _ in 1..TRIES_MAX {
                assert_eq!(slot.advance(-errno), Next::Submit);
            }
            assert_eq!(slot.advance(-errno), Next::Call);
        }
        assert_eq!(read(1).advance(-libc::EIO), Next::Complete(Err(Errno::IO)));
    }

    #[test]
    fn a_flush_that_may_have_told_of_lost_data_is_not_repeated() {
        let flush = || Slot::<()> { operation: Operation::Flush, ..Slot::empty() };
        for errno in [libc::EAGAIN, libc::ENOMEM] {
            assert_eq!(flush().advance(-errno), Next::Complete(Err(Errno(errno))));
        }
        assert_eq!(flush().advance(-libc::ECANCELED), Next::Submit);
    }
}
