//! Rows about CPU time: searches and path lookups with everything cached, on one thread and on two;
//! and the number of device reads that the first operations on a volume take.

use crate::report::Report;
use crate::rig::Rig;
use anyhow::{Context, Result};
use butternut::{DevicePath, Filesystem, Follow, MountOptions};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::key::Key;
use butternut_format::units::TreeId;
use butternut_tree::{Forest, ForestOptions, Tree};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;
use std::time::Instant;

const SEARCHES: u32 = 1_000_000;
const DEEP: &str = "/level-0/level-1/level-2/level-3/level-4/level-5/level-6/leaf";

pub(crate) fn rows(rig: &Rig, report: &mut Report) -> Result<()> {
    searches(rig, report)?;
    paths(rig, report)?;
    device_reads(rig, report)
}

fn subvolume_tree(rig: &Rig) -> Result<Tree> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&rig.device, &OpenDevice::default())?);
    let volume = Volume::open(vec![device], OpenOptions::default())?;
    let options = ForestOptions { cache_bytes: 256 << 20, ..ForestOptions::default() };
    let forest = Forest::open(Arc::new(volume), options)?;
    forest.tree(TreeId::FS)?.context("the volume has no top-level tree")
}

/// Returns nanoseconds per search. Searches visit `keys` in an order that does not follow the
/// leaves.
fn search_ns(tree: &Tree, keys: &[Key]) -> Result<f64> {
    let mut index = 0;
    let start = Instant::now();
    for _ in 0..SEARCHES {
        index = (index + 7919) % keys.len();
        tree.find(&keys[index])?.context("a key of the scan is not found")?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(SEARCHES))
}

fn searches(rig: &Rig, report: &mut Report) -> Result<()> {
    let tree = subvolume_tree(rig)?;
    let mut keys = Vec::new();
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    while let Some(key) = cursor.key() {
        keys.push(key);
        cursor.advance()?;
    }
    let levels = tree.root().level + 1;
    let name = format!("cached search, {levels} levels, {} items", keys.len());
    report.row(
        &name,
        "ns",
        rig.size.repeats,
        &mut [
            ("1 thread", &mut || search_ns(&tree, &keys)),
            ("2 threads, each", &mut || {
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| search_ns(&tree, &keys));
                    let here = search_ns(&tree, &keys)?;
                    let there =
                        other.join().map_err(|_| anyhow::anyhow!("a search thread panicked"))??;
                    Ok(f64::midpoint(here, there))
                })
            }),
        ],
    )
}

/// Returns nanoseconds per component of a path of depth 8.
fn path_ns(fs: &Filesystem) -> Result<f64> {
    let rounds = SEARCHES / 10;
    let start = Instant::now();
    for _ in 0..rounds {
        fs.resolve(DEEP.as_bytes(), Follow::Last)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds * 8))
}

fn paths(rig: &Rig, report: &mut Report) -> Result<()> {
    let fs = Filesystem::open(&[DevicePath::from(&rig.device)], &MountOptions::default())?;
    report.row(
        "cached path lookup, per component",
        "ns",
        rig.size.repeats,
        &mut [
            ("1 thread", &mut || path_ns(&fs)),
            ("2 threads, each", &mut || {
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| path_ns(&fs));
                    let here = path_ns(&fs)?;
                    let there =
                        other.join().map_err(|_| anyhow::anyhow!("a lookup thread panicked"))??;
                    Ok(f64::midpoint(here, there))
                })
            }),
        ],
    )
}

fn device_reads(rig: &Rig, report: &mut Report) -> Result<()> {
    let fs = Filesystem::open(&[DevicePath::from(&rig.device)], &MountOptions::default())?;
    let mut before = 0;
    let mut since = |fs: &Filesystem| {
        let now = fs.counters().device_reads;
        let reads = now - before;
        before = now;
        reads
    };
    report.value("device reads: open a volume", &since(&fs).to_string())?;
    fs.resolve(DEEP.as_bytes(), Follow::Last)?;
    report.value("device reads: resolve a path of depth 8", &since(&fs).to_string())?;
    let wide = fs.resolve(b"/wide", Follow::Last)?;
    let listed = fs.read_dir(wide, butternut::FIRST_ENTRY)?.count();
    report.value(&format!("device reads: list {listed} entries"), &since(&fs).to_string())?;
    let stream = fs.open_file(fs.resolve(b"/stream", Follow::Last)?)?;
    let mut buffer = vec![0; 1 << 20];
    stream.read_at(0, &mut buffer)?;
    since(&fs);
    let file = fs.open_file(fs.resolve(b"/stream", Follow::Last)?)?;
    file.read_at(64 << 20, &mut buffer)?;
    report.value("device reads: 1 MiB of one extent, tree cached", &since(&fs).to_string())
}
