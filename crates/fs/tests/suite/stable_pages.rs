//! Memory that changes during a direct write: bounced and owned buffers, and writes through the
//! page cache, never get bad checksums; trusted borrowed buffers do.
//!
//! `BUTTERNUT_LONG=1` makes a million writes in each mode.

use butternut::device::{Device, FileDevice, OpenDevice};
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{Buffer, DirectStability, File, Filesystem, MountOptions, NewInode, Tunables};
use butternut_mkfs::MkfsOptions;
use butternut_sys::scribble::Scribble;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

const BLOCK: usize = 4096;
/// Blocks that are written together, or one by one.
const GROUP: usize = 4;
const GROUPS: usize = 1024;
const FILE_BYTES: usize = GROUPS * GROUP * BLOCK;
/// Requests in flight, each with separate memory.
const DEPTH: usize = 64;

/// The owner of the written memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Borrowed,
    /// Filled from memory that changes, and then owned by the request.
    Owned,
}

/// The results of the writes.
#[derive(Debug, Default)]
struct Tally {
    writes: u64,
    /// Blocks that could not be read after the round that wrote them.
    bad_blocks: u64,
    bounced: u64,
    zero_copy: u64,
    fallback: u64,
}

fn writes_wanted(sample: u64) -> u64 {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    if is_long { 1_000_000 } else { sample }
}

fn volume() -> NamedTempFile {
    let image = NamedTempFile::new_in("/dev/shm").unwrap();
    image.as_file().set_len(1 << 30).unwrap();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(image.path(), &how).unwrap();
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    image
}

fn findings(image: &NamedTempFile) -> Vec<String> {
    let how = OpenDevice::default();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image.path(), &how).unwrap());
    let options = butternut_check::CheckOptions { check_data_csum: true, ..Default::default() };
    let report = butternut_check::check(vec![device], &options).unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

/// Changes a byte of every block of some parts, repeatedly.
fn scribble_over(parts: &[Scribble], blocks: usize, stop: &AtomicBool) {
    let mut n = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        let at = n / parts.len() % blocks * BLOCK + n.wrapping_mul(811) % BLOCK;
        parts[n % parts.len()].scribble(at, n.to_le_bytes()[1]);
        n += 1;
    }
}

/// Waits for all requests in flight; returns the number of failures.
fn failures(queue: &mut Queue) -> u64 {
    let mut done = Vec::new();
    queue.reap(DEPTH, None, &mut done);
    done.iter().filter(|done| done.result.is_err()).count() as u64
}

/// Writes the whole file, its groups in some order, whole or block by block.
fn write_round(queue: &mut Queue, file: &File, parts: &[Scribble], memory: Memory, round: usize) {
    let mut write = |block: usize, blocks: usize| {
        let borrowed = parts[block % DEPTH].lend_part(0..blocks * BLOCK);
        let buffer = match memory {
            Memory::Borrowed => borrowed,
            Memory::Owned => {
                let mut own = queue.buffer(borrowed.len()).unwrap();
                borrowed.copy_to(0, &mut own);
                own
            }
        };
        queue.write(file, (block * BLOCK) as u64, buffer, IoFlags::DIRECT, 0).unwrap();
        if queue.outstanding() == DEPTH {
            assert_eq!(failures(queue), 0);
        }
    };
    for n in 0..GROUPS {
        let group = (n * 389 + round * 211) % GROUPS;
        if (group + round).is_multiple_of(4) {
            write(group * GROUP, GROUP);
        } else {
            (0..GROUP).for_each(|block| write(group * GROUP + block, 1));
        }
    }
    assert_eq!(failures(queue), 0);
}

/// Reads every block separately; returns the number of failed reads.
fn bad_blocks(queue: &mut Queue, file: &File) -> u64 {
    let mut bad = 0;
    for block in 0..GROUPS * GROUP {
        let buffer: Buffer = queue.buffer(BLOCK).unwrap();
        queue.read(file, (block * BLOCK) as u64, buffer, IoFlags::DIRECT, 0).unwrap();
        if queue.outstanding() == DEPTH {
            bad += failures(queue);
        }
    }
    bad + failures(queue)
}

