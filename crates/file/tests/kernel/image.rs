//! Small images: made with mkfs.btrfs, filled through the kernel's mount, opened with our code.

use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_file::{FileView, Source, SourceOptions};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Forest, ForestOptions};
use butternut_undo::MountGuard;
use butternut_volume::{OpenOptions, Volume};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// An image file, deleted when dropped.
pub(crate) struct Image {
    dir: TempDir,
}

/// The kernel's mount of an image; unmounted when dropped.
pub(crate) struct Mounted {
    root: PathBuf,
    guard: Option<MountGuard>,
    /// The last line of the kernel's log before the mount.
    log_end: String,
}

fn kernel_log() -> String {
    let out = Command::new("dmesg").output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether tests that need the kernel are skipped; prints that they are.
pub(crate) fn is_skipped(test: &str) -> bool {
    let is_skipped = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_skipped {
        let said = format!("left out for BUTTERNUT_NO_KERNEL: {test}\n");
        std::io::stderr().write_all(said.as_bytes()).unwrap();
    }
    is_skipped
}

/// Runs a command, which must succeed.
pub(crate) fn run(words: &str, path: &[&Path]) {
    let mut split = words.split_whitespace();
    let mut command = Command::new(split.next().unwrap());
    let out = command.args(split).args(path).output();
    let out = out.unwrap_or_else(|error| panic!("{words}: {error} (install it, or see main.rs)"));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{words} {path:?}: {said}");
}

impl Image {
    pub(crate) fn make(mib: u64, mkfs: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = TempDir::with_prefix_in("butternut-test-", place).unwrap();
        let image = Self { dir };
        std::fs::File::create(image.path()).unwrap().set_len(mib << 20).unwrap();
        run(&format!("mkfs.btrfs -q -f {mkfs}"), &[&image.path()]);
        image
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn mount(&self, options: &str) -> Mounted {
        let root = self.dir.path().join("mnt");
        std::fs::create_dir_all(&root).unwrap();
        let log_end = kernel_log().lines().last().unwrap_or_default().to_owned();
        let guard = Some(MountGuard::before_mount(&root).unwrap());
        run(&format!("mount -t btrfs -o loop,noatime,{options}"), &[&self.path(), &root]);
        Mounted { root, guard, log_end }
    }

    /// Opens the image with the given cache sizes.
    pub(crate) fn open(&self, options: SourceOptions) -> Source {
        let device = FileDevice::open(&self.path(), &OpenDevice::default()).unwrap();
        open_device(Arc::new(device), options)
    }
}

pub(crate) fn open_device(device: Arc<dyn Device>, options: SourceOptions) -> Source {
    let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
    let forest = Forest::open(Arc::new(volume), ForestOptions::default()).unwrap();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    Source::open(forest, Arc::new(workers), options).unwrap()
}

/// The file with this inode number in the top-level subvolume.
pub(crate) fn view(source: &Source, ino: u64) -> FileView {
    let tree = source.forest().tree(TreeId::FS).unwrap().unwrap();
    let item = tree.find(&Key::new(ino, ItemType::INODE_ITEM, 0)).unwrap().unwrap();
    let inode = Inode::check(item.data()).unwrap();
    FileView::new(tree, Ino(ino), &inode)
}

impl Mounted {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Changes mount options for what is written from now on.
    pub(crate) fn remount(&self, options: &str) {
        self.sync();
        run(&format!("mount -o remount,{options}"), &[&self.root]);
    }

    /// Asserts that the kernel has logged no problem with the volume since it was mounted.
    pub(crate) fn assert_quiet(&self) {
        let mut command = Command::new("findmnt");
        let out = command.args(["-no", "SOURCE"]).arg(&self.root).output().unwrap();
        let device = String::from_utf8(out.stdout).unwrap();
        let device = format!("(device {})", device.trim().trim_start_matches("/dev/"));
        let log = kernel_log();
        // The log lines start with times of equal length, so they compare as text.
        let since = log.lines().skip_while(|line| *line <= self.log_end.as_str());
        let words = ["error", "warning", "critical", "corrupt"];
        let loud: Vec<&str> = since
            .filter(|line| line.contains(&device) && words.iter().any(|word| line.contains(word)))
            .collect();
        assert!(loud.is_empty(), "{loud:#?}");
    }

    pub(crate) fn sync(&self) {
        run("btrfs filesystem sync", &[&self.root]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a panic files may still be open, so dropping the guard detaches the mount instead.
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
        }
    }
}
