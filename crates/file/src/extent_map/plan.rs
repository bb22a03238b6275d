//! Plans: what a batch of reads of one file needs of the devices.
//!
//! A plan cuts each read into segments, in file order and without gaps. A segment has one source:
//! zeroes, a dirty block, an inline item, sectors on disk, or a part of a compressed extent. Making
//! a plan searches the trees; applying it (`read`) reads the devices once.
//!
//! Laws:
//!
//! 1. The segments of a read fill its first [`PlannedRead::bytes`] bytes. The rest is left to
//!    another plan, or cannot be read, as [`PlannedRead::failure`] says.
//! 2. Whole sectors are read straight into the caller's buffer ([`SegmentKind::Direct`]). Partial
//!    sectors go through a bounce buffer ([`SegmentKind::Edge`]) together with short neighbours, so
//!    that a small read is one request.
//! 3. A compressed extent is read whole, and once for all segments that show parts of it.
//! 4. A plan stops at [`PLAN_BYTES_MAX`], which bounds the memory of a read of any size.

use crate::checksum_cache::Gathered;
use crate::error::FileError;
use crate::extent_map::caches::{LookupCaches, Region};
use crate::extent_map::view::FileView;
use crate::extent_map::{Encoding, Mapping, MappingKind};
use crate::overlay::CompressedExtent;
use crate::shared_file::{Layer, SharedFile};
use crate::units::in_memory;
use crate::wait::Lookup;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, length};
use butternut_sys::frames::Frame;
use butternut_sys::wait::Wait;
use butternut_volume::Checksums;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of bytes that a plan reads and holds, counting compressed extents whole (law 4).
const PLAN_BYTES_MAX: usize = 8 << 20;
/// The longest run, in bytes, that goes through a bounce buffer because its first or last sector is
/// partial (law 2).
const EDGE_BYTES_MAX: usize = 128 << 10;
const SECTOR: usize = 4096;

/// How many of the last needed extents are searched for one that another segment needs too.
const NEEDED_LOOK_BACK: usize = 64;

/// What a read is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// A caller waits for it. Several compressed extents are decompressed on all workers.
    #[default]
    Demand,
    /// Readahead, done by one worker; the other workers have ranges of their own.
    Readahead,
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) read_kind: ReadKind,
    pub(crate) reads: Vec<PlannedRead>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) compressed: Vec<NeededExtent>,
    checksum_buffer: Vec<u8>,
    /// Bytes of scratch memory for edges, and for compressed extents.
    pub(crate) edge_bytes: usize,
    pub(crate) compressed_bytes: usize,
    direct_bytes: usize,
}

/// One read of a plan.
#[derive(Debug)]
pub(crate) struct PlannedRead {
    pub(crate) segments: Range<usize>,
    pub(crate) bytes: usize,
    /// Why the byte after the last segment cannot be read.
    pub(crate) failure: Option<FileError>,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) bytes: usize,
    pub(crate) kind: SegmentKind,
}

#[derive(Debug)]
pub(crate) enum SegmentKind {
    Zeroes,
    /// From byte `skip` of a dirty block.
    Buffered {
        block: Frame,
        skip: usize,
    },
    /// From byte `skip` of the inline extent.
    Inline {
        skip: u64,
    },
    /// Whole sectors, read into place.
    Direct {
        logical: Logical,
        checksums: ChecksumRange,
    },
    /// `span` bytes of whole sectors, read into scratch memory; the segment starts `skip` bytes in.
    Edge {
        logical: Logical,
        checksums: ChecksumRange,
        span: usize,
        skip: usize,
    },
    /// From byte `skip` of the decompressed contents of needed extent `index`.
    Compressed {
        index: usize,
        skip: usize,
    },
}

/// Where a plan keeps the checksums of some sectors; `None` for data without checksums.
pub(crate) type ChecksumRange = Option<Range<usize>>;

