//! A device after a crash as a file, for the kernel and btrfs-progs.

use crate::kernel_mount::{KernelMount, MountHow};
use crate::{kernel_log, tool};
use anyhow::{Context, Result, bail, ensure};
use butternut_device::Device;
use butternut_sim::posix::PosixSubject;
use butternut_sim::subject::Subject;
use butternut_sim::tree::Tree;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PIECE_BYTES: usize = 256 << 10;

/// A device's bytes in a sparse file, which is deleted when this is dropped.
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl ImageFile {
    pub fn of(device: &dyn Device, dir: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-crash-").tempdir_in(dir)?;
        let path = dir.path().join("crash.img");
        let file = std::fs::File::create(&path)?;
        file.set_len(device.bytes())?;
        let mut memory = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < device.bytes() {
            let rest = usize::try_from(device.bytes() - at).unwrap_or(usize::MAX);
            let piece = &mut memory[..rest.min(PIECE_BYTES)];
            device.read_at(at, piece)?;
            if piece.iter().any(|byte| *byte != 0) {
                file.write_all_at(piece, at)?;
            }
            at += piece.len() as u64;
        }
        Ok(Self { path, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `btrfs check` with all data, which must find nothing.
    pub fn check(&self) -> Result<()> {
        let args = tool::words_and_path("check --check-data-csum", &self.path);
        let output = tool::output("btrfs", &args)?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let signs = ["ERROR", "WARNING", "error:", "mismatch", "invalid", "bad ", "errors "];
        let is_quiet = signs.iter().all(|sign| !text.contains(sign));
        ensure!(output.status.success() && is_quiet, "btrfs check: {text}");
        Ok(())
    }

    /// Returns what the kernel shows of the volume, mounted for writing. It must log nothing about
    /// it.
    pub fn kernel_tree(&self) -> Result<Tree> {
        let log = kernel_log::Mark::now()?;
        let mount = KernelMount::new(std::slice::from_ref(&self.path), &MountHow::default())?;
        let device = mount.loops().first().context("a mount has a device")?.path().to_path_buf();
        let device = device.file_name().context("a device has a name")?.to_os_string();
        let root = mount.root().to_path_buf();
        let mut subject = PosixSubject::new(root, Box::new(|| bail!("is not mounted again")));
        let tree = subject.tree();
        drop(subject);
        mount.unmount()?;
        let complaints = log.complaints(&[&*device.to_string_lossy()])?;
        ensure!(complaints.is_empty(), "the kernel logged: {complaints:?}");
        tree
    }
}
