//! Tests of opening a disk that is open elsewhere, and of the messages of a refusal.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

mod loops;

use butternut_device::{Device, DeviceError, FileDevice, Holder, OpenDevice, OpenError, Sharing};
use loops::{Image, LoopDevice, Mount, READ, WRITE, run};
use std::path::Path;
use std::process::Command;

const UNLOCKED: OpenDevice = OpenDevice { sharing: Sharing::Unlocked, ..READ };

fn refusal(path: &Path, how: &OpenDevice) -> OpenError {
    let error = FileDevice::open(path, how).unwrap_err();
    let DeviceError::Open(error) = error else { panic!("{error}") };
    std::sync::Arc::try_unwrap(error).unwrap()
}

fn holder(path: &Path, how: &OpenDevice) -> Holder {
    let error = refusal(path, how);
    let OpenError::Busy { holder, .. } = error else { panic!("{error}") };
    holder
}

#[test]
fn a_writer_excludes_all_opens_and_readers_exclude_writers() {
    let (image, backing) = (Image::new(1 << 20), Image::new(1 << 20));
    let looped = LoopDevice::new(&backing, &[]);
    for path in [image.path(), looped.path()] {
        let writer = FileDevice::open(path, &WRITE).unwrap();
        let me = |holder| matches!(holder, Holder::Process { id, .. } if id == std::process::id());
        assert!(me(holder(path, &WRITE)));
        assert!(me(holder(path, &READ)));
        drop(FileDevice::open(path, &UNLOCKED).unwrap());
        drop(writer);
        let readers = [READ, READ, UNLOCKED].map(|how| FileDevice::open(path, &how).unwrap());
        assert!(me(holder(path, &WRITE)));
        drop(readers);
        drop(FileDevice::open(path, &WRITE).unwrap());
    }
    let writer = FileDevice::open(image.path(), &WRITE).unwrap();
    let text = refusal(image.path(), &READ).to_string();
    assert!(text.contains(" is busy: process ") && text.ends_with("has it open"), "{text}");
    drop(writer);
}

#[test]
fn a_disk_mounted_by_the_kernel_cannot_be_opened_for_writing() {
    let image = Image::new(256 << 20);
    run(Command::new("mkfs.btrfs").arg("-q").arg(image.path()));
    let looped = LoopDevice::new(&image, &[]);
    let mount = Mount::new(looped.path());
    for path in [looped.path(), image.path()] {
        let Holder::Mount { mountpoint, .. } = holder(path, &WRITE) else {
            panic!("{:?}", holder(path, &WRITE))
        };
        assert_eq!(mountpoint, mount.path());
        let text = refusal(path, &WRITE).to_string();
        assert!(text.contains("is busy: the kernel has mounted /dev/loop"), "{text}");
        assert!(text.ends_with(mount.path().to_str().unwrap()), "{text}");
        let reader = FileDevice::open(path, &READ).unwrap();
        assert_eq!(reader.bytes(), 256 << 20);
    }
    drop(mount);
    drop(FileDevice::open(looped.path(), &WRITE).unwrap());
}

#[test]
fn the_second_device_of_a_mounted_volume_is_busy_with_the_mount() {
    let images = [Image::new(256 << 20), Image::new(256 << 20)];
    let looped = [LoopDevice::new(&images[0], &[]), LoopDevice::new(&images[1], &[])];
    let paths = looped.each_ref().map(LoopDevice::path);
    run(Command::new("mkfs.btrfs").args(["-q", "-d", "raid1", "-m", "raid1"]).args(paths));
    run(Command::new("btrfs").args(["device", "scan"]).args(paths));
    let mount = Mount::new(paths[0]);
    for path in paths {
        let Holder::Mount { mountpoint, .. } = holder(path, &WRITE) else { panic!("{path:?}") };
        assert_eq!(mountpoint, mount.path());
    }
    drop(mount);
    run(Command::new("btrfs").args(["device", "scan", "--forget"]).args(paths));
}

#[test]
fn a_read_only_device_cannot_be_opened_for_writing() {
    let image = Image::new(1 << 20);
    let looped = LoopDevice::new(&image, &["--read-only"]);
    let refused = refusal(looped.path(), &WRITE);
    assert!(matches!(refused, OpenError::ReadOnly { .. }), "{refused}");
    drop(FileDevice::open(looped.path(), &READ).unwrap());
}

#[test]
fn files_that_are_not_disks_are_refused_with_their_type() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    run(Command::new("mkfifo").arg(&fifo));
    let missing = directory.path().join("missing");
    for (path, kind) in [
        (directory.path(), "directory"),
        (fifo.as_path(), "fifo"),
        (Path::new("/dev/null"), "character device"),
    ] {
        let text = refusal(path, &READ).to_string();
        let want = format!("is a {kind}, not a block device or an image file");
        assert!(text.ends_with(&want), "{text}");
    }
    let refused = refusal(&missing, &READ);
    assert_eq!(refused.errno().0, 2);
    assert!(refused.to_string().starts_with("cannot open "));
}

#[test]
fn a_window_beyond_the_file_is_refused() {
    let image = Image::new(1 << 20);
    let open =
        |offset, bytes| FileDevice::open(image.path(), &OpenDevice { offset, bytes, ..READ });
    assert_eq!(open(1 << 19, None).unwrap().bytes(), 1 << 19);
    assert_eq!(open(1 << 20, None).unwrap().bytes(), 0);
    for (offset, bytes) in
        [(1 << 19, Some((1 << 19) + 1)), ((1 << 20) + 1, None), (u64::MAX, Some(u64::MAX))]
    {
        let refused = open(offset, bytes).unwrap_err();
        assert!(matches!(refused, DeviceError::Window { .. }), "{refused}");
    }
}

#[test]
fn attributes_of_a_loop_device_are_those_of_the_kernel() {
    let image = Image::new(1 << 20);
    let looped = LoopDevice::new(&image, &["--sector-size", "4096"]);
    let device = FileDevice::open(looped.path(), &READ).unwrap();
    assert_eq!(device.bytes(), 1 << 20);
    assert!(device.is_direct());
    assert_eq!(device.alignment().offset_bytes, 4096);
    let name = looped.path().file_name().unwrap().to_str().unwrap();
    let attribute =
        std::fs::read_to_string(format!("/sys/block/{name}/queue/write_cache")).unwrap();
    let is_volatile = attribute.trim() == "write back";
    assert_eq!(device.write_cache().is_volatile, is_volatile);
    let fua = std::fs::read_to_string(format!("/sys/block/{name}/queue/fua")).unwrap();
    let flushes = is_volatile && fua.trim() == "0";
    assert_eq!(device.write_cache().durable_write_flushes, flushes);
    let buffered = OpenDevice { direct: false, ..READ };
    let device = FileDevice::open(looped.path(), &buffered).unwrap();
    assert!(!device.is_direct());
    assert!(!device.write_cache().durable_write_flushes, "other pages stay in the page cache");
    assert_eq!(device.alignment().offset_bytes, 1);
}
