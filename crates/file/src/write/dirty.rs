//! Dirty blocks: pages of the page cache that are newer than the disk, and where each will be
//! written.
//!
//! Laws:
//!
//! 1. A block that becomes dirty has space reserved for it, or needs none. A block under writeback
//!    has taken its space along: when it is written to meanwhile, it needs space again.
//! 2. Memory is allocated before a block is changed, so a write that fails for lack of memory has
//!    changed nothing.
//! 3. No block becomes dirty while a direct write of it is in flight (law 4 of
//!    [`crate::in_flight`]): callers have waited for those writes.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::units::BLOCK;
use crate::units::pages_of;
use crate::wait::may_block;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_pages::{PageWrite, WritebackReason, WritebackResult};
use butternut_sys::frames::Frame;
use butternut_sys::wait::Wait;
use std::ops::Range;

impl FileState {
    /// The block at `start` and its backing, if it is dirty or under writeback.
    pub(crate) fn newer_block(&self, start: u64) -> Option<(Frame, Backing)> {
        let (frame, tag) = self.shared.pages().newer_frame(start / SECTOR_BYTES)?;
        Some((frame, Backing::of(tag)))
    }

    /// Whether the block at `start` is dirty or under writeback.
    pub(crate) fn is_newer(&self, start: u64) -> bool {
        self.shared.pages().state(start / SECTOR_BYTES).is_newer()
    }

    /// The backing of the block at `start`, if it is dirty, also while an earlier version of it is
    /// under writeback.
    pub(crate) fn dirty_backing(&self, start: u64) -> Option<Backing> {
        let (_, tag) = self.shared.pages().page(start / SECTOR_BYTES)?;
        tag.map(Backing::of)
    }

    /// Allocates memory for some blocks (law 2). Writes the file back if all pages are dirty.
    pub(crate) fn frames(&mut self, count: usize, wait: Wait) -> Result<Vec<Frame>, FileError> {
        let mut frames = Vec::with_capacity(count);
        while frames.len() < count {
            if let Some(frame) = self.source.pages().frame() {
                frames.push(frame);
                continue;
            }
            may_block(wait)?;
            // All pages are dirty: the file writes its own back.
            let dirty = self.shared.pages().dirty_pages();
            self.write_back().ok();
            if self.shared.pages().dirty_pages() >= dirty {
                return Err(FileError::NoMemory { tree: self.tree_id(), ino: self.ino() });
            }
        }
        Ok(frames)
    }

    /// Replaces all bytes of a block. Its space, if it needs any, is reserved.
    pub(crate) fn put_block(&mut self, start: u64, frame: Frame, backing: Backing) {
        let (page, stay) = (start / SECTOR_BYTES, self.stay);
        self.assert_no_direct_write(start);
        self.shared.bump_data_version();
        self.shared.pages().change().write_page(page, frame, backing.tag(), stay);
    }

    /// Writes into a block whose backing is chosen. `base` is its old contents, if it is not
    /// cached; without it, the block is read. Uses one of the frames, if it needs any.
    pub(crate) fn write_block(
        &mut self,
        at: u64,
        bytes: &[u8],
        backing: Backing,
        base: Option<Frame>,
        (frames, wait): (&mut Vec<Frame>, Wait),
    ) -> Result<(), FileError> {
        let (page, skip) = (at / SECTOR_BYTES, crate::units::in_memory(at % SECTOR_BYTES));
        self.assert_no_direct_write(page * SECTOR_BYTES);
        let mut spare = frames.pop();
        let how = (backing.tag(), self.stay);
        let written = self.shared.pages().change().write_bytes(page, skip, bytes, &mut spare, how);
        if written == PageWrite::Done {
            frames.extend(spare);
            return Ok(());
        }
        let start = page * SECTOR_BYTES;
        let mut frame = if let Some(base) = base {
            base
        } else {
            // No other frame is allocated here: that could write back the file, and the backings of
            // the blocks that follow would no longer be true.
            let mut spare = spare.expect("callers bring a frame for each block");
            if bytes.len() < BLOCK {
                self.read_block_to(start, &mut spare, wait)?;
            }
            spare
        };
        let place = frame.bytes_mut().and_then(|all| all.get_mut(skip..skip + bytes.len()));
        place.expect("a new frame has one user, and a block's length").copy_from_slice(bytes);
        self.put_block(start, frame, backing);
        Ok(())
    }

    /// Checks law 3.
    fn assert_no_direct_write(&self, start: u64) {
        let blocks = start..start + SECTOR_BYTES;
        debug_assert!(!self.shared.in_flight().has_writes(&blocks), "block {start}: law 3");
    }

    /// Drops the cached pages of a range, clean and dirty. The space of dirty blocks stays in the
    /// reservation, but is not needed any more.
    pub(crate) fn invalidate_pages(&mut self, range: &Range<u64>) {
        let pages = pages_of(range);
        let before = self.bytes_reserved_in(&pages);
        self.shared.pages().invalidate(&pages);
        self.bytes_reserved -= before;
    }

    /// Reserved bytes that dirty blocks of these pages need.
    pub(crate) fn bytes_reserved_in(&self, pages: &Range<u64>) -> u64 {
        let change = self.shared.pages().change();
        let reserved =
            change.dirty(pages.clone()).filter(|(.., tag)| Backing::of(*tag).is_reserved());
        length(reserved.count()) * SECTOR_BYTES
    }

    /// Marks the first block clean: it is in the tree now.
    pub(crate) fn finish_inline(&mut self) {
        let (first, tags) = (0..1, Backing::inline_tags());
        let before = self.bytes_reserved_in(&first);
        let blocks = self.shared.pages().begin_writeback(&first, 1, tags, WritebackReason::Sync);
        for block in blocks {
            block.end(WritebackResult::Written);
        }
        self.bytes_reserved -= before - self.bytes_reserved_in(&first);
        self.release_unused_data();
    }

    /// Changes where a dirty block will be written.
    pub(crate) fn set_backing(&mut self, start: u64, backing: Backing) {
        self.shared.pages().change().set_tag(start / SECTOR_BYTES, backing.tag());
    }
}
