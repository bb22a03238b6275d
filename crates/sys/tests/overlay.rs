//! The file of an overlay and the file beneath it are one disk. Mounts filesystems, which needs
//! root; `BUTTERNUT_NO_KERNEL=1` skips the test.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use butternut_sys::file::{DiskFile, OpenDisk, OpenError};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An overlay whose directories are in a memory filesystem of its own.
struct Overlay(tempfile::TempDir);

impl Overlay {
    /// Mounts the overlay on one of the directories.
    fn on(target: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        mount("none", dir.path(), "tmpfs", MountFlags::empty(), None)
            .expect("mounting needs root (or BUTTERNUT_NO_KERNEL=1)");
        let new = Self(dir);
        for name in ["up", "low", "work", "over"] {
            fs::create_dir(new.path(name)).unwrap();
        }
        fs::create_dir(new.path("up/dir")).unwrap();
        File::create(new.path("up/dir/image")).unwrap().set_len(1 << 20).unwrap();
        let place = new.0.path().display();
        let options = format!("lowerdir={place}/low,upperdir={place}/up,workdir={place}/work");
        let options = CString::new(options).unwrap();
        mount("none", new.path(target), "overlay", MountFlags::empty(), Some(&*options)).unwrap();
        new
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // The overlay is detached with the filesystem that it is mounted in.
        unmount(self.0.path(), UnmountFlags::DETACH).unwrap_or_default();
    }
}

fn open(path: &Path) -> Result<DiskFile, OpenError> {
    DiskFile::open(path, OpenDisk { writable: true, ..OpenDisk::default() })
}

fn is_skipped(test: &str) -> bool {
    let is_skipped = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_skipped {
        eprintln!("skipped for BUTTERNUT_NO_KERNEL: {test}");
    }
    is_skipped
}

#[track_caller]
fn assert_busy(path: &Path) {
    let refused = open(path).err();
    assert!(matches!(refused, Some(OpenError::Busy { .. })), "{refused:?}");
}

#[test]
fn a_file_of_an_overlay_conflicts_with_the_file_beneath_it() {
    if is_skipped("a_file_of_an_overlay_conflicts_with_the_file_beneath_it") {
        return;
    }
    let overlay = Overlay::on("over");
    let (over, beneath) = (overlay.path("over/dir/image"), overlay.path("up/dir/image"));
    for (one, other) in [(&over, &beneath), (&beneath, &over)] {
        let first = open(one).unwrap();
        assert_busy(other);
        drop(first);
        drop(open(other).unwrap());
    }
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&beneath).output().unwrap();
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let user = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    let refused = open(&over).err();
    drop(user);
    assert!(Command::new("losetup").args(["-d", &device]).status().unwrap().success());
    assert!(matches!(refused, Some(OpenError::Busy { .. })), "{refused:?}");
}

#[test]
fn an_overlay_on_its_own_upper_directory_does_not_conflict_with_itself() {
    if is_skipped("an_overlay_on_its_own_upper_directory_does_not_conflict_with_itself") {
        return;
    }
    let overlay = Overlay::on("up");
    let image = overlay.path("up/dir/image");
    let first = open(&image).unwrap();
    assert_busy(&image);
    drop(first);
}
