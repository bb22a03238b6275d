//! The metrics of syncs of files, and of the log.

use super::metrics::{Metric, counter};
use super::sync_counters::SyncCounts;
use super::{CommitReason, LogCounters, Stats};

impl Stats {
    pub(super) fn sync_metrics(&self) -> Vec<Metric> {
        let SyncCounts { fast, full_on_release, commits, log } = self.syncs;
        let mut all = vec![
            counter("fsync_fast", "Syncs of a file that the log made durable.", fast),
            Metric {
                label: Some(("reason", "release")),
                ..counter(
                    "fsync_full",
                    "Syncs that logged all of a file, by reason.",
                    full_on_release,
                )
            },
            counter("log_batches", "Batches of the log that were written.", log.batches),
            counter("log_entries", "Syncs in those batches.", log.entries),
            counter("log_blocks", "Log blocks that were written.", log.blocks),
            counter(
                "log_flush_nanos",
                "Time that batches took to be durable, in nanoseconds.",
                log.flush_nanos,
            ),
        ];
        all.extend(LogCounters::BATCH_SIZES.into_iter().zip(log.batch_sizes).map(
            |(size, value)| {
                let label = Some(("syncs", size));
                Metric {
                    label,
                    ..counter("log_batch_size", "Batches by the syncs in them.", value)
                }
            },
        ));
        all.extend(CommitReason::ALL.into_iter().zip(commits).map(|(reason, value)| {
            let label = Some(("reason", reason.name()));
            let what = "Syncs of a file that committed, by reason.";
            Metric { label, ..counter("fsync_commit", what, value) }
        }));
        all
    }
}
