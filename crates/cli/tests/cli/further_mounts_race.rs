//! A further mount of a volume whose last mount is unmounted at the same time.

use std::fs;
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::{CWD, major, minor};
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::mount::{MountPoint, holders, own_copy};

/// Requests a clone of the top-level directory. Returns the connection, the clone if there is one,
/// and the response.
fn request_clone(socket: &PathBuf) -> (UnixStream, Option<OwnedFd>, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"{\"ask\":\"clone\",\"subvolume\":{\"id\":5}}\n").unwrap();
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(&stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    (stream, fd, line)
}

/// Returns the thread of `process` that watches the mount table. A thread has the name of its
/// process until it runs for the first time, which may be after the mount is reported.
fn watcher(process: u64) -> PathBuf {
    let watches = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "butternut-mnt\n")
    };
    loop {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut paths = tasks.flatten().map(|task| task.path());
        if let Some(path) = paths.find(watches) {
            return path;
        }
        std::thread::yield_now();
    }
}

/// Calls `act`, and waits until the thread that watches the mount table has run again or has ended.
fn wait_for_watcher(process: u64, act: impl FnOnce()) {
    let thread = watcher(process);
    let switches = || {
        let status = fs::read_to_string(thread.join("status")).ok()?;
        status.lines().find(|line| line.starts_with("voluntary")).map(str::to_owned)
    };
    let before = switches().unwrap();
    act();
    while switches().is_some_and(|now| now == before) {
        std::thread::yield_now();
    }
}

#[test]
fn a_volume_stays_mounted_if_its_last_mount_ends_during_a_further_one() {
    if !kernel_tests_enabled("a_volume_stays_mounted_if_its_last_mount_ends_during_a_further_one") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    let (first, other, third) = (MountPoint::new(), MountPoint::new(), MountPoint::new());
    let output = butternut(&["mount", "--json", path, first.name()]).ok();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let device = fs::metadata(first.path()).unwrap().dev();
    let socket = format!("/run/butternut/{}-{}.sock", major(device), minor(device));
    let socket = PathBuf::from(socket);

    // The last mount is unmounted while the clone is not attached yet.
    let (connection, clone, _) = request_clone(&socket);
    wait_for_watcher(report["process"].as_u64().unwrap(), || {
        shell(&format!("umount {}", first.name()));
    });
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(clone.unwrap(), "", CWD, other.path(), flags).unwrap();
    drop(connection);
    fs::write(other.path().join("new"), "text").unwrap();
    butternut(&["mount", path, third.name()]).ok();
    assert_eq!(fs::read_to_string(third.path().join("new")).unwrap(), "text");
    assert_eq!(holders(&image).len(), 1, "one process serves both");

    // A clone that is dropped without being attached does not keep the volume mounted.
    let (connection, clone, _) = request_clone(&socket);
    shell(&format!("umount {} {}", third.name(), other.name()));
    drop((connection, clone));
    while !holders(&image).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(butternut(&["cat", path, "/new"]).ok(), "text");
}

#[test]
fn a_further_mount_of_a_volume_that_is_being_unmounted_is_refused() {
    if !kernel_tests_enabled("a_further_mount_of_a_volume_that_is_being_unmounted_is_refused") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let (first, file) = (MountPoint::new(), "hello.txt");
    butternut(&["mount", image.to_str().unwrap(), first.name()]).ok();
    let device = fs::metadata(first.path()).unwrap().dev();
    let socket = PathBuf::from(format!("/run/butternut/{}-{}.sock", major(device), minor(device)));
    let open = fs::File::open(first.path().join(file)).unwrap();
    shell(&format!("umount -l {}", first.name()));
    // The volume can be cloned until the process has read the mount table again.
    let (mut clones, mut response);
    loop {
        (_, clones, response) = request_clone(&socket);
        if clones.is_none() {
            break;
        }
    }
    assert!(response.contains("the volume is being unmounted"), "{response}");
    drop(open);
    while !holders(&image).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
