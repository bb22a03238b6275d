//! Our own mount of an image, made and undone with the `butternut` command as a user would.

use crate::image::{Image, View};
use crate::kernel_mount::mount_point;
use crate::{command, tool};
use anyhow::{Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A mount served by a daemon. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseMount {
    root: PathBuf,
    is_mounted: bool,
}

impl FuseMount {
    /// Mounts to look: tests share their images.
    pub fn new(image: &Image, view: &View) -> Result<Self> {
        let options = ["ro".to_owned(), view.mount_options()];
        let options = options.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>();
        Self::with(&command::devices(image, view), &options.join(","))
    }

    /// Mounts devices that are written as for the command line.
    pub fn with(devices: &[OsString], options: &str) -> Result<Self> {
        ensure!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: load the fuse module, or give the container the device"
        );
        let mut mount = Self { root: mount_point("fuse")?, is_mounted: false };
        let mut args: Vec<OsString> = vec!["--quiet".into(), "mount".into()];
        if !options.is_empty() {
            args.extend(["-o".into(), options.into()]);
        }
        args.extend_from_slice(devices);
        args.push(mount.root.clone().into());
        command::run(&args)?;
        mount.is_mounted = true;
        Ok(mount)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unmounts, and fails unless the command says that the volume is released.
    pub fn unmount(mut self) -> Result<()> {
        self.is_mounted = false;
        command::run(&["umount".into(), self.root.clone().into()]).map(drop)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.is_mounted {
            tool::run("umount", &["--lazy".as_ref(), self.root.as_os_str()]).ok();
        }
        std::fs::remove_dir(&self.root).ok();
    }
}
