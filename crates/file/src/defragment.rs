//! Defragmentation: extents of a file that are written again, as fewer and longer ones.
//!
//! ```text
//! before   |A|B|-C-|   hole   |------- D -------|E|     D is as long as the threshold
//! after    |---A---|   hole   |------- D -------|E|     E has no neighbour to be joined with
//! ```
//!
//! The caller lists the mappings of a file and says which extents are shared ([`ExaminedExtent`]).
//! [`DefragmentRule::plan`] selects what is written again, and cuts it into parts
//! ([`RewritePart`]). Each part is written under one inode lock ([`FileState::rewrite`]).
//!
//! Laws:
//!
//! 1. The contents of the file stay. A part is read, written to new space, and shown by the overlay
//!    when all of that has succeeded; the trees follow with the next merge. A crash leaves the old
//!    extents or the new ones, which hold the same bytes.
//! 2. A part is written only if the file still has the extents that were examined, and none of
//!    their blocks is dirty. Nothing is in flight on the file meanwhile.
//! 3. A part has at most [`BATCH_BYTES_MAX`](crate::writeback::BATCH_BYTES_MAX) bytes, so an extent
//!    of that length is long enough.
//! 4. What would not become fewer extents stays as it is, unless it is compressed.
//! 5. A part that fails has changed nothing that a reader sees, and loses nothing: no sync reports
//!    it.
//! 6. A file that is written in place looks up its write targets again afterwards: its old space
//!    may be another file's.
//!
//! The rules of selection are in `plan`. Which extents are shared is left to `fs`.

mod plan;

use crate::compress::Compressor;
use crate::error::FileError;
use crate::extent_map::{Mapping, MappingKind, Mappings};
use crate::state::FileState;
use crate::target::Target;
use crate::units::in_memory;
use crate::writeback::{Data, RunOrigin, WritebackRun, is_contiguous, prepare, write_runs};
use butternut_format::file_extent::COMPRESSED_BYTES_MAX;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_sys::wait::Wait;
use std::ops::Range;

pub use plan::{
    DefragmentPlan, DefragmentRule, ExaminedExtent, count_extents, start_of_last_extent,
};

/// A range of whole blocks that is to be written again, with the extents that it had when they were
/// examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewritePart {
    range: Range<u64>,
    extents: Vec<ExaminedExtent>,
    /// Number of extents that are not contiguous on disk.
    count: usize,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// The file has changed since it was examined (law 2).
    Changed,
    /// It stays as it is (law 4).
    NotBetter,
    /// It was written again.
    Done,
}

impl RewritePart {
    /// Returns the range of the file, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the extents of the part, cut to its range.
    pub fn extents(&self) -> &[ExaminedExtent] {
        &self.extents
    }
}

impl FileState {
    /// Writes a part of the file again, to new space: compressed by `compressor`, or else as data
    /// that is written now would be. The bytes, the size and the times stay. The caller holds the
    /// inode lock exclusively.
    ///
    /// # Errors
    /// There is no space, the part cannot be read, or not be written. The file then reads as
    /// before.
    pub fn rewrite(
        &mut self,
        part: &RewritePart,
        compressor: Option<Compressor>,
    ) -> Result<Rewritten, FileError> {
        let rewritten = self.rewrite_part(part, compressor);
        self.end_operation(rewritten)
    }

    fn rewrite_part(
        &mut self,
        part: &RewritePart,
        compressor: Option<Compressor>,
    ) -> Result<Rewritten, FileError> {
        self.check_writable()?;
        self.drain();
        let blocks = (part.range.end - part.range.start) / SECTOR_BYTES;
        let compressed = blocks.div_ceil(COMPRESSED_BYTES_MAX / SECTOR_BYTES);
        let reserved = length(part.count).max(compressed);
        self.reserve_metadata(reserved, blocks, self.size(), Wait::Block)?;
        if !self.still_has(part)? {
            return Ok(Rewritten::Changed);
        }
        let bytes = self.read_blocks(&part.range)?;
        let data = (RunOrigin::Rewrite, Data::Slice(&bytes));
        let mut run = WritebackRun::new(self, 0, part.range.start, data, Target::New);
        if let Some(compressor) = compressor.filter(|_| self.compression_is_possible()) {
            run.compress_always(compressor);
        }
        self.shared.wait_for_readahead();
        let source = self.source.clone();
        let (runs, no_space) = if self.allocate_contiguous(&mut run) {
            (vec![run], None)
        } else {
            let (runs, unallocated) = prepare(&source, &mut [&mut *self], vec![run]);
            (runs, unallocated.into_iter().next())
        };
        let is_reserved = length(runs.len()) <= reserved
            || self.reserve_metadata_for_runs(length(runs.len()), blocks, self.size());
        if no_space.is_some() || !is_reserved || !part.is_improved_by(&runs) {
            self.release(runs.iter().filter_map(WritebackRun::new_space));
            return no_space.map_or(Ok(Rewritten::NotBetter), |none| Err(none.error));
        }
        let written = write_runs(&source, runs);
        if self.may_write_in_place() {
            // Law 6.
            self.shared.forget_write_targets();
        }
        written.map(|()| Rewritten::Done)
    }

    /// Allocates the space of an uncompressed run in one piece, if there is such a piece without a
    /// commit or a new chunk. Returns whether there was.
    fn allocate_contiguous(&self, run: &mut WritebackRun<'_>) -> bool {
        let bytes = run.bytes();
        let found =
            (run.policy.is_none()).then(|| self.allocate_between(bytes, bytes, Wait::NoWait));
        let Some(Ok(space)) = found else { return false };
        run.logical = space.start();
        true
    }

    /// Whether the file has the extents of a part, and no newer data (law 2). Their generations may
    /// differ: a merge writes the items of pending extents.
    fn still_has(&self, part: &RewritePart) -> Result<bool, FileError> {
        let mut mappings = Mappings::of(&self.view, part.range.clone());
        for extent in &part.extents {
            let Some(mapping) = mappings.next().transpose()? else { return Ok(false) };
            if !is_same_place(&mapping, &extent.mapping) {
                return Ok(false);
            }
        }
        Ok(mappings.next().is_none())
    }

    /// Reads whole blocks, with zeroes past the end of the file.
    fn read_blocks(&self, range: &Range<u64>) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; in_memory(range.end - range.start)];
        let in_file = in_memory(range.end.min(self.size()).saturating_sub(range.start));
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..in_file).filter(|rest| !rest.is_empty()) {
            match self.source.read_at(&self.view, range.start + length(done), rest)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(bytes)
    }
}

impl RewritePart {
    /// Whether the extents that it would have are better than those that it has (law 4).
    fn is_improved_by(&self, runs: &[WritebackRun<'_>]) -> bool {
        let joined = runs.windows(2).filter(|pair| is_contiguous(&pair[0], &pair[1])).count();
        let count = runs.len() - joined;
        count < self.count || runs.iter().any(WritebackRun::is_compressed_always)
    }
}

/// Whether two mappings show the same bytes of the same space.
fn is_same_place(one: &Mapping, other: &Mapping) -> bool {
    let place = |mapping: &Mapping| match mapping.kind {
        MappingKind::Regular { extent, encoding, skip } => {
            Some((extent, encoding.compression, skip))
        }
        MappingKind::Hole
        | MappingKind::Preallocated { .. }
        | MappingKind::Inline { .. }
        | MappingKind::Buffered => None,
    };
    let range = |mapping: &Mapping| (mapping.offset, mapping.bytes);
    place(one).is_some() && place(one) == place(other) && range(one) == range(other)
}
