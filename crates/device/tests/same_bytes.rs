//! One volume, reached by many names: only one of them is opened for writing, and none beside the
//! kernel's mount. Needs root and loop devices; `BUTTERNUT_NO_KERNEL=1` leaves the tests out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's helpers are tests, and say what is left out"
)]

mod loops;

use butternut_device::{DeviceError, FileDevice, OpenDevice, OpenError, Sharing};
use butternut_undo::MountGuard;
use loops::{LoopDevice, run};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const READING: OpenDevice =
    OpenDevice { writable: false, offset: 0, bytes: None, direct: true, sharing: Sharing::Locked };
const WRITING: OpenDevice = OpenDevice { writable: true, ..READING };

const IMAGE_BYTES: u64 = 128 << 20;
/// Where the second volume of an image begins.
const SECOND: u64 = 256 << 20;

fn is_left_out(test: &str) -> bool {
    let left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if left_out {
        eprintln!("left out for BUTTERNUT_NO_KERNEL: {test}");
    }
    left_out
}

/// An image with a btrfs volume in it.
fn image() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir_in("/var/tmp").unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    run(Command::new("mkfs.btrfs").args(["-q", "-m", "single"]).arg(&image));
    fs::hard_link(&image, dir.path().join("hard")).unwrap();
    symlink("image", dir.path().join("symlink")).unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    (dir, image)
}

/// Loop devices of an image, by a name each. The last of the names has been removed, so only the
/// loop driver knows the file that this device stands on.
fn loops_of(dir: &Path, image: &Path) -> [LoopDevice; 3] {
    let gone = dir.join("gone");
    fs::hard_link(image, &gone).unwrap();
    let loops = [image, &dir.join("hard"), &gone].map(|name| LoopDevice::of(name, &[]));
    fs::remove_file(&gone).unwrap();
    loops
}

/// Every name of the bytes of an image.
fn names(dir: &Path, loops: &[LoopDevice]) -> Vec<PathBuf> {
    let files = ["image", "folder/../image", "hard", "symlink"].map(|name| dir.join(name));
    files.into_iter().chain(loops.iter().map(|device| device.path().to_path_buf())).collect()
}

