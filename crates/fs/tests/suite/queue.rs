//! Queues: direct requests in flight, together with all other operations on a file.

use butternut::device::{Device, FileDevice, OpenDevice};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions, SyncKind};
use butternut::stats::LaneCounts;
use butternut::{Allocate, Buffer, File, Filesystem, MountOptions, NewInode};
use butternut_mkfs::MkfsOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::NamedTempFile;

const BLOCK: usize = 4096;

/// A volume in a file, so that an `io_uring` is used.
struct FileVolume {
    image: NamedTempFile,
}

impl FileVolume {
    fn new() -> Self {
        let image = NamedTempFile::new_in("/dev/shm").unwrap();
        image.as_file().set_len(1 << 30).unwrap();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let device = FileDevice::open(image.path(), &how).unwrap();
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        Self { image }
    }

    fn open(&self) -> Filesystem {
        let options = MountOptions::default().read_only(false);
        Filesystem::open(&[self.image.path().into()], &options).unwrap()
    }

    fn reopened(&self, name: &str) -> File {
        let options = MountOptions::default();
        let fs = Filesystem::open(&[self.image.path().into()], &options).unwrap();
        fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap()
    }

    fn check(&self) {
        let how = OpenDevice::default();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(self.image.path(), &how).unwrap());
        let options = butternut_check::CheckOptions { check_data_csum: true, ..Default::default() };
        let report = butternut_check::check(vec![device], &options).unwrap();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

fn made(fs: &Filesystem, name: &str, bytes: &[u8]) -> File {
    let id = fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    assert_eq!(file.write_at(0, bytes).unwrap(), bytes.len());
    file
}

/// Returns pseudorandom bytes that depend on the seed.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

fn owned(queue: &Queue, bytes: &[u8]) -> Buffer {
    let mut buffer = queue.buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

fn reap_all(queue: &mut Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.outstanding() > 0 {
        queue.reap(1, None, &mut done);
    }
    done
}

fn read_back(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buf = vec![0; bytes];
    let read = file.read_at(offset, &mut buf).unwrap();
    buf.truncate(read);
    buf
}

fn since(fs: &Filesystem, before: LaneCounts) -> impl Fn(&str) -> u64 + use<> {
    let (before, after) = (before.named(), fs.lane_counts().named());
    move |name: &str| {
        let at = |counts: &[(&'static str, u64)]| {
            counts.iter().find(|(known, _)| *known == name).unwrap().1
        };
        at(&after) - at(&before)
    }
}

#[test]
fn adjacent_writes_of_a_batch_are_one_device_write() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let mut bytes = pattern(1, 1 << 20);
    let file = made(&fs, "file", &bytes);
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let (counts, before) = (fs.lane_counts(), fs.counters());
    for n in 0..16 {
        let at = (n * 37 % 256) * BLOCK;
        let block = pattern(100 + n as u64, BLOCK);
        bytes[at..at + BLOCK].copy_from_slice(&block);
        let buffer = owned(&queue, &block);
        queue.write(&file, at as u64, buffer, IoFlags::DIRECT, n as u64).unwrap();
    }
    let done = reap_all(&mut queue);
    assert!(done.iter().all(|done| matches!(done.result, Ok(BLOCK))), "{done:?}");
    let mut tags: Vec<u64> = done.iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..16).collect::<Vec<_>>());
    assert_eq!(fs.counters().device_writes - before.device_writes, 1);
    let count = since(&fs, counts);
    assert_eq!((count("dio_write_shared"), count("dio_write_zero_copy")), (16, 16));
    assert!(read_back(&file, 0, 1 << 20) == bytes);
    drop((queue, done));
    fs.sync().unwrap();
    assert!(read_back(&file, 0, 1 << 20) == bytes);
    drop(file);
    fs.close().unwrap();
    volume.check();
    assert!(read_back(&volume.reopened("file"), 0, 1 << 20) == bytes);
}

