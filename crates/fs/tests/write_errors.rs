//! Devices that fail while they are written to: what was promised stays, nothing more is written,
//! and what can be read is read.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(dead_code, reason = "what volumes of tests share, not every test uses")]

mod volume;

use butternut::device::{Device, Fault, FaultyDevice, Rule};
use butternut::format::chunk::BlockGroupFlags;
use butternut::{
    Allocate, AttributeFlags, ExtentKind, File, FileId, Filesystem, MountOptions, Privileges,
    RenameFlags, SetAttributes, SetXattr,
};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_volume::chain;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use volume::{TestVolume, names, new};

fn faulty(volume: &TestVolume) -> (Arc<FaultyDevice>, Filesystem) {
    let device = Arc::new(FaultyDevice::new(volume.devices().remove(0), 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = MountOptions { read_only: false, ..MountOptions::default() };
    (device, Filesystem::open_devices(devices, &options).unwrap())
}

/// Lets writes of file data fail, and of nothing else.
fn failing_data(fs: &Filesystem) -> Rule {
    let chunks = fs.inspect().chunks();
    let chunk = chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap();
    let at = chunk.stripes[0].1;
    Rule::at(at..at + chunk.bytes, Fault::WriteError)
}

#[test]
fn after_a_commit_that_failed_nothing_is_written_and_all_is_read() {
    for fault in [Fault::WriteError, Fault::FlushError] {
        let volume = TestVolume::new();
        let (device, fs) = faulty(&volume);
        let root = fs.root();
        let id = fs.create(root, b"kept", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, b"kept").unwrap();
        fs.sync().unwrap();
        fs.create(root, b"lost", &new(0o644)).unwrap();
        device.add(Rule::everywhere(fault));
        assert_eq!(fs.sync().unwrap_err().errno(), 5);
        device.clear();

        assert!(!fs.is_writable());
        let error = fs.create(root, b"more", &new(0o644)).unwrap_err();
        assert_eq!(error.errno(), 30, "{error:?}");
        assert!(chain(&error).contains("memory: cannot "), "{}", chain(&error));
        let errnos = [
            fs.unlink(root, b"kept").unwrap_err().errno(),
            fs.rename((root, b"kept"), (root, b"x"), RenameFlags::default()).unwrap_err().errno(),
            fs.set_attributes(id, &SetAttributes::size(0)).unwrap_err().errno(),
            fs.set_xattr(id, b"user.a", b"b", SetXattr::Either).unwrap_err().errno(),
            file.write_at(0, b"x").unwrap_err().errno(),
            fs.sync().unwrap_err().errno(),
        ];
        assert_eq!(errnos, [30; 6]);
        let mut bytes = [0; 8];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), 4);
        assert_eq!(names(&fs, root), ["kept", "lost"]);

        drop(file);
        drop(fs);
        volume.check();
        let fs = volume.open();
        assert_eq!(names(&fs, root), ["kept"]);
        volume.reopen(fs);
    }
}

/// A file with space that is set aside for it, and where on the device that lies.
fn preallocated(fs: &Filesystem, bytes: u64) -> (File, u64) {
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.allocate(0..bytes, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    let first = file.extents(0..bytes).next().unwrap().unwrap();
    let ExtentKind::Prealloc { logical } = first.kind else { panic!("{first:?}") };
    let chunks = fs.inspect().chunks();
    let mut data = chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let of = |start: u64, bytes: u64| (start..start + bytes).contains(&logical);
    let chunk = data.find(|chunk| of(chunk.logical.0, chunk.bytes)).unwrap();
    (file, chunk.stripes[0].1 + (logical - chunk.logical.0))
}

/// What is written over in place, with checksums that are in no tree, would contradict them where
/// only a part of the write succeeds.
#[test]
fn a_bad_sector_in_preallocated_space_leaves_the_blocks_beside_it_readable() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let (file, at) = preallocated(&fs, 65_536);
    file.write_direct(0, &[1; 16_384], Privileges::Keep).unwrap();
    file.write_at(0, &[2; 16_384]).unwrap();
    device.add(Rule::at(at + 12_288..at + 16_384, Fault::WriteError));
    // The second write goes elsewhere, where nothing fails.
    file.sync_all().unwrap();
    device.clear();
    let mut bytes = vec![9; 16_384];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 2));
    drop(file);
    fs.close().unwrap();
    volume.check();
}

