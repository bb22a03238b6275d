//! The page cache through the library: the reads that it saves, its bounds, and the lanes that
//! share it.

use crate::volume::{TestVolume, new};
use butternut::queue::{IoFlags, QueueOptions};
use butternut::stats::WritebackReason;
use butternut::{File, Filesystem, MountOptions, Privileges, Tunables, UncachedFlush};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

fn open(volume: &TestVolume, page_cache_bytes: u64) -> Filesystem {
    let options = MountOptions::default().read_only(false).page_cache_bytes(page_cache_bytes);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

fn file(filesystem: &Filesystem, name: &[u8]) -> File {
    let id = filesystem.create(filesystem.root(), name, &new(0o644)).unwrap();
    filesystem.open_file(id).unwrap()
}

fn read(file: &File, bytes: usize) -> Vec<u8> {
    let mut buf = vec![0; bytes];
    let read = file.read_at(0, &mut buf).unwrap();
    assert_eq!(read, bytes);
    buf
}

/// Returns the pages of one counter, as statistics show them.
fn shown(filesystem: &Filesystem, name: &str) -> u64 {
    let text = filesystem.stats().to_string();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("  {name} ")));
    line.unwrap_or_else(|| panic!("{name}: {text}")).trim().parse().unwrap()
}

/// Waits until another thread has made the condition true.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_mins(5), "the condition does not become true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_second_read_is_served_from_memory() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 64 << 20);
    let bytes = pattern(1, 5 << 20);
    file(&filesystem, b"file").write_at(0, &bytes).unwrap();
    let filesystem = volume.reopen(filesystem);
    let id = filesystem.lookup(filesystem.root(), b"file").unwrap();
    let file = filesystem.open_file(id).unwrap();
    assert_eq!(read(&file, bytes.len()), bytes);
    wait_until(|| filesystem.page_counts().cached_pages == bytes.len() / PAGE);
    let before = filesystem.counters().device_bytes_read;
    assert_eq!(read(&file, bytes.len()), bytes);
    drop(file);
    let file = filesystem.open_file(id).unwrap();
    assert_eq!(read(&file, bytes.len()), bytes);
    assert_eq!(filesystem.counters().device_bytes_read, before);
}

#[test]
fn uncached_reads_leave_no_pages_and_use_cached_ones() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 64 << 20);
    let bytes = pattern(2, 3 << 20);
    file(&filesystem, b"file").write_at(0, &bytes).unwrap();
    let filesystem = volume.reopen(filesystem);
    let id = filesystem.lookup(filesystem.root(), b"file").unwrap();
    let file = filesystem.open_file(id).unwrap();
    let mut buf = vec![0; 100_000];
    assert_eq!(file.read_at(PAGE as u64, &mut buf[..PAGE]).unwrap(), PAGE);
    let mut at = 0;
    while at < bytes.len() {
        let read = file.read_uncached(at as u64, &mut buf).unwrap();
        assert_eq!(buf[..read], bytes[at..at + read]);
        at += read;
    }
    drop(file);
    // A page that two reads share may be cached again by the second.
    let left = filesystem.page_counts().cached_pages;
    assert!((1..=64).contains(&left), "{left} pages are left");
    let file = filesystem.open_file(id).unwrap();
    let hits = filesystem.page_counts().hit_pages;
    assert_eq!(file.read_uncached(PAGE as u64, &mut buf[..PAGE]).unwrap(), PAGE);
    assert_eq!(filesystem.page_counts().hit_pages, hits + 1, "pages of other readers remain");
}

#[test]
fn uncached_writes_are_written_back_and_leave_no_pages() {
    for mode in [UncachedFlush::Device, UncachedFlush::Inode, UncachedFlush::Inline] {
        let volume = TestVolume::new();
        let filesystem = open(&volume, 64 << 20);
        filesystem.set_tunables(Tunables::default().uncached_flush(mode));
        let bytes = pattern(3, 2 << 20);
        let file = file(&filesystem, b"file");
        for (number, part) in bytes.chunks(50_000).enumerate() {
            let at = (number * 50_000) as u64;
            assert_eq!(file.write_uncached(at, part, Privileges::Keep).unwrap(), part.len());
        }
        let pages = bytes.len() / PAGE;
        wait_until(|| filesystem.page_counts().cached_pages == 0);
        let counts = filesystem.page_counts();
        let uncached = counts.writeback_pages(WritebackReason::Uncached);
        assert!(uncached >= pages as u64 && counts.dropbehind_pages >= pages as u64, "{mode:?}");
        assert_eq!(read(&file, bytes.len()), bytes);
        drop(file);
        let filesystem = volume.reopen(filesystem);
        let id = filesystem.lookup(filesystem.root(), b"file").unwrap();
        assert_eq!(read(&filesystem.open_file(id).unwrap(), bytes.len()), bytes);
    }
}

