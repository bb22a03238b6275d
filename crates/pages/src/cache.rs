//! [`PageCache`]: the memory of all files' pages and what they share: frames, replacement queues,
//! counts.
//!
//! Laws:
//!
//! 1. A thread allocates frames, and evicts pages for them, before it locks the index of a file: an
//!    eviction waits for index locks, so a thread that holds one must not wait for an eviction.
//! 2. Memory exceeds the limit only while no clean page is found that can be evicted, and by at
//!    most one eighth of the limit, or 32 pages if that is more.
//! 3. A page is evicted only if it is clean and its frame has no other user.
//! 4. A file stays known as long as it has handles or pages.
//! 5. A lock that a panic has poisoned can still be locked. If it guards an index, the list of
//!    files, the list of dirty files or the replacement queues, [`PageCache::is_poisoned`] returns
//!    true from then on. The other locks guard nothing that a panic can leave wrong.

use crate::counters::{Counters, PageCounters, add};
use crate::dirty::DirtyFiles;
use crate::eventcount::EventCount;
use crate::file_key::FileKey;
use crate::flusher::{Flushers, UncachedFlush, WritebackWork};
use crate::index::Index;
use crate::page_group::{PageGroup, PageState};
use crate::poison::Poison;
use crate::replacement::{Candidate, NodeId, Queue, Replacement};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use crate::throttle::{DirtyLimits, Throttle};
use butternut_sys::frames::{FRAME_BYTES, Frame, Frames};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pages that an eviction isolates at a time.
const BATCH: usize = 32;
/// Maximum number of pages that are scanned to find one frame: each page may need several scans
/// until its access count is zero, and some frames are in use.
const SCAN_MAX: usize = 1 << 16;
/// Reads of a page in the small queue that move it to the main queue: that of its first reader and
/// one more.
const HOT_ACCESSES: u8 = 2;
/// Limit of the uncached backlog, as a fraction of the cache (divisor), and its bounds in bytes.
const BACKLOG_PART: usize = 64;
const BACKLOG_BYTES_MIN: usize = 1 << 20;
const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// Empty page groups that are kept for reuse, at most.
const IDLE_GROUPS_MAX: usize = 64;

/// Memory limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Limit of all pages, clean and dirty, in bytes.
    pub bytes: usize,
    pub dirty: DirtyLimits,
}

impl CacheLimits {
    /// Returns the limits for a cache of `bytes`: flushers write back above one eighth, writers
    /// stop at one quarter.
    pub fn of(bytes: usize) -> Self {
        let all = u64::try_from(bytes).unwrap_or(u64::MAX);
        let dirty = DirtyLimits { background_bytes: all / 8, hard_bytes: all / 4 };
        Self { bytes, dirty }
    }

    /// Returns the limit of the uncached backlog, in pages.
    fn backlog_pages_max(&self) -> usize {
        (self.bytes / BACKLOG_PART).clamp(BACKLOG_BYTES_MIN, BACKLOG_BYTES_MAX) / FRAME_BYTES
    }
}

/// The page cache of a volume. Clones share one cache.
#[derive(Clone, Debug)]
pub struct PageCache(pub(crate) Arc<Core>);

#[derive(Debug)]
pub(crate) struct Core {
    limits: CacheLimits,
    frames: Frames,
    files: Mutex<Files, rank::PageFiles>,
    replacement: Mutex<Replacement, rank::PageReplacement>,
    dirty_files: Mutex<DirtyFiles, rank::DirtyFiles>,
    #[expect(
        clippy::vec_box,
        reason = "groups are boxed in the index and move here without a copy"
    )]
    idle_groups: Mutex<Vec<Box<PageGroup>>, rank::IdlePageGroups>,
    throttle: Mutex<Throttle, rank::Throttle>,
    pub(crate) flushers: Flushers,
    pub(crate) counters: Counters,
    /// Law 5.
    pub(crate) poison: Poison,
}

/// Known files, by number and by key.
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

/// The pages of one file.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) key: FileKey,
    number: u32,
    index: RwLock<Index, rank::PageIndex>,
    /// Number of pages in the index, for threads that have not locked it.
    resident: AtomicUsize,
    pub(crate) events: EventCount,
    /// The flag of the whole cache.
    poison: Poison,
}

