//! Page groups: sixteen neighbouring pages of a file, and the state of each.
//!
//! ```text
//! present      0000 1111 1101 1111    has a frame
//! dirty        0000 0000 0001 0011    newer than the disk        } subsets
//! writeback    0000 0000 0001 1100    under writeback            } of
//! drop-behind  0000 0001 0000 0000    uncached, see `CacheMode`  } present
//! ```
//!
//! A page that is present, and neither dirty nor under writeback, is clean. Each clean page has a
//! node in the replacement queues; no other page has one.
//!
//! A group only stores bits and frames. `index` keeps the counts and the replacement queues in step
//! with them.

use crate::replacement::NodeId;
use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use crate::tag::Tag;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Pages in a group.
pub(crate) const GROUP_PAGES: u64 = 16;
const PAGES: usize = 16;
/// Highest access count that is kept for a page.
const ACCESSES_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct PageGroup {
    dirty: u16,
    writeback: u16,
    /// Atomic because cached readers, which only share the index lock, clear these bits.
    dropbehind: AtomicU16,
    tags: [Tag; PAGES],
    accesses: [AtomicU8; PAGES],
    nodes: [NodeId; PAGES],
    frames: [Option<Frame>; PAGES],
}

/// State of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// The cache has no frame for it.
    Absent,
    /// Equal to the disk.
    Clean,
    /// Newer than the disk.
    Dirty,
    /// Under writeback: its bytes are being written to the disk.
    Writeback,
    /// Under writeback, and written to since the writeback began.
    WritebackDirty,
}

impl PageState {
    /// Returns whether the page is newer than the disk: dirty, under writeback, or both.
    pub fn is_newer(self) -> bool {
        matches!(self, Self::Dirty | Self::Writeback | Self::WritebackDirty)
    }

    /// Returns whether the page is under writeback, dirty again or not.
    pub fn is_under_writeback(self) -> bool {
        matches!(self, Self::Writeback | Self::WritebackDirty)
    }

    /// Returns whether the page has bytes that no writeback has begun to write.
    pub fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::WritebackDirty)
    }
}

/// Returns the number of the group that contains a page, and the slot of the page in it.
pub(crate) fn locate(page: u64) -> (u64, usize) {
    (page / GROUP_PAGES, usize::try_from(page % GROUP_PAGES).unwrap_or(0))
}

/// Returns the slots of group `number` that a range of pages covers.
pub(crate) fn slots(number: u64, pages: &Range<u64>) -> Range<usize> {
    let start = number * GROUP_PAGES;
    let slot = |page: u64| usize::try_from(page.saturating_sub(start)).unwrap_or(PAGES);
    slot(pages.start).min(PAGES)..slot(pages.end).min(PAGES)
}

fn bit(slot: usize) -> u16 {
    1 << slot
}

/// Returns a mask with the bits of these slots set.
pub(crate) fn mask(slots: &Range<usize>) -> u16 {
    slots.clone().fold(0, |mask, slot| mask | bit(slot))
}

impl PageGroup {
    pub(crate) fn new() -> Self {
        Self {
            dirty: 0,
            writeback: 0,
            dropbehind: AtomicU16::new(0),
            tags: [Tag::default(); PAGES],
            accesses: std::array::from_fn(|_| AtomicU8::new(0)),
            nodes: [0; PAGES],
            frames: [const { None }; PAGES],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.iter().all(Option::is_none)
    }

    pub(crate) fn state(&self, slot: usize) -> PageState {
        let bit = bit(slot);
        match (self.dirty & bit != 0, self.writeback & bit != 0) {
            (true, false) => PageState::Dirty,
            (true, true) => PageState::WritebackDirty,
            (false, true) => PageState::Writeback,
            (false, false) if self.frames[slot].is_some() => PageState::Clean,
            (false, false) => PageState::Absent,
        }
    }

    pub(crate) fn dirty_bits(&self) -> u16 {
        self.dirty
    }

    pub(crate) fn writeback_bits(&self) -> u16 {
        self.writeback
    }

    pub(crate) fn newer_bits(&self) -> u16 {
        self.dirty | self.writeback
    }

    pub(crate) fn frame(&self, slot: usize) -> Option<&Frame> {
        self.frames[slot].as_ref()
    }

    pub(crate) fn frame_mut(&mut self, slot: usize) -> Option<&mut Frame> {
        self.frames[slot].as_mut()
    }

    /// Replaces or removes the frame of a page. Removing it resets the access count.
    pub(crate) fn set_frame(&mut self, slot: usize, frame: Option<Frame>) -> Option<Frame> {
        if frame.is_none() {
            *self.accesses[slot].get_mut() = 0;
        }
        std::mem::replace(&mut self.frames[slot], frame)
    }

    pub(crate) fn tag(&self, slot: usize) -> Tag {
        self.tags[slot]
    }

    pub(crate) fn set_tag(&mut self, slot: usize, tag: Tag) {
        self.tags[slot] = tag;
    }

    pub(crate) fn node(&self, slot: usize) -> NodeId {
        self.nodes[slot]
    }

    pub(crate) fn set_node(&mut self, slot: usize, node: NodeId) {
        self.nodes[slot] = node;
    }

    pub(crate) fn set_dirty(&mut self, slot: usize, is_dirty: bool) {
        self.dirty = if is_dirty { self.dirty | bit(slot) } else { self.dirty & !bit(slot) };
    }

    pub(crate) fn set_writeback(&mut self, slot: usize, is_under_writeback: bool) {
        self.writeback = if is_under_writeback {
            self.writeback | bit(slot)
        } else {
            self.writeback & !bit(slot)
        };
    }

    pub(crate) fn is_dropbehind(&self, slot: usize) -> bool {
        self.dropbehind.load(Ordering::Relaxed) & bit(slot) != 0
    }

    /// Whether the page can be dropped after its use: no thread has its frame.
    pub(crate) fn drops_behind(&self, slot: usize) -> bool {
        self.is_dropbehind(slot) && !self.frame(slot).is_some_and(Frame::is_shared)
    }

    pub(crate) fn set_dropbehind(&mut self, slot: usize) {
        self.dropbehind.fetch_or(bit(slot), Ordering::Relaxed);
    }

    /// Keeps the page in the cache after its use, because a cached read or write has used it.
    pub(crate) fn clear_dropbehind(&self, slot: usize) {
        if self.is_dropbehind(slot) {
            self.dropbehind.fetch_and(!bit(slot), Ordering::Relaxed);
        }
    }

    /// Counts a read. Writes no memory once the count has reached its maximum, so that readers of
    /// a hot page do not contend for its cache line.
    pub(crate) fn count_access(&self, slot: usize) {
        let accesses = self.accesses[slot].load(Ordering::Relaxed);
        if accesses < ACCESSES_MAX {
            self.accesses[slot].store(accesses + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn accesses(&self, slot: usize) -> u8 {
        self.accesses[slot].load(Ordering::Relaxed)
    }

    pub(crate) fn set_accesses(&self, slot: usize, accesses: u8) {
        self.accesses[slot].store(accesses, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_masks_match_the_group() {
        assert_eq!(locate(35), (2, 3));
        assert_eq!(slots(2, &(35..100)), 3..16);
        assert_eq!(slots(2, &(0..34)), 0..2);
        assert_eq!(slots(2, &(100..u64::MAX)), 16..16);
        assert_eq!(mask(&(3..6)), 0b11_1000);
        assert_eq!((mask(&(0..16)), mask(&(4..4))), (u16::MAX, 0));
    }
}
