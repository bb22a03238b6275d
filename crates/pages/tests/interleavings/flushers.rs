//! Kicks and orders: what writers hand over, flushers get.

use crate::{FileKey, Orders, Reason, Stay, Tags, UncachedFlush, World, explore};
use shuttle::thread;
use std::time::Duration;

/// Sends what is ordered, as far as it is there; how many pages that were.
fn follow(world: &World, orders: &Orders) -> usize {
    let files = orders.file.map_or_else(|| world.cache.oldest_dirty(8), |key| vec![key]);
    let mut left = orders.pages;
    for key in files {
        let file = world.cache.file(key);
        let runs = file.begin_writeback(&(0..100), left, Tags::ALL, orders.reason);
        for run in runs {
            left -= run.frames().len();
            thread::yield_now();
            run.end(crate::Landing::Written);
        }
    }
    if left > 0 {
        world.cache.fall_short(orders, left);
    }
    orders.pages - left
}

/// A flusher that ends when it was told to, or has written so many pages.
fn run_flusher(world: &World, pages: usize) -> usize {
    let mut written = 0;
    while written < pages && world.cache.wait_for_work(None) {
        while let Some(orders) = world.cache.orders() {
            written += follow(world, &orders);
        }
    }
    written
}

fn no_kick_is_lost(switch: UncachedFlush) {
    explore(1500, move || {
        let world = World::new(256, &[]);
        let writers: Vec<_> = (0..3u64)
            .map(|ino| {
                let world = world.clone();
                thread::spawn(move || {
                    let file = world.cache.file(FileKey { tree: 5, ino });
                    for page in 0..2 {
                        world.write(&file, page, 1, Stay::Uncached);
                        world.cache.kick_uncached(file.key(), 1, switch);
                    }
                })
            })
            .collect();
        let flusher = {
            let world = world.clone();
            thread::spawn(move || run_flusher(&world, 6))
        };
        for writer in writers {
            writer.join().unwrap();
        }
        // Were a kick lost, the flusher would wait for ever: that fails the test.
        assert_eq!(flusher.join().unwrap(), 6);
        let counters = world.cache.counters();
        assert_eq!(counters.writeback_pages(Reason::Uncached), 6);
        assert_eq!((counters.dropbehind_pages, counters.cached_pages), (6, 0));
    });
}

#[test]
fn no_kick_of_many_writers_is_lost_by_the_devices_flusher() {
    no_kick_is_lost(UncachedFlush::Device);
}

#[test]
fn no_kick_of_many_writers_is_lost_by_the_files_flusher() {
    no_kick_is_lost(UncachedFlush::Inode);
}

#[test]
fn a_flusher_that_is_told_to_end_ends() {
    explore(500, || {
        let world = World::new(64, &[]);
        let flusher = {
            let world = world.clone();
            thread::spawn(move || run_flusher(&world, usize::MAX))
        };
        world.cache.kick();
        world.cache.stop();
        flusher.join().unwrap();
    });
}

/// A page that is written again while one flusher has it in hand is another's to send: who finds
/// nothing to send then has not paid.
#[test]
fn what_is_owed_for_a_page_on_its_way_is_paid_when_that_has_landed() {
    explore(3000, || {
        let world = World::new(256, &[]);
        let flushers = [(); 2].map(|()| {
            let world = world.clone();
            thread::spawn(move || run_flusher(&world, usize::MAX))
        });
        let file = world.file();
        for switch in [UncachedFlush::Device, UncachedFlush::Device, UncachedFlush::Inode] {
            assert!(world.cache.wait_for_flushers(Duration::MAX));
            world.write(&file, 0, 1, Stay::Uncached);
            world.cache.kick_uncached(file.key(), 1, switch);
        }
        // For ever, were one forgotten: that fails the test.
        while world.cache.counters().cached_pages > 0 {
            thread::yield_now();
        }
        world.cache.stop();
        let sent: usize = flushers.map(|flusher| flusher.join().unwrap()).iter().sum();
        assert!((1..=3).contains(&sent), "{sent}");
        world.check_rest();
    });
}
