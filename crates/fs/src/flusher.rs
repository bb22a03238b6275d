//! The flushers: threads that bring down what is dirty, so that no writer does.
//!
//! ```text
//! writers --dirty pages, kicks--> page cache --orders--> flushers --flights--> devices
//!    ^                                 |
//!    +------ pauses, past a limit -----+
//! ```
//!
//! Laws:
//!
//! 1. A file is locked while it is decided what of it goes down, and not while that is written.
//!    With a flight in hand nobody waits for a file's lock.
//! 2. Nothing that another thread waits for depends on the flusher alone: who brings data down for
//!    himself (`sync`, a commit) does it the same way.
//! 3. A writer pauses with nothing locked, and not for ever: a device that takes nothing does not
//!    stop him.
//! 4. The threads have no part in the filesystem's life: when the filesystem goes, they are told
//!    to stop and waited for.
//! 5. One flusher works until a flight of his is in the air and there is more to do: then he wakes
//!    the next. So a second one runs where digests and packing keep the first from the devices, and
//!    none runs for nothing.

use crate::inode_table::{Body, InodeEntry};
use crate::mount::Shared;
use crate::write_back::HowFar;
use crate::{Error, FileId, Filesystem, Result};
use butternut_file::{FileState, Flight, Help, Source};
use butternut_format::units::length;
use butternut_pages::{FileKey, Orders, PAGE_BYTES, PAUSE_MAX, Reason, Stay};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLockWriteGuard, Weak};
use std::thread::{Builder, JoinHandle, available_parallelism, sleep};
use std::time::{Duration, Instant};

/// Files that one look at the dirty ones finds.
const FILES_PER_LOOK: usize = 256;
/// Pauses of one writer behind another, while nothing goes down (law 3).
const PAUSES_MAX: u32 = 50;
/// Pause of a flusher that could write nothing back, before it tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// More threads than this add nothing: the devices' own queues are full.
const THREADS_MAX: usize = 4;

/// Flights that have not landed.
#[derive(Debug)]
pub(crate) struct Flights {
    begun: Instant,
    count: Mutex<usize>,
    landed: Condvar,
}

/// Files going down, as one flight or several.
struct Loading<'a> {
    filesystem: &'a Filesystem,
    flight: Option<Flight>,
    bytes: u64,
    /// Another flusher is to be woken (law 5).
    wakes_next: bool,
    /// Dirty data of a file stayed dirty, because its place could not be looked up.
    has_failed: bool,
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Flushers {
    source: Source,
    threads: Vec<JoinHandle<()>>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { begun: Instant::now(), count: Mutex::default(), landed: Condvar::new() }
    }
}

impl Flights {
    /// Lets whoever waits for a file wait for flights.
    pub(crate) fn offer_help(self: &Arc<Self>, source: &Source) {
        let helper: Weak<Self> = Arc::downgrade(self);
        source.add_helper(helper);
    }

    /// Since anything that stays: what the throttle is told.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// One more, until the answer is dropped.
    pub(crate) fn begin(&self) -> OnItsWay<'_> {
        self.add();
        OnItsWay(self)
    }

    fn add(&self) {
        *self.count() += 1;
    }

    /// Waits while that is so, until flights land that change it; at most so long. Whether it is
    /// so still.
    fn wait_while(&self, at_most: Duration, is_so: impl Fn() -> bool) -> bool {
        let waited = self.landed.wait_timeout_while(self.count(), at_most, |_| is_so());
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn land(&self) {
        *self.count() -= 1;
        self.landed.notify_all();
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flight that has not landed.
#[derive(Debug)]
pub(crate) struct OnItsWay<'a>(&'a Flights);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.land();
    }
}

impl Help for Flights {
    fn help(&self, patience: Duration) {
        let count = self.count();
        if *count > 0 {
            drop(self.landed.wait_timeout(count, patience));
        }
    }

    fn give_back_space(&self) {}
}

impl Flushers {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let source = shared.source.clone();
        let mut flushers = Self { source: source.clone(), threads: Vec::new() };
        let count = available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        for _ in 0..count {
            let filesystem = Filesystem { shared: Arc::clone(shared), life: None };
            let thread = Builder::new().name("butternut-flush".into());
            let thread = thread.spawn(move || filesystem.follow_orders());
            flushers.threads.push(thread.map_err(Error::Committer)?);
        }
        source.set_flusher(true);
        Ok(flushers)
    }
}

