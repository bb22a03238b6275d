//! Measures the peak memory of a process that walks every entry of the volume.

use crate::report::Report;
use crate::rig::{Rig, run, text};
use anyhow::{Context, Result};
use butternut::{DevicePath, FileId, FileKind, Filesystem, MountOptions};
use std::io::Write;
use std::path::Path;

/// Lists, stats and reads all files below the root. Prints the number of entries and the peak
/// memory in KiB.
pub(crate) fn walk(image: &Path) -> Result<()> {
    let fs = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
    let mut dirs = vec![fs.root()];
    let mut entries = 0_u64;
    while let Some(dir) = dirs.pop() {
        for entry in fs.read_dir(dir, butternut::FIRST_ENTRY)? {
            let entry = entry?;
            entries += 1;
            visit(&fs, entry.id, entry.kind, &mut dirs)?;
        }
    }
    writeln!(std::io::stdout(), "{entries} {}", peak_kib()?)?;
    Ok(())
}

fn visit(fs: &Filesystem, id: FileId, kind: FileKind, dirs: &mut Vec<FileId>) -> Result<()> {
    let stat = fs.stat(id)?;
    if kind == FileKind::Directory {
        dirs.push(id);
    } else if kind == FileKind::File {
        let file = fs.open_file(id)?;
        let mut buffer = [0; 4096];
        if stat.size > 0 {
            file.read_at(0, &mut buffer)?;
        }
    }
    Ok(())
}

fn peak_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib = line.split_whitespace().nth(1).context("VmHWM has no number")?;
    Ok(kib.parse()?)
}

pub(crate) fn rows(rig: &Rig, report: &mut Report) -> Result<()> {
    let name = "memory of a walk over every entry";
    if !report.is_selected(name) {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let output = run(text(&program), &["--walk", text(&rig.device)])?;
    let (entries, kib) = output.split_once(' ').context("the walk printed no figures")?;
    let mib = kib.parse::<u64>()? >> 10;
    let cache = MountOptions::default().node_cache_bytes >> 20;
    let value = format!("{entries} entries, peak {mib} MiB, node cache limit {cache} MiB");
    report.value(name, &value)
}
