//! [`Stats`]: everything that a filesystem counts of itself, at one moment.
//!
//! ```text
//! Filesystem::stats -> Stats -> text (Display) | to_json | to_prometheus
//! ```
//!
//! Counts are read one after another, while others go on counting: two of them need not agree to
//! the last request. What is in memory only is counted without waiting for anybody; a file that
//! somebody has alone is left out of [`MemoryUse::pending_writes`].
//!
//! All names that are printed stand in [`metrics`]; they are kept.

mod json;
mod metrics;
mod page_metrics;
mod prometheus;
mod text;

use crate::histogram::Latency;
use crate::latency::Operation;
use crate::writer::Writer;
use crate::{Counters, FileId, Filesystem, LaneCounts, PageCounters, Switches};
use butternut_file::FileState;
use butternut_pages::CacheLimits;
use butternut_sys::slabs;
use butternut_volume::RescueCounts;

/// Dirty files that are looked at together.
const FILES_PER_LOOK: usize = 1024;

/// What a filesystem has done since it was opened, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub lanes: LaneCounts,
    /// The page cache.
    pub pages: PageCounters,
    pub page_limits: CacheLimits,
    /// All devices together, and the node cache.
    pub counters: Counters,
    pub memory: MemoryUse,
    /// Reads that the first copy did not satisfy.
    pub rescues: RescueCounts,
    /// Transactions that were committed, whoever asked for it.
    pub commits: u64,
    pub devices: Vec<DeviceCounts>,
    /// Each operation, in the order of [`Operation::ALL`]; see [`Switches::latency`].
    pub latency: Vec<(Operation, Latency)>,
    pub switches: Switches,
    /// See [`Filesystem::is_writable`].
    pub is_writable: bool,
}

/// What is in memory: first what is not yet on the devices, then what is kept for later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of files that no device has.
    pub dirty_bytes: u64,
    /// Files with something that no tree has.
    pub dirty_files: u64,
    /// Writes that are down, or on their way, and in no tree.
    pub pending_writes: u64,
    /// Tree blocks that are to be committed.
    pub dirty_tree_bytes: u64,
    /// Inodes whose attributes are kept; at most
    /// [`MountOptions::inode_cache_entries`](crate::MountOptions::inode_cache_entries), and those
    /// that are in use or have something that no tree has.
    pub inodes: u64,
    /// Files without a handle that keep the state of their data.
    pub idle_files: u64,
    /// Buffers of 4 to 64 KiB of the whole process, used or kept for the next use: tree blocks, in
    /// the node cache and beside it, and data in flight.
    pub buffer_bytes: u64,
}

/// What was asked of one device, and what it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    pub id: u64,
    /// What it was opened as; `None` when it is missing.
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
    /// Reads whose bytes did not pass their check.
    pub corruption_errors: u64,
    /// Blocks of another generation than asked for.
    pub generation_errors: u64,
}

impl Filesystem {
    /// Everything that is counted, now.
    pub fn stats(&self) -> Stats {
        let generation = self.forest().generation().map_or(0, |generation| generation.0);
        Stats {
            lanes: self.lane_counts(),
            pages: self.page_counts(),
            page_limits: *self.shared.source.pages().limits(),
            counters: self.counters(),
            memory: self.memory_use(),
            rescues: self.volume().rescue_counts(),
            commits: generation.saturating_sub(self.shared.first_generation),
            devices: self.device_counts(),
            latency: self.shared.latencies.now(),
            switches: self.switches(),
            is_writable: self.is_writable(),
        }
    }

    fn memory_use(&self) -> MemoryUse {
        let buffer_bytes = slabs::resident_bytes() as u64;
        let Some(writer) = &self.shared.writer else {
            return MemoryUse { buffer_bytes, ..MemoryUse::default() };
        };
        MemoryUse {
            dirty_bytes: self.shared.source.dirty_bytes(),
            dirty_files: writer.dirty_count() as u64,
            pending_writes: pending_writes(writer),
            dirty_tree_bytes: self.forest().dirty_bytes().unwrap_or(0),
            inodes: writer.table.len() as u64,
            idle_files: writer.idle.len() as u64,
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

fn pending_writes(writer: &Writer) -> u64 {
    let (mut pending, mut from) = (0, FileId::new(0, 0));
    loop {
        let batch = writer.dirty_from(from, FILES_PER_LOOK);
        let Some(last) = batch.last() else { return pending };
        from = FileId::new(last.id.subvolume, last.id.ino.saturating_add(1));
        for entry in &batch {
            let body = entry.try_body();
            let file = body.as_ref().and_then(|body| body.file.as_deref());
            pending += file.map_or(0, FileState::pending_writes);
        }
    }
}

#[cfg(test)]
impl Stats {
    /// Nothing counted yet, on one device.
    fn sample() -> Self {
        let device =
            DeviceCounts { id: 1, path: Some("a \"b\"\\c.img".into()), ..DeviceCounts::default() };
        let latency = Operation::ALL.map(|operation| (operation, Latency::default())).to_vec();
        Self {
            lanes: LaneCounts::default(),
            pages: PageCounters::default(),
            page_limits: CacheLimits::of(64 << 20),
            counters: Counters::default(),
            memory: MemoryUse::default(),
            rescues: RescueCounts::default(),
            commits: 0,
            devices: vec![device],
            latency,
            switches: Switches::default(),
            is_writable: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IoFlags, MountOptions, NewInode, QueueOptions, SyncKind};
    use butternut_device::{FileDevice, OpenDevice};
    use butternut_mkfs::MkfsOptions;

    #[test]
    fn each_operation_is_measured_as_what_it_is_and_once() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(512 << 20).unwrap();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let device = FileDevice::open(image.path(), &how).unwrap();
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        drop(device);
        let options =
            MountOptions { read_only: false, commit_seconds: 0, ..MountOptions::default() };
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
            let buffer = |queue: &crate::Queue| queue.buffer(4096).unwrap();
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
        assert_eq!(stats.memory, kept, "nothing waits for the devices");
        assert!(inodes > 0 && buffer_bytes > 0);
        assert!(stats.devices[0].flushes >= 4 && stats.devices[0].bytes_written > 8192);
        let switches = Switches { latency: false, ..Switches::default() };
        fs.set_switches(switches);
        fs.sync().unwrap();
        assert_eq!(fs.stats().latency, stats.latency);
    }
}
