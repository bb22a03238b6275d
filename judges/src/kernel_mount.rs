//! The kernel's own mount of an image: loop devices and the mount, undone when dropped.
//!
//! Order on the way down: unmount, let btrfs forget the devices, detach the loops. Btrfs keeps a
//! list of every device it has seen; a loop device that is reused for another image while the
//! list still names it confuses the next multi-device mount.

use crate::tool;
use anyhow::{Context, Result, ensure};
use butternut_undo::{LoopGuard, MountGuard};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static MOUNTS: AtomicU32 = AtomicU32::new(0);

/// A file seen as a block device.
#[derive(Debug)]
pub struct LoopDevice(LoopGuard);

/// A mounted volume. Dropping it, or the death of this process, unmounts and detaches.
#[derive(Debug)]
pub struct KernelMount {
    root: PathBuf,
    /// `None` when unmounted.
    guard: Option<MountGuard>,
    /// Go after the mount.
    loops: Vec<LoopDevice>,
}

/// How to mount.
#[derive(Debug, Clone, Default)]
pub struct MountHow<'a> {
    pub read_only: bool,
    /// Options for `mount -o`, separated by commas.
    pub options: &'a str,
    /// Where the volume starts in each file.
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
    /// Attaches the images and mounts the volume that they make up.
    pub fn new(images: &[PathBuf], how: &MountHow<'_>) -> Result<Self> {
        let loops = images
            .iter()
            .map(|image| LoopDevice::attach(image, how.read_only, how.offset))
            .collect::<Result<Vec<_>>>()?;
        Self::over(loops, how)
    }

    /// Mounts the volume on devices that are already attached.
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

    /// Unmounts and says so when that fails, which dropping cannot do.
    pub fn unmount(mut self) -> Result<()> {
        let guard = self.guard.take().context("it is unmounted")?;
        Ok(guard.unmount()?)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        self.guard = None;
        std::fs::remove_dir(&self.root).ok();
    }
}

/// A fresh directory to mount on. `make clean-mounts` finds what a killed run left by its name.
pub fn mount_point(who: &str) -> Result<PathBuf> {
    ensure!(
        rustix::process::geteuid().is_root() || who != "kernel",
        "mounting with the kernel needs root: run the tests as root, or leave out the tests that \
         need it with BUTTERNUT_NO_KERNEL=1"
    );
    let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
    let name = format!("butternut-judge-{who}-{}-{number}", std::process::id());
    let root = std::env::temp_dir().join(name);
    std::fs::create_dir(&root).with_context(|| root.display().to_string())?;
    Ok(root)
}
