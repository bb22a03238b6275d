//! Image files and loop devices for tests, removed when dropped, and how they are opened.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

use butternut_device::{OpenDevice, Sharing};
use butternut_undo::{LoopGuard, MountGuard};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

pub(crate) const READ: OpenDevice = OpenDevice {
    writable: false,
    offset: 0,
    bytes: None,
    direct: true,
    sharing: Sharing::Locked,
    mounted: None,
    may_register: true,
};
pub(crate) const WRITE: OpenDevice = OpenDevice { writable: true, ..READ };

pub(crate) struct Image(tempfile::NamedTempFile);

impl Image {
    /// Makes a sparse file in a directory on a disk filesystem.
    pub(crate) fn new(bytes: u64) -> Image {
        Image::new_in("/var/tmp", bytes)
    }

    pub(crate) fn new_in(directory: &str, bytes: u64) -> Image {
        let file = tempfile::NamedTempFile::new_in(directory).unwrap();
        file.as_file().set_len(bytes).unwrap();
        Image(file)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn set_len(&self, bytes: u64) {
        self.0.as_file().set_len(bytes).unwrap();
    }
}

pub(crate) struct LoopDevice(LoopGuard);

impl LoopDevice {
    pub(crate) fn new(image: &Image, options: &[&str]) -> LoopDevice {
        LoopDevice::of(image.path(), options)
    }

    pub(crate) fn of(file: &Path, options: &[&str]) -> LoopDevice {
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        LoopDevice(LoopGuard::attach(file, &options).expect("needs root and loop devices"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A mount by the kernel.
pub(crate) struct Mount {
    guard: Option<MountGuard>,
    directory: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn new(device: &Path) -> Mount {
        let directory = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
        let guard = Some(MountGuard::before_mount(directory.path()).unwrap());
        run(Command::new("mount").args(["-t", "btrfs"]).arg(device).arg(directory.path()));
        Mount { guard, directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // During a panic, files of the mount may still be open; dropping the guard detaches the
        // mount.
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
        }
    }
}

/// Runs a tool and returns its output. Panics if the tool is missing or fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (packages needed: mount, btrfs-progs)")
    });
    assert!(
        output.status.success(),
        "{command:?} (needs root and loop devices): {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
