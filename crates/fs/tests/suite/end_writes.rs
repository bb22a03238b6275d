//! The end of writing on a filesystem that stays open for a moment, as when the kernel releases the
//! device of a mount: what came before is durable, and nothing is written afterwards.

use crate::volume::{TestVolume, names, new};
use butternut::device::{Fault, Rule};
use butternut::server::FilesystemExt;
use butternut::{AttributeFlags, EnospcInjector, Filesystem, MountOptions, Privileges};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn nothing_is_written_after_the_end_of_writes() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    let gone = fs.create(fs.root(), b"gone", &new(0o644)).unwrap();
    let open = fs.open_file(gone).unwrap();
    fs.unlink(fs.root(), b"gone").unwrap();
    // Syncs of other threads run meanwhile, as those of a control socket do.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| fs.sync().unwrap()));
        }
        file.write_at(0, &vec![7; 1 << 20]).unwrap();
        fs.end_writes();
        let written = volume.devices()[0].counters().now();
        let copy = volume.copy();
        assert!(file.write_at(0, b"late").is_err());
        assert!(fs.create(fs.root(), b"late", &new(0o644)).is_err());
        // The last handle would delete the file.
        drop(open);
        fs.end_writes();
        fs.sync().unwrap();
        assert!(file.sync_all().is_err());
        assert!(fs.sync_directory(fs.root()).is_err());
        let later = volume.devices()[0].counters().now() - written;
        assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
        let read = copy.open();
        assert_eq!(names(&read, read.root()), ["file"]);
        read.close().unwrap();
        copy.check();
    });
    let written = volume.devices()[0].counters().now();
    drop(file);
    fs.close().unwrap();
    let later = volume.devices()[0].counters().now() - written;
    assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
    volume.check();
}

/// Without space for the inode item of a file that was overwritten in place.
#[test]
fn writing_ends_also_where_something_cannot_be_written() {
    let volume = TestVolume::new();
    let injector = EnospcInjector::default();
    let options = MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .enospc_injector(Some(injector.clone()));
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let id = fs.create(fs.root(), b"in place", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags::NOCOW).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &[1; 8192]).unwrap();
    fs.sync().unwrap();
    file.write_direct(0, &[2; 4096], Privileges::Keep).unwrap();
    injector.fail_every(1);
    fs.end_writes();
    injector.fail_none();
    let written = volume.devices()[0].counters().now();
    assert!(fs.create(fs.root(), b"late", &new(0o644)).is_err());
    drop(file);
    assert!(fs.close().is_err(), "the error is reported");
    let later = volume.devices()[0].counters().now() - written;
    assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
    volume.check();
}

/// The data is on the device, and the extent item that shows it is not. The file records only what
/// its writes lose.
#[test]
fn the_close_fails_if_the_end_of_writes_leaves_file_data_that_no_tree_has() {
    let volume = TestVolume::new();
    let injector = EnospcInjector::default();
    let options = MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .enospc_injector(Some(injector.clone()));
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    fs.sync().unwrap();
    file.write_direct(0, &vec![7; 1 << 16], Privileges::Keep).unwrap();
    injector.fail_every(1);
    fs.end_writes();
    injector.fail_none();
    let copy = volume.copy().open();
    let id = copy.lookup(copy.root(), b"file").unwrap();
    assert_eq!(copy.open_file(id).unwrap().len(), 0, "the merge has failed");
    drop(file);
    assert!(fs.close().is_err(), "the loss is reported");
    volume.check();
}

#[test]
fn only_a_sync_that_reports_errors_takes_the_error_of_the_end_of_writes() {
    let volume = TestVolume::new();
    let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
    fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let failing = device.add(Rule::everywhere(Fault::FlushError));
    fs.end_writes();
    device.remove(failing);
    // The committer calls this, too.
    fs.sync_best_effort();
    for _ in 0..2 {
        assert!(fs.sync_and_keep_errors().is_err());
        assert!(fs.syncfs().is_err());
    }
    assert!(fs.close().is_err(), "the error is reported");
    volume.check();
}

/// The write comes when the data has been written back and the commit has begun.
#[test]
fn a_write_beside_the_end_of_writes_is_written_or_its_sync_fails() {
    let volume = TestVolume::new();
    let options = MountOptions::default().commit_seconds(0);
    let (device, fs) = volume.open_faulty(&options);
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    fs.sync().unwrap();
    fs.create(fs.root(), b"change", &new(0o644)).unwrap();
    // A commit reads the superblock before it writes it.
    let held = device.add(Rule::at(65536..65537, Fault::HeldRead));
    thread::scope(|scope| {
        let ending = scope.spawn(|| fs.end_writes());
        device.wait_for_held_reads(1);
        file.write_at(0, &vec![7; 1 << 16]).unwrap();
        device.remove(held);
        ending.join().unwrap();
    });
    let written = volume.devices()[0].counters().now();
    let synced = file.sync_all();
    let later = volume.devices()[0].counters().now() - written;
    assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
    let copy = volume.copy().open();
    let id = copy.lookup(copy.root(), b"file").unwrap();
    assert_eq!(copy.open_file(id).unwrap().len(), 1 << 16, "{synced:?}");
}

#[test]
fn a_sync_of_an_abandoned_filesystem_writes_nothing_and_fails() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    file.write_at(0, &vec![7; 1 << 16]).unwrap();
    fs.abandon();
    let written = volume.devices()[0].counters().now();
    assert!(file.sync_all().is_err());
    assert!(fs.sync_directory(fs.root()).is_err());
    let later = volume.devices()[0].counters().now() - written;
    assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
}

/// The kernel's mount of the device has ended without its last request. Only an unchanged device
/// that can be claimed is written.
#[test]
fn after_the_end_of_the_mount_only_a_claimed_and_unchanged_device_is_written() {
    for (is_claimed, is_changed) in [(true, false), (false, false), (true, true)] {
        let volume = TestVolume::new();
        let (device, fs) = volume.open_faulty(&MountOptions::default().commit_seconds(0));
        let is_mounted = Arc::new(AtomicBool::new(true));
        let watched = Arc::clone(&is_mounted);
        fs.set_mount_watch(Box::new(move || watched.load(Ordering::Relaxed)));
        fs.create(fs.root(), b"before", &new(0o644)).unwrap();
        fs.sync().unwrap();
        let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
        file.write_at(0, &vec![7; 1 << 16]).unwrap();
        is_mounted.store(false, Ordering::Relaxed);
        if !is_claimed {
            device.add(Rule::everywhere(Fault::ClaimError));
        }
        if is_changed {
            volume.devices()[0].write_at(65536, &[0; 4096]).unwrap();
        }
        let written = volume.devices()[0].counters().now();
        let is_written = is_claimed && !is_changed;
        assert_eq!(file.sync_all().is_ok(), is_written, "{is_claimed} {is_changed}");
        drop(file);
        assert_eq!(fs.close().is_ok(), is_written, "{is_claimed} {is_changed}");
        let later = volume.devices()[0].counters().now() - written;
        assert_eq!(later.writes > 0, is_written, "{is_claimed} {is_changed}");
    }
}
