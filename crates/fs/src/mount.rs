//! Opening a volume: devices, options, the subvolume to show.
//!
//! Its devices are read here, its chunk tree by the forest; then the one subvolume that is the root
//! is looked up. Nothing else is read: what an open costs does not depend on how many files there
//! are. An open for writing reads the free space besides, and deletes what was left without a name.

use crate::committer::Committer;
use crate::direct::Rooms;
use crate::flusher::{Flights, Flushers};
use crate::inode_cache::InodeCache;
use crate::lane_counters::LaneCounters;
use crate::latency::Latencies;
use crate::root::{ROOT_DIRECTORY, Roots};
use crate::switches::{SwitchBoard, Switches};
use crate::writer::Writer;
use crate::{Clock, Error, FileId, Result, id::TOP_LEVEL};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_file::{Compress, ErrorCursor, Source, SourceOptions};
use butternut_format::super_block::SuperBlock;
use butternut_tree::{Forest, ForestOptions, Refusals};
use butternut_volume::{OpenOptions, Volume};
use rayon::ThreadPoolBuilder;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A device or image file, and where in it the volume starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath {
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub offset: u64,
}

impl<P: AsRef<Path>> From<P> for DevicePath {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().to_path_buf(), offset: 0 }
    }
}

/// Which subvolume is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// What the volume has set as its default; the top level where it has not.
    #[default]
    Default,
    Id(u64),
    /// The path of a subvolume from the top level. No symlink on it is followed
    /// ([`Filesystem::subvolume_at`]).
    Path(Vec<u8>),
}

/// How to open a volume.
#[expect(clippy::struct_excessive_bools, reason = "switches, each on its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Only look: the default.
    pub read_only: bool,
    /// Seconds after which a change is brought down on the devices, unasked. 0: never, unless more
    /// is changed than memory is to hold (256 MiB of tree blocks); see [`Filesystem::abandon`].
    pub commit_seconds: u32,
    /// Where space is short, commit to have what is freed: what is deleted on a full volume may
    /// need that. Without it, what does not fit fails.
    pub commits_for_space: bool,
    /// For tests: room that is refused although there is some.
    pub refusals: Option<Refusals>,
    /// What inodes are stamped by.
    pub clock: Clock,
    /// Open although devices are missing, as long as every chunk can still be read.
    pub degraded: bool,
    /// Pack what is written, with this; files and directories may say otherwise by flag or
    /// property.
    pub compress: Option<Compress>,
    pub subvolume: Subvolume,
    /// Bytes of tree blocks to keep in memory.
    pub node_cache_bytes: u64,
    /// Bytes of file data to keep in memory, clean and dirty.
    pub page_cache_bytes: u64,
    /// Inodes to keep in memory, beside those in use: some 200 bytes each, or a kilobyte and more
    /// where the volume is open for writing.
    pub inode_cache_entries: usize,
    /// Threads for decompression and readahead; 0 is one per core.
    pub workers: usize,
    /// Say nothing when the volume holds a log tree from a crash, whose changes are not shown.
    pub ignore_log: bool,
    /// What of the I/O path is turned back, to be measured.
    pub switches: Switches,
    /// Believe only this superblock copy (0 to 2) of every device.
    pub super_copy: Option<usize>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: true,
            commit_seconds: 30,
            commits_for_space: true,
            refusals: None,
            clock: Clock::default(),
            degraded: false,
            compress: None,
            subvolume: Subvolume::Default,
            node_cache_bytes: 64 << 20,
            page_cache_bytes: 256 << 20,
            inode_cache_entries: 128 << 10,
            workers: 0,
            ignore_log: false,
            switches: Switches::default(),
            super_copy: None,
        }
    }
}

/// Something the owner of a volume should know, found while opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(pub(crate) String);

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What has been read and written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads of all devices together.
    pub device_reads: u64,
    pub device_bytes_read: u64,
    /// Writes of all devices together, every copy counted, and flushes.
    pub device_writes: u64,
    pub device_bytes_written: u64,
    pub device_flushes: u64,
    /// Tree blocks that were not in memory when they were asked for, and ones that had to make
    /// room.
    pub node_cache_misses: u64,
    pub node_cache_evictions: u64,
}

