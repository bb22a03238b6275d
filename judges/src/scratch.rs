//! A scratch volume: an empty btrfs of the kernel's, as a place that can hold everything an image
//! holds, from hole-only files of the largest size to 64 KiB xattrs.

use crate::kernel_mount::{KernelMount, MountHow};
use crate::tool;
use anyhow::Result;
use std::path::Path;

const BYTES: u64 = 4 << 30;

/// The mount goes before the directory with its image.
#[derive(Debug)]
pub struct Scratch {
    mount: KernelMount,
    _dir: tempfile::TempDir,
}

impl Scratch {
    /// Makes one in `dir`, sparse: it takes as much space as is written to it.
    pub fn new(dir: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-scratch-").tempdir_in(dir)?;
        let image = dir.path().join("scratch.img");
        std::fs::File::create(&image)?.set_len(BYTES)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K -n 65536 -m single", &image))?;
        let how = MountHow { options: "nobarrier", ..MountHow::default() };
        let mount = KernelMount::new(&[image], &how)?;
        Ok(Self { mount, _dir: dir })
    }

    pub fn root(&self) -> &Path {
        self.mount.root()
    }
}
