//! Devices that fail during writes: acknowledged data stays, nothing is written after a failed
//! commit, and reads continue.

use crate::volume::{TestVolume, failing_data, names, new};
use butternut::device::{Device, Fault, FaultyDevice, Rule};
use butternut::format::chunk::BlockGroupFlags;
use butternut::server::{FileExt, FilesystemExt};
use butternut::{
    Allocate, AttributeFlags, ExtentKind, File, FileId, Filesystem, MountOptions, Privileges,
    RenameFlags, SetAttributes, SetXattr, Tunables,
};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_volume::chain;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn faulty(volume: &TestVolume) -> (Arc<FaultyDevice>, Filesystem) {
    volume.open_faulty(&MountOptions::default())
}

#[test]
fn a_failed_commit_ends_writing_and_leaves_reads_working() {
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

#[test]
fn a_sync_of_names_returns_why_the_commit_failed_also_when_data_is_lost() {
    for is_sync_of_directory in [false, true] {
        let volume = TestVolume::new();
        let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
        fs.set_tunables(Tunables::default().log_tree(false));
        let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        fs.sync().unwrap();
        file.write_at(0, &[8; 8192]).unwrap();
        fs.create(fs.root(), b"name", &new(0o644)).unwrap();
        device.add(Rule::everywhere(Fault::WriteError));
        let done =
            if is_sync_of_directory { fs.sync_directory(fs.root()) } else { fs.sync_names() };
        assert_eq!(done.unwrap_err().errno(), 5, "{is_sync_of_directory}");
        assert_eq!(fs.sync_names().unwrap_err().errno(), 30);
        device.clear();
        drop((file, fs));
        volume.check();
    }
}

/// Makes a file with preallocated space; returns the device offset of the space.
fn preallocated(fs: &Filesystem, bytes: u64) -> (File, u64) {
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.allocate(0..bytes, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    let first = file.extents(0..bytes).next().unwrap().unwrap();
    let ExtentKind::Prealloc { logical } = first.kind else { panic!("{first:?}") };
    (file, device_offset(fs, logical))
}

/// Where the data at a logical address is on the device.
fn device_offset(fs: &Filesystem, logical: u64) -> u64 {
    let chunks = fs.inspect().chunks();
    let mut data = chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let of = |start: u64, bytes: u64| (start..start + bytes).contains(&logical);
    let chunk = data.find(|chunk| of(chunk.logical.0, chunk.bytes)).unwrap();
    chunk.stripes[0].1 + (logical - chunk.logical.0)
}

/// If a block were overwritten in place with checksums that are in no tree, a partly failed write
/// would contradict them.
#[test]
fn a_bad_sector_in_preallocated_space_leaves_adjacent_blocks_readable() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let (file, at) = preallocated(&fs, 65_536);
    file.write_direct(0, &[1; 16_384], Privileges::Keep).unwrap();
    file.write_at(0, &[2; 16_384]).unwrap();
    device.add(Rule::at(at + 12_288..at + 16_384, Fault::WriteError));
    // The second write goes elsewhere, where the device does not fail.
    file.sync_all().unwrap();
    device.clear();
    let mut bytes = vec![9; 16_384];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 2));
    drop(file);
    fs.close().unwrap();
    volume.check();
}

