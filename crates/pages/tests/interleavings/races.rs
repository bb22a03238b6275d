//! Readers, writers, flushers, evictors and truncaters on the same pages.

use crate::{
    CacheMode, KEY, PageState, TAG, Tags, World, WritebackResult, counters::WritebackReason,
    explore,
};
use shuttle::sync::Mutex;
use shuttle::thread;
use std::sync::Arc;

#[test]
fn a_fill_never_caches_bytes_older_than_a_write() {
    explore(2000, || {
        let world = World::new(64, &[1; 4]);
        let (reader, writer) = (world.clone(), world.clone());
        let reads = thread::spawn(move || {
            let file = reader.file();
            let first = reader.read(&file, 2);
            let second = reader.read(&file, 2);
            assert!(first <= second, "reads do not go back in time: {first}, then {second}");
        });
        let written = thread::spawn(move || {
            let file = writer.file();
            // A drop-behind page is gone after its writeback. A fill that was claimed before the
            // write must not insert the old bytes.
            writer.write(&file, 2, 2, CacheMode::Uncached);
            writer.flush(&file);
        });
        reads.join().unwrap();
        written.join().unwrap();
        let file = world.file();
        assert_eq!(world.read(&file, 2), 2);
        world.check_idle();
    });
}

#[test]
fn no_space_under_writeback_is_freed() {
    explore(2000, || {
        let world = World::new(64, &[0; 8]);
        let file = world.file();
        for page in 0..4 {
            world.write(&file, page, 1, CacheMode::Cached);
        }
        // A truncate holds off new writeback of the range, as it does with the inode lock.
        let held = Arc::new(Mutex::new(false));
        let flusher = {
            let (world, held) = (world.clone(), Arc::clone(&held));
            thread::spawn(move || {
                let file = world.file();
                let runs = {
                    let is_truncated = held.lock().unwrap();
                    assert!(file.dirty_pages() == if *is_truncated { 1 } else { 4 });
                    file.begin_writeback(&(0..8), 8, Tags::ALL, WritebackReason::Background)
                };
                for run in runs {
                    for page in run.pages() {
                        let place = usize::try_from(page).unwrap();
                        let mut disk = world.disk.lock().unwrap();
                        assert_ne!(disk[place], 9, "page {page} was freed");
                        disk[place] = 1;
                    }
                    run.end(WritebackResult::Written);
                }
            })
        };
        let truncater = {
            let (world, held) = (world.clone(), Arc::clone(&held));
            thread::spawn(move || {
                let file = world.file();
                let mut is_truncated = held.lock().unwrap();
                file.invalidate(&(1..8));
                world.disk.lock().unwrap()[1..].fill(9);
                *is_truncated = true;
            })
        };
        flusher.join().unwrap();
        truncater.join().unwrap();
        assert_eq!(file.missing(1..8), Some(1..8));
        assert!((1..8).all(|page| world.on_disk(page) == 9));
        world.flush(&file);
        assert_eq!(world.on_disk(0), 1);
        world.check_idle();
    });
}

#[test]
fn writes_during_writeback_are_written_back_later() {
    explore(2000, || {
        let world = World::new(64, &[0; 4]);
        let file = world.file();
        world.write(&file, 1, 1, CacheMode::Cached);
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                for mark in 2..4 {
                    let mut spare = Some(world.frame(0));
                    let written = file.change().write_bytes(
                        1,
                        0,
                        &[mark; 4096],
                        &mut spare,
                        (TAG, CacheMode::Cached),
                    );
                    assert_eq!(written, crate::PageWrite::Done);
                }
            })
        };
        let flushers: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    let file = world.file();
                    // As `fsync`: what was dirty when it began is on the disk when it returns.
                    let seen = file.page(1).map_or(0, |(frame, _)| frame[0]);
                    world.flush(&file);
                    file.wait_for_writeback(&(0..4));
                    world.flush(&file);
                    file.wait_for_writeback(&(0..4));
                    assert!(world.on_disk(1) >= seen);
                })
            })
            .collect();
        writer.join().unwrap();
        for flusher in flushers {
            flusher.join().unwrap();
        }
        world.flush(&file);
        assert_eq!(world.on_disk(1), 3);
        assert_eq!(file.state(1), PageState::Clean);
        world.check_idle();
    });
}

#[test]
fn failed_writeback_is_redirtied_and_lost_pages_are_removed() {
    explore(1000, || {
        let world = World::new(64, &[0; 4]);
        let file = world.file();
        world.write(&file, 0, 1, CacheMode::Cached);
        world.write(&file, 3, 1, CacheMode::Cached);
        let failing = {
            let world = world.clone();
            thread::spawn(move || {
                let mut runs = world.file().begin_writeback(
                    &(0..4),
                    9,
                    Tags::ALL,
                    WritebackReason::Background,
                );
                if let Some(lost) = runs.pop() {
                    lost.end(WritebackResult::Lost);
                }
                drop(runs);
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.write(&world.file(), 3, 2, CacheMode::Cached))
        };
        failing.join().unwrap();
        writer.join().unwrap();
        assert_eq!(file.state(0), PageState::Dirty);
        assert!(matches!(world.read(&file, 3), 0 | 2), "lost, or written after the loss");
        world.flush(&file);
        assert_eq!(world.on_disk(0), 1);
        world.check_idle();
    });
}

#[test]
fn evictions_reads_and_truncates_race() {
    explore(1500, || {
        // The cache has frames for three pages, so a fourth needs an eviction.
        let world = World::new(3, &[10, 11, 12, 13, 14, 15]);
        let readers: Vec<_> = (0..2u64)
            .map(|number| {
                let world = world.clone();
                thread::spawn(move || {
                    let file = world.file();
                    for page in [number, number + 2, number + 4, number] {
                        let mark = world.read(&file, page);
                        assert_eq!(u64::from(mark), 10 + page);
                    }
                })
            })
            .collect();
        let truncater = {
            let world = world.clone();
            thread::spawn(move || {
                world.file().invalidate(&(2..5));
                world.cache.shrink(2);
            })
        };
        for reader in readers {
            reader.join().unwrap();
        }
        truncater.join().unwrap();
        world.check_idle();
    });
}

#[test]
fn a_file_stays_one_while_it_is_evicted_and_opened() {
    explore(1500, || {
        let world = World::new(8, &[0; 4]);
        {
            let file = world.file();
            world.read(&file, 1);
        }
        let evictor = {
            let world = world.clone();
            thread::spawn(move || {
                world.cache.shrink(4);
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                world.write(&file, 1, 5, CacheMode::Cached);
            })
        };
        evictor.join().unwrap();
        writer.join().unwrap();
        assert_eq!(world.cache.oldest_dirty(4), [KEY]);
        let file = world.file();
        assert_eq!(world.read(&file, 1), 5);
        world.flush(&file);
        world.check_idle();
    });
}

#[test]
fn uncached_reads_keep_pages_of_cached_reads() {
    explore(1500, || {
        let world = World::new(16, &[1; 4]);
        let uncached = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                if let Some(claimed) = file.claim(&(0..2)) {
                    let pages = claimed.pages();
                    let frames: Vec<_> = pages.clone().map(|_| world.frame(1)).collect();
                    claimed.complete(frames, CacheMode::Uncached);
                    file.drop_behind(&pages);
                }
            })
        };
        let cached = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                world.read(&file, 0);
                assert!(file.state(0) == PageState::Clean, "a cached read keeps the page");
            })
        };
        uncached.join().unwrap();
        cached.join().unwrap();
        world.check_idle();
    });
}
