//! [`PageCache`]: the memory of all files' pages, and what they share: frames, queues, counts.
//!
//! Laws:
//!
//! 1. Frames are taken, and pages evicted for them, before a file's index is locked: an evictor
//!    waits for indexes, and whoever has one locked waits for no other.
//! 2. More than the limit is in use only while nothing in the cache is clean; never more than the
//!    limit and an eighth of it.
//! 3. A page is evicted only if it is clean and nobody uses its frame.
//! 4. A file is known as long as it has handles or pages.
//! 5. A lock that a panic has poisoned gives what it guards, and the cache says so from then on
//!    ([`PageCache::is_poisoned`]).

use crate::chunk::{Chunk, PageState};
use crate::counters::{Counters, PageCounters, add};
use crate::dirty::DirtyFiles;
use crate::file_pages::FilePages;
use crate::flusher::{Flushers, Orders, UncachedFlush};
use crate::index::Index;
use crate::poison::Poison;
use crate::replacement::{Candidate, NodeId, Queue, Replacement};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::throttle::{DirtyLimits, Throttle};
use crate::turn::Turn;
use butternut_sys::frames::{FRAME_BYTES, Frame, Frames};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Candidates that an evictor takes at once.
const BATCH: usize = 32;
/// Candidates that an evictor looks at, for one frame, before he gives up: every page may have been
/// read thrice, and some are in use.
const LOOKS_MAX: usize = 1 << 16;
/// Reads of a page in the small queue that make it hot: its first reader's, and another's.
const HOT: u8 = 2;
/// Of the cache, what uncached writers may make dirty ahead of the flushers; and its bounds.
const AHEAD_PART: usize = 64;
const AHEAD_BYTES_MIN: usize = 1 << 20;
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Empty chunks that are kept for the next pages.
const CHUNKS_IDLE_MAX: usize = 64;

/// A file's identity: what it is in, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    pub tree: u64,
    pub ino: u64,
}

/// How much memory the cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Clean and dirty pages together.
    pub bytes: usize,
    pub dirty: DirtyLimits,
}

impl CacheLimits {
    /// For a cache of so many bytes: an eighth dirty before flushers work, a quarter at most.
    pub fn of(bytes: usize) -> Self {
        let all = u64::try_from(bytes).unwrap_or(u64::MAX);
        let dirty = DirtyLimits { background_bytes: all / 8, hard_bytes: all / 4 };
        Self { bytes, dirty }
    }

    /// How far uncached writers may be ahead of the flushers.
    fn ahead_pages_max(&self) -> usize {
        (self.bytes / AHEAD_PART).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX) / FRAME_BYTES
    }
}

/// The page cache of a volume. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PageCache(Arc<Core>);

#[derive(Debug)]
pub(crate) struct Core {
    limits: CacheLimits,
    frames: Frames,
    files: Mutex<Files>,
    replacement: Mutex<Replacement>,
    dirty_files: Mutex<DirtyFiles>,
    #[expect(clippy::vec_box, reason = "a chunk is boxed where it is used, and stays in its box")]
    idle_chunks: Mutex<Vec<Box<Chunk>>>,
    throttle: Mutex<Throttle>,
    pub(crate) flushers: Flushers,
    pub(crate) counters: Counters,
    /// Law 5.
    pub(crate) poison: Poison,
}

/// Files by number, and by key.
#[derive(Debug, Default)]
struct Files {
    entries: Vec<Option<Entry>>,
    unused: Vec<u32>,
    by_key: HashMap<FileKey, u32>,
}

#[derive(Debug)]
struct Entry {
    inode: Arc<Inode>,
    handles: usize,
}

/// What the cache has of one file.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) key: FileKey,
    number: u32,
    index: RwLock<Index>,
    /// Pages, as the index says, for whoever has not locked it.
    resident: AtomicUsize,
    pub(crate) turn: Turn,
    /// The cache's.
    poison: Poison,
}

/// One step's view of what is shared: an index is locked alone meanwhile.
#[derive(Debug)]
pub(crate) struct Books<'a> {
    core: &'a Core,
    inode: &'a Inode,
    /// Locked when first needed.
    replacement: Option<MutexGuard<'a, Replacement>>,
}

impl PageCache {
    pub fn new(limits: CacheLimits) -> Self {
        let pages = limits.bytes / FRAME_BYTES;
        Self(Arc::new(Core {
            limits,
            frames: Frames::new(pages + (pages / 8).max(BATCH)),
            files: Mutex::default(),
            replacement: Mutex::new(Replacement::new(pages)),
            dirty_files: Mutex::default(),
            idle_chunks: Mutex::default(),
            throttle: Mutex::default(),
            flushers: Flushers::default(),
            counters: Counters::default(),
            poison: Poison::default(),
        }))
    }

