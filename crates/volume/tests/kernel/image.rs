//! Volumes made by `mkfs.btrfs` and filled by the kernel over loop devices.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use butternut_undo::{LoopGuard, MountGuard};
use tempfile::TempDir;

/// Size of each sparse device, in bytes.
const DEVICE_BYTES: u64 = 384 << 20;

/// Returns whether these tests may run, and prints a message if not.
pub(crate) fn kernel_is_here() -> bool {
    let is_left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_left_out {
        eprintln!("left out: BUTTERNUT_NO_KERNEL is set");
    }
    !is_left_out
}

/// The image files of one volume, deleted when it is dropped.
pub(crate) struct Image {
    directory: TempDir,
    pub(crate) paths: Vec<PathBuf>,
}

/// The loop devices and the mount of a test, released in the order of the fields, also during a
/// panic.
struct Mounted {
    point: Option<MountGuard>,
    loops: Vec<LoopGuard>,
}

impl Image {
    /// A volume of `count` devices; `mkfs` is the rest of the command line.
    pub(crate) fn make(count: usize, mkfs: &[&str]) -> Image {
        let image = Image::blank(count);
        let mut command = Command::new("mkfs.btrfs");
        command.args(["-q", "-f"]).args(mkfs).args(&image.paths);
        run(&mut command);
        image
    }

    /// Empty files of the size of devices.
    pub(crate) fn blank(count: usize) -> Image {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let directory =
            TempDir::with_prefix_in("butternut-test-", parent).expect("a temporary directory");
        let paths: Vec<_> =
            (0..count).map(|index| directory.path().join(format!("{index}.img"))).collect();
        for path in &paths {
            fs::File::create(path).unwrap().set_len(DEVICE_BYTES).unwrap();
        }
        Image { directory, paths }
    }

    /// Mounts the volume with the kernel, lets `fill` write to it, and unmounts it.
    pub(crate) fn with_kernel(&self, paths: &[PathBuf], options: &str, fill: impl FnOnce(&Path)) {
        let point = self.directory.path().join("mnt");
        fs::create_dir_all(&point).unwrap();
        let mut mounted = Mounted { point: None, loops: Vec::new() };
        for path in paths {
            mounted.loops.push(LoopGuard::attach(path, &["--nooverlap".as_ref()]).unwrap());
        }
        let named = |device: &LoopGuard| format!("device={}", device.path().display());
        let members: Vec<String> = mounted.loops.iter().map(named).collect();
        let mut all = members.join(",");
        if !options.is_empty() {
            all = format!("{all},{options}");
        }
        let mut mount = Command::new("mount");
        mounted.point = Some(MountGuard::before_mount(&point).unwrap());
        run(mount.args(["-t", "btrfs", "-o", &all]).arg(mounted.loops[0].path()).arg(&point));
        fill(&point);
        // A copy of the mount in another namespace would delay the unmount.
        run(Command::new("sync").arg("--file-system").arg(&point));
        drop(mounted);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A dropped mount is detached, since a panic may have left files on it open.
        if let Some(point) = self.point.take().filter(|_| !std::thread::panicking()) {
            point.unmount().unwrap();
        }
    }
}

/// A few megabytes of data without two equal sectors, and enough names for a tree of two levels.
pub(crate) fn fill(point: &Path) {
    let mut big = fs::File::create(point.join("big")).unwrap();
    for sector in 0..2048_u64 {
        big.write_all(&pattern(sector, 4096)).unwrap();
    }
    big.sync_all().unwrap();
    for directory in 0..4 {
        let directory = point.join(format!("directory {directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..150_u64 {
            let bytes = pattern(file << 32, usize::try_from(file * 41).unwrap());
            fs::write(directory.join(format!("a file with a longish name {file}")), bytes).unwrap();
        }
    }
}

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::from_fn(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state)
    });
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

/// Runs a command to its end and returns what it printed; a missing or failing one fails the test.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "cannot run {command:?}: {error} (this test needs root, loop devices, and the \
             packages btrfs-progs, mount and util-linux)"
        )
    });
    assert!(
        output.status.success(),
        "{command:?} failed: {} (this test needs root and loop devices)",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
