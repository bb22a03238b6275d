//! The index of a file's pages: sorted chunks, and every step that a page takes.
//!
//! ```text
//! Absent --insert--> Clean --write--> Dirty --begin--> Written --end--> Clean, or Absent
//!                      \--remove--> Absent  <--remove-- /  \--write--> WrittenDirty --end--> Dirty
//! ```
//!
//! Laws:
//!
//! 1. Each step keeps the counts of the file and of the cache, and the queues of the replacement,
//!    in step: `pages`, `dirty` and `written` are those that the chunks say.
//! 2. A page on its way to the disk is not removed, and its bytes do not change: who writes to it
//!    gets another frame.
//! 3. A page that is being read is not inserted any more once it was written to or invalidated.
//! 4. No chunk is empty. Those with pages that are newer than the disk are known by number.

use crate::cache::Books;
use crate::chunk::{CHUNK_PAGES, Chunk, PageState, mask, places, split};
use crate::counters::add;
use crate::filling::Fillings;
use crate::tag::{Tag, Tags};
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Whether a page stays when nobody needs it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until it is evicted.
    Cached,
    /// Not at all: it goes when it was copied, or is down. A page that others brought stays.
    Uncached,
}

/// How a page's way to the disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It is down.
    Written,
    /// It will never be: it goes, unless it was written to meanwhile.
    Lost,
    /// It is to be tried again.
    Again,
}

/// Neighbouring pages with one tag, on their way down.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) tag: Tag,
    pub(crate) frames: Vec<Frame>,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    chunks: BTreeMap<u64, Box<Chunk>>,
    /// Chunks with dirty pages, or such as are on their way (law 4).
    newer_chunks: BTreeSet<u64>,
    pub(crate) fillings: Fillings,
    pub(crate) pages: usize,
    pub(crate) dirty: usize,
    pub(crate) written: usize,
    /// Either, or both at once.
    pub(crate) newer: usize,
    /// The place in the list of dirty files.
    pub(crate) listed: Option<u64>,
}

impl Index {
    pub(crate) fn find(&self, page: u64) -> Option<(&Chunk, usize)> {
        let (number, place) = split(page);
        self.chunks.get(&number).map(|chunk| (&**chunk, place))
    }

    pub(crate) fn state(&self, page: u64) -> PageState {
        self.find(page).map_or(PageState::Absent, |(chunk, place)| chunk.state(place))
    }

    /// The first page of a range that is there, or that is not.
    pub(crate) fn next(&self, pages: Range<u64>, is_there: bool) -> Option<u64> {
        let mut page = pages.start;
        while page < pages.end {
            let (number, place) = split(page);
            match self.chunks.get(&number) {
                Some(chunk) if chunk.frame(place).is_some() == is_there => return Some(page),
                Some(_) => page += 1,
                None if !is_there => return Some(page),
                None => page = self.chunks.range(number..).next()?.0 * CHUNK_PAGES,
            }
        }
        None
    }

    /// The first page of a range that is newer than the disk, of those that the bits say.
    fn next_by(&self, pages: &Range<u64>, bits: impl Fn(&Chunk) -> u16) -> Option<u64> {
        if pages.is_empty() {
            return None;
        }
        let numbers = split(pages.start).0..=split(pages.end - 1).0;
        self.newer_chunks.range(numbers).find_map(|number| {
            let chunk = self.chunks.get(number)?;
            let found = bits(chunk) & mask(&places(*number, pages));
            (found != 0).then(|| number * CHUNK_PAGES + u64::from(found.trailing_zeros()))
        })
    }

