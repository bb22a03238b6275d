//! NOWAIT requests: completed without blocking, or refused without effect.

use crate::volume::{TestVolume, new};
use butternut::device::{FileDevice, OpenDevice};
use butternut::queue::{Completion, IoFlags, Queue, QueueOptions};
use butternut::stats::Stats;
use butternut::{
    AttributeFlags, Buffer, File, Filesystem, MountOptions, NewInode, Privileges, Tunables,
    UncachedFlush,
};

const PAGE: usize = 4096;
const NOWAIT: IoFlags = IoFlags::NOWAIT;
const EAGAIN: i32 = 11;

fn open(volume: &TestVolume, page_cache_bytes: u64) -> Filesystem {
    // No commit happens meanwhile.
    let options = MountOptions::default()
        .read_only(false)
        .page_cache_bytes(page_cache_bytes)
        .commit_seconds(3600);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

fn made(fs: &Filesystem, name: &[u8], bytes: &[u8]) -> File {
    let id = fs.create(fs.root(), name, &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    assert_eq!(file.write_at(0, bytes).unwrap(), bytes.len());
    file
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 % 251).to_le_bytes()[0]).collect()
}

fn reaped(queue: &mut Queue) -> Completion {
    let mut done = Vec::new();
    assert_eq!(queue.reap(1, None, &mut done), 1);
    done.pop().unwrap()
}

/// Returns the bytes read, or `None` for EAGAIN.
fn read(queue: &mut Queue, file: &File, at: u64, bytes: usize, flags: IoFlags) -> Option<Vec<u8>> {
    match queue.read(file, at, Buffer::zeroed(bytes), flags.with(NOWAIT), 0) {
        Ok(()) => {
            let done = reaped(queue);
            let read = done.result.unwrap();
            Some(done.buffer[..read].to_vec())
        }
        Err(refused) => {
            assert_eq!((refused.error.errno(), refused.buffer.len()), (EAGAIN, bytes));
            None
        }
    }
}

/// Returns whether the write was done; otherwise it got EAGAIN.
fn write(queue: &mut Queue, file: &File, at: u64, bytes: &[u8], flags: IoFlags) -> bool {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    match queue.write(file, at, buffer, flags.with(NOWAIT), 0) {
        Ok(()) => {
            assert_eq!(reaped(queue).result.unwrap(), bytes.len());
            true
        }
        Err(refused) => {
            assert_eq!((refused.error.errno(), &refused.buffer[..]), (EAGAIN, bytes));
            false
        }
    }
}

/// Returns the counters that no NOWAIT request changes, whether it completes or is refused.
fn devices(fs: &Filesystem) -> (u64, u64, u64, u64) {
    let counters = fs.counters();
    let commits = fs.stats().commits;
    (counters.device_reads, counters.device_writes, counters.device_flushes, commits)
}

/// Returns everything that a refused request leaves unchanged, without the count of EAGAIN itself.
fn untouched(fs: &Filesystem, file: &File) -> Stats {
    let mut stats = fs.stats();
    stats.lanes.nowait_again = 0;
    // Buffers count for the whole process: a buffer that a request copies into is kept for the
    // next.
    stats.memory.buffer_bytes = 0;
    assert_eq!(file.metadata().unwrap().size, file.len());
    stats
}

#[test]
fn a_nowait_read_is_served_from_memory_or_refused() {
    let volume = TestVolume::new();
    let bytes = pattern(1 << 20);
    let fs = open(&volume, 64 << 20);
    drop(made(&fs, b"file", &bytes));
    fs.close().unwrap();
    let fs = open(&volume, 64 << 20);
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let (before, counts) = (devices(&fs), fs.lane_counts());
    for flags in [IoFlags::default(), IoFlags::UNCACHED] {
        assert_eq!(read(&mut queue, &file, 4096, 8192, flags), None, "{flags:?}");
    }
    assert_eq!(read(&mut queue, &file, 1 << 20, 10, NOWAIT), Some(vec![]), "nothing to wait for");
    assert_eq!((devices(&fs), fs.page_counts().cached_pages), (before, 0), "nothing was begun");
    assert_eq!(fs.lane_counts().nowait_again - counts.nowait_again, 2);

    let mut part = vec![0; 2 * PAGE];
    assert_eq!(file.read_at(4096, &mut part).unwrap(), 2 * PAGE);
    let before = devices(&fs);
    for flags in [IoFlags::default(), IoFlags::UNCACHED] {
        let found = read(&mut queue, &file, 5000, 7000, flags);
        assert_eq!(found.as_deref(), Some(&bytes[5000..12_000]), "{flags:?}");
    }
    assert_eq!(read(&mut queue, &file, 8192, PAGE + 1, NOWAIT), None, "one byte is not cached");
    assert_eq!(devices(&fs), before);
    assert_eq!(fs.page_counts().cached_pages, 2, "an uncached read leaves pages of other readers");
    let latency = |fs: &Filesystem| {
        let named = fs.stats().latency.into_iter();
        named
            .filter(|(op, _)| op.name() == "cached_read")
            .map(|(_, times)| times.count)
            .sum::<u64>()
    };
    assert_eq!(latency(&fs), 4, "refused requests are not counted as operations");
}

