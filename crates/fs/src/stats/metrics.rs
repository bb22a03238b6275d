//! The names of everything that is counted, with what each counts: what all forms of printing
//! share, so that none of them leaves something out.

use super::{DeviceCounts, Stats};
use crate::LaneCounts;

/// What becomes of a number as time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A number with its name.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// Tells it from others of its name, which follow one another: a word, and its value here.
    pub(super) label: Option<(&'static str, &'static str)>,
    pub(super) what: &'static str,
    pub(super) kind: Kind,
    pub(super) value: u64,
}

/// A number that every device has.
pub(super) struct DeviceMetric {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) of: fn(&DeviceCounts) -> u64,
}

pub(super) const DEVICE: [DeviceMetric; 11] = [
    DeviceMetric { name: "reads", what: "Reads.", of: |device| device.reads },
    DeviceMetric { name: "bytes_read", what: "Bytes read.", of: |device| device.bytes_read },
    DeviceMetric { name: "writes", what: "Writes.", of: |device| device.writes },
    DeviceMetric {
        name: "bytes_written",
        what: "Bytes written.",
        of: |device| device.bytes_written,
    },
    DeviceMetric { name: "flushes", what: "Flushes.", of: |device| device.flushes },
    DeviceMetric { name: "discards", what: "Discards.", of: |device| device.discards },
    DeviceMetric {
        name: "read_errors",
        what: "Reads that failed.",
        of: |device| device.read_errors,
    },
    DeviceMetric {
        name: "write_errors",
        what: "Writes that failed.",
        of: |device| device.write_errors,
    },
    DeviceMetric {
        name: "flush_errors",
        what: "Flushes that failed.",
        of: |device| device.flush_errors,
    },
    DeviceMetric {
        name: "corruption_errors",
        what: "Reads whose bytes did not pass their check.",
        of: |device| device.corruption_errors,
    },
    DeviceMetric {
        name: "generation_errors",
        what: "Blocks of another generation than asked for.",
        of: |device| device.generation_errors,
    },
];

impl Stats {
    /// The numbers of the filesystem as a whole, in groups with names.
    pub(super) fn groups(&self) -> Vec<(&'static str, Vec<Metric>)> {
        let counted = self.lanes.named().into_iter().zip(LaneCounts::described());
        let lanes = counted.map(|((name, value), (_, what))| counter(name, what, value)).collect();
        let (memory, counters) = (&self.memory, &self.counters);
        let memory = vec![
            gauge("dirty_bytes", "Bytes of files that no device has.", memory.dirty_bytes),
            gauge("dirty_files", "Files with something that no tree has.", memory.dirty_files),
            gauge(
                "pending_writes",
                "Writes that are down, or on their way, and in no tree.",
                memory.pending_writes,
            ),
            gauge(
                "dirty_tree_bytes",
                "Bytes of tree blocks that are to be committed.",
                memory.dirty_tree_bytes,
            ),
            gauge("inodes", "Inodes whose attributes are kept.", memory.inodes),
            gauge(
                "idle_files",
                "Files without a handle that keep the state of their data.",
                memory.idle_files,
            ),
            gauge(
                "buffer_bytes",
                "Bytes of buffers of tree blocks and data in flight, used or kept.",
                memory.buffer_bytes,
            ),
        ];
        let trees = vec![
            counter("commits", "Transactions that were committed.", self.commits),
            counter(
                "node_cache_misses",
                "Tree blocks that were not in memory.",
                counters.node_cache_misses,
            ),
            counter(
                "node_cache_evictions",
                "Tree blocks that had to make room.",
                counters.node_cache_evictions,
            ),
        ];
        vec![
            ("lanes", lanes),
            ("pages", self.page_metrics()),
            ("memory", memory),
            ("trees", trees),
            ("rescues", self.rescue_metrics()),
        ]
    }

    fn rescue_metrics(&self) -> Vec<Metric> {
        let rescues = &self.rescues;
        vec![
            counter(
                "rescued_sectors",
                "Sectors of files that another copy, parity or a second read gave.",
                rescues.sectors,
            ),
            counter("lost_sectors", "Sectors of files that no copy had.", rescues.sectors_lost),
            counter("rescued_blocks", "Tree blocks that another copy gave.", rescues.blocks),
            counter("lost_blocks", "Tree blocks that no copy had.", rescues.blocks_lost),
        ]
    }
}

pub(super) fn counter(name: &'static str, what: &'static str, value: u64) -> Metric {
    Metric { name, label: None, what, kind: Kind::Counter, value }
}

pub(super) fn gauge(name: &'static str, what: &'static str, value: u64) -> Metric {
    Metric { name, label: None, what, kind: Kind::Gauge, value }
}
