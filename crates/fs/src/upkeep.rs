//! Looking after the volume: its label, its size, and telling its devices what is free.

use crate::{Filesystem, Result};
use butternut_format::units::DevId;

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

    /// Tells the devices of free space in runs of at least `bytes_min`; says how many bytes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); a device that refused.
    pub fn trim(&self, bytes_min: u64) -> Result<u64> {
        self.begin()?;
        Ok(self.forest().trim(bytes_min)?)
    }
}
