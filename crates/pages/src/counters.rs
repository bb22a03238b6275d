//! What the cache counts, and why pages are written back.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Why a page is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// More is dirty than may be for long, or it is time.
    Background,
    /// More is dirty than may be at all.
    HardLimit,
    /// Somebody asked for it: `fsync`, a commit, a direct read or write of the range.
    Sync,
    /// As many pages as uncached writes made dirty.
    Uncached,
    /// Memory is wanted, and no clean page is left.
    Pressure,
}

impl Reason {
    pub const ALL: [Self; 5] =
        [Self::Background, Self::HardLimit, Self::Sync, Self::Uncached, Self::Pressure];

    /// As counters call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::HardLimit => "hard_limit",
            Self::Sync => "sync",
            Self::Uncached => "uncached",
            Self::Pressure => "pressure",
        }
    }

    fn place(self) -> usize {
        match self {
            Self::Background => 0,
            Self::HardLimit => 1,
            Self::Sync => 2,
            Self::Uncached => 3,
            Self::Pressure => 4,
        }
    }
}

/// What the cache did since it was made, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounters {
    /// Pages that readers found.
    pub hit_pages: u64,
    /// Pages that were read for the cache.
    pub filled_pages: u64,
    /// Pages that were read ahead of whoever asked for them.
    pub readahead_pages: u64,
    /// Pages that were read, and changed meanwhile: not kept.
    pub spoiled_pages: u64,
    pub evicted_pages: u64,
    /// Pages that came back not long after they were evicted.
    pub ghost_hit_pages: u64,
    /// Pages that went once they were copied, or down, as uncached reads and writes want it.
    pub dropbehind_pages: u64,
    /// Pages that could not be written.
    pub lost_pages: u64,
    /// Pages that changed on their way to the disk.
    pub redirtied_pages: u64,
    /// Frames that were taken though the cache was full and nothing in it was clean.
    pub overdrawn_pages: u64,
    writeback_pages: [u64; 5],
    /// Kicks that woke a flusher.
    pub flusher_kicks: u64,
    /// Pauses that writers were told to make, and how long those are together.
    pub pauses: u64,
    pub paused: Duration,
    /// Bytes a second that the devices take.
    pub device_rate: u64,
    pub cached_pages: usize,
    pub cached_pages_peak: usize,
    pub dirty_pages: usize,
    pub dirty_pages_peak: usize,
    /// On their way to the disk.
    pub written_pages: usize,
}

impl PageCounters {
    pub fn writeback_pages(&self, reason: Reason) -> u64 {
        self.writeback_pages[reason.place()]
    }
}

/// A number of pages that comes and goes, and its highest.
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
        debug_assert!(before >= pages, "what is subtracted was added");
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
    pub(crate) written: Gauge,
}

impl Counters {
    pub(crate) fn count_writeback(&self, reason: Reason, pages: usize) {
        add(&self.written_back[reason.place()], pages);
    }

    pub(crate) fn count_pause(&self, pause: Duration) {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(0);
        if nanos > 0 {
            self.pauses.fetch_add(1, Ordering::Relaxed);
            self.paused_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// What is counted here; the rest is 0.
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
            writeback_pages: std::array::from_fn(|place| read(&self.written_back[place])),
            flusher_kicks: 0,
            pauses: read(&self.pauses),
            paused: Duration::from_nanos(read(&self.paused_nanos)),
            device_rate: 0,
            cached_pages: self.cached.now(),
            cached_pages_peak: peak(&self.cached),
            dirty_pages: self.dirty.now(),
            dirty_pages_peak: peak(&self.dirty),
            written_pages: self.written.now(),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, pages: usize) {
    counter.fetch_add(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
}
