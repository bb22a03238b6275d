//! Budgets of operations: heap allocations, device reads, and the device writes of a snapshot, none
//! of which grows with the number of files.
//!
//! `BUTTERNUT_LONG=1` takes a snapshot of 100,000 files instead of 20,000.

#![allow(clippy::unwrap_used, reason = "tests panic on failure")]

mod image;

use butternut::device::{Device, MemoryDevice, Record, RecordingDevice};
use butternut::stats::Counters;
use butternut::{
    DevicePath, FIRST_ENTRY, FileId, Filesystem, Follow, MountOptions, NewInode, SnapshotAccess,
};
use butternut_mkfs::MkfsOptions;
use butternut_sys::allocations::{CountingAllocator, allocations_of};
use image::{Image, image_of};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const DEEP: &[u8] = b"d1/d2/d3/d4/d5/d6/d7/file";

/// Makes `files` files in one directory, and one file eight components down.
fn fill(root: &Path, files: usize) {
    let many = root.join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..files {
        std::fs::write(many.join(format!("file-{number:05}")), number.to_string()).unwrap();
    }
    let deep = root.join("d1/d2/d3/d4/d5/d6/d7");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), "deep").unwrap();
}

fn image(files: usize) -> Image {
    image_of(&["--nodesize", "4096"], |root| fill(root, files))
}

fn open(image: &Image) -> Filesystem {
    Filesystem::open(&[DevicePath::from(&image.path)], &MountOptions::default()).unwrap()
}

/// Counts the device reads of a call.
fn reads_of<R>(filesystem: &Filesystem, call: impl FnOnce() -> R) -> (u64, R) {
    let before: Counters = filesystem.counters();
    let result = call();
    (filesystem.counters().device_reads - before.device_reads, result)
}

#[test]
fn device_reads_of_an_open_do_not_grow_with_the_number_of_files() {
    let (few, many) = (image(10), image(5000));
    let few = open(&few).counters().device_reads;
    let many = open(&many).counters().device_reads;
    assert!(many <= few + 1, "{few} reads for 10 files, {many} for 5000");
    assert!(many <= 12, "{many} reads");
}

#[test]
fn a_path_of_eight_names_costs_few_reads_cold_and_none_warm() {
    let image = image(5000);
    let filesystem = open(&image);
    let (cold, id) = reads_of(&filesystem, || filesystem.resolve(DEEP, Follow::Last).unwrap());
    // Three levels: the root once, then at most two blocks for each name.
    assert!((1..=17).contains(&cold), "{cold} reads cold");
    let (warm, again) = reads_of(&filesystem, || filesystem.resolve(DEEP, Follow::Last).unwrap());
    assert_eq!((warm, again), (0, id));
    let (stat, _) = reads_of(&filesystem, || filesystem.stat(id).unwrap());
    assert!(stat <= 1, "{stat} reads for stat");
}

#[test]
fn listing_reads_each_leaf_once() {
    let image = image(5000);
    let filesystem = open(&image);
    let dir = filesystem.resolve(b"many", Follow::Last).unwrap();
    let (reads, count) =
        reads_of(&filesystem, || filesystem.read_dir(dir, FIRST_ENTRY).unwrap().count());
    assert_eq!(count, 5000);
    // An index entry takes 25 + 30 + 10 bytes, and a leaf has 61 of them. mkfs fills all leaves; in
    // the worst case they are half full.
    assert!(reads <= 5000 / 30 + 4, "{reads} reads");
}

#[test]
fn cached_lookups_allocate_nothing() {
    let image = image(5000);
    let filesystem = open(&image);
    let dir = filesystem.resolve(b"many", Follow::Last).unwrap();
    let work = || {
        let id = filesystem.lookup(dir, b"file-02500").unwrap();
        let stat = filesystem.stat(id).unwrap();
        let path = filesystem.resolve(DEEP, Follow::Last).unwrap();
        (id, stat.size, path)
    };
    work();
    let (allocations, _) = allocations_of(work);
    assert_eq!(allocations, 0);
}

#[test]
fn cookies_continue_a_listing_after_a_reopen() {
    let image = image(300);
    let filesystem = open(&image);
    let dir = filesystem.resolve(b"many", Follow::Last).unwrap();
    let all: Vec<_> = filesystem.read_dir(dir, 0).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(all.len(), 302);
    assert_eq!((all[0].name.as_slice(), all[1].name.as_slice()), (&b"."[..], &b".."[..]));
    let reopened = open(&image);
    for (place, entry) in all.iter().enumerate() {
        let next = reopened.read_dir(dir, entry.cookie).unwrap().next().transpose().unwrap();
        assert_eq!(next.as_ref(), all.get(place + 1));
    }
}

#[test]
fn many_threads_read_one_filesystem_concurrently() {
    let image = image(2000);
    // A cache of a few blocks, so that threads evict blocks that other threads use.
    let options = MountOptions::default().node_cache_bytes(256 << 10).inode_cache_entries(64);
    let filesystem = Filesystem::open(&[DevicePath::from(&image.path)], &options).unwrap();
    let dir = filesystem.resolve(b"many", Follow::Last).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let filesystem = filesystem.clone();
            scope.spawn(move || {
                for step in 0..1000 {
                    let number = (step * 37 + thread * 251) % 2000;
                    let name = format!("file-{number:05}");
                    let id = filesystem.lookup(dir, name.as_bytes()).unwrap();
                    let text = number.to_string();
                    assert_eq!(filesystem.stat(id).unwrap().size, text.len() as u64);
                    let mut bytes = [0; 16];
                    let file = filesystem.open_file(id).unwrap();
                    let read = file.read_at(0, &mut bytes).unwrap();
                    assert_eq!(&bytes[..read], text.as_bytes());
                }
                assert_eq!(filesystem.read_dir(dir, FIRST_ENTRY).unwrap().count(), 2000);
            });
        }
    });
}

