//! Opening: who may have a disk open at the same time as whom, and what is said to those who may
//! not.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

mod loops;

use butternut_device::{Device, DeviceError, FileDevice, Holder, OpenDevice, OpenError, Sharing};
use loops::{Image, LoopDevice, Mount, run};
use std::path::Path;
use std::process::Command;

const READING: OpenDevice =
    OpenDevice { writable: false, offset: 0, bytes: None, direct: true, sharing: Sharing::Locked };
const WRITING: OpenDevice = OpenDevice { writable: true, ..READING };
const LOOKING: OpenDevice = OpenDevice { sharing: Sharing::Unlocked, ..READING };

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
fn a_writer_shuts_out_everybody_and_readers_shut_out_writers() {
    let (image, backing) = (Image::new(1 << 20), Image::new(1 << 20));
    let looped = LoopDevice::new(&backing, &[]);
    for path in [image.path(), looped.path()] {
        let writer = FileDevice::open(path, &WRITING).unwrap();
        let me = |holder| matches!(holder, Holder::Process { id, .. } if id == std::process::id());
        assert!(me(holder(path, &WRITING)));
        assert!(me(holder(path, &READING)));
        drop(FileDevice::open(path, &LOOKING).unwrap());
        drop(writer);
        let readers = [READING, READING, LOOKING].map(|how| FileDevice::open(path, &how).unwrap());
        assert!(me(holder(path, &WRITING)));
        drop(readers);
        drop(FileDevice::open(path, &WRITING).unwrap());
    }
    let writer = FileDevice::open(image.path(), &WRITING).unwrap();
    let text = refusal(image.path(), &READING).to_string();
    assert!(text.contains(" is busy: process ") && text.ends_with("has it open"), "{text}");
    drop(writer);
}

#[test]
fn what_the_kernel_has_mounted_is_not_opened_for_writing() {
    let image = Image::new(256 << 20);
    run(Command::new("mkfs.btrfs").arg("-q").arg(image.path()));
    let looped = LoopDevice::new(&image, &[]);
    let mount = Mount::new(looped.path());
    for path in [looped.path(), image.path()] {
        let Holder::Mount { mountpoint, .. } = holder(path, &WRITING) else {
            panic!("{:?}", holder(path, &WRITING))
        };
        assert_eq!(mountpoint, mount.path());
        let text = refusal(path, &WRITING).to_string();
        assert!(text.contains("is busy: the kernel has mounted /dev/loop"), "{text}");
        assert!(text.ends_with(mount.path().to_str().unwrap()), "{text}");
        let reader = FileDevice::open(path, &READING).unwrap();
        assert_eq!(reader.bytes(), 256 << 20);
    }
    drop(mount);
    drop(FileDevice::open(looped.path(), &WRITING).unwrap());
}

#[test]
fn the_second_device_of_a_mounted_volume_is_known_as_part_of_the_mount() {
    let images = [Image::new(256 << 20), Image::new(256 << 20)];
    let looped = [LoopDevice::new(&images[0], &[]), LoopDevice::new(&images[1], &[])];
    let paths = looped.each_ref().map(LoopDevice::path);
    run(Command::new("mkfs.btrfs").args(["-q", "-d", "raid1", "-m", "raid1"]).args(paths));
    run(Command::new("btrfs").args(["device", "scan"]).args(paths));
    let mount = Mount::new(paths[0]);
    for path in paths {
        let Holder::Mount { mountpoint, .. } = holder(path, &WRITING) else { panic!("{path:?}") };
        assert_eq!(mountpoint, mount.path());
    }
    drop(mount);
    run(Command::new("btrfs").args(["device", "scan", "--forget"]).args(paths));
}

#[test]
fn a_read_only_device_is_not_opened_for_writing() {
    let image = Image::new(1 << 20);
    let looped = LoopDevice::new(&image, &["--read-only"]);
    let refused = refusal(looped.path(), &WRITING);
    assert!(matches!(refused, OpenError::ReadOnly { .. }), "{refused}");
    drop(FileDevice::open(looped.path(), &READING).unwrap());
}

#[test]
fn what_is_no_disk_is_refused_by_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    run(Command::new("mkfifo").arg(&fifo));
    let missing = directory.path().join("missing");
    for (path, kind) in [
        (directory.path(), "directory"),
        (fifo.as_path(), "fifo"),
        (Path::new("/dev/null"), "character device"),
    ] {
        let text = refusal(path, &READING).to_string();
        let want = format!("is a {kind}, not a block device or an image file");
        assert!(text.ends_with(&want), "{text}");
    }
    let refused = refusal(&missing, &READING);
    assert_eq!(refused.errno().0, 2);
    assert!(refused.to_string().starts_with("cannot open "));
}

#[test]
fn a_window_beyond_the_file_is_refused() {
    let image = Image::new(1 << 20);
    let open =
        |offset, bytes| FileDevice::open(image.path(), &OpenDevice { offset, bytes, ..READING });
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
fn facts_of_a_loop_device_are_those_of_the_kernel() {
    let image = Image::new(1 << 20);
    let looped = LoopDevice::new(&image, &["--sector-size", "4096"]);
    let device = FileDevice::open(looped.path(), &READING).unwrap();
    assert_eq!(device.bytes(), 1 << 20);
    assert!(device.is_direct());
    assert_eq!(device.alignment().offset_bytes, 4096);
    let name = looped.path().file_name().unwrap().to_str().unwrap();
    let fact = std::fs::read_to_string(format!("/sys/block/{name}/queue/write_cache")).unwrap();
    assert_eq!(device.write_cache().is_volatile, fact.trim() == "write back");
    let buffered = OpenDevice { direct: false, ..READING };
    let device = FileDevice::open(looped.path(), &buffered).unwrap();
    assert!(!device.is_direct());
    assert_eq!(device.alignment().offset_bytes, 1);
}
