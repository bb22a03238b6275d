//! How long operations take: one histogram for each kind.
//!
//! An operation is measured from the call to its end; one of a queue, from when it was taken to
//! when the library saw the device done. Those that fail count too. A fsync is measured whole, and
//! the commit in it once more as a commit. Reads of names and attributes are not measured: a look
//! at the clock would be a part of what they take.

use crate::Filesystem;
use crate::histogram::{Histogram, Latency};
use crate::mount::Shared;
use butternut_tree::PanicWatch;
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    DirectRead,
    DirectWrite,
    /// Reads that are not direct; many at once are one.
    CachedRead,
    CachedWrite,
    /// `fsync` and `fdatasync`.
    Sync,
    Commit,
    /// Of files, directories, symlinks and nodes.
    Create,
    Link,
    /// `unlink` and `rmdir`.
    Unlink,
    Rename,
    SetAttributes,
    /// Set, or removed.
    SetXattr,
}

impl Operation {
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

    /// The name that stays.
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

/// A moment, if operations are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark(Option<Instant>);

/// An operation that is being measured; it ends when this is dropped. A panic in it ends all
/// writing: what it changed in memory may be half a change.
#[derive(Debug)]
pub(crate) struct Timed<'a> {
    _watch: PanicWatch<'a>,
    shared: &'a Shared,
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

impl Shared {
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.switches.measures_latency().then(Instant::now))
    }
}

impl Filesystem {
    /// Measures an operation, until it is dropped.
    pub(crate) fn timed(&self, operation: Operation) -> Timed<'_> {
        let shared = &*self.shared;
        let watch = self.forest().watch_panics();
        Timed { _watch: watch, shared, operation, since: shared.mark() }
    }
}

impl Timed<'_> {
    /// It did not take place.
    pub(crate) fn forget(mut self) {
        self.since = Mark::default();
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if self.since.0.is_some() {
            self.shared.latencies.record(self.operation, self.since, self.shared.mark());
        }
    }
}

#[test]
fn every_operation_has_its_place_and_its_name() {
    for (at, operation) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, at);
        let named = Operation::ALL.iter().filter(|other| other.name() == operation.name());
        assert_eq!(named.count(), 1);
    }
}
