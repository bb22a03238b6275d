//! Images that the kernel writes on loop devices, and the kernel's mounts of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use butternut_undo::{LoopGuard, MountGuard, wait_until_released};

/// Bytes of each device, a sparse file.
const DEVICE_BYTES: u64 = 1 << 30;

/// Returns whether these tests may run; prints a line if not.
pub(crate) fn kernel_is_here() -> bool {
    let left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if left_out {
        eprintln!("left out: BUTTERNUT_NO_KERNEL is set");
    }
    !left_out
}

/// Image files on loop devices; both are removed on drop.
pub(crate) struct KernelImage {
    /// Dropped before the files that they are attached to.
    loops: Vec<LoopGuard>,
    pub(crate) devices: Vec<PathBuf>,
    dir: tempfile::TempDir,
}

/// A mount that is unmounted on drop.
pub(crate) struct Mount<'a> {
    path: PathBuf,
    guard: Option<MountGuard>,
    image: &'a KernelImage,
}

impl Mount<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // After a panic with open files, dropping the guard detaches the mount.
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
            for device in &self.image.loops {
                wait_until_released(device.path());
            }
        }
    }
}

impl KernelImage {
    /// Makes a volume on `devices` devices, mounts it read-write, and runs `script` in its root.
    pub(crate) fn make(devices: usize, mkfs: &[&str], mount: &str, script: &str) -> Self {
        let shared_memory = Path::new("/dev/shm");
        let place = if shared_memory.is_dir() { shared_memory } else { Path::new("/var/tmp") };
        let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir_in(place).unwrap();
        let mut image = Self { loops: Vec::new(), devices: Vec::new(), dir };
        for number in 0..devices {
            let path = image.dir.path().join(format!("device{number}"));
            std::fs::File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
            image.loops.push(LoopGuard::attach(&path, &[]).unwrap());
            image.devices.push(path);
        }
        let loops = image.loop_devices();
        let loops = loops.iter().map(String::as_str);
        let arguments: Vec<&str> =
            ["-q"].into_iter().chain(mkfs.iter().copied()).chain(loops).collect();
        run("mkfs.btrfs", &arguments);
        let options = if mount.is_empty() { "rw" } else { mount };
        let mounted = image.mount(options);
        let script = format!("set -e; cd '{}'\n{script}", mounted.path().display());
        run("bash", &["-c", &script]);
        // Not a sync of all mounts: those of other tests may have uncommitted changes.
        run("sync", &["--file-system", &mounted.path().to_string_lossy()]);
        drop(mounted);
        image
    }

    pub(crate) fn mount(&self, options: &str) -> Mount<'_> {
        let path = self.dir.path().join("mount");
        std::fs::create_dir_all(&path).unwrap();
        // The image may have been written as a file. While a loop device is open, the kernel caches
        // blocks that it has read through it, and would mount the old superblock.
        let loops = self.loop_devices();
        for device in &loops {
            run("blockdev", &["--flushbufs", device]);
        }
        let others = loops.iter().map(|device| format!(",device={device}"));
        let options = format!("{options}{}", others.collect::<String>());
        let guard = Some(MountGuard::before_mount(&path).unwrap());
        run("mount", &["-t", "btrfs", "-o", &options, &loops[0], &path.to_string_lossy()]);
        Mount { path, guard, image: self }
    }

    fn loop_devices(&self) -> Vec<String> {
        self.loops.iter().map(|device| device.path().display().to_string()).collect()
    }
}

/// Runs a command to its end. Returns its output, without the last newline.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() && !std::thread::panicking() {
        panic!("{program} {arguments:?}: {}: {printed}{said}", output.status);
    }
    printed.trim_end().to_owned()
}
