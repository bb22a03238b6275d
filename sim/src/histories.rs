//! Threads that share a few names, files and blocks of one library, and use every lane.
//!
//! ```text
//! threads   open, create, rename, link, unlink; write, read, truncate, punch; sync, commit
//!    |  each call with its start and end            | each device request
//!    v                                              v
//! history ------- what reads may return ------> every crash
//! ```
//!
//! 1. Nothing belongs to one thread: writes of several threads to one block, through several lanes,
//!    are in flight together. The result of each read is checked against the history of the file
//!    ([`history`]), that of each lookup against the history of the names ([`names`]).
//! 2. After all threads have ended, each file reads the same by every lane, also after reopening.
//! 3. What a crash leaves is checked against the same history: every write before a sync that had
//!    returned is there, and nothing is there that was not written ([`crashes`]).
//! 4. At the end the checker finds nothing.

mod crashes;
pub mod history;
pub mod names;
mod worker;

use crate::lane;
use crate::operation::Lane;
use crate::volume;
use anyhow::{Context, Result, anyhow, ensure};
use butternut::{Compress, File, FileId, Filesystem, MountOptions};
use butternut_device::{Device, RecordingDevice};
use history::{CELL_BYTES, CELLS, History, Window};
use names::NAMES;
use std::sync::Arc;
use worker::Worker;

const LANES: [Lane; 3] = [Lane::Cached, Lane::Direct, Lane::Uncached];

/// The parameters of one run.
#[derive(Clone, Copy, Debug)]
pub struct SharedRun {
    pub seed: u64,
    pub threads: u8,
    /// Operations of each thread.
    pub operations: usize,
    pub page_cache_bytes: u64,
    /// Commit interval in seconds.
    pub commit_seconds: u32,
    pub compress: Option<Compress>,
    /// Whether writes may cover parts of blocks.
    pub has_partial_writes: bool,
    /// One crash in so many is checked.
    pub crashes_one_in: u64,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub operations: u64,
    /// Requests that were submitted to a queue.
    pub queued: u64,
    /// Words of files that were checked against their history.
    pub reads: u64,
    pub syncs: u64,
    pub crashes: u64,
}

impl RunCounts {
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.queued += other.queued;
        self.reads += other.reads;
        self.syncs += other.syncs;
        self.crashes += other.crashes;
    }
}

impl SharedRun {
    /// Runs on a recording device, and checks its crashes.
    ///
    /// # Errors
    /// A result that no history allows, or a failed call.
    pub fn run_with_crashes(&self, base: Arc<dyn Device>) -> Result<RunCounts> {
        let recorder = Arc::new(RecordingDevice::new(base));
        let device: Arc<dyn Device> = Arc::<RecordingDevice>::clone(&recorder);
        let (mut ran, history) = self.run_on(&device, Some(&*recorder))?;
        ran.crashes = crashes::check(&recorder, &history, self.seed, self.crashes_one_in)?;
        Ok(ran)
    }

    /// Runs on any device, without crashes.
    ///
    /// # Errors
    /// As [`Self::run_with_crashes`].
    pub fn run(&self, device: &Arc<dyn Device>) -> Result<RunCounts> {
        self.run_on(device, None).map(|(ran, _)| ran)
    }

    fn run_on(
        &self,
        device: &Arc<dyn Device>,
        recorder: Option<&RecordingDevice>,
    ) -> Result<(RunCounts, History)> {
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(self.commit_seconds)
            .page_cache_bytes(self.page_cache_bytes)
            // A small cache, so that inodes are evicted often.
            .inode_cache_entries(64)
            .compress(self.compress)
            .workers(1);
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        let history = History::default();
        let mut ran = self.run_threads(&filesystem, &history, recorder)?;
        ran.reads += check_all(&filesystem, &history).context("at the end")?;
        filesystem.close()?;
        volume::check(device)?;
        let options = MountOptions::default();
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        ran.reads += check_all(&filesystem, &history).context("after reopening")?;
        Ok((ran, history))
    }

    fn run_threads(
        &self,
        filesystem: &Filesystem,
        history: &History,
        recorder: Option<&RecordingDevice>,
    ) -> Result<RunCounts> {
        let mut ran = RunCounts::default();
        std::thread::scope(|scope| {
            let worker = |number: u8| {
                let seed = self.seed << 8 | u64::from(number);
                let worker = Worker::new(self, seed, filesystem, history, recorder);
                scope.spawn(move || {
                    let outcome = worker?.run(self.operations);
                    outcome.with_context(|| format!("thread {number}"))
                })
            };
            let workers: Vec<_> = (0..self.threads).map(worker).collect();
            let mut failure = None;
            for worker in workers {
                match worker.join().map_err(|_| anyhow!("a thread panicked")).flatten() {
                    Ok(own) => ran.add(own),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            failure.map_or(Ok(()), Err)
        })?;
        Ok(ran)
    }
}

/// Checks all names and files against their history while nothing changes them. Returns the number
/// of words that were checked.
fn check_all(filesystem: &Filesystem, history: &History) -> Result<u64> {
    let window =
        || Window { from: history.tick(), to: history.tick(), position: None, stores_from: None };
    let mut reads = 0;
    for (number, name) in NAMES.iter().enumerate() {
        let found = find(filesystem, name)?;
        let names = history.names();
        ensure!(
            names.allows(number, found, &window()),
            "{name} refers to {found:?}, after {}",
            names.describe(number)
        );
        drop(names);
        let Some(id) = found else { continue };
        let file = filesystem.open_file(id)?;
        for lane in LANES {
            let bytes = read(&file, 0..CELLS, lane)?;
            let held = history.check(id, 0, &bytes, &window());
            held.map_err(|text| anyhow!("{lane:?}: {text}"))?;
            reads += 1;
        }
    }
    Ok(reads)
}

fn find(filesystem: &Filesystem, name: &str) -> Result<Option<FileId>> {
    match filesystem.lookup(filesystem.root(), name.as_bytes()) {
        Ok(id) => Ok(Some(id)),
        Err(butternut::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads cells; cells behind the end of the file are zeroes.
fn read(file: &File, cells: std::ops::Range<usize>, lane: Lane) -> Result<Vec<u8>> {
    lane::read(file, offset_of(cells.start), bytes_of(cells.len()), lane)
}

fn offset_of(cell: usize) -> u64 {
    cell as u64 * CELL_BYTES
}

fn bytes_of(cells: usize) -> usize {
    usize::try_from(offset_of(cells)).expect("small")
}
