//! Memory of queues and of writes that are in no tree yet, by what the process holds in all.
//!
//! A process of its own measures it, through the library.

use super::rows::Who;
use super::stage::Stage;
use crate::rig::{run, text};
use anyhow::{Context, Result, ensure};
use butternut::{
    DevicePath, File, Filesystem, IoFlags, MountOptions, NewInode, Queue, QueueOptions,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

const DEPTH: usize = 64;
const QUEUES: usize = 8;
const BLOCK: u64 = 4096;
/// Blocks that are overwritten; a power of two.
const WRITES: u64 = 64 << 10;
/// Any odd number: every block has its turn, and neighbours do not follow each other.
const STRIDE: u64 = 40_503;
const LOOK_EVERY: u64 = 1024;

const QUEUE_FACT: &str = "memory of a queue";
const PENDING_FACT: &str = "memory of a pending write";

/// Prints both facts; how many they were.
pub(crate) fn facts(stage: &Stage, only: &str) -> Result<usize> {
    let wanted = [QUEUE_FACT, PENDING_FACT].map(|name| name.contains(only));
    if wanted == [false; 2] {
        return Ok(0);
    }
    let turn = stage.turn(Who::Ours)?;
    let program = std::env::current_exe()?;
    let said = run(text(&program), &["lanes", "--footprint", text(&stage.device)])?;
    drop(turn);
    let said: Value = serde_json::from_str(&said)?;
    let of = |key: &str| said[key].as_f64().with_context(|| format!("no figure of {key}"));
    let mut out = std::io::stdout().lock();
    writeln!(out)?;
    if wanted[0] {
        writeln!(
            out,
            "{QUEUE_FACT}: {:.1} KiB at depth {DEPTH}, beside its buffers ({} MiB by default)",
            of("queue_bytes")? / 1024.0,
            of("buffer_bytes")? / 1_048_576.0,
        )?;
    }
    if wanted[1] {
        writeln!(
            out,
            "{PENDING_FACT}: {:.0} bytes, of {} 4K overwrites at random that are in no tree",
            of("pending_bytes")?,
            of("pending_writes")?,
        )?;
    }
    Ok(wanted.iter().filter(|is_wanted| **is_wanted).count())
}

/// Prints what it measures as JSON.
pub(crate) fn measure(device: &Path) -> Result<()> {
    // Nobody commits meanwhile.
    let options = MountOptions { read_only: false, commit_seconds: 0, ..MountOptions::default() };
    let fs = Filesystem::open(&[DevicePath::from(device)], &options)?;
    let options = QueueOptions { depth: DEPTH, ..QueueOptions::default() };
    let buffer_bytes = options.arena_bytes + options.bounce_bytes;
    let queue_bytes = queue_bytes(&fs, &options)?.saturating_sub(buffer_bytes as u64);
    let (pending_writes, bytes) = pending(&fs, &options)?;
    let said = json!({
        "queue_bytes": queue_bytes,
        "buffer_bytes": buffer_bytes,
        "pending_writes": pending_writes,
        "pending_bytes": bytes as f64 / pending_writes as f64,
    });
    fs.close()?;
    Ok(writeln!(std::io::stdout(), "{said}")?)
}

fn queue_bytes(fs: &Filesystem, options: &QueueOptions) -> Result<u64> {
    // What the first one leaves behind counts for none.
    drop(fs.queue(options)?);
    let before = resident_bytes()?;
    let queues = (0..QUEUES).map(|_| fs.queue(options)).collect::<Result<Vec<_>, _>>()?;
    let grown = resident_bytes()?.saturating_sub(before);
    drop(queues);
    Ok(grown / QUEUES as u64)
}

/// The most writes that were pending, and the memory by which the process had grown then.
fn pending(fs: &Filesystem, options: &QueueOptions) -> Result<(u64, u64)> {
    let id = fs.create(fs.root(), b"pending", &NewInode::new(0o644))?;
    let file = fs.open_file(id)?;
    let long = vec![0x5A; 1 << 20];
    // Every other block is overwritten: none joins another.
    for at in (0..2 * WRITES * BLOCK).step_by(long.len()) {
        file.write_at(at, &long)?;
    }
    fs.sync()?;
    let mut queue = fs.queue(options)?;
    overwrite(&mut queue, &file, 0..DEPTH as u64)?;
    fs.sync()?;
    let before = resident_bytes()?;
    let mut most = (0, 0);
    for first in (0..WRITES).step_by(usize::try_from(LOOK_EVERY)?) {
        overwrite(&mut queue, &file, first..first + LOOK_EVERY)?;
        let pending = fs.stats().memory.pending_writes;
        if pending > most.0 {
            most = (pending, resident_bytes()?.saturating_sub(before));
        }
    }
    ensure!(most.0 > 0, "no write was pending");
    Ok(most)
}

fn overwrite(queue: &mut Queue, file: &File, turns: std::ops::Range<u64>) -> Result<()> {
    let mut done = Vec::with_capacity(DEPTH);
    for turn in turns {
        while queue.outstanding() == DEPTH {
            queue.reap(1, None, &mut done);
        }
        let buffer = queue.buffer(usize::try_from(BLOCK)?).context("no buffer")?;
        let at = turn * STRIDE % WRITES * 2 * BLOCK;
        queue.write(file, at, buffer, IoFlags::DIRECT, turn).map_err(|refused| refused.error)?;
        queue.submit();
        check(&mut done)?;
    }
    while queue.outstanding() > 0 {
        queue.reap(1, None, &mut done);
    }
    check(&mut done)
}

fn check(done: &mut Vec<butternut::Done>) -> Result<()> {
    done.drain(..).try_for_each(|done| Ok(done.result.map(drop)?))
}

/// Counted page by page; `VmRSS` is behind by what each processor has not told of yet.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find(|line| line.starts_with("Rss:")).context("no Rss")?;
    let kib = line.split_whitespace().nth(1).context("no figure in Rss")?;
    Ok(kib.parse::<u64>()? << 10)
}
