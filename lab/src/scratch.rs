//! A scratch volume: one loop device that each contestant of a write row gets anew.

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
    place: PathBuf,
    _dir: tempfile::TempDir,
}

/// A mount of the scratch volume, gone when dropped.
pub(crate) struct Mount<'a> {
    scratch: &'a Scratch,
    is_ours: bool,
}

impl Scratch {
    pub(crate) fn make(dir: &Path, butternut: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-bench-").tempdir_in(dir)?;
        let image = dir.path().join("scratch.img");
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        let device = PathBuf::from(run("losetup", &["-f", "--show", text(&image)])?);
        let place = dir.path().join("mount");
        fs::create_dir(&place)?;
        Ok(Self { device, butternut: butternut.to_path_buf(), place, _dir: dir })
    }

    /// Makes the volume anew, and the image's memory with it.
    pub(crate) fn renew(&self) -> Result<()> {
        run("blkdiscard", &["-f", text(&self.device)])?;
        run("mkfs.btrfs", &["-q", "-f", text(&self.device)]).map(drop)
    }

    /// A new volume, open for writing through the library.
    pub(crate) fn library(&self) -> Result<Filesystem> {
        self.renew()?;
        let options = MountOptions { read_only: false, ..MountOptions::default() };
        Ok(Filesystem::open(&[DevicePath::from(&self.device)], &options)?)
    }

    /// A new volume, mounted by the kernel.
    pub(crate) fn kernel(&self) -> Result<Mount<'_>> {
        self.renew()?;
        self.mount(false)
    }

    /// A new volume, mounted by Butternut.
    pub(crate) fn ours(&self) -> Result<Mount<'_>> {
        self.renew()?;
        self.mount(true)
    }

    fn mount(&self, is_ours: bool) -> Result<Mount<'_>> {
        let (device, place) = (text(&self.device), text(&self.place));
        if is_ours {
            run(text(&self.butternut), &["mount", device, place, "-o", "rw"])?;
        } else {
            run("mount", &["-t", "btrfs", "-o", "noatime", device, place])?;
        }
        Ok(Mount { scratch: self, is_ours })
    }
}

impl Mount<'_> {
    pub(crate) fn root(&self) -> &Path {
        &self.scratch.place
    }

    /// Unmounts, and mounts what was written: nobody has anything of it in memory.
    pub(crate) fn anew(self) -> Result<Self> {
        let (scratch, is_ours) = (self.scratch, self.is_ours);
        drop(self);
        scratch.mount(is_ours)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let place = text(&self.scratch.place);
        let done = if self.is_ours {
            run(text(&self.scratch.butternut), &["umount", place])
        } else {
            run("umount", &[place])
        };
        say(done.map(drop));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        say(run("losetup", &["-d", text(&self.device)]).map(drop));
    }
}

fn say(result: Result<()>) {
    if let Err(error) = result {
        let said = writeln!(std::io::stderr(), "bench: {error:#}");
        drop(said);
    }
}