/// Opens; whether it was refused for a user of the same bytes.
#[track_caller]
fn open(path: &Path, how: &OpenDevice) -> Option<FileDevice> {
    match FileDevice::open(path, how) {
        Ok(device) => Some(device),
        Err(DeviceError::Open(error)) if matches!(&*error, OpenError::Busy { .. }) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn of_all_names_of_one_volume_one_is_opened_for_writing() {
    if is_left_out("of_all_names_of_one_volume_one_is_opened_for_writing") {
        return;
    }
    let (dir, image) = image();
    let loops = loops_of(dir.path(), &image);
    let names = names(dir.path(), &loops);
    for first in &names {
        for second in &names {
            for (how, then, is_free) in [
                (WRITING, WRITING, false),
                (WRITING, READING, false),
                (READING, WRITING, false),
                (READING, READING, true),
            ] {
                let held = open(first, &how);
                assert!(held.is_some(), "{}", first.display());
                let (a, b) = (how.writable, then.writable);
                let shown = format!("{} ({a}) then {} ({b})", first.display(), second.display());
                assert_eq!(open(second, &then).is_some(), is_free, "{shown}");
            }
        }
    }
}

#[test]
fn what_the_kernel_has_mounted_is_opened_for_writing_by_no_name() {
    if is_left_out("what_the_kernel_has_mounted_is_opened_for_writing_by_no_name") {
        return;
    }
    let (dir, image) = image();
    let loops = loops_of(dir.path(), &image);
    let names = names(dir.path(), &loops);
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    for mounted in &loops {
        let name = mounted.path().file_name().unwrap();
        // The mount table has the name of the device as it was given to mount(2).
        for source in [mounted.path(), Path::new(name)] {
            let guard = MountGuard::before_mount(&place).unwrap();
            mount_from_dev(source, &place);
            for path in &names {
                let shown = format!("{} mounted, {}", source.display(), path.display());
                assert!(open(path, &WRITING).is_none(), "{shown}");
                assert!(open(path, &READING).is_some(), "{shown}");
            }
            guard.unmount().unwrap();
        }
    }
    for path in &names {
        assert!(open(path, &WRITING).is_some(), "{}", path.display());
    }
}

/// As `cd /dev && mount SOURCE`, but for a mount(8) that makes the name absolute.
fn mount_from_dev(source: &Path, place: &Path) {
    let mut command = Command::new("mount");
    command.current_dir("/dev").args(["--internal-only", "--no-canonicalize", "-t", "btrfs"]);
    run(command.arg(source).arg(place));
}

#[test]
fn the_kernel_mounts_no_device_that_is_open_for_writing() {
    if is_left_out("the_kernel_mounts_no_device_that_is_open_for_writing") {
        return;
    }
    let (dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    let held = open(device.path(), &WRITING).unwrap();
    let _guard = MountGuard::before_mount(&place).unwrap();
    let mount = || Command::new("mount").arg(device.path()).arg(&place).output().unwrap();
    assert!(!mount().status.success());
    drop(held);
    let mounted = mount();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
}

#[test]
fn a_loop_device_that_is_open_for_writing_is_a_user_of_its_file() {
    if is_left_out("a_loop_device_that_is_open_for_writing_is_a_user_of_its_file") {
        return;
    }
    let (_dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    let reader = fs::File::open(device.path()).unwrap();
    assert!(open(&image, &WRITING).is_some(), "what reads does no harm");
    let writer = fs::File::options().write(true).open(device.path()).unwrap();
    assert!(open(&image, &WRITING).is_none());
    drop((reader, writer));
    assert!(open(&image, &WRITING).is_some());
}

#[test]
fn volumes_that_share_no_byte_are_open_at_the_same_time() {
    if is_left_out("volumes_that_share_no_byte_are_open_at_the_same_time") {
        return;
    }
    let (dir, image) = image();
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(3 * SECOND).unwrap();
    let limit = format!("--sizelimit={SECOND}");
    let at = |offset: u64| {
        let offset = format!("--offset={offset}");
        LoopDevice::of(&image, &[&offset, &limit])
    };
    let (first, second, across) = (at(0), at(SECOND), at(SECOND / 2));
    let held = open(first.path(), &WRITING).unwrap();
    let other = open(second.path(), &WRITING);
    assert!(other.is_some(), "another part of the file");
    assert!(open(across.path(), &WRITING).is_none(), "it shares bytes with both");
    drop(held);
    assert!(open(across.path(), &WRITING).is_none(), "it shares bytes with the second");
    // An image that is opened at an offset is locked as a whole.
    let inside = OpenDevice { offset: SECOND, ..WRITING };
    for path in names(dir.path(), &[]) {
        assert!(open(&path, &inside).is_none(), "{}", path.display());
    }
    drop(other);
    let held = open(&image, &inside).unwrap();
    assert!(open(second.path(), &WRITING).is_none());
    drop(held);
    // The kernel's mount of one part, beside ours of another.
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    let guard = MountGuard::before_mount(&place).unwrap();
    run(Command::new("mount").arg(first.path()).arg(&place));
    assert!(open(second.path(), &WRITING).is_some());
    assert!(open(across.path(), &WRITING).is_none());
    assert!(open(&image, &WRITING).is_none());
    guard.unmount().unwrap();
}

/// The first sector of a disk with two Linux partitions, each from a sector on, so many sectors.
fn partition_table(parts: [(u32, u32); 2]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (at, (start, sectors)) in [446, 462].into_iter().zip(parts) {
        sector[at + 4] = 0x83;
        sector[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[test]
fn partitions_are_parts_of_their_disk() {
    if is_left_out("partitions_are_parts_of_their_disk") {
        return;
    }
    let (dir, image) = image();
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(2 * SECOND).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&partition_table([(2048, 65_536), (131_072, 65_536)]), 0).unwrap();
    let disk = LoopDevice::of(&image, &["--partscan"]);
    let [first, second] = ["p1", "p2"].map(|part| {
        let mut path = disk.path().as_os_str().to_owned();
        path.push(part);
        PathBuf::from(path)
    });
    // A kernel may know no partition tables of this kind: then partx(8) reads it.
    let is_there = || first.exists() && second.exists();
    if !is_there() {
        run(Command::new("partx").arg("--add").arg(disk.path()));
    }
    while !is_there() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let held = open(&first, &WRITING).unwrap();
    let other = open(&second, &WRITING);
    assert!(other.is_some(), "another partition");
    let mut whole = names(dir.path(), &[]);
    whole.push(disk.path().to_path_buf());
    for path in &whole {
        assert!(open(path, &WRITING).is_none(), "{}", path.display());
    }
    drop((held, other));
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    run(Command::new("mkfs.btrfs").args(["-q", "-f", "--mixed"]).arg(&first));
    let guard = MountGuard::before_mount(&place).unwrap();
    run(Command::new("mount").arg(&first).arg(&place));
    for path in whole.iter().chain([&first]) {
        assert!(open(path, &WRITING).is_none(), "{}", path.display());
    }
    assert!(open(&second, &WRITING).is_some());
    guard.unmount().unwrap();
}
