//! [`ForeignWriter`]: whether another writer has changed a superblock (law 8 of
//! [`crate::barrier`]).

use crate::error::VolumeError;
use std::sync::OnceLock;

/// The first superblock of another writer that was found, if one was.
#[derive(Debug, Default)]
pub(crate) struct ForeignWriter(OnceLock<ForeignSuper>);

/// A superblock of another writer.
#[derive(Clone, Debug)]
pub(crate) struct ForeignSuper {
    pub(crate) device: String,
    pub(crate) have: String,
    pub(crate) want: String,
}

impl ForeignWriter {
    /// Keeps the first superblock that was found, and returns the error to report.
    pub(crate) fn record(&self, found: ForeignSuper) -> VolumeError {
        self.0.get_or_init(|| found).error()
    }

    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        self.0.get().map_or(Ok(()), |found| Err(found.error()))
    }
}

impl ForeignSuper {
    fn error(&self) -> VolumeError {
        let Self { device, have, want } = self.clone();
        VolumeError::ForeignSuper { device, have, want }
    }
}
