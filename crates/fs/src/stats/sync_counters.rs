//! [`SyncCounts`]: how syncs of files became durable.

use crate::stats::lane_counters::Count;
use butternut_tree::{CommitReason, LogCounters};

/// How syncs of files became durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncCounts {
    /// Syncs that wrote what changed to the log, or that the log had covered.
    pub fast: u64,
    /// Syncs that wrote all extents of a file to the log, because its pages were evicted
    /// ([`Tunables::full_fsync_on_release`](crate::Tunables::full_fsync_on_release)).
    pub full_on_release: u64,
    /// Syncs that committed, in the order of [`CommitReason::ALL`].
    pub(crate) commits: [u64; CommitReason::ALL.len()],
    pub log: LogCounters,
}

/// [`SyncCounts`] that threads add to.
#[derive(Debug, Default)]
pub(crate) struct SyncCounters {
    pub(crate) fast: Count,
    pub(crate) full_on_release: Count,
    commits: [Count; CommitReason::ALL.len()],
}

impl SyncCounters {
    pub(crate) fn add_commit(&self, reason: CommitReason) {
        let counts = CommitReason::ALL.into_iter().zip(&self.commits);
        for (_, count) in counts.filter(|(known, _)| *known == reason) {
            count.add();
        }
    }

    /// Returns the counts, and those of the log.
    pub(crate) fn now(&self, log: LogCounters) -> SyncCounts {
        let commits = self.commits.each_ref().map(Count::now);
        let (fast, full_on_release) = (self.fast.now(), self.full_on_release.now());
        SyncCounts { fast, full_on_release, commits, log }
    }
}

impl SyncCounts {
    /// Returns the number of syncs that committed for one reason.
    pub fn commits_for(&self, reason: CommitReason) -> u64 {
        let counts = CommitReason::ALL.into_iter().zip(self.commits);
        counts.filter(|(known, _)| *known == reason).map(|(_, count)| count).sum()
    }
}
