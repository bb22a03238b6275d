//! The counters of the cache, and the reasons for writeback.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Why a page is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WritebackReason {
    /// The background limit is exceeded, or dirty data has become old.
    Background,
    /// The hard limit is reached.
    HardLimit,
    /// An `fsync`, a commit, or a direct read or write of the range needs it.
    Sync,
    /// The pages that uncached writes have dirtied are written back.
    Uncached,
    /// An allocation found no clean page to evict.
    Pressure,
}

impl WritebackReason {
    pub const ALL: [Self; 5] =
        [Self::Background, Self::HardLimit, Self::Sync, Self::Uncached, Self::Pressure];

    /// Returns the name that metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::HardLimit => "hard_limit",
            Self::Sync => "sync",
            Self::Uncached => "uncached",
            Self::Pressure => "pressure",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Background => 0,
            Self::HardLimit => 1,
            Self::Sync => 2,
            Self::Uncached => 3,
            Self::Pressure => 4,
        }
    }
}

/// What the cache has done since it was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounters {
    /// Pages that readers found in the cache.
    pub hit_pages: u64,
    /// Pages that were read into the cache.
    pub filled_pages: u64,
    /// Pages that were read ahead.
    pub readahead_pages: u64,
    /// Pages that were read, but not cached, because they changed meanwhile.
    pub spoiled_pages: u64,
    pub evicted_pages: u64,
    /// Pages that were inserted while they had a ghost entry.
    pub ghost_hit_pages: u64,
    /// Pages of uncached reads and writes that were removed after use.
    pub dropbehind_pages: u64,
    /// Pages whose bytes could not be written to the disk.
    pub lost_pages: u64,
    /// Pages that were written to while they were under writeback.
    pub redirtied_pages: u64,
    /// Frames beyond the limit, allocated because no clean page could be evicted.
    pub overdrawn_pages: u64,
    writeback_pages: [u64; 5],
    /// Kicks that woke a flusher.
    pub flusher_kicks: u64,
    /// Number of pauses of writers, and their total length.
    pub pauses: u64,
    pub paused: Duration,
    /// Measured write rate of the devices, in bytes per second.
    pub device_rate: u64,
    pub cached_pages: usize,
    pub cached_pages_peak: usize,
    pub dirty_pages: usize,
    pub dirty_pages_peak: usize,
    /// Pages under writeback.
    pub in_writeback_pages: usize,
}

impl PageCounters {
    pub fn writeback_pages(&self, reason: WritebackReason) -> u64 {
        self.writeback_pages[reason.index()]
    }
}

/// A number of pages that rises and falls, and its peak.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Gauge {
    pub(crate) fn add(&self, pages: usize) {
        let now = self.now.fetch_add(pages, Ordering::Relaxed) + pages;
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn subtract(&self, pages: usize) {
        let before = self.now.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "no more is subtracted than was added");
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hit: AtomicU64,
    pub(crate) filled: AtomicU64,
    pub(crate) spoiled: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) dropped_behind: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) redirtied: AtomicU64,
    pub(crate) overdrawn: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    written_back: [AtomicU64; 5],
    pauses: AtomicU64,
    paused_nanos: AtomicU64,
    pub(crate) cached: Gauge,
    pub(crate) dirty: Gauge,
    pub(crate) writeback: Gauge,
}

impl Counters {
    pub(crate) fn count_writeback(&self, reason: WritebackReason, pages: usize) {
        add(&self.written_back[reason.index()], pages);
    }

    pub(crate) fn count_pause(&self, pause: Duration) {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(0);
        if nanos > 0 {
            self.pauses.fetch_add(1, Ordering::Relaxed);
            self.paused_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Returns what is counted here; fields that others count are 0.
    pub(crate) fn snapshot(&self) -> PageCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let peak = |gauge: &Gauge| gauge.peak.load(Ordering::Relaxed);
        PageCounters {
            hit_pages: read(&self.hit),
            filled_pages: read(&self.filled),
            readahead_pages: read(&self.read_ahead),
            spoiled_pages: read(&self.spoiled),
            evicted_pages: read(&self.evicted),
            ghost_hit_pages: 0,
            dropbehind_pages: read(&self.dropped_behind),
            lost_pages: read(&self.lost),
            redirtied_pages: read(&self.redirtied),
            overdrawn_pages: read(&self.overdrawn),
            writeback_pages: std::array::from_fn(|index| read(&self.written_back[index])),
            flusher_kicks: 0,
            pauses: read(&self.pauses),
            paused: Duration::from_nanos(read(&self.paused_nanos)),
            device_rate: 0,
            cached_pages: self.cached.now(),
            cached_pages_peak: peak(&self.cached),
            dirty_pages: self.dirty.now(),
            dirty_pages_peak: peak(&self.dirty),
            in_writeback_pages: self.writeback.now(),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, pages: usize) {
    counter.fetch_add(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
}
