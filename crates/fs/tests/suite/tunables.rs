//! Each tunable of the I/O path changes the path of requests, as the lane counters show.

use crate::volume::TestVolume;
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::stats::{LaneCounts, PageCounters, WritebackReason};
use butternut::{
    Buffer, DirectStability, File, Filesystem, NewInode, Privileges, Tunables, UncachedFlush,
};
use butternut_sys::scribble::Scribble;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

struct Opened {
    file: File,
    queue: Queue,
    fs: Filesystem,
    volume: TestVolume,
}

impl Opened {
    /// A file of a mebibyte, on disk.
    fn new() -> Self {
        let volume = TestVolume::new();
        let fs = volume.open();
        let file = made(&fs, b"file");
        let queue = fs.queue(&QueueOptions::default()).unwrap();
        Self { file, queue, fs, volume }
    }

    fn set(&self, set: impl Fn(&mut Tunables)) {
        let mut tunables = Tunables::default();
        set(&mut tunables);
        self.fs.set_tunables(tunables);
    }

    /// Returns the lane counters of some requests.
    fn counted(&mut self, request: impl Fn(&mut Queue, &File, u64)) -> LaneCounts {
        let before = self.fs.lane_counts();
        let mut done = Vec::new();
        for n in 0..16_u64 {
            request(&mut self.queue, &self.file, n * 8192);
        }
        while self.queue.outstanding() > 0 {
            self.queue.reap(1, None, &mut done);
        }
        assert!(done.iter().all(|done| matches!(done.result, Ok(BLOCK))), "{done:?}");
        let after = self.fs.lane_counts();
        LaneCounts {
            dio_read_simple: after.dio_read_simple - before.dio_read_simple,
            dio_read_general: after.dio_read_general - before.dio_read_general,
            read_retry_mirror: after.read_retry_mirror - before.read_retry_mirror,
            dio_write_shared: after.dio_write_shared - before.dio_write_shared,
            dio_write_exclusive: after.dio_write_exclusive - before.dio_write_exclusive,
            privs_stripped: after.privs_stripped - before.privs_stripped,
            dio_write_zero_copy: after.dio_write_zero_copy - before.dio_write_zero_copy,
            dio_write_bounced: after.dio_write_bounced - before.dio_write_bounced,
            dio_write_fallback: after.dio_write_fallback - before.dio_write_fallback,
            nowait_again: after.nowait_again - before.nowait_again,
        }
    }

    fn close(self) {
        let Self { file, queue, fs, volume } = self;
        drop((file, queue));
        volume.reopen(fs);
    }
}

fn made(fs: &Filesystem, name: &[u8]) -> File {
    let id = fs.create(fs.root(), name, &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![7; 1 << 20]).unwrap();
    fs.sync().unwrap();
    file
}

fn read(queue: &mut Queue, file: &File, at: u64) {
    let buffer = queue.buffer(BLOCK).unwrap();
    queue.read(file, at, buffer, IoFlags::DIRECT, at).unwrap();
}

fn write(queue: &mut Queue, file: &File, at: u64, buffer: Buffer) {
    queue.write(file, at, buffer, IoFlags::DIRECT, at).unwrap();
}

fn write_owned(queue: &mut Queue, file: &File, at: u64) {
    let mut buffer = queue.buffer(BLOCK).unwrap();
    buffer.fill(9);
    write(queue, file, at, buffer);
}

#[test]
fn simple_read_disables_and_enables_the_simple_path() {
    let mut opened = Opened::new();
    opened.counted(read);
    for _ in 0..2 {
        opened.set(|tunables| tunables.simple_read = false);
        let counted = opened.counted(read);
        assert_eq!(counted, LaneCounts { dio_read_general: 16, ..LaneCounts::default() });
        opened.set(|_| {});
        let counted = opened.counted(read);
        assert_eq!(counted, LaneCounts { dio_read_simple: 16, ..LaneCounts::default() });
    }
    opened.close();
}