/// Makes at least `writes` writes while a thread changes their memory. Each block is read back
/// after each write.
fn scribbled(stability: DirectStability, memory: Memory, writes: u64) -> Tally {
    let image = volume();
    let options = MountOptions::default().read_only(false);
    let fs = Filesystem::open(&[image.path().into()], &options).unwrap();
    fs.set_tunables(Tunables::default().direct_stability(stability));
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![0; FILE_BYTES]).unwrap();
    fs.sync().unwrap();
    let parts: Vec<Scribble> = (0..DEPTH).map(|_| Scribble::new(GROUP * BLOCK)).collect();
    let stop = AtomicBool::new(false);
    let before = fs.lane_counts();
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        scope.spawn(|| scribble_over(&parts, GROUP, &stop));
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        for round in 0.. {
            write_round(&mut queue, &file, &parts, memory, round);
            tally.bad_blocks += bad_blocks(&mut queue, &file);
            let now = fs.lane_counts();
            tally.bounced = now.dio_write_bounced - before.dio_write_bounced;
            tally.zero_copy = now.dio_write_zero_copy - before.dio_write_zero_copy;
            tally.fallback = now.dio_write_fallback - before.dio_write_fallback;
            tally.writes = tally.bounced + tally.zero_copy + tally.fallback;
            if tally.writes >= writes {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(file);
    fs.close().unwrap();
    if tally.bad_blocks == 0 {
        assert_eq!(findings(&image), Vec::<String>::new(), "{tally:?}");
    }
    tally
}

#[test]
fn bounced_memory_may_change() {
    let writes = writes_wanted(20_000);
    let tally = scribbled(DirectStability::Bounce, Memory::Borrowed, writes);
    assert_eq!((tally.bad_blocks, tally.zero_copy, tally.fallback), (0, 0, 0), "{tally:?}");
}

#[test]
fn owned_memory_is_written_without_a_copy() {
    let writes = writes_wanted(20_000);
    let tally = scribbled(DirectStability::Bounce, Memory::Owned, writes);
    assert_eq!((tally.bad_blocks, tally.bounced, tally.fallback), (0, 0, 0), "{tally:?}");
}

#[test]
fn memory_written_through_the_page_cache_may_change() {
    let writes = writes_wanted(10_000);
    let tally = scribbled(DirectStability::Buffered, Memory::Borrowed, writes);
    assert_eq!((tally.bad_blocks, tally.zero_copy, tally.bounced), (0, 0, 0), "{tally:?}");
}

#[test]
fn trusted_memory_that_changes_gets_bad_checksums() {
    // On one CPU the other thread may not run at the right moment.
    let bad = (0..20).find_map(|_| {
        let tally = scribbled(DirectStability::Trust, Memory::Borrowed, writes_wanted(20_000));
        assert_eq!((tally.bounced, tally.fallback), (0, 0), "{tally:?}");
        (tally.bad_blocks > 0).then_some(tally.bad_blocks)
    });
    assert!(bad.is_some(), "no write was torn: the other tests prove nothing");
}

/// Without a flusher, large cached writes go to the device directly and are not copied to pages
/// first.
#[test]
fn borrowed_memory_may_change_without_a_flusher() {
    const BLOCKS: usize = 128;
    let image = volume();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let fs = Filesystem::open(&[image.path().into()], &options).unwrap();
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let parts = [Scribble::new(BLOCKS * BLOCK)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| scribble_over(&parts, BLOCKS, &stop));
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        for n in 0..200 {
            let at = (n % 64 * BLOCKS * BLOCK) as u64;
            let borrowed = parts[0].lend_part(0..BLOCKS * BLOCK);
            queue.write(&file, at, borrowed, IoFlags::default(), 0).unwrap();
            assert_eq!(failures(&mut queue), 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(file);
    fs.close().unwrap();
    assert_eq!(findings(&image), Vec::<String>::new());
}