/// As above, with the first write still in flight when the second one is made.
#[test]
fn a_block_rewritten_during_its_preallocated_writeback_goes_elsewhere() {
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
    // Blocks written in place now have been written in place before.
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

/// Readahead has looked up the checksums of the blocks that it reads. A write must not change those
/// blocks meanwhile.
#[test]
fn a_write_during_readahead_is_not_counted_as_corruption() {
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
    assert_eq!(fs.stats().devices[0].corruption_errors, 0, "the device has no errors");
    fs.close().unwrap();
    volume.check();
}

/// As above, where a merge and a commit free the extent that the worker reads.
#[test]
fn a_merge_during_readahead_is_not_counted_as_corruption() {
    const BYTES: usize = 4 << 20;
    const PART: usize = 64 << 10;
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let (device, fs) = faulty(&volume);
    let make =
        |name: &[u8]| fs.open_file(fs.create(fs.root(), name, &new(0o644)).unwrap()).unwrap();
    let (file, other) = (make(b"file"), make(b"other"));
    file.write_direct(0, &vec![1; BYTES], Privileges::Keep).unwrap();
    fs.sync().unwrap();
    let first = file.extents(0..1).next().unwrap().unwrap();
    let ExtentKind::Regular { logical, .. } = first.kind else { panic!("{first:?}") };
    let at = device_offset(&fs, logical);
    let rule = device.add(Rule::at(at + (512 << 10)..at + BYTES as u64, Fault::HeldRead));
    for part in 0..7 {
        file.read_at(part << 16, &mut vec![0; PART]).unwrap();
    }
    device.wait_for_held_reads(1);
    for part in 0..64 {
        file.write_at(part << 16, &vec![2; PART]).unwrap();
    }
    file.sync_all().unwrap();
    fs.sync().unwrap();
    for bytes in [vec![3; 1 << 20], vec![3; PART], vec![3; 4096]] {
        while other.write_at(other.len(), &bytes).is_ok_and(|done| done == bytes.len()) {}
        other.sync_all().ok();
    }
    device.remove(rule);
    let mut bytes = vec![0; BYTES];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), BYTES);
    assert!(bytes.iter().all(|byte| *byte == 2));
    // Waits for the worker.
    drop((file, other));
    assert_eq!(fs.stats().devices[0].corruption_errors, 0, "the device has no errors");
    fs.close().unwrap();
    volume.check();
}

