//! [`WriteGuard`]: refuses writes to the devices once another writer has changed a superblock (law
//! 8 of [`crate::barrier`]), or writing has ended.
//!
//! Every write of data, blocks and superblocks and every discard checks it before it is submitted.
//! Requests in flight are left to the callers.

use crate::error::VolumeError;
use crate::volume::Volume;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the devices may be written.
#[derive(Debug, Default)]
pub(crate) struct WriteGuard {
    /// The first superblock of another writer that was found, if one was.
    foreign: OnceLock<ForeignSuper>,
    has_ended: AtomicBool,
}

/// A superblock of another writer.
#[derive(Clone, Debug)]
pub(crate) struct ForeignSuper {
    pub(crate) device: String,
    pub(crate) have: String,
    pub(crate) want: String,
}

impl WriteGuard {
    /// Keeps the first superblock that was found, and returns the error to report.
    pub(crate) fn record(&self, found: ForeignSuper) -> VolumeError {
        self.foreign.get_or_init(|| found).error()
    }

    /// Fails if no more writes may be submitted.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        if self.has_ended.load(Ordering::Acquire) {
            return Err(VolumeError::WritesEnded);
        }
        self.foreign.get().map_or(Ok(()), |found| Err(found.error()))
    }
}

impl Volume {
    /// Refuses all later writes and discards with [`VolumeError::WritesEnded`].
    pub fn end_writes(&self) {
        self.write_guard.has_ended.store(true, Ordering::Release);
    }
}

impl ForeignSuper {
    fn error(&self) -> VolumeError {
        let Self { device, have, want } = self.clone();
        VolumeError::ForeignSuper { device, have, want }
    }
}
