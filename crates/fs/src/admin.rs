//! Administration of a volume: its label, its size, and discarding free space.

use crate::background::merger::MergeScope;
use crate::{Filesystem, Result};
use butternut_format::units::{DevId, SECTOR_BYTES};
use std::ops::Range;

/// Bytes at the start of a device that no block group uses.
const RESERVED_BYTES: u64 = 1 << 20;

impl Filesystem {
    /// Returns the label of the volume.
    pub fn label(&self) -> Vec<u8> {
        match self.forest().label() {
            Ok(label) => label,
            Err(_) => self.super_block().label().to_vec(),
        }
    }

    /// Sets the label of the volume, with the next commit.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a label of more than 255 bytes, or one that
    /// contains a zero byte or a line break.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let writing = self.begin()?;
        let write_state = &*writing;
        self.forest().set_label(label)?;
        write_state.signal.changed();
        Ok(())
    }

    /// Grows or shrinks the volume on one device to `bytes` bytes, with the next commit. Removes
    /// empty block groups past the new end.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a device that is smaller or a seed; block
    /// groups in use past the new end; no space before it for a block group of a profile that
    /// would have none, or for one whose free space the volume needs.
    pub fn resize(&self, devid: u64, bytes: u64) -> Result<()> {
        let writing = self.begin()?;
        let write_state = &*writing;
        self.write_back_all(write_state, MergeScope::Whole)?;
        self.forest().resize(DevId(devid), bytes)?;
        write_state.signal.changed();
        Ok(())
    }

    /// Returns a size that [`Filesystem::resize`] accepts for a device now: the end of its last
    /// block group in use, in bytes. At least 1 MiB. An empty block group counts as in use where
    /// it is the last one that names a profile, other than single, for new block groups, and where
    /// the volume needs its free space for commits. A smaller size is accepted only if another one
    /// fits before it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub fn size_min(&self, devid: u64) -> Result<u64> {
        self.may_begin()?;
        let (groups, chunks) = (self.forest().groups_to_keep()?, self.volume().chunks());
        let mut end = RESERVED_BYTES;
        for group in groups {
            let Some(chunk) = chunks.find(group.start) else { continue };
            for place in chunk.stripes().iter().filter(|place| place.devid.0 == devid) {
                end = end.max(place.physical.0.saturating_add(chunk.stripe_bytes()));
            }
        }
        Ok(end)
    }

    /// Returns the largest size that [`Filesystem::resize`] accepts for a device now, in bytes: the
    /// size of the device, which may have grown since it was opened. 0 if the device is missing, or
    /// a seed.
    pub fn size_max(&self, devid: u64) -> u64 {
        let statuses = self.volume().devices();
        let own = statuses.iter().find(|status| status.devid.0 == devid && !status.is_seed);
        let device = own.and_then(|status| status.device.as_ref());
        // It may be shorter than it was, too, where the volume has shrunk since.
        let bytes = device.map_or(0, |device| device.take_growth().min(device.bytes_now()));
        bytes - bytes % SECTOR_BYTES
    }

    /// Discards free space in runs of at least `bytes_min` bytes (TRIM), and returns the number of
    /// bytes discarded.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a device that failed.
    pub fn trim(&self, bytes_min: u64) -> Result<u64> {
        self.trim_range(0..u64::MAX, bytes_min)
    }

    /// As [`Filesystem::trim`]; in block groups, only in `range` (logical addresses, in bytes).
    /// Space that no block group uses is always discarded.
    ///
    /// # Errors
    /// As [`Filesystem::trim`].
    pub fn trim_range(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.may_begin()?;
        Ok(self.forest().trim(&range, bytes_min)?)
    }
}
