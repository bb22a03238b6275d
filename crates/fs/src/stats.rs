//! [`Stats`]: all counters of a filesystem, at one moment.
//!
//! ```text
//! Filesystem::stats -> Stats -> text (Display) | to_json | to_prometheus
//! ```
//!
//! Counters are read one after another while operations continue, so two of them may differ by a
//! few requests. What is in memory only is counted without waiting for a lock; a file that another
//! thread has locked exclusively is left out of [`MemoryUse::pending_writes`].
//!
//! The names of all metrics are in `metrics.rs`, and do not change from release to release.

pub use butternut_pages::{CacheLimits, DirtyLimits, PageCounters, WritebackReason};
pub use butternut_tree::{CommitReason, LogCounters};
pub use butternut_volume::RescueCounts;
pub use histogram::Latency;
pub use lane_counters::LaneCounts;
pub use latency::Operation;
pub use sync_counters::SyncCounts;

pub(crate) mod histogram;
pub(crate) mod lane_counters;
pub(crate) mod latency;
pub(crate) mod sync_counters;

mod json;
mod metrics;
mod page_metrics;
mod prometheus;
mod sync_metrics;
mod text;

use crate::write_state::WriteState;
use crate::{FileId, Filesystem, Tunables};
use butternut_file::FileState;
use butternut_sys::slabs;

/// Dirty files that are counted in one step.
const FILES_PER_PASS: usize = 1024;

/// I/O counters since the filesystem was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Reads of all devices together.
    pub device_reads: u64,
    pub device_bytes_read: u64,
    /// Writes of all devices together, every copy counted, and flushes.
    pub device_writes: u64,
    pub device_bytes_written: u64,
    pub device_flushes: u64,
    /// Tree blocks that were not in the node cache when they were needed, and blocks that were
    /// evicted.
    pub node_cache_misses: u64,
    pub node_cache_evictions: u64,
}

/// Counters since the filesystem was opened, and gauges of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    pub lanes: LaneCounts,
    pub syncs: SyncCounts,
    /// The page cache.
    pub pages: PageCounters,
    pub page_limits: CacheLimits,
    /// All devices together, and the node cache.
    pub counters: Counters,
    pub memory: MemoryUse,
    /// Reads that the first mirror could not satisfy.
    pub rescues: RescueCounts,
    /// Blocks that were read and did not agree with the hashes of fs-verity.
    pub verity_errors: u64,
    /// Transactions that were committed, for whatever reason.
    pub commits: u64,
    pub devices: Vec<DeviceCounts>,
    /// The latency of each operation, in the order of [`Operation::ALL`]; see
    /// [`Tunables::latency`].
    pub latency: Vec<(Operation, Latency)>,
    pub tunables: Tunables,
    /// See [`Filesystem::is_writable`].
    pub is_writable: bool,
}

/// Memory in use: first what is not on the devices yet, then caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Bytes of file data that are not on the devices.
    pub dirty_bytes: u64,
    /// Files with data or attributes that no tree has.
    pub dirty_files: u64,
    /// Writes that are on the devices or under writeback, and in no tree.
    pub pending_writes: u64,
    /// Bytes of tree blocks that the next commit writes.
    pub dirty_tree_bytes: u64,
    /// Inodes in memory: at most
    /// [`MountOptions::inode_cache_entries`](crate::MountOptions::inode_cache_entries), besides
    /// those that are in use or dirty.
    pub inodes: u64,
    /// Closed files whose state is kept.
    pub idle_files: u64,
    /// Bytes of buffers of 4 to 64 KiB of the whole process, used or cached: tree blocks, in the
    /// node cache and outside of it, and data in flight.
    pub buffer_bytes: u64,
}

/// I/O and error counts of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounts {
    pub id: u64,
    /// The path it was opened with; `None` if it is missing.
    pub path: Option<String>,
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub flushes: u64,
    pub discards: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    /// Reads whose bytes failed their check.
    pub corruption_errors: u64,
    /// Tree blocks with another generation than expected.
    pub generation_errors: u64,
}

impl Filesystem {
    /// Returns the counters of the page cache.
    pub fn page_counts(&self) -> butternut_pages::PageCounters {
        self.shared.source.pages().counters()
    }

    /// Returns how many requests took each I/O lane.
    pub fn lane_counts(&self) -> LaneCounts {
        self.shared.counters.now()
    }

    /// Returns how syncs of files became durable.
    pub fn sync_counts(&self) -> SyncCounts {
        self.shared.syncs.now(self.forest().log_counters())
    }

    /// Returns the I/O counters of all handles on this filesystem.
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

    /// Returns all counters.
    pub fn stats(&self) -> Stats {
        let generation = self.forest().generation().map_or(0, |generation| generation.0);
        Stats {
            lanes: self.lane_counts(),
            syncs: self.sync_counts(),
            pages: self.page_counts(),
            page_limits: *self.shared.source.pages().limits(),
            counters: self.counters(),
            memory: self.memory_use(),
            rescues: self.volume().rescue_counts(),
            verity_errors: self.shared.source.verity_errors(),
            commits: generation.saturating_sub(self.shared.first_generation),
            devices: self.device_counts(),
            latency: self.shared.latencies.now(),
            tunables: self.tunables(),
            is_writable: self.is_writable(),
        }
    }

