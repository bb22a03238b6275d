//! Tests that a killed test leaves nothing on the machine, and that a busy mount is unmounted
//! later. Needs root and loop devices; `BUTTERNUT_NO_KERNEL=1` skips the tests.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests panic where they fail")]

use butternut_undo::{LoopGuard, MountGuard, Undo, unmount};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Environment variable with the directory of the process that is to be killed, which is this test
/// program run again.
const VICTIM: &str = "BUTTERNUT_UNDO_VICTIM";

fn is_skipped(test: &str) -> bool {
    let left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if left_out {
        eprintln!("left out for BUTTERNUT_NO_KERNEL: {test}");
    }
    left_out
}

fn is_mounted(root: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(root.to_str().unwrap())
}

fn mount_tmpfs(root: &Path) -> MountGuard {
    let guard = MountGuard::before_mount(root).unwrap();
    let status = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(root).status();
    assert!(status.unwrap().success(), "mounting needs root");
    guard
}

/// Sets up a mount and a loop device, prints that, and waits to be killed.
fn run_until_killed(dir: &Path) {
    let root = dir.join("mount");
    fs::create_dir(&root).unwrap();
    let _mount = mount_tmpfs(&root);
    let image = dir.join("image");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let looped = LoopGuard::attach(&image, &[]).unwrap();
    eprintln!("VICTIM {}", looped.path().display());
    loop {
        thread::park();
    }
}

#[test]
fn a_killed_process_leaves_no_mount_and_no_loop_device() {
    let test = "a_killed_process_leaves_no_mount_and_no_loop_device";
    if let Some(dir) = std::env::var_os(VICTIM) {
        run_until_killed(Path::new(&dir));
    }
    if is_skipped(test) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(victim.stderr.take().unwrap());
    let is_ready = said.lines().map(Result::unwrap).find(|line| line.starts_with("VICTIM "));
    let device = is_ready.unwrap().trim_start_matches("VICTIM ").to_owned();
    let backing = format!("/sys/block/{}/loop/backing_file", device.trim_start_matches("/dev/"));
    let image = dir.path().join("image");
    let is_attached =
        || fs::read_to_string(&backing).is_ok_and(|file| Path::new(file.trim_end()) == image);
    assert!(is_attached() && is_mounted(&dir.path().join("mount")));
    victim.kill().unwrap();
    victim.wait().unwrap();
    // The test is killed for a hang if this does not end.
    while is_attached() || is_mounted(&dir.path().join("mount")) {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn dropping_the_value_does_not_run_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, kept) = (dir.path().join("ran"), dir.path().join("kept"));
    drop(Undo::at_death("touch \"$1\"", &[&ran]).unwrap());
    let undo = Undo::at_death("touch \"$1\"", &[&kept]).unwrap();
    assert!(!ran.exists() && !kept.exists());
    drop(undo);
    assert!(!kept.exists());
}

#[test]
fn unmount_waits_for_a_busy_mount() {
    if is_skipped("unmount_waits_for_a_busy_mount") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir().unwrap();
    let mut guard = mount_tmpfs(dir.path());
    let file = fs::File::create(dir.path().join("file")).unwrap();
    let root = dir.path().to_path_buf();
    let unmounting = thread::spawn(move || unmount(&root));
    thread::sleep(Duration::from_millis(300));
    assert!(is_mounted(dir.path()));
    drop(file);
    unmounting.join().unwrap().unwrap();
    guard.undone();
    assert!(!is_mounted(dir.path()));
}

#[test]
fn dropping_a_guard_detaches_a_busy_mount() {
    if is_skipped("dropping_a_guard_detaches_a_busy_mount") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir().unwrap();
    let guard = mount_tmpfs(dir.path());
    let file = fs::File::create(dir.path().join("file")).unwrap();
    drop(guard);
    assert!(!is_mounted(dir.path()));
    drop(file);
}

#[test]
fn dropping_a_guard_unmounts_a_filesystem_with_a_dead_process() {
    if is_skipped("dropping_a_guard_unmounts_a_filesystem_with_a_dead_process") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("butternut test\\").tempdir().unwrap();
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let guard = MountGuard::before_mount(dir.path()).unwrap();
    // The shell passes the descriptor to mount(8), and no other program of it.
    let script = "mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 dead \"$1\"";
    let mounted = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(dir.path())
        .stdin(device.try_clone().unwrap())
        .status();
    assert!(mounted.unwrap().success(), "mounting needs root");
    drop(device);
    assert!(fs::metadata(dir.path()).is_err(), "the filesystem answers");
    drop(guard);
    assert!(fs::metadata(dir.path()).unwrap().is_dir());
}
