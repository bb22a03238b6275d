//! Bringing data down: runs of blocks, to where they were told to go, with their digests.
//!
//! Laws:
//!
//! 1. A run is down when every copy of all of it is; otherwise it counts as not written at all.
//! 2. Digests are of the bytes that were handed to the device: they are in memory that nobody
//!    changes meanwhile.
//! 3. What a batch holds and asks for is bounded by [`BATCH_BYTES_MAX`].

use crate::error::FileError;
use crate::overlay::{BLOCK, Patch, Place};
use crate::place::Target;
use crate::source::Source;
use crate::state::FileState;
use butternut_format::checksum::ChecksumKind;
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_volume::{DataWrite, VolumeError};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::ops::Range;
use std::sync::Arc;

/// Data of one batch (law 3).
pub(crate) const BATCH_BYTES_MAX: u64 = 16 << 20;
/// From here on digests are made on the workers, while the device writes: quick ones, and others.
const PARALLEL_BYTES_MIN: u64 = 1 << 20;
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
    /// Where on disk.
    pub(crate) logical: Logical,
    pub(crate) wants_digests: bool,
    digests: Vec<u8>,
    failure: Option<VolumeError>,
}

/// The bytes of a run, in whole blocks.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    Blocks(Vec<Arc<[u8]>>),
    Slice(&'a [u8]),
}

impl<'a> Descent<'a> {
    pub(crate) fn new(
        file: usize,
        start: u64,
        data: Data<'a>,
        (target, logical): (Target, Logical),
        wants_digests: bool,
    ) -> Self {
        let (digests, failure) = (Vec::new(), None);
        Self { file, start, data, target, logical, wants_digests, digests, failure }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match &self.data {
            Data::Blocks(blocks) => length(blocks.len()) * SECTOR_BYTES,
            Data::Slice(bytes) => length(bytes.len()),
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes()
    }

    /// Where on disk it went.
    fn space(&self) -> Range<u64> {
        self.logical.0..self.logical.0 + self.bytes()
    }

    /// Pieces of memory that follow one another on disk.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (blocks, slice) = match &self.data {
            Data::Blocks(blocks) => (blocks.as_slice(), None),
            Data::Slice(bytes) => (&[][..], Some(*bytes)),
        };
        blocks.iter().map(|block| &**block).chain(slice)
    }
}

/// Writes all runs and makes their digests. Each run knows how it went.
pub(crate) fn bring_down(source: &Source, runs: &mut [Descent<'_>]) {
    let csum = source.forest().volume().super_block().csum();
    let mut digests: Vec<Vec<u8>> = runs.iter().map(|run| run.room_for_digests(csum)).collect();
    let mut failures: Vec<Option<VolumeError>> = runs.iter().map(|_| None).collect();
    let bytes: u64 = runs.iter().map(Descent::bytes).sum();
    let parallel_bytes_min = match csum {
        ChecksumKind::Crc32c | ChecksumKind::Xxhash64 => PARALLEL_BYTES_MIN,
        ChecksumKind::Sha256 | ChecksumKind::Blake2b => PARALLEL_SLOW_BYTES_MIN,
    };
    if bytes >= parallel_bytes_min {
        let runs = &*runs;
        source.workers().in_place_scope(|scope| {
            scope.spawn(|_| digest_in_parallel(csum, runs, &mut digests));
            write(source, runs, &mut failures);
        });
    } else {
        for (run, digests) in runs.iter().zip(&mut digests) {
            run.pieces().fold(0, |at, piece| digest_piece(csum, piece, digests, at));
        }
        write(source, runs, &mut failures);
    }
    for ((run, digests), failure) in runs.iter_mut().zip(digests).zip(failures) {
        (run.digests, run.failure) = (digests, failure);
    }
}

impl Descent<'_> {
    /// Zeroes where the digests will be.
    fn room_for_digests(&self, csum: ChecksumKind) -> Vec<u8> {
        let sectors = if self.wants_digests { self.bytes() / SECTOR_BYTES } else { 0 };
        vec![0; crate::source::in_memory(sectors) * csum.bytes()]
    }
}

fn write(source: &Source, runs: &[Descent<'_>], failures: &mut [Option<VolumeError>]) {
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
    source.forest().volume().write_data(&mut writes);
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
        if run.failure.is_none() || matches!(run.data, Data::Blocks(_)) {
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
        let each = digests.len() / crate::source::in_memory(run.bytes() / SECTOR_BYTES).max(1);
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(crate::overlay::EXTENT_BYTES_MAX);
            let later = crate::source::in_memory(bytes / SECTOR_BYTES) * each;
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
}
