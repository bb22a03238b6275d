//! What the page cache holds and did, with names: a part of `metrics`.

use super::Stats;
use super::metrics::{Metric, counter, gauge};
use crate::WritebackReason;
use butternut_format::units::{SECTOR_BYTES, length};
use std::time::Duration;

impl Stats {
    pub(super) fn page_metrics(&self) -> Vec<Metric> {
        let mut all = self.page_gauges();
        all.extend(self.page_counters());
        all.extend(WritebackReason::ALL.map(|reason| {
            let what = "Pages that were sent down, each for one reason.";
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
            count("page_cache_bytes_max", "Bytes that pages may take.", limits.bytes),
            gauge(
                "dirty_bytes_background",
                "Dirty bytes from which on the flusher works.",
                limits.dirty.background_bytes,
            ),
            gauge("dirty_bytes_max", "Dirty bytes at which writers stop.", limits.dirty.hard_bytes),
            count("cached_pages", "Pages in memory.", pages.cached_pages),
            bytes("cached_bytes", "Bytes of pages in memory.", pages.cached_pages),
            count("cached_pages_peak", "The most pages in memory.", pages.cached_pages_peak),
            bytes("cached_bytes_peak", "The most bytes of pages.", pages.cached_pages_peak),
            count("dirty_pages", "Pages to be written.", pages.dirty_pages),
            bytes("dirty_page_bytes", "Bytes of pages to be written.", pages.dirty_pages),
            count("dirty_pages_peak", "The most pages to be written.", pages.dirty_pages_peak),
            bytes("dirty_bytes_peak", "The most bytes to be written.", pages.dirty_pages_peak),
            count("in_writeback_pages", "Pages on their way down.", pages.written_pages),
            bytes("in_writeback_bytes", "Bytes of pages on their way down.", pages.written_pages),
            gauge("writeback_rate", "Bytes a second that devices take.", pages.device_rate),
        ]
    }

    fn page_counters(&self) -> Vec<Metric> {
        let pages = &self.pages;
        vec![
            counter("hit_pages", "Pages that readers found in memory.", pages.hit_pages),
            counter("filled_pages", "Pages that were read into memory.", pages.filled_pages),
            counter("readahead_pages", "Of these, read ahead of readers.", pages.readahead_pages),
            counter("spoiled_pages", "Pages that changed while read.", pages.spoiled_pages),
            counter("evicted_pages", "Clean pages that had to make room.", pages.evicted_pages),
            counter("ghost_hit_pages", "Pages evicted too early.", pages.ghost_hit_pages),
            counter(
                "dropbehind_pages",
                "Pages that uncached reads and writes left nothing of.",
                pages.dropbehind_pages,
            ),
            counter("redirtied_pages", "Written to on their way down.", pages.redirtied_pages),
            counter("lost_pages", "Pages that could not be written.", pages.lost_pages),
            counter("overdrawn_pages", "Pages beyond the limit.", pages.overdrawn_pages),
            counter("flusher_kicks", "Times the flusher was woken.", pages.flusher_kicks),
            counter("throttled_writes", "Pauses that writers made.", pages.pauses),
            counter("throttled_us", "Microseconds of these pauses.", micros(pages.paused)),
        ]
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
