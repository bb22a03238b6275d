//! A child process that has inherited the descriptors of a closed disk.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_sys::file::{DiskFile, OpenDisk};
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn an_open_waits_for_a_child_that_has_inherited_the_closed_disk() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let open = || DiskFile::open(image.path(), OpenDisk { writable: true, ..OpenDisk::default() });
    let first = open().unwrap();
    // As between fork(2) and execve(2), the child has the descriptor that holds the lock.
    let inherited = first.as_fd().try_clone_to_owned().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "read line"])
        .stdin(Stdio::piped())
        .stdout(inherited)
        .spawn()
        .unwrap();
    drop(first);
    let mut input = child.stdin.take().unwrap();
    let end = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        input.write_all(b"\n").unwrap();
    });
    let again = open().map(drop);
    end.join().unwrap();
    child.wait().unwrap();
    assert!(again.is_ok(), "{again:?}");
}
