//! Limits of memory and of dirty data, and which pages stay within them.

use crate::{cache, fill, key, mark, write_page};
use butternut_pages::{PageState, Tags, WritebackReason, WritebackResult};
use std::time::Duration;

#[test]
fn memory_is_bounded_and_clean_pages_are_evicted() {
    let cache = cache(256);
    let file = cache.file(key(1));
    for start in (0..5000).step_by(50) {
        fill(&cache, &file, start..start + 50, 1);
        assert!(file.pages() <= 256);
    }
    assert_eq!(cache.counters().overdrawn_pages, 0);
    assert!(cache.counters().cached_pages_peak <= 256 && file.pages() > 200);
}

#[test]
fn pages_read_repeatedly_survive_a_scan() {
    let cache = cache(1000);
    let (hot, scanned) = (cache.file(key(1)), cache.file(key(2)));
    fill(&cache, &hot, 0..700, 1);
    for _ in 0..3 {
        assert!((0..700).all(|page| mark(&hot, page).is_some()));
    }
    for start in (0..20_000).step_by(64) {
        fill(&cache, &scanned, start..start + 64, 1);
        (start..start + 64).for_each(|page| assert_eq!(mark(&scanned, page), Some(1)));
    }
    let left = (0..700).filter(|page| hot.state(*page) == PageState::Clean).count();
    assert!(left >= 690, "{left} of 700 hot pages are left after a scan of 20,000");
}

#[test]
fn pages_read_again_soon_after_eviction_are_counted() {
    let cache = cache(1000);
    let (file, scanned) = (cache.file(key(1)), cache.file(key(2)));
    fill(&cache, &file, 0..50, 1);
    for start in (0..1400).step_by(50) {
        fill(&cache, &scanned, start..start + 50, 1);
    }
    assert_eq!((file.pages(), cache.counters().ghost_hit_pages), (0, 0));
    fill(&cache, &file, 0..50, 1);
    let hits = cache.counters().ghost_hit_pages;
    assert!((40..=50).contains(&hits), "{hits} of 50");
}

#[test]
fn without_clean_pages_memory_exceeds_the_limit_by_an_eighth() {
    let cache = cache(320);
    let file = cache.file(key(1));
    (0..320).for_each(|page| write_page(&cache, &file, page, 1));
    assert_eq!(cache.counters().overdrawn_pages, 0);
    let more: Vec<_> = std::iter::from_fn(|| cache.frame()).collect();
    assert_eq!((more.len(), cache.counters().overdrawn_pages), (40, 40));
    assert!(cache.frame().is_none());
    drop(more);
    let work = cache.next_work().unwrap();
    assert_eq!((work.reason, work.pages), (WritebackReason::HardLimit, 280));
    let runs = file.begin_writeback(&(0..999), work.pages, Tags::ALL, work.reason);
    for run in runs {
        run.end(WritebackResult::Written);
    }
    assert!(cache.frame().is_some());
    assert_eq!(cache.counters().dirty_pages, 40);
    assert_eq!(cache.counters().writeback_pages(WritebackReason::HardLimit), 280);
    let work = cache.next_work().unwrap();
    assert_eq!(work.reason, WritebackReason::Pressure, "an allocation found no clean page");
}

#[test]
fn writers_pause_above_the_free_run_only() {
    let cache = cache(4096);
    let file = cache.file(key(1));
    let mut paused_at = None;
    let mut pauses = (0, Duration::ZERO);
    for page in 0..1200 {
        write_page(&cache, &file, page, 1);
        let pause = cache.pause(Duration::from_secs(1), 4096);
        if !pause.is_zero() {
            paused_at.get_or_insert(page);
            pauses = (pauses.0 + 1, pauses.1 + pause);
        }
    }
    let counters = cache.counters();
    assert_eq!((counters.pauses, counters.paused), pauses, "each pause is counted");
    assert!(paused_at.is_some_and(|page| (768..1024).contains(&page)), "{paused_at:?}");
    assert_eq!(cache.next_work().map(|work| work.reason), Some(WritebackReason::HardLimit));
    assert_eq!(cache.dirty_bytes(), 1200 * 4096);
}

#[test]
fn pages_outlive_the_handles_of_their_file() {
    let cache = cache(64);
    fill(&cache, &cache.file(key(1)), 0..9, 4);
    write_page(&cache, &cache.file(key(1)), 3, 5);
    let file = cache.file(key(1));
    assert_eq!((mark(&file, 2), mark(&file, 3)), (Some(4), Some(5)));
    assert_eq!(cache.file(key(2)).pages(), 0);
    file.invalidate(&(0..u64::MAX));
    drop(file);
    assert_eq!(cache.file(key(1)).pages(), 0);
}