#[test]
fn a_sync_reports_data_that_could_not_be_written() {
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
fn lost_data_is_reported_once_through_every_handle() {
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
    // The first sync writes the data back and fails; the others run when the device works again.
    assert_eq!(handles[2].sync_all().unwrap_err().errno(), 5);
    device.remove(rule);
    for handle in &handles[..2] {
        assert_eq!(handle.sync_all().unwrap_err().errno(), 5);
    }
    for handle in handles.iter().chain([&clone, &fs.open_file(id).unwrap(), &other]) {
        handle.sync_all().unwrap();
    }
    assert_eq!(fs.sync().unwrap_err().errno(), 5, "a sync of all files reports it separately");
    fs.sync().unwrap();
    fs.sync_names().unwrap();

    // A later handle gets an error that no other handle has reported.
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
fn lost_data_is_reported_once_to_syncfs_and_left_for_all_others() {
    for is_closed_by_sync in [false, true] {
        let volume = TestVolume::new();
        let (device, fs) = faulty(&volume);
        let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        fs.sync().unwrap();
        for content in [8, 9] {
            file.write_at(0, &[content; 8192]).unwrap();
            let rule = device.add(failing_data(&fs));
            assert_eq!(fs.syncfs().unwrap_err().errno(), 5);
            device.remove(rule);
            fs.syncfs().unwrap();
            fs.create(fs.root(), &[b'a' + content], &new(0o644)).unwrap();
            fs.syncfs().unwrap();
        }
        // The file's handle and a sync of all files have cursors of their own.
        if is_closed_by_sync {
            assert_eq!(file.sync_all().unwrap_err().errno(), 5);
            assert_eq!(fs.sync().unwrap_err().errno(), 5);
        }
        fs.syncfs().unwrap();
        drop(file);
        assert_eq!(fs.close().is_err(), !is_closed_by_sync);
        volume.check();
    }
}

#[test]
fn lost_data_is_reported_after_many_other_files_were_closed() {
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
    // More files than keep their state without a handle.
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
fn closing_fails_for_lost_data_that_no_call_reported() {
    for is_reported in [false, true] {
        let volume = TestVolume::new();
        let (device, fs) = faulty(&volume);
        let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        fs.sync().unwrap();
        file.write_at(0, &[8; 8192]).unwrap();
        let rule = device.add(failing_data(&fs));
        // A rename over another file writes the data back, and does not report the error.
        fs.create(fs.root(), b"name", &new(0o644)).unwrap();
        fs.rename((fs.root(), b"file"), (fs.root(), b"name"), RenameFlags::default()).unwrap();
        device.remove(rule);
        if is_reported {
            assert_eq!(file.sync_all().unwrap_err().errno(), 5);
        }
        // A sync of names does not consume an error of data.
        fs.sync_names().unwrap();
        drop(file);
        assert_eq!(fs.close().is_err(), !is_reported);
        volume.check();
    }
}

#[test]
fn closing_fails_for_data_lost_after_the_last_reported_loss() {
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
    // A rename over another file writes the data back, and does not report the error.
    file.write_at(0, &[9; 8192]).unwrap();
    fs.rename((root, b"file"), (root, b"name"), RenameFlags::default()).unwrap();
    device.remove(rule);
    drop(file);
    assert!(fs.close().is_err(), "no call has reported the second loss");
    volume.check();
}

#[test]
fn a_failed_flush_after_a_write_in_place_ends_writing() {
    const NO_COW: u32 = 0x0080_0000;
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(NO_COW)).unwrap();
    let file = fs.open_file(id).unwrap().without_time_updates();
    file.write_at(0, &[7; 8192]).unwrap();
    file.sync_all().unwrap();
    file.write_direct(0, &[8; 8192], Privileges::Keep).unwrap();
    device.add(Rule::everywhere(Fault::FlushError));
    assert_eq!(file.sync_all().unwrap_err().errno(), 5);
    device.clear();
    assert!(!fs.is_writable(), "the lost writes are unknown");
    assert!(file.sync_all().is_err());
    drop((file, fs));
    volume.check();
}

#[test]
fn the_first_tolerated_failure_is_recorded_before_the_commit_returns() {
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
    assert!(fs.stats().devices[0].write_errors > 0, "one copy of each block is missing");
    // As after a power failure: no later commit has recorded the failure.
    let cut = volume.copy();
    // The counts of one device are read when the volume is opened for writing.
    let read = cut.open();
    assert_eq!(names(&read, read.root()), ["file"]);
    assert!(read.stats().devices[0].write_errors > 0, "the failure is not recorded on the volume");
}

const EXTENTS: u64 = 600;
const ATTRIBUTES: u32 = 1000;

fn attribute(number: u32) -> Vec<u8> {
    format!("user.{number}").into_bytes()
}

/// Makes a file that is written in place, with extents in several leaves, and another inode whose
/// attributes evict these leaves from the smallest node cache ([`evict_leaves`]).
fn file_of_many_leaves(volume: &TestVolume) -> (FileId, FileId) {
    const NO_COW: u32 = 0x0080_0000;
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(NO_COW)).unwrap();
    let file = fs.open_file(id).unwrap();
    // Extents of one block each: every second block of the file.
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

fn evict_leaves(fs: &Filesystem, other: FileId) {
    for number in (0..ATTRIBUTES).chain(0..ATTRIBUTES) {
        assert!(fs.xattr(other, &attribute(number)).is_ok());
    }
}

fn faulty_without_cache(
    volume: &TestVolume,
    commit_seconds: u32,
) -> (Arc<FaultyDevice>, Filesystem) {
    let options = MountOptions::default().node_cache_bytes(1).commit_seconds(commit_seconds);
    volume.open_faulty(&options)
}

#[test]
fn dirty_data_survives_temporary_metadata_read_errors() {
    let volume = TestVolume::new();
    let (id, other) = file_of_many_leaves(&volume);
    let (device, fs) = faulty_without_cache(&volume, 0);
    let file = fs.open_file(id).unwrap();
    let places = [0, 700, EXTENTS - 1].map(|number| number * 8192);
    for at in places {
        assert_eq!(file.write_at(at, &[2; 4096]).unwrap(), 4096);
    }
    evict_leaves(&fs, other);
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
fn failed_writeback_is_retried_in_the_background() {
    let volume = TestVolume::new();
    let (id, other) = file_of_many_leaves(&volume);
    let (device, fs) = faulty_without_cache(&volume, 5);
    let file = fs.open_file(id).unwrap();
    let generation = || {
        let found = Filesystem::open_devices(volume.devices(), &MountOptions::default());
        // A commit may be in progress.
        found.map_or(0, |fs| fs.inspect().super_block().generation().0)
    };
    let before = loop {
        // No background commit begins for a while from here on.
        fs.sync().unwrap();
        for at in [0, 700, EXTENTS - 1].map(|number| number * 8192) {
            file.write_at(at, &[2; 4096]).unwrap();
        }
        evict_leaves(&fs, other);
        let rule = device.add(Rule::everywhere(Fault::ReadError));
        let synced = fs.sync();
        let before = generation();
        device.remove(rule);
        // Otherwise all data was written back before the device failed.
        if synced.is_err() {
            break before;
        }
    };
    assert!(fs.is_writable(), "{}", chain(&fs.write_error().unwrap()));
    let begun = Instant::now();
    while generation() <= before {
        assert!(begun.elapsed() < Duration::from_mins(2), "writeback is not retried");
        sleep(Duration::from_millis(50));
    }
    drop(file);
    volume.reopen(fs);
}
