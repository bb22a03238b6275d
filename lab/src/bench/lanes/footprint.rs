//! Measures the memory of queues and of pending extents (on disk, not yet in the trees), as growth
//! of the process's resident memory.
//!
//! A separate process does the measurement, through the library.

use super::rows::Contestant;
use super::stage::Stage;
use crate::rig::{run, text};
use anyhow::{Context, Result, ensure};
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{DevicePath, File, Filesystem, MountOptions, NewInode};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

const DEPTH: usize = 64;
const QUEUES: usize = 8;
const BLOCK: u64 = 4096;
/// Blocks that are overwritten; a power of two.
const WRITES: u64 = 64 << 10;
/// Odd, so that the walk visits every block, and large, so that adjacent blocks are not written one
/// after the other.
const STRIDE: u64 = 40_503;
const SAMPLE_INTERVAL: u64 = 1024;

const QUEUE_ROW: &str = "memory of a queue";
const PENDING_ROW: &str = "memory of a pending write";

/// Prints both rows, where their names contain `only`, and returns their number.
pub(crate) fn rows(stage: &Stage, only: &str) -> Result<usize> {
    let wanted = [QUEUE_ROW, PENDING_ROW].map(|name| name.contains(only));
    if wanted == [false; 2] {
        return Ok(0);
    }
    let session = stage.session(Contestant::Butternut, &[])?;
    let program = std::env::current_exe()?;
    let output = run(text(&program), &["lanes", "--footprint", text(&stage.device)])?;
    drop(session);
    let output: Value = serde_json::from_str(&output)?;
    let of =
        |key: &str| output[key].as_f64().with_context(|| format!("the measurement has no {key}"));
    let mut out = std::io::stdout().lock();
    writeln!(out)?;
    if wanted[0] {
        writeln!(
            out,
            "{QUEUE_ROW}: {:.1} KiB at depth {DEPTH}, without its buffers ({} MiB by default)",
            of("queue_bytes")? / 1024.0,
            of("buffer_bytes")? / 1_048_576.0,
        )?;
    }
    if wanted[1] {
        writeln!(
            out,
            "{PENDING_ROW}: {:.0} bytes, with {} random 4K overwrites in no tree yet",
            of("pending_bytes")?,
            of("pending_writes")?,
        )?;
    }
    Ok(wanted.iter().filter(|is_wanted| **is_wanted).count())
}

/// Measures on `device` and prints the results as JSON.
pub(crate) fn measure(device: &Path) -> Result<()> {
    // 0 turns periodic commits off, so that pending extents accumulate.
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let fs = Filesystem::open(&[DevicePath::from(device)], &options)?;
    let options = QueueOptions::default().depth(DEPTH);
    let buffer_bytes = options.arena_bytes + options.bounce_bytes;
    let queue_bytes = queue_bytes(&fs, &options)?.saturating_sub(buffer_bytes as u64);
    let (pending_writes, bytes) = pending(&fs, &options)?;
    let output = json!({
        "queue_bytes": queue_bytes,
        "buffer_bytes": buffer_bytes,
        "pending_writes": pending_writes,
        "pending_bytes": bytes as f64 / pending_writes as f64,
    });
    fs.close()?;
    Ok(writeln!(std::io::stdout(), "{output}")?)
}

fn queue_bytes(fs: &Filesystem, options: &QueueOptions) -> Result<u64> {
    // The first queue allocates memory that later queues reuse; it is not counted.
    drop(fs.queue(options)?);
    let before = resident_bytes()?;
    let queues = (0..QUEUES).map(|_| fs.queue(options)).collect::<Result<Vec<_>, _>>()?;
    let grown = resident_bytes()?.saturating_sub(before);
    drop(queues);
    Ok(grown / QUEUES as u64)
}

/// Returns the largest number of pending extents seen, and the growth of resident memory, in bytes,
/// at that moment.
fn pending(fs: &Filesystem, options: &QueueOptions) -> Result<(u64, u64)> {
    let id = fs.create(fs.root(), b"pending", &NewInode::new(0o644))?;
    let file = fs.open_file(id)?;
    let long = vec![0x5A; 1 << 20];
    // Only every other block is overwritten, so that no two extents are adjacent and merge.
    for at in (0..2 * WRITES * BLOCK).step_by(long.len()) {
        file.write_at(at, &long)?;
    }
    fs.sync()?;
    let mut queue = fs.queue(options)?;
    overwrite(&mut queue, &file, 0..DEPTH as u64)?;
    fs.sync()?;
    let before = resident_bytes()?;
    let mut most = (0, 0);
    for first in (0..WRITES).step_by(usize::try_from(SAMPLE_INTERVAL)?) {
        overwrite(&mut queue, &file, first..first + SAMPLE_INTERVAL)?;
        let pending = fs.stats().memory.pending_writes;
        if pending > most.0 {
            most = (pending, resident_bytes()?.saturating_sub(before));
        }
    }
    ensure!(most.0 > 0, "no write was pending");
    Ok(most)
}

fn overwrite(queue: &mut Queue, file: &File, numbers: std::ops::Range<u64>) -> Result<()> {
    let mut done = Vec::with_capacity(DEPTH);
    for number in numbers {
        while queue.outstanding() == DEPTH {
            queue.reap(1, None, &mut done);
        }
        let buffer = queue.buffer(usize::try_from(BLOCK)?).context("no buffer")?;
        let at = number * STRIDE % WRITES * 2 * BLOCK;
        queue.write(file, at, buffer, IoFlags::DIRECT, number).map_err(|refused| refused.error)?;
        queue.submit();
        check(&mut done)?;
    }
    while queue.outstanding() > 0 {
        queue.reap(1, None, &mut done);
    }
    check(&mut done)
}

fn check(done: &mut Vec<butternut::queue::Completion>) -> Result<()> {
    done.drain(..).try_for_each(|done| Ok(done.result.map(drop)?))
}

/// Returns resident memory from `smaps_rollup`, which counts pages exactly; `VmRSS` omits the
/// counts that each CPU still batches.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find(|line| line.starts_with("Rss:")).context("no Rss")?;
    let kib = line.split_whitespace().nth(1).context("Rss has no number")?;
    Ok(kib.parse::<u64>()? << 10)
}
