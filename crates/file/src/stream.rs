//! Streams: reads of one open file, and what is read ahead of them.
//!
//! A [`Stream`] sees that reads follow one another. Then they find their bytes in memory, because
//! the workers read (and verify, and unpack) ahead. That pays for large reads of plain data too:
//! the copy costs less than waiting for the device and verifying in turn.
//!
//! ```text
//! Waiting --a worker comes, or a reader--> Running --> Landed
//!    \-----the stream goes elsewhere, or ends--> Dropped
//! ```
//!
//! Laws:
//!
//! 1. A read answers as [`Source::read_at`] would. What could not be read ahead is read again by
//!    whoever asks for it, and fails, or not, then.
//! 2. Memory ahead is bounded, for a stream by [`WINDOW_BYTES_MAX`] and for all of a volume's by
//!    [`AHEAD_BYTES_MAX`]. Without memory, reads are just not ahead.
//! 3. A reader never waits for a chunk that nobody works on: he reads it himself.
//! 4. A worker lets go of the volume before its chunk lands, and a stream that ends waits for its
//!    running chunks: nothing of it outlives it.
//! 5. Of a file that is being written, a chunk is good only while nothing was written since it
//!    was sent for. Its reader looks under the lock that keeps writers away.
//! 6. A chunk is read by one worker alone. It waits for no other, so no thread can wait for a chunk
//!    that is suspended below it on its own stack.

use crate::error::FileError;
use crate::plan::Manner;
use crate::read::ReadAt;
use crate::source::{Source, in_memory};
use crate::view::FileView;
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A worker reads this much ahead at once: four compressed extents.
const CHUNK_BYTES: usize = 512 << 10;
/// How far ahead of its reader a stream gets (law 2), starting with one chunk.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
const WINDOW_BYTES_MIN: u64 = CHUNK_BYTES as u64;
/// What all streams of a volume hold together (law 2).
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Reads that follow each other, before anything is done about it.
const STEPS_MIN: u32 = 2;
/// How far a read may be from where the last one ended and still follow it: several threads that
/// read one file in turn come in any order.
const STRAY_BYTES: u64 = 2 << 20;

/// Reads of one open file. Any number of threads may read at once.
#[derive(Debug)]
pub struct Stream {
    source: Source,
    view: FileView,
    course: Mutex<Course>,
}

/// Where the reads of a stream are going.
#[derive(Debug, Default)]
struct Course {
    /// The file's version that the chunks are of (law 5).
    version: u64,
    next_offset: u64,
    steps: u32,
    window_bytes: u64,
    /// In file order.
    chunks: VecDeque<Chunk>,
    /// Chunks that were let go of while a worker was at them.
    leftovers: Vec<Arc<Slot>>,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    end: u64,
    slot: Arc<Slot>,
}

#[derive(Debug)]
struct Slot {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(Box<Job>),
    Running,
    /// `None` where the chunk could not be read whole.
    Landed(Option<Arc<Ahead>>),
    Dropped,
}

/// What a worker needs to read a chunk.
#[derive(Debug)]
struct Job {
    source: Source,
    view: FileView,
    /// The file's version that it is of (law 5).
    version: u64,
    start: u64,
    bytes: usize,
    ticket: Ticket,
}

/// A chunk's bytes.
#[derive(Debug)]
struct Ahead {
    memory: Buffer,
    ticket: Ticket,
}

/// Memory that may be read ahead into; given back when dropped.
#[derive(Debug)]
struct Ticket {
    budget: Arc<AheadBudget>,
    bytes: usize,
}

/// What all streams of a volume may hold.
#[derive(Debug, Default)]
pub(crate) struct AheadBudget {
    bytes_used: AtomicUsize,
    spares: Mutex<Vec<Buffer>>,
}

