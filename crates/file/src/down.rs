//! Bringing data down: the one way from bytes in memory to extents on disk.
//!
//! ```text
//! runs -> pack (`pack`) -> find space (`assign`) -> write, and make digests -> land: patches
//! ```
//!
//! Laws:
//!
//! 1. A run is down when every copy of all of it is; otherwise it counts as not written at all.
//! 2. Digests are of the bytes that were handed to the device: they are in memory that nobody
//!    changes meanwhile.
//! 3. What a batch holds and asks for is bounded by [`BATCH_BYTES_MAX`], and as much once more
//!    for what is packed.

use crate::assign::{Unplaced, assign};
use crate::error::FileError;
use crate::overlay::{BLOCK, PackedExtent, Patch, Place};
use crate::pack::{Packing, pack};
use crate::place::Target;
use crate::source::{Source, in_memory};
use crate::state::FileState;
use butternut_format::checksum::ChecksumKind;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_volume::{DataWrite, VolumeError};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data of one batch (law 3).
pub(crate) const BATCH_BYTES_MAX: u64 = 16 << 20;
/// From here on slow digests are made on the workers while the device writes. Quick ones take the
/// writer less time than waking the workers would.
const PARALLEL_SLOW_BYTES_MIN: u64 = 64 << 10;
/// A worker makes this many digests in a row.
const DIGESTS_PER_PIECE: usize = 32;

/// A run of blocks on its way down.
#[derive(Debug)]
pub(crate) struct Descent<'a> {
    /// Which of the caller's files it is of.
    pub(crate) file: usize,
    /// Where in that file.
    pub(crate) start: u64,
    pub(crate) data: Data<'a>,
    pub(crate) target: Target,
    /// It is to be packed, if that pays.
    pub(crate) packing: Option<Packing>,
    /// That did not pay, which is to be remembered.
    pub(crate) has_given_up: bool,
    pub(crate) owner: Owner,
    /// Where on disk, once that is found.
    pub(crate) logical: Logical,
    wants_digests: bool,
    digests: Vec<u8>,
    failure: Option<VolumeError>,
}

/// The bytes of a run, in whole blocks.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    Blocks(Vec<Arc<[u8]>>),
    Slice(&'a [u8]),
    /// Packed, in whole sectors; and what was packed.
    Packed {
        packed: Vec<u8>,
        compression: Compression,
        plain: Box<Data<'a>>,
    },
}

/// Whose the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Caller,
    /// Dirty blocks.
    File,
    /// The same, and space for them is held in the file's room.
    FileWithRoom,
}

/// How a batch went.
#[derive(Debug)]
pub(crate) struct Down {
    /// The first failure to write; the files keep each its own.
    pub(crate) result: Result<(), FileError>,
    /// What was not written, in the order of the runs.
    pub(crate) unplaced: Vec<Unplaced>,
}

impl Owner {
    pub(crate) fn is_dirty(self) -> bool {
        self != Self::Caller
    }

    pub(crate) fn has_room(self) -> bool {
        self == Self::FileWithRoom
    }
}

impl Data<'_> {
    /// Bytes of the file.
    fn bytes(&self) -> u64 {
        match self {
            Data::Blocks(blocks) => length(blocks.len()) * SECTOR_BYTES,
            Data::Slice(bytes) => length(bytes.len()),
            Data::Packed { plain, .. } => plain.bytes(),
        }
    }
}

