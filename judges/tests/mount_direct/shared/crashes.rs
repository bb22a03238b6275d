//! Copies of the image of a mount in use, as a crash of its process would leave it.
//!
//! Copies have the identity of one volume, so one is checked at a time.

use super::{CELLS, MAPPED_CELLS, bytes_of, id_of, offset_of};
use anyhow::{Context, Result, anyhow, ensure};
use butternut::FileId;
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, stopped, tool};
use butternut_sim::histories::history::{History, Tick, Window};
use butternut_sim::histories::names::NAMES;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};

/// What a sync makes durable.
#[derive(Clone, Debug)]
pub(super) enum Synced {
    /// Cells of one file.
    File(FileId, Range<usize>),
    /// All names, and all files, with or without stores to mappings.
    All { stores: bool },
}

impl Synced {
    /// Whether what was written to these cells is durable, or what was stored to mappings of them.
    fn covers(&self, file: FileId, cells: &Range<usize>, is_store: bool) -> bool {
        match self {
            Self::File(of, synced) => {
                *of == file && synced.start <= cells.start && cells.end <= synced.end
            }
            Self::All { stores } => *stores || !is_store,
        }
    }
}

pub(super) struct Crashes {
    image: PathBuf,
    process: u64,
    dir: tempfile::TempDir,
    /// Those that have returned, with their time.
    syncs: Mutex<Vec<(Synced, Range<Tick>)>>,
    /// Held while a copy exists. The number of copies that were checked.
    checked: Mutex<u32>,
}

impl Crashes {
    pub(super) fn new(image: &Path, process: u64) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butternut-judge-shared-")
            .tempdir_in(kept::scratch())?;
        let (image, syncs, checked) = (image.to_path_buf(), Mutex::default(), Mutex::default());
        Ok(Self { image, process, dir, syncs, checked })
    }

    /// Records a sync that has returned.
    pub(super) fn add_sync(&self, synced: Synced, ticks: Range<Tick>) {
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner).push((synced, ticks));
    }

    /// Copies the image and checks the copy, unless another thread does so or `limit` copies have
    /// been checked.
    pub(super) fn check_up_to(&self, limit: u32, history: &History) -> Result<()> {
        let mut checked = match self.checked.try_lock() {
            Ok(checked) if *checked < limit => checked,
            Ok(_) | Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(_)) => return Err(anyhow!("a check has panicked")),
        };
        *checked += 1;
        self.check_copy(history).with_context(|| format!("copy {checked} of the image"))
    }

    /// Returns the number of copies that were checked.
    pub(super) fn checked(&self) -> u32 {
        *self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the image and checks the copy.
    pub(super) fn check(&self, history: &History) -> Result<()> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        *checked += 1;
        self.check_copy(history).with_context(|| format!("copy {checked} of the image"))
    }

    fn check_copy(&self, history: &History) -> Result<()> {
        let copy = self.dir.path().join("copy.img");
        let begin = history.tick();
        stopped::copy_image(self.process, &self.image, &copy)?;
        let crash = begin..history.tick();
        check_volume(&copy).context("before the replay")?;
        let mark = Mark::now()?;
        let mount = KernelMount::new(std::slice::from_ref(&copy), &MountHow::default())?;
        let shown = self.check_shown(mount.root(), &crash, history);
        let device = mount.loops()[0].path().display().to_string();
        mount.unmount()?;
        shown?;
        let complaints = mark.complaints(&[device.trim_start_matches("/dev/")])?;
        ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
        check_volume(&copy).context("after the replay")?;
        Ok(std::fs::remove_file(&copy)?)
    }

    /// Checks what the kernel shows of a copy that was made within these ticks.
    fn check_shown(&self, root: &Path, crash: &Range<Tick>, history: &History) -> Result<()> {
        for (number, name) in NAMES.iter().enumerate() {
            let path = root.join(name);
            let found = id_of(&path)?;
            let window = self.window(crash, |synced, _| matches!(synced, Synced::All { .. }))?;
            let names = history.names();
            ensure!(
                names.allows(number, found, &window),
                "{name} refers to {found:?} in {window:?}, after {}",
                names.describe(number)
            );
            drop(names);
            let Some(id) = found else { continue };
            let mut bytes = std::fs::read(&path)?;
            ensure!(bytes.len() as u64 <= offset_of(CELLS), "{name} has {} bytes", bytes.len());
            bytes.resize(bytes_of(CELLS), 0);
            for cells in [0..MAPPED_CELLS, MAPPED_CELLS..CELLS] {
                let covers = |synced: &Synced, is_store| synced.covers(id, &cells, is_store);
                let window = self.window(crash, covers)?;
                let bytes = &bytes[bytes_of(cells.start)..bytes_of(cells.end)];
                let checked = history.check(id, cells.start, bytes, &window);
                checked.map_err(|text| anyhow!("{name}: {text}"))?;
            }
        }
        Ok(())
    }

    /// Returns what a crash must show of that which some syncs cover, of writes and of stores to
    /// mappings.
    fn window(
        &self,
        crash: &Range<Tick>,
        covers: impl Fn(&Synced, bool) -> bool,
    ) -> Result<Window> {
        let syncs = self.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        let last = |is_store| {
            let before = syncs.iter().filter(|(_, ticks)| ticks.end < crash.start);
            let covering = before.filter(|(synced, _)| covers(synced, is_store));
            covering.map(|(_, ticks)| ticks.start).max().unwrap_or(0)
        };
        let (from, stores_from) = (last(false), Some(last(true)));
        Ok(Window {
            from,
            to: crash.end,
            position: Some(usize::try_from(crash.start)?),
            stores_from,
        })
    }
}

fn check_volume(image: &Path) -> Result<()> {
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", image)).map(drop)
}
