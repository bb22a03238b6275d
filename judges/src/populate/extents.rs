//! Files with holes, preallocated extents, overwritten extents and clones.

use super::seeded::{Seeded, Texture, bytes};
use anyhow::{Context, Result};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const KIB: u64 = 1024;

pub fn everything(root: &Path) -> Result<()> {
    sparse(root)?;
    preallocated(root)?;
    overwritten(root, 64)?;
    truncated(root)?;
    cloned(root)
}

/// Opens a file for reading and writing, and creates it if it does not exist.
pub fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| path.display().to_string())
}

/// Makes holes before, between and after data, and a file that is only a hole.
pub fn sparse(root: &Path) -> Result<()> {
    open(&root.join("hole-only"))?.set_len(10 * KIB * KIB + 1)?;
    let file = open(&root.join("hole-first"))?;
    file.write_all_at(&bytes(1, Texture::Text, 5000), 1_000_000)?;
    let file = open(&root.join("hole-last"))?;
    file.write_all_at(&bytes(2, Texture::Noise, 5000), 0)?;
    file.set_len(3_000_003)?;
    let file = open(&root.join("hole-after-inline"))?;
    file.write_all_at(&bytes(3, Texture::Noise, 500), 0)?;
    file.sync_all()?;
    file.set_len(70_000)?;
    let file = open(&root.join("holes-between"))?;
    for place in [0_u64, 9, 10, 40, 100, 1000, 40_000] {
        file.write_all_at(&bytes(place, Texture::Mixed, 6000), place * 8 * KIB)?;
    }
    Ok(())
}

/// Makes files of sizes that only btrfs supports.
pub fn enormous(root: &Path) -> Result<()> {
    let file = open(&root.join("hole-terabytes"))?;
    file.write_all_at(b"far away", 1 << 44)?;
    let file = open(&root.join("hole-to-the-end-of-space"))?;
    file.set_len(i64::MAX.unsigned_abs() - 4096).context("the largest file")
}

/// Uses every mode of fallocate, with and without data.
pub fn preallocated(root: &Path) -> Result<()> {
    let none = FallocateFlags::empty();
    let keep = FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE | keep;
    let zero = FallocateFlags::ZERO_RANGE;
    let file = open(&root.join("prealloc"))?;
    rustix::fs::fallocate(&file, none, 0, 300 * KIB)?;
    let file = open(&root.join("prealloc-odd"))?;
    rustix::fs::fallocate(&file, none, 1001, 30_003)?;
    let file = open(&root.join("prealloc-keep-size"))?;
    file.write_all_at(&bytes(4, Texture::Noise, 10_000), 0)?;
    rustix::fs::fallocate(&file, keep, 0, 500 * KIB)?;
    let file = open(&root.join("prealloc-keep-size-empty"))?;
    rustix::fs::fallocate(&file, keep, 0, 64 * KIB)?;
    let file = open(&root.join("prealloc-partly-written"))?;
    rustix::fs::fallocate(&file, none, 0, 400 * KIB)?;
    file.sync_all()?;
    for place in [0_u64, 40, 41, 200, 396] {
        file.write_all_at(&bytes(place, Texture::Noise, 4096), place * KIB)?;
    }
    let file = open(&root.join("punched"))?;
    file.write_all_at(&bytes(5, Texture::Text, 600_000), 0)?;
    file.sync_all()?;
    rustix::fs::fallocate(&file, punch, 0, 4 * KIB)?;
    rustix::fs::fallocate(&file, punch, 100 * KIB, 100 * KIB)?;
    rustix::fs::fallocate(&file, punch, 300_001, 20_001)?;
    rustix::fs::fallocate(&file, punch, 590_000, 100_000)?;
    let file = open(&root.join("zeroed"))?;
    file.write_all_at(&bytes(6, Texture::Noise, 300_000), 0)?;
    file.sync_all()?;
    rustix::fs::fallocate(&file, zero, 50_001, 100_003)?;
    rustix::fs::fallocate(&file, zero | keep, 290_000, 50_000)?;
    Ok(())
}

