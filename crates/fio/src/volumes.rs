//! Volumes that jobs share: the first job opens a volume, the last one commits and closes it.
//!
//! Laws:
//!
//! 1. A volume is open at most once in a process, however many jobs use it. Device paths are
//!    canonicalized, so that two paths of one device match.
//! 2. Opening and closing exclude each other: a job that opens a volume while the last job closes
//!    it waits, and then opens it again.
//! 3. Jobs that have a volume open at the same time have the same `mount_options`.

use crate::settings::{self, Settings};
use crate::{FioError, Result};
use butternut::{DevicePath, FileId, Filesystem, Subvolume, TOP_LEVEL};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::path::{Path, PathBuf};

const EROFS: i32 = 30;

static OPEN: Mutex<Vec<Shared>, rank::FioVolumes> = Mutex::new(Vec::new());

/// The engine's options of a job.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Paths, separated by commas.
    pub(crate) devices: String,
    /// A path from the top level, or an id; empty for the default subvolume.
    pub(crate) subvolume: String,
    pub(crate) mount_options: String,
    pub(crate) read_only: bool,
}

/// One job's handle of an open volume.
#[derive(Debug)]
pub struct Volume {
    /// `None` once it is closed.
    filesystem: Option<Filesystem>,
    /// The directory that paths are relative to.
    pub(crate) root: FileId,
    pub(crate) is_writable: bool,
    devices: Vec<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    devices: Vec<PathBuf>,
    mount_options: String,
    filesystem: Filesystem,
    is_writable: bool,
    /// The file that statistics are written to at the end.
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
        if shared.mount_options != spec.mount_options {
            return Err(FioError::OtherSettings {
                have: shared.mount_options.clone(),
                want: spec.mount_options.clone(),
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
        volume.root = volume.root_of(&spec.subvolume)?;
        Ok(volume)
    }

    /// Closes the handle. The last handle commits and closes the volume.
    ///
    /// # Errors
    /// The commit or writing the statistics failed.
    pub(crate) fn close(mut self) -> Result<()> {
        self.release()
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        self.filesystem.as_ref().expect("it is set until the volume is closed")
    }

    /// Decreases the number of jobs. The list stays locked while the last one closes (law 2).
    fn release(&mut self) -> Result<()> {
        let mut open = open_volumes();
        // The list then has the last reference, so that closing releases the devices.
        self.filesystem = None;
        let Some(at) = open.iter().position(|shared| shared.devices == self.devices) else {
            return Ok(());
        };
        open[at].jobs = open[at].jobs.saturating_sub(1);
        if open[at].jobs > 0 {
            return Ok(());
        }
        let shared = open.swap_remove(at);
        let written = shared.stats.map(|path| write_stats(&path, &shared.filesystem));
        shared.filesystem.close().map_err(FioError::library("commit"))?;
        written.unwrap_or(Ok(()))
    }

    /// Returns the root directory of the subvolume that the job names.
    fn root_of(&self, subvolume: &str) -> Result<FileId> {
        let filesystem = self.filesystem();
        let what = FioError::library(format!("subvolume {subvolume:?}"));
        if subvolume.is_empty() {
            return filesystem.default_subvolume().map(FileId::root_of).map_err(what);
        }
        if let Ok(id) = subvolume.parse() {
            return filesystem.subvolume(id).map(|_| FileId::root_of(id)).map_err(what);
        }
        filesystem.resolve(subvolume.as_bytes(), butternut::Follow::Last).map_err(what)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.filesystem.is_some() {
            // No caller can receive the error.
            drop(self.release());
        }
    }
}

impl Shared {
    fn open(devices: Vec<PathBuf>, spec: &Spec) -> Result<Self> {
        let what = format!("volume {}", spec.devices);
        let mut settings = Settings::default();
        settings::apply(&spec.mount_options, &mut settings)?;
        let Settings { mut options, stats } = settings;
        options.read_only = spec.read_only;
        // The volume is shared, and each job names its own subvolume.
        options.subvolume = Subvolume::Id(TOP_LEVEL);
        let paths: Vec<_> = devices.iter().map(DevicePath::from).collect();
        let filesystem = match Filesystem::open(&paths, &options) {
            // A volume that cannot be written can still be read.
            Err(error) if error.errno() == EROFS && !options.read_only => {
                options.read_only = true;
                Filesystem::open(&paths, &options)
            }
            opened => opened,
        };
        Ok(Self {
            devices,
            mount_options: spec.mount_options.clone(),
            filesystem: filesystem.map_err(FioError::library(what))?,
            is_writable: !options.read_only,
            stats,
            jobs: 0,
        })
    }
}

/// Writes the statistics since the volume was opened, as one line of JSON. They do not include the
/// final commit.
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
    OPEN.lock()
}

/// Returns the canonical paths of the devices, sorted (law 1).
fn devices(list: &str) -> Result<Vec<PathBuf>> {
    let mut devices: Vec<PathBuf> = list
        .split(',')
        .filter(|path| !path.is_empty())
        // The open reports a device that does not exist, with the path that was given.
        .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into()))
        .collect();
    devices.sort();
    devices.dedup();
    if devices.is_empty() { Err(FioError::NoDevice) } else { Ok(devices) }
}