impl<'a> Descent<'a> {
    /// A run of `file`, which is the `number`th of those that go down together.
    pub(crate) fn new(
        file: &FileState,
        number: usize,
        start: u64,
        (owner, data): (Owner, Data<'a>),
        target: Target,
    ) -> Self {
        Self {
            file: number,
            start,
            owner,
            data,
            target,
            packing: file.packing().filter(|_| target == Target::New),
            has_given_up: false,
            logical: Logical(0),
            wants_digests: file.view.has_sums(),
            digests: Vec::new(),
            failure: None,
        }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match &self.data {
            Data::Packed { packed, .. } => length(packed.len()),
            plain @ (Data::Blocks(_) | Data::Slice(_)) => plain.bytes(),
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes()
    }

    /// Keeps the first `bytes` bytes, whole blocks; returns the rest. It is not packed yet.
    pub(crate) fn split_off(&mut self, bytes: u64) -> Self {
        let at = in_memory(bytes);
        let data = match &mut self.data {
            Data::Blocks(blocks) => Data::Blocks(blocks.split_off((at / BLOCK).min(blocks.len()))),
            Data::Slice(slice) => {
                let (now, later) = slice.split_at(at.min(slice.len()));
                *slice = now;
                Data::Slice(later)
            }
            Data::Packed { .. } => {
                debug_assert!(false, "what is packed is one extent");
                Data::Slice(&[])
            }
        };
        let (start, digests, failure) = (self.start + bytes, Vec::new(), None);
        Self { start, data, digests, failure, ..*self }
    }

    /// Where on disk it went.
    fn space(&self) -> Range<u64> {
        self.logical.0..self.logical.0 + self.disk_bytes()
    }

    /// Pieces of memory that follow one another on disk.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (blocks, slice) = match &self.data {
            Data::Blocks(blocks) => (blocks.as_slice(), None),
            Data::Slice(bytes) => (&[][..], Some(*bytes)),
            Data::Packed { packed, .. } => (&[][..], Some(packed.as_slice())),
        };
        blocks.iter().map(|block| &**block).chain(slice)
    }
}

/// Brings runs of some files down, and tells the files.
pub(crate) fn bring_down(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<Descent<'_>>,
) -> Down {
    let runs = pack(source, files, runs);
    let (mut runs, unplaced) = assign(files, runs);
    write_and_digest(source, &mut runs);
    let mut result = Ok(());
    for run in runs {
        debug_assert!(files.len() > run.file, "runs are of these files");
        let Some(file) = files.get_mut(run.file) else { continue };
        let landed = file.land(run);
        result = result.and(landed);
    }
    Down { result, unplaced }
}

/// Writes all runs and makes their digests. Each run knows how it went.
fn write_and_digest(source: &Source, runs: &mut [Descent<'_>]) {
    let csum = source.forest().volume().super_block().csum();
    let mut digests: Vec<Vec<u8>> = runs.iter().map(|run| run.room_for_digests(csum)).collect();
    let mut failures: Vec<Option<VolumeError>> = runs.iter().map(|_| None).collect();
    let bytes: u64 = runs.iter().map(Descent::disk_bytes).sum();
    let is_slow = matches!(csum, ChecksumKind::Sha256 | ChecksumKind::Blake2b);
    if is_slow && bytes >= PARALLEL_SLOW_BYTES_MIN {
        let runs = &*runs;
        source.workers().in_place_scope(|scope| {
            scope.spawn(|_| digest_in_parallel(csum, runs, &mut digests));
            write(source, runs, &mut failures, &mut || {});
        });
    } else {
        let runs = &*runs;
        write(source, runs, &mut failures, &mut || {
            for (run, digests) in runs.iter().zip(&mut digests) {
                run.pieces().fold(0, |at, piece| digest_piece(csum, piece, digests, at));
            }
        });
    }
    for ((run, digests), failure) in runs.iter_mut().zip(digests).zip(failures) {
        (run.digests, run.failure) = (digests, failure);
    }
}

impl Descent<'_> {
    /// Zeroes where the digests will be.
    fn room_for_digests(&self, csum: ChecksumKind) -> Vec<u8> {
        let sectors = if self.wants_digests { self.disk_bytes() / SECTOR_BYTES } else { 0 };
        vec![0; in_memory(sectors) * csum.bytes()]
    }
}

/// Writes all runs, and does the work meanwhile.
fn write(
    source: &Source,
    runs: &[Descent<'_>],
    failures: &mut [Option<VolumeError>],
    work: &mut dyn FnMut(),
) {
    let mut writes = Vec::new();
    let mut owners = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut at = run.logical.0;
        for piece in run.pieces() {
            writes.push(DataWrite::new(Logical(at), piece));
            owners.push(index);
            at += length(piece.len());
        }
    }
    source.forest().volume().write_data_meanwhile(&mut writes, work);
    for (write, owner) in writes.into_iter().zip(owners) {
        if let Err(error) = write.result
            && let Some(failure) = failures.get_mut(owner)
        {
            failure.get_or_insert(error);
        }
    }
}

