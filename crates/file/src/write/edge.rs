//! [`Edge`]: a block of which a part becomes zeroes, prepared before anything changes.
//!
//! Punching, zeroing and truncating cut blocks at the edges of their range. Such a block is read,
//! and its space reserved, before the tree is edited ([`FileState::prepare_zeroes`]); making it
//! dirty afterwards cannot fail ([`FileState::finish_edges`]).
//!
//! Laws:
//!
//! 1. A prepared edge has changed nothing visible: where the operation fails, its reservation is
//!    returned.
//! 2. No block of the file is written back between preparing and finishing, because the edges
//!    record which blocks were dirty.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::units::in_memory;
use butternut_format::units::SECTOR_BYTES;
use butternut_sys::frames::Frame;
use butternut_sys::wait::Wait;
use std::ops::Range;

/// A block with its new bytes and its backing.
#[derive(Debug)]
pub(crate) struct Edge {
    start: u64,
    frame: Frame,
    backing: Backing,
    /// Space was reserved for it, as it was not dirty before.
    is_reserved: bool,
}

impl FileState {
    /// Prepares zeroes over parts of blocks, each part inside one block. Parts after the end of the
    /// file, and blocks without data, are skipped. The file will have `new_size` bytes, or extents
    /// as if it had.
    pub(crate) fn prepare_zeroes(
        &mut self,
        parts: &[Range<u64>],
        new_size: u64,
    ) -> Result<Vec<Edge>, FileError> {
        let size = self.size();
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
        self.reserve_metadata(count, count, new_size, Wait::Block)?;
        self.leave_inline(new_size, &(*first..*first + SECTOR_BYTES), Wait::Block)?;
        // All frames are allocated at once, because that may write dirty blocks back (law 2).
        let mut frames = self.frames(wanted.len(), Wait::Block)?;
        let mut edges: Vec<Edge> = Vec::new();
        for (start, part) in wanted {
            match self.prepare_edge(start, &part, new_size, &mut frames) {
                Ok(edge) => edges.push(edge),
                Err(error) => {
                    self.abandon_edges(&edges);
                    return Err(error);
                }
            }
        }
        self.prepared_edges = count;
        Ok(edges)
    }

    /// Prepares zeroes over one part of one block, without a metadata reservation, as the volume
    /// may be full. Uses one of the frames.
    pub(crate) fn prepare_edge(
        &mut self,
        start: u64,
        part: &Range<u64>,
        new_size: u64,
        frames: &mut Vec<Frame>,
    ) -> Result<Edge, FileError> {
        let mut frame = frames.pop().expect("one was found for each");
        self.read_block_to(start, &mut frame, Wait::Block)?;
        let bytes = frame.bytes_mut().expect("a new frame has one user");
        let range = in_memory(part.start - start)..in_memory(part.end - start);
        bytes.get_mut(range).expect("the part is inside the block").fill(0);
        let was_dirty = self.dirty_backing(start).is_some();
        let block = start..start + SECTOR_BYTES;
        let backings = self.choose_backing(&block, new_size, Wait::Block)?;
        let backing = *backings.first().expect("there is one block");
        let is_reserved = !was_dirty && backing == Backing::Reserved;
        Ok(Edge { start, frame, backing, is_reserved })
    }

    /// Makes the edges dirty if the operation succeeded, and drops them otherwise.
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
        self.prepared_edges = 0;
        result
    }

    /// Returns the reservations of edges that are not used (law 1).
    fn abandon_edges(&mut self, edges: &[Edge]) {
        self.prepared_edges = 0;
        let reserved = edges.iter().filter(|edge| edge.is_reserved);
        self.bytes_reserved -= reserved.fold(0, |sum, _| sum + SECTOR_BYTES);
        self.release_unused_data();
    }
}
