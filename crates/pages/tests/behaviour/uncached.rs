//! Uncached reads and writes leave no pages behind, except pages that cached accesses use.

use crate::{TAG, cache, fill, frame, key, mark, write_page};
use butternut_pages::{
    CacheMode, PageState, ReadOptions, Tags, UncachedFlush, WritebackReason, WritebackResult,
};
use std::time::Duration;

#[test]
fn uncached_reads_leave_no_pages() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..1, 1);
    let claimed = file.claim(&(0..4)).unwrap();
    let frames: Vec<_> = claimed.pages().map(|_| frame(&cache, 2)).collect();
    claimed.complete(frames, CacheMode::Uncached);
    let mut buf = [0; 4 * 4096];
    assert_eq!(file.read(0, &mut buf, ReadOptions::UNCACHED), buf.len());
    assert_eq!(mark(&file, 2), Some(2), "a cached read keeps this page");
    assert_eq!(file.drop_behind(&(0..4)), 2);
    assert_eq!((file.missing(0..1), file.missing(2..3)), (None, None));
    assert_eq!((file.pages(), cache.counters().dropbehind_pages), (2, 2));
}

#[test]
fn uncached_writes_are_written_back_and_leave_no_pages() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..1, 1);
    for page in 0..6 {
        file.change().write_page(page, frame(&cache, 2), TAG, CacheMode::Uncached);
    }
    write_page(&cache, &file, 3, 3);
    let runs = file.begin_writeback(&(0..9), 9, Tags::ALL, WritebackReason::Uncached);
    assert_eq!(mark(&file, 4), Some(2), "a cached read keeps this page");
    file.change().write_page(5, frame(&cache, 4), TAG, CacheMode::Uncached);
    for run in runs {
        run.end(WritebackResult::Written);
    }
    let states: Vec<_> = (0..6).map(|page| file.state(page)).collect();
    let (clean, absent) = (PageState::Clean, PageState::Absent);
    assert_eq!(states, [clean, absent, absent, clean, clean, PageState::Dirty]);
    assert_eq!(cache.counters().dropbehind_pages, 2);
}

#[test]
fn flushers_write_back_as_many_pages_as_uncached_writes_dirtied() {
    let cache = cache(256);
    let (one, two) = (cache.file(key(1)), cache.file(key(2)));
    (0..9).for_each(|page| write_page(&cache, &one, page, 1));
    assert_eq!(cache.next_work(), None, "below the background limit");
    (0..5).for_each(|page| write_page(&cache, &two, page, 1));
    cache.queue_uncached(key(2), 3, UncachedFlush::Device);
    cache.queue_uncached(key(2), 2, UncachedFlush::Device);
    assert_eq!(cache.counters().flusher_kicks, 1, "the second kick finds the first pending");
    assert!(cache.wait_for_work(None));
    let work = cache.next_work().unwrap();
    assert_eq!((work.pages, work.reason, work.file), (5, WritebackReason::Uncached, None));
    assert_eq!(cache.oldest_dirty(2), [key(1), key(2)]);
    one.move_to_dirty_tail();
    assert_eq!(cache.oldest_dirty(2), [key(2), key(1)]);
    assert_eq!(cache.next_work(), None, "work is returned once");
    cache.queue_uncached(key(2), 4, UncachedFlush::Inode);
    assert_eq!(cache.next_work().and_then(|work| work.file), Some(key(2)));
    cache.queue_uncached(key(2), 4, UncachedFlush::Inline);
    assert_eq!(cache.next_work(), None, "the writer does its own writeback");
    assert!(cache.wait_for_work(Some(Duration::ZERO)), "the earlier kick is pending");
}

#[test]
fn uncached_writers_wait_while_the_backlog_is_full() {
    // One 64th of the cache may be queued.
    let cache = cache(64 * 512);
    let file = cache.file(key(1));
    for switch in [UncachedFlush::Device, UncachedFlush::Inode] {
        for _ in 0..2 {
            (0..512).for_each(|page| write_page(&cache, &file, page, 1));
            cache.queue_uncached(key(1), 512, switch);
        }
        assert!(
            cache.is_uncached_backlog_full() && !cache.wait_for_uncached_backlog(Duration::ZERO)
        );
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(cache.wait_for_uncached_backlog(Duration::from_mins(1))));
            let work = cache.next_work().unwrap();
            assert_eq!(work.reason, WritebackReason::Uncached);
        });
        assert!(!cache.is_uncached_backlog_full());
        assert_eq!(cache.next_work(), None, "the backlog is empty");
    }
}

/// Writeback because of a dirty limit counts against the uncached backlog.
#[test]
fn writeback_above_a_limit_counts_against_the_backlog() {
    let cache = cache(4096);
    let file = cache.file(key(1));
    (0..600).for_each(|page| write_page(&cache, &file, page, 1));
    cache.queue_uncached(key(1), 50, UncachedFlush::Device);
    let work = cache.next_work().unwrap();
    assert_eq!((work.reason, work.pages), (WritebackReason::Background, 600 - 512));
    let sent = file.begin_writeback(&(0..999), work.pages, Tags::ALL, work.reason);
    assert_eq!(cache.next_work(), None, "nothing is left for the limit or the backlog");
    drop(sent);
    // Pages that could not be submitted while a writeback was in flight are queued again.
    cache.report_shortfall(&work, 60);
    let again = cache.next_work().unwrap();
    assert_eq!((again.reason, again.pages), (WritebackReason::Background, 600 - 512));
    let sent = file.begin_writeback(&(0..999), again.pages, Tags::ALL, again.reason);
    for run in sent {
        run.end(WritebackResult::Written);
    }
    assert_eq!(cache.next_work(), None, "the backlog is empty and no limit is exceeded");
}
