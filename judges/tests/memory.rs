//! Memory stays under the node cache's limit and 64 MiB more while 60,000 entries are walked.

use anyhow::{Context, Result, ensure};
use butternut::{DevicePath, FIRST_ENTRY, FileKind, Filesystem, MountOptions};
use butternut_judges::image::Image;
use butternut_judges::trial;
use std::process::ExitCode;

const NODE_CACHE_BYTES: u64 = 2 << 20;
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let name = "a_walk_over_60000_entries_stays_under_its_limit";
    trial::run(vec![trial::trial(name, a_walk_over_60000_entries_stays_under_its_limit)])
}

fn a_walk_over_60000_entries_stays_under_its_limit() -> Result<()> {
    let image = Image::load("crowd")?;
    let view = image.views.first().context("an image has a view")?;
    let devices: Vec<_> = image.paths_of(view).into_iter().map(DevicePath::from).collect();
    let options = MountOptions { node_cache_bytes: NODE_CACHE_BYTES, ..MountOptions::default() };
    let before = resident_bytes("VmRSS:")?;
    let fs = Filesystem::open(&devices, &options)?;
    let (mut dirs, mut entries) = (vec![fs.root()], 0);
    while let Some(dir) = dirs.pop() {
        for entry in fs.read_dir(dir, FIRST_ENTRY)? {
            let entry = entry?;
            entries += 1;
            fs.stat(entry.id)?;
            if entry.kind == FileKind::Directory {
                dirs.push(entry.id);
            } else if entry.kind == FileKind::File {
                fs.open_file(entry.id)?.read_at(0, &mut [0; 4096])?;
            }
        }
    }
    ensure!(entries >= 60_000, "only {entries} entries");
    let grown = resident_bytes("VmHWM:")?.saturating_sub(before);
    let limit = NODE_CACHE_BYTES + BESIDE_CACHE_BYTES;
    ensure!(grown <= limit, "{entries} entries: {grown} bytes, want at most {limit}");
    Ok(())
}

/// A figure of this process's memory, as the kernel tells it.
fn resident_bytes(which: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(which)).context("no such figure")?;
    let kib = line.split_whitespace().nth(1).context("no number")?;
    Ok(kib.parse::<u64>()? << 10)
}
