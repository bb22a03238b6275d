//! Threads on the same files of a mount, each with its own descriptors, cached and with `O_DIRECT`.
//!
//! Regions are page-aligned here: if one thread writes a page through the kernel's cache while
//! another writes it with `O_DIRECT`, the result is undefined.

use crate::content::{Content, pattern};
use crate::random::Random;
use anyhow::{Context, Result, anyhow, bail, ensure};
use butternut::Buffer;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const REGION_BYTES: u64 = 10 * 4096;
const REGIONS: u64 = 24;
const FILES: [&str; 2] = ["one", "two"];

/// A region with its expected bytes.
#[derive(Debug)]
pub struct Owned {
    file: usize,
    start: u64,
    content: Content,
}

/// Creates the files in an empty directory, and runs threads on them.
///
/// # Errors
/// A thread has read bytes that it did not write, or a call failed.
pub fn run(root: &Path, seed: u64, threads: usize, operations: usize) -> Result<Vec<Owned>> {
    for name in FILES {
        let file = std::fs::File::create(root.join(name))?;
        file.set_len(REGIONS * REGION_BYTES)?;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = |number: usize| {
            scope.spawn(move || {
                let mut own = regions_of(number, threads);
                work(root, seed << 8 | number as u64, operations, &mut own)
                    .with_context(|| format!("thread {number}"))?;
                Ok(own)
            })
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        let is_over = &is_over;
        let beside = scope.spawn(move || disturb(root, seed, is_over));
        let results: Vec<Result<Vec<Owned>>> = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked")).flatten())
            .collect();
        is_over.store(true, Ordering::Release);
        beside.join().map_err(|_| anyhow!("a thread panicked")).flatten()?;
        let all: Result<Vec<Vec<Owned>>> = results.into_iter().collect();
        Ok(all?.into_iter().flatten().collect())
    })
}

/// Compares the files with what their owners wrote.
///
/// # Errors
/// A difference, or a failed call.
pub fn compare(root: &Path, all: &[Owned]) -> Result<()> {
    for how in [OFlags::empty(), OFlags::DIRECT] {
        let files = open(root, how)?;
        for own in all {
            let file = files.get(own.file).context("a file")?;
            compare_part(file, own, 0, REGION_BYTES)
                .with_context(|| format!("at the end, {how:?}"))?;
        }
    }
    Ok(())
}

fn open(root: &Path, how: OFlags) -> Result<Vec<OwnedFd>> {
    let how = how | OFlags::RDWR | OFlags::CLOEXEC;
    let open = |name: &&str| rustix::fs::openat(CWD, root.join(name), how, Mode::empty());
    Ok(FILES.iter().map(open).collect::<Result<_, _>>()?)
}

fn regions_of(number: usize, threads: usize) -> Vec<Owned> {
    let mut own = Vec::new();
    for file in 0..FILES.len() {
        let mut content = Content::default();
        content.resize(REGION_BYTES);
        for region in (0..REGIONS).filter(|at| (at + file as u64) % threads as u64 == number as u64)
        {
            own.push(Owned { file, start: region * REGION_BYTES, content: content.clone() });
        }
    }
    own
}

fn work(root: &Path, seed: u64, operations: usize, own: &mut [Owned]) -> Result<()> {
    let mut random = Random::new(seed);
    let (cached, direct) = (open(root, OFlags::empty())?, open(root, OFlags::DIRECT)?);
    for number in 0..operations {
        let region = random.index(own.len());
        let own = &mut own[region];
        let is_direct = random.one_in(2);
        let files = if is_direct { &direct } else { &cached };
        let (at, bytes) = part(&mut random, is_direct);
        let file = &files[own.file];
        let where_ = || format!("operation {number}, direct: {is_direct}");
        match random.below(20) {
            0..=8 => {
                let seed = 1 + random.below(1 << 40);
                let memory = pattern(seed, usize::try_from(bytes)?);
                let written = rustix::io::pwrite(file, &Buffer::copy_of(&memory), own.start + at)
                    .with_context(where_)?;
                ensure!(written as u64 == bytes, "{}: {written} bytes of {bytes}", where_());
                own.content.write(at, &memory);
            }
            9..=17 => compare_part(file, own, at, bytes).with_context(where_)?,
            18 => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, how, own.start + at, bytes).with_context(where_)?;
                own.content.zero(at, bytes);
            }
            _ if random.one_in(4) => rustix::fs::fsync(file).with_context(where_)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns a part of a region, mostly of whole pages for direct requests.
fn part(random: &mut Random, is_direct: bool) -> (u64, u64) {
    if is_direct && !random.one_in(5) {
        let first = random.below(REGION_BYTES / 4096);
        let most = REGION_BYTES / 4096 - first;
        return (first * 4096, (1 + random.below(most)) * 4096);
    }
    let at = random.below(REGION_BYTES);
    (at, 1 + random.below((REGION_BYTES - at).min(9000)))
}

fn compare_part(file: &OwnedFd, own: &Owned, at: u64, bytes: u64) -> Result<()> {
    let mut have = Buffer::zeroed(usize::try_from(bytes)?);
    let mut done = 0;
    while done < have.len() {
        let offset = own.start + at + done as u64;
        let transferred = rustix::io::pread(file, &mut have[done..], offset)?;
        ensure!(transferred > 0, "the file ends at {offset}");
        done += transferred;
    }
    let want = own.content.read(at, bytes);
    let differs = have.iter().zip(&want).position(|(have, want)| have != want);
    let Some(first) = differs else { return Ok(()) };
    let offset = own.start + at + first as u64;
    bail!("file {}, byte {offset}: have {:x}, want {:x}", own.file, have[first], want[first])
}

/// Resizes and syncs another file until the run is over.
fn disturb(root: &Path, seed: u64, is_over: &AtomicBool) -> Result<()> {
    let mut random = Random::new(seed);
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, root.join("other"), how, Mode::from_raw_mode(0o644))?;
    let memory = pattern(1, 30_000);
    while !is_over.load(Ordering::Acquire) {
        match random.below(6) {
            0 | 1 => rustix::fs::ftruncate(&file, random.below(100_000))?,
            2 => rustix::fs::fsync(&file)?,
            3 if random.one_in(4) => rustix::fs::syncfs(&file)?,
            _ => drop(rustix::io::pwrite(&file, &memory, random.below(100_000))?),
        }
    }
    Ok(())
}
