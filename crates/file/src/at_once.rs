//! Writes that wait for nothing, or are not done at all.
//!
//! Laws:
//!
//! 1. What would ask a device, a tree, a transaction or another's long lock for anything is
//!    refused, and has changed nothing that anybody sees.
//! 2. Everything that a write needs is in hand before its first byte is copied: room for all dirty
//!    blocks, the promise, frames, and the bytes of the blocks that it changes in part. So it is
//!    done whole.
//!
//! Files that may be written in place are refused: where their blocks go is in the trees.

use crate::error::FileError;
use crate::overlay::BLOCK;
use crate::source::in_memory;
use crate::state::FileState;
use crate::write::{BUFFER_BYTES_MAX, FILE_PATCHES_MAX};
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Frames that a part of a write may ask for, besides one for each of its blocks.
const FRAMES_PER_PART: usize = 4;

/// What a write has in hand before it begins (law 2).
#[derive(Debug, Default)]
pub(crate) struct InHand {
    /// Frames for its blocks.
    pub(crate) frames: Vec<Frame>,
    /// Of the blocks that it changes in part: as long as somebody uses them, they stay.
    edges: Vec<Frame>,
}

impl FileState {
    /// Takes hold of everything that a write of so many bytes needs, or says that it would have to
    /// wait for some of it. Who has it writes, and then lets go.
    ///
    /// # Errors
    /// A range that ends where no file may; a volume that is not open for writing.
    pub fn take_hold(&mut self, offset: u64, bytes: usize) -> Result<bool, FileError> {
        self.check_writable()?;
        let end = self.check_end(offset, length(bytes))?;
        let blocks = offset - offset % SECTOR_BYTES..end.next_multiple_of(SECTOR_BYTES);
        // Growth may have to bring the first block along.
        let meets_direct = [&blocks, &(0..SECTOR_BYTES)]
            .into_iter()
            .any(|blocks| self.live.traffic().has_writes(blocks));
        if meets_direct || !self.is_light(bytes) || !self.is_placed(&blocks, offset, end) {
            return Ok(false);
        }
        let Some(edges) = self.edges(&blocks, &(offset..end)) else { return Ok(false) };
        self.in_hand.edges = edges;
        let has_all = self.hold_room(&blocks) && self.hold_frames(&blocks) && {
            let count = (blocks.end - blocks.start) / SECTOR_BYTES;
            self.promise_at_once(count + 1, self.size().max(end))
        };
        if !has_all {
            self.let_go();
        }
        Ok(has_all)
    }

    /// The write is over. What it did not need of room is for the next.
    pub fn let_go(&mut self) {
        self.in_hand = InHand::default();
    }

    /// So many bytes more may be dirty without anybody pausing, and without anything going down.
    fn is_light(&self, bytes: usize) -> bool {
        let (pages, more) = (self.source.pages(), length(bytes));
        let is_calm = pages.dirty_bytes() + more <= pages.limits().dirty.free_run_bytes();
        let goes_down = !self.source.has_flusher()
            && (bytes > BUFFER_BYTES_MAX || self.source.wants_flush(self.dirty_bytes() + more));
        is_calm && !goes_down && self.live.overlay().patch_count() < FILE_PATCHES_MAX
    }

    /// It is known without the tree that the blocks go to new space, or into the tree.
    fn is_placed(&self, blocks: &Range<u64>, offset: u64, end: u64) -> bool {
        let size = self.size();
        // Behind the end, the last block may have to be made zeroes first.
        let is_closed = offset <= size || size.is_multiple_of(SECTOR_BYTES);
        !self.may_be_in_place() && is_closed && self.knows_smallness(size.max(end), blocks)
    }

    /// The blocks that are changed in part and hold something; `None` where one would have to be
    /// read.
    fn edges(&self, blocks: &Range<u64>, written: &Range<u64>) -> Option<Vec<Frame>> {
        let (size, last) = (self.size(), blocks.end - SECTOR_BYTES);
        let mut edges = Vec::new();
        for start in [blocks.start, last] {
            let is_replaced = written.start <= start && written.end >= start + SECTOR_BYTES;
            if !is_replaced && start < size {
                let (frame, _) = self.live.pages().page(start / SECTOR_BYTES)?;
                edges.push(frame);
            }
        }
        Some(edges)
    }

    fn hold_room(&mut self, blocks: &Range<u64>) -> bool {
        // The first block may come along, if the file outgrows the tree.
        let wanted = self.bytes_reserved + (blocks.end - blocks.start) + SECTOR_BYTES;
        while self.room.bytes() < wanted {
            let (forest, lack) = (self.source.forest(), wanted - self.room.bytes());
            let run = forest.allocate_data_at_once(SECTOR_BYTES, lack, self.cluster());
            let Some(run) = run else { return false };
            self.room.add(run);
        }
        true
    }

    fn hold_frames(&mut self, blocks: &Range<u64>) -> bool {
        // Each part of the write shares a block with the next, and asks for more than it needs.
        let bytes = in_memory(blocks.end - blocks.start);
        let parts = bytes.div_ceil(BUFFER_BYTES_MAX) + 1;
        let wanted = bytes / BLOCK + FRAMES_PER_PART * parts;
        let pages = self.source.pages();
        self.in_hand.frames.extend((0..wanted).map_while(|_| pages.frame()));
        self.in_hand.frames.len() == wanted
    }
}
