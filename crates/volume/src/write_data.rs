//! Writes data and tree blocks to every mirror of the profile.
//!
//! Laws:
//! 1. Every mirror is written. A write is `Ok` if at most as many mirrors failed as are tolerated
//!    (law 1 of [`crate::tolerance`]). A write fails if a device of one of its mirrors is missing.
//!    A write to a profile with parity fails with [`VolumeError::ParityWrite`]: reading, modifying
//!    and writing full stripes is not supported.
//! 2. Each write has its own result. A write that fails does not affect others, even if they were
//!    submitted as one device write.
//! 3. A write is durable only when [`Volume::flush`] has returned after it.
//!
//! Writes of one batch must not overlap (law 6 of [`crate::write_batch`]).

use crate::chunk_map::Chunks;
use crate::error::VolumeError;
use crate::tolerance::Content;
use crate::volume::Volume;
use crate::write_batch::WriteBatch;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Logical, SECTOR_BYTES, length};

/// One write of a batch: whole sectors from borrowed memory.
#[derive(Debug)]
pub struct DataWrite<'a> {
    /// Aligned to sectors.
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
    /// Writes a batch. Each write has its own result.
    pub fn write_data(&self, writes: &mut [DataWrite<'_>]) {
        self.write_data_meanwhile(writes, &mut || {});
    }

    /// Writes a batch as [`Self::write_data`] does, and calls `work` once on this thread, if
    /// possible while the writes are in flight.
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

    /// Writes tree blocks.
    ///
    /// # Errors
    ///
    /// The first failure in the order of the addresses. Other blocks may have been written.
    pub fn write_blocks(&self, blocks: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        let chunks = self.chunks.load();
        let batch = self.block_batch(&chunks, blocks)?;
        batch.run(None).into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    pub(crate) fn block_batch<'c, 'b>(
        &'c self,
        chunks: &'c Chunks,
        blocks: &[(Logical, &'b [u8])],
    ) -> Result<WriteBatch<'c, 'b>, VolumeError> {
        let mut batch = WriteBatch::new(self, chunks, Content::Blocks, blocks.len());
        for (range, (logical, bytes)) in blocks.iter().enumerate() {
            check_shape(*logical, bytes.len())?;
            batch.add(range, *logical, bytes)?;
        }
        Ok(batch)
    }
}

pub(crate) fn check_shape(logical: Logical, bytes: usize) -> Result<(), VolumeError> {
    let shape = || -> Result<(), Refused> {
        let aligned = logical.0.is_multiple_of(SECTOR_BYTES);
        require(aligned, "logical", logical, "a multiple of 4096")?;
        let whole = length(bytes).is_multiple_of(SECTOR_BYTES);
        require(whole, "length", bytes, "a multiple of 4096")
    };
    shape().map_err(|refused| VolumeError::InvalidRange { logical, refused })
}
