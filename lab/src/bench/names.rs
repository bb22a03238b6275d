//! Rows about names: many small files are created, written, stat'ed, renamed and unlinked, by the
//! library and by mounts. Each phase that changes something ends with a sync, which is timed too.
//!
//! Through a mount, `stat` runs three times: after the writes, when the kernel has to send
//! `FUSE_GETATTR` for the block counts; again, from the kernel's attribute cache; and after a
//! remount, with nothing cached.

use crate::report::Report;
use crate::rig::Rig;
use crate::scratch::{Mount, Scratch};
use anyhow::Result;
use butternut::{FileId, Filesystem, NewInode, RenameFlags};
use std::path::Path;
use std::time::Instant;

const PHASES: [&str; 5] = ["create", "create 4K", "stat", "rename", "unlink"];
const MOUNTED_PHASES: [&str; 7] =
    ["create", "create 4K", "stat", "rename", "unlink", "stat again", "stat, remounted"];

pub(crate) fn rows(rig: &Rig, scratch: &Scratch, report: &mut Report) -> Result<()> {
    let files = rig.size.names;
    report.phases(
        "names",
        "k/s",
        &PHASES,
        rig.size.repeats,
        &mut [
            ("library", &mut || library(&scratch.library()?, files)),
            ("kernel", &mut || {
                let mut phases = posix(scratch.kernel()?, files)?;
                phases.truncate(PHASES.len());
                Ok(phases)
            }),
        ],
    )?;
    let files = rig.size.mounted_names;
    report.phases(
        "names, mounted",
        "k/s",
        &MOUNTED_PHASES,
        rig.size.repeats,
        &mut [
            ("mount", &mut || posix(scratch.butternut()?, files)),
            ("kernel", &mut || posix(scratch.kernel()?, files)),
        ],
    )
}

/// Returns thousands of files per second of a phase.
fn timed(files: u32, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(f64::from(files) / start.elapsed().as_secs_f64() / 1e3)
}

fn name(kind: &str, number: u32) -> String {
    format!("{kind}-{number:06}")
}

fn library(filesystem: &Filesystem, files: u32) -> Result<Vec<f64>> {
    let root = filesystem.root();
    let new = NewInode::new(0o644);
    let make_dir = |name: &str| -> Result<FileId> {
        Ok(filesystem.mkdir(root, name.as_bytes(), &NewInode::new(0o755))?)
    };
    let (empty, full) = (make_dir("empty")?, make_dir("full")?);
    let create_empty = timed(files, || {
        for number in 0..files {
            filesystem.create(empty, name("file", number).as_bytes(), &new)?;
        }
        Ok(filesystem.sync()?)
    })?;
    let bytes = vec![0x5A; 4096];
    let create_full = timed(files, || {
        for number in 0..files {
            let id = filesystem.create(full, name("file", number).as_bytes(), &new)?;
            filesystem.open_file(id)?.write_at(0, &bytes)?;
        }
        Ok(filesystem.sync()?)
    })?;
    let stat = timed(files, || {
        for number in 0..files {
            let id = filesystem.lookup(full, name("file", number).as_bytes())?;
            anyhow::ensure!(filesystem.stat(id)?.size == 4096, "a file has the wrong size");
        }
        Ok(())
    })?;
    let rename = timed(files, || {
        for number in 0..files {
            let (from, to) = (name("file", number), name("moved", number));
            filesystem.rename(
                (full, from.as_bytes()),
                (full, to.as_bytes()),
                RenameFlags::default(),
            )?;
        }
        Ok(filesystem.sync()?)
    })?;
    let unlink = timed(files, || {
        for number in 0..files {
            filesystem.unlink(full, name("moved", number).as_bytes())?;
        }
        Ok(filesystem.sync()?)
    })?;
    Ok(vec![create_empty, create_full, stat, rename, unlink])
}

/// Writes cached data back and commits. On a FUSE mount `syncfs` only does the former, so the root
/// is synced too.
pub(crate) fn sync(root: &Path) -> Result<()> {
    let root = std::fs::File::open(root)?;
    rustix::fs::syncfs(&root)?;
    Ok(root.sync_all()?)
}

fn posix(mount: Mount<'_>, files: u32) -> Result<Vec<f64>> {
    let root = mount.root().to_path_buf();
    let (empty, full) = (root.join("empty"), root.join("full"));
    let stat = |dir: &Path, bytes| {
        timed(files, || {
            for number in 0..files {
                let size = rustix::fs::stat(dir.join(name("file", number)))?.st_size;
                anyhow::ensure!(size == bytes, "a file has the wrong size");
            }
            Ok(())
        })
    };
    std::fs::create_dir(&empty)?;
    std::fs::create_dir(&full)?;
    let create_empty = timed(files, || {
        for number in 0..files {
            std::fs::File::create(empty.join(name("file", number)))?;
        }
        sync(&root)
    })?;
    let bytes = vec![0x5A; 4096];
    let create_full = timed(files, || {
        for number in 0..files {
            std::fs::write(full.join(name("file", number)), &bytes)?;
        }
        sync(&root)
    })?;
    let (stat_first, stat_again) = (stat(&full, 4096)?, stat(&full, 4096)?);
    let rename = timed(files, || {
        for number in 0..files {
            std::fs::rename(full.join(name("file", number)), full.join(name("moved", number)))?;
        }
        sync(&root)
    })?;
    let unlink = timed(files, || {
        for number in 0..files {
            std::fs::remove_file(full.join(name("moved", number)))?;
        }
        sync(&root)
    })?;
    let _mount = mount.remount()?;
    let stat_remounted = stat(&empty, 0)?;
    Ok(vec![create_empty, create_full, stat_first, rename, unlink, stat_again, stat_remounted])
}