#[test]
fn reads_of_one_block_take_the_simple_path_once_metadata_is_cached() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let bytes = pattern(2, 1 << 20);
    let file = made(&fs, "file", &bytes);
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let counts = fs.lane_counts();
    for round in 0..3 {
        for n in 0..64_usize {
            let at = (n * 89 % 256) * BLOCK;
            let buffer = queue.buffer(BLOCK).unwrap();
            queue.read(&file, at as u64, buffer, IoFlags::DIRECT, at as u64).unwrap();
        }
        for done in reap_all(&mut queue) {
            let at = usize::try_from(done.tag).unwrap();
            assert_eq!(done.result.unwrap(), BLOCK);
            assert!(done.buffer[..] == bytes[at..at + BLOCK], "round {round}, byte {at}");
        }
    }
    let count = since(&fs, counts);
    assert!(count("dio_read_simple") >= 128, "{:?}", fs.lane_counts());
}

#[test]
fn unaligned_requests_and_requests_at_the_end_are_correct() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let bytes = pattern(3, 10_000);
    let file = made(&fs, "file", &bytes);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut read = |offset: u64, bytes: usize| {
        let buffer = queue.buffer(bytes).unwrap();
        queue.read(&file, offset, buffer, IoFlags::DIRECT, 0).unwrap();
        let done = reap_all(&mut queue).pop().unwrap();
        let read = done.result.unwrap();
        assert_eq!(done.buffer.len(), bytes, "a buffer is returned with its length");
        done.buffer[..read].to_vec()
    };
    assert!(read(0, 16384) == bytes, "dirty in memory");
    fs.sync().unwrap();
    assert!(read(0, 16384) == bytes);
    assert!(read(8192, 4096) == bytes[8192..]);
    assert!(read(1000, 3000) == bytes[1000..4000]);
    assert!(read(12288, 4096).is_empty() && read(1 << 40, 4096).is_empty());
    let (more, odd) = (pattern(4, 4096), pattern(5, 777));
    let mut write = |offset: u64, bytes: &[u8]| {
        let buffer = owned(&queue, bytes);
        queue.write(&file, offset, buffer, IoFlags::DIRECT, 0).unwrap();
        assert_eq!(reap_all(&mut queue).pop().unwrap().result.unwrap(), bytes.len());
    };
    write(20_480, &more);
    write(3, &odd);
    assert_eq!(file.len(), 24_576);
    let mut want = bytes;
    want.resize(24_576, 0);
    want[20_480..].copy_from_slice(&more);
    want[3..780].copy_from_slice(&odd);
    assert!(read_back(&file, 0, 30_000) == want);
    drop((file, queue));
    fs.close().unwrap();
    volume.check();
    assert!(read_back(&volume.reopened("file"), 0, 30_000) == want);
}

#[test]
fn a_queue_that_is_never_reaped_blocks_no_other_thread() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &pattern(6, 1 << 20));
    let other = made(&fs, "other", &pattern(7, 1 << 20));
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    for n in 0..8_u64 {
        for file in [&file, &other] {
            let buffer = owned(&queue, &pattern(n, BLOCK));
            queue.write(file, n * 8192, buffer, IoFlags::DIRECT, n).unwrap();
            let buffer = queue.buffer(BLOCK).unwrap();
            queue.read(file, n * 8192 + 4096, buffer, IoFlags::DIRECT, n).unwrap();
        }
        if n == 3 {
            // Some requests are submitted to the kernel, the others are only queued.
            queue.submit();
        }
    }
    std::thread::scope(|scope| {
        let truncates = scope.spawn(|| file.truncate(5000).unwrap());
        let syncs = scope.spawn(|| other.sync_all().unwrap());
        let commits = scope.spawn(|| fs.sync().unwrap());
        for thread in [truncates, syncs, commits] {
            thread.join().unwrap();
        }
    });
    assert_eq!(file.len(), 5000);
    for n in 0..8_u64 {
        assert!(read_back(&other, n * 8192, BLOCK) == pattern(n, BLOCK), "write {n}");
    }
    let done = reap_all(&mut queue);
    assert_eq!(done.len(), 32);
    assert!(done.iter().all(|done| matches!(done.result, Ok(BLOCK))));
    drop((queue, done, file, other));
    fs.close().unwrap();
    volume.check();
}

