//! The row of `bench snapshots` about clones: one file of many extents, cloned as a whole by the
//! library, by `copy_file_range(2)` on the mount, and by `FICLONE` on the kernel's mount.
//!
//! Left to others: the volume and the other rows (`snapshots`).

use crate::names::sync;
use crate::rig;
use crate::scratch::Scratch;
use crate::snapshots::timed;
use anyhow::{Result, ensure};
use butternut::NewInode;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of an extent of the source: 10,082 extents are a GiB.
const EXTENT_BYTES: usize = 104 << 10;

/// Writes the source: first every other piece, and the rest after a sync. So no extent continues
/// the one before it.
pub(crate) fn populate(root: &Path, bytes: u64) -> Result<()> {
    let file = File::create(root.join("scattered"))?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut piece = vec![0_u8; EXTENT_BYTES];
    let pieces = bytes / EXTENT_BYTES as u64;
    for first in [0, 1] {
        for number in (first..pieces).step_by(2) {
            for word in piece.chunks_exact_mut(8) {
                word.copy_from_slice(&rig::next(&mut state).to_le_bytes());
            }
            file.write_all_at(&piece, number * EXTENT_BYTES as u64)?;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// Returns the times of a clone with a sync of the volume, and of the removal of the clone.
pub(crate) fn by_library(volume: &Scratch) -> Result<Vec<f64>> {
    let filesystem = volume.open()?;
    let source = filesystem.open_path(b"scattered")?;
    let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    let cloned = timed(|| {
        let clone = filesystem.create_path(b"clone", &new)?;
        clone.clone_range(0, &source, 0, 0)?;
        ensure!(clone.len() == source.len(), "the clone is short");
        Ok(filesystem.sync()?)
    })?;
    let removed = timed(|| {
        filesystem.unlink(filesystem.root(), b"clone")?;
        Ok(filesystem.sync()?)
    })?;
    drop(source);
    filesystem.close()?;
    Ok(vec![cloned, removed])
}

/// The same, on a mount of ours or of the kernel's. FUSE passes no `FICLONE` on.
pub(crate) fn by_mount(volume: &Scratch, is_ours: bool) -> Result<Vec<f64>> {
    let mount = volume.mount(is_ours)?;
    let (path, root) = (mount.root().join("clone"), mount.root());
    let source = File::open(root.join("scattered"))?;
    let bytes = source.metadata()?.len();
    let cloned = timed(|| {
        let clone = File::create(&path)?;
        if is_ours {
            let (mut from, mut to) = (0, 0);
            while to < bytes {
                let left = usize::try_from(bytes - to)?;
                let ends = (Some(&mut from), Some(&mut to));
                let copied = rustix::fs::copy_file_range(&source, ends.0, &clone, ends.1, left)?;
                ensure!(copied > 0, "the source is short");
            }
        } else {
            rustix::fs::ioctl_ficlone(&clone, &source)?;
        }
        sync(root)
    })?;
    let removed = timed(|| {
        fs::remove_file(&path)?;
        sync(root)
    })?;
    drop(source);
    Ok(vec![cloned, removed])
}
