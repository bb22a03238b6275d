//! Streams: reads of one open file, through the page cache, and what is read ahead of them.
//!
//! A [`Stream`] sees where its reads are going ([`Readahead`]). Then they find their pages in the
//! cache, because the workers read (and verify, and unpack) ahead. That pays for large reads of
//! plain data too: the copy costs less than waiting for the device and verifying in turn.
//!
//! ```text
//! Waiting --a worker comes, or a reader--> Running: claims pages, reads them --> in the cache
//!    \-----the stream goes elsewhere, or ends--> Dropped
//! ```
//!
//! Laws:
//!
//! 1. A read answers as [`Source::read_at`] would. What could not be read ahead is read again by
//!    whoever asks for it, and fails, or not, then.
//! 2. What is read ahead is bounded for a stream by its window, and lies in the cache, which is
//!    bounded.
//! 3. A reader never waits for pages that nobody works on: he reads them himself.
//! 4. A worker lets go of the volume before its stream can end: nothing of it outlives it.
//! 5. Pages of a file that is being written are read under the lock that keeps writers away, or
//!    ahead, as long as the file is as it was when they were sent for. What is written to while it
//!    is being read is not kept.
//! 6. Who reads pages for the cache waits for nobody meanwhile, so no thread can wait for pages
//!    that are suspended below it on its own stack.
//! 7. An uncached stream leaves no pages behind it. A worker may keep pages after the reader passed
//!    them: it began its job, and the reader claimed the pages before it did. So the reader notes
//!    where it is before it drops pages, and the worker looks at that after it kept some: whichever
//!    comes second drops them.

use crate::error::FileError;
use crate::plan::Manner;
use crate::read::ReadAt;
use crate::source::{Source, in_memory};
use crate::view::FileView;
use butternut_format::units::length;
use butternut_pages::{Ahead, FilePages, Fill, Finding, PAGE_BYTES, Readahead, Stay};
use butternut_sys::buffer::Buffer;
use butternut_sys::frames::Frame;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A worker reads this much ahead at once: four compressed extents.
const CHUNK_PAGES: u64 = 128;
const PAGE: usize = 4096;
const _: () = assert!(PAGE_BYTES == 4096);
/// Memory for what is on its way into the cache, that is kept for the next.
const SPARES_MAX: usize = 8;
const SPARE_BYTES: usize = 512 << 10;

/// Reads of one open file. Any number of threads may read at once.
#[derive(Debug)]
pub struct Stream {
    source: Source,
    view: FileView,
    pages: FilePages,
    course: Mutex<Course>,
    crew: Arc<Crew>,
}

/// Where the reads of a stream are going.
#[derive(Debug, Default)]
struct Course {
    readahead: Readahead,
    /// Jobs that were sent out, and may not have begun.
    sent: Vec<Arc<Slot>>,
}

/// Workers of a stream.
#[derive(Debug, Default)]
struct Crew {
    running: Mutex<usize>,
    gone: Condvar,
    /// The page behind the last one that an uncached read copied (law 7).
    passed: AtomicU64,
}

/// A job, until a worker takes it or it is dropped.
#[derive(Debug)]
struct Slot {
    range: Range<u64>,
    job: Mutex<Option<Box<Job>>>,
}

/// What a worker needs to read ahead.
#[derive(Debug)]
struct Job {
    source: Source,
    view: FileView,
    pages: FilePages,
    /// The file's version that it is of (law 5).
    version: u64,
    range: Range<u64>,
    stay: Stay,
    crew: Arc<Crew>,
}

/// Memory for what is on its way into the cache.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<Buffer>>);

impl Spares {
    fn take(&self, bytes: usize) -> Buffer {
        let spare = if bytes <= SPARE_BYTES { lock(&self.0).pop() } else { None };
        let mut memory = spare.unwrap_or_else(|| Buffer::zeroed(bytes.max(SPARE_BYTES)));
        memory.set_len(bytes);
        memory
    }

    fn give_back(&self, memory: Buffer) {
        let mut spares = lock(&self.0);
        if spares.len() < SPARES_MAX && memory.capacity() == SPARE_BYTES {
            spares.push(memory);
        }
    }
}

impl Stream {
    pub fn new(source: Source, view: FileView) -> Self {
        let pages = match view.live() {
            Some(live) => live.pages().clone(),
            None => source.pages().file(view.key()),
        };
        Self { source, view, pages, course: Mutex::default(), crew: Arc::default() }
    }

    pub fn view(&self) -> &FileView {
        &self.view
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Reads as [`Source::read_at`] does, from memory where the bytes are there, sooner where reads
    /// follow one another. The bytes stay in memory.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, FileError> {
        self.read_in(offset, buf, Stay::Cached)
    }

