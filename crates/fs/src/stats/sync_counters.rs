//! [`SyncCounts`]: how syncs of files became durable.

use super::Stats;
use super::metrics::{Metric, counter};
use crate::stats::lane_counters::Count;
use butternut_tree::{CommitReason, LogCounters};

/// How syncs of files became durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncCounts {
    /// Syncs that wrote to the log, or that the log had covered.
    pub fast: u64,
    /// Syncs that committed, in the order of [`CommitReason::ALL`].
    pub(crate) commits: [u64; CommitReason::ALL.len()],
    pub log: LogCounters,
}

/// [`SyncCounts`] that threads add to.
#[derive(Debug, Default)]
pub(crate) struct SyncCounters {
    pub(crate) fast: Count,
    commits: [Count; CommitReason::ALL.len()],
}

impl SyncCounters {
    pub(crate) fn add_commit(&self, reason: CommitReason) {
        let counts = CommitReason::ALL.into_iter().zip(&self.commits);
        for (_, count) in counts.filter(|(known, _)| *known == reason) {
            count.add();
        }
    }
}

impl SyncCounts {
    /// Returns the number of syncs that committed for one reason.
    pub fn commits_for(&self, reason: CommitReason) -> u64 {
        let counts = CommitReason::ALL.into_iter().zip(self.commits);
        counts.filter(|(known, _)| *known == reason).map(|(_, count)| count).sum()
    }
}

impl Stats {
    pub(super) fn sync_metrics(&self) -> Vec<Metric> {
        let SyncCounts { fast, commits, log } = self.syncs;
        let mut all = vec![
            counter("fsync_fast", "Syncs of a file that the log made durable.", fast),
            counter("log_batches", "Batches of the log that were written.", log.batches),
            counter("log_entries", "Syncs in those batches.", log.entries),
            counter("log_blocks", "Log blocks that were written.", log.blocks),
            counter(
                "log_flush_nanos",
                "Time that batches waited for flushes, in nanoseconds.",
                log.flush_nanos,
            ),
        ];
        all.extend(CommitReason::ALL.into_iter().zip(commits).map(|(reason, value)| {
            let label = Some(("reason", reason.name()));
            let what = "Syncs of a file that committed, by reason.";
            Metric { label, ..counter("fsync_commit", what, value) }
        }));
        all
    }
}

impl crate::Filesystem {
    /// Returns how syncs of files became durable.
    pub fn sync_counts(&self) -> SyncCounts {
        let counters = &self.shared.syncs;
        SyncCounts {
            fast: counters.fast.now(),
            commits: counters.commits.each_ref().map(Count::now),
            log: self.forest().log_counters(),
        }
    }
}