/// The same, while the first write is still in flight as the second is made.
#[test]
fn a_block_that_is_written_again_during_writeback_to_preallocated_space_goes_elsewhere() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let (file, at) = preallocated(&fs, 1 << 20);
    let slow = Fault::Delay(Duration::from_millis(20));
    device.add(Rule::at(at..at + (1 << 20), slow));
    std::thread::scope(|scope| {
        file.write_at(0, &vec![0; 1 << 20]).unwrap();
        let syncing = scope.spawn(|| file.sync_all());
        for round in 1..=8 {
            for block in 0..256 {
                file.write_at(block << 12, &[round; 4096]).unwrap();
            }
        }
        syncing.join().unwrap().unwrap();
    });
    device.clear();
    // What is written in place now has been written in place before.
    device.add(Rule::at(at..at + (1 << 20), Fault::WriteError));
    file.sync_all().unwrap();
    device.clear();
    let mut bytes = vec![9; 1 << 20];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 8));
    drop(file);
    fs.close().unwrap();
    volume.check();
}

/// Readahead has looked up the checksums of what it reads; a write must not change that under it.
#[test]
fn a_write_beside_readahead_is_no_corruption_of_the_device() {
    const BYTES: u64 = 4 << 20;
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let (device, fs) = faulty(&volume);
    let (file, at) = preallocated(&fs, BYTES);
    // Past the page cache, and in no tree.
    file.write_direct(0, &vec![1; 4 << 20], Privileges::Keep).unwrap();
    let rule = device.add(Rule::at(at + (512 << 10)..at + BYTES, Fault::HeldRead));
    let mut bytes = vec![0; 64 << 10];
    for part in 0..7 {
        file.read_at(part << 16, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 1));
    }
    device.wait_for_held_reads(1);
    file.write_at(512 << 10, &vec![2; 2 << 20]).unwrap();
    let written = || device.counters().now().write_bytes;
    let before = written();
    let syncing = std::thread::spawn({
        let file = file.clone();
        move || file.sync_all()
    });
    while !syncing.is_finished() && written() - before < 2 << 20 {
        sleep(Duration::from_millis(1));
    }
    device.remove(rule);
    syncing.join().unwrap().unwrap();
    let mut bytes = vec![0; 4 << 20];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    let is_new = |at: usize| (512 << 10..2560 << 10).contains(&at);
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if is_new(at) { 2 } else { 1 }));
    drop(file);
    assert_eq!(fs.stats().devices[0].corruption_errors, 0, "nothing is wrong with the device");
    fs.close().unwrap();
    volume.check();
}

#[test]
fn data_that_cannot_be_written_is_told_to_who_syncs_its_file() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &[7; 8192]).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[8; 8192]).unwrap();
    device.add(Rule::everywhere(Fault::WriteError));
    assert_eq!(file.sync_all().unwrap_err().errno(), 5);
    device.clear();
    let mut bytes = [0; 8192];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8192], "the range reads as before");
    drop((file, fs));
    volume.check();
}

#[test]
fn data_that_was_lost_is_told_once_through_every_handle() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let other_id = fs.create(fs.root(), b"other", &new(0o644)).unwrap();
    let handles = [0; 3].map(|_| fs.open_file(id).unwrap());
    let clone = handles[0].clone();
    let other = fs.open_file(other_id).unwrap();
    handles[0].write_at(0, &[7; 8192]).unwrap();
    other.write_at(0, &[7; 8192]).unwrap();
    fs.sync().unwrap();

    handles[1].write_at(0, &[8; 8192]).unwrap();
    let rule = device.add(failing_data(&fs));
    // The first to sync brings the data down; the others come when the device is well again.
    assert_eq!(handles[2].sync_all().unwrap_err().errno(), 5);
    device.remove(rule);
    for handle in &handles[..2] {
        assert_eq!(handle.sync_all().unwrap_err().errno(), 5);
    }
    for handle in handles.iter().chain([&clone, &fs.open_file(id).unwrap(), &other]) {
        handle.sync_all().unwrap();
    }
    assert_eq!(fs.sync().unwrap_err().errno(), 5, "a sync of all files is told besides");
    fs.sync().unwrap();
    fs.sync_names().unwrap();

    // A handle that comes later is told what no other was.
    other.write_at(0, &[8; 8192]).unwrap();
    drop(other);
    let rule = device.add(failing_data(&fs));
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    device.remove(rule);
    let later = fs.open_file(other_id).unwrap();
    assert_eq!(later.sync_all().unwrap_err().errno(), 5);
    later.sync_all().unwrap();
    fs.open_file(other_id).unwrap().sync_all().unwrap();
    drop((handles, clone, later));
    fs.close().unwrap();
    volume.check();
}