#[test]
fn page_memory_is_bounded() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 16 << 20);
    let part = pattern(4, 1 << 20);
    let files: Vec<File> =
        (0..3).map(|number| file(&filesystem, format!("{number}").as_bytes())).collect();
    std::thread::scope(|scope| {
        for file in &files {
            let part = &part;
            scope.spawn(move || {
                for number in 0..96_u64 {
                    assert_eq!(file.write_at(number << 20, part).unwrap(), part.len());
                }
            });
        }
    });
    let counts = filesystem.page_counts();
    assert!(counts.cached_pages_peak <= (18 << 20) / PAGE, "{counts:?}");
    for file in &files {
        let bytes = read(file, 96 << 20);
        assert!(bytes.chunks(1 << 20).all(|found| found == part));
    }
    assert!(filesystem.page_counts().cached_pages_peak <= (18 << 20) / PAGE);
    drop(files);
    volume.reopen(filesystem);
}

#[test]
fn statistics_show_the_contents_and_work_of_the_cache() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 16 << 20);
    let bytes = pattern(6, 1 << 20);
    let one = file(&filesystem, b"file");
    one.write_at(0, &bytes).unwrap();
    let shows = |name: &str| shown(&filesystem, name);
    assert_eq!((shows("page_cache_bytes_max"), shows("dirty_bytes_max")), (16 << 20, 4 << 20));
    assert_eq!((shows("dirty_pages"), shows("dirty_page_bytes")), (256, 1 << 20));
    assert_eq!((shows("cached_pages"), shows("cached_bytes")), (256, 1 << 20));
    one.sync_data().unwrap();
    assert_eq!((shows("dirty_pages"), shows("dirty_bytes_peak")), (0, 1 << 20));
    assert_eq!((shows("in_writeback_pages"), shows("in_writeback_bytes")), (0, 0));
    assert_eq!((shows("writeback_pages_sync"), shows("writeback_pages_uncached")), (256, 0));
    assert_eq!(shows("hit_pages"), 0);
    assert!(read(&one, bytes.len()) == bytes);
    assert_eq!((shows("hit_pages"), shows("filled_pages")), (256, 0));
    one.write_uncached(0, &bytes[..64 << 10], Privileges::Keep).unwrap();
    one.write_uncached(4 << 20, &bytes, Privileges::Keep).unwrap();
    wait_until(|| shows("dirty_bytes") == 0);
    assert_eq!(
        (shows("dropbehind_pages"), shows("cached_pages")),
        (256, 256),
        "other pages remain"
    );
    assert_eq!(shows("writeback_pages_uncached"), 256 + 16);
    assert!(shows("flusher_kicks") > 0);

    // More than the dirty limit and the cache.
    for part in 0..32 {
        one.write_at(part << 20, &bytes).unwrap();
    }
    one.sync_data().unwrap();
    assert!(shows("evicted_pages") > 0 && shows("cached_bytes_peak") <= 18 << 20);
    assert!(shows("dirty_bytes_peak") <= 6 << 20, "{}", shows("dirty_bytes_peak"));
    let by_reason = ["background", "hard_limit", "sync", "uncached", "pressure"];
    let sent: u64 =
        by_reason.iter().map(|reason| shows(&format!("writeback_pages_{reason}"))).sum();
    assert!(sent >= 512 + 16 + 32 * 256, "each page was written back for a reason: {sent}");
    drop(one);

    let filesystem = volume.reopen(filesystem);
    let id = filesystem.lookup(filesystem.root(), b"file").unwrap();
    let file = filesystem.open_file(id).unwrap();
    for part in 0..32 {
        let mut buf = vec![0; 1 << 20];
        assert_eq!(file.read_at(part << 20, &mut buf).unwrap(), buf.len());
        assert!(buf == bytes);
    }
    let shows = |name: &str| shown(&filesystem, name);
    assert!(shows("readahead_pages") > 4096, "{}", filesystem.stats());
    assert!(shows("filled_pages") >= shows("readahead_pages"), "{}", filesystem.stats());
    assert_eq!((shows("throttled_writes"), shows("throttled_us")), (0, 0));
}