    /// The pages of a file, which may have some from an earlier handle.
    pub fn file(&self, key: FileKey) -> FilePages {
        let inode = self.0.files().open(key, &self.0.poison);
        FilePages::new(Arc::clone(&self.0), inode)
    }

    /// Whether a thread was found to have panicked while it changed the cache or the pages of a
    /// file: memory may hold half a change, which must not come to the volume.
    pub fn is_poisoned(&self) -> bool {
        self.0.poison.is_set()
    }

    /// A frame for a page, holding anything. Evicts clean pages as needed; without any, the frame
    /// is beyond the limit; `None` at the end of that, too (law 2). Nobody calls this who has a
    /// [`Change`](crate::Change).
    pub fn frame(&self) -> Option<Frame> {
        self.0.frame()
    }

    pub fn limits(&self) -> &CacheLimits {
        &self.0.limits
    }

    /// Bytes that are newer than the disk, or on their way to it.
    pub fn dirty_bytes(&self) -> u64 {
        let counters = &self.0.counters;
        let pages = counters.dirty.now() + counters.written.now();
        u64::try_from(pages * FRAME_BYTES).unwrap_or(u64::MAX)
    }

    /// How long a writer sleeps who has just made `bytes` more dirty; he has no lock then. Kicks
    /// the flushers where there is work.
    pub fn pause(&self, now: Duration, bytes: u64) -> Duration {
        let (dirty, limits) = (self.dirty_bytes(), &self.0.limits.dirty);
        if dirty > limits.background_bytes {
            self.0.flushers.kick();
        }
        if dirty <= limits.free_run_bytes() {
            return Duration::ZERO;
        }
        let pause = self.0.throttle().pause(now, bytes, dirty, limits);
        self.0.counters.count_pause(pause);
        pause
    }

    /// Pages are handed to the devices.
    pub fn writing_started(&self, now: Duration) {
        self.0.throttle().started(now);
    }

    /// The devices have taken them.
    pub fn writing_ended(&self, now: Duration, bytes: u64) {
        self.0.throttle().ended(now, bytes);
    }

    /// Bytes a second that the devices take.
    pub fn device_rate(&self) -> u64 {
        self.0.throttle().rate()
    }

    /// Files with dirty pages, those first that have had them longest.
    pub fn oldest_dirty(&self, files_max: usize) -> Vec<FileKey> {
        self.0.dirty_files().oldest().take(files_max).map(|inode| inode.key).collect()
    }

    /// For a flusher: waits until it is kicked, or the time is over. `false`: it is to end.
    pub fn wait_for_work(&self, at_most: Option<Duration>) -> bool {
        self.0.flushers.wait(at_most)
    }

    /// For a flusher: what to write now. It asks again when it has done that, and waits where it
    /// found nothing of it that it could write.
    pub fn orders(&self) -> Option<Orders> {
        self.0.flushers.orders(|| self.0.counters.dirty.now(), &self.0.limits.dirty)
    }

    /// For a flusher: so many pages of an order were not there to be sent. It is told again of
    /// those that uncached writes made dirty, if they may have been on their way.
    pub fn fall_short(&self, orders: &Orders, pages: usize) {
        self.0.flushers.fall_short(orders, pages);
    }

    /// Whether uncached writes have made more dirty than flushers have been told of by far.
    pub fn is_far_ahead(&self) -> bool {
        self.0.flushers.debts.pages() > self.0.limits.ahead_pages_max()
    }

    /// For an uncached writer: waits while that is so, at most so long. Whether it is over.
    pub fn wait_for_flushers(&self, at_most: Duration) -> bool {
        self.0.flushers.debts.wait_until_taken(self.0.limits.ahead_pages_max(), at_most)
    }

    /// An uncached write made pages of a file dirty: tells the flushers, as the switch says. With
    /// [`UncachedFlush::Inline`] there is nobody to be told.
    pub fn kick_uncached(&self, file: FileKey, pages: usize, switch: UncachedFlush) {
        match switch {
            UncachedFlush::Device => self.0.flushers.add_uncached(None, pages),
            UncachedFlush::Inode => self.0.flushers.add_uncached(Some(file), pages),
            UncachedFlush::Inline => {}
        }
    }

    /// There is work for a flusher.
    pub fn kick(&self) {
        self.0.flushers.kick();
    }

    /// So many pages were read ahead of whoever asks for them.
    pub fn note_read_ahead(&self, pages: usize) {
        add(&self.0.counters.read_ahead, pages);
    }