impl AheadBudget {
    fn take(self: &Arc<Self>, bytes: usize) -> Option<Ticket> {
        let take = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= AHEAD_BYTES_MAX);
        self.bytes_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Ticket { budget: Arc::clone(self), bytes })
    }

    fn memory(&self, bytes: usize) -> Buffer {
        let mut memory = lock(&self.spares).pop().unwrap_or_else(|| Buffer::zeroed(CHUNK_BYTES));
        memory.set_len(bytes);
        memory
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.budget.bytes_used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut spares = lock(&self.ticket.budget.spares);
        if spares.len() < in_memory(WINDOW_BYTES_MAX) / CHUNK_BYTES {
            spares.push(std::mem::take(&mut self.memory));
        }
    }
}

impl Stream {
    pub fn new(source: Source, view: FileView) -> Self {
        Self { source, view, course: Mutex::default() }
    }

    pub fn view(&self) -> &FileView {
        &self.view
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Reads as [`Source::read_at`] does, sooner where reads follow one another.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, FileError> {
        let left = self.view.size().saturating_sub(offset);
        let bytes = in_memory(left.min(length(buf.len())));
        let end = offset.saturating_add(length(bytes));
        let follows = {
            let mut course = lock(&self.course);
            course.renew(self.view.version());
            course.follows(offset, end)
        };
        if !follows || bytes == 0 {
            return self.source.read_at(&self.view, offset, buf);
        }
        self.spread_out(offset, end);
        let mut done = 0;
        while done < bytes {
            let at = offset + length(done);
            let rest = buf.get_mut(done..bytes).unwrap_or_default();
            let (slot, reach) = lock(&self.course).find(at, end);
            let part = rest.len().min(in_memory(reach - at));
            let rest = rest.get_mut(..part).unwrap_or_default();
            let ahead = slot.and_then(|(start, slot)| Some((start, slot.wait()?)));
            let found = ahead.as_ref().and_then(|(start, ahead)| {
                let skip = in_memory(at - start);
                ahead.memory.get(skip..skip + part)
            });
            if let Some(found) = found {
                rest.copy_from_slice(found);
                done += part;
                continue;
            }
            match self.source.read_at(&self.view, at, rest) {
                Ok(filled) if filled == part => done += part,
                Ok(filled) => return Ok(done + filled),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Sends workers after the chunks that lie ahead of `end`. Lets go of those behind `offset`:
    /// the ones between are what this read is about to find.
    fn spread_out(&self, offset: u64, end: u64) {
        let mut course = lock(&self.course);
        course.drop_chunks(|chunk| chunk.end.saturating_add(length(CHUNK_BYTES)) <= offset);
        let size = self.view.size();
        let until = end.saturating_add(course.window_bytes).min(size);
        let mut start = course.chunks.back().map_or(end, |last| last.end.max(end));
        while start < until {
            let to_boundary = length(CHUNK_BYTES) - start % length(CHUNK_BYTES);
            let bytes = in_memory((size - start).min(to_boundary));
            let Some(ticket) = self.source.ahead_budget().take(bytes) else { return };
            let (source, view) = (self.source.clone(), self.view.clone());
            let job = Job { source, view, version: course.version, start, bytes, ticket };
            let state = Mutex::new(State::Waiting(Box::new(job)));
            let slot = Arc::new(Slot { state, landed: Condvar::new() });
            let chunk = Chunk { start, end: start + length(bytes), slot: Arc::clone(&slot) };
            start = chunk.end;
            course.chunks.push_back(chunk);
            course.window_bytes = (course.window_bytes * 2).min(WINDOW_BYTES_MAX);
            self.source.workers().spawn_fifo(move || slot.run());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let course = self.course.get_mut().unwrap_or_else(PoisonError::into_inner);
        course.drop_chunks(|_| true);
        for slot in course.leftovers.drain(..).filter(|slot| slot.is_running()) {
            slot.wait();
        }
    }
}

impl Course {
    /// Lets go of what was read of another version of the file (law 5).
    fn renew(&mut self, version: u64) {
        if self.version != version {
            self.version = version;
            self.drop_chunks(|_| true);
        }
    }

    /// Takes note of a read. Says whether reads follow one another.
    fn follows(&mut self, offset: u64, end: u64) -> bool {
        if offset.abs_diff(self.next_offset) > STRAY_BYTES {
            self.drop_chunks(|_| true);
            (self.next_offset, self.steps, self.window_bytes) = (end, 0, 0);
            return false;
        }
        // Only what goes on counts: reads to and fro in one place are not a stream.
        if end > self.next_offset {
            self.next_offset = end;
            self.steps = self.steps.saturating_add(1);
            self.window_bytes = self.window_bytes.max(WINDOW_BYTES_MIN);
        }
        self.steps > STEPS_MIN
    }

    /// The chunk that byte `at` is in, with its start, and how far that goes, at most to `end`;
    /// without one, how far there is none.
    fn find(&self, at: u64, end: u64) -> (Option<(u64, Arc<Slot>)>, u64) {
        let index = self.chunks.partition_point(|chunk| chunk.end <= at);
        match self.chunks.get(index) {
            Some(chunk) if chunk.start <= at => {
                (Some((chunk.start, Arc::clone(&chunk.slot))), chunk.end.min(end))
            }
            Some(chunk) => (None, chunk.start.min(end)),
            None => (None, end),
        }
    }

    /// Lets go of the first chunks, as far as they are `unwanted`.
    fn drop_chunks(&mut self, unwanted: impl Fn(&Chunk) -> bool) {
        while self.chunks.front().is_some_and(&unwanted) {
            self.leftovers.retain(|slot| slot.is_running());
            self.leftovers.extend(self.chunks.pop_front().map(|chunk| chunk.slot));
            self.leftovers.last().inspect(|slot| slot.give_up());
        }
    }
}

impl Slot {
    /// Reads the chunk, if nobody has begun to.
    fn run(&self) {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Waiting(_)) {
            return;
        }
        let State::Waiting(job) = std::mem::replace(&mut *state, State::Running) else { return };
        drop(state);
        // Whoever waits must not wait for ever; he will meet the same panic on his own.
        let read = catch_unwind(AssertUnwindSafe(|| job.read())).unwrap_or(None);
        *lock(&self.state) = State::Landed(read.map(Arc::new));
        self.landed.notify_all();
    }

    /// The chunk's bytes, unless the reader must fetch them himself (law 1).
    fn wait(&self) -> Option<Arc<Ahead>> {
        self.run();
        let mut state = lock(&self.state);
        while matches!(*state, State::Running) {
            state = self.landed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let State::Landed(ahead) = &*state { ahead.clone() } else { None }
    }

    /// Nobody is to begin with the chunk any more.
    fn give_up(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Waiting(_)) {
            *state = State::Dropped;
        }
    }

    fn is_running(&self) -> bool {
        matches!(*lock(&self.state), State::Running)
    }
}

impl Job {
    fn read(self) -> Option<Ahead> {
        // Readers come here under the caller's lock too: then the file is as it was.
        let _unchanged = match self.view.live() {
            Some(live) => Some(live.read_ahead(self.version)?),
            None => None,
        };
        let mut memory = self.ticket.budget.memory(self.bytes);
        let mut read = [ReadAt::new(self.start, &mut memory)];
        self.source.read_in(Manner::Ahead, &self.view, &mut read);
        let [read] = read;
        let is_whole = matches!(read.result, Ok(filled) if filled == self.bytes);
        is_whole.then_some(Ahead { memory, ticket: self.ticket })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_ahead_is_bounded_and_comes_back() {
        let budget = Arc::new(AheadBudget::default());
        let tickets: Vec<_> = (0..100).filter_map(|_| budget.take(CHUNK_BYTES)).collect();
        assert_eq!(tickets.len(), AHEAD_BYTES_MAX / CHUNK_BYTES);
        drop(tickets);
        assert_eq!(budget.bytes_used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_reads_that_go_on_are_a_stream() {
        let mut course = Course::default();
        let to_and_fro =
            (0..20).any(|turn| course.follows(turn % 2 * 4096, turn % 2 * 4096 + 4096));
        assert!(!to_and_fro, "two places, read in turn");
        let mut course = Course::default();
        let row: Vec<bool> = (0..5).map(|at| course.follows(at * 4096, at * 4096 + 4096)).collect();
        assert_eq!(row, [false, false, true, true, true]);
        assert!(!course.follows(1 << 30, (1 << 30) + 4096), "a jump ends it");
    }
}
