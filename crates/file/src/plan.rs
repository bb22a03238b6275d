//! Plans: what a batch of reads of one file asks of the device, as data.
//!
//! A plan cuts each read into pieces, in file order and without gaps. A piece has one source: zero,
//! an inline item, sectors on disk, or a part of a packed extent. Making a plan searches the
//! trees; applying it (`read`) reads the device, once.
//!
//! Laws:
//!
//! 1. The pieces of a read fill the first [`PlannedRead::bytes`] of it. What is behind them is
//!    either for another plan, or cannot be had, as [`PlannedRead::failure`] says.
//! 2. Whole sectors are read straight to where the caller wants them ([`PieceKind::Direct`]).
//!    Cut ones go through memory of their own ([`PieceKind::Edge`]), and take short neighbours
//!    along, so that a small read is one request.
//! 3. A packed extent is read whole, and once however many pieces it gives.
//! 4. A plan stops at [`PLAN_BYTES_MAX`]: a read's memory is bounded, whatever it asks for.

use crate::error::FileError;
use crate::live::{Layer, Live};
use crate::map::{Mapping, MappingKind, Packing};
use crate::overlay::PackedExtent;
use crate::source::{Region, Source, in_memory, mapping_at};
use crate::view::FileView;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, length};
use butternut_sys::frames::Frame;
use butternut_volume::Sums;
use std::ops::Range;
use std::sync::Arc;

/// What a plan may read and hold, counting packed extents whole (law 4).
const PLAN_BYTES_MAX: usize = 8 << 20;
/// The longest run that is read through memory of its own because an end of it is cut (law 2).
const EDGE_BYTES_MAX: usize = 128 << 10;
const SECTOR: usize = 4096;

/// Where to look again for an extent that several pieces are in.
const PACKED_LOOK_BACK: usize = 64;

/// What a read is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Itself: as few requests as can be.
    #[default]
    Single,
    /// Read ahead, by a worker; the other workers have chunks of their own.
    Ahead,
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) manner: Manner,
    pub(crate) reads: Vec<PlannedRead>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) packed: Vec<PackedNeed>,
    digests: Vec<u8>,
    /// Bytes of scratch memory that edges take, and packed extents.
    pub(crate) edge_bytes: usize,
    pub(crate) packed_bytes: usize,
    direct_bytes: usize,
}

/// One read of a plan.
#[derive(Debug)]
pub(crate) struct PlannedRead {
    pub(crate) pieces: Range<usize>,
    pub(crate) bytes: usize,
    /// Why the byte behind the last piece cannot be had.
    pub(crate) failure: Option<FileError>,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: usize,
    pub(crate) kind: PieceKind,
}

#[derive(Debug)]
pub(crate) enum PieceKind {
    Zeroes,
    /// From byte `skip` of a block that is not on disk yet.
    Buffered {
        block: Frame,
        skip: usize,
    },
    /// From byte `skip` of an inline extent.
    Inline {
        skip: u64,
    },
    /// Whole sectors, into place.
    Direct {
        logical: Logical,
        sums: SumRange,
    },
    /// `span` bytes of whole sectors, into scratch; the piece starts `skip` bytes in.
    Edge {
        logical: Logical,
        sums: SumRange,
        span: usize,
        skip: usize,
    },
    /// From byte `skip` of what need `index` holds once unpacked.
    Packed {
        index: usize,
        skip: usize,
    },
}

/// Where a plan keeps the digests of some sectors; `None` where nothing vouches for them.
pub(crate) type SumRange = Option<Range<usize>>;

/// A packed extent that a plan needs.
#[derive(Debug)]
pub(crate) struct PackedNeed {
    pub(crate) extent: DiskExtent,
    pub(crate) packing: Packing,
    pub(crate) sums: SumRange,
    /// Unpacked already, some time before.
    pub(crate) known: Option<Arc<Vec<u8>>>,
    /// Pieces that need it.
    pub(crate) users: usize,
    /// Only one does, from the extent's start to its end or the end of the file.
    pub(crate) is_direct: bool,
}

/// Contiguous sectors on disk for contiguous bytes of the file.
#[derive(Clone, Copy)]
struct Run {
    offset: u64,
    bytes: usize,
    logical: Logical,
}

