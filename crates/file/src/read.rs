//! Reads: applies plans. One batch to the devices, then decompression, then copies.
//!
//! Laws:
//!
//! 1. A read fills its buffer from the start on with all bytes that are good. It fails when its
//!    first byte cannot be read; when a later byte cannot, it is short, and a read from there on
//!    fails. So only the bytes that no copy has are missing.
//! 2. Reads end at the end of the file.
//! 3. Everything that a plan needs of the devices is one batch. Several compressed extents are
//!    decompressed on all workers.
//!
//! The contents of a buffer after the bytes that a read reports are undefined.

pub(crate) mod decompress;
mod stored;
pub(crate) mod stream;

use crate::compress::{Origin, decompress};
use crate::error::FileError;
use crate::extent_map::plan::{Plan, PlannedRead, ReadKind, SegmentKind};
use crate::extent_map::view::FileView;
use crate::read::decompress::Decompressions;
use crate::source::{Source, Workspace};
use crate::units::in_memory;
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::length;
use butternut_sys::lock::{Mark, rank};
use butternut_tree::{Item, TreeError};
use butternut_volume::{DataRead, VolumeError};
use std::collections::HashMap;
use std::sync::Arc;

/// One of the reads of [`Source::read_many`].
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Where the bytes go.
    pub buf: &'a mut [u8],
    /// Set by the call: how many bytes of `buf` were filled.
    pub result: Result<usize, FileError>,
    /// The read is finished: the rest cannot be read.
    is_over: bool,
}

/// Why some bytes of a plan could not be read.
enum Fault {
    Device(Arc<VolumeError>),
    /// The data cannot be decompressed.
    Decompress(Refused),
    /// The inline extent is missing or invalid.
    Inline(Refused),
    Tree(Arc<TreeError>),
}

/// The segments and compressed extents of a plan that failed, by index. Usually none.
#[derive(Default)]
struct Faults {
    segments: HashMap<usize, Fault>,
    compressed: HashMap<usize, Fault>,
}

/// What a request to the devices is for, by index in the plan.
enum Purpose {
    Segment(usize),
    Compressed(usize),
}

impl<'a> ReadAt<'a> {
    /// Returns a read of `buf.len()` bytes at `offset`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Ok(0), is_over: false }
    }

    fn done(&self) -> usize {
        *self.result.as_ref().unwrap_or(&0)
    }

    /// Bytes that are still to be read.
    fn left(&self, view: &FileView) -> usize {
        if self.is_over {
            return 0;
        }
        let left = view.size().saturating_sub(self.next_offset());
        in_memory(left.min(length(self.buf.len() - self.done())))
    }

    fn next_offset(&self) -> u64 {
        self.offset.saturating_add(length(self.done()))
    }

    /// The next `bytes` bytes of the buffer.
    fn next_bytes(&mut self, bytes: usize) -> &mut [u8] {
        let done = self.done();
        self.buf.get_mut(done..done + bytes).unwrap_or_default()
    }

    /// Counts `good` more bytes as read; `failure` says why the next one could not be (law 1).
    fn finish(&mut self, good: usize, failure: Option<FileError>) {
        let done = self.done() + good;
        self.is_over = failure.is_some();
        self.result = match failure {
            Some(failure) if done == 0 => Err(failure),
            _ => Ok(done),
        };
    }
}

