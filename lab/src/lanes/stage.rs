//! The stage: one loop device over one image, which contestants have in turn.
//!
//! 1. Whoever gets the device finds it as one that has been in use: every byte of the image has its
//!    place, in memory or on the disk below. Else who writes to new space would pay for finding it,
//!    and who overwrites would not.
//! 2. What a contestant mounted is unmounted when his turn ends, also after a failure.
//! 3. An image on a disk is read and written past the page cache of what is below; one in memory
//!    is there already.

use super::rows::Who;
use super::turn::Turn;
use crate::rig::{drop_caches, run, text};
use anyhow::{Context, Result, ensure};
use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How many times the image is as large as the files of a row.
const IMAGE_FILES: u64 = 5;
/// What is written at once where the image has holes.
const FILL_BYTES: usize = 1 << 20;

const UNMOUNT_WITHIN: Duration = Duration::from_secs(10);
const UNMOUNT_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Stage {
    pub(crate) device: PathBuf,
    /// Where the kernel mounts.
    pub(crate) place: PathBuf,
    pub(crate) dir: tempfile::TempDir,
    image: PathBuf,
}

impl Stage {
    /// A stage for these contestants, and files of so many MiB.
    pub(crate) fn make(
        dir: &Path,
        tag: &str,
        file_mib: u32,
        all: impl Iterator<Item = Who>,
    ) -> Result<Self> {
        let tools: BTreeSet<_> = all.filter_map(mkfs).chain(["setpriv"]).collect();
        let missing: Vec<_> = tools.into_iter().filter(|tool| !is_there(tool)).collect();
        ensure!(missing.is_empty(), "missing: {} (scripts/setup)", missing.join(", "));
        let dir = tempfile::Builder::new()
            .prefix(&format!("butternut-bench-{tag}-"))
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        let image = dir.path().join("lanes.img");
        File::create(&image)?.set_len((IMAGE_FILES * u64::from(file_mib)) << 20)?;
        let place = dir.path().join("mount");
        fs::create_dir(&place)?;
        let below = run("stat", &["--file-system", "--format=%T", text(&image)])?;
        let direct = if below == "tmpfs" { "--direct-io=off" } else { "--direct-io=on" };
        let device = run("losetup", &["--find", "--show", direct, text(&image)])?;
        Ok(Self { device: device.into(), place, dir, image })
    }

    /// The device, with the contestant's new file system on it.
    pub(crate) fn turn(&self, who: Who) -> Result<Turn<'_>> {
        let device = text(&self.device);
        // What the last contestant discarded is a hole.
        fill_holes(&self.image).context("cannot fill the image")?;
        match who {
            Who::Raw => String::new(),
            Who::Btrfs | Who::Ours => run("mkfs.btrfs", &["-q", "-f", "-K", device])?,
            Who::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", device])?,
            // Nothing of it is left to a thread that runs beside the rows.
            Who::Ext4 => {
                let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                run("mkfs.ext4", &["-q", "-F", "-E", now, device])?
            }
        };
        if who.is_kernel() {
            run("mount", &["-t", who.label(), "-o", "noatime", device, text(&self.place)])?;
        }
        drop_caches()?;
        Ok(Turn::new(self, who))
    }

    /// # Errors
    /// Somebody keeps it busy.
    pub(crate) fn unmount(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            // The kernel lets go of a ring's files a moment after the process that had them.
            match run("umount", &[text(&self.place)]) {
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

/// Law 1.
fn fill_holes(image: &Path) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    let zeroes = vec![0; FILL_BYTES];
    let image_bytes = file.metadata()?.len();
    let mut from = 0;
    while let Ok(hole) = seek(&file, SeekFrom::Hole(from))
        && hole < image_bytes
    {
        let end = seek(&file, SeekFrom::Data(hole)).unwrap_or(image_bytes);
        let mut at = hole;
        while at < end {
            let bytes = zeroes.len().min(usize::try_from(end - at)?);
            file.write_all_at(&zeroes[..bytes], at)?;
            at += u64::try_from(bytes)?;
        }
        from = end;
    }
    Ok(file.sync_all()?)
}

fn mkfs(who: Who) -> Option<&'static str> {
    match who {
        Who::Raw => None,
        Who::Btrfs | Who::Ours => Some("mkfs.btrfs"),
        Who::Xfs => Some("mkfs.xfs"),
        Who::Ext4 => Some("mkfs.ext4"),
    }
}

/// For what fails when nobody is left to be told.
pub(crate) fn warn(result: Result<()>) {
    if let Err(error) = result {
        drop(writeln!(std::io::stderr(), "bench: {error:#}"));
    }
}

fn is_there(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).exists())
}