/// A compressed extent that a plan needs.
#[derive(Debug)]
pub(crate) struct NeededExtent {
    pub(crate) extent: DiskExtent,
    pub(crate) encoding: Encoding,
    pub(crate) checksums: ChecksumRange,
    /// Its decompressed contents, if they are cached.
    pub(crate) contents: Option<Arc<Vec<u8>>>,
    /// Number of segments that show parts of it.
    pub(crate) users: usize,
    /// Only one segment does, from the extent's start to its end or the end of the file, so it can
    /// be decompressed into place.
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
    pub(crate) fn begin(&mut self, read_kind: ReadKind) {
        self.read_kind = read_kind;
        self.reads.clear();
        self.segments.clear();
        self.compressed.clear();
        self.checksum_buffer.clear();
        (self.edge_bytes, self.compressed_bytes, self.direct_bytes) = (0, 0, 0);
    }

    /// The segments of a read, with their indexes in the plan.
    pub(crate) fn segments_of(
        &self,
        read: &PlannedRead,
    ) -> impl Iterator<Item = (usize, &Segment)> {
        let start = read.segments.start;
        let segments = self.segments.get(read.segments.clone()).unwrap_or_default();
        segments.iter().enumerate().map(move |(index, segment)| (start + index, segment))
    }

    /// Whether the next read belongs in another plan.
    pub(crate) fn is_full(&self) -> bool {
        self.edge_bytes + self.compressed_bytes + self.direct_bytes >= PLAN_BYTES_MAX
    }