#[test]
fn data_that_was_lost_is_told_after_any_number_of_other_files_were_closed() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &[7; 8192]).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[8; 8192]).unwrap();
    drop(file);
    let rule = device.add(failing_data(&fs));
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    device.remove(rule);
    // More than keep their state without a handle.
    for number in 0..5000 {
        let name = format!("other {number}");
        let other = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
        fs.open_file(other).unwrap().write_at(0, b"x").unwrap();
        if number % 1000 == 999 {
            fs.sync().unwrap();
        }
    }
    for number in 0..5000 {
        let name = format!("other {number}");
        let other = fs.lookup(fs.root(), name.as_bytes()).unwrap();
        drop(fs.open_file(other).unwrap());
    }
    assert_eq!(fs.open_file(id).unwrap().sync_all().unwrap_err().errno(), 5);
    fs.open_file(id).unwrap().sync_all().unwrap();
    fs.close().unwrap();
    volume.check();
}

#[test]
fn closing_fails_for_data_that_was_lost_and_told_to_nothing() {
    for is_told in [false, true] {
        let volume = TestVolume::new();
        let (device, fs) = faulty(&volume);
        let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        fs.sync().unwrap();
        file.write_at(0, &[8; 8192]).unwrap();
        let rule = device.add(failing_data(&fs));
        // A rename over another file brings the data down, and is not told how that went.
        fs.create(fs.root(), b"name", &new(0o644)).unwrap();
        fs.rename((fs.root(), b"file"), (fs.root(), b"name"), RenameFlags::default()).unwrap();
        device.remove(rule);
        if is_told {
            assert_eq!(file.sync_all().unwrap_err().errno(), 5);
        }
        // What syncs names takes no error from what is to be told of it.
        fs.sync_names().unwrap();
        drop(file);
        assert_eq!(fs.close().is_err(), !is_told);
        volume.check();
    }
}

#[test]
fn closing_fails_for_data_that_was_lost_behind_a_sync_that_told_of_an_earlier_loss() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let root = fs.root();
    let id = fs.create(root, b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    fs.create(root, b"name", &new(0o644)).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[8; 8192]).unwrap();
    let rule = device.add(failing_data(&fs));
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    // A rename over another file brings the data down, and is not told how that went.
    file.write_at(0, &[9; 8192]).unwrap();
    fs.rename((root, b"file"), (root, b"name"), RenameFlags::default()).unwrap();
    device.remove(rule);
    drop(file);
    assert!(fs.close().is_err(), "nothing was told of the second loss");
    volume.check();
}

#[test]
fn a_flush_that_fails_after_a_write_in_place_ends_all_writing() {
    const NO_COW: u32 = 0x0080_0000;
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(NO_COW)).unwrap();
    let file = fs.open_file(id).unwrap().leaving_times();
    file.write_at(0, &[7; 8192]).unwrap();
    file.sync_all().unwrap();
    file.write_direct(0, &[8; 8192], Privileges::Keep).unwrap();
    device.add(Rule::everywhere(Fault::FlushError));
    assert_eq!(file.sync_all().unwrap_err().errno(), 5);
    device.clear();
    assert!(!fs.is_writable(), "what the device lost cannot be told");
    assert!(file.sync_all().is_err());
    drop((file, fs));
    volume.check();
}

#[test]
fn the_first_failure_that_a_commit_tolerates_is_on_record_when_the_commit_returns() {
    let options = MkfsOptions { metadata: Some(Profile::Dup), ..MkfsOptions::default() };
    let volume = TestVolume::of(512 << 20, &options);
    let (device, fs) = faulty_without_cache(&volume, 0);
    let chunks = fs.inspect().chunks();
    let metadata =
        chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::METADATA)).unwrap();
    let second = metadata.stripes[1].1;
    device.add(Rule::at(second..second + metadata.bytes, Fault::WriteError));
    fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.sync().unwrap();
    assert!(fs.stats().devices[0].write_errors > 0, "a copy of each block is missed");
    // As the power is cut: no later commit has written it down.
    let cut = volume.copy();
    // One device is read for its counts when it is opened for writing.
    let read = cut.open();
    assert_eq!(names(&read, read.root()), ["file"]);
    assert!(read.stats().devices[0].write_errors > 0, "nothing on the volume tells of the failure");
}