/// What a transition of one page updates besides the index: the counts and the replacement queues.
/// Used while one index is locked exclusively.
#[derive(Debug)]
pub(crate) struct Accounting<'a> {
    core: &'a Core,
    inode: &'a Inode,
    /// Locked on first use.
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
            idle_groups: Mutex::default(),
            throttle: Mutex::default(),
            flushers: Flushers::default(),
            counters: Counters::default(),
            poison: Poison::default(),
        }))
    }

    /// Returns whether a thread has panicked while it changed the cache or the pages of a file.
    /// Memory may then hold an incomplete change, which must not be written to the volume.
    pub fn is_poisoned(&self) -> bool {
        self.0.poison.is_set()
    }

    /// Allocates the frame of a page, with arbitrary contents. Evicts clean pages as needed. If
    /// there are none, the frame may exceed the limit by one eighth; above that, returns `None`
    /// (law 2). Must not be called while holding a [`Change`](crate::Change).
    pub fn frame(&self) -> Option<Frame> {
        self.0.frame()
    }

    pub fn limits(&self) -> &CacheLimits {
        &self.0.limits
    }

    /// Returns the bytes that are dirty or under writeback.
    pub fn dirty_bytes(&self) -> u64 {
        let counters = &self.0.counters;
        let pages = counters.dirty.now() + counters.writeback.now();
        u64::try_from(pages * FRAME_BYTES).unwrap_or(u64::MAX)
    }

    /// Returns how long a writer that has just dirtied `bytes` must sleep, and wakes the flushers
    /// above the background limit. The writer holds no lock while it sleeps.
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

    /// Tells the throttle that a writeback was submitted to the devices.
    pub fn writeback_started(&self, now: Duration) {
        self.0.throttle().writeback_started(now);
    }

    /// Tells the throttle that a submitted writeback of `bytes` has completed; 0 if it failed.
    pub fn writeback_ended(&self, now: Duration, bytes: u64) {
        self.0.throttle().writeback_ended(now, bytes);
    }

    /// Returns the measured write rate of the devices, in bytes per second.
    pub fn device_rate(&self) -> u64 {
        self.0.throttle().rate()
    }

    /// Returns at most `files_max` files with dirty pages, in the order in which they became dirty.
    pub fn oldest_dirty(&self, files_max: usize) -> Vec<FileKey> {
        self.0.dirty_files().oldest().take(files_max).map(|inode| inode.key).collect()
    }

    /// Waits until a flusher is kicked, at most `at_most` long. Returns false if the flusher thread
    /// is to end.
    pub fn wait_for_work(&self, at_most: Option<Duration>) -> bool {
        self.0.flushers.wait(at_most)
    }

    /// Returns what a flusher is to write back now. The flusher calls this again until it returns
    /// `None`, then waits with [`PageCache::wait_for_work`].
    pub fn next_work(&self) -> Option<WritebackWork> {
        self.0.flushers.next_work(|| self.0.counters.dirty.now(), &self.0.limits.dirty)
    }

    /// Reports that a flusher found `pages` fewer dirty pages than its work says. Those of the
    /// uncached backlog that may have been under writeback are queued again when a writeback
    /// completes.
    pub fn report_shortfall(&self, work: &WritebackWork, pages: usize) {
        self.0.flushers.report_shortfall(work, pages);
    }

    /// Returns whether the uncached backlog exceeds its limit.
    pub fn is_uncached_backlog_full(&self) -> bool {
        self.0.flushers.backlog.pages() > self.0.limits.backlog_pages_max()
    }

    /// Waits while the uncached backlog exceeds its limit, at most `at_most` long. Returns whether
    /// it is within the limit then.
    pub fn wait_for_uncached_backlog(&self, at_most: Duration) -> bool {
        self.0.flushers.backlog.wait_until_below(self.0.limits.backlog_pages_max(), at_most)
    }

    /// Queues pages that an uncached write has dirtied, as `flush` selects. With
    /// [`UncachedFlush::Inline`] it does nothing, since the writer does the writeback.
    pub fn queue_uncached(&self, file: FileKey, pages: usize, flush: UncachedFlush) {
        match flush {
            UncachedFlush::Device => self.0.flushers.queue_uncached(None, pages),
            UncachedFlush::Inode => self.0.flushers.queue_uncached(Some(file), pages),
            UncachedFlush::Inline => {}
        }
    }

    /// Wakes a flusher.
    pub fn kick(&self) {
        self.0.flushers.kick();
    }

    /// Counts pages that were read ahead.
    pub fn count_readahead(&self, pages: usize) {
        add(&self.0.counters.read_ahead, pages);
    }

    /// Ends the flusher threads.
    pub fn stop_flushers(&self) {
        self.0.flushers.stop();
    }

    /// Evicts about `pages` clean pages, as far as there are so many. Returns how many were
    /// evicted.
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
        let mut scanned = 0;
        while scanned < SCAN_MAX {
            if self.frames.allocated() < self.pages_max()
                && let Some(frame) = self.frames.allocate()
            {
                return Some(frame);
            }
            if self.replacement().len() == 0 {
                break;
            }
            scanned += BATCH;
            self.evict(BATCH / 2);
        }
        self.flushers.request_clean_pages(BATCH.max(self.pages_max() / 16));
        let frame = self.frames.allocate();
        add(&self.counters.overdrawn, usize::from(frame.is_some()));
        frame
    }

    /// Isolates some pages and evicts at most `pages_max` of them. Returns how many were evicted.
    fn evict(&self, pages_max: usize) -> usize {
        let mut batch = [None; BATCH];
        let mut replacement = self.replacement();
        for candidate in batch.iter_mut().take(pages_max) {
            *candidate = replacement.isolate_oldest();
        }
        drop(replacement);
        let mut evicted = 0;
        let mut rest = batch.iter().flatten().peekable();
        while let Some(first) = rest.peek().copied() {
            let Some(inode) = self.files().find(first.file) else {
                // The page was removed since it was isolated, and its file is gone.
                rest.next();
                continue;
            };
            let mut index = inode.index_mut();
            let mut accounting = Accounting::new(self, &inode);
            while let Some(candidate) = rest.next_if(|next| next.file == first.file) {
                evicted += usize::from(evict_one(&mut index, &mut accounting, candidate));
            }
            drop(accounting);
            drop(index);
            self.files().close_idle(&inode);
        }
        add(&self.counters.evicted, evicted);
        evicted
    }

    pub(crate) fn open(&self, key: FileKey) -> Arc<Inode> {
        self.files().open(key, &self.poison)
    }

    pub(crate) fn close(&self, inode: &Arc<Inode>) {
        self.files().close(inode);
    }

    pub(crate) fn reopen(&self, inode: &Arc<Inode>) {
        self.files().reopen(inode);
    }

    /// Adds the file to the list of dirty files, or removes it, as its index says.
    pub(crate) fn update_dirty_list(&self, inode: &Arc<Inode>, index: &mut Index) {
        match (index.dirty_list_key, index.dirty > 0) {
            (None, true) => index.dirty_list_key = Some(self.dirty_files().add(Arc::clone(inode))),
            (Some(key), false) => {
                let removed = self.dirty_files().remove(key);
                debug_assert!(removed.is_some(), "a listed file is in the list of dirty files");
                index.dirty_list_key = None;
            }
            (Some(_), true) | (None, false) => {}
        }
    }

    /// Moves the file to the end of the list of dirty files.
    pub(crate) fn move_to_dirty_tail(&self, inode: &Arc<Inode>, index: &mut Index) {
        if let Some(key) = index.dirty_list_key {
            let mut files = self.dirty_files();
            files.remove(key);
            index.dirty_list_key = Some(files.add(Arc::clone(inode)));
        }
    }

    pub(crate) fn take_group(&self) -> Box<PageGroup> {
        let idle = self.idle_groups().pop();
        idle.unwrap_or_else(|| Box::new(PageGroup::new()))
    }

    pub(crate) fn recycle_group(&self, group: Box<PageGroup>) {
        debug_assert!(group.is_empty(), "only empty groups are reused");
        let mut idle = self.idle_groups();
        if idle.len() < IDLE_GROUPS_MAX {
            idle.push(group);
        }
    }

    /// Ignores poisoning: every group in the list is empty, whatever a panic interrupted.
    #[expect(
        clippy::vec_box,
        reason = "groups are boxed in the index and move here without a copy"
    )]
    fn idle_groups(&self) -> MutexGuard<'_, Vec<Box<PageGroup>>> {
        self.idle_groups.lock()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock_or_else(|_| self.poison.set())
    }

    fn replacement(&self) -> MutexGuard<'_, Replacement> {
        self.replacement.lock_or_else(|_| self.poison.set())
    }

    /// Poisoning is recorded: a dirty file that is missing in the list would be left out of a sync.
    fn dirty_files(&self) -> MutexGuard<'_, DirtyFiles> {
        self.dirty_files.lock_or_else(|_| self.poison.set())
    }

    /// Ignores poisoning: a wrong rate makes pauses longer or shorter, within their bounds.
    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock()
    }
}

