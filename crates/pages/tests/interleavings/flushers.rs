//! Kicks and writeback work: flushers write back all that writers have queued.

use crate::{
    CacheMode, FileKey, Tags, UncachedFlush, World, WritebackReason, WritebackWork, explore,
};
use shuttle::thread;
use std::time::Duration;

/// Writes back what the work says, as far as it is dirty. Returns how many pages that were.
fn follow(world: &World, work: &WritebackWork) -> usize {
    let files = work.file.map_or_else(|| world.cache.oldest_dirty(8), |key| vec![key]);
    let mut left = work.pages;
    for key in files {
        let file = world.cache.file(key);
        let runs = file.begin_writeback(&(0..100), left, Tags::ALL, work.reason);
        for run in runs {
            left -= run.frames().len();
            thread::yield_now();
            run.end(crate::WritebackResult::Written);
        }
    }
    if left > 0 {
        world.cache.report_shortfall(work, left);
    }
    work.pages - left
}

/// Runs a flusher until it is stopped, or has written back `pages` pages.
fn run_flusher(world: &World, pages: usize) -> usize {
    let mut written = 0;
    while written < pages && world.cache.wait_for_work(None) {
        while let Some(work) = world.cache.next_work() {
            written += follow(world, &work);
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
                        world.write(&file, page, 1, CacheMode::Uncached);
                        world.cache.queue_uncached(file.key(), 1, switch);
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
        // With a lost kick the flusher would wait forever, which fails the test.
        assert_eq!(flusher.join().unwrap(), 6);
        let counters = world.cache.counters();
        assert_eq!(counters.writeback_pages(WritebackReason::Uncached), 6);
        assert_eq!((counters.dropbehind_pages, counters.cached_pages), (6, 0));
    });
}

#[test]
fn no_kick_is_lost_with_flushes_of_any_file() {
    no_kick_is_lost(UncachedFlush::Device);
}

#[test]
fn no_kick_is_lost_with_flushes_of_one_file() {
    no_kick_is_lost(UncachedFlush::Inode);
}

#[test]
fn a_stopped_flusher_ends() {
    explore(500, || {
        let world = World::new(64, &[]);
        let flusher = {
            let world = world.clone();
            thread::spawn(move || run_flusher(&world, usize::MAX))
        };
        world.cache.kick();
        world.cache.stop_flushers();
        flusher.join().unwrap();
    });
}

/// A page can be written again while one flusher has it under writeback; another flusher then finds
/// fewer pages than its work says. The shortfall must be queued again.
#[test]
fn a_shortfall_is_queued_again_when_a_writeback_completes() {
    explore(3000, || {
        let world = World::new(256, &[]);
        let flushers = [(); 2].map(|()| {
            let world = world.clone();
            thread::spawn(move || run_flusher(&world, usize::MAX))
        });
        let file = world.file();
        for switch in [UncachedFlush::Device, UncachedFlush::Device, UncachedFlush::Inode] {
            assert!(world.cache.wait_for_uncached_backlog(Duration::MAX));
            world.write(&file, 0, 1, CacheMode::Uncached);
            world.cache.queue_uncached(file.key(), 1, switch);
        }
        // With a lost page this loop would not end, which fails the test.
        while world.cache.counters().cached_pages > 0 {
            thread::yield_now();
        }
        world.cache.stop_flushers();
        let sent: usize = flushers.map(|flusher| flusher.join().unwrap()).iter().sum();
        assert!((1..=3).contains(&sent), "{sent}");
        world.check_idle();
    });
}