const EXTENTS: u64 = 600;
const ATTRIBUTES: u32 = 1000;

fn attribute(number: u32) -> Vec<u8> {
    format!("user.{number}").into_bytes()
}

/// A file that is written in place, whose extents lie in several leaves; and another inode, whose
/// attributes push these leaves out of the smallest node cache ([`push_out`]).
fn file_of_many_leaves(volume: &TestVolume) -> (FileId, FileId) {
    const NO_COW: u32 = 0x0080_0000;
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(NO_COW)).unwrap();
    let file = fs.open_file(id).unwrap();
    // Extents of a block each: every second block of the file.
    for number in 0..EXTENTS {
        file.write_at(number * 8192, &[1; 4096]).unwrap();
    }
    let other = fs.create(fs.root(), b"other", &new(0o644)).unwrap();
    for number in 0..ATTRIBUTES {
        fs.set_xattr(other, &attribute(number), &[7; 3900], SetXattr::Create).unwrap();
    }
    drop(file);
    fs.close().unwrap();
    (id, other)
}

fn push_out(fs: &Filesystem, other: FileId) {
    for number in (0..ATTRIBUTES).chain(0..ATTRIBUTES) {
        assert!(fs.xattr(other, &attribute(number)).is_ok());
    }
}

fn faulty_without_cache(
    volume: &TestVolume,
    commit_seconds: u32,
) -> (Arc<FaultyDevice>, Filesystem) {
    let device = Arc::new(FaultyDevice::new(volume.devices().remove(0), 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = MountOptions {
        read_only: false,
        node_cache_bytes: 1,
        commit_seconds,
        ..MountOptions::default()
    };
    (device, Filesystem::open_devices(devices, &options).unwrap())
}

#[test]
fn dirty_data_outlives_metadata_that_cannot_be_read_for_a_while() {
    let volume = TestVolume::new();
    let (id, other) = file_of_many_leaves(&volume);
    let (device, fs) = faulty_without_cache(&volume, 0);
    let file = fs.open_file(id).unwrap();
    let places = [0, 700, EXTENTS - 1].map(|number| number * 8192);
    for at in places {
        assert_eq!(file.write_at(at, &[2; 4096]).unwrap(), 4096);
    }
    push_out(&fs, other);
    let rule = device.add(Rule::everywhere(Fault::ReadError));
    for _ in 0..3 {
        assert_eq!(file.sync_all().unwrap_err().errno(), 5);
    }
    device.remove(rule);
    let read = |file: &butternut::File, at| {
        let mut block = [0; 4096];
        file.read_at(at, &mut block).unwrap();
        block
    };
    for at in places {
        assert_eq!(read(&file, at), [2; 4096], "byte {at} is still in memory");
    }
    file.sync_all().unwrap();
    drop(file);
    let fs = volume.reopen(fs);
    let file = fs.open_file(id).unwrap();
    for at in places {
        assert_eq!(read(&file, at), [2; 4096], "byte {at} is on the device");
    }
}

#[test]
fn what_a_commit_could_not_bring_down_for_a_while_goes_down_unasked() {
    let volume = TestVolume::new();
    let (id, other) = file_of_many_leaves(&volume);
    let (device, fs) = faulty_without_cache(&volume, 5);
    let file = fs.open_file(id).unwrap();
    let generation = || {
        let found = Filesystem::open_devices(volume.devices(), &MountOptions::default());
        // A commit may be under way.
        found.map_or(0, |fs| fs.inspect().super_block().generation().0)
    };
    let before = loop {
        // From here on no commit begins by itself for a while.
        fs.sync().unwrap();
        for at in [0, 700, EXTENTS - 1].map(|number| number * 8192) {
            file.write_at(at, &[2; 4096]).unwrap();
        }
        push_out(&fs, other);
        let rule = device.add(Rule::everywhere(Fault::ReadError));
        let synced = fs.sync();
        let before = generation();
        device.remove(rule);
        // Else all was down before the device failed.
        if synced.is_err() {
            break before;
        }
    };
    assert!(fs.is_writable(), "{}", chain(&fs.write_error().unwrap()));
    let begun = Instant::now();
    while generation() <= before {
        assert!(begun.elapsed() < Duration::from_mins(2), "nothing tries again");
        sleep(Duration::from_millis(50));
    }
    drop(file);
    volume.reopen(fs);
}
