//! Looking after the volume: its label, its size, and telling its devices what is free.

use crate::{Filesystem, Result};
use butternut_format::units::DevId;
use std::ops::Range;

/// Where no group lies.
const RESERVED_BYTES: u64 = 1 << 20;

impl Filesystem {
    /// The name of the volume, as it is now.
    pub fn label(&self) -> Vec<u8> {
        match self.forest().label() {
            Ok(label) => label,
            Err(_) => self.super_block().label().to_vec(),
        }
    }

    /// Names the volume, with the next commit.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a label of more than 255 bytes, or with a zero
    /// or a line break in it.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let writer = self.begin()?;
        self.forest().set_label(label)?;
        writer.signal.changed();
        Ok(())
    }

    /// Makes the volume larger or smaller on one device, with the next commit. Groups that are
    /// empty and in the way go at once.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); the device does not reach that far, or groups
    /// that are in use do.
    pub fn resize(&self, devid: u64, bytes: u64) -> Result<()> {
        let writer = self.begin()?;
        self.write_back(writer)?;
        self.forest().resize(DevId(devid), bytes)?;
        writer.signal.changed();
        Ok(())
    }

    /// The fewest bytes that [`Filesystem::resize`] takes for a device: where its last group ends
    /// that is in use, as of now. At least 1 MiB.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub fn size_min(&self, devid: u64) -> Result<u64> {
        self.begin()?;
        let (groups, chunks) = (self.forest().groups()?, self.volume().chunks());
        let busy = groups.iter().filter(|group| group.used > 0 || group.taken > 0);
        let mut end = RESERVED_BYTES;
        for group in busy {
            let Some(chunk) = chunks.find(group.start) else { continue };
            for place in chunk.places().iter().filter(|place| place.devid.0 == devid) {
                end = end.max(place.physical.0.saturating_add(chunk.place_bytes()));
            }
        }
        Ok(end)
    }

    /// Tells the devices of free space in runs of at least `bytes_min`; says how many bytes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a device that refused.
    pub fn trim(&self, bytes_min: u64) -> Result<u64> {
        self.trim_range(0..u64::MAX, bytes_min)
    }

    /// As [`Filesystem::trim`]; within block groups, only what lies in `range` (logical addresses,
    /// in bytes). What no block group takes is always told.
    ///
    /// # Errors
    /// As [`Filesystem::trim`].
    pub fn trim_range(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.begin()?;
        Ok(self.forest().trim(&range, bytes_min)?)
    }
}
