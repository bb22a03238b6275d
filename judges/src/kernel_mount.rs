//! The kernel's mount of an image, with its loop devices; undone when dropped.
//!
//! Dropping unmounts, makes btrfs forget the devices and detaches the loop devices, in this order.
//! Btrfs keeps a list of every device that it has scanned. If a loop device is reused for another
//! image while it is in that list, the next mount of several devices fails.

use crate::tool;
use anyhow::{Context, Result, ensure};
use butternut_undo::{LoopGuard, MountGuard};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static MOUNTS: AtomicU32 = AtomicU32::new(0);

/// A file attached as a block device.
#[derive(Debug)]
pub struct LoopDevice(LoopGuard);

/// A mounted volume. It is unmounted and detached when this is dropped or this process dies.
#[derive(Debug)]
pub struct KernelMount {
    root: PathBuf,
    /// `None` after unmounting.
    guard: Option<MountGuard>,
    /// Dropped after the mount.
    loops: Vec<LoopDevice>,
}

/// Parameters of a mount.
#[derive(Debug, Clone, Default)]
pub struct MountHow<'a> {
    pub read_only: bool,
    /// Options for `mount -o`, separated by commas.
    pub options: &'a str,
    /// The offset of the volume in each file, in bytes.
    pub offset: u64,
}

impl LoopDevice {
    pub fn attach(image: &Path, read_only: bool, offset: u64) -> Result<Self> {
        let offset = format!("--offset={offset}");
        let mut options: Vec<&OsStr> = vec![offset.as_ref()];
        if read_only {
            options.push("--read-only".as_ref());
        }
        let guard = LoopGuard::attach(image, &options).context(
            "no loop device: run as root on a kernel with loop devices, or leave the tests that \
             need one out with BUTTERNUT_NO_KERNEL=1",
        )?;
        Ok(Self(guard))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl KernelMount {
    /// Attaches the images and mounts their volume.
    pub fn new(images: &[PathBuf], how: &MountHow<'_>) -> Result<Self> {
        let loops = images
            .iter()
            .map(|image| LoopDevice::attach(image, how.read_only, how.offset))
            .collect::<Result<Vec<_>>>()?;
        Self::over(loops, how)
    }

    /// Mounts the volume on attached devices.
    pub fn over(loops: Vec<LoopDevice>, how: &MountHow<'_>) -> Result<Self> {
        let root = mount_point("kernel")?;
        let guard = Some(MountGuard::before_mount(&root)?);
        let mount = Self { root, guard, loops };
        let (first, others) = mount.loops.split_first().context("a volume without devices")?;
        let mut options = vec![if how.read_only { "ro" } else { "rw" }.to_owned()];
        options.push("noatime".to_owned());
        options.extend(others.iter().map(|other| format!("device={}", other.path().display())));
        if !how.options.is_empty() {
            options.push(how.options.to_owned());
        }
        let options = options.join(",");
        let words = ["-t".as_ref(), "btrfs".as_ref(), "-o".as_ref(), Path::new(&options)];
        let args: Vec<_> = words.into_iter().chain([first.path(), mount.root.as_path()]).collect();
        tool::run("mount", &args.iter().map(|arg| arg.as_os_str()).collect::<Vec<_>>())?;
        Ok(mount)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn loops(&self) -> &[LoopDevice] {
        &self.loops
    }

    /// Unmounts, and reports a failure, which dropping cannot do.
    pub fn unmount(mut self) -> Result<()> {
        let guard = self.guard.take().context("the mount was unmounted")?;
        Ok(guard.unmount()?)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        self.guard = None;
        std::fs::remove_dir(&self.root).ok();
    }
}

/// Creates a directory to mount on. `make clean-mounts` finds the directories of killed runs by
/// their name.
pub fn mount_point(purpose: &str) -> Result<PathBuf> {
    ensure!(
        rustix::process::geteuid().is_root() || purpose != "kernel",
        "mounting with the kernel needs root: run the tests as root, or leave out the tests that \
         need it with BUTTERNUT_NO_KERNEL=1"
    );
    let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
    let name = format!("butternut-judge-{purpose}-{}-{number}", std::process::id());
    let root = std::env::temp_dir().join(name);
    std::fs::create_dir(&root).with_context(|| root.display().to_string())?;
    Ok(root)
}
