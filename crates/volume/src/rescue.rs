//! When the first copy is no good: the other copies, and what parity can bring back.
//!
//! Laws:
//! 1. Every copy there is is tried before a range is given up: each mirror, and every way to
//!    compute it from its row that leaves out no more elements than there are parities. With two
//!    parities that includes leaving out one element more that is there and reads well, each in
//!    turn: it may be rotten too, and only the checksum of the result can tell.
//! 2. A copy that cannot be read as a whole is read again sector by sector: one bad sector takes
//!    no more than itself.
//! 3. What comes out is verified like what was read first.
//! 4. Devices are counted for what they did: a failed request, a sector or a block that is wrong.
//!    What was computed is nobody's fault.

mod block;
mod data;
mod row;

pub(crate) use data::Fault;

use crate::error::CopyKind;
use crate::read_data::SECTOR;
use crate::stripe::{Layout, Piece};
use crate::volume::Volume;
use butternut_device::{DeviceError, ReadInto};
use butternut_format::refused::Refused;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often another copy helped, and how often none did.
#[derive(Debug, Default)]
pub(crate) struct Rescues {
    blocks: AtomicU64,
    sectors: AtomicU64,
    blocks_lost: AtomicU64,
    sectors_lost: AtomicU64,
}

/// Reads that the first copy did not satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RescueCounts {
    /// Served from another copy, from parity, or (sectors) by a read of their own.
    pub blocks: u64,
    pub sectors: u64,
    /// Not served: no copy was good.
    pub blocks_lost: u64,
    pub sectors_lost: u64,
}

/// One copy of a range as read, with the sectors that could not be.
#[derive(Debug)]
pub(crate) struct CopyBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) errors: Vec<Option<DeviceError>>,
}

impl CopyBytes {
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
        RescueCounts {
            blocks: self.rescues.blocks.load(Ordering::Relaxed),
            sectors: self.rescues.sectors.load(Ordering::Relaxed),
            blocks_lost: self.rescues.blocks_lost.load(Ordering::Relaxed),
            sectors_lost: self.rescues.sectors_lost.load(Ordering::Relaxed),
        }
    }

    /// Reads the same length at several (slot, physical) places: whole, then what failed sector by
    /// sector (law 2).
    fn read_places(&self, places: &[(usize, u64)], bytes: usize) -> Vec<CopyBytes> {
        let sectors = bytes.div_ceil(SECTOR);
        let mut copies: Vec<CopyBytes> = places
            .iter()
            .map(|_| CopyBytes { bytes: vec![0; bytes], errors: vec![None; sectors] })
            .collect();
        let mut batch: Vec<ReadInto<'_>> = copies
            .iter_mut()
            .zip(places)
            .map(|(copy, &(slot, physical))| ReadInto::new(slot, physical, &mut copy.bytes))
            .collect();
        self.lanes.run(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| (read.device, read.result)).collect();
        for ((copy, (slot, result)), &(_, physical)) in copies.iter_mut().zip(results).zip(places) {
            let Err(error) = result else { continue };
            self.count_read_error(slot);
            if sectors > 1 {
                self.read_sectors(slot, physical, copy);
            } else {
                copy.errors.fill(Some(error));
            }
        }
        copies
    }

    /// Reads one place that is known not to be readable in one go.
    fn read_by_sectors(&self, slot: usize, physical: u64, bytes: usize) -> CopyBytes {
        let errors = vec![None; bytes.div_ceil(SECTOR)];
        let mut copy = CopyBytes { bytes: vec![0; bytes], errors };
        self.read_sectors(slot, physical, &mut copy);
        copy
    }

    fn read_sectors(&self, slot: usize, physical: u64, copy: &mut CopyBytes) {
        let mut at = physical;
        let mut batch = Vec::with_capacity(copy.errors.len());
        for sector in copy.bytes.chunks_mut(SECTOR) {
            let next = at.saturating_add(butternut_format::units::length(sector.len()));
            batch.push(ReadInto::new(slot, at, sector));
            at = next;
        }
        self.lanes.run(&mut batch);
        for (error, read) in copy.errors.iter_mut().zip(batch) {
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

/// Copies of a piece in the order to read them, those of least doubt first.
fn in_order(volume: &Volume, layout: &Layout, piece: &Piece) -> Vec<usize> {
    let copies = layout.copies(piece);
    let mut order: Vec<usize> = (0..copies.len()).collect();
    order.sort_by_key(|&copy| copies.get(copy).map(|place| volume.doubt(piece, place)));
    order
}

fn mirror(layout: &Layout, piece: &Piece, copy: usize) -> Option<CopyKind> {
    let place = layout.copies(piece).get(copy)?;
    Some(CopyKind::Mirror { number: copy.saturating_add(1), devid: place.devid })
}
