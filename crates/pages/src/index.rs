//! The index of a file's pages: sorted page groups, and every state transition of a page.
//!
//! ```text
//! Absent --insert--> Clean --write--> Dirty --begin--> Writeback --end--> Clean, or Absent
//!                    \--remove--> Absent <--remove--/   \--write--> WritebackDirty --end--> Dirty
//! ```
//!
//! Laws:
//!
//! 1. Each transition updates the counts of the file and of the cache, and the replacement queues:
//!    `pages`, `dirty` and `writeback` always match the groups.
//! 2. A page under writeback is not removed, and its bytes do not change: a write to it gives the
//!    page another frame.
//! 3. A page that is written to or invalidated while it is being read is not inserted by that fill.
//! 4. A drop-behind page whose frame has another user is not dropped. A writer that is about to
//!    change a part of a page relies on its bytes: the write must not have to read the disk.
//! 5. No group is empty. `newer_groups` holds the numbers of the groups with pages that are newer
//!    than the disk.

use crate::cache::Accounting;
use crate::counters::add;
use crate::filling::Fills;
use crate::page_group::{GROUP_PAGES, PageGroup, PageState, locate, mask, slots};
use crate::tag::{Tag, Tags};
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Whether a page stays in the cache after its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// The page stays until it is evicted.
    Cached,
    /// Drop-behind: a page that this access inserts is removed when it has been copied, or when its
    /// writeback has completed. A page that a cached access uses stays.
    Uncached,
}

/// The result of a writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackResult {
    /// The bytes are on the disk.
    Written,
    /// The bytes will never be on the disk. The page is removed, unless it was written to
    /// meanwhile.
    Lost,
    /// The writeback failed or was not tried. The page becomes dirty again.
    Redirty,
}

/// Neighbouring pages with one tag, under writeback.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) tag: Tag,
    pub(crate) frames: Vec<Frame>,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    groups: BTreeMap<u64, Box<PageGroup>>,
    /// Numbers of the groups with pages that are dirty or under writeback (law 5).
    newer_groups: BTreeSet<u64>,
    pub(crate) fills: Fills,
    pub(crate) pages: usize,
    pub(crate) dirty: usize,
    pub(crate) writeback: usize,
    /// Pages that are dirty, under writeback, or both.
    pub(crate) newer: usize,
    /// Pages that were evicted while the file had a handle.
    pub(crate) evicted: u64,
    /// The key of the file in the list of dirty files, while it is listed.
    pub(crate) dirty_list_key: Option<u64>,
}

impl Index {
    pub(crate) fn find(&self, page: u64) -> Option<(&PageGroup, usize)> {
        let (number, slot) = locate(page);
        self.groups.get(&number).map(|group| (&**group, slot))
    }

    pub(crate) fn state(&self, page: u64) -> PageState {
        self.find(page).map_or(PageState::Absent, |(group, slot)| group.state(slot))
    }

    /// Returns the first present page of a range, or the first absent one.
    pub(crate) fn next(&self, pages: Range<u64>, is_present: bool) -> Option<u64> {
        let mut page = pages.start;
        while page < pages.end {
            let (number, slot) = locate(page);
            match self.groups.get(&number) {
                Some(group) if group.frame(slot).is_some() == is_present => return Some(page),
                Some(_) => page += 1,
                None if !is_present => return Some(page),
                None => page = self.groups.range(number..).next()?.0 * GROUP_PAGES,
            }
        }
        None
    }

    /// Returns the first page of a range that is newer than the disk and whose bit is set.
    fn next_by(&self, pages: &Range<u64>, bits: impl Fn(&PageGroup) -> u16) -> Option<u64> {
        if pages.is_empty() {
            return None;
        }
        let numbers = locate(pages.start).0..=locate(pages.end - 1).0;
        self.newer_groups.range(numbers).find_map(|number| {
            let group = self.groups.get(number)?;
            let found = bits(group) & mask(&slots(*number, pages));
            (found != 0).then(|| number * GROUP_PAGES + u64::from(found.trailing_zeros()))
        })
    }

