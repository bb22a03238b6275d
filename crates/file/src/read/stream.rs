//! Streams: reads of one open file through the page cache, with readahead.
//!
//! A [`Stream`] detects the pattern of its reads ([`Readahead`]). The workers then read, verify and
//! decompress ahead of the reader, which finds its pages in the cache. This is faster for large
//! reads of uncompressed data too: the copy costs less than waiting for the device and verifying in
//! turn.
//!
//! ```text
//! queued --a worker or a reader takes the job--> running: claims pages, reads them --> cached
//!    \---the pattern changes, or the stream is dropped--> dropped
//! ```
//!
//! Laws:
//!
//! 1. A read returns what [`Source::read_at`] would. Data that could not be read ahead is read
//!    again by the reader that needs it, and fails, or not, then.
//! 2. Readahead of a stream is bounded by its window. The data goes to the page cache, which is
//!    bounded.
//! 3. A reader never waits for pages that no thread is reading: it reads them itself.
//! 4. A worker drops its references to the volume before its stream can be dropped: nothing of the
//!    stream outlives it.
//! 5. Pages of a file that is being written are read under the inode lock, or ahead of the reader
//!    while the file's contents are those of when the job was queued. Pages that are written to
//!    while they are being read are not cached. A job that reads ahead is in a read epoch: no space
//!    that a merge or a deletion frees meanwhile is reused before the job has ended.
//! 6. A thread that reads pages into the cache waits for no other thread meanwhile, so no thread
//!    can wait for pages whose read is suspended below it on its own stack.
//! 7. An uncached stream leaves no pages behind it, however many threads read it. A worker may
//!    cache pages that a reader has already passed, because the reader claimed them before the
//!    worker began. So a reader marks the pages that it has copied in every job that has not ended,
//!    and then drops them; a worker caches pages, and then drops those that are marked. Whichever
//!    of the two runs second drops them, and no page is dropped that no reader has copied.
//! 8. A page that is missing although its job has ended was evicted before it was read, and the
//!    window shrinks (law 3 of [`Readahead`]), unless the file has changed since the job was
//!    queued.

use crate::error::FileError;
use crate::extent_map::plan::ReadKind;
use crate::extent_map::view::FileView;
use crate::read::ReadAt;
use crate::source::Source;
use crate::units::in_memory;
use crate::wait::may_block;
use butternut_format::units::length;
use butternut_pages::{
    CacheMode, FilePages, Fill, PAGE_BYTES, ReadOptions, Readahead, ReadaheadWindow,
};
use butternut_sys::frames::Frame;
use butternut_sys::lock::{Condvar, Mutex, rank};
use butternut_sys::wait::Wait;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages that a worker reads ahead at once: four compressed extents.
const CHUNK_PAGES: u64 = 128;
/// Words of 64 bits that have one bit for each page of a chunk.
const COPIED_WORDS: usize = 2;
const _: () = assert!(CHUNK_PAGES == 128, "one bit for each page of a chunk");
const PAGE: usize = 4096;
const _: () = assert!(PAGE_BYTES == 4096);

/// Reads of one open file. Any number of threads may read at once.
#[derive(Debug)]
pub struct Stream {
    source: Source,
    view: FileView,
    pages: FilePages,
    pattern: Mutex<ReadPattern, rank::ReadPattern>,
    workers: Arc<ReadaheadWorkers>,
}

/// The pattern of the reads of a stream.
#[derive(Debug, Default)]
struct ReadPattern {
    readahead: Readahead,
    /// Jobs that may not have ended.
    queued: Vec<Arc<JobSlot>>,
    /// The version of the file's contents when the last job was queued (law 8).
    data_version: u64,
}

/// The workers that read ahead of a stream.
///
/// After a panic: the number of those that run, as each job, changes in one step, and the work
/// itself runs without a lock.
#[derive(Debug, Default)]
struct ReadaheadWorkers {
    running: Mutex<usize, rank::ReadaheadRunning>,
    idle: Condvar,
}

/// A job, until it has ended.
#[derive(Debug)]
struct JobSlot {
    range: Range<u64>,
    /// `None` when a worker or a reader has taken it, or it was dropped.
    job: Mutex<Option<Box<ReadaheadJob>>, rank::ReadaheadJob>,
    progress: Arc<JobProgress>,
}

