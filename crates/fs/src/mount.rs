//! Opening and closing a filesystem: its volume, its threads, and the root of its handles.
//!
//! An open reads the superblocks here and the chunk tree in the forest, and looks up the one
//! subvolume that is the root. Without a log it reads nothing else, so its cost does not depend on
//! the number of files. A log is replayed (`replay`), for reading in memory only. An open for
//! writing also reads the free space, and deletes the orphans of the root subvolume.

use crate::background::cleaner::Cleaner;
use crate::background::committer::Committer;
use crate::background::flusher::Flushers;
use crate::filesystem::{KeepsOpen, Shared};
use crate::inode::cache::InodeCache;
use crate::notice::notices;
use crate::stats::lane_counters::LaneCounters;
use crate::stats::latency::Latencies;
use crate::stats::sync_counters::SyncCounters;
use crate::subvolume::exchanges::Exchanges;
use crate::subvolume::roots::Roots;
use crate::tunables::SharedTunables;
use crate::write_state::WriteState;
use crate::{DevicePath, Error, Filesystem, MountOptions, Result, Subvolume};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_file::{ErrorCursor, Source, SourceOptions};
use butternut_tree::{Forest, ForestOptions, LogClaim};
use butternut_volume::{OpenOptions, Volume, chain};
use rayon::ThreadPoolBuilder;
use std::sync::Arc;
use std::time::Duration;

/// State that all handles share that keep the filesystem open. It is dropped with the last of them.
#[derive(Debug)]
pub(crate) struct OpenMount {
    shared: Arc<Shared>,
    cleaner: Option<Cleaner>,
    committer: Option<Committer>,
    flushers: Option<Flushers>,
}

impl KeepsOpen for OpenMount {}

impl Drop for OpenMount {
    fn drop(&mut self) {
        self.cleaner = None;
        self.committer = None;
        self.flushers = None;
        // No handle is left to return an error to; a caller that needs it closes the filesystem.
        drop(Filesystem::for_thread(Arc::clone(&self.shared)).sync());
    }
}

impl Filesystem {
    /// Opens the volume that the given devices or image files make up, for reading unless the
    /// options say otherwise. A device of a volume that is open for writing must not be written by
    /// anything else.
    ///
    /// # Errors
    /// Devices that hold no btrfs, features that this library does not know (they are named),
    /// missing devices (they are named), or a subvolume that does not exist. For writing, also a
    /// volume that cannot be written (`EROFS`, with the reason as the source).
    pub fn open(devices: &[DevicePath], options: &MountOptions) -> Result<Self> {
        // A seed is opened for reading: other volumes that grew from it use it at the same time,
        // and its file may be read-only.
        let may_have_seed = !options.read_only && devices.len() > 1;
        let open = |device: &DevicePath| -> Result<Arc<dyn Device>> {
            let is_seed = may_have_seed && device.is_seed();
            let writable = !options.read_only && !is_seed;
            let (offset, mounted) = (device.offset, options.mounted_device);
            let bytes = device.bytes;
            let may_register = options.registers_devices;
            let defaults = OpenDevice::default();
            let how = OpenDevice { offset, bytes, writable, mounted, may_register, ..defaults };
            Ok(Arc::new(FileDevice::open(&device.path, &how)?))
        };
        Self::open_devices(devices.iter().map(open).collect::<Result<_>>()?, options)
    }

    /// As [`Filesystem::open`], on devices of any kind.
    pub fn open_devices(devices: Vec<Arc<dyn Device>>, options: &MountOptions) -> Result<Self> {
        let how = OpenOptions {
            degraded: options.degraded,
            super_copy: options.super_copy,
            ..OpenOptions::default()
        };
        let open = move || Ok(Arc::new(Volume::open(devices.clone(), how.clone())?));
        let Opened { forest, log_failure, claim } = forest(&open, options)?;
        let volume = Arc::clone(forest.volume());
        let workers = ThreadPoolBuilder::new()
            .num_threads(options.workers)
            .thread_name(|number| format!("butternut-{number}"))
            .build()
            .map_err(|error| Error::Workers(error.into()))?;
        let caches = SourceOptions {
            compress: options.compress,
            page_cache_bytes: usize::try_from(options.page_cache_bytes).unwrap_or(usize::MAX),
            pending_bytes: options.pending_bytes,
            ..SourceOptions::default()
        };
        let source = Source::open(Arc::clone(&forest), Arc::new(workers), caches)?;
        let write_state = (!options.read_only).then(|| {
            Arc::new(WriteState::new(
                options.inode_cache_entries,
                options.clock,
                options.commit_seconds > 0,
            ))
        });
        // The commit of a replay is none of this filesystem's.
        let generation = forest.generation().map_or(0, |generation| generation.0);
        let first_generation = generation.saturating_add(u64::from(claim.is_some()));
        let shared = Arc::new(Shared {
            notices: notices(&volume, log_failure.as_deref()),
            forest,
            roots: Roots::default(),
            exchanges: Exchanges::default(),
            inodes: InodeCache::new(options.inode_cache_entries),
            source,
            errors: ErrorCursor::default(),
            syncfs_errors: ErrorCursor::default(),
            outstanding_io: Arc::default(),
            allocation_runs: Arc::default(),
            tunables: SharedTunables::new(options.tunables),
            counters: LaneCounters::default(),
            syncs: SyncCounters::default(),
            latencies: Latencies::default(),
            first_generation,
            write_state,
        });
        let root = Self::for_thread(Arc::clone(&shared)).chosen_subvolume(&options.subvolume)?;
        // An open that is refused leaves the volume as it is, so nothing was committed before.
        if let Some(claim) = claim {
            shared.forest.commit_replay(claim).map_err(|error| not_replayed(error.into()))?;
        }
        Self::start(shared, root, options)
    }