impl Plan {
    pub(crate) fn begin(&mut self, manner: Manner) {
        self.manner = manner;
        self.reads.clear();
        self.pieces.clear();
        self.packed.clear();
        self.digests.clear();
        (self.edge_bytes, self.packed_bytes, self.direct_bytes) = (0, 0, 0);
    }

    /// The pieces of a read, with their numbers in the plan.
    pub(crate) fn pieces_of(&self, read: &PlannedRead) -> impl Iterator<Item = (usize, &Piece)> {
        let start = read.pieces.start;
        let pieces = self.pieces.get(read.pieces.clone()).unwrap_or_default();
        pieces.iter().enumerate().map(move |(index, piece)| (start + index, piece))
    }

    /// Whether another read belongs in another plan.
    pub(crate) fn is_full(&self) -> bool {
        self.edge_bytes + self.packed_bytes + self.direct_bytes >= PLAN_BYTES_MAX
    }

    /// The digests that a request is verified against.
    pub(crate) fn sums(&self, range: &SumRange) -> Sums<'_> {
        match range {
            None => Sums::None,
            Some(range) => Sums::Packed(self.digests.get(range.clone()).unwrap_or_default()),
        }
    }

    /// Plans a read of `bytes` bytes at `offset`, which all lie within the file.
    pub(crate) fn add(&mut self, source: &Source, view: &FileView, offset: u64, bytes: usize) {
        let first = self.pieces.len();
        let range = offset..offset + length(bytes);
        let failure = match view.live() {
            None => self.add_pieces(source, view, range).err(),
            Some(live) => self.add_layers(source, view, live, range).err(),
        };
        let pieces = first..self.pieces.len();
        let bytes = self.pieces.iter().skip(first).map(|piece| piece.bytes).sum();
        self.reads.push(PlannedRead { pieces, bytes, failure });
    }

    /// Adds what is newer than the tree, and the tree's pieces between.
    fn add_layers(
        &mut self,
        source: &Source,
        view: &FileView,
        live: &Live,
        mut range: Range<u64>,
    ) -> Result<(), FileError> {
        while range.start < range.end && !self.is_full() {
            let first = self.digests.len();
            let (bytes, kind) = match live.layer(&range, &mut self.digests) {
                Layer::Dirty { bytes, skip } => {
                    let left = in_memory(range.end - range.start).min(bytes.len() - skip);
                    (left, PieceKind::Buffered { block: bytes, skip })
                }
                Layer::Written { logical, end, has_digests } => {
                    let bytes = in_memory(end - range.start);
                    let run = Run { offset: range.start, bytes, logical };
                    let sums = has_digests.then_some(first..self.digests.len());
                    self.push_run(run, run.sectors(), &sums, source.sums().digest_bytes());
                    self.direct_bytes += bytes;
                    range.start = end;
                    continue;
                }
                Layer::Packed { extent, skip, end } => {
                    let bytes = in_memory(end - range.start);
                    let sums = first..self.digests.len();
                    let index = self.need_of_patch(source, view, &extent, sums);
                    let is_to_end = end == view.size() || skip + length(bytes) == extent.ram_bytes;
                    (bytes, self.use_packed(index, skip, is_to_end))
                }
                Layer::Tree { end } => {
                    let pieces = self.pieces.len();
                    self.add_pieces(source, view, range.start..end)?;
                    let done: usize = self.pieces.iter().skip(pieces).map(|p| p.bytes).sum();
                    range.start += length(done);
                    let left = in_memory(end - range.start);
                    if left == 0 || self.is_full() {
                        continue;
                    }
                    // Behind the tree's last item there is a hole, however far the file grew.
                    (left, PieceKind::Zeroes)
                }
            };
            self.pieces.push(Piece { bytes, kind });
            range.start += length(bytes);
        }
        Ok(())
    }

    fn add_pieces(
        &mut self,
        source: &Source,
        view: &FileView,
        mut range: Range<u64>,
    ) -> Result<(), FileError> {
        let mut region: Option<Arc<Region>> = None;
        let mut run: Option<Run> = None;
        while range.start < range.end && !self.is_full() {
            let here = region.as_ref().and_then(|region| mapping_at(region, range.start));
            let Some(mapping) = here else {
                region = match source.region(view, range.start) {
                    Ok(region) if mapping_at(&region, range.start).is_some() => Some(region),
                    Ok(_) => return self.add_run(source, view, run),
                    Err(error) => return self.add_run(source, view, run).and(Err(error)),
                };
                continue;
            };
            let mapping = mapping.within(&range);
            range.start = mapping.end();
            let found = plain_run(&mapping);
            match (&mut run, found) {
                (Some(run), Some(next)) if run.is_followed_by(&next) => run.bytes += next.bytes,
                _ => {
                    self.add_run(source, view, run)?;
                    run = found;
                }
            }
            if found.is_none() {
                self.add_mapping(source, view, &mapping)?;
            }
            self.direct_bytes += in_memory(mapping.bytes);
        }
        self.add_run(source, view, run)
    }

    /// Adds a mapping that is not sectors on disk as they are.
    fn add_mapping(
        &mut self,
        source: &Source,
        view: &FileView,
        mapping: &Mapping,
    ) -> Result<(), FileError> {
        let kind = match mapping.kind {
            // The tree's items have nothing in memory.
            MappingKind::Hole | MappingKind::Preallocated { .. } | MappingKind::Buffered => {
                PieceKind::Zeroes
            }
            MappingKind::Inline { skip, .. } => PieceKind::Inline { skip },
            MappingKind::Regular { extent, packing, skip } => {
                let index = self.need(source, view, mapping.offset, extent, packing)?;
                let is_to_end =
                    skip + mapping.bytes == packing.ram_bytes || mapping.end() == view.size();
                self.use_packed(index, skip, is_to_end)
            }
        };
        self.pieces.push(Piece { bytes: in_memory(mapping.bytes), kind });
        Ok(())
    }

    /// One more piece needs what need `index` holds, from byte `skip` on.
    fn use_packed(&mut self, index: usize, skip: u64, is_to_end: bool) -> PieceKind {
        if let Some(need) = self.packed.get_mut(index) {
            need.users += 1;
            need.is_direct = need.users == 1 && skip == 0 && is_to_end;
        }
        PieceKind::Packed { index, skip: in_memory(skip) }
    }

    /// The need for a packed extent that is in no tree, whose digests are the plan's last.
    fn need_of_patch(
        &mut self,
        source: &Source,
        view: &FileView,
        extent: &PackedExtent,
        sums: Range<usize>,
    ) -> usize {
        let (disk, packing) = (extent.disk, extent.packing());
        if let Some(index) = self.planned(disk, packing) {
            self.digests.truncate(sums.start);
            return index;
        }
        let known = known(source, disk, packing);
        if known.is_none() {
            self.packed_bytes += in_memory(disk.bytes);
        }
        let sums = Some(sums).filter(|_| view.has_sums());
        let need = PackedNeed { extent: disk, packing, sums, known, users: 0, is_direct: false };
        self.packed.push(need);
        self.packed.len() - 1
    }

    /// The number of a need that is planned already.
    fn planned(&self, extent: DiskExtent, packing: Packing) -> Option<usize> {
        let is_same = |need: &PackedNeed| need.extent == extent && need.packing == packing;
        let recent = self.packed.len().saturating_sub(PACKED_LOOK_BACK);
        self.packed.iter().skip(recent).position(is_same).map(|index| recent + index)
    }

    /// The need for a packed extent, new or one that is planned already.
    fn need(
        &mut self,
        source: &Source,
        view: &FileView,
        offset: u64,
        extent: DiskExtent,
        packing: Packing,
    ) -> Result<usize, FileError> {
        if let Some(index) = self.planned(extent, packing) {
            return Ok(index);
        }
        let known = known(source, extent, packing);
        let mut sums = None;
        if known.is_none() {
            let sectors = in_memory(extent.bytes) / SECTOR;
            let (found, range) = self.gather(source, view, extent.logical, sectors)?;
            if found < sectors {
                return Err(no_checksum(view, offset, extent.logical, found));
            }
            sums = range;
            self.packed_bytes += in_memory(extent.bytes);
        }
        self.packed.push(PackedNeed { extent, packing, sums, known, users: 0, is_direct: false });
        Ok(self.packed.len() - 1)
    }

    /// Adds the pieces of a run (law 2), up to the first sector that has no digest.
    fn add_run(
        &mut self,
        source: &Source,
        view: &FileView,
        run: Option<Run>,
    ) -> Result<(), FileError> {
        let Some(run) = run else { return Ok(()) };
        let (head, logical, sectors) = (run.head(), run.first_sector(), run.sectors());
        let (found, sums) = self.gather(source, view, logical, sectors)?;
        self.push_run(run, found, &sums, source.sums().digest_bytes());
        if found < sectors {
            let offset = run.offset + length((found * SECTOR).saturating_sub(head));
            return Err(no_checksum(view, offset, logical, found));
        }
        Ok(())
    }

    /// Adds the pieces of the first `found` sectors of a run (law 2).
    fn push_run(&mut self, mut run: Run, found: usize, sums: &SumRange, digest_bytes: usize) {
        let (head, logical) = (run.head(), run.first_sector());
        let part = |from: usize, to: usize| {
            let start = sums.as_ref()?.start;
            Some(start + from * digest_bytes..start + to * digest_bytes)
        };
        run.bytes = run.bytes.min((found * SECTOR).saturating_sub(head));
        let at = |sector: usize| Logical(logical.0 + length(sector * SECTOR));
        let tail = (head + run.bytes) % SECTOR;
        if run.bytes > 0 && (head > 0 || tail > 0) && run.bytes <= EDGE_BYTES_MAX {
            self.push_edge(logical, part(0, found), head, run.bytes);
        } else if run.bytes > 0 {
            let first = usize::from(head > 0);
            let last = found - usize::from(tail > 0);
            if first > 0 {
                self.push_edge(logical, part(0, 1), head, SECTOR - head);
            }
            if first < last {
                let kind = PieceKind::Direct { logical: at(first), sums: part(first, last) };
                self.pieces.push(Piece { bytes: (last - first) * SECTOR, kind });
            }
            if tail > 0 {
                self.push_edge(at(last), part(last, found), 0, tail);
            }
        }
    }

    fn push_edge(&mut self, logical: Logical, sums: SumRange, skip: usize, bytes: usize) {
        let span = (skip + bytes).next_multiple_of(SECTOR);
        self.edge_bytes += span;
        self.pieces.push(Piece { bytes, kind: PieceKind::Edge { logical, sums, span, skip } });
    }

    /// How many of the sectors may be read, and where their digests are kept now.
    fn gather(
        &mut self,
        source: &Source,
        view: &FileView,
        logical: Logical,
        sectors: usize,
    ) -> Result<(usize, SumRange), FileError> {
        if !view.has_sums() {
            return Ok((sectors, None));
        }
        let start = self.digests.len();
        let found = source.sums().gather(logical, sectors, &mut self.digests);
        Ok((found?, Some(start..self.digests.len())))
    }
}