impl Drop for Flushers {
    fn drop(&mut self) {
        self.source.set_flusher(false);
        self.source.pages().stop();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Filesystem {
    /// What a flusher does all his life.
    fn follow_orders(&self) {
        let pages = self.shared.source.pages();
        let _watch = self.forest().watch_panics();
        while pages.wait_for_work(None) {
            while let Some(orders) = pages.orders() {
                // What uncached writes owe is asked for once.
                if self.follow(&orders) == 0 && orders.reason != Reason::Uncached {
                    break;
                }
            }
        }
    }

    /// Brings down what the cache orders; how many bytes that were.
    fn follow(&self, orders: &Orders) -> u64 {
        let Some(writer) = self.shared.writer.as_ref().filter(|writer| !writer.is_abandoned())
        else {
            return 0;
        };
        let pages = self.shared.source.pages();
        let keys = orders.file.map_or_else(|| pages.oldest_dirty(FILES_PER_LOOK), |key| vec![key]);
        let mut loading = Loading::new(self);
        loading.wakes_next = orders.has_more;
        let ordered = length(orders.pages).saturating_mul(PAGE_BYTES);
        let mut inline = Vec::new();
        for key in keys {
            let left = ordered.saturating_sub(loading.bytes);
            if left == 0 {
                break;
            }
            let Some(entry) = writer.dirty_entry(id_of(key)) else { continue };
            if loading.load(&entry, left, orders.reason) > 0 {
                pages.file(key).yield_turn();
            } else if loading.has_dirty_inline(&entry) {
                inline.push(entry);
            }
        }
        let has_failed = loading.has_failed;
        let mut bytes = loading.finish();
        if has_failed && bytes == 0 {
            // Such data would be tried again at once, over and over.
            sleep(RETRY_PAUSE);
        }
        if bytes < ordered {
            let paid = usize::try_from(bytes / PAGE_BYTES).unwrap_or(usize::MAX);
            pages.fall_short(orders, orders.pages.saturating_sub(paid));
        }
        if bytes < ordered && orders.reason != Reason::Uncached {
            // Small files go into the trees, and are clean then.
            inline.sort_by_key(|entry| entry.id);
            let before = pages.dirty_bytes();
            for batch in inline.chunks(FILES_PER_LOOK / 2) {
                drop(self.merge_files(writer, batch, HowFar::Whole));
            }
            bytes += before.saturating_sub(pages.dirty_bytes());
        }
        bytes
    }

    /// Brings the data of some files down, without keeping their locks meanwhile. What is lost by
    /// it is told of when they are merged.
    pub(crate) fn flush_files(&self, entries: &[Arc<InodeEntry>], reason: Reason) {
        let mut loading = Loading::new(self);
        for entry in entries {
            loading.load(entry, u64::MAX, reason);
        }
        loading.finish();
    }

    /// Makes a writer who has just written so many bytes pause, if more is dirty than should be, or
    /// if uncached writes are far ahead of the flushers (law 3).
    pub(crate) fn pace(&self, bytes: usize, stay: Stay) {
        let (pages, flights) = (self.shared.source.pages(), &self.shared.flights);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut pause = pages.pause(flights.now(), bytes);
        if stay == Stay::Uncached {
            pages.wait_for_flushers(PAUSE_MAX * PAUSES_MAX);
        }
        for _ in 0..PAUSES_MAX {
            if pause.is_zero() {
                return;
            }
            let is_stopped = || pages.dirty_bytes() >= pages.limits().dirty.hard_bytes;
            if !is_stopped() {
                return sleep(pause);
            }
            if !flights.wait_while(pause, is_stopped) {
                return;
            }
            pause = pages.pause(flights.now(), 0);
        }
    }
}

impl<'a> Loading<'a> {
    fn new(filesystem: &'a Filesystem) -> Self {
        Self { filesystem, flight: None, bytes: 0, wakes_next: false, has_failed: false }
    }

    /// Loads at most so many bytes of a file; how many there were.
    fn load(&mut self, entry: &Arc<InodeEntry>, bytes_max: u64, reason: Reason) -> u64 {
        let before = self.bytes;
        while self.bytes - before < bytes_max {
            let left = bytes_max - (self.bytes - before);
            let mut body = self.lock(entry);
            let Some(file) = &mut body.file else { break };
            if file.dirty_bytes() == 0 {
                break;
            }
            // What fails here is kept for whoever syncs.
            let (more, planned) = file.begin_flush(left.min(Flight::BYTES_MAX), reason);
            drop(body);
            self.has_failed |= planned.is_err();
            let Some(more) = more else { break };
            self.bytes += more.bytes();
            if self.flight.is_none() {
                self.filesystem.shared.flights.add();
            }
            self.flight = Some(more.join(self.flight.take()));
            if self.flight.as_ref().is_some_and(Flight::is_full) {
                self.carry();
            }
        }
        self.bytes - before
    }

    fn has_dirty_inline(&mut self, entry: &Arc<InodeEntry>) -> bool {
        self.lock(entry).file.as_deref().is_some_and(FileState::has_dirty_inline)
    }

    /// Law 1.
    fn lock<'b>(&mut self, entry: &'b InodeEntry) -> RwLockWriteGuard<'b, Body> {
        if self.flight.is_some()
            && let Some(body) = entry.try_body_in_traffic()
        {
            return body;
        }
        self.carry();
        entry.body_in_traffic()
    }

    fn carry(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        let (pages, flights) =
            (self.filesystem.shared.source.pages(), &self.filesystem.shared.flights);
        let bytes = flight.bytes();
        if std::mem::take(&mut self.wakes_next) {
            pages.kick();
        }
        pages.writing_started(flights.now());
        let carried = flight.carry();
        pages.writing_ended(flights.now(), if carried.is_ok() { bytes } else { 0 });
        flights.land();
    }

    /// Brings down what is left; how many bytes that was in all.
    fn finish(mut self) -> u64 {
        self.carry();
        self.bytes
    }
}

fn id_of(key: FileKey) -> FileId {
    FileId::new(key.tree, key.ino)
}