fn digest_in_parallel(csum: ChecksumKind, runs: &[Descent<'_>], digests: &mut [Vec<u8>]) {
    let mut pieces: Vec<(&[u8], &mut [u8])> = Vec::new();
    for (run, digests) in runs.iter().zip(digests).filter(|(run, _)| run.wants_digests) {
        let mut room = digests.as_mut_slice();
        for piece in run.pieces() {
            for part in piece.chunks(DIGESTS_PER_PIECE * BLOCK) {
                let (now, later) = room.split_at_mut(part.len() / BLOCK * csum.bytes());
                room = later;
                pieces.push((part, now));
            }
        }
    }
    pieces.par_iter_mut().for_each(|(piece, room)| {
        digest_piece(csum, piece, room, 0);
    });
}

/// Puts the digests of a piece at `at`; gives where the next one goes. Without room, none are
/// wanted.
fn digest_piece(csum: ChecksumKind, piece: &[u8], room: &mut [u8], at: usize) -> usize {
    let each = csum.bytes();
    let places = room.get_mut(at..).unwrap_or_default().chunks_exact_mut(each);
    for (place, sector) in places.zip(piece.chunks_exact(BLOCK)) {
        place.copy_from_slice(csum.digest(sector).get(..each).unwrap_or_default());
    }
    at + piece.len() / BLOCK * each
}

impl FileState {
    /// Where the block group starts that an address is in.
    fn group_of(&self, logical: Logical) -> Logical {
        let chunks = self.source.forest().volume().chunks();
        chunks.find(logical).map_or(logical, |chunk| chunk.logical())
    }

    /// Takes note of a run of this file that is down, or is not.
    pub(crate) fn land(&mut self, mut run: Descent<'_>) -> Result<(), FileError> {
        let range = run.range();
        // What was dirty there is either what went down, or older than it. Where dirty blocks are
        // what did not go down, they are lost.
        if run.failure.is_none() || run.owner.is_dirty() {
            self.drop_dirty(range.clone());
        }
        let new_space = (run.target == Target::New).then(|| run.space());
        if let Some(failure) = run.failure.take() {
            self.release(new_space);
            self.live.touch();
            let (tree, ino, source) = (self.tree_id(), self.ino(), Arc::new(failure));
            let error = FileError::Write { tree, ino, offset: run.start, source };
            self.note(&error);
            return Err(error);
        }
        self.bytes_written = self.bytes_written.saturating_add(run.bytes());
        if let Data::Packed { compression, .. } = run.data {
            self.land_packed(run, compression);
            return Ok(());
        }
        let place = match run.target {
            Target::New => Place::New { logical: run.logical, group: self.group_of(run.logical) },
            Target::SetAside { extent, skip } => Place::SetAside { extent, skip },
            Target::Over(_) => {
                self.live.touch();
                return Ok(());
            }
        };
        let mut freed = Vec::new();
        let mut overlay = self.live.overlay_mut();
        // A patch is one extent at most.
        let mut digests = std::mem::take(&mut run.digests);
        let each = digests.len() / in_memory(run.bytes() / SECTOR_BYTES).max(1);
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(crate::overlay::EXTENT_BYTES_MAX);
            let later = in_memory(bytes / SECTOR_BYTES) * each;
            let rest = digests.split_off(later.min(digests.len()));
            let place = place.advanced(at - range.start);
            freed.extend(overlay.insert(at, Patch { bytes, place, digests }));
            digests = rest;
            at += bytes;
        }
        drop(overlay);
        self.release(freed);
        Ok(())
    }

    fn land_packed(&mut self, run: Descent<'_>, compression: Compression) {
        /// The next packed extent of any file.
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);
        let extent = PackedExtent {
            disk: DiskExtent { logical: run.logical, bytes: run.disk_bytes() },
            ram_bytes: run.bytes(),
            compression,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let freed = self.live.overlay_mut().insert_packed(run.start, extent, run.digests);
        self.release(freed);
    }
}
