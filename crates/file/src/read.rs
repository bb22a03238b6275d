//! Reads: plans applied. One batch to the device, then unpacking, then copies.
//!
//! Laws:
//!
//! 1. A read fills as much of its buffer as is good from its start on. It fails when its first
//!    byte cannot be had; where a later one cannot, it is short, and a read from there on fails.
//!    So exactly the bytes that no copy has are missed.
//! 2. Reads end at the end of the file.
//! 3. Everything that a plan needs of the device is one batch. Packed extents are unpacked on all
//!    workers when there are several.
//!
//! What a buffer holds behind the bytes that a read reports is undefined.

use crate::compress::{Origin, decompress};
use crate::error::FileError;
use crate::plan::{Manner, PieceKind, Plan, PlannedRead};
use crate::source::{Source, Workspace, in_memory};
use crate::unpack::Unpackings;
use crate::view::FileView;
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::length;
use butternut_tree::{Item, TreeError};
use butternut_volume::{DataRead, VolumeError};
use std::collections::HashMap;
use std::sync::Arc;

/// One of the reads of [`Source::read_many`].
#[derive(Debug)]
pub struct ReadAt<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// Set by the call: how many bytes of `buf` were filled.
    pub result: Result<usize, FileError>,
    /// Nothing more of it can be had.
    is_over: bool,
}

/// Why some bytes of a plan are missing.
enum Fault {
    Device(Arc<VolumeError>),
    /// What was read cannot be unpacked.
    Packed(Refused),
    /// The inline extent is not there, or not as it should be.
    Inline(Refused),
    Tree(Arc<TreeError>),
}

/// The pieces and the packed extents of a plan that went wrong, by number. Mostly none.
#[derive(Default)]
struct Faults {
    pieces: HashMap<usize, Fault>,
    packed: HashMap<usize, Fault>,
}

/// Whom a request to the device is for.
enum Asker {
    Piece(usize),
    Packed(usize),
}

impl<'a> ReadAt<'a> {
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

    /// `good` more bytes are there; the next one is not, if `failure` says so (law 1).
    fn settle(&mut self, good: usize, failure: Option<FileError>) {
        let done = self.done() + good;
        self.is_over = failure.is_some();
        self.result = match failure {
            Some(failure) if done == 0 => Err(failure),
            _ => Ok(done),
        };
    }
}

impl Source {
    /// Reads from `offset` on. Says how many bytes were filled: fewer than asked at the end of the
    /// file, and where the rest cannot be had.
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

