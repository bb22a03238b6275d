//! [`Edge`]: a block of which a part becomes zeroes, prepared before anything changes.
//!
//! Punching, zeroing and truncating cut blocks at their edges. The bytes of such a block are read,
//! and its space is reserved, before the tree is edited ([`FileState::prepare_zeroes`]); that the
//! block then becomes dirty cannot fail ([`FileState::finish_edges`]).
//!
//! Laws:
//!
//! 1. An edge that is prepared has changed nothing that can be seen: its reservation is given back
//!    where the operation fails.
//! 2. Nothing is written back between preparing and finishing: the edges know which blocks were
//!    dirty, and which were not.

use crate::dirty::Backing;
use crate::error::FileError;
use crate::source::in_memory;
use crate::state::FileState;
use butternut_format::units::SECTOR_BYTES;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// A block with its new bytes, and the way to its space.
#[derive(Debug)]
pub(crate) struct Edge {
    start: u64,
    frame: Frame,
    backing: Backing,
    /// Space was reserved for it that no dirty block counted on before.
    is_reserved: bool,
}

impl FileState {
    /// Prepares zeroes over parts of blocks, each inside one block, as far as they are inside of
    /// `size` bytes and the block holds data.
    pub(crate) fn prepare_zeroes(
        &mut self,
        parts: &[Range<u64>],
        size: u64,
    ) -> Result<Vec<Edge>, FileError> {
        let mut wanted: Vec<(u64, Range<u64>)> = Vec::new();
        for part in parts {
            let part = part.start..part.end.min(size);
            let start = part.start - part.start % SECTOR_BYTES;
            if part.is_empty() || !self.is_newer(start) && !self.has_data_at(start)? {
                continue;
            }
            wanted.push((start, part));
        }
        let Some((first, _)) = wanted.first() else { return Ok(Vec::new()) };
        let count = u64::try_from(wanted.len()).unwrap_or(u64::MAX);
        self.promise(count, count, self.size())?;
        self.outgrow(self.size(), &(*first..*first + SECTOR_BYTES))?;
        // All memory at once: finding it may write dirty blocks back (law 2).
        let mut frames = self.frames(wanted.len())?;
        let mut edges: Vec<Edge> = Vec::new();
        for (start, part) in wanted {
            match self.prepare_edge(start, &part, &mut frames) {
                Ok(edge) => edges.push(edge),
                Err(error) => {
                    self.abandon_edges(&edges);
                    return Err(error);
                }
            }
        }
        Ok(edges)
    }

    /// The same for one part of one block, without a promise: it may be on a full volume. Takes one
    /// of the frames.
    pub(crate) fn prepare_edge(
        &mut self,
        start: u64,
        part: &Range<u64>,
        frames: &mut Vec<Frame>,
    ) -> Result<Edge, FileError> {
        let mut frame = frames.pop().expect("one was found for each");
        self.read_block_to(start, &mut frame)?;
        let bytes = frame.bytes_mut().expect("a new frame has one user");
        let range = in_memory(part.start - start)..in_memory(part.end - start);
        bytes.get_mut(range).expect("the part is inside the block").fill(0);
        let was_dirty = self.dirty_backing(start).is_some();
        let backings = self.back(&(start..start + SECTOR_BYTES), self.size())?;
        let backing = *backings.first().expect("there is one block");
        let is_reserved = !was_dirty && backing == Backing::Reserved;
        Ok(Edge { start, frame, backing, is_reserved })
    }

    /// Makes the edges dirty if what they belong to was done, and forgets them otherwise.
    pub(crate) fn finish_edges<R>(
        &mut self,
        edges: Vec<Edge>,
        result: Result<R, FileError>,
    ) -> Result<R, FileError> {
        if result.is_err() {
            self.abandon_edges(&edges);
            return result;
        }
        for Edge { start, frame, backing, .. } in edges {
            self.put_block(start, frame, backing);
        }
        result
    }

    /// Law 1.
    fn abandon_edges(&mut self, edges: &[Edge]) {
        let reserved = edges.iter().filter(|edge| edge.is_reserved);
        self.bytes_reserved -= reserved.fold(0, |sum, _| sum + SECTOR_BYTES);
        self.give_back_room();
    }
}
