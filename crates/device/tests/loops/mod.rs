//! Image files and loop devices for tests; gone when dropped.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct Image(tempfile::NamedTempFile);

impl Image {
    /// A sparse file in a directory on a disk file system.
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

pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    pub(crate) fn new(image: &Image, options: &[&str]) -> LoopDevice {
        let mut losetup = Command::new("losetup");
        let output = run(losetup.args(options).args(["--find", "--show"]).arg(image.path()));
        LoopDevice(PathBuf::from(output.trim()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// A mount of the kernel.
pub(crate) struct Mount(tempfile::TempDir);

impl Mount {
    pub(crate) fn new(device: &Path) -> Mount {
        let directory = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
        run(Command::new("mount").args(["-t", "btrfs"]).arg(device).arg(directory.path()));
        Mount(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0.path()));
    }
}

/// Runs a tool that the test cannot do without, and returns what it printed.
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