/// Evicts an isolated page or puts it back. The index of its file is locked exclusively. Returns
/// whether it was evicted.
fn evict_one(index: &mut Index, accounting: &mut Accounting<'_>, candidate: &Candidate) -> bool {
    if !accounting.queues().is_isolated(candidate) {
        return false;
    }
    let found = index.find(candidate.page).filter(|(group, slot)| {
        group.state(*slot) == PageState::Clean && group.node(*slot) == candidate.node
    });
    let Some((group, slot)) = found else {
        debug_assert!(false, "an isolated page is clean, or was removed");
        return false;
    };
    let accesses = group.accesses(slot);
    let is_used = group.frame(slot).is_some_and(Frame::is_shared);
    let (stays, decayed) = match candidate.from {
        Queue::Main => (accesses > 0 || is_used, accesses.saturating_sub(1)),
        Queue::Small | Queue::Isolated | Queue::Unused => (accesses >= HOT_ACCESSES || is_used, 0),
    };
    if stays {
        group.set_accesses(slot, decayed);
        // A page that was only in use, and not read again, goes back to its queue.
        let queue = if accesses >= HOT_ACCESSES { Queue::Main } else { candidate.from };
        accounting.queues().put_back(candidate.node, queue);
        return false;
    }
    let hash = hash(accounting.inode.key, candidate.page);
    accounting.queues().evict(candidate, hash);
    index.vacate(accounting, candidate.page);
    index.evicted = index.evicted.wrapping_add(1);
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
            events: EventCount::default(),
            poison: poison.clone(),
        });
        self.by_key.insert(key, number);
        if let Some(entry) = self.entries.get_mut(as_index(number)) {
            *entry = Some(Entry { inode: Arc::clone(&inode), handles: 1 });
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
            self.entries[as_index(inode.number)] = None;
            self.unused.push(inode.number);
        }
    }

    fn find(&mut self, number: u32) -> Option<Arc<Inode>> {
        self.entry(number).map(|entry| Arc::clone(&entry.inode))
    }

    fn entry(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(as_index(number))?.as_mut()
    }
}

