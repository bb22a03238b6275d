//! The scratch volume: a loop device that is formatted again for each contestant of a write row.

use crate::rig::{run, text};
use anyhow::Result;
use butternut::{DevicePath, Filesystem, MountOptions};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const IMAGE_BYTES: u64 = 10 << 30;

pub(crate) struct Scratch {
    pub(crate) device: PathBuf,
    butternut: PathBuf,
    mount_point: PathBuf,
    _dir: tempfile::TempDir,
}

/// A mount of the scratch volume. Dropping it unmounts the volume.
pub(crate) struct Mount<'a> {
    scratch: &'a Scratch,
    is_butternut: bool,
}

impl Scratch {
    pub(crate) fn make(dir: &Path, butternut: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-bench-").tempdir_in(dir)?;
        let image = dir.path().join("scratch.img");
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        let device = PathBuf::from(run("losetup", &["-f", "--show", text(&image)])?);
        let mount_point = dir.path().join("mount");
        fs::create_dir(&mount_point)?;
        Ok(Self { device, butternut: butternut.to_path_buf(), mount_point, _dir: dir })
    }

    /// Discards the whole device, which frees the image's memory, and formats it.
    pub(crate) fn reformat(&self) -> Result<()> {
        run("blkdiscard", &["-f", text(&self.device)])?;
        run("mkfs.btrfs", &["-q", "-f", text(&self.device)]).map(drop)
    }

    /// Formats the volume and opens it for writing through the library.
    pub(crate) fn library(&self) -> Result<Filesystem> {
        self.reformat()?;
        self.open()
    }

    /// Opens the volume for writing through the library.
    pub(crate) fn open(&self) -> Result<Filesystem> {
        let options = MountOptions::default().read_only(false);
        Ok(Filesystem::open(&[DevicePath::from(&self.device)], &options)?)
    }

    /// Formats the volume and mounts it with the kernel.
    pub(crate) fn kernel(&self) -> Result<Mount<'_>> {
        self.reformat()?;
        self.mount(false)
    }

    /// Formats the volume and mounts it with Butternut.
    pub(crate) fn butternut(&self) -> Result<Mount<'_>> {
        self.reformat()?;
        self.mount(true)
    }

    /// Mounts the volume with Butternut, or with the kernel.
    pub(crate) fn mount(&self, is_butternut: bool) -> Result<Mount<'_>> {
        let (device, mount_point) = (text(&self.device), text(&self.mount_point));
        if is_butternut {
            run(text(&self.butternut), &["mount", device, mount_point, "-o", "rw"])?;
        } else {
            run("mount", &["-t", "btrfs", "-o", "noatime", device, mount_point])?;
        }
        Ok(Mount { scratch: self, is_butternut })
    }
}

impl Mount<'_> {
    pub(crate) fn root(&self) -> &Path {
        &self.scratch.mount_point
    }

    /// Unmounts and mounts the volume, so that nothing of it is cached.
    pub(crate) fn remount(self) -> Result<Self> {
        let (scratch, is_butternut) = (self.scratch, self.is_butternut);
        drop(self);
        scratch.mount(is_butternut)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let mount_point = text(&self.scratch.mount_point);
        let done = if self.is_butternut {
            run(text(&self.scratch.butternut), &["umount", mount_point])
        } else {
            run("umount", &[mount_point])
        };
        report_error(done.map(drop));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        report_error(run("losetup", &["-d", text(&self.device)]).map(drop));
    }
}

fn report_error(result: Result<()>) {
    if let Err(error) = result {
        let written = writeln!(std::io::stderr(), "bench: {error:#}");
        drop(written);
    }
}
