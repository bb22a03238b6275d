//! Writing: data and tree blocks, to every copy that the profile keeps.
//!
//! Laws:
//! 1. Every copy is written. A write is `Ok` if no more copies failed than may (law 1 of
//!    [`crate::tolerance`]). A write one of whose devices is missing fails; so does one that lies
//!    in a profile with parity, by name, until rows can be read, changed and written.
//! 2. Each write has its own result. A write that fails takes no other down, though it went to
//!    the device together with its neighbours.
//! 3. Nothing is promised to survive a power cut before [`Volume::flush`] has returned.
//!
//! Writes of one batch must not overlap: which of two would win is not known.

use crate::error::VolumeError;
use crate::tolerance::Content;
use crate::volume::Volume;
use crate::write_run::WriteBatch;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Logical, SECTOR_BYTES, length};

/// A write of whole sectors out of borrowed memory, one of a batch.
#[derive(Debug)]
pub struct DataWrite<'a> {
    /// Sector aligned.
    pub logical: Logical,
    /// Whole sectors.
    pub buf: &'a [u8],
    /// Set by [`Volume::write_data`].
    pub result: Result<(), VolumeError>,
}

impl<'a> DataWrite<'a> {
    pub fn new(logical: Logical, buf: &'a [u8]) -> Self {
        Self { logical, buf, result: Ok(()) }
    }
}

impl Volume {
    /// Writes a batch; each write has its own result.
    pub fn write_data(&self, writes: &mut [DataWrite<'_>]) {
        self.write_data_meanwhile(writes, &mut || {});
    }

    /// As [`Self::write_data`]; `work` is done once on this thread, if possible while the devices
    /// write.
    pub fn write_data_meanwhile(&self, writes: &mut [DataWrite<'_>], work: &mut dyn FnMut()) {
        let chunks = self.chunks.load();
        let mut batch = WriteBatch::new(self, &chunks, Content::Data, writes.len());
        for (range, write) in writes.iter_mut().enumerate() {
            write.result = check_shape(write.logical, write.buf.len())
                .and_then(|()| batch.add(range, write.logical, write.buf));
        }
        for (range, error) in batch.run(Some(work)) {
            if let Some(write) = writes.get_mut(range)
                && write.result.is_ok()
            {
                write.result = Err(error);
            }
        }
    }

    /// Writes blocks, all of them or an error: the first, in the order of the addresses.
    pub fn write_blocks(&self, blocks: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        let chunks = self.chunks.load();
        let mut batch = WriteBatch::new(self, &chunks, Content::Blocks, blocks.len());
        for (range, (logical, bytes)) in blocks.iter().enumerate() {
            check_shape(*logical, bytes.len())?;
            batch.add(range, *logical, bytes)?;
        }
        batch.run(None).into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

pub(crate) fn check_shape(logical: Logical, bytes: usize) -> Result<(), VolumeError> {
    let shape = || -> Result<(), Refused> {
        let aligned = logical.0.is_multiple_of(SECTOR_BYTES);
        require(aligned, "logical", logical, "a multiple of 4096")?;
        let whole = length(bytes).is_multiple_of(SECTOR_BYTES);
        require(whole, "length", bytes, "a multiple of 4096")
    };
    shape().map_err(|refused| VolumeError::Misshapen { logical, refused })
}