impl Run {
    /// Bytes of the first sector that come before the run.
    fn head(&self) -> usize {
        in_memory(self.logical.0) % SECTOR
    }

    fn first_sector(&self) -> Logical {
        Logical(self.logical.0 - length(self.head()))
    }

    fn sectors(&self) -> usize {
        (self.head() + self.bytes).div_ceil(SECTOR)
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.logical.checked_add(length(self.bytes)) == Some(next.logical)
    }
}

/// What a packed extent holds, if it was unpacked a while ago.
fn known(source: &Source, extent: DiskExtent, packing: Packing) -> Option<Arc<Vec<u8>>> {
    let known = source.unpacked().find(&(extent.logical, packing.generation.0));
    known.filter(|known| length(known.len()) == packing.ram_bytes)
}

/// A mapping as a run of sectors, if it is one.
fn plain_run(mapping: &Mapping) -> Option<Run> {
    let MappingKind::Regular { extent, packing, skip } = mapping.kind else { return None };
    let is_plain = packing.compression == Compression::None;
    let logical = extent.logical.checked_add(skip).filter(|_| is_plain)?;
    Some(Run { offset: mapping.offset, bytes: in_memory(mapping.bytes), logical })
}

/// The `index`th sector from `logical` on has no digest, and is needed for byte `offset`.
fn no_checksum(view: &FileView, offset: u64, logical: Logical, index: usize) -> FileError {
    let logical = Logical(logical.0 + length(index * SECTOR));
    FileError::NoChecksum { tree: view.tree().id(), ino: view.ino(), offset, logical }
}
