//! The stage: one loop device over one image file. The contestants use it one after the other.
//!
//! 1. Every byte of the image is allocated when a session starts, in memory or on the disk below.
//!    Otherwise copy-on-write file systems would pay for the allocation and those that overwrite in
//!    place would not.
//! 2. When a session ends, its file system is unmounted, also after a failure.
//! 3. The loop device uses direct I/O on an image on disk, so that the image is not cached twice.
//!    An image in tmpfs is in memory already.

use super::rows::{Contestant, Setting};
use super::session::{Session, value};
use crate::rig::{drop_caches, run, text};
use anyhow::{Context, Result, ensure};
use butternut_lab::holes;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Size of the image, as a multiple of the size of a row's files.
const IMAGE_TO_FILES: u64 = 5;

const UNMOUNT_WITHIN: Duration = Duration::from_secs(10);
const UNMOUNT_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Stage {
    pub(crate) device: PathBuf,
    /// Where the kernel mounts the device.
    pub(crate) mount_point: PathBuf,
    pub(crate) dir: tempfile::TempDir,
    image: PathBuf,
}

impl Stage {
    /// Makes a stage for these contestants, with room for files of `file_mib` MiB.
    pub(crate) fn make(
        dir: &Path,
        tag: &str,
        file_mib: u32,
        all: impl Iterator<Item = Contestant>,
    ) -> Result<Self> {
        let tools: BTreeSet<_> = all.filter_map(mkfs).chain(["setpriv"]).collect();
        let missing: Vec<_> = tools.into_iter().filter(|tool| !is_installed(tool)).collect();
        ensure!(missing.is_empty(), "missing: {} (scripts/setup)", missing.join(", "));
        let dir = tempfile::Builder::new()
            .prefix(&format!("butternut-bench-{tag}-"))
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        let image = dir.path().join("lanes.img");
        File::create(&image)?.set_len((IMAGE_TO_FILES * u64::from(file_mib)) << 20)?;
        let mount_point = dir.path().join("mount");
        fs::create_dir(&mount_point)?;
        let below = run("stat", &["--file-system", "--format=%T", text(&image)])?;
        let direct = if below == "tmpfs" { "--direct-io=off" } else { "--direct-io=on" };
        let device = run("losetup", &["--find", "--show", direct, text(&image)])?;
        Ok(Self { device: device.into(), mount_point, dir, image })
    }

    /// Formats the device for the contestant, mounts it unless the fio engine opens it, with the
    /// mount options of the settings, and drops the caches.
    pub(crate) fn session(&self, contestant: Contestant, set: &[Setting]) -> Result<Session<'_>> {
        let device = text(&self.device);
        // The file system of the last session may have discarded space, which makes holes.
        holes::fill(&self.image, || Ok(())).context("cannot fill the image")?;
        match contestant {
            Contestant::Raw => String::new(),
            Contestant::Btrfs | Contestant::Butternut | Contestant::Mount => {
                run("mkfs.btrfs", &["-q", "-f", "-K", device])?
            }
            Contestant::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", device])?,
            // Without lazy initialization, which a kernel thread would do while the rows run.
            Contestant::Ext4 => {
                let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                run("mkfs.ext4", &["-q", "-F", "-E", now, device])?
            }
        };
        if contestant.is_kernel() {
            run(
                "mount",
                &["-t", contestant.label(), "-o", "noatime", device, text(&self.mount_point)],
            )?;
        }
        let mut butternut = None;
        if contestant == Contestant::Mount {
            let program = std::env::current_exe()?.with_file_name("butternut");
            // PostgreSQL is another user. The kernel then checks permissions, as on its own mounts.
            let options = value(set, "MOUNT_OPTIONS").unwrap_or("rw");
            let options = format!("allow_other,{options}");
            let mount = ["--quiet", "mount", "-o", &options, device, text(&self.mount_point)];
            run(text(&program), &mount)?;
            butternut = Some(program);
        }
        let session = Session::new(self, contestant, butternut);
        drop_caches()?;
        Ok(session)
    }

    /// Unmounts the kernel's file system.
    ///
    /// # Errors
    /// `umount` still fails after ten seconds, for example because the mount is busy.
    pub(crate) fn unmount(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            // The kernel closes the files of an io_uring asynchronously, after its process ended.
            match run("umount", &[text(&self.mount_point)]) {
                Err(_) if start.elapsed() < UNMOUNT_WITHIN => thread::sleep(UNMOUNT_AGAIN),
                done => return done.map(drop),
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        warn(run("losetup", &["-d", text(&self.device)]).map(drop));
    }
}

fn mkfs(contestant: Contestant) -> Option<&'static str> {
    match contestant {
        Contestant::Raw => None,
        Contestant::Btrfs | Contestant::Butternut | Contestant::Mount => Some("mkfs.btrfs"),
        Contestant::Xfs => Some("mkfs.xfs"),
        Contestant::Ext4 => Some("mkfs.ext4"),
    }
}

/// Prints an error that no caller can receive, for example in `drop`.
pub(crate) fn warn(result: Result<()>) {
    if let Err(error) = result {
        drop(writeln!(std::io::stderr(), "bench: {error:#}"));
    }
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).exists())
}
