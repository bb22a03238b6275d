//! Maps logical ranges to one batch of device reads, and device results back to ranges.
//!
//! Laws:
//! 1. Each segment of a range is read once, from one mirror. A range that is contiguous on one
//!    device is one read.
//! 2. The mirror is chosen by the address alone: neighbours are read from different mirrors, and
//!    one address always from the same. So readers share no counter, and a cache in a device holds
//!    each byte once. Mirrors that may be stale (law 4 of [`crate::tolerance`]) are read only if no
//!    other is present.
//! 3. A segment is not read, but goes to [`crate::rescue`], if no mirror's device is present or a
//!    part of every present mirror is known to be stale.

use crate::chunk_map::Chunks;
use crate::error::VolumeError;
use crate::stripe::{IoStripe, Layout, Segment};
use crate::tolerance::Staleness;
use crate::volume::Volume;
use butternut_device::{DeviceError, ReadInto};
use butternut_format::units::{Logical, length};
use std::sync::atomic::{AtomicBool, Ordering};

/// The mirror is chosen by the address bits from these on: about the size of a tree block, and
/// about the size of a large read. Both are powers of two.
const BLOCK_SHIFT: u32 = 14;
const EXTENT_SHIFT: u32 = 20;

/// One segment of a range, and the result of reading it.
#[derive(Debug)]
pub(crate) struct SegmentRead<'c> {
    /// The number of its range in the batch, and where in that range the segment begins, in bytes.
    pub(crate) range: usize,
    pub(crate) start: usize,
    pub(crate) layout: &'c Layout,
    pub(crate) segment: Segment,
    pub(crate) outcome: ReadOutcome,
    /// The bytes were verified already.
    pub(crate) is_verified: bool,
}

#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// No mirror could be read: no device is present, or all are known to be stale.
    NoMirror,
    /// This mirror of the segment was read into its range.
    Read {
        mirror: usize,
    },
    Failed {
        mirror: usize,
        error: DeviceError,
    },
}

/// A batch that is being filled.
#[derive(Debug)]
pub(crate) struct ReadBatch<'c, 'b> {
    volume: &'c Volume,
    segments: Vec<SegmentRead<'c>>,
    reads: Vec<ReadInto<'b>>,
}

impl<'c, 'b> ReadBatch<'c, 'b> {
    pub(crate) fn new(volume: &'c Volume, ranges: usize) -> Self {
        let (segments, reads) = (Vec::with_capacity(ranges), Vec::with_capacity(ranges));
        Self { volume, segments, reads }
    }

    /// Adds a range that is to be read into `memory`.
    ///
    /// # Errors
    ///
    /// If a part of the range is in no chunk. Nothing is added then.
    pub(crate) fn add(
        &mut self,
        chunks: &'c Chunks,
        range: usize,
        logical: Logical,
        memory: &'b mut [u8],
    ) -> Result<(), VolumeError> {
        let (segments, reads) = (self.segments.len(), self.reads.len());
        let bytes = length(memory.len());
        self.add_segments(chunks, range, logical, memory).ok_or_else(|| {
            self.segments.truncate(segments);
            self.reads.truncate(reads);
            VolumeError::Unmapped { logical, bytes }
        })
    }