/// One mounted filesystem. Cloning gives another handle on the same one; all methods may be
/// called from many threads at once.
///
/// Open for writing, it commits now and then, and once more when the last handle on it, its files
/// and listings goes: call [`Filesystem::close`] or [`Filesystem::sync`] to hear of errors.
#[derive(Clone, Debug)]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
    /// `None` for the filesystem's own threads, which do not keep it open.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(crate) life: Option<Arc<Life>>,
}

/// What all handles that keep a filesystem open share. It goes with the last of them.
#[derive(Debug)]
pub(crate) struct Life {
    shared: Arc<Shared>,
    committer: Option<Committer>,
    flushers: Option<Flushers>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.committer = None;
        self.flushers = None;
        // Nobody is left to be told; whoever wants to know closes the filesystem.
        drop(Filesystem { shared: Arc::clone(&self.shared), life: None }.sync());
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    forest: Arc<Forest>,
    root: FileId,
    notices: Vec<Notice>,
    pub(crate) roots: Roots,
    pub(crate) inodes: InodeCache,
    pub(crate) source: Source,
    /// How far [`Filesystem::sync`] has told of data that was lost.
    pub(crate) errors: ErrorCursor,
    pub(crate) flights: Arc<Flights>,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) switches: SwitchBoard,
    pub(crate) counters: LaneCounters,
    pub(crate) latencies: Latencies,
    /// What the volume's transactions are counted from.
    pub(crate) first_generation: u64,
    /// There where the volume is open for writing.
    pub(crate) writer: Option<Arc<Writer>>,
}

impl Shared {
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.forest.volume()
    }

    /// As [`Filesystem::fail_after_panic`].
    pub(crate) fn fail_after_panic(&self) {
        self.forest.fail_after_panic();
    }
}

impl Filesystem {
    /// Opens the volume that the given devices or images make up: for reading, unless the options
    /// say otherwise. Devices of a volume that is open for writing are nobody else's.
    ///
    /// # Errors
    /// What is no btrfs, has features this library does not know (they are named), misses devices
    /// (they are named) or has no such subvolume is refused; so is, for writing, what cannot be
    /// written (`EROFS`, with the reason as the source).
    pub fn open(devices: &[DevicePath], options: &MountOptions) -> Result<Self> {
        let open = |device: &DevicePath| -> Result<Arc<dyn Device>> {
            let writable = !options.read_only;
            let how = OpenDevice { offset: device.offset, writable, ..OpenDevice::default() };
            Ok(Arc::new(FileDevice::open(&device.path, &how)?))
        };
        Self::open_devices(devices.iter().map(open).collect::<Result<_>>()?, options)
    }

    /// As [`Filesystem::open`], over devices of any kind.
    pub fn open_devices(devices: Vec<Arc<dyn Device>>, options: &MountOptions) -> Result<Self> {
        let how = OpenOptions {
            degraded: options.degraded,
            super_copy: options.super_copy,
            ..OpenOptions::default()
        };
        let volume = Arc::new(Volume::open(devices, how)?);
        let forest = forest(&volume, options)?;
        let workers = ThreadPoolBuilder::new()
            .num_threads(options.workers)
            .thread_name(|number| format!("butternut-{number}"))
            .build()
            .map_err(Error::Workers)?;
        let caches = SourceOptions {
            compress: options.compress,
            page_cache_bytes: usize::try_from(options.page_cache_bytes).unwrap_or(usize::MAX),
            ..SourceOptions::default()
        };
        let source = Source::open(Arc::clone(&forest), Arc::new(workers), caches)?;
        let writer = (!options.read_only).then(|| {
            Arc::new(Writer::new(
                options.inode_cache_entries,
                options.clock,
                options.commit_seconds > 0,
            ))
        });
        let first_generation = forest.generation().map_or(0, |generation| generation.0);
        let mut shared = Arc::new(Shared {
            notices: notices(&volume, options),
            forest,
            root: FileId::new(TOP_LEVEL, ROOT_DIRECTORY),
            roots: Roots::default(),
            inodes: InodeCache::new(options.inode_cache_entries),
            source,
            errors: ErrorCursor::default(),
            flights: Arc::default(),
            rooms: Arc::default(),
            switches: SwitchBoard::new(options.switches),
            counters: LaneCounters::default(),
            latencies: Latencies::default(),
            first_generation,
            writer,
        });
        let unborn = Self { shared: Arc::clone(&shared), life: None };
        let root = unborn.chosen_root(&options.subvolume)?;
        drop(unborn);
        let inner = Arc::get_mut(&mut shared);
        inner.expect("the filesystem has not been handed out yet").root = root;
        Self::begin_life(shared, options)
    }

