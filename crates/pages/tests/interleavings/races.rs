//! Readers, writers, flushers, evictors and those who cut, on the same pages.

use crate::{KEY, Landing, PageState, Stay, TAG, Tags, World, counters::Reason, explore};
use shuttle::sync::Mutex;
use shuttle::thread;
use std::sync::Arc;

#[test]
fn what_was_read_before_a_write_is_never_a_page_behind_it() {
    explore(2000, || {
        let world = World::new(64, &[1; 4]);
        let (reader, writer) = (world.clone(), world.clone());
        let reads = thread::spawn(move || {
            let file = reader.file();
            let first = reader.read(&file, 2);
            let second = reader.read(&file, 2);
            assert!(first <= second, "a reader does not go back: {first}, then {second}");
        });
        let written = thread::spawn(move || {
            let file = writer.file();
            // Nobody wants it to stay: once it is down the page is gone, and the reader's claim of
            // before is all that is left.
            writer.write(&file, 2, 2, Stay::Uncached);
            writer.flush(&file);
        });
        reads.join().unwrap();
        written.join().unwrap();
        let file = world.file();
        assert_eq!(world.read(&file, 2), 2);
        world.check_rest();
    });
}

#[test]
fn no_space_is_freed_that_is_being_written_to() {
    explore(2000, || {
        let world = World::new(64, &[0; 8]);
        let file = world.file();
        for page in 0..4 {
            world.write(&file, page, 1, Stay::Cached);
        }
        // Who cuts a file holds off new writeback of the range, as an inode's lock does.
        let held = Arc::new(Mutex::new(false));
        let flusher = {
            let (world, held) = (world.clone(), Arc::clone(&held));
            thread::spawn(move || {
                let file = world.file();
                let runs = {
                    let is_cut = held.lock().unwrap();
                    assert!(file.dirty_pages() == if *is_cut { 1 } else { 4 });
                    file.begin_writeback(&(0..8), 8, Tags::ALL, Reason::Background)
                };
                for run in runs {
                    for page in run.pages() {
                        let place = usize::try_from(page).unwrap();
                        let mut disk = world.disk.lock().unwrap();
                        assert_ne!(disk[place], 9, "page {page} was freed");
                        disk[place] = 1;
                    }
                    run.end(Landing::Written);
                }
            })
        };
        let cutter = {
            let (world, held) = (world.clone(), Arc::clone(&held));
            thread::spawn(move || {
                let file = world.file();
                let mut is_cut = held.lock().unwrap();
                file.invalidate(&(1..8));
                world.disk.lock().unwrap()[1..].fill(9);
                *is_cut = true;
            })
        };
        flusher.join().unwrap();
        cutter.join().unwrap();
        assert_eq!(file.missing(1..8), Some(1..8));
        assert!((1..8).all(|page| world.on_disk(page) == 9));
        world.flush(&file);
        assert_eq!(world.on_disk(0), 1);
        world.check_rest();
    });
}

#[test]
fn writes_behind_a_page_on_its_way_go_down_too_and_never_change_it() {
    explore(2000, || {
        let world = World::new(64, &[0; 4]);
        let file = world.file();
        world.write(&file, 1, 1, Stay::Cached);
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                for mark in 2..4 {
                    let mut spare = Some(world.frame(0));
                    let patched =
                        file.change().patch(1, 0, &[mark; 4096], &mut spare, (TAG, Stay::Cached));
                    assert_eq!(patched, crate::Patched::Done);
                }
            })
        };
        let flushers: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    let file = world.file();
                    // As `fsync`: what was dirty when it began is down when it returns.
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
        world.check_rest();
    });
}

#[test]
fn a_failed_writeback_is_tried_again_and_a_lost_one_is_gone() {
    explore(1000, || {
        let world = World::new(64, &[0; 4]);
        let file = world.file();
        world.write(&file, 0, 1, Stay::Cached);
        world.write(&file, 3, 1, Stay::Cached);
        let failing = {
            let world = world.clone();
            thread::spawn(move || {
                let mut runs =
                    world.file().begin_writeback(&(0..4), 9, Tags::ALL, Reason::Background);
                if let Some(lost) = runs.pop() {
                    lost.end(Landing::Lost);
                }
                drop(runs);
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.write(&world.file(), 3, 2, Stay::Cached))
        };
        failing.join().unwrap();
        writer.join().unwrap();
        assert_eq!(file.state(0), PageState::Dirty);
        assert!(matches!(world.read(&file, 3), 0 | 2), "lost, or written behind the loss");
        world.flush(&file);
        assert_eq!(world.on_disk(0), 1);
        world.check_rest();
    });
}

#[test]
fn evictors_readers_and_cutters_leave_each_other_alone() {
    explore(1500, || {
        // Frames for three pages: whoever wants a fourth evicts.
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
        let cutter = {
            let world = world.clone();
            thread::spawn(move || {
                world.file().invalidate(&(2..5));
                world.cache.shrink(2);
            })
        };
        for reader in readers {
            reader.join().unwrap();
        }
        cutter.join().unwrap();
        world.check_rest();
    });
}

#[test]
fn a_file_is_one_file_while_its_last_pages_go_and_its_handles_come() {
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
                world.write(&file, 1, 5, Stay::Cached);
            })
        };
        evictor.join().unwrap();
        writer.join().unwrap();
        assert_eq!(world.cache.oldest_dirty(4), [KEY]);
        let file = world.file();
        assert_eq!(world.read(&file, 1), 5);
        world.flush(&file);
        world.check_rest();
    });
}

#[test]
fn uncached_readers_leave_what_others_want() {
    explore(1500, || {
        let world = World::new(16, &[1; 4]);
        let uncached = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                if let Some(claimed) = file.claim(&(0..2)) {
                    let pages = claimed.pages();
                    let frames: Vec<_> = pages.clone().map(|_| world.frame(1)).collect();
                    claimed.complete(frames, Stay::Uncached);
                    file.drop_behind(&pages);
                }
            })
        };
        let cached = {
            let world = world.clone();
            thread::spawn(move || {
                let file = world.file();
                world.read(&file, 0);
                assert!(file.state(0) == PageState::Clean, "who reads it keeps it");
            })
        };
        uncached.join().unwrap();
        cached.join().unwrap();
        world.check_rest();
    });
}
