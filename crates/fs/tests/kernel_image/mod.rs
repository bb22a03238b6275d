//! Images that the kernel writes on loop devices, and its own mount of them to compare with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of each device, sparse.
const DEVICE_BYTES: u64 = 1 << 30;

/// Whether these tests may run; says so where not.
pub(crate) fn kernel_is_here() -> bool {
    let left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if left_out {
        eprintln!("left out: BUTTERNUT_NO_KERNEL is set");
    }
    !left_out
}

/// Image files on loop devices; both go away with this.
pub(crate) struct KernelImage {
    dir: tempfile::TempDir,
    pub(crate) devices: Vec<PathBuf>,
    loops: Vec<String>,
}

/// A mount that is undone when dropped.
pub(crate) struct Mount<'a> {
    path: PathBuf,
    _image: &'a KernelImage,
}

impl Mount<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let path = self.path.to_string_lossy().into_owned();
        // Whoever looks at all mounts, or forks while this one is looked at, keeps it busy a while.
        for _ in 0..50 {
            let tried = Command::new("umount").arg(&path).output();
            if tried.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        run("umount", &[&path]);
    }
}

impl KernelImage {
    /// Makes a volume of so many devices, mounts it read-write, and runs `script` in its root.
    pub(crate) fn make(devices: usize, mkfs: &[&str], mount: &str, script: &str) -> Self {
        let shared_memory = Path::new("/dev/shm");
        let place = if shared_memory.is_dir() { shared_memory } else { Path::new("/var/tmp") };
        let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir_in(place).unwrap();
        let mut image = Self { dir, devices: Vec::new(), loops: Vec::new() };
        for number in 0..devices {
            let path = image.dir.path().join(format!("device{number}"));
            std::fs::File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
            image.loops.push(run("losetup", &["--find", "--show", &path.to_string_lossy()]));
            image.devices.push(path);
        }
        let loops = image.loops.iter().map(String::as_str);
        let arguments: Vec<&str> =
            ["-q"].into_iter().chain(mkfs.iter().copied()).chain(loops).collect();
        run("mkfs.btrfs", &arguments);
        let options = if mount.is_empty() { "rw" } else { mount };
        let mounted = image.mount(options);
        let script = format!("set -e; cd '{}'\n{script}", mounted.path().display());
        run("bash", &["-c", &script]);
        // Not of all mounts: other tests have theirs, with what they have not committed.
        run("sync", &["--file-system", &mounted.path().to_string_lossy()]);
        drop(mounted);
        image
    }

    pub(crate) fn mount(&self, options: &str) -> Mount<'_> {
        let path = self.dir.path().join("mount");
        std::fs::create_dir_all(&path).unwrap();
        // The image may have been written as a file. While anybody has a loop device open, the
        // kernel keeps what it last read through it, and would mount the superblock of then.
        self.loops.iter().for_each(|device| drop(run("blockdev", &["--flushbufs", device])));
        let others = self.loops.iter().map(|device| format!(",device={device}"));
        let options = format!("{options}{}", others.collect::<String>());
        run("mount", &["-t", "btrfs", "-o", &options, &self.loops[0], &path.to_string_lossy()]);
        Mount { path, _image: self }
    }
}

impl Drop for KernelImage {
    fn drop(&mut self) {
        for device in &self.loops {
            run("losetup", &["--detach", device]);
        }
    }
}

/// Runs a command to its end; what it printed, without the last newline.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && !std::thread::panicking() {
        panic!("{program} {arguments:?}: {said}");
    }
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}