    /// The same, and memory keeps nothing of it that others did not bring.
    pub fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize, FileError> {
        let read = self.read_in(offset, buf, Stay::Uncached);
        let bytes = length(*read.as_ref().unwrap_or(&0));
        if bytes > 0 {
            self.drop_behind(&(offset..offset + bytes));
        }
        read
    }

    /// The same, if all of it is in memory; how many bytes that is. It waits for nothing.
    pub fn read_at_once(&self, offset: u64, buf: &mut [u8], stay: Stay) -> Option<usize> {
        let left = self.view.size().saturating_sub(offset);
        let bytes = in_memory(left.min(length(buf.len())));
        let range = offset..offset + length(bytes);
        if bytes == 0 {
            return Some(0);
        }
        if self.pages.missing(pages_of(&range)).is_some() {
            return None;
        }
        let how = Finding { stay, goes_on: false };
        let read = self.pages.read(offset, buf.get_mut(..bytes)?, how);
        // Some may be gone by now.
        if read < bytes {
            return None;
        }
        self.read_ahead(&range, stay);
        if stay == Stay::Uncached {
            self.drop_behind(&range);
        }
        Some(read)
    }

    /// Drops what an uncached read has copied; what workers keep of it later, they drop (law 7).
    fn drop_behind(&self, bytes: &Range<u64>) {
        let read = pages_of(bytes);
        self.crew.passed.store(read.end, Ordering::SeqCst);
        self.pages.drop_behind(&read);
    }