    fn memory_use(&self) -> MemoryUse {
        let buffer_bytes = slabs::resident_bytes() as u64;
        let Some(write_state) = &self.shared.write_state else {
            return MemoryUse { buffer_bytes, ..MemoryUse::default() };
        };
        MemoryUse {
            dirty_bytes: self.shared.source.dirty_bytes(),
            dirty_files: write_state.dirty_count() as u64,
            pending_writes: pending_writes(write_state),
            dirty_tree_bytes: self.forest().dirty_bytes().unwrap_or(0),
            inodes: write_state.table.len() as u64,
            idle_files: write_state.idle.len() as u64,
            buffer_bytes,
        }
    }

    fn device_counts(&self) -> Vec<DeviceCounts> {
        let of = |status: butternut_volume::DeviceStatus| {
            let counts = status.device.as_ref().map(|device| device.counters().now());
            let counts = counts.unwrap_or_default();
            DeviceCounts {
                id: status.devid.0,
                path: status.device.as_ref().map(|device| device.name().to_owned()),
                reads: counts.reads,
                bytes_read: counts.read_bytes,
                writes: counts.writes,
                bytes_written: counts.write_bytes,
                flushes: counts.flushes,
                discards: counts.discards,
                read_errors: status.errors.read_errors,
                write_errors: status.errors.write_errors,
                flush_errors: status.errors.flush_errors,
                corruption_errors: status.errors.corruption_errors,
                generation_errors: status.errors.generation_errors,
            }
        };
        self.volume().devices().into_iter().map(of).collect()
    }
}

fn pending_writes(write_state: &WriteState) -> u64 {
    let (mut pending, mut from) = (0, FileId::new(0, 0));
    loop {
        let batch = write_state.dirty_from(from, FILES_PER_PASS);
        let Some(last) = batch.last() else { return pending };
        from = FileId::new(last.id.subvolume, last.id.ino.saturating_add(1));
        for entry in &batch {
            let state = entry.try_lock_shared();
            let file = state.as_ref().and_then(|state| state.file.as_deref());
            pending += file.map_or(0, FileState::pending_writes);
        }
    }
}

#[cfg(test)]
impl Stats {
    /// Returns the counters of a new filesystem with one device.
    fn sample() -> Self {
        let device =
            DeviceCounts { id: 1, path: Some("a \"b\"\\c.img".into()), ..DeviceCounts::default() };
        let latency = Operation::ALL.map(|operation| (operation, Latency::default())).to_vec();
        Self {
            lanes: LaneCounts::default(),
            syncs: SyncCounts::default(),
            pages: PageCounters::default(),
            page_limits: CacheLimits::of(64 << 20),
            counters: Counters::default(),
            memory: MemoryUse::default(),
            rescues: RescueCounts::default(),
            verity_errors: 0,
            commits: 0,
            devices: vec![device],
            latency,
            tunables: Tunables::default(),
            is_writable: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{IoFlags, QueueOptions, SyncKind};
    use crate::{MountOptions, NewInode};
    use butternut_device::{FileDevice, OpenDevice};
    use butternut_mkfs::MkfsOptions;

    #[test]
    fn each_operation_is_counted_once_under_its_name() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(512 << 20).unwrap();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let device = FileDevice::open(image.path(), &how).unwrap();
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        drop(device);
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let options = options.tunables(Tunables::default().log_tree(false));
        let fs = Filesystem::open(&[image.path().into()], &options).unwrap();
        let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[7; 8192]).unwrap();
        let memory = fs.stats().memory;
        assert_eq!((memory.dirty_bytes, memory.dirty_files), (8192, 1));
        assert!(memory.dirty_tree_bytes > 0);
        file.sync_all().unwrap();

        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        let mut done = Vec::new();
        for (direct, unaligned) in [(true, false), (true, true), (false, false)] {
            let flags = if direct { IoFlags::DIRECT } else { IoFlags::default() };
            let buffer = |queue: &crate::queue::Queue| queue.buffer(4096).unwrap();
            let at = u64::from(unaligned);
            let memory = buffer(&queue);
            queue.write(&file, at, memory, flags, 0).unwrap();
            queue.reap(1, None, &mut done);
            let memory = buffer(&queue);
            queue.read(&file, at, memory, flags, 0).unwrap();
            queue.reap(1, None, &mut done);
        }
        queue.sync(&file, SyncKind::Data, 0).unwrap();
        queue.reap(1, None, &mut done);
        assert!(done.iter().all(|done| done.result.is_ok()));

        let stats = fs.stats();
        let count = |operation| {
            let found = stats.latency.iter().find(|(is, _)| *is == operation).unwrap().1;
            assert_eq!(found.count > 0, found.max > std::time::Duration::ZERO);
            found.count
        };
        let counts = Operation::ALL.map(|operation| (operation.name(), count(operation)));
        let counted: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        let want = [
            ("direct_read", 2),
            ("direct_write", 2),
            ("cached_read", 1),
            ("cached_write", 2),
            ("fsync", 2),
            ("commit", 2),
            ("create", 1),
        ];
        assert_eq!(counted, want);
        assert_eq!(stats.commits, 2);
        let MemoryUse { inodes, idle_files, buffer_bytes, .. } = stats.memory;
        let kept = MemoryUse { inodes, idle_files, buffer_bytes, ..MemoryUse::default() };
        assert_eq!(stats.memory, kept, "nothing is dirty");
        assert!(inodes > 0 && buffer_bytes > 0);
        assert!(stats.devices[0].flushes >= 4 && stats.devices[0].bytes_written > 8192);
        let tunables = Tunables::default().latency(false);
        fs.set_tunables(tunables);
        fs.sync().unwrap();
        assert_eq!(fs.stats().latency, stats.latency);
    }
}