    /// Does many reads of one file as one batch; each has its own result.
    pub fn read_many(&self, view: &FileView, reads: &mut [ReadAt<'_>]) {
        self.read_in(Manner::Single, view, reads);
    }

    pub(crate) fn read_in(&self, manner: Manner, view: &FileView, reads: &mut [ReadAt<'_>]) {
        for read in &mut *reads {
            (read.result, read.is_over) = (Ok(0), false);
        }
        let mut workspace = self.take_workspace();
        let mut rest = reads;
        while let Some(skip) = rest.iter().position(|read| read.left(view) > 0) {
            rest = rest.get_mut(skip..).unwrap_or_default();
            workspace.plan.begin(manner);
            for read in rest.iter() {
                if workspace.plan.is_full() {
                    break;
                }
                workspace.plan.add(self, view, read.next_offset(), read.left(view));
            }
            self.apply(view, &mut workspace, rest);
        }
        self.give_back(workspace);
    }

    /// Carries a plan out, for the first of `reads`.
    fn apply(&self, view: &FileView, workspace: &mut Workspace, reads: &mut [ReadAt<'_>]) {
        workspace.grow_scratch(workspace.plan.edge_bytes + workspace.plan.packed_bytes);
        let Workspace { plan, scratch } = workspace;
        let (edges, packed) = scratch.split_at_mut(plan.edge_bytes);
        let mut faults = self.fetch(plan, edges, packed, reads);
        self.fill(view, plan, (edges, packed), reads, &mut faults);
        settle(view, plan, reads, faults);
    }

    /// Reads everything that the plan wants of the device.
    fn fetch(
        &self,
        plan: &Plan,
        edges: &mut [u8],
        packed: &mut [u8],
        reads: &mut [ReadAt<'_>],
    ) -> Faults {
        let (mut edges, mut packed) = (Roll(edges), Roll(packed));
        let room = plan.pieces.len() + plan.packed.len();
        let (mut requests, mut askers) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut add = |asker, logical, place, sums| {
            requests.push(DataRead::new(logical, place, plan.sums(sums)));
            askers.push(asker);
        };
        for (read, planned) in reads.iter_mut().zip(&plan.reads) {
            let mut bytes = Roll(read.next_bytes(planned.bytes));
            for (number, piece) in plan.pieces_of(planned) {
                let place = bytes.next(piece.bytes);
                match &piece.kind {
                    PieceKind::Zeroes => place.fill(0),
                    PieceKind::Direct { logical, sums } => {
                        add(Asker::Piece(number), *logical, place, sums);
                    }
                    PieceKind::Edge { logical, sums, span, .. } => {
                        add(Asker::Piece(number), *logical, edges.next(*span), sums);
                    }
                    PieceKind::Buffered { block, skip } => {
                        copy_from(block, length(*skip), place);
                    }
                    PieceKind::Inline { .. } | PieceKind::Packed { .. } => {}
                }
            }
        }
        for (number, need) in plan.packed.iter().enumerate() {
            if need.known.is_none() {
                let place = packed.next(in_memory(need.extent.bytes));
                add(Asker::Packed(number), need.extent.logical, place, &need.sums);
            }
        }
        let mut faults = Faults::default();
        if requests.is_empty() {
            return faults;
        }
        self.forest().volume().read_data(&mut requests);
        for (request, asker) in requests.into_iter().zip(askers) {
            match (request.result, asker) {
                (Ok(()), _) => None,
                (Err(error), Asker::Piece(at)) => {
                    faults.pieces.insert(at, Fault::Device(Arc::new(error)))
                }
                (Err(error), Asker::Packed(at)) => {
                    faults.packed.insert(at, Fault::Device(Arc::new(error)))
                }
            };
        }
        faults
    }

    /// Brings to their places the bytes that are not there yet: edges, inline and packed data.
    fn fill(
        &self,
        view: &FileView,
        plan: &Plan,
        (edges, packed): (&mut [u8], &[u8]),
        reads: &mut [ReadAt<'_>],
        faults: &mut Faults,
    ) {
        let mut edges = Roll(edges);
        let mut unpackings =
            Unpackings::new(plan, packed, |number| faults.packed.contains_key(&number));
        for (read, planned) in reads.iter_mut().zip(&plan.reads) {
            let mut bytes = Roll(read.next_bytes(planned.bytes));
            for (number, piece) in plan.pieces_of(planned) {
                let place = bytes.next(piece.bytes);
                match &piece.kind {
                    PieceKind::Zeroes | PieceKind::Buffered { .. } | PieceKind::Direct { .. } => {}
                    PieceKind::Edge { span, skip, .. } => {
                        let sectors = edges.next(*span);
                        let cut_out = sectors.get(*skip..*skip + piece.bytes);
                        place.copy_from_slice(cut_out.unwrap_or_default());
                    }
                    PieceKind::Inline { skip } => {
                        if let Err(fault) = read_inline(view, *skip, place) {
                            faults.pieces.insert(number, fault);
                        }
                    }
                    PieceKind::Packed { index, skip } => unpackings.want(*index, *skip, place),
                }
            }
        }
        for (number, refused) in unpackings.run(self, plan.manner) {
            faults.packed.insert(number, Fault::Packed(refused));
        }
    }
}

/// Tells every read of a plan how far it got.
fn settle(view: &FileView, plan: &mut Plan, reads: &mut [ReadAt<'_>], mut faults: Faults) {
    let mut failures: Vec<_> = plan.reads.iter_mut().map(|read| read.failure.take()).collect();
    for ((read, planned), failure) in reads.iter_mut().zip(&plan.reads).zip(&mut failures) {
        if read.left(view) == 0 {
            continue;
        }
        if let Some((good, fault)) = faults.first(plan, planned) {
            let offset = read.next_offset() + length(good);
            read.settle(good, Some(fault.error(view, offset)));
        } else if planned.bytes == 0 && failure.is_none() {
            let refused = Refused::new("extents", "none", "one for each byte of the file");
            read.settle(0, Some(view.corrupt(refused)));
        } else {
            read.settle(planned.bytes, failure.take());
        }
    }
}

impl Faults {
    /// The first byte of a read that is missing, counted from its start, and why.
    fn first(&mut self, plan: &Plan, planned: &PlannedRead) -> Option<(usize, Fault)> {
        if self.pieces.is_empty() && self.packed.is_empty() {
            return None;
        }
        let mut start = 0;
        for (number, piece) in plan.pieces_of(planned) {
            let fault = if let PieceKind::Packed { index, .. } = &piece.kind {
                self.packed.get(index).map(Fault::share)
            } else {
                self.pieces.remove(&number)
            };
            if let Some(fault) = fault {
                return Some((start + fault.good_bytes(&piece.kind), fault));
            }
            start += piece.bytes;
        }
        None
    }
}

impl Fault {
    /// The same fault, for another piece of the same extent.
    fn share(&self) -> Self {
        match self {
            Self::Device(error) => Self::Device(Arc::clone(error)),
            Self::Packed(refused) => Self::Packed(refused.clone()),
            Self::Inline(refused) => Self::Inline(refused.clone()),
            Self::Tree(error) => Self::Tree(Arc::clone(error)),
        }
    }

    /// How much of its piece is good, from the piece's start on.
    fn good_bytes(&self, piece: &PieceKind) -> usize {
        let Self::Device(error) = self else { return 0 };
        let (start, skip) = match piece {
            PieceKind::Direct { logical, .. } => (logical, 0),
            PieceKind::Edge { logical, skip, .. } => (logical, *skip),
            PieceKind::Zeroes
            | PieceKind::Buffered { .. }
            | PieceKind::Inline { .. }
            | PieceKind::Packed { .. } => return 0,
        };
        let bad = error.bad_ranges().iter().map(|range| range.logical.0.saturating_sub(start.0));
        bad.min().map_or(0, |bad| in_memory(bad).saturating_sub(skip))
    }

    fn error(self, view: &FileView, offset: u64) -> FileError {
        let (tree, ino) = (view.tree().id(), view.ino());
        match self {
            Self::Device(source) => FileError::Data { tree, ino, offset, source },
            Self::Packed(source) => FileError::Packed { tree, ino, offset, source },
            Self::Inline(source) => FileError::Extents { tree, ino, source },
            Self::Tree(source) => FileError::Tree(source),
        }
    }
}

/// Fills `out` from byte `skip` on of the file's inline extent, with zeroes behind its end.
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
    let mut unpacked = vec![0; in_memory(extent.ram_bytes)];
    decompress(extent.compression, Origin::Inline, bytes, &mut unpacked).map_err(Fault::Packed)?;
    copy_from(&unpacked, skip, out);
    Ok(())
}

fn copy_from(bytes: &[u8], skip: u64, out: &mut [u8]) {
    let from = bytes.get(in_memory(skip)..).unwrap_or_default();
    let (head, tail) = out.split_at_mut(from.len().min(out.len()));
    head.copy_from_slice(from.get(..head.len()).unwrap_or_default());
    tail.fill(0);
}

/// Memory that is given out from its front on.
struct Roll<'a>(&'a mut [u8]);

impl<'a> Roll<'a> {
    fn next(&mut self, bytes: usize) -> &'a mut [u8] {
        let all = std::mem::take(&mut self.0);
        let (now, later) = all.split_at_mut(bytes.min(all.len()));
        self.0 = later;
        now
    }
}
