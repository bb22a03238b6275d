//! Reads data and verifies its sectors against their checksums.
//!
//! Laws:
//! 1. Every sector that has a checksum is verified before the caller sees it. A bad sector is
//!    replaced from another mirror or from parity.
//! 2. A sector is reported as bad only if no mirror and no reconstruction of it is good. The result
//!    names the bad ranges, their bytes are zero, and the rest of the read is good.
//! 3. Sectors without checksums (`nodatasum`) are not verified. A mirror that cannot be read is
//!    still replaced.

use crate::error::{Unreadable, VolumeError};
use crate::read_batch::{ReadBatch, ReadOutcome, SegmentRead};
use crate::rescue::Fault;
use crate::sectors::{Checksums, SECTOR};
use crate::volume::Volume;
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Logical, SECTOR_BYTES, length};

/// One read of a batch: whole sectors into borrowed memory.
#[derive(Debug)]
pub struct DataRead<'a> {
    /// Aligned to sectors.
    pub logical: Logical,
    /// Whole sectors.
    pub buf: &'a mut [u8],
    pub checksums: Checksums<'a>,
    /// Set by [`Volume::read_data`]. With [`VolumeError::Unreadable`] only the ranges that the
    /// error names are bad ([`VolumeError::bad_ranges`]); with any other error all of `buf` is.
    pub result: Result<(), VolumeError>,
}

impl<'a> DataRead<'a> {
    pub fn new(logical: Logical, buf: &'a mut [u8], checksums: Checksums<'a>) -> Self {
        Self { logical, buf, checksums, result: Ok(()) }
    }

    fn check_shape(&self, csum: ChecksumKind) -> Result<(), VolumeError> {
        let (logical, bytes) = (self.logical, self.buf.len());
        let shape = || -> Result<(), Refused> {
            let aligned = logical.0.is_multiple_of(SECTOR_BYTES);
            require(aligned, "logical", logical, "a multiple of 4096")?;
            require(bytes.is_multiple_of(SECTOR), "length", bytes, "a multiple of 4096")?;
            let Checksums::Stored(checksums) = self.checksums else { return Ok(()) };
            let want = bytes.div_euclid(SECTOR).saturating_mul(csum.bytes());
            require(checksums.len() == want, "checksums", checksums.len(), want)
        };
        shape().map_err(|refused| VolumeError::InvalidRange { logical, refused })
    }
}

impl<'a> Checksums<'a> {
    /// Returns the checksum of sector `index`.
    pub(crate) fn of_sector(self, csum: ChecksumKind, index: usize) -> Option<&'a [u8]> {
        let Checksums::Stored(checksums) = self else { return None };
        let start = index.checked_mul(csum.bytes())?;
        checksums.get(start..start.checked_add(csum.bytes())?)
    }

    /// Returns whether sector `index` matches its checksum, if it has one.
    pub(crate) fn matches(self, csum: ChecksumKind, index: usize, sector: &[u8]) -> bool {
        match self.of_sector(csum, index) {
            Some(stored) => csum.matches(sector, stored),
            None => self == Checksums::None,
        }
    }

    /// Returns the checksums of `sectors` sectors from `first` on.
    pub(crate) fn part(self, csum: ChecksumKind, first: usize, sectors: usize) -> Self {
        let Checksums::Stored(checksums) = self else { return Checksums::None };
        let start = first.saturating_mul(csum.bytes());
        let end = start.saturating_add(sectors.saturating_mul(csum.bytes()));
        Checksums::Stored(checksums.get(start..end).unwrap_or_default())
    }
}

impl Volume {
    /// Reads and verifies a batch. Each read has its own result.
    pub fn read_data(&self, reads: &mut [DataRead<'_>]) {
        let csum = self.super_block().csum();
        let chunks = self.chunks.load();
        let checksums: Vec<Checksums<'_>> = reads.iter().map(|read| read.checksums).collect();
        let mut batch = ReadBatch::new(self, reads.len());
        for (range, read) in reads.iter_mut().enumerate() {
            read.result = read.check_shape(csum);
            if read.result.is_ok() {
                read.result = batch.add(&chunks, range, read.logical, read.buf);
            }
        }
        // One segment is verified here while the next is in flight.
        let is_good = |segment_read: &SegmentRead<'_>, segment: &[u8]| {
            let checksums = checksums.get(segment_read.range).copied().unwrap_or(Checksums::None);
            let first = segment_read.start.div_euclid(SECTOR);
            let checksums = checksums.part(csum, first, segment.len().div_euclid(SECTOR));
            checksums == Checksums::None || bad_run(segment, checksums, csum, true, 0).is_none()
        };
        for segment_read in batch.run_verifying(&is_good) {
            if segment_read.is_verified {
                continue;
            }
            if let Some(read) = reads.get_mut(segment_read.range) {
                self.complete(read, &segment_read, csum);
            }
        }
    }

    /// Verifies one segment of a read, and replaces its bad sectors.
    fn complete(
        &self,
        read: &mut DataRead<'_>,
        segment_read: &SegmentRead<'_>,
        csum: ChecksumKind,
    ) {
        let bytes = usize::try_from(segment_read.segment.bytes).unwrap_or(usize::MAX);
        let end = segment_read.start.saturating_add(bytes);
        let Some(segment) = read.buf.get_mut(segment_read.start..end) else { return };
        let first = segment_read.start.div_euclid(SECTOR);
        let checksums = read.checksums.part(csum, first, bytes.div_euclid(SECTOR));
        let is_read = matches!(segment_read.outcome, ReadOutcome::Read { .. });
        if is_read && checksums == Checksums::None {
            return;
        }
        let mut next = 0;
        while let Some((from, to)) = bad_run(segment, checksums, csum, is_read, next) {
            next = to;
            let (start, end) = (from.saturating_mul(SECTOR), to.saturating_mul(SECTOR));
            let Some(run) = segment.get_mut(start..end) else { return };
            let part = segment_read.segment.part(length(start), length(run.len()));
            let run_checksums = checksums.part(csum, from, to.saturating_sub(from));
            let fault = match &segment_read.outcome {
                ReadOutcome::NoMirror => Fault::NotRead,
                ReadOutcome::Read { mirror } => Fault::Corrupt { mirror: *mirror },
                ReadOutcome::Failed { mirror, error } => {
                    Fault::Failed { mirror: *mirror, error: error.clone() }
                }
            };
            let bad = self.rescue_data(segment_read.layout, &part, &fault, run, run_checksums);
            if bad.is_empty() {
                continue;
            }
            match &mut read.result {
                Err(VolumeError::Unreadable(unreadable)) => unreadable.ranges.extend(bad),
                result => {
                    *result = Err(VolumeError::Unreadable(Box::new(Unreadable { ranges: bad })));
                }
            }
        }
    }
}

/// Finds the first run of bad sectors from sector `next` on. Returns its first sector and the one
/// after it.
fn bad_run(
    segment: &[u8],
    checksums: Checksums<'_>,
    csum: ChecksumKind,
    is_read: bool,
    next: usize,
) -> Option<(usize, usize)> {
    let count = segment.len().div_euclid(SECTOR);
    if !is_read {
        return (next < count).then_some((next, count));
    }
    let mut sectors = segment.chunks_exact(SECTOR).enumerate().skip(next);
    let (from, _) = sectors.find(|(index, sector)| !checksums.matches(csum, *index, sector))?;
    let good = sectors.find(|(index, sector)| checksums.matches(csum, *index, sector));
    Some((from, good.map_or(count, |(index, _)| index)))
}
