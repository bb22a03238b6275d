//! Syncs of files that other threads write direct without a pause: what was acknowledged before a
//! sync is on the devices after it, and what comes later follows with the next commit.

use crate::volume::{TestVolume, new};
use butternut::{File, Filesystem, MountOptions, Privileges};
use butternut_mkfs::MkfsOptions;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 96;
const THREADS: usize = 3;

/// For each block, how often it was written, as acknowledged. It contains that number.
struct Acknowledged([AtomicU8; BLOCKS]);

impl Acknowledged {
    fn new() -> Self {
        Self([const { AtomicU8::new(1) }; BLOCKS])
    }

    fn now(&self) -> Vec<u8> {
        self.0.iter().map(|count| count.load(Ordering::Acquire)).collect()
    }

    /// Overwrites each block of a thread once, in an order that joins few of them.
    fn write_round(&self, file: &File, thread: usize) {
        for number in 0..BLOCKS {
            let block = number * 37 % BLOCKS;
            if block % THREADS == thread {
                let next = self.0[block].load(Ordering::Relaxed) + 1;
                let offset = u64::try_from(block * BLOCK).unwrap();
                file.write_direct(offset, &[next; BLOCK], Privileges::Keep).unwrap();
                self.0[block].store(next, Ordering::Release);
            }
        }
    }
}

fn make(volume: &TestVolume, commit_seconds: u32) -> (Filesystem, File) {
    let options = MountOptions::default().read_only(false).commit_seconds(commit_seconds);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![1; BLOCKS * BLOCK]).unwrap();
    fs.sync().unwrap();
    (fs, file)
}

/// Runs `sync` again and again while threads overwrite the file, until each has written `rounds`
/// times.
fn under_writers(file: &File, rounds: usize, acknowledged: &Acknowledged, mut sync: impl FnMut()) {
    let is_done = [const { AtomicBool::new(false) }; THREADS];
    thread::scope(|scope| {
        for (number, is_done) in is_done.iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..rounds {
                    acknowledged.write_round(file, number);
                }
                is_done.store(true, Ordering::Release);
            });
        }
        while !is_done.iter().all(|done| done.load(Ordering::Acquire)) {
            sync();
        }
    });
}

fn compare(volume: &TestVolume, before: &[u8], how: &str) {
    let fs = Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap();
    let file = fs.open_file(fs.lookup(fs.root(), b"file").unwrap()).unwrap();
    let mut bytes = vec![0; BLOCKS * BLOCK];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    for (block, (have, want)) in bytes.chunks(BLOCK).zip(before).enumerate() {
        let first = have[0];
        assert!(first >= *want, "{how}: block {block} has write {first}, {want} was acknowledged");
        assert!(have.iter().all(|byte| *byte == first), "{how}: block {block} is torn");
    }
}

#[test]
fn a_sync_has_what_was_acknowledged_before_it() {
    for is_whole in [true, false] {
        let volume = TestVolume::of(192 << 20, &MkfsOptions::default());
        let (fs, file) = make(&volume, 0);
        let acknowledged = Acknowledged::new();
        under_writers(&file, 200, &acknowledged, || {
            let before = acknowledged.now();
            if is_whole { fs.sync() } else { file.sync_all() }.unwrap();
            let crashed = volume.copy();
            compare(&crashed, &before, if is_whole { "sync" } else { "fsync" });
        });
        drop(file);
        drop(volume.reopen(fs));
        compare(&volume, &acknowledged.now(), "close");
    }
}

#[test]
fn what_a_sync_leaves_behind_is_committed_at_the_next_interval() {
    let volume = TestVolume::of(192 << 20, &MkfsOptions::default());
    let (fs, file) = make(&volume, 1);
    let acknowledged = Acknowledged::new();
    for _ in 0..4 {
        under_writers(&file, 8, &acknowledged, || fs.sync().unwrap());
        // No operation follows that would ask for a commit.
        while fs.stats().memory.pending_writes > 0 {
            thread::sleep(Duration::from_millis(10));
        }
    }
    drop(file);
    drop(volume.reopen(fs));
    compare(&volume, &acknowledged.now(), "close");
}
