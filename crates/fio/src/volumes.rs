//! Volumes that jobs share: the first job opens one, the last one commits and closes it.
//!
//! Laws:
//!
//! 1. A volume is open once in a process, however many jobs use it. Two spellings of a device's
//!    path are one device.
//! 2. Opening and closing exclude each other: who comes while the last job closes, waits for it
//!    and opens anew.
//! 3. Jobs that have a volume open at the same time agree on its switches.

use crate::switches::{self, Wanted};
use crate::{FioError, Result};
use butternut::{DevicePath, FileId, Filesystem, Subvolume};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The inode of a subvolume's root directory.
const ROOT_INO: u64 = 256;
/// The subvolume that holds all others.
const TOP_LEVEL: u64 = 5;
const EROFS: i32 = 30;

static OPEN: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// What a job asks for.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Separated by commas.
    pub(crate) devices: String,
    /// A path from the top level, or an id; empty for the default.
    pub(crate) subvolume: String,
    pub(crate) switches: String,
    pub(crate) read_only: bool,
}

/// One job's hold on an open volume.
#[derive(Debug)]
pub struct Volume {
    /// Until it is let go of.
    filesystem: Option<Filesystem>,
    /// Where paths start.
    pub(crate) root: FileId,
    pub(crate) is_writable: bool,
    devices: Vec<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    devices: Vec<PathBuf>,
    switches: String,
    filesystem: Filesystem,
    is_writable: bool,
    /// Where what was counted goes in the end.
    stats: Option<PathBuf>,
    jobs: usize,
}

impl Volume {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let devices = devices(&spec.devices)?;
        let mut open = open_volumes();
        let found = open.iter().position(|shared| shared.devices == devices);
        let at = found.unwrap_or(open.len());
        if found.is_none() {
            open.push(Shared::open(devices.clone(), spec)?);
        }
        let shared = &mut open[at];
        if shared.switches != spec.switches {
            return Err(FioError::OtherSwitches {
                have: shared.switches.clone(),
                want: spec.switches.clone(),
            });
        }
        shared.jobs += 1;
        let mut volume = Self {
            filesystem: Some(shared.filesystem.clone()),
            root: shared.filesystem.root(),
            is_writable: shared.is_writable,
            devices,
        };
        drop(open);
        volume.root = volume.start(&spec.subvolume)?;
        Ok(volume)
    }

    /// Lets go of the volume; the last job to do so hears of what could not be written.
    pub(crate) fn close(mut self) -> Result<()> {
        self.let_go()
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        self.filesystem.as_ref().expect("it is held until the volume is let go of")
    }

    /// One job less. The books stay locked while the last one closes (law 2).
    fn let_go(&mut self) -> Result<()> {
        let mut open = open_volumes();
        // Only the books hold it then: closing releases the devices.
        self.filesystem = None;
        let Some(at) = open.iter().position(|shared| shared.devices == self.devices) else {
            return Ok(());
        };
        open[at].jobs = open[at].jobs.saturating_sub(1);
        if open[at].jobs > 0 {
            return Ok(());
        }
        let shared = open.swap_remove(at);
        let counted = shared.stats.map(|path| write_stats(&path, &shared.filesystem));
        shared.filesystem.close().map_err(FioError::library("commit"))?;
        counted.unwrap_or(Ok(()))
    }

    /// The root directory of the subvolume that a job names.
    fn start(&self, subvolume: &str) -> Result<FileId> {
        let filesystem = self.filesystem();
        let what = FioError::library(format!("subvolume {subvolume:?}"));
        if subvolume.is_empty() {
            return filesystem.default_subvolume().map(root_of).map_err(what);
        }
        if let Ok(id) = subvolume.parse() {
            return filesystem.subvolume(id).map(|_| root_of(id)).map_err(what);
        }
        filesystem.resolve(subvolume.as_bytes(), butternut::Follow::Last).map_err(what)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.filesystem.is_some() {
            // Nobody is left to be told.
            drop(self.let_go());
        }
    }
}

impl Shared {
    fn open(devices: Vec<PathBuf>, spec: &Spec) -> Result<Self> {
        let what = format!("volume {}", spec.devices);
        let mut wanted = Wanted::default();
        switches::apply(&spec.switches, &mut wanted)?;
        let Wanted { mut options, stats } = wanted;
        options.read_only = spec.read_only;
        // Jobs name their subvolumes, and the volume is shared.
        options.subvolume = Subvolume::Id(TOP_LEVEL);
        let paths: Vec<_> = devices.iter().map(DevicePath::from).collect();
        let filesystem = match Filesystem::open(&paths, &options) {
            // What nobody can write can still be read.
            Err(error) if error.errno() == EROFS && !options.read_only => {
                options.read_only = true;
                Filesystem::open(&paths, &options)
            }
            opened => opened,
        };
        Ok(Self {
            devices,
            switches: spec.switches.clone(),
            filesystem: filesystem.map_err(FioError::library(what))?,
            is_writable: !options.read_only,
            stats,
            jobs: 0,
        })
    }
}

/// What was counted since the volume was opened, as one line of JSON; what closing does is not in
/// it.
fn write_stats(path: &Path, filesystem: &Filesystem) -> Result<()> {
    let pages = filesystem.page_counts();
    let text = format!(
        "{{\"cached_pages_peak\":{},\"dirty_pages_peak\":{},\"stats\":{}}}\n",
        pages.cached_pages_peak,
        pages.dirty_pages_peak,
        filesystem.stats().to_json()
    );
    std::fs::write(path, text)
        .map_err(|source| FioError::Stats { path: path.display().to_string(), source })
}

fn open_volumes() -> MutexGuard<'static, Vec<Shared>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn root_of(subvolume: u64) -> FileId {
    FileId::new(subvolume, ROOT_INO)
}

/// Sorted, and as the system knows them (law 1).
fn devices(list: &str) -> Result<Vec<PathBuf>> {
    let mut devices: Vec<PathBuf> = list
        .split(',')
        .filter(|path| !path.is_empty())
        // One that does not exist is for the open to refuse, by the name that was given.
        .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into()))
        .collect();
    devices.sort();
    devices.dedup();
    if devices.is_empty() { Err(FioError::NoDevice) } else { Ok(devices) }
}