    /// The checksums that a request is verified against.
    pub(crate) fn checksums(&self, range: &ChecksumRange) -> Checksums<'_> {
        match range {
            None => Checksums::None,
            Some(range) => {
                Checksums::Stored(self.checksum_buffer.get(range.clone()).unwrap_or_default())
            }
        }
    }

    /// Plans a read of `bytes` bytes at `offset`, which all lie within the file.
    pub(crate) fn add(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        offset: u64,
        bytes: usize,
    ) {
        let first = self.segments.len();
        let range = offset..offset + length(bytes);
        let failure = match view.shared() {
            None => self.add_segments(caches, view, range).err(),
            Some(shared) => self.add_layers(caches, view, shared, range).err(),
        };
        let segments = first..self.segments.len();
        let most = bytes;
        let bytes = self.segments.iter().skip(first).map(|segment| segment.bytes).sum();
        // They are copied to the caller's memory (law 1).
        assert!(bytes <= most, "segments of {bytes} bytes were planned for {most}");
        self.reads.push(PlannedRead { segments, bytes, failure });
    }

    /// Adds segments from the overlay, and from the tree in the gaps between.
    fn add_layers(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        shared: &SharedFile,
        mut range: Range<u64>,
    ) -> Result<(), FileError> {
        while range.start < range.end && !self.is_full() {
            let first = self.checksum_buffer.len();
            let (bytes, kind) = match shared.layer(&range, &mut self.checksum_buffer) {
                Layer::Dirty { bytes, skip } => {
                    let left = in_memory(range.end - range.start).min(bytes.len() - skip);
                    (left, SegmentKind::Buffered { block: bytes, skip })
                }
                Layer::OnDisk { logical, end, has_checksums } => {
                    let bytes = in_memory(end - range.start);
                    let run = Run { offset: range.start, bytes, logical };
                    let checksums = has_checksums.then_some(first..self.checksum_buffer.len());
                    self.push_run(
                        run,
                        run.sectors(),
                        &checksums,
                        caches.checksums.checksum_bytes(),
                    );
                    self.direct_bytes += bytes;
                    range.start = end;
                    continue;
                }
                Layer::Compressed { extent, skip, end } => {
                    let bytes = in_memory(end - range.start);
                    let checksums = first..self.checksum_buffer.len();
                    let index = self.need_pending(caches, view, &extent, checksums);
                    let is_to_end = end == view.size() || skip + length(bytes) == extent.ram_bytes;
                    (bytes, self.use_compressed(index, skip, is_to_end))
                }
                Layer::Tree { end } => {
                    let segments = self.segments.len();
                    self.add_segments(caches, view, range.start..end)?;
                    let done: usize = self.segments.iter().skip(segments).map(|p| p.bytes).sum();
                    range.start += length(done);
                    let left = in_memory(end - range.start);
                    if left == 0 || self.is_full() {
                        continue;
                    }
                    // After the tree's last item there is a hole, however far the file has grown.
                    (left, SegmentKind::Zeroes)
                }
            };
            self.segments.push(Segment { bytes, kind });
            range.start += length(bytes);
        }
        Ok(())
    }

    fn add_segments(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        mut range: Range<u64>,
    ) -> Result<(), FileError> {
        let mut region: Option<Arc<Region>> = None;
        let mut run: Option<Run> = None;
        while range.start < range.end && !self.is_full() {
            let here = region.as_ref().and_then(|region| region.at(range.start));
            let Some(mapping) = here else {
                region = match caches.region(view, range.start) {
                    Ok(region) if region.at(range.start).is_some() => Some(region),
                    Ok(_) => return self.add_run(caches, view, run),
                    Err(error) => return self.add_run(caches, view, run).and(Err(error)),
                };
                continue;
            };
            let mapping = mapping.within(&range);
            range.start = mapping.end();
            let found = plain_run(&mapping);
            match (&mut run, found) {
                (Some(run), Some(next)) if run.is_followed_by(&next) => run.bytes += next.bytes,
                _ => {
                    self.add_run(caches, view, run)?;
                    run = found;
                }
            }
            if found.is_none() {
                self.add_mapping(caches, view, &mapping)?;
            }
            self.direct_bytes += in_memory(mapping.bytes);
        }
        self.add_run(caches, view, run)
    }

    /// Adds a mapping that is not uncompressed sectors on disk.
    fn add_mapping(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        mapping: &Mapping,
    ) -> Result<(), FileError> {
        let kind = match mapping.kind {
            // The tree's items never map to dirty blocks.
            MappingKind::Hole | MappingKind::Preallocated { .. } | MappingKind::Buffered => {
                SegmentKind::Zeroes
            }
            MappingKind::Inline { skip, .. } => SegmentKind::Inline { skip },
            MappingKind::Regular { extent, encoding, skip } => {
                let index = self.need(caches, view, mapping.offset, extent, encoding)?;
                let is_to_end =
                    skip + mapping.bytes == encoding.ram_bytes || mapping.end() == view.size();
                self.use_compressed(index, skip, is_to_end)
            }
        };
        self.segments.push(Segment { bytes: in_memory(mapping.bytes), kind });
        Ok(())
    }

    /// A segment that shows needed extent `index` from byte `skip` on.
    fn use_compressed(&mut self, index: usize, skip: u64, is_to_end: bool) -> SegmentKind {
        if let Some(need) = self.compressed.get_mut(index) {
            need.users += 1;
            need.is_direct = need.users == 1 && skip == 0 && is_to_end;
        }
        SegmentKind::Compressed { index, skip: in_memory(skip) }
    }

    /// Index of the needed extent of a pending compressed extent, whose checksums are the last of
    /// the plan.
    fn need_pending(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        extent: &CompressedExtent,
        checksums: Range<usize>,
    ) -> usize {
        let (disk, encoding) = (extent.disk, extent.encoding());
        if let Some(index) = self.planned(disk, encoding) {
            self.checksum_buffer.truncate(checksums.start);
            return index;
        }
        let contents = cached_contents(caches, disk, encoding);
        if contents.is_none() {
            self.compressed_bytes += in_memory(disk.bytes);
        }
        let checksums = Some(checksums).filter(|_| view.has_checksums());
        let need = NeededExtent {
            extent: disk,
            encoding,
            checksums,
            contents,
            users: 0,
            is_direct: false,
        };
        self.compressed.push(need);
        self.compressed.len() - 1
    }

    /// Index of an extent that is planned already.
    fn planned(&self, extent: DiskExtent, encoding: Encoding) -> Option<usize> {
        let is_same = |need: &NeededExtent| need.extent == extent && need.encoding == encoding;
        let recent = self.compressed.len().saturating_sub(NEEDED_LOOK_BACK);
        self.compressed.iter().skip(recent).position(is_same).map(|index| recent + index)
    }

    /// Index of a needed extent, which is added if it is not planned yet.
    fn need(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        offset: u64,
        extent: DiskExtent,
        encoding: Encoding,
    ) -> Result<usize, FileError> {
        if let Some(index) = self.planned(extent, encoding) {
            return Ok(index);
        }
        let contents = cached_contents(caches, extent, encoding);
        let mut checksums = None;
        if contents.is_none() {
            let sectors = in_memory(extent.bytes) / SECTOR;
            let (found, range) = self.gather(caches, view, extent.logical, sectors);
            if let Some(failure) = found.failure {
                return Err(failure.into());
            }
            if found.sectors < sectors {
                return Err(no_checksum(view, offset, extent.logical, found.sectors));
            }
            checksums = range;
            self.compressed_bytes += in_memory(extent.bytes);
        }
        self.compressed.push(NeededExtent {
            extent,
            encoding,
            checksums,
            contents,
            users: 0,
            is_direct: false,
        });
        Ok(self.compressed.len() - 1)
    }

    /// Adds the segments of a run (law 2), up to the first sector that has no checksum, or whose
    /// checksum cannot be read.
    fn add_run(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        run: Option<Run>,
    ) -> Result<(), FileError> {
        let Some(run) = run else { return Ok(()) };
        let (head, logical, sectors) = (run.head(), run.first_sector(), run.sectors());
        let (gathered, checksums) = self.gather(caches, view, logical, sectors);
        let found = gathered.sectors;
        self.push_run(run, found, &checksums, caches.checksums.checksum_bytes());
        if let Some(failure) = gathered.failure {
            return Err(failure.into());
        }
        if found < sectors {
            let offset = run.offset + length((found * SECTOR).saturating_sub(head));
            return Err(no_checksum(view, offset, logical, found));
        }
        Ok(())
    }

    /// Adds the segments of the first `found` sectors of a run (law 2).
    fn push_run(
        &mut self,
        mut run: Run,
        found: usize,
        checksums: &ChecksumRange,
        checksum_bytes: usize,
    ) {
        let (head, logical) = (run.head(), run.first_sector());
        let part = |from: usize, to: usize| {
            let start = checksums.as_ref()?.start;
            Some(start + from * checksum_bytes..start + to * checksum_bytes)
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
                let kind = SegmentKind::Direct { logical: at(first), checksums: part(first, last) };
                self.segments.push(Segment { bytes: (last - first) * SECTOR, kind });
            }
            if tail > 0 {
                self.push_edge(at(last), part(last, found), 0, tail);
            }
        }
    }

    fn push_edge(&mut self, logical: Logical, checksums: ChecksumRange, skip: usize, bytes: usize) {
        let span = (skip + bytes).next_multiple_of(SECTOR);
        self.edge_bytes += span;
        self.segments
            .push(Segment { bytes, kind: SegmentKind::Edge { logical, checksums, span, skip } });
    }

    /// Returns how many of the sectors have checksums, or need none, and where their checksums are
    /// kept.
    fn gather(
        &mut self,
        caches: &LookupCaches,
        view: &FileView,
        logical: Logical,
        sectors: usize,
    ) -> (Gathered, ChecksumRange) {
        if !view.has_checksums() {
            return (Gathered { sectors, failure: None }, None);
        }
        let start = self.checksum_buffer.len();
        let mut lookup = Lookup::new(Wait::Block);
        let buffer = &mut self.checksum_buffer;
        let found = caches.checksums.gather(logical, sectors, &mut lookup, buffer);
        (found, Some(start..self.checksum_buffer.len()))
    }
}

impl Run {
    /// Bytes of the first sector that precede the run.
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

/// The decompressed contents of an extent, if they are cached.
fn cached_contents(
    caches: &LookupCaches,
    extent: DiskExtent,
    encoding: Encoding,
) -> Option<Arc<Vec<u8>>> {
    let contents = caches.decompressed.find(&(extent.logical, encoding.generation.0));
    contents.filter(|contents| length(contents.len()) == encoding.ram_bytes)
}

/// A mapping as a run of uncompressed sectors, if it is one.
fn plain_run(mapping: &Mapping) -> Option<Run> {
    let MappingKind::Regular { extent, encoding, skip } = mapping.kind else { return None };
    let is_plain = encoding.compression == Compression::None;
    let logical = extent.logical.checked_add(skip).filter(|_| is_plain)?;
    Some(Run { offset: mapping.offset, bytes: in_memory(mapping.bytes), logical })
}

/// The error for byte `offset`, which needs the checksum of the `index`th sector from `logical` on.
fn no_checksum(view: &FileView, offset: u64, logical: Logical, index: usize) -> FileError {
    let logical = Logical(logical.0 + length(index * SECTOR));
    FileError::NoChecksum { tree: view.tree().id(), ino: view.ino(), offset, logical }
}
