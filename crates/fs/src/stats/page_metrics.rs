//! The metrics of the page cache.

use super::Stats;
use super::metrics::{Metric, counter, gauge};
use crate::stats::WritebackReason;
use butternut_format::units::{SECTOR_BYTES, length};
use std::time::Duration;

impl Stats {
    pub(super) fn page_metrics(&self) -> Vec<Metric> {
        let mut all = self.page_gauges();
        all.extend(self.page_counters());
        all.extend(WritebackReason::ALL.map(|reason| {
            let what = "Pages submitted for writeback, by reason.";
            let value = self.pages.writeback_pages(reason);
            let label = Some(("reason", reason.name()));
            Metric { label, ..counter("writeback_pages", what, value) }
        }));
        all
    }

    fn page_gauges(&self) -> Vec<Metric> {
        let (pages, limits) = (&self.pages, &self.page_limits);
        let count = |name, what, pages| gauge(name, what, length(pages));
        let bytes = |name, what, pages| gauge(name, what, length(pages) * SECTOR_BYTES);
        vec![
            count("page_cache_bytes_max", "Size of the page cache, in bytes.", limits.bytes),
            gauge(
                "dirty_bytes_background",
                "Dirty bytes at which the flushers start.",
                limits.dirty.background_bytes,
            ),
            gauge("dirty_bytes_max", "Dirty bytes at which writers stop.", limits.dirty.hard_bytes),
            count("cached_pages", "Pages in memory.", pages.cached_pages),
            bytes("cached_bytes", "Bytes of pages in memory.", pages.cached_pages),
            count("cached_pages_peak", "Peak of the pages in memory.", pages.cached_pages_peak),
            bytes(
                "cached_bytes_peak",
                "Peak of the bytes of pages in memory.",
                pages.cached_pages_peak,
            ),
            count("dirty_pages", "Dirty pages.", pages.dirty_pages),
            bytes("dirty_page_bytes", "Bytes of dirty pages.", pages.dirty_pages),
            count("dirty_pages_peak", "Peak of the dirty pages.", pages.dirty_pages_peak),
            bytes("dirty_bytes_peak", "Peak of the bytes of dirty pages.", pages.dirty_pages_peak),
            count("in_writeback_pages", "Pages under writeback.", pages.in_writeback_pages),
            bytes(
                "in_writeback_bytes",
                "Bytes of pages under writeback.",
                pages.in_writeback_pages,
            ),
            gauge(
                "writeback_rate",
                "Writeback rate of the devices, in bytes per second.",
                pages.device_rate,
            ),
        ]
    }

    fn page_counters(&self) -> Vec<Metric> {
        let pages = &self.pages;
        vec![
            counter("hit_pages", "Pages that readers found in memory.", pages.hit_pages),
            counter("filled_pages", "Pages that were read into memory.", pages.filled_pages),
            counter(
                "readahead_pages",
                "Pages among these that were read ahead.",
                pages.readahead_pages,
            ),
            counter(
                "spoiled_pages",
                "Pages written to or invalidated while they were read.",
                pages.spoiled_pages,
            ),
            counter("evicted_pages", "Clean pages evicted.", pages.evicted_pages),
            counter(
                "ghost_hit_pages",
                "Pages read again soon after their eviction.",
                pages.ghost_hit_pages,
            ),
            counter(
                "dropbehind_pages",
                "Pages dropped after uncached reads and writes.",
                pages.dropbehind_pages,
            ),
            counter(
                "redirtied_pages",
                "Pages written to while under writeback.",
                pages.redirtied_pages,
            ),
            counter(
                "lost_pages",
                "Pages whose data was lost by failed writeback.",
                pages.lost_pages,
            ),
            counter("overdrawn_pages", "Pages cached beyond the limit.", pages.overdrawn_pages),
            counter("flusher_kicks", "Wakeups of the flushers.", pages.flusher_kicks),
            counter("throttled_writes", "Throttled writes.", pages.pauses),
            counter(
                "throttled_us",
                "Time that writers were throttled, in microseconds.",
                micros(pages.paused),
            ),
        ]
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
