//! Copies of the image of a mount in use, as a crash of its process would leave it.
//!
//! 1. For a copy, the process of the mount is stopped. The copy has everything that the process has
//!    submitted, and nothing that the kernel or the process only caches.
//! 2. Another process makes the copy: a thread of this one could wait for memory whose mapping
//!    another thread changes, which waits for the stopped process.
//! 3. Copies have the identity of one volume, so one is checked at a time.

use super::{CELLS, MAPPED_CELLS, bytes_of, id_of, offset_of};
use anyhow::{Context, Result, anyhow, ensure};
use butternut::FileId;
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, tool};
use butternut_sim::histories::history::{History, Tick, Window};
use butternut_sim::histories::names::NAMES;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Stops process `$1` until the file `$2` has been copied to `$3`. Threads of `io_uring` ignore the
/// signal; they sleep when they have nothing to do.
const STOP_AND_COPY: &str = r#"
    set -e
    trap 'kill -CONT "$1"' EXIT
    trap 'exit 1' HUP INT TERM
    kill -STOP "$1"
    is_stopped() {
        awk '/^Name:/ { ring = /iou-/ }
             /^State:/ && $2 != "T" && !(ring && $2 == "S") { runs = 1 }
             END { exit runs }' "/proc/$1/task/"*/status 2>/dev/null
    }
    n=0; until is_stopped "$1"; do [ $n -lt 6000 ]; n=$((n+1)); sleep 0.01; done
    cp --sparse=always --reflink=never "$2" "$3""#;

/// A sync that has returned.
#[derive(Clone, Debug)]
struct Synced {
    /// The synced file; `None` for a sync of all files and names.
    file: Option<FileId>,
    cells: Range<usize>,
    ticks: Range<Tick>,
}

pub(super) struct Crashes {
    image: PathBuf,
    process: u64,
    dir: tempfile::TempDir,
    syncs: Mutex<Vec<Synced>>,
    /// Held while a copy exists (law 3). The number of copies that were checked.
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

    /// Records a sync of these cells of a file, or of everything, that has returned.
    pub(super) fn add_sync(&self, file: Option<FileId>, cells: Range<usize>, ticks: Range<Tick>) {
        let synced = Synced { file, cells, ticks };
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner).push(synced);
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

    /// Copies the image and checks the copy.
    pub(super) fn check(&self, history: &History) -> Result<()> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        *checked += 1;
        self.check_copy(history).with_context(|| format!("copy {checked} of the image"))
    }

    fn check_copy(&self, history: &History) -> Result<()> {
        let (copy, process) = (self.dir.path().join("copy.img"), self.process.to_string());
        let begin = history.tick();
        let args = [Path::new("-c"), STOP_AND_COPY.as_ref(), "sh".as_ref(), process.as_ref()];
        let args: Vec<_> = args.into_iter().chain([&*self.image, &*copy]).collect();
        tool::run("sh", &args.iter().map(|arg| arg.as_os_str()).collect::<Vec<_>>())?;
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
            let window = self.window(None, &(0..CELLS), crash)?;
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
                let window = self.window(Some(id), &cells, crash)?;
                let bytes = &bytes[bytes_of(cells.start)..bytes_of(cells.end)];
                let checked = history.check(id, cells.start, bytes, &window);
                checked.map_err(|text| anyhow!("{name}: {text}"))?;
            }
        }
        Ok(())
    }

    /// Returns what a crash must show of cells of a file, or of the names.
    fn window(
        &self,
        file: Option<FileId>,
        cells: &Range<usize>,
        crash: &Range<Tick>,
    ) -> Result<Window> {
        let syncs = self.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        let covers = |sync: &&Synced| {
            (sync.file.is_none() || sync.file == file)
                && (sync.cells.start <= cells.start && cells.end <= sync.cells.end)
                && sync.ticks.end < crash.start
        };
        let from = syncs.iter().filter(covers).map(|sync| sync.ticks.start).max().unwrap_or(0);
        Ok(Window { from, to: crash.end, position: Some(usize::try_from(crash.start)?) })
    }
}

fn check_volume(image: &Path) -> Result<()> {
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", image)).map(drop)
}
