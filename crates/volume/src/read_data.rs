//! Reading data: sectors against their checksums.
//!
//! Laws:
//! 1. Every sector with a checksum is verified before the caller sees it; a bad one is replaced
//!    from another copy or from parity.
//! 2. Exactly the sectors that no copy has are bad: the result names them, their bytes are zero,
//!    and everything else of the read is good.
//! 3. Sectors without checksums (`nodatasum`) are believed; a copy that cannot be read is still
//!    replaced.

use crate::error::{Unreadable, VolumeError};
use crate::request::{Answer, Asked, Batch};
use crate::rescue::Fault;
use crate::volume::Volume;
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Logical, SECTOR_BYTES, length};

/// [`SECTOR_BYTES`], as a length in memory.
pub(crate) const SECTOR: usize = 4096;
const _: () = assert!(SECTOR_BYTES == 4096);

/// A read of whole sectors into borrowed memory, one of a batch.
#[derive(Debug)]
pub struct DataRead<'a> {
    /// Sector aligned.
    pub logical: Logical,
    /// Whole sectors.
    pub buf: &'a mut [u8],
    pub sums: Sums<'a>,
    /// Set by [`Volume::read_data`]. With [`VolumeError::Unreadable`] only the ranges that it
    /// names are bad ([`VolumeError::bad_ranges`]); with any other error all of `buf` is.
    pub result: Result<(), VolumeError>,
}

/// What a read's sectors are verified against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums<'a> {
    /// Nothing: the data has no checksums.
    None,
    /// One digest per sector, packed as in the checksum tree.
    Packed(&'a [u8]),
}

impl<'a> DataRead<'a> {
    pub fn new(logical: Logical, buf: &'a mut [u8], sums: Sums<'a>) -> Self {
        Self { logical, buf, sums, result: Ok(()) }
    }

    fn check_shape(&self, csum: ChecksumKind) -> Result<(), VolumeError> {
        let (logical, bytes) = (self.logical, self.buf.len());
        let shape = || -> Result<(), Refused> {
            let aligned = logical.0.is_multiple_of(SECTOR_BYTES);
            require(aligned, "logical", logical, "a multiple of 4096")?;
            require(bytes.is_multiple_of(SECTOR), "length", bytes, "a multiple of 4096")?;
            let Sums::Packed(sums) = self.sums else { return Ok(()) };
            let want = bytes.div_euclid(SECTOR).saturating_mul(csum.bytes());
            require(sums.len() == want, "digests", sums.len(), want)
        };
        shape().map_err(|refused| VolumeError::Misshapen { logical, refused })
    }
}

impl<'a> Sums<'a> {
    /// The digest of sector `index`.
    pub(crate) fn of_sector(self, csum: ChecksumKind, index: usize) -> Option<&'a [u8]> {
        let Sums::Packed(sums) = self else { return None };
        let start = index.checked_mul(csum.bytes())?;
        sums.get(start..start.checked_add(csum.bytes())?)
    }

    /// Whether sector `index` is as its checksum says, if it has one.
    pub(crate) fn holds(self, csum: ChecksumKind, index: usize, sector: &[u8]) -> bool {
        match self.of_sector(csum, index) {
            Some(stored) => csum.matches(sector, stored),
            None => self == Sums::None,
        }
    }

    /// The sums of `sectors` sectors from `first` on.
    pub(crate) fn part(self, csum: ChecksumKind, first: usize, sectors: usize) -> Self {
        let Sums::Packed(sums) = self else { return Sums::None };
        let start = first.saturating_mul(csum.bytes());
        let end = start.saturating_add(sectors.saturating_mul(csum.bytes()));
        Sums::Packed(sums.get(start..end).unwrap_or_default())
    }
}

impl Volume {
    /// Reads and verifies a batch; each read has its own result.
    pub fn read_data(&self, reads: &mut [DataRead<'_>]) {
        let csum = self.super_block().csum();
        let chunks = self.chunks.load();
        let sums: Vec<Sums<'_>> = reads.iter().map(|read| read.sums).collect();
        let mut batch = Batch::new(self, reads.len());
        for (range, read) in reads.iter_mut().enumerate() {
            read.result = read.check_shape(csum);
            if read.result.is_ok() {
                read.result = batch.add(&chunks, range, read.logical, read.buf);
            }
        }
        // While one piece is verified here, the next is on its way.
        let is_good = |asked: &Asked<'_>, piece: &[u8]| {
            let sums = sums.get(asked.range).copied().unwrap_or(Sums::None);
            let first = asked.start.div_euclid(SECTOR);
            let sums = sums.part(csum, first, piece.len().div_euclid(SECTOR));
            sums == Sums::None || bad_run(piece, sums, csum, true, 0).is_none()
        };
        for asked in batch.run_verifying(&is_good) {
            if asked.is_verified {
                continue;
            }
            if let Some(read) = reads.get_mut(asked.range) {
                self.settle(read, &asked, csum);
            }
        }
    }

    /// Verifies one piece of a read, and replaces what is bad.
    fn settle(&self, read: &mut DataRead<'_>, asked: &Asked<'_>, csum: ChecksumKind) {
        let bytes = usize::try_from(asked.piece.bytes).unwrap_or(usize::MAX);
        let end = asked.start.saturating_add(bytes);
        let Some(piece) = read.buf.get_mut(asked.start..end) else { return };
        let first = asked.start.div_euclid(SECTOR);
        let sums = read.sums.part(csum, first, bytes.div_euclid(SECTOR));
        let is_read = matches!(asked.answer, Answer::Read { .. });
        if is_read && sums == Sums::None {
            return;
        }
        let mut next = 0;
        while let Some((from, to)) = bad_run(piece, sums, csum, is_read, next) {
            next = to;
            let (start, end) = (from.saturating_mul(SECTOR), to.saturating_mul(SECTOR));
            let Some(run) = piece.get_mut(start..end) else { return };
            let part = asked.piece.part(length(start), length(run.len()));
            let run_sums = sums.part(csum, from, to.saturating_sub(from));
            let fault = match &asked.answer {
                Answer::NoCopy => Fault::NotRead,
                Answer::Read { copy } => Fault::Corrupt { copy: *copy },
                Answer::Failed { copy, error } => {
                    Fault::Failed { copy: *copy, error: error.clone() }
                }
            };
            let bad = self.rescue_data(asked.layout, &part, &fault, run, run_sums);
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

/// The first run of bad sectors from sector `next` on: the first of them, and the one behind.
fn bad_run(
    piece: &[u8],
    sums: Sums<'_>,
    csum: ChecksumKind,
    is_read: bool,
    next: usize,
) -> Option<(usize, usize)> {
    let count = piece.len().div_euclid(SECTOR);
    if !is_read {
        return (next < count).then_some((next, count));
    }
    let mut sectors = piece.chunks_exact(SECTOR).enumerate().skip(next);
    let (from, _) = sectors.find(|(index, sector)| !sums.holds(csum, *index, sector))?;
    let good = sectors.find(|(index, sector)| sums.holds(csum, *index, sector));
    Some((from, good.map_or(count, |(index, _)| index)))
}
