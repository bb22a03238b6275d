//! What a killed test leaves on the machine, and what a busy mount is waited for. Needs root and
//! loop devices; `BUTTERNUT_NO_KERNEL=1` leaves the tests out.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests panic where they fail")]

use butternut_undo::{LoopGuard, MountGuard, Undo, unmount};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Where the test runs itself again as the process that is to be killed: its directory.
const VICTIM: &str = "BUTTERNUT_UNDO_VICTIM";

fn is_left_out(test: &str) -> bool {
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

/// Sets up a mount and a loop device, prints that, and waits for its death.
fn be_the_victim(dir: &Path) {
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
        be_the_victim(Path::new(&dir));
    }
    if is_left_out(test) {
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
fn a_script_is_not_run_where_the_value_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, kept) = (dir.path().join("ran"), dir.path().join("kept"));
    drop(Undo::at_death("touch \"$1\"", &[&ran]).unwrap());
    let undo = Undo::at_death("touch \"$1\"", &[&kept]).unwrap();
    assert!(!ran.exists() && !kept.exists());
    drop(undo);
    assert!(!kept.exists());
}

#[test]
fn a_mount_that_is_busy_for_a_while_is_waited_for() {
    if is_left_out("a_mount_that_is_busy_for_a_while_is_waited_for") {
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
fn a_guard_that_is_dropped_detaches_a_busy_mount() {
    if is_left_out("a_guard_that_is_dropped_detaches_a_busy_mount") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir().unwrap();
    let guard = mount_tmpfs(dir.path());
    let file = fs::File::create(dir.path().join("file")).unwrap();
    drop(guard);
    assert!(!is_mounted(dir.path()));
    drop(file);
}