/// What the readers and the worker of a job tell each other.
#[derive(Debug, Default)]
struct JobProgress {
    /// One bit for each page of the chunk: an uncached read has copied it (law 7).
    copied: [AtomicU64; COPIED_WORDS],
    /// The job was read or dropped.
    has_ended: AtomicBool,
}

/// What a worker needs to read ahead.
#[derive(Debug)]
struct ReadaheadJob {
    source: Source,
    view: FileView,
    pages: FilePages,
    /// The version of the file's contents when the job was queued (law 5).
    data_version: u64,
    range: Range<u64>,
    stay: CacheMode,
    progress: Arc<JobProgress>,
}

impl Stream {
    /// Returns a stream that reads the file of `view`.
    pub fn new(source: Source, view: FileView) -> Self {
        let pages = match view.shared() {
            Some(shared) => shared.pages().clone(),
            None => source.pages().file(view.key()),
        };
        Self { source, view, pages, pattern: Mutex::default(), workers: Arc::default() }
    }

    /// Returns the file that the stream reads.
    pub fn view(&self) -> &FileView {
        &self.view
    }

    /// Returns what the stream shares with the reads of other files.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Reads as [`Source::read_at`] does, through the page cache. The pages stay cached.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, FileError> {
        self.read(offset, buf, CacheMode::Cached, Wait::Block)
    }

    /// Reads as [`Self::read_at`] does. If `stay` is [`CacheMode::Uncached`], caches no pages that
    /// were not cached before. With [`Wait::NoWait`] it reads all bytes, or none.
    ///
    /// # Errors
    /// Nothing could be read; [`FileError::WouldBlock`] if some page is not cached.
    pub fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        stay: CacheMode,
        wait: Wait,
    ) -> Result<usize, FileError> {
        let read = self.read_in(offset, buf, stay, wait);
        let bytes = length(*read.as_ref().unwrap_or(&0));
        if stay == CacheMode::Uncached && bytes > 0 {
            self.drop_behind(&(offset..offset + bytes));
        }
        read
    }

    /// Drops the pages that an uncached read has copied. Workers drop those that they cache later
    /// (law 7).
    fn drop_behind(&self, bytes: &Range<u64>) {
        let read = pages_of(bytes);
        self.pattern.lock().queued.iter().for_each(|slot| slot.mark_copied(&read));
        self.pages.drop_behind(&read);
    }

    fn read_in(
        &self,
        offset: u64,
        buf: &mut [u8],
        stay: CacheMode,
        wait: Wait,
    ) -> Result<usize, FileError> {
        let left = self.view.size().saturating_sub(offset);
        let bytes = in_memory(left.min(length(buf.len())));
        if bytes == 0 {
            return self.source.read_at(&self.view, offset, buf);
        }
        let range = offset..offset + length(bytes);
        if wait == Wait::NoWait && self.pages.missing(pages_of(&range)).is_some() {
            return Err(FileError::WouldBlock);
        }
        let goes_on = self.read_ahead(&range, stay);
        let mut how = ReadOptions { mode: stay, continues_page: goes_on };
        let mut done = 0;
        while done < bytes {
            let rest = buf.get_mut(done..bytes).unwrap_or_default();
            let copied = self.pages.read(offset + length(done), rest, how);
            how.continues_page &= copied == 0;
            done += copied;
            let rest = buf.get_mut(done..bytes).unwrap_or_default();
            match self.fill_pages(offset + length(done), rest, stay, wait) {
                Ok(Some(0)) => return Ok(done),
                Ok(filled) => done += filled.unwrap_or(0),
                Err(FileError::WouldBlock) => return Err(FileError::WouldBlock),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads the bytes from `at` on whose pages are not cached, and caches them. Returns `None`
    /// where the caller is to look in the cache again: the pages are there, or another thread has
    /// read them or has failed to.
    fn fill_pages(
        &self,
        at: u64,
        buf: &mut [u8],
        stay: CacheMode,
        wait: Wait,
    ) -> Result<Option<usize>, FileError> {
        if buf.is_empty() {
            return Ok(None);
        }
        // Some pages may have been evicted since they were found.
        may_block(wait)?;
        let wanted = pages_of(&(at..at + length(buf.len())));
        let first = wanted.start..wanted.start + 1;
        if let Some(job) = self.queued_job(wanted.start) {
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
        self.note_miss(wanted.start);
        let start = wanted.start * PAGE_BYTES;
        let end = (claimed.pages().end * PAGE_BYTES).min(self.view.size());
        let whole = in_memory(end.saturating_sub(start));
        if stay == CacheMode::Uncached || (start == at && whole <= buf.len()) {
            let most = in_memory(end.saturating_sub(at)).min(buf.len());
            let part = buf.get_mut(..most).unwrap_or_default();
            let filled = self.source.read_at(&self.view, at, part)?;
            if stay == CacheMode::Cached {
                cache_pages(
                    &self.source,
                    claimed,
                    part.get(..filled).unwrap_or_default(),
                    most,
                    stay,
                );
            }
            return Ok(Some(filled));
        }
        let mut memory = self.source.spare_buffers().take(whole);
        let read = self.source.read_at(&self.view, start, &mut memory);
        if read.as_ref().is_ok_and(|filled| *filled <= in_memory(at - start)) {
            // The good bytes end in front of `at`: blocks of fs-verity may be shorter than pages.
            self.source.spare_buffers().put_back(memory);
            let most = in_memory(end.saturating_sub(at)).min(buf.len());
            let part = buf.get_mut(..most).unwrap_or_default();
            return self.source.read_at(&self.view, at, part).map(Some);
        }
        let copied = read.as_ref().map_or(0, |filled| {
            let skip = in_memory(at - start);
            let found = memory.get(skip..*filled).unwrap_or_default();
            let bytes = found.len().min(buf.len());
            let (to, _) = buf.split_at_mut(bytes);
            to.copy_from_slice(found.get(..bytes).unwrap_or_default());
            cache_pages(
                &self.source,
                claimed,
                memory.get(..*filled).unwrap_or_default(),
                whole,
                stay,
            );
            bytes
        });
        self.source.spare_buffers().put_back(memory);
        read.map(|_| Some(copied))
    }

    /// Queues readahead for the pages ahead. Returns whether the read continues in the page in
    /// which the previous one ended.
    fn read_ahead(&self, bytes: &Range<u64>, stay: CacheMode) -> bool {
        let read = pages_of(bytes);
        let mut pattern = self.pattern.lock();
        let goes_on =
            !bytes.start.is_multiple_of(PAGE_BYTES) && pattern.readahead.continues_in(read.start);
        let ahead = pattern.readahead.read(read, self.view.size().div_ceil(PAGE_BYTES));
        if !pattern.readahead.is_sequential() && ahead == ReadaheadWindow::Nothing {
            pattern.queued.iter().for_each(|slot| drop(slot.job.lock().take()));
            pattern.queued.retain(|slot| !slot.has_ended());
            return goes_on;
        }
        pattern.queued.retain(|slot| !slot.has_ended());
        let (first, stride, count) = match ahead {
            ReadaheadWindow::Nothing => return goes_on,
            ReadaheadWindow::Run(run) => (run, 0, 1),
            ReadaheadWindow::Strided { first, stride, count } => (first, stride, count),
        };
        pattern.data_version = self.view.data_version();
        for record in 0..count {
            let mut start = first.start + record * stride;
            let end = first.end + record * stride;
            while start < end {
                let stop = (start - start % CHUNK_PAGES + CHUNK_PAGES).min(end);
                pattern.queued.push(self.queue_job(start..stop, stay));
                start = stop;
            }
        }
        goes_on
    }

    /// Takes the job that is to read a page, if it has not begun (law 3).
    fn queued_job(&self, page: u64) -> Option<Box<ReadaheadJob>> {
        let pattern = self.pattern.lock();
        let mut slots = pattern.queued.iter().filter(|slot| slot.range.contains(&page));
        slots.find_map(|slot| slot.job.lock().take())
    }

    /// Records that a page is neither cached nor being read (law 8).
    fn note_miss(&self, page: u64) {
        let mut pattern = self.pattern.lock();
        let mut slots = pattern.queued.iter().filter(|slot| slot.range.contains(&page));
        let may_come = slots.any(|slot| !slot.has_ended());
        if !may_come && pattern.data_version == self.view.data_version() {
            pattern.readahead.note_miss(page);
        }
    }

    fn queue_job(&self, range: Range<u64>, stay: CacheMode) -> Arc<JobSlot> {
        let (source, view) = (self.source.clone(), self.view.clone());
        let (pages, data_version) = (self.pages.clone(), self.view.data_version());
        let progress = Arc::<JobProgress>::default();
        let job = ReadaheadJob {
            source,
            view,
            pages,
            data_version,
            range: range.clone(),
            stay,
            progress: Arc::clone(&progress),
        };
        let slot = Arc::new(JobSlot { range, job: Mutex::new(Some(Box::new(job))), progress });
        let (queued, workers) = (Arc::clone(&slot), Arc::clone(&self.workers));
        self.source.workers().spawn_fifo(move || workers.run(&queued));
        slot
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let pattern = self.pattern.get_mut();
        pattern.queued.drain(..).for_each(|slot| drop(slot.job.lock().take()));
        let mut running = self.workers.running.lock();
        while *running > 0 {
            running = self.workers.idle.wait(running);
        }
    }
}

impl JobSlot {
    fn has_ended(&self) -> bool {
        self.progress.has_ended.load(Ordering::Acquire)
    }

    fn mark_copied(&self, pages: &Range<u64>) {
        for page in self.range.start.max(pages.start)..self.range.end.min(pages.end) {
            if let Some((bits, mask)) = self.progress.bit(page) {
                bits.fetch_or(mask, Ordering::SeqCst);
            }
        }
    }
}

impl JobProgress {
    /// The word that has the bit of a page, and the bit.
    fn bit(&self, page: u64) -> Option<(&AtomicU64, u64)> {
        let word = self.copied.get(in_memory(page % CHUNK_PAGES / 64))?;
        Some((word, 1 << (page % 64)))
    }

    fn is_copied(&self, page: u64) -> bool {
        self.bit(page).is_some_and(|(bits, mask)| bits.load(Ordering::SeqCst) & mask != 0)
    }
}

impl Drop for ReadaheadJob {
    fn drop(&mut self) {
        self.progress.has_ended.store(true, Ordering::Release);
    }
}

impl ReadaheadWorkers {
    fn run(&self, slot: &JobSlot) {
        // A thread that checks whether the job has begun must not wait until it is done, so the
        // lock is released before the job runs.
        let begun = slot.job.lock().take().inspect(|_| *self.running.lock() += 1);
        let Some(job) = begun else { return };
        // A thread that waits for these pages must not wait for ever. It will meet the same panic.
        drop(catch_unwind(AssertUnwindSafe(|| job.read())));
        *self.running.lock() -= 1;
        self.idle.notify_all();
    }
}

impl ReadaheadJob {
    fn read(self) {
        let _epoch = self.source.forest().enter_read_epoch();
        let _unchanged =
            match self.view.shared().map(|shared| shared.begin_readahead(self.data_version)) {
                Some(None) => return,
                unchanged => unchanged,
            };
        let mut left = self.range.clone();
        while !left.is_empty() {
            let Some(claimed) = self.pages.claim(&left) else {
                // Another thread reads the first absent page. Those behind it are left to this one.
                let absent = self.pages.missing(left.clone());
                left.start = absent.map_or(left.end, |absent| absent.start + 1);
                continue;
            };
            let pages = claimed.pages();
            left.start = pages.end;
            let start = pages.start * PAGE_BYTES;
            let end = (left.start * PAGE_BYTES).min(self.view.size());
            let bytes = in_memory(end.saturating_sub(start));
            let mut memory = self.source.spare_buffers().take(bytes);
            let mut read = [ReadAt::new(start, &mut memory)];
            self.source.read_in(ReadKind::Readahead, &self.view, &mut read);
            let [read] = read;
            let filled = read.result.unwrap_or(0);
            self.source.pages().count_readahead(filled.div_ceil(PAGE));
            cache_pages(
                &self.source,
                claimed,
                memory.get(..filled).unwrap_or_default(),
                bytes,
                self.stay,
            );
            self.source.spare_buffers().put_back(memory);
            if self.stay == CacheMode::Uncached {
                for page in pages.filter(|page| self.progress.is_copied(*page)) {
                    self.pages.drop_behind(&(page..page + 1));
                }
            }
        }
    }
}

/// Caches the pages of a claim that were read: whole pages, and the last one if it ends with the
/// end of the file.
fn cache_pages(source: &Source, claimed: Fill, read: &[u8], wanted: usize, stay: CacheMode) {
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
