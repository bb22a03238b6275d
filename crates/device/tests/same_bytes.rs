//! A volume that can be reached by many names is opened for writing by only one of them, and not
//! while the kernel has it mounted. Needs root and loop devices; `BUTTERNUT_NO_KERNEL=1` skips the
//! tests.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's helpers are tests, and report skipped tests"
)]

mod loops;

use butternut_device::{DeviceError, FileDevice, OpenDevice, OpenError};
use butternut_undo::MountGuard;
use loops::{LoopDevice, READ, WRITE, run};
use rustix::fs::inotify;
use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 128 << 20;
/// Where the second volume of an image begins.
const SECOND: u64 = 256 << 20;
const FREE_MAX: Duration = Duration::from_mins(1);

fn is_skipped(test: &str) -> bool {
    let is_set = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_set {
        eprintln!("skipped for BUTTERNUT_NO_KERNEL: {test}");
    }
    is_set
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

/// Returns loop devices of an image, one for each of three names. The last name is removed
/// afterwards, so only the loop driver knows the file of that device.
fn loops_of(dir: &Path, image: &Path) -> [LoopDevice; 3] {
    let gone = dir.join("gone");
    fs::hard_link(image, &gone).unwrap();
    let loops = [image, &dir.join("hard"), &gone].map(|name| LoopDevice::of(name, &[]));
    fs::remove_file(&gone).unwrap();
    loops
}

/// Returns every path to the bytes of an image.
fn names(dir: &Path, loops: &[LoopDevice]) -> Vec<PathBuf> {
    let files = ["image", "folder/../image", "hard", "symlink"].map(|name| dir.join(name));
    files.into_iter().chain(loops.iter().map(|device| device.path().to_path_buf())).collect()
}

/// Opens a device. Returns `None` if the disk is busy.
#[track_caller]
fn open(path: &Path, how: &OpenDevice) -> Option<FileDevice> {
    match FileDevice::open(path, how) {
        Ok(device) => Some(device),
        Err(DeviceError::Open(error)) if matches!(&*error, OpenError::Busy { .. }) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Waits until a device can be opened for writing. Another test that has just made a mount
/// namespace has a copy of each mount for a moment.
#[track_caller]
fn wait_until_free(path: &Path) {
    let start = Instant::now();
    while open(path, &WRITE).is_none() {
        assert!(start.elapsed() < FREE_MAX, "{} is busy", path.display());
    }
}

#[test]
fn only_one_name_of_a_volume_can_be_open_for_writing() {
    if is_skipped("only_one_name_of_a_volume_can_be_open_for_writing") {
        return;
    }
    let (dir, image) = image();
    let loops = loops_of(dir.path(), &image);
    let names = names(dir.path(), &loops);
    for first in &names {
        for second in &names {
            for (how, then, is_free) in [
                (WRITE, WRITE, false),
                (WRITE, READ, false),
                (READ, WRITE, false),
                (READ, READ, true),
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
fn no_name_of_a_mounted_volume_can_be_opened_for_writing() {
    if is_skipped("no_name_of_a_mounted_volume_can_be_opened_for_writing") {
        return;
    }
    let (dir, image) = image();
    let loops = loops_of(dir.path(), &image);
    let names = names(dir.path(), &loops);
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    for mounted in &loops {
        let name = mounted.path().file_name().unwrap();
        // The mount table shows the name of the device as it was passed to mount(2).
        for source in [mounted.path(), Path::new(name)] {
            let guard = MountGuard::before_mount(&place).unwrap();
            mount_from_dev(source, &place);
            for path in &names {
                let shown = format!("{} mounted, {}", source.display(), path.display());
                assert!(open(path, &WRITE).is_none(), "{shown}");
                assert!(open(path, &READ).is_some(), "{shown}");
            }
            guard.unmount().unwrap();
        }
    }
    for path in &names {
        wait_until_free(path);
    }
}

/// Runs `cd /dev && mount SOURCE`, without letting mount(8) make the name absolute.
fn mount_from_dev(source: &Path, place: &Path) {
    let mut command = Command::new("mount");
    command.current_dir("/dev").args(["--internal-only", "--no-canonicalize", "-t", "btrfs"]);
    run(command.arg(source).arg(place));
}

#[test]
fn the_kernel_cannot_mount_a_device_that_is_open_for_writing() {
    if is_skipped("the_kernel_cannot_mount_a_device_that_is_open_for_writing") {
        return;
    }
    let (dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    let held = open(device.path(), &WRITE).unwrap();
    let _guard = MountGuard::before_mount(&place).unwrap();
    let mount = || Command::new("mount").arg(device.path()).arg(&place).output().unwrap();
    assert!(!mount().status.success());
    drop(held);
    let mounted = mount();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
}

#[test]
fn a_loop_device_that_is_open_for_writing_is_a_user_of_its_file() {
    if is_skipped("a_loop_device_that_is_open_for_writing_is_a_user_of_its_file") {
        return;
    }
    let (_dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    let reader = fs::File::open(device.path()).unwrap();
    assert!(open(&image, &WRITE).is_some(), "a reader does not conflict");
    let writer = fs::File::options().write(true).open(device.path()).unwrap();
    assert!(open(&image, &WRITE).is_none());
    drop((reader, writer));
    assert!(open(&image, &WRITE).is_some());
}

#[test]
fn a_file_in_the_place_of_a_deleted_one_is_not_opened() {
    if is_skipped("a_file_in_the_place_of_a_deleted_one_is_not_opened") {
        return;
    }
    let (dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    fs::remove_file(&image).unwrap();
    // The driver shows this path. Any user of the directory may have made the symbolic link.
    let shown = dir.path().join("image (deleted)");
    let bait = dir.path().join("bait");
    fs::write(&bait, "bait").unwrap();
    symlink("bait", &shown).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, &bait, inotify::WatchFlags::OPEN).unwrap();
    for how in [&READ, &WRITE] {
        assert!(open(device.path(), how).is_some());
    }
    assert_eq!(rustix::io::read(&watch, &mut [0; 256]), Err(rustix::io::Errno::AGAIN));
}

#[test]
fn an_open_waits_for_a_program_that_has_a_loop_device_open_for_a_moment() {
    if is_skipped("an_open_waits_for_a_program_that_has_a_loop_device_open_for_a_moment") {
        return;
    }
    let (_dir, image) = image();
    let device = LoopDevice::of(&image, &[]);
    let writer = fs::File::options().write(true).open(device.path()).unwrap();
    let brief = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(writer);
    });
    let opened = open(&image, &WRITE);
    brief.join().unwrap();
    assert!(opened.is_some());
}

/// Whether the process is in a mount namespace of its own.
const IN_NAMESPACE: &str = "BUTTERNUT_TEST_IN_NAMESPACE";

/// Runs a test of this program in a mount namespace of its own. The namespace keeps no mount of
/// another test, whose volume would not be released.
fn run_in_namespace(test: &str) {
    let script = r#"
        cut -d " " -f 5 /proc/self/mountinfo | grep -E "^(/tmp|/var/tmp|/dev/shm)/" |
            while read -r mount; do umount -l "$mount" || true; done
        exec "$0" --exact --nocapture "$1""#;
    let program = std::env::current_exe().unwrap();
    let shell = ["--mount", "--propagation", "private", "sh", "-ec", script];
    run(Command::new("unshare").args(shell).arg(program).arg(test).env(IN_NAMESPACE, "1"));
}

/// A FUSE mount whose requests nothing answers.
struct Unresponsive {
    _connection: fs::File,
    _mount: MountGuard,
}

impl Unresponsive {
    fn over(place: &Path) -> Unresponsive {
        let connection = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let mount = MountGuard::before_mount(place).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", connection.as_raw_fd());
        let options = CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("unresponsive", place, "fuse", flags, Some(options.as_c_str()))
            .unwrap();
        Unresponsive { _connection: connection, _mount: mount }
    }
}

#[test]
fn a_mount_over_the_path_of_a_loop_devices_file_hides_no_user_of_its_bytes() {
    if is_skipped("a_mount_over_the_path_of_a_loop_devices_file_hides_no_user_of_its_bytes") {
        return;
    }
    // mkfs.btrfs(8) of another test would look the file of this mounted loop device up.
    if std::env::var_os(IN_NAMESPACE).is_none() {
        return run_in_namespace(
            "a_mount_over_the_path_of_a_loop_devices_file_hides_no_user_of_its_bytes",
        );
    }
    let (dir, image) = image();
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    // The loop device has the file by a name in the directory that is then hidden.
    let name = dir.path().join("folder/name");
    fs::hard_link(&image, &name).unwrap();
    let device = LoopDevice::of(&name, &[]);
    let mounted = MountGuard::before_mount(&place).unwrap();
    run(Command::new("mount").arg(device.path()).arg(&place));
    let hidden = Unresponsive::over(&dir.path().join("folder"));
    assert!(open(&image, &WRITE).is_none(), "the kernel has mounted the hidden name");
    let unrelated = dir.path().join("unrelated");
    fs::copy(&image, &unrelated).unwrap();
    assert!(open(&unrelated, &WRITE).is_some());
    drop(hidden);
    mounted.unmount().unwrap();
    wait_until_free(&image);
}

#[test]
fn disjoint_volumes_of_one_file_can_be_open_at_the_same_time() {
    if is_skipped("disjoint_volumes_of_one_file_can_be_open_at_the_same_time") {
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
    let held = open(first.path(), &WRITE).unwrap();
    let other = open(second.path(), &WRITE);
    assert!(other.is_some(), "another part of the file");
    assert!(open(across.path(), &WRITE).is_none(), "it shares bytes with both");
    drop(held);
    assert!(open(across.path(), &WRITE).is_none(), "it shares bytes with the second");
    // An open at an offset of an image locks the rest of the image, or as much as it uses.
    let inside = OpenDevice { offset: SECOND, ..WRITE };
    let part = |offset| OpenDevice { offset, bytes: Some(SECOND), ..WRITE };
    for path in names(dir.path(), &[]) {
        assert!(open(&path, &inside).is_none(), "{}", path.display());
        assert!(open(&path, &part(SECOND)).is_none(), "{}", path.display());
        let first = open(&path, &part(0)).unwrap();
        assert!(open(&image, &part(0)).is_none(), "{}", path.display());
        assert!(open(&image, &part(2 * SECOND)).is_some(), "{}", path.display());
        drop(first);
    }
    drop(other);
    let held = open(&image, &inside).unwrap();
    assert!(open(second.path(), &WRITE).is_none());
    drop(held);
    // The kernel mounts one part while another is opened here.
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    let guard = MountGuard::before_mount(&place).unwrap();
    run(Command::new("mount").arg(first.path()).arg(&place));
    assert!(open(second.path(), &WRITE).is_some());
    assert!(open(across.path(), &WRITE).is_none());
    assert!(open(&image, &WRITE).is_none());
    guard.unmount().unwrap();
}

/// Returns the first sector of a disk with two Linux partitions, each given as (first sector,
/// number of sectors).
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
fn partitions_conflict_with_their_disk_but_not_with_each_other() {
    if is_skipped("partitions_conflict_with_their_disk_but_not_with_each_other") {
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
    // If the kernel does not support this kind of partition table, partx(8) reads it.
    let is_there = || first.exists() && second.exists();
    if !is_there() {
        run(Command::new("partx").arg("--add").arg(disk.path()));
    }
    while !is_there() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let held = open(&first, &WRITE).unwrap();
    let other = open(&second, &WRITE);
    assert!(other.is_some(), "another partition");
    let mut whole = names(dir.path(), &[]);
    whole.push(disk.path().to_path_buf());
    for path in &whole {
        assert!(open(path, &WRITE).is_none(), "{}", path.display());
    }
    drop((held, other));
    let place = dir.path().join("mount");
    fs::create_dir(&place).unwrap();
    run(Command::new("mkfs.btrfs").args(["-q", "-f", "--mixed"]).arg(&first));
    let guard = MountGuard::before_mount(&place).unwrap();
    run(Command::new("mount").arg(&first).arg(&place));
    for path in whole.iter().chain([&first]) {
        assert!(open(path, &WRITE).is_none(), "{}", path.display());
    }
    assert!(open(&second, &WRITE).is_some());
    guard.unmount().unwrap();
}
