//! Growing and shrinking a device.
//!
//! Laws:
//! 1. A device is never made shorter than the end of its last extent: [`Space::chunks_beyond`]
//!    names the chunks that the caller must remove first.
//! 2. As soon as a device is shorter, no chunk is placed behind its end.

use crate::devices::RESERVED_BYTES;
use crate::error::SpaceError;
use crate::state::Space;
use butternut_format::units::{DevId, Logical, SECTOR_BYTES};

impl Space {
    /// Returns the chunks with device extents that end behind the first `bytes` of a device.
    ///
    /// # Errors
    /// There is no such device.
    pub fn chunks_beyond(&self, devid: DevId, bytes: u64) -> Result<Vec<Logical>, SpaceError> {
        let state = self.lock();
        let map = state.devices.by_devid.get(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        let mut chunks: Vec<Logical> = map.chunks_beyond(bytes).collect();
        chunks.sort_unstable();
        chunks.dedup();
        Ok(chunks)
    }

    /// Whether a thread discards a hole behind the first `bytes` of a device.
    pub fn is_discarding_beyond(&self, devid: DevId, bytes: u64) -> bool {
        let state = self.lock();
        state.devices.by_devid.get(&devid).is_some_and(|map| map.is_discarding_beyond(bytes))
    }

    /// Sets the size of a device, in bytes. Returns the size that it had.
    ///
    /// # Errors
    /// There is no such device, an extent ends behind the new end, or the size is not whole
    /// sectors.
    pub fn resize_device(&self, devid: DevId, bytes: u64) -> Result<u64, SpaceError> {
        let mut state = self.lock();
        let map = state.devices.by_devid.get_mut(&devid);
        let map = map.ok_or(SpaceError::NoDevice { devid: devid.0 })?;
        let is_good = bytes.is_multiple_of(SECTOR_BYTES) && bytes > RESERVED_BYTES;
        if !is_good || map.chunks_beyond(bytes).next().is_some() {
            let rest = map.bytes.saturating_sub(bytes);
            return Err(SpaceError::DeviceExtent { devid: devid.0, start: bytes, bytes: rest });
        }
        Ok(std::mem::replace(&mut map.bytes, bytes))
    }
}