#[test]
fn dropping_a_queue_completes_its_requests() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &pattern(8, 1 << 20));
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let block = pattern(9, BLOCK);
    for n in 0..32 {
        let flags = IoFlags::DIRECT.with(if n == 31 { IoFlags::DSYNC } else { IoFlags::DIRECT });
        queue.write(&file, n * 8192, owned(&queue, &block), flags, n).unwrap();
    }
    drop(queue);
    for n in 0..32 {
        assert!(read_back(&file, n * 8192, BLOCK) == block);
    }
    drop(file);
    fs.close().unwrap();
    volume.check();
}

#[test]
fn a_full_queue_returns_eagain_and_the_buffer() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &pattern(8, 1 << 20));
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default().depth(2)).unwrap();
    for n in 0..2 {
        queue.read(&file, n * 4096, queue.buffer(BLOCK).unwrap(), IoFlags::DIRECT, n).unwrap();
    }
    let buffer = queue.buffer(BLOCK).unwrap();
    let refused = queue.read(&file, 0, buffer, IoFlags::DIRECT, 3).unwrap_err();
    assert_eq!((refused.buffer.len(), refused.error.errno()), (BLOCK, 11));
    let mut done = Vec::new();
    assert!(queue.reap(2, Some(Duration::from_mins(1)), &mut done) == 2);
    queue.sync(&file, SyncKind::Data, 4).unwrap();
    assert_eq!(reap_all(&mut queue)[0].tag, 4);
}

/// Waits until a descriptor is readable.
fn wait_readable(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, Some(&timeout))).unwrap() == 1
}

#[test]
fn the_event_of_a_queue_is_readable_when_there_is_something_to_reap() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &pattern(8, 4 << 20));
    fs.sync().unwrap();
    assert!(fs.queue(&QueueOptions::default()).unwrap().event().is_none());
    let mut queue = fs.queue(&QueueOptions::default().has_event(true)).unwrap();
    let mut done = Vec::new();
    for round in 0..200_u64 {
        assert!(!wait_readable(queue.event().unwrap(), Duration::ZERO), "nothing is queued");
        // Requests of all kinds: in flight, completed when they are queued, and synced ones.
        let (read, write) = (queue.buffer(BLOCK).unwrap(), owned(&queue, &pattern(9, BLOCK)));
        let flags = match round % 4 {
            0 => IoFlags::DIRECT,
            1 => IoFlags::DIRECT.with(IoFlags::DSYNC),
            2 => IoFlags::UNCACHED,
            _ => IoFlags::default(),
        };
        queue.write(&file, round * 8192, write, flags, 0).unwrap();
        queue.read(&file, round * 8192 + 4096, read, flags, 1).unwrap();
        queue.submit();
        // Another thread completes what is in flight on the file.
        if round % 5 == 0 {
            file.write_at(3 << 20, &[1]).unwrap();
        }
        let before = done.len();
        while queue.outstanding() > 0 {
            assert!(wait_readable(queue.event().unwrap(), Duration::from_mins(2)), "lost");
            queue.reap(0, None, &mut done);
        }
        assert_eq!(done.len() - before, 2);
        // What was reaped may have signalled once more.
        queue.reap(0, None, &mut done);
    }
    assert!(done.iter().all(|done| done.result.is_ok()));
}

