//! Uncached reads and writes: nothing stays, but what others want.

use crate::{TAG, bring, cache, frame, key, mark, put};
use butternut_pages::{Finding, Landing, PageState, Reason, Stay, Tags, UncachedFlush};
use std::time::Duration;

#[test]
fn pages_that_an_uncached_read_brought_go_when_it_has_copied_them() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..1, 1);
    let claimed = file.claim(&(0..4)).unwrap();
    let frames: Vec<_> = claimed.pages().map(|_| frame(&cache, 2)).collect();
    claimed.complete(frames, Stay::Uncached);
    let mut buf = [0; 4 * 4096];
    assert_eq!(file.read(0, &mut buf, Finding::UNCACHED), buf.len());
    assert_eq!(mark(&file, 2), Some(2), "another reader wants this one");
    assert_eq!(file.drop_behind(&(0..4)), 2);
    assert_eq!((file.missing(0..1), file.missing(2..3)), (None, None));
    assert_eq!((file.pages(), cache.counters().dropbehind_pages), (2, 2));
}

#[test]
fn pages_that_an_uncached_write_brought_go_when_they_are_down() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..1, 1);
    for page in 0..6 {
        file.change().put(page, frame(&cache, 2), TAG, Stay::Uncached);
    }
    put(&cache, &file, 3, 3);
    let runs = file.begin_writeback(&(0..9), 9, Tags::ALL, Reason::Uncached);
    assert_eq!(mark(&file, 4), Some(2), "another reader wants this one");
    file.change().put(5, frame(&cache, 4), TAG, Stay::Uncached);
    for run in runs {
        run.end(Landing::Written);
    }
    let states: Vec<_> = (0..6).map(|page| file.state(page)).collect();
    let (clean, absent) = (PageState::Clean, PageState::Absent);
    assert_eq!(states, [clean, absent, absent, clean, clean, PageState::Dirty]);
    assert_eq!(cache.counters().dropbehind_pages, 2);
}

#[test]
fn flushers_owe_as_many_pages_as_uncached_writes_made_dirty() {
    let cache = cache(256);
    let (one, two) = (cache.file(key(1)), cache.file(key(2)));
    (0..9).for_each(|page| put(&cache, &one, page, 1));
    assert_eq!(cache.orders(), None, "little is dirty, and it may stay so");
    (0..5).for_each(|page| put(&cache, &two, page, 1));
    cache.kick_uncached(key(2), 3, UncachedFlush::Device);
    cache.kick_uncached(key(2), 2, UncachedFlush::Device);
    assert_eq!(cache.counters().flusher_kicks, 1, "kicks join");
    assert!(cache.wait_for_work(None));
    let orders = cache.orders().unwrap();
    assert_eq!((orders.pages, orders.reason, orders.file), (5, Reason::Uncached, None));
    assert_eq!(cache.oldest_dirty(2), [key(1), key(2)]);
    one.yield_turn();
    assert_eq!(cache.oldest_dirty(2), [key(2), key(1)]);
    assert_eq!(cache.orders(), None, "orders are given once");
    cache.kick_uncached(key(2), 4, UncachedFlush::Inode);
    assert_eq!(cache.orders().and_then(|orders| orders.file), Some(key(2)));
    cache.kick_uncached(key(2), 4, UncachedFlush::Inline);
    assert_eq!(cache.orders(), None, "the writer does it himself");
    assert!(cache.wait_for_work(Some(Duration::ZERO)), "the kick of before");
}

#[test]
fn uncached_writers_far_ahead_of_the_flushers_wait_until_more_is_taken() {
    // A sixty-fourth of this may be ahead.
    let cache = cache(64 * 512);
    let file = cache.file(key(1));
    for switch in [UncachedFlush::Device, UncachedFlush::Inode] {
        for _ in 0..2 {
            (0..512).for_each(|page| put(&cache, &file, page, 1));
            cache.kick_uncached(key(1), 512, switch);
        }
        assert!(cache.is_far_ahead() && !cache.wait_for_flushers(Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(cache.wait_for_flushers(Duration::from_mins(1))));
            let orders = cache.orders().unwrap();
            assert_eq!(orders.reason, Reason::Uncached);
        });
        assert!(!cache.is_far_ahead());
        assert_eq!(cache.orders(), None, "all of it was taken at once");
    }
}

/// Who brings down what is too much has paid what uncached writes owe with it.
#[test]
fn one_order_answers_the_limit_and_uncached_writes() {
    let cache = cache(4096);
    let file = cache.file(key(1));
    (0..600).for_each(|page| put(&cache, &file, page, 1));
    cache.kick_uncached(key(1), 50, UncachedFlush::Device);
    let orders = cache.orders().unwrap();
    assert_eq!((orders.reason, orders.pages), (Reason::Background, 600 - 512));
    let sent = file.begin_writeback(&(0..999), orders.pages, Tags::ALL, orders.reason);
    assert_eq!(cache.orders(), None, "both are paid");
    drop(sent);
    // What it could not pay of both, while something was on its way, is asked for again.
    cache.fall_short(&orders, 60);
    let again = cache.orders().unwrap();
    assert_eq!((again.reason, again.pages), (Reason::Background, 600 - 512));
    let sent = file.begin_writeback(&(0..999), again.pages, Tags::ALL, again.reason);
    for run in sent {
        run.end(Landing::Written);
    }
    assert_eq!(cache.orders(), None, "paid, and nothing is too much");
}