    pub(crate) fn next_dirty(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, PageGroup::dirty_bits)
    }

    pub(crate) fn next_writeback(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, PageGroup::writeback_bits)
    }

    pub(crate) fn next_newer(&self, pages: &Range<u64>) -> Option<u64> {
        self.next_by(pages, PageGroup::newer_bits)
    }

    pub(crate) fn last_newer(&self) -> Option<u64> {
        let number = self.newer_groups.last()?;
        let bits = self.groups.get(number)?.newer_bits();
        Some(number * GROUP_PAGES + u64::from(bits.ilog2()))
    }

    /// Updates `newer` and `newer_groups` after a transition of `page`.
    fn note_newer(&mut self, page: u64, was_newer: bool) {
        let (number, slot) = locate(page);
        let group = self.groups.get(&number);
        let is_newer = group.is_some_and(|group| group.state(slot).is_newer());
        self.newer = self.newer + usize::from(is_newer) - usize::from(was_newer);
        if group.is_some_and(|group| group.newer_bits() != 0) {
            self.newer_groups.insert(number);
        } else {
            self.newer_groups.remove(&number);
        }
    }

    /// Inserts an absent page that was read from the disk.
    pub(crate) fn insert(
        &mut self,
        accounting: &mut Accounting<'_>,
        page: u64,
        frame: Frame,
        mode: CacheMode,
    ) {
        debug_assert_eq!(self.state(page), PageState::Absent, "only an absent page is inserted");
        let node = accounting.admit(page, 0);
        let (group, slot) = self.group(accounting, page);
        group.set_frame(slot, Some(frame));
        group.set_node(slot, node);
        if mode == CacheMode::Uncached {
            group.set_dropbehind(slot);
        }
        self.pages += 1;
        accounting.count_inserted();
    }

    /// Replaces a whole page with `frame` and marks it dirty.
    pub(crate) fn write_page(
        &mut self,
        accounting: &mut Accounting<'_>,
        page: u64,
        frame: Frame,
        tag: Tag,
        mode: CacheMode,
    ) {
        if self.state(page) == PageState::Absent {
            let (group, slot) = self.group(accounting, page);
            group.set_frame(slot, Some(frame));
            group.set_dirty(slot, true);
            group.set_tag(slot, tag);
            if mode == CacheMode::Uncached {
                group.set_dropbehind(slot);
            }
            self.pages += 1;
            self.dirty += 1;
            self.note_newer(page, false);
            accounting.count_inserted();
            accounting.core().counters.dirty.add(1);
            self.fills.spoil(&(page..page + 1));
            return;
        }
        self.mark_dirty(accounting, page, tag, mode);
        let (group, slot) = self.group(accounting, page);
        group.set_frame(slot, Some(frame));
    }

    /// Writes into a present page and marks it dirty. If its frame has other users, `spare` becomes
    /// its frame. A page that is dirty already keeps its tag.
    pub(crate) fn write_bytes(
        &mut self,
        accounting: &mut Accounting<'_>,
        page: u64,
        (skip, bytes): (usize, &[u8]),
        spare: &mut Option<Frame>,
        (tag, mode): (Tag, CacheMode),
    ) -> PageWrite {
        let (number, slot) = locate(page);
        let Some(group) = self.groups.get_mut(&number) else { return PageWrite::Absent };
        let Some(frame) = group.frame_mut(slot) else { return PageWrite::Absent };
        if frame.is_shared() {
            let Some(mut other) = spare.take() else { return PageWrite::NoFrame };
            if bytes.len() < FRAME_BYTES
                && let Some(copy) = other.bytes_mut()
            {
                copy.copy_from_slice(frame);
            }
            *frame = other;
        }
        // No other thread can become a user of the frame while the index is locked exclusively.
        let target = frame.bytes_mut().and_then(|all| all.get_mut(skip..skip + bytes.len()));
        target
            .expect("a write stays within its page, and the frame has one user")
            .copy_from_slice(bytes);
        self.mark_dirty(accounting, page, tag, mode);
        PageWrite::Done
    }

    /// Marks a present page dirty. A page that is dirty already keeps its tag.
    fn mark_dirty(
        &mut self,
        accounting: &mut Accounting<'_>,
        page: u64,
        tag: Tag,
        mode: CacheMode,
    ) {
        let (group, slot) = self.group(accounting, page);
        if mode == CacheMode::Cached {
            group.clear_dropbehind(slot);
        }
        let (was, node) = (group.state(slot), group.node(slot));
        debug_assert_ne!(was, PageState::Absent, "only a present page is marked dirty");
        if matches!(was, PageState::Dirty | PageState::WritebackDirty) {
            return;
        }
        group.set_dirty(slot, true);
        group.set_tag(slot, tag);
        self.dirty += 1;
        self.note_newer(page, was.is_newer());
        accounting.core().counters.dirty.add(1);
        match was {
            PageState::Clean => accounting.withdraw(node),
            PageState::Absent
            | PageState::Writeback
            | PageState::Dirty
            | PageState::WritebackDirty => {
                add(&accounting.core().counters.redirtied, 1);
            }
        }
    }

    pub(crate) fn set_tag(&mut self, page: u64, tag: Tag) {
        let (number, slot) = locate(page);
        if let Some(group) = self.groups.get_mut(&number) {
            group.set_tag(slot, tag);
        }
    }

    /// Removes the pages of a range that are not under writeback (law 2), and spoils fills of it.
    /// Returns how many were removed.
    pub(crate) fn remove(&mut self, accounting: &mut Accounting<'_>, pages: &Range<u64>) -> usize {
        self.fills.spoil(pages);
        let mut removed = 0;
        self.each(accounting, pages, |index, accounting, page| {
            removed += usize::from(index.remove_one(accounting, page));
        });
        removed
    }

    /// Removes the clean pages of a range, and spoils fills of it.
    pub(crate) fn remove_clean(&mut self, accounting: &mut Accounting<'_>, pages: &Range<u64>) {
        self.fills.spoil(pages);
        self.each(accounting, pages, |index, accounting, page| {
            if index.state(page) == PageState::Clean {
                index.remove_one(accounting, page);
            }
        });
    }

    /// Removes the clean drop-behind pages of a range. Returns how many were removed.
    pub(crate) fn remove_dropbehind(
        &mut self,
        accounting: &mut Accounting<'_>,
        pages: &Range<u64>,
    ) -> usize {
        let mut removed = 0;
        self.each(accounting, pages, |index, accounting, page| {
            let is_dropbehind = index.find(page).is_some_and(|(group, slot)| {
                group.drops_behind(slot) && group.state(slot) == PageState::Clean
            });
            removed += usize::from(is_dropbehind && index.remove_one(accounting, page));
        });
        add(&accounting.core().counters.dropped_behind, removed);
        removed
    }

    /// Removes a page, if it is present and not under writeback. Returns whether it was removed.
    pub(crate) fn remove_one(&mut self, accounting: &mut Accounting<'_>, page: u64) -> bool {
        let (number, slot) = locate(page);
        let Some(group) = self.groups.get_mut(&number) else { return false };
        match group.state(slot) {
            PageState::Absent | PageState::Writeback | PageState::WritebackDirty => return false,
            PageState::Clean => accounting.withdraw(group.node(slot)),
            PageState::Dirty => {
                self.dirty -= 1;
                group.set_dirty(slot, false);
                self.note_newer(page, true);
                accounting.core().counters.dirty.subtract(1);
            }
        }
        self.vacate(accounting, page);
        true
    }

    /// Releases the frame of a page that is in no count but `pages`, and in no replacement queue.
    pub(crate) fn vacate(&mut self, accounting: &mut Accounting<'_>, page: u64) {
        let (number, slot) = locate(page);
        let Some(group) = self.groups.get_mut(&number) else { return };
        debug_assert!(
            !group.state(slot).is_newer(),
            "a page that is newer than the disk is counted"
        );
        group.clear_dropbehind(slot);
        group.set_frame(slot, None);
        self.pages -= 1;
        accounting.count_removed();
        if group.is_empty()
            && let Some(group) = self.groups.remove(&number)
        {
            accounting.core().recycle_group(group);
        }
    }

    /// Begins writeback of at most `pages_max` dirty pages with one of `tags`. Dirty pages that are
    /// under writeback already stay dirty.
    pub(crate) fn begin_writeback(
        &mut self,
        accounting: &mut Accounting<'_>,
        pages: &Range<u64>,
        pages_max: usize,
        tags: Tags,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut left = pages_max.min(self.dirty);
        let mut from = pages.start;
        while left > 0 {
            let eligible = |group: &PageGroup| group.dirty_bits() & !group.writeback_bits();
            let Some(page) = self.next_by(&(from..pages.end), eligible) else { break };
            from = page + 1;
            let (number, slot) = locate(page);
            let Some(group) = self.groups.get_mut(&number) else { break };
            let tag = group.tag(slot);
            let Some(frame) = group.frame(slot).filter(|_| tags.contains(tag)).cloned() else {
                continue;
            };
            group.set_dirty(slot, false);
            group.set_writeback(slot, true);
            self.dirty -= 1;
            self.writeback += 1;
            left -= 1;
            accounting.core().counters.dirty.subtract(1);
            accounting.core().counters.writeback.add(1);
            match runs.last_mut() {
                Some(run) if run.tag == tag && run.end() == page => run.frames.push(frame),
                _ => runs.push(Run { first: page, tag, frames: vec![frame] }),
            }
        }
        runs
    }

    /// Ends the writeback of pages.
    pub(crate) fn end_writeback(
        &mut self,
        accounting: &mut Accounting<'_>,
        pages: &Range<u64>,
        result: WritebackResult,
    ) {
        let mut dropped = 0;
        self.each(accounting, pages, |index, accounting, page| {
            dropped += usize::from(index.end_writeback_of(accounting, page, result));
        });
        add(&accounting.core().counters.dropped_behind, dropped);
    }

    /// Ends the writeback of one page. Returns whether it was removed as a drop-behind page.
    fn end_writeback_of(
        &mut self,
        accounting: &mut Accounting<'_>,
        page: u64,
        result: WritebackResult,
    ) -> bool {
        let (number, slot) = locate(page);
        let Some(group) = self.groups.get_mut(&number) else { return false };
        let was = group.state(slot);
        if !matches!(was, PageState::Writeback | PageState::WritebackDirty) {
            return false;
        }
        group.set_writeback(slot, false);
        if result == WritebackResult::Redirty && was == PageState::Writeback {
            group.set_dirty(slot, true);
        }
        let (is_dropbehind, accesses) = (group.drops_behind(slot), group.accesses(slot));
        self.note_newer(page, true);
        self.writeback -= 1;
        accounting.core().counters.writeback.subtract(1);
        if result == WritebackResult::Lost {
            add(&accounting.core().counters.lost, 1);
        }
        if was == PageState::WritebackDirty {
            return false;
        }
        match result {
            WritebackResult::Redirty => {
                self.dirty += 1;
                accounting.core().counters.dirty.add(1);
                false
            }
            WritebackResult::Lost => {
                self.vacate(accounting, page);
                false
            }
            WritebackResult::Written if is_dropbehind => {
                self.vacate(accounting, page);
                true
            }
            WritebackResult::Written => {
                let node = accounting.admit(page, accesses);
                let (group, slot) = self.group(accounting, page);
                group.set_node(slot, node);
                false
            }
        }
    }

    /// Calls `step` for every present page of a range.
    fn each(
        &mut self,
        accounting: &mut Accounting<'_>,
        pages: &Range<u64>,
        mut step: impl FnMut(&mut Self, &mut Accounting<'_>, u64),
    ) {
        let mut from = pages.start;
        while let Some(page) = self.next(from..pages.end, true) {
            step(self, accounting, page);
            from = page + 1;
        }
    }

    fn group(&mut self, accounting: &Accounting<'_>, page: u64) -> (&mut PageGroup, usize) {
        let (number, slot) = locate(page);
        let group = self.groups.entry(number).or_insert_with(|| accounting.core().take_group());
        (group, slot)
    }

    /// Checks laws 1 and 5, for tests.
    ///
    /// # Panics
    ///
    /// If they do not hold.
    pub(crate) fn check(&self) {
        let count = |is: fn(PageState) -> bool| {
            let slots = || 0..usize::try_from(GROUP_PAGES).unwrap_or(0);
            let states = |group: &PageGroup| slots().filter(|slot| is(group.state(*slot))).count();
            self.groups.values().map(|group| states(group)).sum::<usize>()
        };
        assert_eq!(self.pages, count(|state| state != PageState::Absent), "law 1: pages");
        let is_dirty = |state| matches!(state, PageState::Dirty | PageState::WritebackDirty);
        assert_eq!(self.dirty, count(is_dirty), "law 1: dirty");
        let is_under_writeback =
            |state| matches!(state, PageState::Writeback | PageState::WritebackDirty);
        assert_eq!(self.writeback, count(is_under_writeback), "law 1: under writeback");
        assert!(self.groups.values().all(|group| !group.is_empty()), "law 5");
        assert_eq!(self.newer, count(PageState::is_newer), "law 1: newer");
        let newer = self.groups.iter().filter(|(_, group)| group.newer_bits() != 0);
        assert!(newer.map(|(number, _)| number).eq(&self.newer_groups), "law 5");
        assert_eq!(self.dirty_list_key.is_some(), self.dirty > 0, "dirty files are listed");
    }
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::try_from(self.frames.len()).unwrap_or(0)
    }
}

/// The result of a write into a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageWrite {
    Done,
    /// The page is absent. The caller reads it first, or writes it whole.
    Absent,
    /// The frame of the page has other users, and no spare frame was given.
    NoFrame,
}
