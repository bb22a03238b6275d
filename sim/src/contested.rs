//! Threads that write the same few blocks through every lane. Every byte that a read returns is
//! checked against the order of the writes.
//!
//! 1. Every write fills its range with one value. The start and the end of each write are ticks of
//!    one counter that all threads share ([`history`]).
//! 2. A read may return a value if its write began before the read ended, unless another write of
//!    the same byte began after that write was acknowledged, and was itself acknowledged before the
//!    read began. So no acknowledged write is lost, and no overwritten value reappears.
//! 3. A punched or truncated range counts as written with zeroes; bytes behind the end of a file
//!    are zeroes.
//! 4. At the end every lane reads the same bytes, also after closing and opening the volume, and
//!    the checker finds nothing.
//!
//! In [`crate::together`] every byte has one owner; here any thread may write any byte.

mod history;
mod worker;

use crate::lane::{make, read};
use crate::operation::{Lane, flags};
use crate::volume;
use anyhow::{Context, Result, anyhow, ensure};
use butternut::{File, Filesystem, MountOptions};
use butternut_device::Device;
use history::{Clock, History};
use std::sync::Arc;
use worker::Worker;

const BLOCK: usize = 4096;
/// Blocks of each file. They are few, so that threads often write the same block.
const BLOCKS: usize = 6;
const FILE_BYTES: usize = BLOCKS * BLOCK;
/// A plain file, one that is nodatacow and nodatasum, and a compressed one.
const FILES: [(&str, u32); 3] =
    [("plain", 0), ("in place", flags::NO_COW), ("compressed", flags::COMPRESS)];

#[derive(Clone, Copy, Debug)]
pub struct Contested {
    pub seed: u64,
    pub threads: u8,
    /// Operations of each thread.
    pub operations: usize,
    pub page_cache_bytes: u64,
    pub commit_seconds: u32,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub operations: u64,
    /// Reads that were checked against the history.
    pub reads: u64,
    /// Direct writes that were in flight at the same time as others.
    pub shared_writes: u64,
}

/// A file that every thread writes.
struct Shared {
    file: File,
    history: History,
}

impl Contested {
    /// Runs the threads on a device.
    ///
    /// # Errors
    /// A byte that no order of the writes explains, or a failed call.
    pub fn run(&self, device: &Arc<dyn Device>) -> Result<RunCounts> {
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(self.commit_seconds)
            .page_cache_bytes(self.page_cache_bytes)
            .workers(1);
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        let mut files = Vec::new();
        for (name, flags) in FILES {
            let file = make(&filesystem, name, flags)?;
            file.truncate(FILE_BYTES as u64)?;
            files.push(Shared { file, history: History::new(BLOCKS) });
        }
        let source = values(&filesystem)?;
        let clock = Clock::new(self.threads.into());
        let mut ran = RunCounts::default();
        std::thread::scope(|scope| {
            let worker = |number: u8| {
                let seed = self.seed << 8 | u64::from(number);
                let worker = Worker::new(number, seed, &filesystem, (&files, &source), &clock);
                scope.spawn(move || {
                    let outcome = worker?.run(self.operations);
                    outcome.with_context(|| format!("thread {number}"))
                })
            };
            let workers: Vec<_> = (0..self.threads).map(worker).collect();
            let mut result = Ok(());
            for worker in workers {
                let outcome = worker.join().map_err(|_| anyhow!("a thread panicked")).flatten();
                result = result.and(outcome.map(|reads| ran.reads += reads));
            }
            result
        })?;
        ran.operations = self.operations as u64 * u64::from(self.threads);
        ran.shared_writes = filesystem.lane_counts().dio_write_shared;
        let settled = settled(&files, &clock)?;
        filesystem.sync()?;
        compare(&files.iter().map(|shared| shared.file.clone()).collect::<Vec<_>>(), &settled)
            .context("synced")?;
        drop((files, source));
        filesystem.close()?;
        volume::check(device)?;
        let options = MountOptions::default();
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        let open = |name: &str| -> Result<File> {
            Ok(filesystem.open_file(filesystem.lookup(filesystem.root(), name.as_bytes())?)?)
        };
        let files: Vec<File> = FILES.iter().map(|(name, _)| open(name)).collect::<Result<_>>()?;
        compare(&files, &settled).context("after reopening")?;
        Ok(ran)
    }
}

/// Returns the content of the files after every thread has ended.
fn settled(files: &[Shared], clock: &Clock) -> Result<Vec<Vec<u8>>> {
    let mut settled = Vec::new();
    for (Shared { file, history }, (name, _)) in files.iter().zip(FILES) {
        let begun = clock.tick();
        let bytes = read(file, 0, FILE_BYTES, Lane::Cached)?;
        history.check(0, &bytes, (begun, clock.tick())).context(name)?;
        settled.push(bytes);
    }
    Ok(settled)
}

fn compare(files: &[File], want: &[Vec<u8>]) -> Result<()> {
    for ((file, want), (name, _)) in files.iter().zip(want).zip(FILES) {
        for lane in [Lane::Direct, Lane::Uncached, Lane::Cached] {
            let have = read(file, 0, FILE_BYTES, lane)?;
            let wrong = have.iter().zip(want).position(|(have, want)| have != want);
            ensure!(wrong.is_none(), "{name}, byte {wrong:?}, {lane:?}");
        }
    }
    Ok(())
}

/// Creates the source of copies: a file whose block `n` is filled with the byte `n`.
fn values(filesystem: &Filesystem) -> Result<File> {
    let file = make(filesystem, "values", 0)?;
    for value in 0..=u8::MAX {
        file.write_at(u64::from(value) * BLOCK as u64, &[value; BLOCK])?;
    }
    Ok(file)
}