#[test]
fn a_nowait_write_that_needs_no_metadata_succeeds() {
    let volume = TestVolume::new();
    let fs = open(&volume, 64 << 20);
    let mut truth = pattern(1 << 20);
    let file = made(&fs, b"file", &truth);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let before = devices(&fs);
    let (one, more) = (vec![1; PAGE], vec![2; 300_000]);
    for (at, bytes) in [(0, &one[..]), (77_777, &one[..9]), (100, &more), (1 << 20, &more[..5000])]
    {
        assert!(write(&mut queue, &file, at as u64, bytes, IoFlags::default()), "{at}");
        truth.resize(truth.len().max(at + bytes.len()), 0);
        truth[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(write(&mut queue, &file, 0, b"the end", IoFlags::APPEND));
    truth.extend_from_slice(b"the end");
    assert_eq!(file.metadata().unwrap().size, truth.len() as u64);
    assert_eq!(read(&mut queue, &file, 0, truth.len(), NOWAIT).as_ref(), Some(&truth));
    assert_eq!(devices(&fs), before, "nothing was read, written or committed");
    assert_eq!(fs.stats().memory.dirty_bytes, truth.len().next_multiple_of(PAGE) as u64);
    drop((file, queue));
    let fs = volume.reopen(fs);
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let mut found = vec![0; truth.len()];
    assert_eq!(file.read_at(0, &mut found).unwrap(), truth.len());
    assert!(found == truth);
}

#[test]
fn an_uncached_nowait_write_needs_another_thread_for_writeback() {
    let volume = TestVolume::new();
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &pattern(1 << 20));
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    assert!(write(&mut queue, &file, 0, &[1; 8192], IoFlags::UNCACHED));
    // Otherwise the flusher may have the file locked when the next request needs it.
    file.sync_data().unwrap();
    fs.set_tunables(Tunables::default().uncached_flush(UncachedFlush::Inline));
    assert!(
        !write(&mut queue, &file, 0, &[2; 8192], IoFlags::UNCACHED),
        "it would do writeback itself"
    );
    assert!(write(&mut queue, &file, 0, &[3; 8192], IoFlags::default()));
    let found = read(&mut queue, &file, 0, 8193, NOWAIT).unwrap();
    assert!(found[..8192] == [3; 8192] && found[8192] == pattern(8193)[8192]);
}

#[test]
fn a_cached_write_that_would_block_changes_nothing() {
    let volume = TestVolume::new();
    let bytes = pattern(100_000);
    let fs = open(&volume, 16 << 20);
    drop(made(&fs, b"file", &bytes));
    let in_place = fs.create(fs.root(), b"in place", &new(0o644)).unwrap();
    fs.set_attribute_flags(in_place, AttributeFlags::NOCOW).unwrap();
    let capable = fs.create(fs.root(), b"privileged", &new(0o4755)).unwrap();
    fs.open_file(capable).unwrap().write_at(0, &bytes).unwrap();
    fs.close().unwrap();

    let fs = open(&volume, 16 << 20);
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let none = IoFlags::default();
    let refused = |queue: &mut Queue, file: &File, at: u64, bytes: &[u8], flags: IoFlags| {
        let before = untouched(&fs, file);
        assert!(!write(queue, file, at, bytes, flags), "{at} {flags:?}");
        assert_eq!(untouched(&fs, file), before, "{at} {flags:?}");
    };
    refused(&mut queue, &file, 5000, &[1; 10], none);
    refused(&mut queue, &file, 4096, &[1; 5000], none);
    refused(&mut queue, &file, 100_001, &[1; 10], none);
    refused(&mut queue, &file, 0, &[1; 8192], IoFlags::DSYNC);
    assert!(write(&mut queue, &file, 0, &[1; 8192], none), "whole blocks need no read");
    refused(&mut queue, &file, 5000, &[1; 10_000], none);
    // The blocks that it changes in part are in memory now.
    let mut buf = [0; 10];
    file.read_at(12_288, &mut buf).unwrap();
    assert!(write(&mut queue, &file, 5000, &[2; 10_000], none));

    // The location of its blocks is only in the trees.
    let in_place = fs.open_file(in_place).unwrap();
    refused(&mut queue, &in_place, 0, &[1; 8192], none);

    // The privileges to strip are unknown at first, and then cached.
    let options = QueueOptions::default().privileges(Privileges::Strip);
    let mut others = fs.queue(&options).unwrap();
    let capable = fs.open_file(capable).unwrap();
    refused(&mut others, &capable, 0, &[1; 8192], none);
    assert!(
        write(&mut queue, &capable, 0, &[1; 8192], none),
        "a caller that keeps privileges may write"
    );
    for _ in 0..2 {
        capable.write_as(0, &[2; 8192], Privileges::Strip).unwrap();
    }
    assert!(write(&mut others, &capable, 0, &[3; 8192], none));

    // Writers are throttled from here on.
    let large = vec![4; 256 << 10];
    let mut at = 0;
    while fs.stats().memory.dirty_bytes + large.len() as u64 <= 3 << 20 {
        assert!(write(&mut queue, &file, at, &large, none), "{at}");
        at += large.len() as u64;
    }
    refused(&mut queue, &file, at, &large, none);
    fs.sync().unwrap();
    assert!(write(&mut queue, &file, 0, &large, none), "below the limit again");
    drop((file, in_place, capable, queue, others));
    volume.reopen(fs);
}

#[test]
fn a_nowait_write_frees_no_space_on_a_full_volume() {
    let volume = TestVolume::of(256 << 20, &butternut_mkfs::MkfsOptions::default());
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &[0; PAGE]);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let bytes = vec![7; 1 << 20];
    let mut at = 1 << 20;
    let before = devices(&fs).3;
    // Uncached, so that the dirty limit is never reached.
    let mut refused = 0;
    while refused < 200 && at < 512 << 20 {
        if write(&mut queue, &file, at, &bytes, IoFlags::UNCACHED) {
            (at, refused) = (at + bytes.len() as u64, 0);
        } else {
            refused += 1;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    assert!(at > 4 << 20 && refused == 200, "{at}");
    assert_eq!(devices(&fs).3, before, "no commit was made for it");
    assert_eq!(file.len(), at);
    drop((file, queue));
    volume.reopen(fs);
}

#[test]
fn refused_direct_requests_are_counted_only_as_refused() {
    let volume = TestVolume::new();
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &pattern(1 << 20));
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let before = fs.lane_counts();
    let direct = IoFlags::DIRECT;
    assert_eq!(read(&mut queue, &file, 1, 100, direct), None);
    assert!(!write(&mut queue, &file, 1, &[1; 100], direct), "not aligned");
    assert!(!write(&mut queue, &file, 1 << 20, &[1; PAGE], direct), "the file grows");
    let mut counts = fs.lane_counts();
    assert_eq!(counts.nowait_again - before.nowait_again, 3);
    counts.nowait_again = before.nowait_again;
    assert_eq!(counts, before, "nothing else is counted");
    assert!(write(&mut queue, &file, 4096, &[1; PAGE], direct));
    assert_eq!(read(&mut queue, &file, 4096, PAGE, direct), Some(vec![1; PAGE]));
    let counts = fs.lane_counts();
    assert_eq!((counts.dio_write_shared, counts.dio_read_simple), (1, 1));
    assert_eq!((counts.dio_write_exclusive, counts.dio_read_general), (0, 0));
}

#[test]
fn a_direct_nowait_write_uses_free_space_and_frees_none() {
    const MIB: usize = 1 << 20;
    let volume = TestVolume::new();
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &pattern(4 * MIB));
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let commits = fs.stats().commits;
    let chunks =
        |fs: &Filesystem| fs.usage().unwrap().groups.iter().map(|group| group.count).sum::<u64>();
    let before = chunks(&fs);
    // The replaced space is not free before a commit.
    let at = |n: usize| (n % 4 * MIB) as u64;
    let accepted = (0..256).take_while(|n| {
        let block = vec![u8::try_from(*n).unwrap(); MIB];
        write(&mut queue, &file, at(*n), &block, IoFlags::DIRECT)
    });
    let accepted = accepted.count();
    assert!((1..256).contains(&accepted), "{accepted}");
    assert_eq!((fs.stats().commits, chunks(&fs)), (commits, before));
    let mut block = Buffer::zeroed(MIB);
    block.fill(77);
    queue.write(&file, at(accepted), block, IoFlags::DIRECT, 0).unwrap();
    assert_eq!(reaped(&mut queue).result.unwrap(), MIB, "a blocking write frees space");
    drop(queue);
    let mut last = vec![0; MIB];
    assert_eq!(file.read_at(at(accepted), &mut last).unwrap(), MIB);
    assert!(last.iter().all(|byte| *byte == 77));
    drop(file);
    volume.reopen(fs);
}

