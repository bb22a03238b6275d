//! Latencies of operations: one histogram for each kind.
//!
//! An operation is measured from the call to its return; a request of a queue, from its submission
//! to the completion that the library sees. Failed operations count too. An fsync is measured as a
//! whole, and the commit in it once more as a commit. Reads of names and attributes are not
//! measured: reading the clock would distort the result.

use crate::stats::histogram::{Histogram, Latency};
use crate::tunables::SharedTunables;
use butternut_tree::PanicWatch;
use std::time::Instant;

/// An operation whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Operation {
    DirectRead,
    DirectWrite,
    /// Reads that are not direct; one call of many reads counts once.
    CachedRead,
    CachedWrite,
    /// `fsync` and `fdatasync`.
    Sync,
    Commit,
    /// Creation of a file, directory, symbolic link or special file.
    Create,
    Link,
    /// `unlink` and `rmdir`.
    Unlink,
    Rename,
    SetAttributes,
    /// Setting or removing an extended attribute.
    SetXattr,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::DirectRead,
        Self::DirectWrite,
        Self::CachedRead,
        Self::CachedWrite,
        Self::Sync,
        Self::Commit,
        Self::Create,
        Self::Link,
        Self::Unlink,
        Self::Rename,
        Self::SetAttributes,
        Self::SetXattr,
    ];

    /// Returns the name of the operation, which does not change from release to release.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DirectRead => "direct_read",
            Self::DirectWrite => "direct_write",
            Self::CachedRead => "cached_read",
            Self::CachedWrite => "cached_write",
            Self::Sync => "fsync",
            Self::Commit => "commit",
            Self::Create => "create",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::SetAttributes => "set_attributes",
            Self::SetXattr => "set_xattr",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Latencies([Histogram; Operation::ALL.len()]);

/// A point in time, if latencies are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark(Option<Instant>);

/// An operation that is being measured until this is dropped. A panic in it makes the volume
/// read-only: memory may then hold half a change.
#[derive(Debug)]
pub(crate) struct Timed<'a> {
    _watch: PanicWatch<'a>,
    latencies: &'a Latencies,
    tunables: &'a SharedTunables,
    operation: Operation,
    since: Mark,
}

impl Latencies {
    pub(crate) fn record(&self, operation: Operation, since: Mark, until: Mark) {
        if let (Some(since), Some(until)) = (since.0, until.0) {
            self.0[operation as usize].record(until.saturating_duration_since(since));
        }
    }

    pub(crate) fn now(&self) -> Vec<(Operation, Latency)> {
        Operation::ALL.into_iter().zip(&self.0).map(|(op, times)| (op, times.now())).collect()
    }
}

impl Mark {
    pub(crate) fn now(tunables: &SharedTunables) -> Self {
        Self(tunables.measures_latency().then(Instant::now))
    }
}

impl<'a> Timed<'a> {
    pub(crate) fn begin(
        latencies: &'a Latencies,
        tunables: &'a SharedTunables,
        watch: PanicWatch<'a>,
        operation: Operation,
    ) -> Self {
        Self { _watch: watch, latencies, tunables, operation, since: Mark::now(tunables) }
    }

    /// Discards the measurement.
    pub(crate) fn forget(mut self) {
        self.since = Mark::default();
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if self.since.0.is_some() {
            self.latencies.record(self.operation, self.since, Mark::now(self.tunables));
        }
    }
}

#[test]
fn operations_have_distinct_indexes_and_names() {
    for (at, operation) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, at);
        let named = Operation::ALL.iter().filter(|other| other.name() == operation.name());
        assert_eq!(named.count(), 1);
    }
}