fn as_index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Inode {
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read_or_else(|_| self.poison.set())
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write_or_else(|_| self.poison.set())
    }
}

impl<'a> Accounting<'a> {
    pub(crate) fn new(core: &'a Core, inode: &'a Inode) -> Self {
        Self { core, inode, replacement: None }
    }

    pub(crate) fn core(&self) -> &'a Core {
        self.core
    }

    /// Adds a page that is clean from now on to the replacement queues.
    pub(crate) fn admit(&mut self, page: u64, accesses: u8) -> NodeId {
        let (number, hash) = (self.inode.number, hash(self.inode.key, page));
        self.queues().admit(number, page, hash, accesses >= HOT_ACCESSES)
    }

    /// Removes a page that is no longer clean, or no longer present, from the replacement queues.
    pub(crate) fn withdraw(&mut self, node: NodeId) {
        self.queues().remove(node);
    }

    pub(crate) fn count_inserted(&self) {
        self.inode.resident.fetch_add(1, Ordering::SeqCst);
        self.core.counters.cached.add(1);
    }

    pub(crate) fn count_removed(&self) {
        self.inode.resident.fetch_sub(1, Ordering::SeqCst);
        self.core.counters.cached.subtract(1);
    }

    fn queues(&mut self) -> &mut Replacement {
        self.replacement.get_or_insert_with(|| self.core.replacement())
    }
}

/// Returns a hash of a page's identity.
fn hash(key: FileKey, page: u64) -> u64 {
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    let hash = mix(mix(mix(0x2545_f491_4f6c_dd1d, key.tree), key.ino), page);
    hash ^ hash >> 29
}
