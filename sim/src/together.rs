//! Several threads on the same files of one library, through every lane.
//!
//! 1. A file is divided into regions that are not block-aligned. Each region has one owner thread,
//!    which knows every byte of it: it reads its region by any lane and must find these bytes,
//!    whatever other threads do beside it.
//! 2. Every byte identifies the thread that wrote it. A thread that reads another's region must
//!    find no byte of its own.
//! 3. Every appended record is in the file once, whole, and in the order of its thread.
//! 4. One more thread changes the size of a file of its own, syncs, commits and sets tunables.
//! 5. At the end the files hold what their owners wrote, also after closing and opening, and the
//!    checker finds nothing.

mod append;
mod disturb;
pub mod mounted;
mod worker;

use crate::lane::{make, read_whole};
use crate::operation::{Lane, flags};
use crate::random::Random;
use crate::volume;
use anyhow::{Context, Result, anyhow, bail};
use butternut::{Compress, File, Filesystem, MountOptions};
use butternut_device::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use worker::Worker;

/// Ten blocks and a part of one.
const REGION_BYTES: u64 = 41_000;
const REGIONS: u64 = 30;
/// A plain file, one that is nodatacow and nodatasum, and a compressed one.
const FILES: [(&str, u32); 3] =
    [("plain", 0), ("in place", flags::NO_COW), ("packed", flags::COMPRESS)];

#[derive(Clone, Copy, Debug)]
pub struct Together {
    pub seed: u64,
    /// The number of threads, at most 14.
    pub threads: u8,
    /// Operations of each thread.
    pub operations: usize,
    pub page_cache_bytes: u64,
    /// Commit interval in seconds.
    pub commit_seconds: u32,
    pub compress: Option<Compress>,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub operations: u64,
    /// Requests that were submitted to a queue.
    pub queued: u64,
    /// Direct requests that were in flight at the same time as others.
    pub shared: u64,
}

/// A region with its expected bytes.
#[derive(Clone, Debug)]
struct Region {
    file: usize,
    start: u64,
    bytes: Vec<u8>,
}

impl Together {
    /// Runs the threads on a device.
    ///
    /// # Errors
    /// A byte that is not as expected, or a failed call.
    pub fn run(&self, device: &Arc<dyn Device>) -> Result<RunCounts> {
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(self.commit_seconds)
            .page_cache_bytes(self.page_cache_bytes)
            .compress(self.compress)
            .workers(1);
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        let files = make_files(&filesystem)?;
        let log = make(&filesystem, "log", 0)?;
        let mut ran = RunCounts::default();
        let regions = self.run_threads(&filesystem, (&files, &log), &mut ran)?;
        let lanes = filesystem.lane_counts();
        ran.shared = lanes.dio_write_shared + lanes.dio_read_simple + lanes.dio_read_general;
        for lane in [Lane::Direct, Lane::Uncached, Lane::Cached] {
            compare(&files, &regions, lane).with_context(|| format!("at the end, {lane:?}"))?;
            append::compare(&log, lane)?;
        }
        drop((files, log));
        filesystem.close()?;
        volume::check(device)?;
        let options = MountOptions::default();
        let filesystem = Filesystem::open_devices(vec![Arc::clone(device)], &options)?;
        let open = |name: &str| -> Result<File> {
            let id = filesystem.lookup(filesystem.root(), name.as_bytes())?;
            Ok(filesystem.open_file(id)?)
        };
        let files: Vec<File> = FILES.iter().map(|(name, _)| open(name)).collect::<Result<_>>()?;
        compare(&files, &regions, Lane::Cached).context("after reopening")?;
        append::compare(&open("log")?, Lane::Cached)?;
        Ok(ran)
    }

    fn run_threads(
        &self,
        filesystem: &Filesystem,
        (files, log): (&[File], &File),
        ran: &mut RunCounts,
    ) -> Result<Vec<Region>> {
        let is_over = AtomicBool::new(false);
        let mut regions = Vec::new();
        std::thread::scope(|scope| {
            let worker = |number: u8| {
                let own = self.regions_of(number);
                let seed = self.seed << 8 | u64::from(number);
                let worker = Worker::new(number, seed, filesystem, (files, log), own);
                scope.spawn(move || {
                    let outcome = worker?.run(self.operations);
                    outcome.with_context(|| format!("thread {number}"))
                })
            };
            let workers: Vec<_> = (0..self.threads).map(worker).collect();
            let (seed, is_over) = (self.seed << 8 | 0xff, &is_over);
            let beside = scope.spawn(move || disturb::run(filesystem, seed, is_over));
            let mut failure = None;
            for worker in workers {
                match worker.join().map_err(|_| anyhow!("a thread panicked")).flatten() {
                    Ok((own, queued)) => {
                        regions.extend(own);
                        ran.operations += self.operations as u64;
                        ran.queued += queued;
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            is_over.store(true, Ordering::Release);
            let disturbed = beside.join().map_err(|_| anyhow!("a thread panicked")).flatten();
            failure.map_or(Ok(()), Err).and(disturbed.context("the disturbing thread").map(drop))
        })?;
        Ok(regions)
    }

    fn regions_of(&self, number: u8) -> Vec<Region> {
        let mut random = Random::new(self.seed);
        let mut regions = Vec::new();
        for file in 0..FILES.len() {
            for start in (0..REGIONS).map(|at| at * REGION_BYTES) {
                if random.below(u64::from(self.threads)) == u64::from(number) {
                    let bytes = vec![0; usize::try_from(REGION_BYTES).expect("small")];
                    regions.push(Region { file, start, bytes });
                }
            }
        }
        regions
    }
}

fn make_files(filesystem: &Filesystem) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for (name, flags) in FILES {
        let file = make(filesystem, name, flags)?;
        file.truncate(REGIONS * REGION_BYTES)?;
        files.push(file);
    }
    Ok(files)
}

fn compare(files: &[File], regions: &[Region], lane: Lane) -> Result<()> {
    for Region { file: number, start, bytes } in regions {
        let file = files.get(*number).context("a file")?;
        let have = read_whole(file, *start, bytes.len(), lane)?;
        same(&have, bytes, *number, *start)?;
    }
    Ok(())
}

/// Compares bytes; the error is the first difference.
fn same(have: &[u8], want: &[u8], file: usize, start: u64) -> Result<()> {
    if have == want {
        return Ok(());
    }
    let differs = |pair: &(&u8, &u8)| pair.0 != pair.1;
    let first = have.iter().zip(want).position(|pair| differs(&pair)).unwrap_or(0);
    let count = have.iter().zip(want).filter(differs).count();
    let at = start + first as u64;
    let (have, want) = (have.get(first).copied(), want.get(first).copied());
    bail!(
        "file {file}, byte {at} (block {}): have {have:x?}, want {want:x?}; {count} bytes of {} \
         from {start} on differ",
        at / 4096,
        REGION_BYTES,
    )
}

fn any_lane(random: &mut Random) -> Lane {
    *random.pick(&[Lane::Cached, Lane::Direct, Lane::Direct, Lane::Uncached])
}
