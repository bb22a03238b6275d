//! Chunks: sixteen neighbouring pages of a file, and what state each is in.
//!
//! ```text
//! present      0000 1111 1101 1111    has a frame
//! dirty        0000 0000 0001 0011    newer than the disk
//! written      0000 0000 0001 1100    on its way to the disk     } subsets of present
//! transient    0000 0001 0000 0000    goes when nobody needs it  }
//! ```
//!
//! A page that is present, and neither dirty nor on its way, is clean, and has a node in the queues
//! of the replacement; no other page has one.
//!
//! It changes bits and frames; what a change means to queues and counts is `index`'s.

use crate::replacement::NodeId;
use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use crate::tag::Tag;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: u64 = 16;
const PAGES: usize = 16;
/// Reads that are counted, at most.
const HEAT_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct Chunk {
    dirty: u16,
    written: u16,
    /// Readers, who share the index, clear these: who finds a page wants it to stay.
    transient: AtomicU16,
    tags: [Tag; PAGES],
    heat: [AtomicU8; PAGES],
    nodes: [NodeId; PAGES],
    frames: [Option<Frame>; PAGES],
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    Absent,
    /// As on disk.
    Clean,
    /// Newer than the disk.
    Dirty,
    /// On its way to the disk.
    Written,
    /// On its way to the disk, and newer already than what is on its way.
    WrittenDirty,
}

impl PageState {
    /// Dirty, or on its way to the disk, or both.
    pub fn is_newer(self) -> bool {
        matches!(self, Self::Dirty | Self::Written | Self::WrittenDirty)
    }

    /// On its way to the disk, and newer than that perhaps.
    pub fn is_written(self) -> bool {
        matches!(self, Self::Written | Self::WrittenDirty)
    }

    /// Newer than the disk, and than what is on its way there.
    pub fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::WrittenDirty)
    }
}

/// A chunk's number, and a page's place in it.
pub(crate) fn split(page: u64) -> (u64, usize) {
    (page / CHUNK_PAGES, usize::try_from(page % CHUNK_PAGES).unwrap_or(0))
}

/// The places in chunk `number` that a range of pages covers.
pub(crate) fn places(number: u64, pages: &Range<u64>) -> Range<usize> {
    let start = number * CHUNK_PAGES;
    let place = |page: u64| usize::try_from(page.saturating_sub(start)).unwrap_or(PAGES);
    place(pages.start).min(PAGES)..place(pages.end).min(PAGES)
}

fn bit(place: usize) -> u16 {
    1 << place
}

/// The bits of some places.
pub(crate) fn mask(places: &Range<usize>) -> u16 {
    places.clone().fold(0, |mask, place| mask | bit(place))
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Self {
            dirty: 0,
            written: 0,
            transient: AtomicU16::new(0),
            tags: [Tag::default(); PAGES],
            heat: std::array::from_fn(|_| AtomicU8::new(0)),
            nodes: [0; PAGES],
            frames: [const { None }; PAGES],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.iter().all(Option::is_none)
    }

    pub(crate) fn state(&self, place: usize) -> PageState {
        let bit = bit(place);
        match (self.dirty & bit != 0, self.written & bit != 0) {
            (true, false) => PageState::Dirty,
            (true, true) => PageState::WrittenDirty,
            (false, true) => PageState::Written,
            (false, false) if self.frames[place].is_some() => PageState::Clean,
            (false, false) => PageState::Absent,
        }
    }

    pub(crate) fn dirty_bits(&self) -> u16 {
        self.dirty
    }

    pub(crate) fn written_bits(&self) -> u16 {
        self.written
    }

    pub(crate) fn newer_bits(&self) -> u16 {
        self.dirty | self.written
    }

    pub(crate) fn frame(&self, place: usize) -> Option<&Frame> {
        self.frames[place].as_ref()
    }

    pub(crate) fn frame_mut(&mut self, place: usize) -> Option<&mut Frame> {
        self.frames[place].as_mut()
    }

    /// Gives a page other bytes, or none.
    pub(crate) fn set_frame(&mut self, place: usize, frame: Option<Frame>) -> Option<Frame> {
        if frame.is_none() {
            *self.heat[place].get_mut() = 0;
        }
        std::mem::replace(&mut self.frames[place], frame)
    }

    pub(crate) fn tag(&self, place: usize) -> Tag {
        self.tags[place]
    }

    pub(crate) fn set_tag(&mut self, place: usize, tag: Tag) {
        self.tags[place] = tag;
    }

    pub(crate) fn node(&self, place: usize) -> NodeId {
        self.nodes[place]
    }

    pub(crate) fn set_node(&mut self, place: usize, node: NodeId) {
        self.nodes[place] = node;
    }

    pub(crate) fn set_dirty(&mut self, place: usize, is_dirty: bool) {
        self.dirty = if is_dirty { self.dirty | bit(place) } else { self.dirty & !bit(place) };
    }

    pub(crate) fn set_written(&mut self, place: usize, is_written: bool) {
        self.written =
            if is_written { self.written | bit(place) } else { self.written & !bit(place) };
    }

    pub(crate) fn is_transient(&self, place: usize) -> bool {
        self.transient.load(Ordering::Relaxed) & bit(place) != 0
    }

    pub(crate) fn set_transient(&mut self, place: usize) {
        self.transient.fetch_or(bit(place), Ordering::Relaxed);
    }

    /// Somebody wants the page to stay.
    pub(crate) fn want(&self, place: usize) {
        if self.is_transient(place) {
            self.transient.fetch_and(!bit(place), Ordering::Relaxed);
        }
    }

    /// Counts a read. It writes no memory once the count is at its end.
    pub(crate) fn warm(&self, place: usize) {
        let heat = self.heat[place].load(Ordering::Relaxed);
        if heat < HEAT_MAX {
            self.heat[place].store(heat + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn heat(&self, place: usize) -> u8 {
        self.heat[place].load(Ordering::Relaxed)
    }

    pub(crate) fn set_heat(&self, place: usize, heat: u8) {
        self.heat[place].store(heat, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_chunk() {
        assert_eq!(split(35), (2, 3));
        assert_eq!(places(2, &(35..100)), 3..16);
        assert_eq!(places(2, &(0..34)), 0..2);
        assert_eq!(places(2, &(100..u64::MAX)), 16..16);
        assert_eq!(mask(&(3..6)), 0b11_1000);
        assert_eq!((mask(&(0..16)), mask(&(4..4))), (u16::MAX, 0));
    }
}
