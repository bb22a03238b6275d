//! [`Writeback`]: pages on their way to the disk.
//!
//! Laws:
//!
//! 1. Its bytes do not change: who writes to a page meanwhile gets another frame, and the page is
//!    dirty again.
//! 2. A page is on its way once at a time.
//! 3. One that is dropped without an end failed: its pages are dirty again.

use crate::counters::Reason;
use crate::file_pages::{FilePages, length};
use crate::index::{Landing, Run};
use crate::tag::{Tag, Tags};
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Neighbouring pages with one tag, on their way to the disk.
#[derive(Debug)]
#[must_use = "its pages wait for the end of it"]
pub struct Writeback {
    file: FilePages,
    run: Run,
}

impl FilePages {
    /// Sends dirty pages of these tags on their way, at most `pages_max`. Dirty pages that are on
    /// their way already are left out: see [`FilePages::wait_for_writeback`].
    pub fn begin_writeback(
        &self,
        pages: &Range<u64>,
        pages_max: usize,
        tags: Tags,
        reason: Reason,
    ) -> Vec<Writeback> {
        let mut change = self.change();
        let crate::Change { index, books, .. } = &mut change;
        let runs = index.begin(books, pages, pages_max, tags);
        self.core.flushers.debts.note_sent(runs.len());
        drop(change);
        let count = runs.iter().map(|run| run.frames.len()).sum();
        self.core.counters.count_writeback(reason, count);
        runs.into_iter().map(|run| Writeback { file: self.clone(), run }).collect()
    }

    /// Waits until no page of the range is on its way to the disk. Not for those who have a
    /// [`Writeback`].
    pub fn wait_for_writeback(&self, pages: &Range<u64>) {
        self.inode.turn.wait_while(|| self.inode.index().next_written(pages).is_some());
    }
}

impl Writeback {
    pub fn pages(&self) -> Range<u64> {
        self.run.first..self.run.end()
    }

    pub fn tag(&self) -> Tag {
        self.run.tag
    }

    /// The bytes, page by page (law 1).
    pub fn frames(&self) -> &[Frame] {
        &self.run.frames
    }

    pub fn file(&self) -> &FilePages {
        &self.file
    }

    /// The pages from the `count`th on, as another run.
    pub fn split_off(&mut self, count: usize) -> Self {
        let count = count.min(self.run.frames.len());
        let first = self.run.first + length(count);
        let run = Run { first, tag: self.run.tag, frames: self.run.frames.split_off(count) };
        if !run.frames.is_empty() && !self.run.frames.is_empty() {
            self.file.core.flushers.debts.note_sent(1);
        }
        Self { file: self.file.clone(), run }
    }

    /// How it ended.
    pub fn end(mut self, landing: Landing) {
        self.finish(landing);
    }

    fn finish(&mut self, landing: Landing) {
        let pages = self.pages();
        if pages.is_empty() {
            return;
        }
        // Before the pages can be written to: then their frames have one user again.
        self.run.frames.clear();
        self.run.first = pages.end;
        let mut change = self.file.change();
        let crate::Change { index, books, .. } = &mut change;
        index.end(books, &pages, landing);
        drop(change);
        self.file.inode.turn.advance();
        self.file.core.flushers.note_landed();
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.finish(Landing::Again);
    }
}
