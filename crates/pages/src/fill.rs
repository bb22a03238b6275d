//! [`Fill`]: absent pages that one thread reads from the disk into the cache.
//!
//! ```text
//! claim --> Fill --complete--> Clean; a spoiled page is not inserted
//!             \----dropped---> Absent; another thread may claim it
//! ```

use crate::file_pages::{FilePages, missing};
use crate::filling::FILL_PAGES_MAX;
use crate::index::CacheMode;
use butternut_sys::frames::Frame;
use std::ops::Range;

/// The right, and the duty, to read some absent pages into the cache.
#[derive(Debug)]
#[must_use = "other readers wait until the fill is completed or dropped"]
pub struct Fill {
    file: FilePages,
    pages: Range<u64>,
    id: u64,
}

impl FilePages {
    /// Claims the first absent pages of a range, at most 1024, for the caller to read. Returns
    /// `None` if all pages are present, or if the first absent one belongs to another fill.
    pub fn claim(&self, pages: &Range<u64>) -> Option<Fill> {
        let mut index = self.inode.index_mut();
        let absent = missing(&index, pages.clone())?;
        let free = index.fills.unclaimed(&absent);
        let end = free.end.min(free.start + FILL_PAGES_MAX);
        if free.is_empty() {
            return None;
        }
        let pages = free.start..end;
        let id = index.fills.begin(pages.clone());
        drop(index);
        Some(Fill { file: self.clone(), pages, id })
    }

    /// Waits until none of these pages is in a fill. Deadlocks if called while holding a [`Fill`]
    /// of the range, or from anything such a fill waits for.
    pub fn wait_for_fills(&self, pages: &Range<u64>) {
        self.inode.events.wait_while(|| self.inode.index().fills.is_any_in(pages));
    }
}

impl Fill {
    pub fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    pub fn file(&self) -> &FilePages {
        &self.file
    }

    /// Inserts the pages that were read, beginning with the first page claimed. `frames` may be
    /// shorter than the claim. Returns how many pages were inserted; spoiled pages are not.
    pub fn complete(self, frames: impl IntoIterator<Item = Frame>, mode: CacheMode) -> usize {
        let mut change = self.file.change();
        let filled = change.index.fills.end(self.id);
        let (mut kept, mut spoiled) = (0, 0);
        for (page, frame) in self.pages.clone().zip(frames) {
            if filled.is_unspoiled(page) && change.state(page) == crate::PageState::Absent {
                let crate::Change { index, accounting, .. } = &mut change;
                index.insert(accounting, page, frame, mode);
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
        self.file.inode.index_mut().fills.end(self.id);
        self.file.inode.events.notify();
    }
}
