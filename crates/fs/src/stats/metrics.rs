//! The names and descriptions of all metrics, which all output formats share.

use super::{DeviceCounts, Stats};
use crate::stats::LaneCounts;

/// How a metric changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
}

/// A named metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// The label (key and value) that distinguishes metrics of one name, which are adjacent.
    pub(super) label: Option<(&'static str, &'static str)>,
    pub(super) what: &'static str,
    pub(super) kind: Kind,
    pub(super) value: u64,
}

/// A metric of each device.
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
        what: "Reads whose bytes failed their check.",
        of: |device| device.corruption_errors,
    },
    DeviceMetric {
        name: "generation_errors",
        what: "Tree blocks with another generation than expected.",
        of: |device| device.generation_errors,
    },
];

impl Stats {
    /// Returns the metrics of the filesystem as a whole, in named groups.
    pub(super) fn groups(&self) -> Vec<(&'static str, Vec<Metric>)> {
        let counted = self.lanes.named().into_iter().zip(LaneCounts::described());
        let lanes = counted.map(|((name, value), (_, what))| counter(name, what, value)).collect();
        let (memory, counters) = (&self.memory, &self.counters);
        let memory = vec![
            gauge(
                "dirty_bytes",
                "Bytes of file data that are not on the devices.",
                memory.dirty_bytes,
            ),
            gauge(
                "dirty_files",
                "Files with data or attributes that no tree has.",
                memory.dirty_files,
            ),
            gauge(
                "pending_writes",
                "Writes on the devices or under writeback that no tree has.",
                memory.pending_writes,
            ),
            gauge(
                "dirty_tree_bytes",
                "Bytes of tree blocks that the next commit writes.",
                memory.dirty_tree_bytes,
            ),
            gauge("inodes", "Inodes in memory.", memory.inodes),
            gauge("idle_files", "Closed files whose state is kept.", memory.idle_files),
            gauge(
                "buffer_bytes",
                "Bytes of buffers of tree blocks and data in flight, used or cached.",
                memory.buffer_bytes,
            ),
        ];
        let trees = vec![
            counter("commits", "Transactions committed.", self.commits),
            counter(
                "node_cache_misses",
                "Tree blocks that were not in the node cache.",
                counters.node_cache_misses,
            ),
            counter(
                "node_cache_evictions",
                "Tree blocks evicted from the node cache.",
                counters.node_cache_evictions,
            ),
        ];
        vec![
            ("lanes", lanes),
            ("syncs", self.sync_metrics()),
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
                "File data sectors recovered from a mirror, from parity or by a second read.",
                rescues.sectors,
            ),
            counter("lost_sectors", "File data sectors that no mirror had.", rescues.sectors_lost),
            counter("rescued_blocks", "Tree blocks recovered from a mirror.", rescues.blocks),
            counter("lost_blocks", "Tree blocks that no mirror had.", rescues.blocks_lost),
            counter(
                "verity_errors",
                "Blocks of file data or hashes that fs-verity found to disagree.",
                self.verity_errors,
            ),
        ]
    }
}

pub(super) fn counter(name: &'static str, what: &'static str, value: u64) -> Metric {
    Metric { name, label: None, what, kind: Kind::Counter, value }
}

pub(super) fn gauge(name: &'static str, what: &'static str, value: u64) -> Metric {
    Metric { name, label: None, what, kind: Kind::Gauge, value }
}
