//! Nowait writes: writes that do not block, or are not done at all (`RWF_NOWAIT`).
//!
//! Laws:
//!
//! 1. A write that would need a device, a tree, a transaction or a lock that another thread holds
//!    for long is refused, and has changed nothing visible.
//! 2. Everything that a write needs is reserved before its first byte is copied: space for all
//!    dirty blocks, metadata space, frames, and the old contents of the blocks that it changes in
//!    part. So it is done as a whole.
//!
//! Files that may be written in place are refused: their write targets are in the trees.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::nowait::NowaitResources;
use crate::units::BLOCK;
use crate::units::in_memory;
use crate::write::{BUFFER_BYTES_MAX, DIRECT_BYTES_MIN, FILE_PENDING_MAX};
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Frames that one step of a write may allocate, besides one for each of its blocks.
const FRAMES_PER_PART: usize = 4;

impl FileState {
    /// Reserves everything that a write of `bytes` bytes needs. Returns false if it would have to
    /// block for some of it. After true, the caller writes and then calls
    /// [`Self::end_nowait_write`].
    ///
    /// # Errors
    /// The range ends past the maximum size of a file, or the volume is not open for writing.
    pub fn prepare_nowait_write(&mut self, offset: u64, bytes: usize) -> Result<bool, FileError> {
        self.check_writable()?;
        let end = self.check_end(offset, length(bytes))?;
        let blocks = offset - offset % SECTOR_BYTES..end.next_multiple_of(SECTOR_BYTES);
        // Growth may move the first block out of the tree.
        let meets_direct = [&blocks, &(0..SECTOR_BYTES)]
            .into_iter()
            .any(|blocks| self.shared.in_flight().has_writes(blocks));
        if meets_direct
            || !self.fits_without_throttling(bytes)
            || !self.is_target_known(&blocks, offset, end)
        {
            return Ok(false);
        }
        let Some(edges) = self.edges(&blocks, &(offset..end)) else { return Ok(false) };
        self.nowait.edges = edges;
        let reserved_before = self.data_reservation.bytes();
        let has_all = self.reserve_data_nowait(&blocks) && self.take_frames_nowait(&blocks) && {
            let count = (blocks.end - blocks.start) / SECTOR_BYTES;
            self.reserve_metadata_nowait(count + 1, self.size().max(end))
        };
        if !has_all {
            self.end_nowait_write();
            // The file may stay clean, and its space would then be missing elsewhere.
            let surplus = self.data_reservation.truncate(reserved_before);
            self.release(surplus);
        }
        Ok(has_all)
    }

    /// Ends a nowait write. Reserved space that it did not use is kept for the next one.
    pub fn end_nowait_write(&mut self) {
        self.nowait = NowaitResources::default();
    }

    /// Whether `bytes` more may become dirty without throttling, writeback or a merge.
    fn fits_without_throttling(&self, bytes: usize) -> bool {
        let (pages, more) = (self.source.pages(), length(bytes));
        let is_below_limits = pages.dirty_bytes() + more <= pages.limits().dirty.free_run_bytes();
        let starts_writeback = !self.source.has_flusher()
            && (bytes >= DIRECT_BYTES_MIN
                || self.source.should_write_back(self.dirty_bytes() + more));
        is_below_limits
            && !starts_writeback
            && self.shared.overlay().pending_count() < FILE_PENDING_MAX
    }

    /// Whether the blocks are known, without searching the tree, to be written to new space or
    /// inline.
    fn is_target_known(&self, blocks: &Range<u64>, offset: u64, end: u64) -> bool {
        let size = self.size();
        // For a write past the end, the last block may have to be completed with zeroes first.
        let is_closed = offset <= size || size.is_multiple_of(SECTOR_BYTES);
        !self.may_write_in_place()
            && is_closed
            && self.is_inline_decision_cached(size.max(end), blocks)
    }

    /// The blocks that are changed in part and have old contents; `None` where one is not cached.
    fn edges(&self, blocks: &Range<u64>, written: &Range<u64>) -> Option<Vec<Frame>> {
        let (size, last) = (self.size(), blocks.end - SECTOR_BYTES);
        let mut edges = Vec::new();
        for start in [blocks.start, last] {
            let is_replaced = written.start <= start && written.end >= start + SECTOR_BYTES;
            if !is_replaced && start < size {
                let (frame, _) = self.shared.pages().page(start / SECTOR_BYTES)?;
                edges.push(frame);
            }
        }
        Some(edges)
    }

    fn reserve_data_nowait(&mut self, blocks: &Range<u64>) -> bool {
        // The first block needs space too if the file becomes too large to be inline.
        let wanted = self.bytes_reserved + (blocks.end - blocks.start) + SECTOR_BYTES;
        while self.data_reservation.bytes() < wanted {
            let (forest, shortfall) =
                (self.source.forest(), wanted - self.data_reservation.bytes());
            let run = forest.allocate_data_nowait(SECTOR_BYTES, shortfall, self.cluster());
            let Some(run) = run else { return false };
            self.data_reservation.add(run);
        }
        true
    }

    fn take_frames_nowait(&mut self, blocks: &Range<u64>) -> bool {
        // Each step of the write shares a block with the next one, and allocates more frames than
        // it needs.
        let bytes = in_memory(blocks.end - blocks.start);
        let parts = bytes.div_ceil(BUFFER_BYTES_MAX) + 1;
        let wanted = bytes / BLOCK + FRAMES_PER_PART * parts;
        let pages = self.source.pages();
        self.nowait.frames.extend((0..wanted).map_while(|_| pages.frame()));
        self.nowait.frames.len() == wanted
    }
}
