//! A new btrfs volume that the kernel mounts, for subjects of the model.

use crate::kernel_mount::{KernelMount, MountHow};
use crate::subjects::Mounted;
use crate::{library, tool};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

const BYTES: u64 = 8 << 30;

/// The volume is not kept, so a sync need not wait for the disk.
const OPTIONS: &str = "nobarrier";

/// The mount is dropped before the directory with its image.
#[derive(Debug)]
pub struct KernelVolume {
    mount: Option<KernelMount>,
    image: PathBuf,
    subjects: u32,
    _dir: tempfile::TempDir,
}

impl KernelVolume {
    /// Makes a sparse volume in `dir` with `mkfs.btrfs` and these options.
    pub fn new(dir: &Path, mkfs: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-model-").tempdir_in(dir)?;
        let image = dir.path().join("model.img");
        std::fs::File::create(&image)?.set_len(BYTES)?;
        tool::run("mkfs.btrfs", &tool::words_and_path(&format!("-q -K {mkfs}"), &image))?;
        let mut volume = Self { mount: None, image, subjects: 0, _dir: dir };
        volume.mount()?;
        Ok(volume)
    }

    /// Unmounts the volume, and checks it with btrfs-progs and with our checker.
    pub fn unmount(&mut self) -> Result<()> {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        tool::run("btrfs", &tool::words_and_path("check --check-data-csum", &self.image))?;
        library::check(&self.image)
    }

    fn mount(&mut self) -> Result<()> {
        let how = MountHow { options: OPTIONS, ..MountHow::default() };
        self.mount = Some(KernelMount::new(std::slice::from_ref(&self.image), &how)?);
        Ok(())
    }
}

impl Mounted for KernelVolume {
    fn root(&self) -> Result<&Path> {
        Ok(self.mount.as_ref().context("the volume is not mounted")?.root())
    }

    fn remount(&mut self) -> Result<()> {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        self.mount()
    }

    fn next_subject(&mut self) -> u32 {
        self.subjects += 1;
        self.subjects
    }
}
