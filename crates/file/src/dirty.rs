//! Dirty blocks: pages of the cache that are newer than the disk, and the way each has to its
//! space.
//!
//! Laws:
//!
//! 1. A block that becomes dirty has space held for it, or needs none of its own. What is on its
//!    way down has taken its space with it: written to meanwhile, it needs space again.
//! 2. Memory is found before a block is changed: what fails for want of it has changed nothing.
//! 3. No block becomes dirty while a direct write of it is in flight (law 4 of
//!    [`crate::traffic`]): callers have waited for that.

use crate::error::FileError;
use crate::overlay::BLOCK;
use crate::state::FileState;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_pages::{Landing, Patched, Reason, Tag, Tags};
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Where a dirty block will find its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Held for it already.
    Reserved,
    /// Where the file has it.
    InPlace,
    /// In the tree: the file is small.
    Inline,
}

impl Backing {
    /// As the cache knows it.
    pub(crate) fn tag(self) -> Tag {
        let [reserved, in_place, inline, _] = Tag::ALL;
        match self {
            Self::Reserved => reserved,
            Self::InPlace => in_place,
            Self::Inline => inline,
        }
    }

    pub(crate) fn of(tag: Tag) -> Self {
        let known = [Self::Reserved, Self::InPlace, Self::Inline];
        known.into_iter().find(|backing| backing.tag() == tag).unwrap_or(Self::Reserved)
    }

    /// Those that go down by themselves.
    pub(crate) fn flushable() -> Tags {
        Tags::NONE.with(Self::Reserved.tag()).with(Self::InPlace.tag())
    }
}

/// The pages of some blocks.
pub(crate) fn pages_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / SECTOR_BYTES..blocks.end.div_ceil(SECTOR_BYTES)
}

impl FileState {
    /// The block at `start`, if it is newer than the disk, and its way to its space.
    pub(crate) fn newer_block(&self, start: u64) -> Option<(Frame, Backing)> {
        let (frame, tag) = self.live.pages().newer(start / SECTOR_BYTES)?;
        Some((frame, Backing::of(tag)))
    }

    /// Whether the block at `start` is newer than the disk.
    pub(crate) fn is_newer(&self, start: u64) -> bool {
        self.live.pages().state(start / SECTOR_BYTES).is_newer()
    }

    /// Whether the block at `start` is newer than whatever is on its way down, and how.
    pub(crate) fn dirty_backing(&self, start: u64) -> Option<Backing> {
        let (_, tag) = self.live.pages().page(start / SECTOR_BYTES)?;
        tag.map(Backing::of)
    }

    /// Memory for some blocks (law 2).
    pub(crate) fn frames(&mut self, count: usize) -> Result<Vec<Frame>, FileError> {
        let spares = &mut self.in_hand.frames;
        let mut frames = spares.split_off(spares.len().saturating_sub(count));
        while frames.len() < count {
            if let Some(frame) = self.source.pages().frame() {
                frames.push(frame);
                continue;
            }
            // Everything is dirty: what is ours goes down.
            let dirty = self.live.pages().dirty_pages();
            self.flush().ok();
            if self.live.pages().dirty_pages() >= dirty {
                return Err(FileError::NoMemory { tree: self.tree_id(), ino: self.ino() });
            }
        }
        Ok(frames)
    }

    /// Gives a block all of its bytes. Its room, if it wants any, is reserved.
    pub(crate) fn put_block(&mut self, start: u64, frame: Frame, backing: Backing) {
        let (page, stay) = (start / SECTOR_BYTES, self.stay);
        self.assert_no_direct_write(start);
        self.live.touch();
        self.live.pages().change().put(page, frame, backing.tag(), stay);
    }

    /// Writes into a block that is backed. `base` is what it holds, if it is not in memory; else
    /// it is read. Uses one of the frames, if it needs any.
    pub(crate) fn write_block(
        &mut self,
        at: u64,
        bytes: &[u8],
        backing: Backing,
        base: Option<Frame>,
        frames: &mut Vec<Frame>,
    ) -> Result<(), FileError> {
        let (page, skip) = (at / SECTOR_BYTES, crate::source::in_memory(at % SECTOR_BYTES));
        self.assert_no_direct_write(page * SECTOR_BYTES);
        let mut spare = frames.pop();
        let how = (backing.tag(), self.stay);
        let patched = self.live.pages().change().patch(page, skip, bytes, &mut spare, how);
        if patched == Patched::Done {
            frames.extend(spare);
            return Ok(());
        }
        let start = page * SECTOR_BYTES;
        let mut frame = match base {
            Some(base) => base,
            None if bytes.len() < BLOCK => self.read_block(start)?,
            None => match spare {
                Some(spare) => spare,
                None => self.frames(1)?.pop().expect("one was found"),
            },
        };
        let place = frame.bytes_mut().and_then(|all| all.get_mut(skip..skip + bytes.len()));
        place.expect("a new frame has one user, and a block's length").copy_from_slice(bytes);
        self.put_block(start, frame, backing);
        Ok(())
    }

    /// Law 3.
    fn assert_no_direct_write(&self, start: u64) {
        let blocks = start..start + SECTOR_BYTES;
        debug_assert!(!self.live.traffic().has_writes(&blocks), "block {start}: law 3");
    }

    /// Forgets what memory has of a range, clean and dirty; the room of dirty blocks is no longer
    /// counted on.
    pub(crate) fn forget_pages(&mut self, range: &Range<u64>) {
        let pages = pages_of(range);
        let before = self.bytes_reserved_in(&pages);
        self.live.pages().invalidate(&pages);
        self.bytes_reserved -= before;
    }

    /// Room that dirty blocks of these pages count on.
    pub(crate) fn bytes_reserved_in(&self, pages: &Range<u64>) -> u64 {
        let change = self.live.pages().change();
        let reserved =
            change.dirty(pages.clone()).filter(|(.., tag)| *tag == Backing::Reserved.tag());
        length(reserved.count()) * SECTOR_BYTES
    }

    /// The first block is in the tree now.
    pub(crate) fn settle_inline(&mut self) {
        let tags = Tags::NONE.with(Backing::Inline.tag());
        let first = self.live.pages().begin_writeback(&(0..1), 1, tags, Reason::Sync);
        for block in first {
            block.end(Landing::Written);
        }
    }

    /// A dirty block will find its space elsewhere than was thought.
    pub(crate) fn back_with(&mut self, start: u64, backing: Backing) {
        self.live.pages().change().set_tag(start / SECTOR_BYTES, backing.tag());
    }
}
