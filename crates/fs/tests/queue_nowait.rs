//! Requests that are not to wait: done at once, or refused with nothing done.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(dead_code, reason = "what volumes of tests share, not every test uses")]

mod volume;

use butternut::device::{FileDevice, OpenDevice};
use butternut::{
    AttributeFlags, Buffer, Done, File, Filesystem, IoFlags, MountOptions, NewInode, Privileges,
    Queue, QueueOptions, Stats, Switches, UncachedFlush,
};
use volume::{TestVolume, new};

const PAGE: usize = 4096;
const NOWAIT: IoFlags = IoFlags::NOWAIT;
const EAGAIN: i32 = 11;

fn open(volume: &TestVolume, page_cache_bytes: u64) -> Filesystem {
    // Nobody commits meanwhile.
    let options = MountOptions {
        read_only: false,
        page_cache_bytes,
        commit_seconds: 3600,
        ..MountOptions::default()
    };
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

fn reaped(queue: &mut Queue) -> Done {
    let mut done = Vec::new();
    assert_eq!(queue.reap(1, None, &mut done), 1);
    done.pop().unwrap()
}

/// What the read gave; `None` where it would have had to wait.
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

/// Whether the write was done; where not, it would have had to wait.
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

/// What no request that waits for nothing changes, and none that was refused.
fn devices(fs: &Filesystem) -> (u64, u64, u64, u64) {
    let counters = fs.counters();
    let commits = fs.stats().commits;
    (counters.device_reads, counters.device_writes, counters.device_flushes, commits)
}

/// What a refused request leaves as it was, but for the count of those.
fn untouched(fs: &Filesystem, file: &File) -> Stats {
    let mut stats = fs.stats();
    stats.lanes.nowait_again = 0;
    // Those of the whole process: a buffer that a request copies into is kept for the next.
    stats.memory.buffer_bytes = 0;
    assert_eq!(file.stat().unwrap().size, file.size());
    stats
}

#[test]
fn a_cached_read_is_served_from_memory_or_not_at_all() {
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
    assert_eq!(read(&mut queue, &file, 8192, PAGE + 1, NOWAIT), None, "one byte is not there");
    assert_eq!(devices(&fs), before);
    assert_eq!(fs.page_counts().cached_pages, 2, "an uncached read leaves what others brought");
    let latency = |fs: &Filesystem| {
        let named = fs.stats().latency.into_iter();
        named
            .filter(|(op, _)| op.name() == "cached_read")
            .map(|(_, times)| times.count)
            .sum::<u64>()
    };
    assert_eq!(latency(&fs), 4, "what was refused is no operation");
}

#[test]
fn a_cached_write_that_needs_nothing_is_done_at_once() {
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
    assert_eq!(file.stat().unwrap().size, truth.len() as u64);
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
fn an_uncached_write_is_done_at_once_where_somebody_else_brings_it_down() {
    let volume = TestVolume::new();
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &pattern(1 << 20));
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    assert!(write(&mut queue, &file, 0, &[1; 8192], IoFlags::UNCACHED));
    // Else the flusher may have the file when the next one wants it.
    file.sync_data().unwrap();
    fs.set_switches(Switches { uncached_flush: UncachedFlush::Inline, ..Switches::default() });
    assert!(!write(&mut queue, &file, 0, &[2; 8192], IoFlags::UNCACHED), "it would write itself");
    assert!(write(&mut queue, &file, 0, &[3; 8192], IoFlags::default()));
    let found = read(&mut queue, &file, 0, 8193, NOWAIT).unwrap();
    assert!(found[..8192] == [3; 8192] && found[8192] == pattern(8193)[8192]);
}

#[test]
fn a_cached_write_that_would_wait_changes_nothing() {
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
    assert!(write(&mut queue, &file, 0, &[1; 8192], none), "whole blocks, from the first on");
    refused(&mut queue, &file, 5000, &[1; 10_000], none);
    // What it changes in part is in memory now.
    let mut buf = [0; 10];
    file.read_at(12_288, &mut buf).unwrap();
    assert!(write(&mut queue, &file, 5000, &[2; 10_000], none));

    // Where its blocks go is in the trees.
    let in_place = fs.open_file(in_place).unwrap();
    refused(&mut queue, &in_place, 0, &[1; 8192], none);

    // What is to be stripped is not known, and then is.
    let options = QueueOptions { privileges: Privileges::Strip, ..QueueOptions::default() };
    let mut others = fs.queue(&options).unwrap();
    let capable = fs.open_file(capable).unwrap();
    refused(&mut others, &capable, 0, &[1; 8192], none);
    assert!(write(&mut queue, &capable, 0, &[1; 8192], none), "who may keep them may write");
    for _ in 0..2 {
        capable.write_as(0, &[2; 8192], Privileges::Strip).unwrap();
    }
    assert!(write(&mut others, &capable, 0, &[3; 8192], none));

    // A writer would be made to pause.
    let large = vec![4; 256 << 10];
    let mut at = 0;
    while fs.stats().memory.dirty_bytes + large.len() as u64 <= 3 << 20 {
        assert!(write(&mut queue, &file, at, &large, none), "{at}");
        at += large.len() as u64;
    }
    refused(&mut queue, &file, at, &large, none);
    fs.sync().unwrap();
    assert!(write(&mut queue, &file, 0, &large, none), "there is room again");
    drop((file, in_place, capable, queue, others));
    volume.reopen(fs);
}

#[test]
fn a_full_volume_is_not_made_room_in() {
    let volume = TestVolume::of(256 << 20, &butternut_mkfs::MkfsOptions::default());
    let fs = open(&volume, 64 << 20);
    let file = made(&fs, b"file", &[0; PAGE]);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let bytes = vec![7; 1 << 20];
    let mut at = 1 << 20;
    let before = devices(&fs).3;
    // Uncached, so that the cache is never what is full.
    let mut refusals = 0;
    while refusals < 200 && at < 512 << 20 {
        if write(&mut queue, &file, at, &bytes, IoFlags::UNCACHED) {
            (at, refusals) = (at + bytes.len() as u64, 0);
        } else {
            refusals += 1;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    assert!(at > 4 << 20 && refusals == 200, "{at}");
    assert_eq!(devices(&fs).3, before, "nobody committed for it");
    assert_eq!(file.size(), at);
    drop((file, queue));
    volume.reopen(fs);
}

#[test]
fn direct_requests_that_are_refused_count_as_nothing_else() {
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
    let counts = fs.lane_counts();
    assert_eq!(counts.nowait_again - before.nowait_again, 3);
    assert_eq!(butternut::LaneCounts { nowait_again: before.nowait_again, ..counts }, before);
    assert!(write(&mut queue, &file, 4096, &[1; PAGE], direct));
    assert_eq!(read(&mut queue, &file, 4096, PAGE, direct), Some(vec![1; PAGE]));
    let counts = fs.lane_counts();
    assert_eq!((counts.dio_write_shared, counts.dio_read_simple), (1, 1));
    assert_eq!((counts.dio_write_exclusive, counts.dio_read_general), (0, 0));
}

#[test]
fn a_direct_write_takes_the_space_that_is_there_and_makes_none() {
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
    // What each replaces is not free before a commit.
    let at = |n: usize| (n % 4 * MIB) as u64;
    let taken = (0..256).take_while(|n| {
        let block = vec![u8::try_from(*n).unwrap(); MIB];
        write(&mut queue, &file, at(*n), &block, IoFlags::DIRECT)
    });
    let taken = taken.count();
    assert!((1..256).contains(&taken), "{taken}");
    assert_eq!((fs.stats().commits, chunks(&fs)), (commits, before));
    let mut block = Buffer::zeroed(MIB);
    block.fill(77);
    queue.write(&file, at(taken), block, IoFlags::DIRECT, 0).unwrap();
    assert_eq!(reaped(&mut queue).result.unwrap(), MIB, "who waits has some made");
    drop(queue);
    let mut last = vec![0; MIB];
    assert_eq!(file.read_at(at(taken), &mut last).unwrap(), MIB);
    assert!(last.iter().all(|byte| *byte == 77));
    drop(file);
    volume.reopen(fs);
}

#[test]
fn a_direct_read_is_sent_once_it_is_known_where() {
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
    // Who may wait finds out.
    for at in [0, large, 2 * large] {
        queue.read(&file, at, Buffer::zeroed(PAGE), IoFlags::DIRECT, 0).unwrap();
        assert_eq!(reaped(&mut queue).result.unwrap(), PAGE);
    }
    let before = devices(&fs).0;
    let found = read(&mut queue, &file, 8192, PAGE, IoFlags::DIRECT);
    assert_eq!(found.as_deref(), Some(&bytes[8192..8192 + PAGE]));
    let found = read(&mut queue, &file, large, bytes_read, IoFlags::DIRECT).unwrap();
    assert!(found == bytes[1 << 20..2 << 20]);
    assert!(devices(&fs).0 - before <= 4, "data alone was read");
}

/// Lent memory has to be copied, and all that there is to copy to is in use.
#[test]
fn a_bounce_without_memory_is_refused() {
    use butternut_sys::scribble::Scribble;
    // A device that a ring reaches: what is done is not seen before somebody looks.
    let image = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    image.as_file().set_len(512 << 20).unwrap();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    butternut_mkfs::make(
        &FileDevice::open(image.path(), &how).unwrap(),
        &butternut_mkfs::MkfsOptions::default(),
    )
    .unwrap();
    let options = MountOptions { read_only: false, ..MountOptions::default() };
    let fs = Filesystem::open(&[image.path().into()], &options).unwrap();
    let file = made(&fs, b"file", &pattern(4 << 20));
    fs.sync().unwrap();
    let options = QueueOptions { bounce_bytes: 2 << 20, ..QueueOptions::default() };
    let mut queue = fs.queue(&options).unwrap();
    let memory = Scribble::new(128 << 10);
    let flags = IoFlags::DIRECT.with(NOWAIT);
    let mut write = |at: u64| queue.write(&file, at, memory.lend_part(0..128 << 10), flags, at);
    let refused =
        (0..32).map(|n| n * (128 << 10)).find_map(|at| write(at).err().map(|back| (at, back)));
    let (at, refused) = refused.expect("the memory has an end");
    assert_eq!((refused.error.errno(), refused.buffer.len()), (EAGAIN, 128 << 10));
    assert!(at >= 128 << 10, "the first found memory");
    let counts = fs.lane_counts();
    assert_eq!((counts.nowait_again, counts.dio_write_bounced), (1, at >> 17));
    let mut done = Vec::new();
    queue.reap(32, None, &mut done);
    assert!(done.iter().all(|done| done.result.is_ok()));
    queue.write(&file, at, memory.lend_part(0..128 << 10), flags, at).expect("there is some again");
}
