//! A mount is detached, and no other one, while another thread renames the mount points from
//! another mount namespace. Mounts filesystems, which needs root; `BUTTERNUT_NO_KERNEL=1` skips the
//! test.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_sys::mounts;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_change, unmount};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// Number of attempts to detach. The window of the race was a few system calls wide.
const ROUNDS: usize = 200;

/// Two mount points. Dropping them detaches their mounts.
struct MountPoints(PathBuf, PathBuf);

impl MountPoints {
    fn detach_all(&self) {
        for mount_point in [&self.0, &self.1] {
            while unmount(mount_point, UnmountFlags::DETACH).is_ok() {}
        }
    }
}

impl Drop for MountPoints {
    fn drop(&mut self) {
        self.detach_all();
    }
}

fn mount_tmpfs(mount_point: &Path) {
    mount("none", mount_point, "tmpfs", MountFlags::empty(), None)
        .expect("mounting needs root (or BUTTERNUT_NO_KERNEL=1)");
}

/// Detaches the copies of the mounts of other tests from the namespace of this thread: a loop
/// device is busy while a namespace has it mounted.
fn detach_mounts_of_other_tests() {
    let is_of_test =
        |place: &str| ["/tmp/", "/var/tmp/", "/dev/shm/"].iter().any(|dir| place.starts_with(dir));
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    for (fields, source) in table.lines().filter_map(|line| line.split_once(" - ")) {
        let is_on_loop = source.contains(" /dev/loop") || source.starts_with("fuse.butternut ");
        let place = fields.split(' ').nth(4).filter(|place| is_on_loop && is_of_test(place));
        if let Some(place) = place {
            // Fails where it is a mount below another one that is detached already.
            unmount(place, UnmountFlags::DETACH).unwrap_or_default();
        }
    }
}

/// Exchanges the names of both directories until `is_over`, in another mount namespace, where they
/// are not mount points. Calls `ready` when the thread has that namespace.
fn exchange_names(mount_points: &MountPoints, is_over: &AtomicBool, ready: impl FnOnce()) {
    // SAFETY: changes only what the paths of this thread lead to.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    detach_mounts_of_other_tests();
    ready();
    while !is_over.load(Ordering::Relaxed) {
        renameat_with(CWD, &mount_points.0, CWD, &mount_points.1, RenameFlags::EXCHANGE).unwrap();
    }
}

#[test]
fn a_mount_is_detached_and_no_other_one_while_mount_points_are_renamed() {
    if std::env::var_os("BUTTERNUT_NO_KERNEL").is_some() {
        let test = "a_mount_is_detached_and_no_other_one_while_mount_points_are_renamed";
        eprintln!("skipped for BUTTERNUT_NO_KERNEL: {test}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let mount_points = MountPoints(path.join("one"), path.join("other"));
    for mount_point in [&mount_points.0, &mount_points.1] {
        std::fs::create_dir(mount_point).unwrap();
    }
    let is_over = AtomicBool::new(false);
    let (ready, is_ready) = channel();
    let mut detached = 0;
    thread::scope(|scope| {
        scope.spawn(|| exchange_names(&mount_points, &is_over, || ready.send(()).unwrap()));
        is_ready.recv().unwrap();
        let detach_repeatedly = || {
            for _ in 0..ROUNDS {
                let mounts_in_dir = || -> Vec<mounts::Mount> {
                    let is_in_dir = |m: &mounts::Mount| m.mountpoint.starts_with(&path);
                    mounts::read().unwrap().into_iter().filter(is_in_dir).collect()
                };
                // If one of them is mounted on the other, both are detached.
                let before = loop {
                    match &mounts_in_dir()[..] {
                        [one, other] if one.is_on(other) || other.is_on(one) => {
                            mount_points.detach_all();
                        }
                        [one, other] => break [one.clone(), other.clone()],
                        _ => mount_tmpfs(&mount_points.0),
                    }
                };
                // Fails if the path leads to the other mount at that moment.
                let result = mounts::unmount(&before[0], UnmountFlags::DETACH);
                let after = mounts_in_dir();
                let is_left = |mount: &mounts::Mount| after.iter().any(|left| left.id == mount.id);
                if result.is_ok() {
                    detached += 1;
                    assert!(
                        !is_left(&before[0]) && is_left(&before[1]),
                        "another mount was detached"
                    );
                } else {
                    assert!(is_left(&before[0]) && is_left(&before[1]));
                }
            }
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(detach_repeatedly));
        is_over.store(true, Ordering::Relaxed);
        caught.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(detached > 0, "no attempt has found the mount");
}
