//! A scratch volume: an empty btrfs that the kernel mounts, which can hold everything that an image
//! holds, like files of the maximum size and xattrs of 64 KiB.

use crate::kernel_mount::{KernelMount, MountHow};
use crate::tool;
use anyhow::Result;
use std::path::Path;

const BYTES: u64 = 4 << 30;

/// The mount is dropped before the directory with its image.
#[derive(Debug)]
pub struct Scratch {
    mount: KernelMount,
    _dir: tempfile::TempDir,
}

impl Scratch {
    /// Makes a sparse volume in `dir`.
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
