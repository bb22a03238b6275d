//! [`Fill`]: pages that somebody reads from the disk for the cache.
//!
//! ```text
//! claim --> Fill --complete--> Clean, or nothing where they were spoiled
//!             \----dropped---> Absent: somebody else may try
//! ```

use crate::file_pages::{FilePages, missing};
use crate::filling::FILL_PAGES_MAX;
use crate::index::Stay;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// The right, and the duty, to read some pages.
#[derive(Debug)]
#[must_use = "nobody else reads these pages meanwhile"]
pub struct Fill {
    file: FilePages,
    pages: Range<u64>,
    id: u64,
}

impl FilePages {
    /// The first pages of a range that are not there, to be read by the caller; `None` where all
    /// are there, or somebody is reading the first that are not.
    pub fn claim(&self, pages: &Range<u64>) -> Option<Fill> {
        let mut index = self.inode.index_mut();
        let absent = missing(&index, pages.clone())?;
        let free = index.fillings.unclaimed(&absent);
        let end = free.end.min(free.start + FILL_PAGES_MAX);
        if free.is_empty() {
            return None;
        }
        let pages = free.start..end;
        let id = index.fillings.begin(pages.clone());
        drop(index);
        Some(Fill { file: self.clone(), pages, id })
    }

    /// Waits until nobody is reading any of these pages. Not for those who have a [`Fill`], nor
    /// for those on whom one who has depends.
    pub fn wait_for_fills(&self, pages: &Range<u64>) {
        self.inode.turn.wait_while(|| self.inode.index().fillings.is_any_in(pages));
    }
}

impl Fill {
    pub fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    pub fn file(&self) -> &FilePages {
        &self.file
    }

    /// Here is what was read, from the first page on; fewer pages than claimed, perhaps. Says how
    /// many are kept: those that were written to or invalidated meanwhile are not.
    pub fn complete(self, frames: impl IntoIterator<Item = Frame>, stay: Stay) -> usize {
        let mut change = self.file.change();
        let filled = change.index.fillings.end(self.id);
        let (mut kept, mut spoiled) = (0, 0);
        for (page, frame) in self.pages.clone().zip(frames) {
            if filled.is_good(page) && change.state(page) == crate::PageState::Absent {
                let crate::Change { index, books, .. } = &mut change;
                index.insert(books, page, frame, stay);
                kept += 1;
            } else {
                spoiled += 1;
            }
        }
        drop(change);
        let counters = &self.file.core.counters;
        crate::counters::add(&counters.filled, kept);
        crate::counters::add(&counters.spoiled, spoiled);
        kept
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.file.inode.index_mut().fillings.end(self.id);
        self.file.inode.turn.advance();
    }
}
