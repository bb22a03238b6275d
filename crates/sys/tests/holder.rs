//! The holder of a busy disk is found although another filesystem of the machine does not respond,
//! and an open waits for the process of an unmounted filesystem (since Linux 6.16). The test mounts
//! a filesystem, which needs root; `BUTTERNUT_NO_KERNEL=1` skips it.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_sys::file::{DiskFile, OpenDisk, OpenError};
use butternut_sys::holder::Holder;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[test]
fn a_busy_disk_is_refused_beside_a_filesystem_that_does_not_respond() {
    let test = "a_busy_disk_is_refused_beside_a_filesystem_that_does_not_respond";
    if std::env::var_os("BUTTERNUT_NO_KERNEL").is_some() {
        eprintln!("skipped for BUTTERNUT_NO_KERNEL: {test}");
        return;
    }
    // A FUSE mount whose first request is never answered; accessing its root would block.
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR, Mode::empty()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options).unwrap();
    mount("silent", dir.path(), "fuse", MountFlags::NOSUID, Some(&*options))
        .expect("mounting needs root (or BUTTERNUT_NO_KERNEL=1)");
    let root = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();

    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let first = DiskFile::open(image.path(), how).unwrap();
    let (told, answer) = mpsc::channel();
    let path = image.path().to_path_buf();
    let opener = thread::spawn(move || told.send(DiskFile::open(&path, how)));
    // The timeout is long enough that only an open that hangs exceeds it, also on a busy machine.
    let answered = answer.recv_timeout(Duration::from_mins(5));
    let server = Holder::Process { id: std::process::id(), name: String::new() };
    let mut waits = vec![!server.release_wait().is_zero()];
    // Closing the connection unblocks any waiting thread.
    drop(root);
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    waits.push(!server.release_wait().is_zero());
    drop(device);
    waits.push(!server.release_wait().is_zero());
    assert_eq!(waits, [false, true, false], "mounted, unmounted, connection closed");
    // A process may end between the search for it and the look at its mounts.
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let holder = Holder::Process { id: ended.id(), name: String::new() };
    assert!(!holder.release_wait().is_zero());
    opener.join().unwrap().unwrap();
    let refused = answered.expect("the second open hangs").unwrap_err();
    let OpenError::Busy { holder: Holder::Process { id, .. }, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(id, std::process::id());
    drop(first);
}
