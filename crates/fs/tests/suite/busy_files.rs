//! Files that others write: handles are opened without a wait for their writes, and what overwrites
//! replace becomes free while they go on.

use crate::volume::{TestVolume, failing_data, new};
use butternut::device::{Fault, Rule};
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{Allocate, File, FileId, Filesystem, MountOptions, Privileges};
use butternut_mkfs::MkfsOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BLOCK: usize = 4096;
const FILE_BYTES: usize = 4 << 20;

fn make(fs: &Filesystem) -> (FileId, File) {
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![1; FILE_BYTES]).unwrap();
    fs.sync().unwrap();
    (id, file)
}

fn at(block: usize) -> u64 {
    u64::try_from(block * BLOCK).unwrap()
}

/// A thread of a mount that waited here would serve no other request.
#[test]
fn a_file_is_opened_while_its_writes_are_held_by_a_device() {
    let volume = TestVolume::new();
    let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    let (id, file) = make(&fs);
    let held = device.add(Rule { fault: Fault::HeldWrite, ..failing_data(&fs) });
    let writer = file.clone();
    let writing = thread::spawn(move || {
        writer.write_direct(0, &[2; BLOCK], Privileges::Keep).unwrap();
    });
    device.wait_for_held_writes(1);
    // It waits for the write in flight with the inode locked exclusively.
    let punching = file.clone();
    let punched = thread::spawn(move || {
        punching.allocate(at(8)..at(9), Allocate::PunchHole).unwrap();
    });
    for _ in 0..64 {
        let other = fs.open_file(id).unwrap();
        assert_eq!(other.len(), FILE_BYTES as u64);
        thread::yield_now();
    }
    assert!(!punched.is_finished() && !writing.is_finished());
    assert!(device.remove(held));
    writing.join().unwrap();
    punched.join().unwrap();
    let mut have = vec![9; BLOCK];
    fs.open_file(id).unwrap().read_at(0, &mut have).unwrap();
    assert_eq!(have, [2; BLOCK]);
    drop(file);
    drop(volume.reopen(fs));
}

/// A handle that is opened after the state of a file was dropped shows the next state.
#[test]
fn a_file_that_is_opened_again_shows_what_was_written_before() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let (id, file) = make(&fs);
    drop(file);
    for round in 0..3_u8 {
        // So many that the file loses its state.
        for number in 0..5000 {
            let name = format!("other-{round}-{number}");
            let other = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
            fs.open_file(other).unwrap().write_at(0, &[round; 10]).unwrap();
            if number % 1000 == 0 {
                fs.sync().unwrap();
            }
        }
        let writer = fs.open_file(id).unwrap();
        let size = FILE_BYTES as u64 + u64::from(round);
        writer.write_at(size - 1, &[round]).unwrap();
        let reader = fs.open_file(id).unwrap();
        let mut have = [9];
        assert_eq!(reader.read_at(size - 1, &mut have).unwrap(), 1);
        assert_eq!((reader.len(), have), (size, [round]));
    }
    drop(volume.reopen(fs));
}

/// With assertions, a mebibyte of replaced space wakes the committer, and a writer frees four.
#[test]
fn replaced_space_is_free_while_overwrites_go_on() {
    let bytes = 256 << 20;
    for lane in [Lane::Blocking, Lane::Queue, Lane::Cached] {
        let volume = TestVolume::of(bytes, &MkfsOptions::default());
        let options = MountOptions::default().read_only(false).commit_seconds(3600);
        let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
        let (_, file) = make(&fs);
        let free_blocks = || fs.statfs().unwrap().blocks_free;
        let free_at_begin = free_blocks();
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        // As many blocks as the volume has, all in one file.
        for number in 0..bytes / BLOCK as u64 {
            let block = number * 37 % (FILE_BYTES / BLOCK) as u64;
            let content = [u8::try_from(number % 251).unwrap(); BLOCK];
            lane.write(&mut queue, &file, block * BLOCK as u64, &content);
            if number % 1024 == 0 {
                let used = free_at_begin.saturating_sub(free_blocks()) * BLOCK as u64;
                assert!(used <= 8 * FILE_BYTES as u64, "{lane:?}: {used} bytes are not free");
            }
        }
        drop(queue);
        drop(file);
        drop(volume.reopen(fs));
    }
}

/// Each file has the least that a file may have pending, so writers merge all the time.
#[test]
fn no_writer_merges_for_ever_beside_others() {
    let volume = TestVolume::new();
    let options = MountOptions::default().read_only(false).commit_seconds(3600).pending_bytes(0);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let (_, file) = make(&fs);
    file.write_at(0, &vec![1; 16 << 20]).unwrap();
    fs.sync().unwrap();
    let is_done = AtomicBool::new(false);
    let write = |number: u64| {
        let offset = number * 37 % 4096 * BLOCK as u64;
        file.write_direct(offset, &[2; BLOCK], Privileges::Keep).unwrap();
    };
    thread::scope(|scope| {
        for thread in 0..2 {
            let (write, is_done) = (&write, &is_done);
            scope.spawn(move || {
                let mut number = thread * 2048;
                while !is_done.load(Ordering::Acquire) {
                    write(number);
                    number += 1;
                }
            });
        }
        // Ends although the others never pause.
        (0..20_000).for_each(write);
        is_done.store(true, Ordering::Release);
    });
    drop(file);
    drop(volume.reopen(fs));
}

#[test]
fn pending_data_of_all_files_stays_within_its_bound() {
    let (bound, of_each, files) = (16 << 20, 8 << 20, 4);
    let volume = TestVolume::new();
    let options = MountOptions::default().read_only(false).commit_seconds(3600);
    let options = options.pending_bytes(bound);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let files: Vec<File> = (0..files)
        .map(|number| {
            let name = format!("file-{number}");
            let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            file.write_at(0, &vec![1; 32 << 20]).unwrap();
            file
        })
        .collect();
    fs.sync().unwrap();
    let blocks_max = (bound + of_each * files.len() as u64) / BLOCK as u64;
    let mut most = 0;
    for number in 0..4 * 8192_u64 {
        let offset = number * 37 % 8192 * BLOCK as u64;
        let file = &files[usize::try_from(number / 64).unwrap() % files.len()];
        file.write_direct(offset, &[2; BLOCK], Privileges::Keep).unwrap();
        if number % 64 == 0 {
            most = most.max(fs.stats().memory.pending_writes);
        }
    }
    assert!(most <= blocks_max, "{most} writes are pending, of {blocks_max}");
    assert!(most > of_each / BLOCK as u64, "the bound is one of all files");
    drop(files);
    drop(volume.reopen(fs));
}

#[derive(Clone, Copy, Debug)]
enum Lane {
    Blocking,
    Queue,
    Cached,
}

impl Lane {
    fn write(self, queue: &mut Queue, file: &File, offset: u64, bytes: &[u8]) {
        match self {
            Self::Blocking => {
                file.write_direct(offset, bytes, Privileges::Keep).unwrap();
            }
            Self::Queue => {
                let mut buffer = queue.buffer(bytes.len()).unwrap();
                buffer.copy_from_slice(bytes);
                queue.write(file, offset, buffer, IoFlags::DIRECT, 0).unwrap();
                let mut done = Vec::new();
                queue.reap(1, None, &mut done);
                assert!(done.iter().all(|done| done.result.is_ok()));
            }
            Self::Cached => {
                assert_eq!(
                    file.write_uncached(offset, bytes, Privileges::Keep).unwrap(),
                    bytes.len()
                );
            }
        }
    }
}