    /// Ends the flushers.
    pub fn stop(&self) {
        self.0.flushers.stop();
    }

    /// Evicts clean pages, about so many, as far as there are. Says how many.
    pub fn shrink(&self, pages: usize) -> usize {
        let mut evicted = 0;
        for _ in 0..=pages / BATCH {
            evicted += self.0.evict(BATCH.min(pages - evicted));
        }
        evicted
    }

    pub fn counters(&self) -> PageCounters {
        let mut counters = self.0.counters.snapshot();
        counters.ghost_hit_pages = self.0.replacement().ghost_hits();
        counters.flusher_kicks = self.0.flushers.kicks();
        counters.device_rate = self.device_rate();
        counters
    }
}

impl Core {
    fn pages_max(&self) -> usize {
        self.limits.bytes / FRAME_BYTES
    }

    pub(crate) fn frame(&self) -> Option<Frame> {
        let mut looks = 0;
        while looks < LOOKS_MAX {
            if self.frames.taken() < self.pages_max()
                && let Some(frame) = self.frames.take()
            {
                return Some(frame);
            }
            if self.replacement().len() == 0 {
                break;
            }
            looks += BATCH;
            self.evict(BATCH / 2);
        }
        self.flushers.press(BATCH.max(self.pages_max() / 16));
        let frame = self.frames.take();
        add(&self.counters.overdrawn, usize::from(frame.is_some()));
        frame
    }

    /// Looks at some candidates, and evicts at most so many pages.
    fn evict(&self, pages_max: usize) -> usize {
        let mut batch = [None; BATCH];
        let mut replacement = self.replacement();
        for place in batch.iter_mut().take(pages_max) {
            *place = replacement.next();
        }
        drop(replacement);
        let mut evicted = 0;
        let mut rest = batch.iter().flatten().peekable();
        while let Some(first) = rest.peek().copied() {
            let Some(inode) = self.files().find(first.file) else {
                // Removed meanwhile, with its file.
                rest.next();
                continue;
            };
            let mut index = inode.index_mut();
            let mut books = Books::new(self, &inode);
            while let Some(candidate) = rest.next_if(|next| next.file == first.file) {
                evicted += usize::from(evict_one(&mut index, &mut books, candidate));
            }
            drop(books);
            drop(index);
            self.files().close_idle(&inode);
        }
        add(&self.counters.evicted, evicted);
        evicted
    }

    pub(crate) fn close(&self, inode: &Arc<Inode>) {
        self.files().close(inode);
    }

    pub(crate) fn reopen(&self, inode: &Arc<Inode>) {
        self.files().reopen(inode);
    }

    /// Keeps the list of dirty files as the index says.
    pub(crate) fn list(&self, inode: &Arc<Inode>, index: &mut Index) {
        match (index.listed, index.dirty > 0) {
            (None, true) => index.listed = Some(self.dirty_files().add(Arc::clone(inode))),
            (Some(place), false) => {
                let removed = self.dirty_files().remove(place);
                debug_assert!(removed.is_some(), "a listed file is in the list");
                index.listed = None;
            }
            (Some(_), true) | (None, false) => {}
        }
    }

    /// The file goes behind all other dirty ones.
    pub(crate) fn relist(&self, inode: &Arc<Inode>, index: &mut Index) {
        if let Some(place) = index.listed {
            let mut files = self.dirty_files();
            files.remove(place);
            index.listed = Some(files.add(Arc::clone(inode)));
        }
    }

    pub(crate) fn take_chunk(&self) -> Box<Chunk> {
        let idle = self.idle_chunks().pop();
        idle.unwrap_or_else(|| Box::new(Chunk::new()))
    }

    pub(crate) fn keep_chunk(&self, chunk: Box<Chunk>) {
        debug_assert!(chunk.is_empty(), "only empty chunks are used again");
        let mut idle = self.idle_chunks();
        if idle.len() < CHUNKS_IDLE_MAX {
            idle.push(chunk);
        }
    }

    /// After a panic: each chunk in the list is empty and whole, so it can be used.
    #[expect(clippy::vec_box, reason = "a chunk is boxed where it is used, and stays in its box")]
    fn idle_chunks(&self) -> MutexGuard<'_, Vec<Box<Chunk>>> {
        self.idle_chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.poison.recover(self.files.lock())
    }

    fn replacement(&self) -> MutexGuard<'_, Replacement> {
        self.poison.recover(self.replacement.lock())
    }

    /// A dirty file that is not in the list is left out by a sync of all files.
    fn dirty_files(&self) -> MutexGuard<'_, DirtyFiles> {
        self.poison.recover(self.dirty_files.lock())
    }

    /// After a panic: a wrong rate makes pauses longer or shorter, within their bounds.
    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides on a page in the evictor's hand, whose file's index is locked. Whether it went.
