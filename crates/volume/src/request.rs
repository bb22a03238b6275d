//! From logical ranges to one batch of device reads, and back.
//!
//! Laws:
//! 1. Each piece of a range is read once, from one copy; a range that lies together on one device
//!    is one read.
//! 2. Which copy is decided by the address alone: neighbours go to different copies, the same
//!    address to the same one, so that no reader shares a counter with another and a cache below
//!    holds each byte once. Doubtful copies (law 4 of [`crate::tolerance`]) are read only when
//!    no other is there.
//! 3. A piece none of whose devices is there, or of which every copy that is there has missed a
//!    part, is not read; it goes to [`crate::rescue`] at once.

use crate::chunk_map::Chunks;
use crate::error::VolumeError;
use crate::stripe::{Layout, Piece, Place};
use crate::tolerance::Doubt;
use crate::volume::Volume;
use butternut_device::{DeviceError, ReadInto};
use butternut_format::units::{Logical, length};
use std::sync::atomic::{AtomicBool, Ordering};

/// A power of two near the size of a block, and one near the size of a large read: the address
/// bits from there on choose the copy.
const BLOCK_SHIFT: u32 = 14;
const EXTENT_SHIFT: u32 = 20;

/// One piece of a range, and how its read went.
#[derive(Debug)]
pub(crate) struct Asked<'c> {
    /// Which range of the batch, and where in it the piece begins.
    pub(crate) range: usize,
    pub(crate) start: usize,
    pub(crate) layout: &'c Layout,
    pub(crate) piece: Piece,
    pub(crate) answer: Answer,
    /// What was read is known to be good.
    pub(crate) is_verified: bool,
}

#[derive(Debug)]
pub(crate) enum Answer {
    /// No copy's device is there.
    NoCopy,
    /// Copy `copy` of the piece was read into its range.
    Read {
        copy: usize,
    },
    Failed {
        copy: usize,
        error: DeviceError,
    },
}

/// A batch being put together.
#[derive(Debug)]
pub(crate) struct Batch<'c, 'b> {
    volume: &'c Volume,
    asked: Vec<Asked<'c>>,
    reads: Vec<ReadInto<'b>>,
}

impl<'c, 'b> Batch<'c, 'b> {
    pub(crate) fn new(volume: &'c Volume, ranges: usize) -> Self {
        let (asked, reads) = (Vec::with_capacity(ranges), Vec::with_capacity(ranges));
        Self { volume, asked, reads }
    }

    /// Adds a range, to be read into `memory`. A range that is not all in chunks adds nothing.
    pub(crate) fn add(
        &mut self,
        chunks: &'c Chunks,
        range: usize,
        logical: Logical,
        memory: &'b mut [u8],
    ) -> Result<(), VolumeError> {
        let (asked, reads) = (self.asked.len(), self.reads.len());
        let bytes = length(memory.len());
        self.add_pieces(chunks, range, logical, memory).ok_or_else(|| {
            self.asked.truncate(asked);
            self.reads.truncate(reads);
            VolumeError::Unmapped { logical, bytes }
        })
    }

    fn add_pieces(
        &mut self,
        chunks: &'c Chunks,
        range: usize,
        logical: Logical,
        mut memory: &'b mut [u8],
    ) -> Option<()> {
        let mut start: usize = 0;
        while !memory.is_empty() {
            let logical = logical.checked_add(length(start))?;
            let layout = chunks.find(logical)?;
            let piece = layout.piece(logical, length(memory.len()))?;
            let bytes = usize::try_from(piece.bytes).ok()?;
            let (now, later) = memory.split_at_mut_checked(bytes)?;
            memory = later;
            let chosen = choose(self.volume, layout, &piece);
            let answer = match chosen {
                Some((copy, slot, physical)) => {
                    let mut read = ReadInto::new(slot, physical, now);
                    read.tag = self.asked.len();
                    self.reads.push(read);
                    Answer::Read { copy }
                }
                None => Answer::NoCopy,
            };
            let is_verified = false;
            self.asked.push(Asked { range, start, layout, piece, answer, is_verified });
            start = start.checked_add(bytes)?;
        }
        Some(())
    }

