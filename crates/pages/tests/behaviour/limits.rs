//! Bounds: of memory, of what is dirty, and what stays within them.

use crate::{bring, cache, key, mark, put};
use butternut_pages::{Landing, PageState, Reason, Tags};
use std::time::Duration;

#[test]
fn memory_is_bounded_and_clean_pages_make_room() {
    let cache = cache(256);
    let file = cache.file(key(1));
    for start in (0..5000).step_by(50) {
        bring(&cache, &file, start..start + 50, 1);
        assert!(file.pages() <= 256);
    }
    assert_eq!(cache.counters().overdrawn_pages, 0);
    assert!(cache.counters().cached_pages_peak <= 256 && file.pages() > 200);
}

#[test]
fn what_is_read_again_and_again_stays_while_others_are_scanned() {
    let cache = cache(1000);
    let (hot, scanned) = (cache.file(key(1)), cache.file(key(2)));
    bring(&cache, &hot, 0..700, 1);
    for _ in 0..3 {
        assert!((0..700).all(|page| mark(&hot, page).is_some()));
    }
    for start in (0..20_000).step_by(64) {
        bring(&cache, &scanned, start..start + 64, 1);
        (start..start + 64).for_each(|page| assert_eq!(mark(&scanned, page), Some(1)));
    }
    let left = (0..700).filter(|page| hot.state(*page) == PageState::Clean).count();
    assert!(left >= 690, "{left} of 700 hot pages are left after a scan of 20,000");
}

#[test]
fn pages_that_come_back_too_soon_are_counted() {
    let cache = cache(1000);
    let (file, scanned) = (cache.file(key(1)), cache.file(key(2)));
    bring(&cache, &file, 0..50, 1);
    for start in (0..1400).step_by(50) {
        bring(&cache, &scanned, start..start + 50, 1);
    }
    assert_eq!((file.pages(), cache.counters().ghost_hit_pages), (0, 0));
    bring(&cache, &file, 0..50, 1);
    let hits = cache.counters().ghost_hit_pages;
    assert!((40..=50).contains(&hits), "{hits} of 50");
}

#[test]
fn with_nothing_clean_there_is_a_little_more_and_then_nothing() {
    let cache = cache(320);
    let file = cache.file(key(1));
    (0..320).for_each(|page| put(&cache, &file, page, 1));
    assert_eq!(cache.counters().overdrawn_pages, 0);
    let more: Vec<_> = std::iter::from_fn(|| cache.frame()).collect();
    assert_eq!((more.len(), cache.counters().overdrawn_pages), (40, 40));
    assert!(cache.frame().is_none());
    drop(more);
    let orders = cache.orders().unwrap();
    assert_eq!((orders.reason, orders.pages), (Reason::HardLimit, 280));
    let runs = file.begin_writeback(&(0..999), orders.pages, Tags::ALL, orders.reason);
    for run in runs {
        run.end(Landing::Written);
    }
    assert!(cache.frame().is_some());
    assert_eq!(cache.counters().dirty_pages, 40);
    assert_eq!(cache.counters().writeback_pages(Reason::HardLimit), 280);
    let orders = cache.orders().unwrap();
    assert_eq!(orders.reason, Reason::Pressure, "somebody found no memory");
}

#[test]
fn writers_pause_above_the_free_run_only() {
    let cache = cache(4096);
    let file = cache.file(key(1));
    let mut paused_at = None;
    let mut pauses = (0, Duration::ZERO);
    for page in 0..1200 {
        put(&cache, &file, page, 1);
        let pause = cache.pause(Duration::from_secs(1), 4096);
        if !pause.is_zero() {
            paused_at.get_or_insert(page);
            pauses = (pauses.0 + 1, pauses.1 + pause);
        }
    }
    let counters = cache.counters();
    assert_eq!((counters.pauses, counters.paused), pauses, "each pause is counted");
    assert!(paused_at.is_some_and(|page| (768..1024).contains(&page)), "{paused_at:?}");
    assert_eq!(cache.orders().map(|orders| orders.reason), Some(Reason::HardLimit));
    assert_eq!(cache.dirty_bytes(), 1200 * 4096);
}

#[test]
fn pages_outlive_the_handles_of_their_file_and_are_found_again() {
    let cache = cache(64);
    bring(&cache, &cache.file(key(1)), 0..9, 4);
    put(&cache, &cache.file(key(1)), 3, 5);
    let file = cache.file(key(1));
    assert_eq!((mark(&file, 2), mark(&file, 3)), (Some(4), Some(5)));
    assert_eq!(cache.file(key(2)).pages(), 0);
    file.invalidate(&(0..u64::MAX));
    drop(file);
    assert_eq!(cache.file(key(1)).pages(), 0);
}