    fn begin_life(shared: Arc<Shared>, options: &MountOptions) -> Result<Self> {
        let (mut committer, mut flushers) = (None, None);
        shared.flights.offer_help(&shared.source);
        shared.rooms.offer(&shared.source);
        if let Some(writer) = shared.writer.as_ref().filter(|writer| writer.has_committer) {
            let every = Duration::from_secs(options.commit_seconds.into());
            committer = Some(Committer::start(&shared, Arc::clone(&writer.signal), every)?);
            flushers = Some(Flushers::start(&shared)?);
        }
        let life = Life { shared: Arc::clone(&shared), committer, flushers };
        let filesystem = Self { shared, life: Some(Arc::new(life)) };
        if let Some(writer) = &filesystem.shared.writer {
            match filesystem.writable_subvolume(writer, filesystem.root()) {
                // A subvolume that is read-only is no reason not to open the others.
                Ok(_) | Err(Error::ReadOnly { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filesystem)
    }

    /// Brings everything down on the devices, and lets go of them, if this is the last handle.
    ///
    /// # Errors
    /// As [`Filesystem::sync`], but of data that was lost before only what no sync of its file, nor
    /// of all files, has returned: a program that was told has dealt with it.
    pub fn close(self) -> Result<()> {
        self.sync_untold()
    }

    /// The root directory of the chosen subvolume.
    pub fn root(&self) -> FileId {
        self.shared.root
    }

    /// What the owner should know about this volume.
    pub fn notices(&self) -> &[Notice] {
        &self.shared.notices
    }

    /// What has been read and written so far, by anyone using this filesystem.
    pub fn counters(&self) -> Counters {
        let cache = self.forest().counters();
        let mut counters = Counters {
            node_cache_misses: cache.misses,
            node_cache_evictions: cache.evicted,
            ..Counters::default()
        };
        for device in self.volume().devices().iter().filter_map(|status| status.device.as_ref()) {
            let counts = device.counters().now();
            counters.device_reads += counts.reads;
            counters.device_bytes_read += counts.read_bytes;
            counters.device_writes += counts.writes;
            counters.device_bytes_written += counts.write_bytes;
            counters.device_flushes += counts.flushes;
        }
        counters
    }

    /// The newest superblock of the volume.
    pub fn super_block(&self) -> &SuperBlock {
        self.volume().super_block()
    }

    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.shared.forest
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.shared.volume()
    }

    fn chosen_root(&self, subvolume: &Subvolume) -> Result<FileId> {
        let id = match subvolume {
            Subvolume::Default => self.default_subvolume()?,
            Subvolume::Id(id) => *id,
            Subvolume::Path(path) => self.subvolume_at(path)?,
        };
        self.subvolume_tree(id)?;
        Ok(FileId::new(id, ROOT_DIRECTORY))
    }
}

fn forest(volume: &Arc<Volume>, options: &MountOptions) -> Result<Arc<Forest>> {
    let cache = ForestOptions {
        cache_bytes: options.node_cache_bytes,
        clock: options.clock.0,
        commits_for_space: options.commits_for_space,
        refusals: options.refusals.clone(),
        ..ForestOptions::default()
    };
    let volume = Arc::clone(volume);
    if options.read_only {
        return Ok(Forest::open(volume, cache)?);
    }
    Ok(Forest::open_writable(volume, cache)?)
}

fn notices(volume: &Volume, options: &MountOptions) -> Vec<Notice> {
    let mut notices = Vec::new();
    if volume.super_block().log_root().is_some() && !options.ignore_log {
        let text = "the volume was not unmounted cleanly and holds a log tree: what was synced \
                    after the last commit is not shown (mount it read-write once to replay it)";
        notices.push(Notice(text.to_owned()));
    }
    for device in volume.devices() {
        if device.is_missing() {
            notices.push(Notice(format!("device {} is missing", device.devid)));
        } else if device.is_stale {
            let text = format!("device {} is older than the others", device.devid);
            notices.push(Notice(text));
        }
        let (writes, flushes) = (device.errors.write_errors, device.errors.flush_errors);
        if writes > 0 || flushes > 0 {
            notices.push(Notice(format!(
                "device {} has {writes} failed writes and {flushes} failed flushes on record: \
                 its copies may be old and are read last (scrub the volume, then reset the counts \
                 with `btrfs device stats -z`)",
                device.devid
            )));
        }
    }
    notices
}