#[test]
fn all_lanes_read_the_bytes_of_every_lane() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 32 << 20);
    let file = file(&filesystem, b"file");
    let mut truth = pattern(5, 1 << 20);
    file.write_at(0, &truth).unwrap();
    let mut queue = filesystem.queue(&QueueOptions::default()).unwrap();
    let mut done = Vec::new();
    let mut seed = 99_u64;
    for round in 0..400_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
        let page = usize::try_from(seed >> 40).unwrap() % 250;
        let at = page * PAGE;
        let bytes = pattern(seed, 3 * PAGE);
        match seed >> 33 & 7 {
            0 | 1 => {
                let mut buffer = queue.buffer(bytes.len()).unwrap();
                buffer.copy_from_slice(&bytes);
                queue.write(&file, at as u64, buffer, IoFlags::DIRECT, round).unwrap();
                queue.reap(1, None, &mut done);
                truth[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            2 => {
                let at = at + 77;
                file.write_at(at as u64, &bytes).unwrap();
                truth[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            3 => {
                let at = at + 1000;
                file.write_uncached(at as u64, &bytes, Privileges::Keep).unwrap();
                truth[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            4 => {
                let range = at as u64 + 10..(at + 2 * PAGE) as u64 + 10;
                file.allocate(range, butternut::Allocate::PunchHole).unwrap();
                truth[at + 10..at + 2 * PAGE + 10].fill(0);
            }
            5 => {
                let buffer = queue.buffer(3 * PAGE).unwrap();
                queue.read(&file, at as u64, buffer, IoFlags::DIRECT, round).unwrap();
                queue.reap(1, None, &mut done);
                let got = done.pop().unwrap();
                assert_eq!(got.buffer[..], truth[at..at + 3 * PAGE], "round {round}");
            }
            6 => file.sync_data().unwrap(),
            _ => {
                let mut buf = vec![0; 3 * PAGE];
                file.read_uncached(at as u64 + 5, &mut buf).unwrap();
                assert_eq!(buf, truth[at + 5..at + 5 + 3 * PAGE], "round {round}");
            }
        }
        assert!(done.drain(..).all(|done| done.result.is_ok()));
        let mut buf = vec![0; 3 * PAGE];
        file.read_at(at as u64, &mut buf).unwrap();
        assert_eq!(buf, truth[at..at + 3 * PAGE], "round {round}");
    }
    drop(queue);
    drop(file);
    let filesystem = volume.reopen(filesystem);
    let id = filesystem.lookup(filesystem.root(), b"file").unwrap();
    assert_eq!(read(&filesystem.open_file(id).unwrap(), truth.len()), truth);
}

#[test]
fn readers_and_writers_are_not_blocked_by_writeback() {
    let volume = TestVolume::new();
    let filesystem = open(&volume, 32 << 20);
    let file = file(&filesystem, b"file");
    file.write_at(0, &vec![0; 8 << 20]).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..600_u64 {
                    // Each writer has every other page; a page must be from a single write.
                    let page = (round * 7919 % 1024) * 2 + writer;
                    let bytes = vec![u8::try_from(round % 251).unwrap(); PAGE];
                    if round % 3 == 0 {
                        file.write_uncached(page * 4096, &bytes, Privileges::Keep).unwrap();
                    } else {
                        file.write_at(page * 4096, &bytes).unwrap();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = vec![0; PAGE];
                for round in 0..2000_u64 {
                    file.read_at(round * 31 % 2048 * 4096, &mut buf).unwrap();
                    assert!(buf.iter().all(|byte| *byte == buf[0]), "a page is torn");
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                file.sync_data().unwrap();
            }
        });
    });
    drop(file);
    volume.reopen(filesystem);
}