    fn start(shared: Arc<Shared>, root: u64, options: &MountOptions) -> Result<Self> {
        let (mut cleaner, mut committer, mut flushers) = (None, None, None);
        shared.outstanding_io.register(&shared.source);
        shared.allocation_runs.register(&shared.source);
        if let Some(write_state) =
            shared.write_state.as_ref().filter(|write_state| write_state.has_committer)
        {
            let every = Duration::from_secs(options.commit_seconds.into());
            committer = Some(Committer::start(&shared, Arc::clone(&write_state.signal), every)?);
            flushers = Some(Flushers::start(&shared)?);
            cleaner = Some(Cleaner::start(&shared, Arc::clone(&write_state.cleaner))?);
        }
        let mount = OpenMount { shared: Arc::clone(&shared), cleaner, committer, flushers };
        let filesystem = Self::opened(shared, root, Arc::new(mount));
        if let Some(write_state) = &filesystem.shared.write_state {
            match filesystem.writable_subvolume(write_state, filesystem.root()) {
                // A read-only subvolume does not prevent writing to the others.
                Ok(_) | Err(Error::ReadOnly { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filesystem)
    }

    /// Makes everything durable, and closes the devices if this is the last handle.
    ///
    /// # Errors
    /// As [`Filesystem::sync`], but of data that was lost earlier only what no sync of its file or
    /// of all files has returned yet.
    pub fn close(self) -> Result<()> {
        self.sync_unreported()
    }

    fn chosen_subvolume(&self, subvolume: &Subvolume) -> Result<u64> {
        let id = match subvolume {
            Subvolume::Default => self.default_subvolume()?,
            Subvolume::Id(id) => *id,
            Subvolume::Path(path) => self.subvolume_at(path)?,
        };
        self.subvolume_tree(id)?;
        Ok(id)
    }
}

/// Opens the volume, which has read no tree yet.
type OpenVolume<'a> = dyn Fn() -> Result<Arc<Volume>> + 'a;

/// A forest.
struct Opened {
    forest: Arc<Forest>,
    /// Why the log of the volume was not replayed, if that failed.
    log_failure: Option<String>,
    /// The log that was replayed and that the next commit ends, of a volume that is writable.
    claim: Option<LogClaim>,
}

fn not_replayed(source: Error) -> Error {
    Error::Log { source: Box::new(source) }
}

fn forest(open: &OpenVolume<'_>, options: &MountOptions) -> Result<Opened> {
    let mut cache = ForestOptions {
        cache_bytes: options.node_cache_bytes,
        clock: options.clock.0,
        commits_for_space: options.commits_for_space,
        enospc_injector: options.enospc_injector.clone(),
        ..ForestOptions::default()
    };
    let volume = open()?;
    let has_log = volume.super_block().log_root().is_some() && !options.ignore_log;
    let opened = |forest, claim| Ok(Opened { forest, log_failure: None, claim });
    if options.read_only {
        return if has_log {
            open_with_log(open, &cache)
        } else {
            opened(Forest::open(volume, cache)?, None)
        };
    }
    cache.replays_log = has_log;
    let forest = Forest::open_writable(volume, cache)?;
    let claim = has_log.then(|| crate::replay::replay(&forest).map_err(not_replayed));
    let claim = claim.transpose()?;
    opened(forest, claim)
}

/// Opens a forest for reading and replays its log in memory. Where that fails, it shows the last
/// commit.
fn open_with_log(open: &OpenVolume<'_>, options: &ForestOptions) -> Result<Opened> {
    let replayed = open().and_then(|volume| {
        let forest = Forest::open_for_replay(volume, options.clone())?;
        crate::replay::replay(&forest)?;
        Ok(forest)
    });
    match replayed {
        Ok(forest) => Ok(Opened { forest, log_failure: None, claim: None }),
        Err(error) => {
            let log_failure = Some(chain(&error));
            let forest = Forest::open(open()?, options.clone())?;
            Ok(Opened { forest, log_failure, claim: None })
        }
    }
}