    fn add_segments(
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
            let segment = layout.segment(logical, length(memory.len()))?;
            let bytes = usize::try_from(segment.bytes).ok()?;
            let (now, later) = memory.split_at_mut_checked(bytes)?;
            memory = later;
            let chosen = choose(self.volume, layout, &segment);
            let outcome = match chosen {
                Some((mirror, slot, physical)) => {
                    let mut read = ReadInto::new(slot, physical, now);
                    read.tag = self.segments.len();
                    self.reads.push(read);
                    ReadOutcome::Read { mirror }
                }
                None => ReadOutcome::NoMirror,
            };
            let is_verified = false;
            self.segments.push(SegmentRead { range, start, layout, segment, outcome, is_verified });
            start = start.checked_add(bytes)?;
        }
        Some(())
    }

    /// Reads everything. Returns the segments in the order of the ranges.
    pub(crate) fn run(self) -> Vec<SegmentRead<'c>> {
        self.run_verifying(&|_, _| false)
    }

    /// Reads everything as [`Self::run`] does, and calls `is_good` on segments that were read while
    /// others are still in flight.
    pub(crate) fn run_verifying(
        mut self,
        is_good: &(dyn Fn(&SegmentRead<'_>, &[u8]) -> bool + Sync),
    ) -> Vec<SegmentRead<'c>> {
        let volume = self.volume;
        let good: Vec<AtomicBool> = self.segments.iter().map(|_| AtomicBool::new(false)).collect();
        volume.queues.run_inspecting(&mut self.reads, &|read| {
            if let Some((segment_read, good)) = self.segments.get(read.tag).zip(good.get(read.tag))
            {
                good.store(is_good(segment_read, read.buf), Ordering::Relaxed);
            }
        });
        for (segment_read, good) in self.segments.iter_mut().zip(good) {
            segment_read.is_verified = good.into_inner();
        }
        let mut reads = self.reads.into_iter();
        for segment_read in &mut self.segments {
            if let ReadOutcome::Read { mirror } = segment_read.outcome
                && let Some(read) = reads.next()
                && let Err(error) = read.result
            {
                volume.count_read_error(read.device);
                segment_read.outcome = ReadOutcome::Failed { mirror, error };
            }
        }
        self.segments
    }
}

/// Returns the mirror to read first, its device's slot, and the address on that device (laws 2 and
/// 3).
pub(crate) fn choose(
    volume: &Volume,
    layout: &Layout,
    segment: &Segment,
) -> Option<(usize, usize, u64)> {
    let mirrors = layout.mirrors(segment);
    let preferred = (segment.logical.0 >> BLOCK_SHIFT) ^ (segment.logical.0 >> EXTENT_SHIFT);
    let preferred = usize::try_from(preferred.checked_rem(length(mirrors.len()))?).ok()?;
    let order = mirrors.iter().enumerate().cycle().skip(preferred).take(mirrors.len());
    let mut best: Option<(Staleness, usize, &IoStripe)> = None;
    for (mirror, stripe) in order.filter(|(_, stripe)| stripe.slot.is_some()) {
        let staleness = volume.staleness(segment, stripe);
        if best.is_none_or(|(least, ..)| staleness < least) {
            best = Some((staleness, mirror, stripe));
        }
        if staleness == Staleness::Current {
            break;
        }
    }
    let (_, mirror, stripe) = best.filter(|(staleness, ..)| *staleness != Staleness::Known)?;
    Some((mirror, stripe.slot?, segment.physical(stripe).0))
}

impl Volume {
    pub(crate) fn count_read_error(&self, slot: usize) {
        if let Some(member) = self.members.get(slot) {
            member.errors.count_read();
        }
    }

    /// Counts a failed read and returns its error.
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

    /// Reads one mirror (from 0) of a range without verifying it.
    pub fn read_raw(
        &self,
        logical: Logical,
        mirror: usize,
        memory: &mut [u8],
    ) -> Result<(), VolumeError> {
        let unmapped = || VolumeError::Unmapped { logical, bytes: length(memory.len()) };
        let chunks = self.chunks.load();
        let layout = chunks.find(logical).ok_or_else(unmapped)?;
        let mut stripes = Vec::new();
        for segment in layout.segments(logical, length(memory.len())) {
            let stripe = layout.mirrors(&segment).get(mirror).ok_or_else(unmapped)?;
            let missing = || VolumeError::MissingDevices { devids: vec![stripe.devid] };
            let slot = stripe.slot.ok_or_else(missing)?;
            stripes.push((slot, segment.physical(stripe).0, usize::try_from(segment.bytes)));
        }
        if layout.end().saturating_sub(logical.0) < length(memory.len()) {
            return Err(unmapped());
        }
        let mut rest = memory;
        for (slot, physical, bytes) in stripes {
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