    fn read_in(&self, offset: u64, buf: &mut [u8], stay: Stay) -> Result<usize, FileError> {
        let left = self.view.size().saturating_sub(offset);
        let bytes = in_memory(left.min(length(buf.len())));
        if bytes == 0 {
            return self.source.read_at(&self.view, offset, buf);
        }
        let goes_on = self.read_ahead(&(offset..offset + length(bytes)), stay);
        let mut how = Finding { stay, goes_on };
        let mut done = 0;
        while done < bytes {
            let rest = buf.get_mut(done..bytes).unwrap_or_default();
            let copied = self.pages.read(offset + length(done), rest, how);
            how.goes_on &= copied == 0;
            done += copied;
            let rest = buf.get_mut(done..bytes).unwrap_or_default();
            match self.bring(offset + length(done), rest, stay) {
                Ok(Some(0)) => return Ok(done),
                Ok(brought) => done += brought.unwrap_or(0),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads the bytes from `at` on whose pages are not in the cache, and brings these there;
    /// `None`: the pages are there, or are there when somebody else is done, or not.
    fn bring(&self, at: u64, buf: &mut [u8], stay: Stay) -> Result<Option<usize>, FileError> {
        if buf.is_empty() {
            return Ok(None);
        }
        let wanted = pages_of(&(at..at + length(buf.len())));
        let first = wanted.start..wanted.start + 1;
        if let Some(job) = self.waiting_job(wanted.start) {
            job.read();
            return Ok(None);
        }
        let Some(claimed) = self.pages.claim(&wanted) else {
            self.pages.wait_for_fills(&first);
            return Ok(None);
        };
        if claimed.pages().start != wanted.start {
            return Ok(None);
        }
        let start = wanted.start * PAGE_BYTES;
        let end = (claimed.pages().end * PAGE_BYTES).min(self.view.size());
        let whole = in_memory(end.saturating_sub(start));
        if stay == Stay::Uncached || (start == at && whole <= buf.len()) {
            let most = in_memory(end.saturating_sub(at)).min(buf.len());
            let part = buf.get_mut(..most).unwrap_or_default();
            let filled = self.source.read_at(&self.view, at, part)?;
            if stay == Stay::Cached {
                keep(&self.source, claimed, part.get(..filled).unwrap_or_default(), most, stay);
            }
            return Ok(Some(filled));
        }
        let mut memory = self.source.spares().take(whole);
        let read = self.source.read_at(&self.view, start, &mut memory);
        let copied = read.as_ref().map_or(0, |filled| {
            let skip = in_memory(at - start);
            let found = memory.get(skip..*filled).unwrap_or_default();
            let bytes = found.len().min(buf.len());
            let (to, _) = buf.split_at_mut(bytes);
            to.copy_from_slice(found.get(..bytes).unwrap_or_default());
            keep(&self.source, claimed, memory.get(..*filled).unwrap_or_default(), whole, stay);
            bytes
        });
        self.source.spares().give_back(memory);
        read.map(|_| Some(copied))
    }

    /// Sends workers after what lies ahead. Says whether the read goes on in the page in which the
    /// one before it ended.
    fn read_ahead(&self, bytes: &Range<u64>, stay: Stay) -> bool {
        let read = pages_of(bytes);
        let mut course = lock(&self.course);
        let goes_on =
            !bytes.start.is_multiple_of(PAGE_BYTES) && course.readahead.continues_in(read.start);
        let ahead = course.readahead.read(read, self.view.size().div_ceil(PAGE_BYTES));
        if !course.readahead.is_sequential() && ahead == Ahead::Nothing {
            course.sent.drain(..).for_each(|slot| drop(lock(&slot.job).take()));
            return goes_on;
        }
        course.sent.retain(|slot| lock(&slot.job).is_some());
        let (first, stride, count) = match ahead {
            Ahead::Nothing => return goes_on,
            Ahead::Run(run) => (run, 0, 1),
            Ahead::Records { first, stride, count } => (first, stride, count),
        };
        for record in 0..count {
            let mut start = first.start + record * stride;
            let end = first.end + record * stride;
            while start < end {
                let stop = (start - start % CHUNK_PAGES + CHUNK_PAGES).min(end);
                course.sent.push(self.send(start..stop, stay));
                start = stop;
            }
        }
        goes_on
    }

    /// The job that is to bring a page, if nobody has begun with it (law 3).
    fn waiting_job(&self, page: u64) -> Option<Box<Job>> {
        let course = lock(&self.course);
        let slot = course.sent.iter().find(|slot| slot.range.contains(&page))?;
        lock(&slot.job).take()
    }

    fn send(&self, range: Range<u64>, stay: Stay) -> Arc<Slot> {
        let (source, view) = (self.source.clone(), self.view.clone());
        let (pages, version) = (self.pages.clone(), self.view.version());
        let crew = Arc::clone(&self.crew);
        let job = Job { source, view, pages, version, range: range.clone(), stay, crew };
        let slot = Arc::new(Slot { range, job: Mutex::new(Some(Box::new(job))) });
        let (sent, crew) = (Arc::clone(&slot), Arc::clone(&self.crew));
        self.source.workers().spawn_fifo(move || crew.run(&sent));
        slot
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let course = self.course.get_mut().unwrap_or_else(PoisonError::into_inner);
        course.sent.drain(..).for_each(|slot| drop(lock(&slot.job).take()));
        let mut running = lock(&self.crew.running);
        while *running > 0 {
            running = self.crew.gone.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Crew {
    fn run(&self, slot: &Slot) {
        // Who asks whether it has begun does not wait until it is done.
        let begun = lock(&slot.job).take().inspect(|_| *lock(&self.running) += 1);
        let Some(job) = begun else { return };
        // Whoever waits for the pages must not wait for ever; he will meet the same panic.
        drop(catch_unwind(AssertUnwindSafe(|| job.read())));
        *lock(&self.running) -= 1;
        self.gone.notify_all();
    }
}

impl Job {
    fn read(self) {
        let _unchanged = match self.view.live().map(|live| live.read_ahead(self.version)) {
            Some(None) => return,
            unchanged => unchanged,
        };
        let mut left = self.range.clone();
        while let Some(claimed) = self.pages.claim(&left) {
            let pages = claimed.pages();
            left.start = pages.end;
            let start = pages.start * PAGE_BYTES;
            let end = (left.start * PAGE_BYTES).min(self.view.size());
            let bytes = in_memory(end.saturating_sub(start));
            let mut memory = self.source.spares().take(bytes);
            let mut read = [ReadAt::new(start, &mut memory)];
            self.source.read_in(Manner::Ahead, &self.view, &mut read);
            let [read] = read;
            let filled = read.result.unwrap_or(0);
            self.source.pages().note_read_ahead(filled.div_ceil(PAGE));
            keep(&self.source, claimed, memory.get(..filled).unwrap_or_default(), bytes, self.stay);
            self.source.spares().give_back(memory);
            let is_passed = pages.end <= self.crew.passed.load(Ordering::SeqCst);
            if self.stay == Stay::Uncached && is_passed {
                self.pages.drop_behind(&pages);
            }
        }
    }
}

/// Brings what was read of a claim into the cache: its whole pages, and the last one if it ends
/// with what was wanted.
fn keep(source: &Source, claimed: Fill, read: &[u8], wanted: usize, stay: Stay) {
    let whole = if read.len() < wanted { read.len() / PAGE * PAGE } else { read.len() };
    let pages = read.get(..whole).unwrap_or_default().chunks(PAGE);
    let frames: Vec<Frame> = pages
        .map_while(|page| {
            let mut frame = source.pages().frame()?;
            let (bytes, tail) = frame.bytes_mut()?.split_at_mut(page.len());
            bytes.copy_from_slice(page);
            tail.fill(0);
            Some(frame)
        })
        .collect();
    claimed.complete(frames, stay);
}

fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES)
}

/// After a panic: what is read ahead and by how many threads is counted in one step each, and the
/// work itself runs without a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