fn evict_one(index: &mut Index, books: &mut Books<'_>, candidate: &Candidate) -> bool {
    if !books.queues().is_in_hand(candidate) {
        return false;
    }
    let found = index.find(candidate.page).filter(|(chunk, place)| {
        chunk.state(*place) == PageState::Clean && chunk.node(*place) == candidate.node
    });
    let Some((chunk, place)) = found else {
        debug_assert!(false, "a page in hand is a clean one, or was removed");
        return false;
    };
    let heat = chunk.heat(place);
    let is_used = chunk.frame(place).is_some_and(Frame::is_shared);
    let (stays, cooler) = match candidate.from {
        Queue::Main => (heat > 0 || is_used, heat.saturating_sub(1)),
        Queue::Small | Queue::InHand | Queue::Unused => (heat >= HOT || is_used, 0),
    };
    if stays {
        chunk.set_heat(place, cooler);
        // What is only in use has not been read again: it keeps its place.
        let queue = if heat >= HOT { Queue::Main } else { candidate.from };
        books.queues().keep(candidate.node, queue);
        return false;
    }
    let hash = hash(books.inode.key, candidate.page);
    books.queues().evict(candidate, hash);
    index.vacate(books, candidate.page);
    true
}

impl Files {
    fn open(&mut self, key: FileKey, poison: &Poison) -> Arc<Inode> {
        if let Some(number) = self.by_key.get(&key)
            && let Some(entry) = self.entry(*number)
        {
            entry.handles += 1;
            return Arc::clone(&entry.inode);
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("memory ends before 2^32 files")
        });
        let inode = Arc::new(Inode {
            key,
            number,
            index: RwLock::default(),
            resident: AtomicUsize::new(0),
            turn: Turn::default(),
            poison: poison.clone(),
        });
        self.by_key.insert(key, number);
        if let Some(place) = self.entries.get_mut(place(number)) {
            *place = Some(Entry { inode: Arc::clone(&inode), handles: 1 });
        }
        inode
    }

    fn reopen(&mut self, inode: &Inode) {
        if let Some(entry) = self.entry(inode.number) {
            entry.handles += 1;
        }
    }

    fn close(&mut self, inode: &Inode) {
        if let Some(entry) = self.entry(inode.number) {
            entry.handles -= 1;
        }
        self.close_idle(inode);
    }

    /// Forgets a file without handles and pages (law 4).
    fn close_idle(&mut self, inode: &Inode) {
        let is_idle = self.entry(inode.number).is_some_and(|entry| {
            std::ptr::eq(&raw const *entry.inode, inode)
                && entry.handles == 0
                && entry.inode.resident.load(Ordering::SeqCst) == 0
        });
        if is_idle {
            self.by_key.remove(&inode.key);
            self.entries[place(inode.number)] = None;
            self.unused.push(inode.number);
        }
    }

    fn find(&mut self, number: u32) -> Option<Arc<Inode>> {
        self.entry(number).map(|entry| Arc::clone(&entry.inode))
    }

    fn entry(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(place(number))?.as_mut()
    }
}

fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Inode {
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.poison.recover(self.index.read())
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.poison.recover(self.index.write())
    }
}

impl<'a> Books<'a> {
    pub(crate) fn new(core: &'a Core, inode: &'a Inode) -> Self {
        Self { core, inode, replacement: None }
    }

    pub(crate) fn core(&self) -> &'a Core {
        self.core
    }

    /// A page is clean from now on.
    pub(crate) fn admit(&mut self, page: u64, heat: u8) -> NodeId {
        let (number, hash) = (self.inode.number, hash(self.inode.key, page));
        self.queues().admit(number, page, hash, heat >= HOT)
    }

    /// A clean page is not, or no longer there.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.queues().remove(node);
    }

    pub(crate) fn came(&self) {
        self.inode.resident.fetch_add(1, Ordering::SeqCst);
        self.core.counters.cached.add(1);
    }

    pub(crate) fn went(&self) {
        self.inode.resident.fetch_sub(1, Ordering::SeqCst);
        self.core.counters.cached.subtract(1);
    }

    fn queues(&mut self) -> &mut Replacement {
        self.replacement.get_or_insert_with(|| self.core.replacement())
    }
}

/// Mixes a page's identity.
fn hash(key: FileKey, page: u64) -> u64 {
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    let hash = mix(mix(mix(0x2545_f491_4f6c_dd1d, key.tree), key.ino), page);
    hash ^ hash >> 29
}