/// Overwrites the middle of extents, so that parts of old extents stay referenced.
pub fn overwritten(root: &Path, rounds: usize) -> Result<()> {
    let mut seeded = Seeded::new(77);
    for (texture, name) in [(Texture::Noise, "noise"), (Texture::Text, "text")] {
        let file = open(&root.join(format!("overwritten-{name}")))?;
        file.write_all_at(&bytes(7, texture, 1 << 20), 0)?;
        file.sync_all()?;
        for round in 0..rounds {
            let at = u64::try_from(seeded.below(1 << 20))?;
            let len = 1 + seeded.below(20_000);
            file.write_all_at(&seeded.fill(texture, len), at)?;
            if round % 4 == 0 {
                file.sync_all()?;
            }
        }
    }
    Ok(())
}

/// Truncates files inside an extent, and extends them again.
pub fn truncated(root: &Path) -> Result<()> {
    for (texture, name) in [(Texture::Noise, "noise"), (Texture::Text, "text")] {
        let file = open(&root.join(format!("truncated-{name}")))?;
        file.write_all_at(&bytes(8, texture, 500_000), 0)?;
        file.sync_all()?;
        file.set_len(200_001)?;
        file.sync_all()?;
        let file = open(&root.join(format!("truncated-regrown-{name}")))?;
        file.write_all_at(&bytes(9, texture, 500_000), 0)?;
        file.sync_all()?;
        file.set_len(200_001)?;
        file.set_len(400_001)?;
    }
    Ok(())
}

/// Clones whole files, ranges of files and clones, and overwrites clones.
pub fn cloned(root: &Path) -> Result<()> {
    for (texture, name) in [(Texture::Noise, "noise"), (Texture::Text, "text")] {
        let source = open(&root.join(format!("clone-source-{name}")))?;
        source.write_all_at(&bytes(10, texture, 900_000), 0)?;
        source.sync_all()?;
        let whole = open(&root.join(format!("clone-whole-{name}")))?;
        rustix::fs::ioctl_ficlone(&whole, &source).context("FICLONE")?;
        let parts = open(&root.join(format!("clone-parts-{name}")))?;
        for (from, to, len) in [(64, 0, 16), (0, 128, 64), (500, 40, 4), (700, 1000, 100)] {
            clone_range(&source, from * KIB, &parts, to * KIB, len * KIB)?;
        }
        parts.sync_all()?;
        let again = open(&root.join(format!("clone-of-parts-{name}")))?;
        clone_range(&parts, 132 * KIB, &again, 0, 32 * KIB)?;
        let changed = open(&root.join(format!("clone-overwritten-{name}")))?;
        rustix::fs::ioctl_ficlone(&changed, &source).context("FICLONE")?;
        changed.write_all_at(&bytes(11, texture, 30_000), 200_000)?;
        changed.write_all_at(&bytes(12, texture, 3), 600_000)?;
        let within = open(&root.join(format!("clone-within-{name}")))?;
        within.write_all_at(&bytes(13, texture, 100_000), 0)?;
        within.sync_all()?;
        clone_range(&within, 0, &within, 512 * KIB, 64 * KIB)?;
        clone_range(&within, 8 * KIB, &within, 40 * KIB, 4 * KIB)?;
    }
    let small = open(&root.join("clone-source-inline"))?;
    small.write_all_at(&bytes(14, Texture::Noise, 700), 0)?;
    small.sync_all()?;
    let inline = open(&root.join("clone-inline"))?;
    rustix::fs::ioctl_ficlone(&inline, &small).context("FICLONE")
}

/// Clones a sector-aligned range: on btrfs, `copy_file_range` does that.
fn clone_range(from: &File, at: u64, to: &File, at_to: u64, len: u64) -> Result<()> {
    let (mut from_at, mut to_at, mut left) = (at, at_to, len);
    while left > 0 {
        let want = usize::try_from(left)?;
        let done =
            rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), want)
                .context("copy_file_range")?;
        anyhow::ensure!(done > 0, "copy_file_range stopped {left} bytes early");
        left -= u64::try_from(done)?;
    }
    Ok(())
}

/// Makes a file of which every second sector was written later, so each sector is an extent.
pub fn fragmented(path: &Path, sectors: u64) -> Result<()> {
    let file = open(path)?;
    file.write_all_at(&bytes(15, Texture::Noise, usize::try_from(sectors * 4096)?), 0)?;
    file.sync_all()?;
    let mut places: Vec<u64> = (0..sectors).step_by(2).collect();
    Seeded::new(16).shuffle(&mut places);
    for batch in places.chunks(512) {
        for place in batch {
            file.write_all_at(&bytes(*place, Texture::Noise, 4096), place * 4096)?;
        }
        file.sync_data()?;
    }
    Ok(())
}
