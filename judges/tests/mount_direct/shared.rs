//! Threads that share a few names, files and blocks of one mount, and use every access path.
//!
//! ```text
//! threads   open, create, rename, link, unlink; write(2), O_DIRECT, stores and loads of mappings,
//!    |      truncate, punch; fsync, msync, O_DSYNC, sync of the volume
//!    |  each call with its start and end            | some syncs
//!    v                                              v
//! history ------- what reads may return ------> copies of the image, read by the kernel
//! ```
//!
//! 1. Nothing belongs to one thread. The result of each read and of each lookup is checked against
//!    the history of the file and of the names ([`butternut_sim::histories`]).
//! 2. After all threads have ended, each file reads the same by every access path, also after the
//!    volume was mounted again.
//! 3. A copy of the image after a sync passes `btrfs check`, and the kernel shows of it what the
//!    history allows: every write before a sync that had returned, and nothing that was not written
//!    ([`crashes`]).
//! 4. The first cells of a file are never cut off once they exist, and no others are mapped: a load
//!    from behind the end of a file would end the process.
//!
//! `BUTTERNUT_LONG=1` runs ten times as many seeds; `BUTTERNUT_SEED=N` runs one.

#[path = "shared/crashes.rs"]
mod crashes;
#[path = "shared/worker.rs"]
mod worker;

use super::open;
use anyhow::{Context, Result, anyhow, ensure};
use butternut::FileId;
use butternut_judges::kept;
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_sim::histories::history::{CELL_BYTES, CELLS, History, Window};
use butternut_sim::histories::names::NAMES;
use butternut_sys::mapped::Mapped;
use crashes::{Crashes, Synced};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use worker::Worker;

const VOLUME_BYTES: u64 = 1 << 30;
/// Operations of all threads for one seed.
const OPERATIONS: usize = 2000;
/// Cells of a file that a truncation keeps; they may be mapped (law 4).
const MAPPED_CELLS: usize = 80;

/// What the threads share.
struct Shared {
    root: PathBuf,
    history: History,
    crashes: Crashes,
    /// Whether a sync of the volume covers stores to mappings.
    syncs_mappings: bool,
    /// Number of reads and loads that were checked.
    reads: AtomicUsize,
}

pub(super) fn reads_and_crashes_show_what_their_history_allows(options: &str) -> Result<()> {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None if is_long => 0..30,
        None => 0..1,
    };
    seeds
        .into_iter()
        .try_for_each(|seed| run(options, seed).with_context(|| format!("seed {seed}")))
}

fn run(options: &str, seed: u64) -> Result<()> {
    let mut volume = OurVolume::sized(kept::scratch(), VOLUME_BYTES, options)?;
    let crashes = Crashes::new(volume.path(), volume.process()?)?;
    let root = volume.root()?.to_path_buf();
    let syncs_mappings = options.contains("writeback") || options.contains("uncached");
    let (history, reads) = (History::default(), AtomicUsize::default());
    let shared = Shared { root, history, crashes, syncs_mappings, reads };
    run_threads(&shared, seed)?;
    shared.check_all().context("at the end")?;
    shared.crash_after_sync().context("at the end")?;
    let (reads, copies) = (shared.reads.load(Ordering::Relaxed), shared.crashes.checked());
    ensure!(reads > OPERATIONS / 5 && copies > 1, "{reads} reads, {copies} copies of the image");
    volume.remount()?;
    let shared = Shared { root: volume.root()?.to_path_buf(), ..shared };
    shared.check_all().context("mounted again")?;
    volume.unmount()
}