#[test]
fn many_threads_write_one_file_while_others_change_it() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &vec![0; 8 << 20]);
    fs.sync().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, file) = (&fs, &file);
            scope.spawn(move || {
                let mut queue = fs.queue(&QueueOptions::default()).unwrap();
                let mut done = Vec::new();
                // Each thread writes every fourth block.
                for n in 0..2000_u64 {
                    let block = (n * 7919 % 512) * 4 + thread;
                    let mut buffer = queue.buffer(BLOCK).unwrap();
                    buffer.fill(u8::try_from(n % 251).unwrap());
                    buffer[..8].copy_from_slice(&block.to_le_bytes());
                    let at = block * 4096;
                    queue.write(file, at, buffer, IoFlags::DIRECT, n).unwrap();
                    if queue.outstanding() == 16 {
                        queue.reap(16, None, &mut done);
                        assert!(done.drain(..).all(|done| done.result.is_ok()));
                    }
                }
            });
        }
        scope.spawn(|| {
            for n in 0..50_u64 {
                file.write_at((8 << 20) + n, b"x").unwrap();
                if n % 10 == 0 {
                    fs.sync().unwrap();
                }
            }
        });
    });
    let bytes = read_back(&file, 0, 8 << 20);
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        assert_eq!(bytes[..8], (block as u64).to_le_bytes(), "block {block}");
        assert!(bytes[8..].iter().all(|byte| *byte == bytes[8]), "block {block} is torn");
    }
    drop(file);
    fs.close().unwrap();
    volume.check();
}

#[test]
fn reads_and_direct_writes_continue_during_a_merge() {
    /// More than the maximum of pending extents.
    const BLOCKS: usize = 48 << 10;
    const ROUNDS: u32 = 2;
    /// Blocks at the end of the file that are preallocated and never written.
    const PREALLOCATED: usize = 4 << 10;
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &vec![0; (BLOCKS - PREALLOCATED) * BLOCK]);
    file.allocate(file.len()..(BLOCKS * BLOCK) as u64, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    // For each block, the last round that was begun, and the last that was reaped.
    let [begun, reaped] =
        [0, 1].map(|_| (0..BLOCKS).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for is_direct in [false, true] {
            let (file, begun, reaped, is_over) = (&file, &begun, &reaped, &is_over);
            scope.spawn(move || {
                let mut buffer = Buffer::zeroed(BLOCK);
                for block in (0..).map(|n: usize| n * 10_007 % BLOCKS) {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    let least = reaped[block].load(Ordering::Acquire);
                    let at = (block * BLOCK) as u64;
                    let read = if is_direct { File::read_direct } else { File::read_at };
                    assert_eq!(read(file, at, &mut buffer).unwrap(), BLOCK);
                    let most = begun[block].load(Ordering::Acquire);
                    let word = |n: usize| u32::from_le_bytes(buffer[n..n + 4].try_into().unwrap());
                    let round = word(0);
                    assert!((least..=most).contains(&round), "{block}: {least} {round} {most}");
                    assert!(round == 0 || word(4) as usize == block, "{block} holds {}", word(4));
                }
            });
        }
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        let mut done = Vec::new();
        for n in 0..BLOCKS * ROUNDS as usize {
            let (block, round) = (n * 7919 % BLOCKS, (n / BLOCKS) as u32 + 1);
            let mut buffer = queue.buffer(BLOCK).unwrap();
            buffer[..4].copy_from_slice(&round.to_le_bytes());
            buffer[4..8].copy_from_slice(&(block as u32).to_le_bytes());
            begun[block].store(round, Ordering::Release);
            let tag = (block as u64) << 8 | u64::from(round);
            let at = (block * BLOCK) as u64;
            queue.write(&file, at, buffer, IoFlags::DIRECT, tag).unwrap();
            if queue.outstanding() == 32 {
                queue.reap(16, None, &mut done);
                for Completion { tag, result, .. } in done.drain(..) {
                    assert_eq!(result.unwrap(), BLOCK);
                    reaped[(tag >> 8) as usize].store((tag & 0xff) as u32, Ordering::Release);
                }
            }
        }
        drop(queue);
        is_over.store(true, Ordering::Release);
    });
    drop(file);
    fs.close().unwrap();
    volume.check();
    let file = volume.reopened("file");
    for (block, bytes) in read_back(&file, 0, BLOCKS * BLOCK).chunks(BLOCK).enumerate() {
        assert_eq!(bytes[..4], ROUNDS.to_le_bytes(), "block {block}");
        assert_eq!(bytes[4..8], (block as u32).to_le_bytes());
    }
}