#[test]
fn a_direct_nowait_read_succeeds_once_its_mapping_is_cached() {
    let volume = TestVolume::new();
    let bytes = pattern(3 << 20);
    let fs = open(&volume, 64 << 20);
    drop(made(&fs, b"file", &bytes));
    fs.close().unwrap();
    let fs = open(&volume, 64 << 20);
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let before = devices(&fs);
    let (large, bytes_read) = (1 << 20, 1 << 20);
    assert_eq!(read(&mut queue, &file, 0, PAGE, IoFlags::DIRECT), None);
    assert_eq!(read(&mut queue, &file, large, bytes_read, IoFlags::DIRECT), None);
    assert_eq!((devices(&fs), fs.lane_counts().nowait_again), (before, 2), "no tree was read");
    // Blocking reads load the mappings.
    for at in [0, large, 2 * large] {
        queue.read(&file, at, Buffer::zeroed(PAGE), IoFlags::DIRECT, 0).unwrap();
        assert_eq!(reaped(&mut queue).result.unwrap(), PAGE);
    }
    let before = devices(&fs).0;
    let found = read(&mut queue, &file, 8192, PAGE, IoFlags::DIRECT);
    assert_eq!(found.as_deref(), Some(&bytes[8192..8192 + PAGE]));
    let found = read(&mut queue, &file, large, bytes_read, IoFlags::DIRECT).unwrap();
    assert!(found == bytes[1 << 20..2 << 20]);
    assert!(devices(&fs).0 - before <= 4, "only data was read");
}

