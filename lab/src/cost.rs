//! What a measurement costs: processor time, memory and device transfers.
//!
//! ```text
//! cpu      time that all processors were not idle: includes kernel threads, the process of a mount
//!          and, on a machine with other work, that work
//! cached   peak of the page cache without tmpfs, above its size at the start
//! dirty    peak of dirty pages and those under writeback
//! device   bytes that the block device counted (/sys/dev/block/.../stat)
//! ```

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// `USER_HZ` of `/proc` is 100, also where the kernel's `HZ` differs.
const TICKS_PER_SECOND: f64 = 100.0;
const SECTOR_BYTES: u64 = 512;
/// How often memory is sampled: sampling takes processor time itself.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// The cost of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_cached_bytes: u64,
    pub(crate) peak_dirty_bytes: u64,
    pub(crate) device_read_bytes: Option<u64>,
    pub(crate) device_write_bytes: Option<u64>,
}

/// Counters at the start of a measurement, and the peaks since.
#[derive(Debug)]
pub(crate) struct Meter {
    device: Option<String>,
    cpu_seconds: f64,
    transfers: Option<(u64, u64)>,
    cached_bytes: u64,
    peak_cached_bytes: u64,
    peak_dirty_bytes: u64,
    sampled: Instant,
}

impl Meter {
    /// Starts to measure, with the counters of a block device if there is one.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn start(device: Option<&Path>) -> Result<Self> {
        let device = device.and_then(counters_of);
        let (cached_bytes, dirty) = memory()?;
        Ok(Self {
            transfers: device.as_deref().and_then(transfers),
            device,
            cpu_seconds: busy_seconds()?,
            cached_bytes,
            peak_cached_bytes: cached_bytes,
            peak_dirty_bytes: dirty,
            sampled: Instant::now(),
        })
    }

    /// Samples the memory, at most every 50 milliseconds.
    pub(crate) fn sample(&mut self) {
        if self.sampled.elapsed() >= SAMPLE_INTERVAL {
            self.sampled = Instant::now();
            if let Ok((cached, dirty)) = memory() {
                self.peak_cached_bytes = self.peak_cached_bytes.max(cached);
                self.peak_dirty_bytes = self.peak_dirty_bytes.max(dirty);
            }
        }
    }

    /// Returns the cost since the start.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn stop(mut self) -> Result<Cost> {
        self.sampled -= SAMPLE_INTERVAL;
        self.sample();
        let moved = self.device.as_deref().and_then(transfers).zip(self.transfers);
        Ok(Cost {
            cpu_seconds: busy_seconds()? - self.cpu_seconds,
            peak_cached_bytes: self.peak_cached_bytes.saturating_sub(self.cached_bytes),
            peak_dirty_bytes: self.peak_dirty_bytes,
            device_read_bytes: moved.map(|(now, then)| now.0.saturating_sub(then.0)),
            device_write_bytes: moved.map(|(now, then)| now.1.saturating_sub(then.1)),
        })
    }
}

/// Returns the path of the counters of a block device.
fn counters_of(device: &Path) -> Option<String> {
    let metadata = fs::metadata(device).ok()?;
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    metadata.file_type().is_block_device().then(|| format!("/sys/dev/block/{major}:{minor}/stat"))
}

/// Returns the bytes that a device has read and written.
fn transfers(counters: &str) -> Option<(u64, u64)> {
    let text = fs::read_to_string(counters).ok()?;
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    Some((fields.get(2)? * SECTOR_BYTES, fields.get(6)? * SECTOR_BYTES))
}

fn busy_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, irq and softirq; fields 3 and 4 are idle and iowait.
    let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum();
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// Returns the bytes of file data in memory, and of those that are dirty.
fn memory() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let of = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
    };
    Ok((of("Cached:").saturating_sub(of("Shmem:")), of("Dirty:") + of("Writeback:")))
}

/// Returns the bytes of memory that programs can use without swapping.
pub(crate) fn available_memory_bytes() -> u64 {
    meminfo("MemAvailable:")
}

/// Returns the bytes of memory of the machine.
pub(crate) fn total_memory_bytes() -> u64 {
    meminfo("MemTotal:")
}

fn meminfo(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}
