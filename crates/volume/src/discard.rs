//! Discards (TRIM): tells the devices which of their space is free.
//!
//! Laws:
//! 1. Every mirror of a discarded range is discarded. The contents of the range are undefined
//!    afterwards.
//! 2. A device that cannot discard succeeds silently. Chunks with parity are not discarded: the
//!    parity would not match data that changes by itself.
//! 3. A seed is never discarded: its own volume, and others that were grown from it, still refer to
//!    data that this volume has freed.

use crate::error::VolumeError;
use crate::volume::Volume;
use butternut_format::units::{DevId, Logical, Physical};

impl Volume {
    /// Discards a range of logical addresses.
    pub fn discard(&self, logical: Logical, bytes: u64) -> Result<(), VolumeError> {
        let chunks = self.chunks.load();
        let unmapped = || VolumeError::Unmapped { logical, bytes };
        let end = logical.0.checked_add(bytes).ok_or_else(unmapped)?;
        let mut at = logical;
        while at.0 < end {
            let layout = chunks.find(at).ok_or_else(unmapped)?;
            let until = layout.end().min(end);
            if layout.attributes().parities == 0 {
                for segment in layout.segments(at, until.saturating_sub(at.0)) {
                    for stripe in layout.mirrors(&segment) {
                        let Some(slot) = stripe.slot else { continue };
                        self.discard_at(slot, segment.physical(stripe), segment.bytes)?;
                    }
                }
            }
            at = Logical(until);
        }
        Ok(())
    }

    /// Discards a range of a device that is in no chunk. The caller makes sure of that.
    pub fn discard_device(
        &self,
        devid: DevId,
        physical: Physical,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        let is_it =
            |member: &crate::members::Member| !member.is_seed && member.item().devid == devid;
        let slot = self.members.iter().position(is_it);
        let slot = slot.ok_or_else(|| VolumeError::MissingDevices { devids: vec![devid] })?;
        self.discard_at(slot, physical, bytes)
    }

    fn discard_at(&self, slot: usize, physical: Physical, bytes: u64) -> Result<(), VolumeError> {
        self.check_may_write()?;
        let member = self.members.get(slot).filter(|member| !member.is_seed);
        let Some(member) = member else { return Ok(()) };
        member.device.discard(physical.0, bytes).map_err(|source| VolumeError::Device {
            device: member.device.name().to_owned(),
            offset: physical.0,
            bytes,
            source,
        })
    }
}
