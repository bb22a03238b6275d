//! Discards: telling the devices what holds nothing of value any more.
//!
//! Laws:
//! 1. Every copy of a discarded range is discarded; what the range reads as afterwards is not
//!    known.
//! 2. A device that cannot discard succeeds silently, and rows with parity are left as they are:
//!    parity over bytes that changed by themselves would be wrong.

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
            if layout.facts().parities == 0 {
                for piece in layout.pieces(at, until.saturating_sub(at.0)) {
                    for place in layout.copies(&piece) {
                        let Some(slot) = place.slot else { continue };
                        self.discard_at(slot, piece.physical(place), piece.bytes)?;
                    }
                }
            }
            at = Logical(until);
        }
        Ok(())
    }

    /// Discards bytes of a device that no chunk holds; the caller knows which.
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
        let Some(member) = self.members.get(slot) else { return Ok(()) };
        member.device.discard(physical.0, bytes).map_err(|source| VolumeError::Device {
            device: member.device.name().to_owned(),
            offset: physical.0,
            bytes,
            source,
        })
    }
}