#[test]
fn repeated_overwrites_do_not_run_out_of_space() {
    const FILE: usize = 256 << 20;
    const ROUNDS: usize = 4;
    const PIECE: usize = 64 << 10;
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &vec![1; FILE]);
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut done = Vec::new();
    // More than the volume has.
    for n in 0..ROUNDS * FILE / PIECE {
        let mut buffer = queue.buffer(PIECE).unwrap();
        buffer.fill(2 + (n * PIECE / FILE) as u8);
        let at = (n * 7919 % (FILE / PIECE) * PIECE) as u64;
        queue.write(&file, at, buffer, IoFlags::DIRECT, n as u64).unwrap();
        if queue.outstanding() == 16 {
            queue.reap(8, None, &mut done);
            assert!(done.drain(..).all(|done| done.result.unwrap() == PIECE));
        }
    }
    assert!(reap_all(&mut queue).iter().all(|done| done.result.is_ok()));
    drop(queue);
    assert!(read_back(&file, 0, FILE).iter().all(|byte| *byte == 1 + ROUNDS as u8));
    drop(file);
    fs.close().unwrap();
    volume.check();
}

#[test]
fn the_last_handle_of_a_removed_file_is_dropped_without_a_deadlock() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let flags = [IoFlags::DIRECT, IoFlags::DIRECT.with(IoFlags::DSYNC)];
    for (round, flags) in flags.into_iter().cycle().take(8).enumerate() {
        let file = made(&fs, "file", &pattern(9, 8 * BLOCK));
        file.sync_all().unwrap();
        let id = file.id();
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        fs.unlink(fs.root(), b"file").unwrap();
        let buffer = owned(&queue, &pattern(10, BLOCK));
        queue.write(&file, 0, buffer, flags, 1).map_err(|refused| refused.error).unwrap();
        let buffer = queue.buffer(BLOCK).unwrap();
        queue.read(&file, 4 * BLOCK as u64, buffer, flags, 2).map_err(|r| r.error).unwrap();
        drop(file);
        // Only the requests keep the file open, and the calls below complete them.
        let (ended, end) = std::sync::mpsc::channel();
        let other = fs.clone();
        let drainer = std::thread::spawn(move || {
            if round % 2 == 0 {
                other.sync().unwrap();
            } else {
                let set = butternut::SetAttributes { mode: Some(0o600), ..Default::default() };
                other.set_attributes(id, &set).unwrap();
            }
            ended.send(()).unwrap();
        });
        let waited = end.recv_timeout(Duration::from_mins(5));
        assert!(waited.is_ok(), "round {round}: the draining thread hangs or panicked");
        drainer.join().unwrap();
        if round % 4 < 2 {
            assert!(reap_all(&mut queue).iter().all(|done| done.result.is_ok()));
        }
        drop(queue);
        assert!(matches!(fs.stat(id), Err(butternut::Error::Stale { .. })), "it is deleted");
    }
    fs.close().unwrap();
    volume.check();
}

#[test]
fn a_direct_write_at_the_end_of_all_offsets_fails() {
    let volume = FileVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file", &pattern(8, BLOCK));
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let last = u64::MAX - (BLOCK as u64 - 1);
    let buffer = owned(&queue, &pattern(9, BLOCK));
    queue.write(&file, last, buffer, IoFlags::DIRECT, 0).unwrap();
    let buffer = queue.buffer(BLOCK).unwrap();
    queue.read(&file, last, buffer, IoFlags::DIRECT, 1).unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.reap(2, None, &mut done), 2);
    done.sort_by_key(|done| done.tag);
    assert!(done[0].result.is_err());
    assert_eq!(*done[1].result.as_ref().unwrap(), 0);
    assert!(fs.is_writable());
}