impl Source {
    /// Reads from `offset` on, and returns how many bytes were filled: fewer than the buffer holds
    /// at the end of the file, and where the rest cannot be read.
    ///
    /// # Errors
    /// The first byte cannot be read.
    pub fn read_at(
        &self,
        view: &FileView,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, FileError> {
        let mut read = [ReadAt::new(offset, buf)];
        self.read_many(view, &mut read);
        let [read] = read;
        read.result
    }

    /// Does many reads of one file as one batch. Each read has its own result.
    pub fn read_many(&self, view: &FileView, reads: &mut [ReadAt<'_>]) {
        self.read_in(ReadKind::Demand, view, reads);
    }

    /// Does many reads. Each of a sealed file has only bytes that agree with the hashes of
    /// fs-verity.
    pub(crate) fn read_in(&self, read_kind: ReadKind, view: &FileView, reads: &mut [ReadAt<'_>]) {
        self.read_unverified(read_kind, view, reads);
        if let Some(verity) = view.verity() {
            for read in reads {
                read.result = self.verify_read(verity, read_kind, view, read);
            }
        }
    }

    /// Does many reads, which are verified by the checksums of the volume only.
    pub(crate) fn read_unverified(
        &self,
        read_kind: ReadKind,
        view: &FileView,
        reads: &mut [ReadAt<'_>],
    ) {
        debug_assert!(!Mark::<rank::Handle>::is_held(), "law 4 of `state`");
        for read in &mut *reads {
            (read.result, read.is_over) = (Ok(0), false);
        }
        let mut workspace = self.take_workspace();
        let mut rest = reads;
        while let Some(skip) = rest.iter().position(|read| read.left(view) > 0) {
            rest = rest.get_mut(skip..).unwrap_or_default();
            workspace.plan.begin(read_kind);
            for read in rest.iter() {
                if workspace.plan.is_full() {
                    break;
                }
                workspace.plan.add(self.lookups(), view, read.next_offset(), read.left(view));
            }
            self.apply(view, &mut workspace, rest);
        }
        self.return_workspace(workspace);
    }

    /// Applies a plan for the first of `reads`.
    fn apply(&self, view: &FileView, workspace: &mut Workspace, reads: &mut [ReadAt<'_>]) {
        workspace.grow_scratch(workspace.plan.edge_bytes + workspace.plan.compressed_bytes);
        let Workspace { plan, scratch } = workspace;
        let (edges, compressed) = scratch.split_at_mut(plan.edge_bytes);
        let mut faults = self.fetch(plan, edges, compressed, reads);
        self.fill(view, plan, (edges, compressed), reads, &mut faults);
        finish(view, plan, reads, faults);
    }

    /// Reads everything that the plan needs of the devices.
    fn fetch(
        &self,
        plan: &Plan,
        edges: &mut [u8],
        compressed: &mut [u8],
        reads: &mut [ReadAt<'_>],
    ) -> Faults {
        let (mut edges, mut compressed) = (SliceCutter(edges), SliceCutter(compressed));
        let count = plan.segments.len() + plan.compressed.len();
        let (mut requests, mut purposes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut add = |purpose, logical, place, checksums| {
            requests.push(DataRead::new(logical, place, plan.checksums(checksums)));
            purposes.push(purpose);
        };
        for (read, planned) in reads.iter_mut().zip(&plan.reads) {
            let mut bytes = SliceCutter(read.next_bytes(planned.bytes));
            for (number, segment) in plan.segments_of(planned) {
                let place = bytes.next(segment.bytes);
                match &segment.kind {
                    SegmentKind::Zeroes => place.fill(0),
                    SegmentKind::Direct { logical, checksums } => {
                        add(Purpose::Segment(number), *logical, place, checksums);
                    }
                    SegmentKind::Edge { logical, checksums, span, .. } => {
                        add(Purpose::Segment(number), *logical, edges.next(*span), checksums);
                    }
                    SegmentKind::Buffered { block, skip } => {
                        copy_from(block, length(*skip), place);
                    }
                    SegmentKind::Inline { .. } | SegmentKind::Compressed { .. } => {}
                }
            }
        }
        for (number, need) in plan.compressed.iter().enumerate() {
            if need.contents.is_none() {
                let place = compressed.next(in_memory(need.extent.bytes));
                add(Purpose::Compressed(number), need.extent.logical, place, &need.checksums);
            }
        }
        let mut faults = Faults::default();
        if requests.is_empty() {
            return faults;
        }
        self.forest().volume().read_data(&mut requests);
        for (request, purpose) in requests.into_iter().zip(purposes) {
            match (request.result, purpose) {
                (Ok(()), _) => None,
                (Err(error), Purpose::Segment(at)) => {
                    faults.segments.insert(at, Fault::Device(Arc::new(error)))
                }
                (Err(error), Purpose::Compressed(at)) => {
                    faults.compressed.insert(at, Fault::Device(Arc::new(error)))
                }
            };
        }
        faults
    }

    /// Fills the segments that were not read into place: edges, inline and compressed data.
    fn fill(
        &self,
        view: &FileView,
        plan: &Plan,
        (edges, compressed): (&mut [u8], &[u8]),
        reads: &mut [ReadAt<'_>],
        faults: &mut Faults,
    ) {
        let mut edges = SliceCutter(edges);
        let mut decompressions =
            Decompressions::new(plan, compressed, |number| faults.compressed.contains_key(&number));
        for (read, planned) in reads.iter_mut().zip(&plan.reads) {
            let mut bytes = SliceCutter(read.next_bytes(planned.bytes));
            for (number, segment) in plan.segments_of(planned) {
                let place = bytes.next(segment.bytes);
                match &segment.kind {
                    SegmentKind::Zeroes
                    | SegmentKind::Buffered { .. }
                    | SegmentKind::Direct { .. } => {}
                    SegmentKind::Edge { span, skip, .. } => {
                        let sectors = edges.next(*span);
                        let cut_out = sectors.get(*skip..*skip + segment.bytes);
                        place.copy_from_slice(cut_out.unwrap_or_default());
                    }
                    SegmentKind::Inline { skip } => {
                        if let Err(fault) = read_inline(view, *skip, place) {
                            faults.segments.insert(number, fault);
                        }
                    }
                    SegmentKind::Compressed { index, skip } => {
                        decompressions.add_place(*index, *skip, place);
                    }
                }
            }
        }
        for (number, refused) in decompressions.run(self, plan.read_kind) {
            faults.compressed.insert(number, Fault::Decompress(refused));
        }
    }
}

/// Stores the result of each read of a plan.
fn finish(view: &FileView, plan: &mut Plan, reads: &mut [ReadAt<'_>], mut faults: Faults) {
    let mut failures: Vec<_> = plan.reads.iter_mut().map(|read| read.failure.take()).collect();
    for ((read, planned), failure) in reads.iter_mut().zip(&plan.reads).zip(&mut failures) {
        if read.left(view) == 0 {
            continue;
        }
        if let Some((good, fault)) = faults.first(plan, planned) {
            let offset = read.next_offset() + length(good);
            read.finish(good, Some(fault.error(view, offset)));
        } else if planned.bytes == 0 && failure.is_none() {
            let refused = Refused::new("extents", "none", "one for each byte of the file");
            read.finish(0, Some(view.corrupt(refused)));
        } else {
            read.finish(planned.bytes, failure.take());
        }
    }
}

impl Faults {
    /// The offset in a read of the first byte that could not be read, and why.
    fn first(&mut self, plan: &Plan, planned: &PlannedRead) -> Option<(usize, Fault)> {
        if self.segments.is_empty() && self.compressed.is_empty() {
            return None;
        }
        let mut start = 0;
        for (number, segment) in plan.segments_of(planned) {
            let fault = if let SegmentKind::Compressed { index, .. } = &segment.kind {
                self.compressed.get(index).map(Fault::share)
            } else {
                self.segments.remove(&number)
            };
            if let Some(fault) = fault {
                return Some((start + fault.good_bytes(&segment.kind), fault));
            }
            start += segment.bytes;
        }
        None
    }
}

impl Fault {
    /// Returns the same fault, for another segment of the same extent.
    fn share(&self) -> Self {
        match self {
            Self::Device(error) => Self::Device(Arc::clone(error)),
            Self::Decompress(refused) => Self::Decompress(refused.clone()),
            Self::Inline(refused) => Self::Inline(refused.clone()),
            Self::Tree(error) => Self::Tree(Arc::clone(error)),
        }
    }

    /// How many bytes of its segment are good, from the segment's start on.
    fn good_bytes(&self, segment: &SegmentKind) -> usize {
        let Self::Device(error) = self else { return 0 };
        let (start, skip) = match segment {
            SegmentKind::Direct { logical, .. } => (logical, 0),
            SegmentKind::Edge { logical, skip, .. } => (logical, *skip),
            SegmentKind::Zeroes
            | SegmentKind::Buffered { .. }
            | SegmentKind::Inline { .. }
            | SegmentKind::Compressed { .. } => return 0,
        };
        let bad = error.bad_ranges().iter().map(|range| range.logical.0.saturating_sub(start.0));
        bad.min().map_or(0, |bad| in_memory(bad).saturating_sub(skip))
    }

    fn error(self, view: &FileView, offset: u64) -> FileError {
        let (tree, ino) = (view.tree().id(), view.ino());
        match self {
            Self::Device(source) => FileError::Data { tree, ino, offset, source },
            Self::Decompress(source) => FileError::Decompress { tree, ino, offset, source },
            Self::Inline(source) => FileError::Extents { tree, ino, source },
            Self::Tree(source) => FileError::Tree(source),
        }
    }
}

/// Fills `out` from byte `skip` on of the file's inline extent, with zeroes past its end.
fn read_inline(view: &FileView, skip: u64, out: &mut [u8]) -> Result<(), Fault> {
    let key = Key::new(view.ino().0, ItemType::EXTENT_DATA, 0);
    let item = view.tree().find(&key).map_err(|error| Fault::Tree(Arc::new(error)))?;
    let data = item.as_ref().map(Item::data).unwrap_or_default();
    let extent = FileExtent::check(data, 0).map_err(Fault::Inline)?;
    let ExtentBody::Inline(bytes) = extent.body else {
        return Err(Fault::Inline(Refused::new("type", "another", "inline")));
    };
    if extent.compression == Compression::None {
        copy_from(bytes, skip, out);
        return Ok(());
    }
    let mut decompressed = vec![0; in_memory(extent.ram_bytes)];
    decompress(extent.compression, Origin::Inline, bytes, &mut decompressed)
        .map_err(Fault::Decompress)?;
    copy_from(&decompressed, skip, out);
    Ok(())
}

fn copy_from(bytes: &[u8], skip: u64, out: &mut [u8]) {
    let from = bytes.get(in_memory(skip)..).unwrap_or_default();
    let (head, tail) = out.split_at_mut(from.len().min(out.len()));
    head.copy_from_slice(from.get(..head.len()).unwrap_or_default());
    tail.fill(0);
}

/// A slice that is handed out part by part, from its front.
struct SliceCutter<'a>(&'a mut [u8]);

impl<'a> SliceCutter<'a> {
    fn next(&mut self, bytes: usize) -> &'a mut [u8] {
        let all = std::mem::take(&mut self.0);
        let (now, later) = all.split_at_mut(bytes.min(all.len()));
        self.0 = later;
        now
    }
}