    pub(crate) fn next_dirty(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, Chunk::dirty_bits)
    }

    pub(crate) fn next_written(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, Chunk::written_bits)
    }

    pub(crate) fn next_newer(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, Chunk::newer_bits)
    }

    pub(crate) fn last_newer(&self) -> Option<u64> {
        let number = self.newer_chunks.last()?;
        let bits = self.chunks.get(number)?.newer_bits();
        Some(number * CHUNK_PAGES + u64::from(bits.ilog2()))
    }

    /// A page became newer than the disk, or is not any more.
    fn note_newer(&mut self, page: u64, was_newer: bool) {
        let (number, place) = split(page);
        let chunk = self.chunks.get(&number);
        let is_newer = chunk.is_some_and(|chunk| chunk.state(place).is_newer());
        self.newer = self.newer + usize::from(is_newer) - usize::from(was_newer);
        if chunk.is_some_and(|chunk| chunk.newer_bits() != 0) {
            self.newer_chunks.insert(number);
        } else {
            self.newer_chunks.remove(&number);
        }
    }

    /// Brings a page in that was read. It is absent.
    pub(crate) fn insert(&mut self, books: &mut Books<'_>, page: u64, frame: Frame, stay: Stay) {
        debug_assert_eq!(self.state(page), PageState::Absent, "a page is read when it is absent");
        let node = books.admit(page, 0);
        let (chunk, place) = self.chunk(books, page);
        chunk.set_frame(place, Some(frame));
        chunk.set_node(place, node);
        if stay == Stay::Uncached {
            chunk.set_transient(place);
        }
        self.pages += 1;
        books.came();
    }

    /// Gives a page these bytes, newer than the disk.
    pub(crate) fn put(
        &mut self,
        books: &mut Books<'_>,
        page: u64,
        frame: Frame,
        tag: Tag,
        stay: Stay,
    ) {
        if self.state(page) == PageState::Absent {
            let (chunk, place) = self.chunk(books, page);
            chunk.set_frame(place, Some(frame));
            chunk.set_dirty(place, true);
            chunk.set_tag(place, tag);
            if stay == Stay::Uncached {
                chunk.set_transient(place);
            }
            self.pages += 1;
            self.dirty += 1;
            self.note_newer(page, false);
            books.came();
            books.core().counters.dirty.add(1);
            self.fillings.spoil(&(page..page + 1));
            return;
        }
        self.mark_dirty(books, page, tag, stay);
        let (chunk, place) = self.chunk(books, page);
        chunk.set_frame(place, Some(frame));
    }

    /// Writes into a page that is there. Where its bytes are in use, `spare` becomes its frame. A
    /// page that is dirty already keeps its tag.
    pub(crate) fn patch(
        &mut self,
        books: &mut Books<'_>,
        page: u64,
        (skip, bytes): (usize, &[u8]),
        spare: &mut Option<Frame>,
        (tag, stay): (Tag, Stay),
    ) -> Patched {
        let (number, place) = split(page);
        let Some(chunk) = self.chunks.get_mut(&number) else { return Patched::Absent };
        let Some(frame) = chunk.frame_mut(place) else { return Patched::Absent };
        if frame.is_shared() {
            let Some(mut other) = spare.take() else { return Patched::NoFrame };
            if bytes.len() < FRAME_BYTES
                && let Some(copy) = other.bytes_mut()
            {
                copy.copy_from_slice(frame);
            }
            *frame = other;
        }
        // Nobody can become a user while the index is held alone.
        let target = frame.bytes_mut().and_then(|all| all.get_mut(skip..skip + bytes.len()));
        target
            .expect("a write lies in its page, and the frame is this page's")
            .copy_from_slice(bytes);
        self.mark_dirty(books, page, tag, stay);
        Patched::Done
    }

    /// A page that is there is newer than the disk from now on. A page that was dirty already keeps
    /// its tag.
    fn mark_dirty(&mut self, books: &mut Books<'_>, page: u64, tag: Tag, stay: Stay) {
        let (chunk, place) = self.chunk(books, page);
        if stay == Stay::Cached {
            chunk.want(place);
        }
        let (was, node) = (chunk.state(place), chunk.node(place));
        debug_assert_ne!(was, PageState::Absent, "only what is there is marked");
        if matches!(was, PageState::Dirty | PageState::WrittenDirty) {
            return;
        }
        chunk.set_dirty(place, true);
        chunk.set_tag(place, tag);
        self.dirty += 1;
        self.note_newer(page, was.is_newer());
        books.core().counters.dirty.add(1);
        match was {
            PageState::Clean => books.forget(node),
            PageState::Absent | PageState::Written | PageState::Dirty | PageState::WrittenDirty => {
                add(&books.core().counters.redirtied, 1);
            }
        }
    }

    pub(crate) fn set_tag(&mut self, page: u64, tag: Tag) {
        let (number, place) = split(page);
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.set_tag(place, tag);
        }
    }

    /// Forgets pages that are not on their way to the disk (law 2), and what was being read.
    pub(crate) fn remove(&mut self, books: &mut Books<'_>, pages: &Range<u64>) -> usize {
        self.fillings.spoil(pages);
        let mut removed = 0;
        self.each(books, pages, |index, books, page| {
            removed += usize::from(index.remove_one(books, page));
        });
        removed
    }

    /// The same for clean pages alone.
    pub(crate) fn remove_clean(&mut self, books: &mut Books<'_>, pages: &Range<u64>) {
        self.fillings.spoil(pages);
        self.each(books, pages, |index, books, page| {
            if index.state(page) == PageState::Clean {
                index.remove_one(books, page);
            }
        });
    }

    /// The same for clean pages that nobody wants to stay.
    pub(crate) fn remove_transient(&mut self, books: &mut Books<'_>, pages: &Range<u64>) -> usize {
        let mut removed = 0;
        self.each(books, pages, |index, books, page| {
            let is_transient = index.find(page).is_some_and(|(chunk, place)| {
                chunk.is_transient(place) && chunk.state(place) == PageState::Clean
            });
            removed += usize::from(is_transient && index.remove_one(books, page));
        });
        add(&books.core().counters.dropped_behind, removed);
        removed
    }

    /// Forgets a page, if it is there and not on its way to the disk.
    pub(crate) fn remove_one(&mut self, books: &mut Books<'_>, page: u64) -> bool {
        let (number, place) = split(page);
        let Some(chunk) = self.chunks.get_mut(&number) else { return false };
        match chunk.state(place) {
            PageState::Absent | PageState::Written | PageState::WrittenDirty => return false,
            PageState::Clean => books.forget(chunk.node(place)),
            PageState::Dirty => {
                self.dirty -= 1;
                chunk.set_dirty(place, false);
                self.note_newer(page, true);
                books.core().counters.dirty.subtract(1);
            }
        }
        self.vacate(books, page);
        true
    }

    /// The page has no frame any more. Its node is gone, or it had none.
    pub(crate) fn vacate(&mut self, books: &mut Books<'_>, page: u64) {
        let (number, place) = split(page);
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        debug_assert!(!chunk.state(place).is_newer(), "what is newer is counted");
        chunk.want(place);
        chunk.set_frame(place, None);
        self.pages -= 1;
        books.went();
        if chunk.is_empty()
            && let Some(chunk) = self.chunks.remove(&number)
        {
            books.core().keep_chunk(chunk);
        }
    }

    /// Sends dirty pages on their way, at most `pages_max` and of these tags; pages that are on
    /// their way already stay dirty.
    pub(crate) fn begin(
        &mut self,
        books: &mut Books<'_>,
        pages: &Range<u64>,
        pages_max: usize,
        tags: Tags,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut left = pages_max.min(self.dirty);
        let mut from = pages.start;
        while left > 0 {
            let waiting = |chunk: &Chunk| chunk.dirty_bits() & !chunk.written_bits();
            let Some(page) = self.next_by(&(from..pages.end), waiting) else { break };
            from = page + 1;
            let (number, place) = split(page);
            let Some(chunk) = self.chunks.get_mut(&number) else { break };
            let tag = chunk.tag(place);
            let Some(frame) = chunk.frame(place).filter(|_| tags.contains(tag)).cloned() else {
                continue;
            };
            chunk.set_dirty(place, false);
            chunk.set_written(place, true);
            self.dirty -= 1;
            self.written += 1;
            left -= 1;
            books.core().counters.dirty.subtract(1);
            books.core().counters.written.add(1);
            match runs.last_mut() {
                Some(run) if run.tag == tag && run.end() == page => run.frames.push(frame),
                _ => runs.push(Run { first: page, tag, frames: vec![frame] }),
            }
        }
        runs
    }

    /// Ends the way of pages that were sent.
    pub(crate) fn end(&mut self, books: &mut Books<'_>, pages: &Range<u64>, landing: Landing) {
        let mut dropped = 0;
        self.each(books, pages, |index, books, page| {
            dropped += usize::from(index.end_one(books, page, landing));
        });
        add(&books.core().counters.dropped_behind, dropped);
    }

    /// Says whether the page went because nobody wants it.
    fn end_one(&mut self, books: &mut Books<'_>, page: u64, landing: Landing) -> bool {
        let (number, place) = split(page);
        let Some(chunk) = self.chunks.get_mut(&number) else { return false };
        let was = chunk.state(place);
        if !matches!(was, PageState::Written | PageState::WrittenDirty) {
            return false;
        }
        chunk.set_written(place, false);
        if landing == Landing::Again && was == PageState::Written {
            chunk.set_dirty(place, true);
        }
        let (is_transient, heat) = (chunk.is_transient(place), chunk.heat(place));
        self.note_newer(page, true);
        self.written -= 1;
        books.core().counters.written.subtract(1);
        if landing == Landing::Lost {
            add(&books.core().counters.lost, 1);
        }
        if was == PageState::WrittenDirty {
            return false;
        }
        match landing {
            Landing::Again => {
                self.dirty += 1;
                books.core().counters.dirty.add(1);
                false
            }
            Landing::Lost => {
                self.vacate(books, page);
                false
            }
            Landing::Written if is_transient => {
                self.vacate(books, page);
                true
            }
            Landing::Written => {
                let node = books.admit(page, heat);
                let (chunk, place) = self.chunk(books, page);
                chunk.set_node(place, node);
                false
            }
        }
    }

    /// Every page of a range that is there.
    fn each(
        &mut self,
        books: &mut Books<'_>,
        pages: &Range<u64>,
        mut step: impl FnMut(&mut Self, &mut Books<'_>, u64),
    ) {
        let mut from = pages.start;
        while let Some(page) = self.next(from..pages.end, true) {
            step(self, books, page);
            from = page + 1;
        }
    }

    fn chunk(&mut self, books: &Books<'_>, page: u64) -> (&mut Chunk, usize) {
        let (number, place) = split(page);
        let chunk = self.chunks.entry(number).or_insert_with(|| books.core().take_chunk());
        (chunk, place)
    }

    /// Panics unless laws 1 and 4 hold.
    pub(crate) fn check(&self) {
        let count = |is: fn(PageState) -> bool| {
            let places = || 0..usize::try_from(CHUNK_PAGES).unwrap_or(0);
            let states = |chunk: &Chunk| places().filter(|place| is(chunk.state(*place))).count();
            self.chunks.values().map(|chunk| states(chunk)).sum::<usize>()
        };
        assert_eq!(self.pages, count(|state| state != PageState::Absent), "law 1: pages");
        let is_dirty = |state| matches!(state, PageState::Dirty | PageState::WrittenDirty);
        assert_eq!(self.dirty, count(is_dirty), "law 1: dirty");
        let is_written = |state| matches!(state, PageState::Written | PageState::WrittenDirty);
        assert_eq!(self.written, count(is_written), "law 1: written");
        assert!(self.chunks.values().all(|chunk| !chunk.is_empty()), "law 4");
        assert_eq!(self.newer, count(PageState::is_newer), "law 1: newer");
        let newer = self.chunks.iter().filter(|(_, chunk)| chunk.newer_bits() != 0);
        assert!(newer.map(|(number, _)| number).eq(&self.newer_chunks), "law 4");
        assert_eq!(self.listed.is_some(), self.dirty > 0, "dirty files are listed");
    }
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::try_from(self.frames.len()).unwrap_or(0)
    }
}

/// What became of a write into a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    Done,
    /// The page is not there: it is to be read, or put whole.
    Absent,
    /// Its bytes are in use, and there was no frame for others.
    NoFrame,
}