fn run_threads(shared: &Shared, seed: u64) -> Result<()> {
    let threads = [6, 4, 5, 8][usize::try_from(seed % 4)?];
    thread::scope(|scope| {
        let spawn = |number: usize| {
            let worker = Worker::new(shared, seed << 8 | number as u64);
            scope.spawn(move || {
                let ran = worker.run(OPERATIONS / threads);
                ran.with_context(|| format!("thread {number}"))
            })
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        let ended = threads.into_iter().map(|it| it.join().expect("no thread panics"));
        // Each thread is joined before the first error is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

impl Shared {
    fn path(&self, name: usize) -> PathBuf {
        self.root.join(NAMES[name])
    }

    /// Checks all names and files against their history while nothing changes them.
    fn check_all(&self) -> Result<()> {
        let window = || Window {
            from: self.history.tick(),
            to: self.history.tick(),
            position: None,
            stores_from: None,
        };
        for number in 0..NAMES.len() {
            let found = id_of(&self.path(number))?;
            self.check_name(number, found, &window())?;
            let Some(id) = found else { continue };
            for flags in [OFlags::empty(), OFlags::DIRECT] {
                let file = open(&self.path(number), flags)?;
                let read = read_cells(&file, 0..CELLS)?;
                self.check_cells(id, 0, &read, &window()).with_context(|| format!("{flags:?}"))?;
                if file.metadata()?.len() < offset_of(MAPPED_CELLS) {
                    continue;
                }
                let mapped = Mapped::shared(&file, bytes_of(MAPPED_CELLS))?;
                let mut loaded = vec![0; bytes_of(MAPPED_CELLS)];
                mapped.get(0, &mut loaded);
                let checked = self.check_cells(id, 0, &loaded, &window());
                checked.with_context(|| format!("mapped, {flags:?}"))?;
            }
        }
        Ok(())
    }

    fn check_name(&self, name: usize, found: Option<FileId>, window: &Window) -> Result<()> {
        let names = self.history.names();
        ensure!(
            names.allows(name, found, window),
            "{} refers to {found:?} in {window:?}, after {}",
            NAMES[name],
            names.describe(name)
        );
        Ok(())
    }

    fn check_cells(&self, id: FileId, first: usize, bytes: &[u8], window: &Window) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.history.check(id, first, bytes, window).map_err(|text| anyhow!(text))
    }

    /// Syncs all files and the volume, and checks a copy of the image.
    fn crash_after_sync(&self) -> Result<()> {
        for number in 0..NAMES.len() {
            let Some(id) = id_of(&self.path(number))? else { continue };
            let start = self.history.tick();
            open(&self.path(number), OFlags::empty())?.sync_all()?;
            self.crashes.add_sync(Synced::File(id, 0..CELLS), start..self.history.tick());
        }
        self.sync_volume()?;
        self.crashes.check(&self.history)
    }

    /// Commits everything. On a mount that writes through, this covers no stores to mappings: FUSE
    /// does not let syncfs(2) wait for the pages that the kernel sends (Linux 6.18).
    fn sync_volume(&self) -> Result<()> {
        let start = self.history.tick();
        rustix::fs::syncfs(File::open(&self.root)?)?;
        rustix::fs::getxattr(&self.root, butternut_fuse::SYNC_XATTR, &mut [0; 16][..])?;
        let synced = Synced::All { stores: self.syncs_mappings };
        self.crashes.add_sync(synced, start..self.history.tick());
        Ok(())
    }
}

/// Returns the inode of a name.
fn id_of(path: &Path) -> Result<Option<FileId>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(FileId::new(5, found.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Reads cells; cells behind the end of the file are zeroes.
fn read_cells(file: &File, cells: Range<usize>) -> Result<Vec<u8>> {
    let mut read = vec![0; bytes_of(cells.len())];
    let mut done = 0;
    while done < read.len() {
        match file.read_at(&mut read[done..], offset_of(cells.start) + done as u64)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    read[done..].fill(0);
    Ok(read)
}

fn offset_of(cell: usize) -> u64 {
    cell as u64 * CELL_BYTES
}

fn bytes_of(cells: usize) -> usize {
    usize::try_from(offset_of(cells)).expect("small")
}
