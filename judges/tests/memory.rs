//! A walk over 60,000 entries uses at most 64 MiB of memory beyond the node cache, and the memory
//! of a mount does not grow under hours of mixed load: an hour of it needed 300 MiB in its first
//! half, and as much in its second.
//!
//! `BUTTERNUT_LONG=1` runs the load for an hour, `BUTTERNUT_LOAD_SECONDS=N` for N seconds.

#![allow(clippy::print_stdout, reason = "a long run prints what it measured")]

use anyhow::{Context, Result, ensure};
use butternut::{DevicePath, FIRST_ENTRY, FileKind, Filesystem, MountOptions};
use butternut_judges::image::Image;
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_judges::{kept, trial};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const NODE_CACHE_BYTES: u64 = 2 << 20;
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let name = "a_walk_over_60000_entries_stays_under_its_limit";
    trial::run(vec![
        trial::trial(name, a_walk_over_60000_entries_stays_under_its_limit),
        trial::trial("mixed_load_on_a_mount", memory_of_a_mount_does_not_grow_under_mixed_load),
    ])
}

fn a_walk_over_60000_entries_stays_under_its_limit() -> Result<()> {
    let image = Image::load("crowd")?;
    let view = image.views.first().context("an image has a view")?;
    let devices: Vec<_> = image.paths_of(view).into_iter().map(DevicePath::from).collect();
    let options = MountOptions::default().node_cache_bytes(NODE_CACHE_BYTES);
    let before = resident_bytes("self", "VmRSS:")?;
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
    let grown = resident_bytes("self", "VmHWM:")?.saturating_sub(before);
    let limit = NODE_CACHE_BYTES + BESIDE_CACHE_BYTES;
    ensure!(grown <= limit, "{entries} entries: {grown} bytes, want at most {limit}");
    Ok(())
}

/// The maximum growth of resident memory from the first half of the load to the second.
const GROWTH_BYTES_MAX: u64 = 32 << 20;
/// The maximum resident memory. What the options and constants of the mount permit
/// (ARCHITECTURE.md, Memory): 36 MiB of pages, 64 MiB of tree blocks, twice 96 MiB of changes (a
/// transaction that is being written and the running one), 52 MiB of inodes, 16 MiB of requests, 20
/// MiB of kept buffers; and a third on top, for the allocator and the program.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;
/// The files that the load uses, and the bytes of the file that is overwritten in place.
const FILES: u64 = 8000;
const OVERWRITTEN_BYTES: u64 = 64 << 20;
const SAMPLES: u32 = 240;

fn memory_of_a_mount_does_not_grow_under_mixed_load() -> Result<()> {
    let given = std::env::var("BUTTERNUT_LOAD_SECONDS").ok().and_then(|text| text.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seconds = given.unwrap_or(if is_long { 3600 } else { 12 });
    let mut volume = OurVolume::sized(kept::scratch(), 4 << 30, "page_cache=32M")?;
    let (root, process) = (volume.root()?.to_path_buf(), volume.process()?.to_string());
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut resident = Vec::new();
    let worked = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let root = &root;
                scope.spawn(move || match seed {
                    0 => overwrite(root, until),
                    _ => change_names(root, seed, until),
                })
            })
            .collect();
        while Instant::now() < until {
            resident.push(resident_bytes(&process, "VmRSS:"));
            std::thread::sleep(Duration::from_secs(seconds) / SAMPLES);
        }
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?
        })
    });
    worked?;
    let resident = resident.into_iter().collect::<Result<Vec<u64>>>()?;
    let (early, late) = resident.split_at(resident.len() / 2);
    let most = |half: &[u64]| half.iter().max().copied().unwrap_or_default();
    let (early, late) = (most(early), most(late));
    println!("resident at most {} MiB, then {} MiB", early >> 20, late >> 20);
    // A few seconds only fill the caches, so a short run checks nothing.
    let is_proof = given.is_some() || is_long;
    ensure!(!is_proof || late <= early + GROWTH_BYTES_MAX, "{late} bytes, after {early}");
    ensure!(late.max(early) <= RESIDENT_BYTES_MAX, "{early} bytes, then {late}");
    volume.unmount()
}

/// Returns a pseudo-random number.
fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn overwrite(root: &Path, until: Instant) -> Result<()> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false);
    let file = file.open(root.join("overwritten"))?;
    file.set_len(OVERWRITTEN_BYTES)?;
    let (mut state, mut block) = (1, vec![0; 4096]);
    while Instant::now() < until {
        for _ in 0..64 {
            let at = chance(&mut state) % (OVERWRITTEN_BYTES / 4096) * 4096;
            block.fill(chance(&mut state).to_le_bytes()[0]);
            file.write_all_at(&block, at)?;
            file.read_exact_at(&mut block, chance(&mut state) % (OVERWRITTEN_BYTES - 4096))?;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// Every thread has names of its own, so none of its calls fails.
fn change_names(root: &Path, seed: u64, until: Instant) -> Result<()> {
    let path = |number: u64| {
        let number = number % FILES;
        root.join(format!("{seed}/{}/a file of some name {number}", number % 50))
    };
    for dir in 0..50 {
        std::fs::create_dir_all(root.join(format!("{seed}/{dir}")))?;
    }
    let mut state = seed;
    while Instant::now() < until {
        let (one, other) = (path(chance(&mut state)), path(chance(&mut state)));
        let bytes = vec![7; usize::try_from(chance(&mut state) % 20_000)?];
        if !one.exists() {
            std::fs::write(&one, &bytes)?;
            continue;
        }
        match chance(&mut state) % 8 {
            0 => std::fs::remove_file(&one)?,
            1 => std::fs::rename(&one, &other)?,
            2 => File::options().append(true).open(&one)?.write_all(&bytes)?,
            3 => File::options().write(true).open(&one)?.set_len(chance(&mut state) % 30_000)?,
            4 => drop(std::fs::read_dir(one.parent().context("a file has one")?)?.count()),
            5 if !other.exists() => std::fs::hard_link(&one, &other)?,
            6 if chance(&mut state).is_multiple_of(16) => File::open(&one)?.sync_all()?,
            _ => drop(std::fs::read(&one)?),
        }
    }
    Ok(())
}

/// Returns a figure of a process's memory from the kernel.
fn resident_bytes(process: &str, which: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find(|line| line.starts_with(which)).context("no such figure")?;
    let kib = line.split_whitespace().nth(1).context("no number")?;
    Ok(kib.parse::<u64>()? << 10)
}
