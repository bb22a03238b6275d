//! A new volume that Butternut mounts for writing; btrfs-progs checks it after unmounting.

use crate::fuse_mount::FuseMount;
use crate::kernel_mount::{KernelMount, MountHow};
use crate::subjects::Mounted;
use crate::tool;
use anyhow::{Context, Result, bail};
use butternut_sim::model::Rules;
use std::path::{Path, PathBuf};

const BYTES: u64 = 4 << 30;

/// The mount is dropped before the directory with its image.
#[derive(Debug)]
pub struct OurVolume {
    mount: Option<FuseMount>,
    image: PathBuf,
    options: String,
    subjects: u32,
    _dir: tempfile::TempDir,
}

impl OurVolume {
    /// Makes a sparse volume in `dir` with `mkfs.btrfs`, and mounts it with these options.
    pub fn new(dir: &Path, options: &str) -> Result<Self> {
        Self::sized(dir, BYTES, options)
    }

    /// Makes a volume as [`OurVolume::new`] does, of the given size in bytes.
    pub fn sized(dir: &Path, bytes: u64, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-ours-").tempdir_in(dir)?;
        let image = dir.path().join("ours.img");
        std::fs::File::create(&image)?.set_len(bytes)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
        let options = options.to_owned();
        let mut volume = Self { mount: None, image, options, subjects: 0, _dir: dir };
        volume.mount()?;
        Ok(volume)
    }

    pub fn mount(&mut self) -> Result<()> {
        let devices = [self.image.clone().into_os_string()];
        self.mount = Some(FuseMount::with(&devices, &self.options)?);
        Ok(())
    }

    /// Sets the options of the next mount.
    pub fn set_options(&mut self, options: &str) {
        options.clone_into(&mut self.options);
    }

    /// Returns the path of the image.
    pub fn path(&self) -> &Path {
        &self.image
    }

    /// Opens the image for reading.
    pub fn image(&self) -> Result<std::fs::File> {
        std::fs::File::open(&self.image).with_context(|| self.image.display().to_string())
    }

    /// Unmounts the volume and checks it.
    pub fn unmount(&mut self) -> Result<()> {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        self.check()
    }

    /// Returns the id of the process that serves the volume.
    pub fn process(&self) -> Result<u64> {
        Ok(self.mount.as_ref().context("the volume is not mounted")?.process())
    }

    /// Drops a mount whose process has died.
    pub fn drop_mount(&mut self) {
        self.mount = None;
    }

    /// Checks the volume with btrfs-progs.
    pub fn check(&self) -> Result<()> {
        let words = tool::words_and_path("check --check-data-csum", &self.image);
        let checked = tool::output("btrfs", &words)?;
        if !checked.status.success() {
            bail!("btrfs check: {}", String::from_utf8_lossy(&checked.stderr));
        }
        Ok(())
    }

    /// Mounts the volume with the kernel; it must not be mounted by Butternut.
    pub fn kernel(&self) -> Result<KernelMount> {
        KernelMount::new(std::slice::from_ref(&self.image), &MountHow::default())
    }
}

impl Mounted for OurVolume {
    fn root(&self) -> Result<&Path> {
        Ok(self.mount.as_ref().context("the volume is not mounted")?.root())
    }

    fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn rules(&self) -> Rules {
        Rules { shows_xattrs_of_deleted: false, ..Rules::default() }
    }

    fn next_subject(&mut self) -> u32 {
        self.subjects += 1;
        self.subjects
    }
}
