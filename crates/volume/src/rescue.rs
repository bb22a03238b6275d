//! Read repair in memory: reads other mirrors, or reconstructs from parity, when the first mirror
//! is bad.
//!
//! Laws:
//! 1. A range is given up only after every source was tried: each mirror, and every reconstruction
//!    from its full stripe that leaves out at most as many elements as there are parities. With two
//!    parities that includes leaving out one more element that reads well, each in turn: it may be
//!    corrupt too, and only the checksum of the result can tell. Data without checksums is not read
//!    from a mirror that may be stale (law 4 of [`crate::tolerance`]), and one reconstruction of it
//!    is tried. For a block in several segments the number of combinations is limited (`block`).
//! 2. A mirror that cannot be read as a whole is read again sector by sector, so that one bad
//!    sector loses nothing else.
//! 3. The result is verified like the first read.
//! 4. A device is counted for a failed request, and for a sector or a block that is wrong on it. A
//!    wrong reconstruction is counted on no device.

mod block;
pub(crate) mod counts;
mod data;
mod full_stripe;

pub(crate) use data::Fault;

use crate::error::ReadSource;
use crate::rescue::counts::RescueCounts;
use crate::sectors::SECTOR;
use crate::stripe::{Layout, Segment};
use crate::volume::Volume;
use butternut_device::{DeviceError, ReadInto};
use butternut_format::refused::Refused;

/// The bytes of one mirror, and the sectors that could not be read.
#[derive(Debug)]
pub(crate) struct MirrorBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) errors: Vec<Option<DeviceError>>,
}

impl MirrorBytes {
    pub(crate) fn sector(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_mul(SECTOR)?;
        self.bytes.get(start..start.checked_add(SECTOR)?)
    }

    pub(crate) fn error(&self, index: usize) -> Option<&DeviceError> {
        self.errors.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn first_error(&self) -> Option<&DeviceError> {
        self.errors.iter().flatten().next()
    }
}

impl Volume {
    pub fn rescue_counts(&self) -> RescueCounts {
        self.rescues.now()
    }

    /// Reads the same length at several addresses (slot, physical): each as a whole, then a failed
    /// one sector by sector (law 2).
    fn read_ranges(&self, ranges: &[(usize, u64)], bytes: usize) -> Vec<MirrorBytes> {
        let sectors = bytes.div_ceil(SECTOR);
        let mut copies: Vec<MirrorBytes> = ranges
            .iter()
            .map(|_| MirrorBytes { bytes: vec![0; bytes], errors: vec![None; sectors] })
            .collect();
        let mut batch: Vec<ReadInto<'_>> = copies
            .iter_mut()
            .zip(ranges)
            .map(|(mirror, &(slot, physical))| ReadInto::new(slot, physical, &mut mirror.bytes))
            .collect();
        self.queues.run(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| (read.device, read.result)).collect();
        for ((mirror, (slot, result)), &(_, physical)) in copies.iter_mut().zip(results).zip(ranges)
        {
            let Err(error) = result else { continue };
            self.count_read_error(slot);
            if sectors > 1 {
                self.read_sectors(slot, physical, mirror);
            } else {
                mirror.errors.fill(Some(error));
            }
        }
        copies
    }

    /// Reads a range that could not be read as a whole, sector by sector.
    fn read_by_sectors(&self, slot: usize, physical: u64, bytes: usize) -> MirrorBytes {
        let errors = vec![None; bytes.div_ceil(SECTOR)];
        let mut mirror = MirrorBytes { bytes: vec![0; bytes], errors };
        self.read_sectors(slot, physical, &mut mirror);
        mirror
    }

    fn read_sectors(&self, slot: usize, physical: u64, mirror: &mut MirrorBytes) {
        let mut at = physical;
        let mut batch = Vec::with_capacity(mirror.errors.len());
        for sector in mirror.bytes.chunks_mut(SECTOR) {
            let next = at.saturating_add(butternut_format::units::length(sector.len()));
            batch.push(ReadInto::new(slot, at, sector));
            at = next;
        }
        self.queues.run(&mut batch);
        for (error, read) in mirror.errors.iter_mut().zip(batch) {
            *error = read.result.err();
            if error.is_some() {
                self.count_read_error(slot);
            }
        }
    }

    fn count_refused(&self, slot: Option<usize>, refused: &Refused) {
        let Some(member) = slot.and_then(|slot| self.members.get(slot)) else { return };
        if refused.field() == "generation" {
            member.errors.count_generation();
        } else {
            member.errors.count_corruption();
        }
    }
}

/// Returns the mirrors of a segment in the order to read them, the least stale first.
fn mirrors_in_order(volume: &Volume, layout: &Layout, segment: &Segment) -> Vec<usize> {
    let mirrors = layout.mirrors(segment);
    let mut order: Vec<usize> = (0..mirrors.len()).collect();
    order
        .sort_by_key(|&mirror| mirrors.get(mirror).map(|stripe| volume.staleness(segment, stripe)));
    order
}

fn mirror_source(layout: &Layout, segment: &Segment, mirror: usize) -> Option<ReadSource> {
    let stripe = layout.mirrors(segment).get(mirror)?;
    Some(ReadSource::Mirror { number: mirror.saturating_add(1), devid: stripe.devid })
}