/// Returns the CPU time of this thread in nanoseconds, which does not include other work of the
/// machine.
fn own_nanos() -> u128 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap()).as_nanos()
}

/// Returns CPU nanoseconds per call: the minimum of some rounds.
fn best_nanos(calls: u32, mut call: impl FnMut()) -> u128 {
    let round = |call: &mut dyn FnMut()| {
        let start = own_nanos();
        (0..calls).for_each(|_| call());
        (own_nanos() - start) / u128::from(calls)
    };
    (0..20).map(|_| round(&mut call)).min().unwrap()
}

fn nanos_per_component(filesystem: &Filesystem, calls: u32) -> u128 {
    let resolve = || {
        std::hint::black_box(filesystem.resolve(DEEP, Follow::Last).unwrap());
    };
    best_nanos(calls, resolve) / 8
}

#[test]
fn a_cached_component_takes_less_than_two_microseconds() {
    let image = image(5000);
    let nanos = nanos_per_component(&open(&image), 500);
    assert!(nanos < 2000, "{nanos} ns per component");
}

#[test]
fn lookups_of_two_threads_do_not_slow_each_other_down() {
    let image = image(5000);
    let filesystem = open(&image);
    let alone = nanos_per_component(&filesystem, 500);
    let together = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| nanos_per_component(&filesystem, 5000)));
        threads.map(|thread| thread.join().unwrap()).into_iter().max().unwrap()
    });
    assert!(together < alone * 3, "{alone} ns alone, {together} ns together");
}

#[test]
fn a_mebibyte_of_one_extent_takes_one_device_read() {
    let image = image_of(&[], |root| {
        let bytes: Vec<u8> = (0..4 << 20).map(|i: u32| i.to_le_bytes()[(i % 3) as usize]).collect();
        std::fs::write(root.join("big"), bytes).unwrap();
    });
    let filesystem = open(&image);
    let id = filesystem.resolve(b"big", Follow::Last).unwrap();
    let file = filesystem.open_file(id).unwrap();
    let mut memory = vec![0; 1 << 20];
    file.read_at(0, &mut memory[..4096]).unwrap();
    let (reads, bytes) = reads_of(&filesystem, || file.read_at(1 << 20, &mut memory).unwrap());
    assert_eq!((reads, bytes), (1, 1 << 20));
}

/// The device operations and the allocations of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SnapshotCost {
    flushes: u64,
    writes: u64,
    bytes: u64,
    allocations: u64,
}

/// A volume in memory that records what is written.
struct Recorded {
    device: Arc<RecordingDevice>,
    filesystem: Filesystem,
}

impl Recorded {
    fn new() -> Self {
        let memory = MemoryDevice::new("memory", 1 << 30);
        butternut_mkfs::make(&memory, &MkfsOptions::default()).unwrap();
        let device = Arc::new(RecordingDevice::new(Arc::new(memory)));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        Self { device, filesystem: Filesystem::open_devices(devices, &options).unwrap() }
    }

    /// Makes a subvolume with empty files.
    fn subvolume(&self, name: &str, files: u32) -> u64 {
        let (fs, new) = (&self.filesystem, NewInode::new(0o644));
        let id = fs.create_subvolume(fs.root(), name.as_bytes(), &new).unwrap();
        let root = FileId::root_of(id);
        for number in 0..files {
            fs.create(root, format!("file-{number}").as_bytes(), &new).unwrap();
        }
        fs.sync().unwrap();
        id
    }

    fn snapshot(&self, source: u64, name: &str, access: SnapshotAccess) -> SnapshotCost {
        let (fs, before) = (&self.filesystem, self.device.position());
        let (allocations, made) =
            allocations_of(|| fs.snapshot(source, fs.root(), name.as_bytes(), access));
        made.unwrap();
        let mut cost = SnapshotCost { allocations, ..SnapshotCost::default() };
        for record in &self.device.recording().log()[before..] {
            match record {
                Record::Flush => cost.flushes += 1,
                Record::Discard { .. } => panic!("nothing was freed"),
                Record::Write { bytes, .. } => {
                    cost.writes += 1;
                    cost.bytes += bytes.len() as u64;
                }
            }
        }
        cost
    }
}

/// The root node of the tree is copied, whatever is below it. A copy adds a reference to each child
/// of the node, of which there are at most 493: so the leaves of the extent tree that have them are
/// written, within the same device writes.
#[test]
fn a_snapshot_of_many_files_costs_what_one_of_few_costs() {
    /// Both copies of the leaves of the extent tree with the references of the root's children.
    const REFERENCE_BYTES: u64 = 2 * 16 * (16 << 10);
    const ALLOCATIONS_MAX: u64 = 600;
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let volume = Recorded::new();
    let few = volume.subvolume("few", 10);
    let many = volume.subvolume("many", if is_long { 100_000 } else { 20_000 });
    let (read_write, read_only) = (SnapshotAccess::ReadWrite, SnapshotAccess::ReadOnly);
    for (round, access) in [read_write, read_only, read_write].into_iter().enumerate() {
        let few = volume.snapshot(few, &format!("few-{round}"), access);
        let many = volume.snapshot(many, &format!("many-{round}"), access);
        let what = format!("{few:?}, {many:?}");
        assert_eq!((few.flushes, few.writes), (2, 6), "{what}");
        assert_eq!((many.flushes, many.writes), (2, 6), "{what}");
        assert!(many.bytes <= few.bytes + REFERENCE_BYTES, "{what}");
        assert!(many.allocations <= ALLOCATIONS_MAX, "{what}");
    }
    volume.filesystem.close().unwrap();
}