/// Borrowed memory must be copied, and the whole bounce buffer is in use.
#[test]
fn a_nowait_write_without_a_bounce_buffer_is_refused() {
    use butternut_sys::scribble::Scribble;
    // A device with an io_uring: completions are not seen before they are reaped.
    let image = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    image.as_file().set_len(512 << 20).unwrap();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    butternut_mkfs::make(
        &FileDevice::open(image.path(), &how).unwrap(),
        &butternut_mkfs::MkfsOptions::default(),
    )
    .unwrap();
    let options = MountOptions::default().read_only(false);
    let fs = Filesystem::open(&[image.path().into()], &options).unwrap();
    let file = made(&fs, b"file", &pattern(4 << 20));
    fs.sync().unwrap();
    let options = QueueOptions::default().bounce_bytes(2 << 20);
    let mut queue = fs.queue(&options).unwrap();
    let memory = Scribble::new(128 << 10);
    let flags = IoFlags::DIRECT.with(NOWAIT);
    let mut write = |at: u64| {
        let before = file.metadata().unwrap();
        let refused = queue.write(&file, at, memory.lend_part(0..128 << 10), flags, at).err()?;
        assert_eq!(file.metadata().unwrap(), before, "a refused write changes no times");
        Some((at, refused))
    };
    let refused = (0..32).map(|n| n * (128 << 10)).find_map(&mut write);
    let (at, refused) = refused.expect("the buffer is exhausted");
    assert_eq!((refused.error.errno(), refused.buffer.len()), (EAGAIN, 128 << 10));
    assert!(at >= 128 << 10, "the first write got a buffer");
    let counts = fs.lane_counts();
    assert_eq!((counts.nowait_again, counts.dio_write_bounced), (1, at >> 17));
    let mut done = Vec::new();
    queue.reap(32, None, &mut done);
    assert!(done.iter().all(|done| done.result.is_ok()));
    queue
        .write(&file, at, memory.lend_part(0..128 << 10), flags, at)
        .expect("a buffer is available again");
}