/// Both paths find the same location for each block.
#[test]
fn the_simple_and_the_general_path_read_the_same_bytes() {
    let mut opened = Opened::new();
    let block = |n: u8| vec![n; BLOCK];
    // On disk and in the tree, pending, dirty, a hole, and a partial last block.
    opened.counted(write_owned);
    opened.file.write_at(4096, &block(3)).unwrap();
    opened.file.write_at((1 << 20) + 40_960, &[4; 100]).unwrap();
    opened.fs.sync().unwrap();
    opened.counted(|queue, file, at| write_owned(queue, file, at + (1 << 19)));
    opened.file.write_at(12_288, &block(5)).unwrap();
    let blocks = opened.file.len().div_ceil(4096);
    let mut all = [Vec::new(), Vec::new()];
    for (simple_read, all) in [true, false].into_iter().zip(&mut all) {
        opened.set(|tunables| tunables.simple_read = simple_read);
        for n in 0..blocks {
            read(&mut opened.queue, &opened.file, n * 4096);
            let mut done = Vec::new();
            opened.queue.reap(1, None, &mut done);
            let done = done.pop().unwrap();
            all.extend_from_slice(&done.buffer[..done.result.unwrap()]);
        }
    }
    assert_eq!(all[0].len() as u64, opened.file.len());
    assert!(all[0] == all[1]);
    let mut truth = vec![0; all[0].len()];
    opened.file.read_at(0, &mut truth).unwrap();
    assert!(all[0] == truth);
    opened.close();
}

#[test]
fn nosec_disables_and_enables_shared_writes() {
    let mut opened = Opened::new();
    for nosec in [true, false, true] {
        opened.set(|tunables| tunables.nosec = nosec);
        let counted = opened.counted(write_owned);
        let counts = (counted.dio_write_shared, counted.dio_write_exclusive);
        assert_eq!(counts, if nosec { (16, 0) } else { (0, 16) });
    }
    opened.close();
}

#[test]
fn dio_stable_selects_the_treatment_of_borrowed_memory() {
    let mut opened = Opened::new();
    let memory = Scribble::new(BLOCK);
    let borrowed = |queue: &mut Queue, file: &File, at| {
        write(queue, file, at, memory.lend_part(0..BLOCK));
    };
    for (stability, zero_copy, bounced, fallback) in [
        (DirectStability::Bounce, 0, 16, 0),
        (DirectStability::Trust, 16, 0, 0),
        (DirectStability::Buffered, 0, 0, 16),
        (DirectStability::Bounce, 0, 16, 0),
    ] {
        opened.fs.sync().unwrap();
        opened.set(|tunables| tunables.direct_stability = stability);
        let counted = opened.counted(borrowed);
        let counts =
            (counted.dio_write_zero_copy, counted.dio_write_bounced, counted.dio_write_fallback);
        assert_eq!(counts, (zero_copy, bounced, fallback), "{stability:?}");
        assert_eq!(counted.dio_write_shared, zero_copy + bounced, "{stability:?}");
        opened.fs.sync().unwrap();
        let counted = opened.counted(write_owned);
        assert_eq!(counted.dio_write_zero_copy, 16, "owned memory: {stability:?}");
    }
    opened.close();
}

/// An older file is dirty, and another is written uncached: which pages does each mode write back?
#[test]
fn uncached_flush_selects_the_thread_and_the_pages_of_writeback() {
    for (mode, is_kicked, old_stays) in [
        (UncachedFlush::Device, true, false),
        (UncachedFlush::Inode, true, true),
        (UncachedFlush::Inline, false, true),
    ] {
        let opened = Opened::new();
        opened.set(|tunables| tunables.uncached_flush = mode);
        let old = made(&opened.fs, b"old");
        old.write_at(0, &vec![1; 1 << 20]).unwrap();
        let before = opened.fs.page_counts();
        assert_eq!((before.dirty_pages, before.in_writeback_pages), (256, 0));
        opened.file.write_uncached(4 << 20, &vec![2; 1 << 20], Privileges::Keep).unwrap();
        let count = || opened.fs.page_counts();
        let sent = || {
            let of = |counts: PageCounters| counts.writeback_pages(WritebackReason::Uncached);
            of(count()) - of(before)
        };
        let dropped = || count().dropbehind_pages - before.dropbehind_pages;
        if mode == UncachedFlush::Inline {
            assert_eq!((sent(), dropped()), (256, 256), "before the write returned");
        }
        let begun = Instant::now();
        while sent() < 256 || count().in_writeback_pages > 0 || (old_stays && dropped() < 256) {
            assert!(begun.elapsed() < Duration::from_mins(5), "{mode:?}: {:?}", count());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(count().flusher_kicks > before.flusher_kicks, is_kicked, "{mode:?}");
        assert_eq!((dropped() == 0, count().dirty_pages), (!old_stays, 256), "{mode:?}");
        drop(old);
        opened.close();
    }
}
