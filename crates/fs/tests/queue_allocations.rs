//! Direct requests of one block allocate no heap memory, once the state of their file is cached.

#![allow(clippy::unwrap_used, reason = "tests panic on failure")]

use butternut::device::{FileDevice, OpenDevice};
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{AttributeFlags, File, Filesystem, MountOptions, NewInode};
use butternut_mkfs::MkfsOptions;
use butternut_sys::allocations::{CountingAllocator, allocations_of};
use butternut_sys::scribble::Scribble;
use tempfile::NamedTempFile;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BLOCK: usize = 4096;
const DEPTH: u64 = 32;

fn opened(image: &NamedTempFile) -> Filesystem {
    image.as_file().set_len(512 << 20).unwrap();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(image.path(), &how).unwrap();
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    drop(device);
    // No commit happens meanwhile.
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    Filesystem::open(&[image.path().into()], &options).unwrap()
}

fn made(fs: &Filesystem, flags: AttributeFlags) -> File {
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
    fs.set_attribute_flags(id, flags).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![7; 1 << 20]).unwrap();
    fs.sync().unwrap();
    file
}

/// Makes rounds of requests; returns the allocations of the last one.
fn rounds(queue: &mut Queue, request: impl Fn(&mut Queue, u64)) -> u64 {
    let mut done = Vec::with_capacity(2 * usize::try_from(DEPTH).unwrap());
    let mut last = 0;
    for round in 0..20 {
        (last, ()) = allocations_of(|| {
            for n in 0..DEPTH {
                request(queue, (n * 7 + round * 3) % 256 * BLOCK as u64);
            }
            while queue.outstanding() > 0 {
                queue.reap(1, None, &mut done);
            }
            assert!(done.drain(..).all(|done| matches!(done.result, Ok(BLOCK))));
        });
    }
    last
}

#[test]
fn a_direct_read_of_one_block_allocates_nothing() {
    let image = NamedTempFile::new_in("/dev/shm").unwrap();
    let fs = opened(&image);
    let file = made(&fs, AttributeFlags::default());
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let allocations = rounds(&mut queue, |queue, at| {
        let buffer = queue.buffer(BLOCK).unwrap();
        queue.read(&file, at, buffer, IoFlags::DIRECT, at).unwrap();
    });
    assert_eq!(allocations, 0);
    assert!(fs.lane_counts().dio_read_simple > 100);
}

/// The read goes through a bounce buffer of the queue, and is in flight like any other.
#[test]
fn a_direct_read_into_unaligned_memory_allocates_nothing() {
    const ROOM: usize = BLOCK + 64;
    let image = NamedTempFile::new_in("/dev/shm").unwrap();
    let fs = opened(&image);
    let file = made(&fs, AttributeFlags::default());
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let memory = Scribble::new(256 * ROOM);
    let read = |queue: &mut Queue, at: u64| {
        let place = usize::try_from(at).unwrap() / BLOCK * ROOM + 3;
        let buffer = memory.lend_part(place..place + BLOCK);
        queue.read(&file, at, buffer, IoFlags::DIRECT, at).unwrap();
    };
    let allocations = rounds(&mut queue, read);
    assert_eq!(allocations, 0);
    assert!(fs.lane_counts().dio_read_simple > 100);
    read(&mut queue, 0);
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(1, None, &mut done);
    }
    assert!(done.remove(0).buffer[..] == [7; BLOCK]);
}

#[test]
fn a_direct_overwrite_in_place_allocates_nothing() {
    let image = NamedTempFile::new_in("/dev/shm").unwrap();
    let fs = opened(&image);
    let file = made(&fs, AttributeFlags::NOCOW);
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let before = fs.counters();
    let allocations = rounds(&mut queue, |queue, at| {
        let buffer = queue.buffer(BLOCK).unwrap();
        queue.write(&file, at, buffer, IoFlags::DIRECT, at).unwrap();
    });
    assert_eq!(allocations, 0);
    let counts = fs.lane_counts();
    assert_eq!((counts.dio_write_shared, counts.dio_write_exclusive), (20 * DEPTH, 0));
    let written = fs.counters().device_bytes_written - before.device_bytes_written;
    assert_eq!(written, 20 * DEPTH * BLOCK as u64, "in place only");
}
