//! A Butternut mount of an image, mounted and unmounted with the `butternut` command.

use crate::command;
use crate::image::{Image, View};
use crate::kernel_mount::mount_point;
use anyhow::{Context, Result, ensure};
use butternut_undo::{MountGuard, Undo};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A mount that a daemon serves. It is unmounted when this is dropped or when this process dies; a
/// daemon that does not exit then is killed.
#[derive(Debug)]
pub struct FuseMount {
    root: PathBuf,
    process: u64,
    /// `None` after unmounting.
    guard: Option<MountGuard>,
    /// Dropped after the mount.
    _daemon: Undo,
}

/// Waits for the end of process `$1` that was started at `$2`, and kills it after 60 s.
const END_DAEMON: &str = r#"
    is_it() { [ "$(cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null)" = "$2" ]; }
    n=0; while [ $n -lt 600 ] && is_it "$1" "$2"; do sleep 0.1; n=$((n+1)); done
    is_it "$1" "$2" && kill -KILL "$1""#;

impl FuseMount {
    /// Mounts an image read-only, because tests share images.
    pub fn new(image: &Image, view: &View) -> Result<Self> {
        let options = ["ro".to_owned(), view.mount_options()];
        let options = options.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>();
        Self::with(&command::devices(image, view), &options.join(","))
    }

    /// Mounts devices that are given as on the command line.
    pub fn with(devices: &[OsString], options: &str) -> Result<Self> {
        ensure!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: load the fuse module, or give the container the device"
        );
        let root = mount_point("fuse")?;
        let guard = MountGuard::before_mount(&root)?;
        let mut args: Vec<OsString> = vec!["--quiet".into(), "--json".into(), "mount".into()];
        if !options.is_empty() {
            args.extend(["-o".into(), options.into()]);
        }
        args.extend_from_slice(devices);
        args.push(root.clone().into());
        let mounted = command::run(&args).and_then(|printed| daemon(&printed));
        match mounted {
            Ok((process, daemon)) => {
                Ok(Self { root, process, guard: Some(guard), _daemon: daemon })
            }
            Err(error) => {
                drop(guard);
                std::fs::remove_dir(&root).ok();
                Err(error)
            }
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the id of the process that serves the mount.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Unmounts, and fails unless the command reports that the volume is released. If unmounting
    /// fails, the mount is detached when the value is dropped.
    pub fn unmount(mut self) -> Result<()> {
        command::run(&["umount".into(), self.root.clone().into()])?;
        if let Some(mut guard) = self.guard.take() {
            guard.undone();
        }
        Ok(())
    }
}

/// Guards the daemon that `mount --json` has started.
fn daemon(printed: &[u8]) -> Result<(u64, Undo)> {
    let printed: serde_json::Value = serde_json::from_slice(printed)?;
    let process = printed["process"].as_u64().context("mount names no process")?;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let started = stat.split(' ').nth(21).context("the process has no start time")?;
    Ok((process, Undo::at_death(END_DAEMON, &[&process.to_string(), started])?))
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        self.guard = None;
        std::fs::remove_dir(&self.root).ok();
    }
}