    /// Reads everything, and says how it went, piece by piece in the order of the ranges.
    pub(crate) fn run(self) -> Vec<Asked<'c>> {
        self.run_verifying(&|_, _| false)
    }

    /// As [`Self::run`]; `is_good` may be asked about pieces that were read while others are still
    /// on their way.
    pub(crate) fn run_verifying(
        mut self,
        is_good: &(dyn Fn(&Asked<'_>, &[u8]) -> bool + Sync),
    ) -> Vec<Asked<'c>> {
        let volume = self.volume;
        let good: Vec<AtomicBool> = self.asked.iter().map(|_| AtomicBool::new(false)).collect();
        volume.lanes.run_looking(&mut self.reads, &|read| {
            if let Some((asked, good)) = self.asked.get(read.tag).zip(good.get(read.tag)) {
                good.store(is_good(asked, read.buf), Ordering::Relaxed);
            }
        });
        for (asked, good) in self.asked.iter_mut().zip(good) {
            asked.is_verified = good.into_inner();
        }
        let mut reads = self.reads.into_iter();
        for asked in &mut self.asked {
            if let Answer::Read { copy } = asked.answer
                && let Some(read) = reads.next()
                && let Err(error) = read.result
            {
                volume.count_read_error(read.device);
                asked.answer = Answer::Failed { copy, error };
            }
        }
        self.asked
    }
}

/// The copy to read first, with its device's slot and the place on it (laws 2 and 3).
pub(crate) fn choose(
    volume: &Volume,
    layout: &Layout,
    piece: &Piece,
) -> Option<(usize, usize, u64)> {
    let copies = layout.copies(piece);
    let turn = (piece.logical.0 >> BLOCK_SHIFT) ^ (piece.logical.0 >> EXTENT_SHIFT);
    let turn = usize::try_from(turn.checked_rem(length(copies.len()))?).ok()?;
    let order = copies.iter().enumerate().cycle().skip(turn).take(copies.len());
    let mut best: Option<(Doubt, usize, &Place)> = None;
    for (copy, place) in order.filter(|(_, place)| place.slot.is_some()) {
        let doubt = volume.doubt(piece, place);
        if best.is_none_or(|(least, ..)| doubt < least) {
            best = Some((doubt, copy, place));
        }
        if doubt == Doubt::Sound {
            break;
        }
    }
    let (_, copy, place) = best.filter(|(doubt, ..)| *doubt != Doubt::Missed)?;
    Some((copy, place.slot?, piece.physical(place).0))
}

impl Volume {
    pub(crate) fn count_read_error(&self, slot: usize) {
        if let Some(member) = self.members.get(slot) {
            member.errors.count_read();
        }
    }

    /// Counts a failed read, and says which it was.
    pub(crate) fn read_failure(
        &self,
        slot: usize,
        offset: u64,
        bytes: u64,
        source: DeviceError,
    ) -> VolumeError {
        self.count_read_error(slot);
        let member = self.members.get(slot);
        let device = member.map_or_else(String::new, |member| member.device.name().to_owned());
        VolumeError::Device { device, offset, bytes, source }
    }

    /// Reads one copy (from 0) of a range, unverified: what is there, good or not.
    pub fn read_raw(
        &self,
        logical: Logical,
        copy: usize,
        memory: &mut [u8],
    ) -> Result<(), VolumeError> {
        let unmapped = || VolumeError::Unmapped { logical, bytes: length(memory.len()) };
        let chunks = self.chunks.load();
        let layout = chunks.find(logical).ok_or_else(unmapped)?;
        let mut places = Vec::new();
        for piece in layout.pieces(logical, length(memory.len())) {
            let place = layout.copies(&piece).get(copy).ok_or_else(unmapped)?;
            let missing = || VolumeError::MissingDevices { devids: vec![place.devid] };
            let slot = place.slot.ok_or_else(missing)?;
            places.push((slot, piece.physical(place).0, usize::try_from(piece.bytes)));
        }
        if layout.end().saturating_sub(logical.0) < length(memory.len()) {
            return Err(unmapped());
        }
        let mut rest = memory;
        for (slot, physical, bytes) in places {
            let Some(member) = self.members.get(slot) else { continue };
            let at = bytes.unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(at);
            rest = later;
            member.device.read_at(physical, now).map_err(|source| VolumeError::Device {
                device: member.device.name().to_owned(),
                offset: physical,
                bytes: length(at),
                source,
            })?;
        }
        Ok(())
    }
}
