//! [`WritebackPages`]: pages under writeback.
//!
//! Laws:
//!
//! 1. The bytes of a run do not change. A write to one of its pages gives the page another frame
//!    and makes it dirty again.
//! 2. A page is in at most one run at a time.
//! 3. A run that is dropped without [`WritebackPages::end`] counts as failed: its pages become
//!    dirty again.

use crate::counters::WritebackReason;
use crate::file_pages::{FilePages, length};
use crate::index::{Run, WritebackResult};
use crate::tag::{Tag, Tags};
use butternut_sys::frames::Frame;
use std::ops::Range;

/// Neighbouring pages with one tag, under writeback.
#[derive(Debug)]
#[must_use = "dropping a run makes its pages dirty again"]
pub struct WritebackPages {
    file: FilePages,
    run: Run,
}

impl FilePages {
    /// Begins writeback of at most `pages_max` dirty pages of a range that have one of `tags`.
    /// Leaves out dirty pages that are under writeback already; [`FilePages::wait_for_writeback`]
    /// waits for those.
    pub fn begin_writeback(
        &self,
        pages: &Range<u64>,
        pages_max: usize,
        tags: Tags,
        reason: WritebackReason,
    ) -> Vec<WritebackPages> {
        let mut change = self.change();
        let crate::Change { index, accounting, .. } = &mut change;
        let runs = index.begin_writeback(accounting, pages, pages_max, tags);
        self.core.flushers.backlog.count_begun(runs.len());
        drop(change);
        let count = runs.iter().map(|run| run.frames.len()).sum();
        self.core.counters.count_writeback(reason, count);
        runs.into_iter().map(|run| WritebackPages { file: self.clone(), run }).collect()
    }

    /// Waits until no page of the range is under writeback. Deadlocks if the caller holds a
    /// [`WritebackPages`] of the range.
    pub fn wait_for_writeback(&self, pages: &Range<u64>) {
        self.inode.events.wait_while(|| self.inode.index().next_writeback(pages).is_some());
    }
}

impl WritebackPages {
    pub fn pages(&self) -> Range<u64> {
        self.run.first..self.run.end()
    }

    pub fn tag(&self) -> Tag {
        self.run.tag
    }

    /// Returns the bytes to write, one frame for each page (law 1).
    pub fn frames(&self) -> &[Frame] {
        &self.run.frames
    }

    pub fn file(&self) -> &FilePages {
        &self.file
    }

    /// Splits off all pages but the first `count`, and returns them as another run.
    pub fn split_off(&mut self, count: usize) -> Self {
        let count = count.min(self.run.frames.len());
        let first = self.run.first + length(count);
        let run = Run { first, tag: self.run.tag, frames: self.run.frames.split_off(count) };
        if !run.frames.is_empty() && !self.run.frames.is_empty() {
            self.file.core.flushers.backlog.count_begun(1);
        }
        Self { file: self.file.clone(), run }
    }

    /// Ends the writeback of all pages of the run with `result`.
    pub fn end(mut self, result: WritebackResult) {
        self.finish(result);
    }

    fn finish(&mut self, result: WritebackResult) {
        let pages = self.pages();
        if pages.is_empty() {
            return;
        }
        // Releases the frames first: a write that finds the pages clean then needs no other frame.
        self.run.frames.clear();
        self.run.first = pages.end;
        let mut change = self.file.change();
        let crate::Change { index, accounting, .. } = &mut change;
        index.end_writeback(accounting, &pages, result);
        drop(change);
        self.file.inode.events.notify();
        self.file.core.flushers.count_completed();
    }
}

impl Drop for WritebackPages {
    fn drop(&mut self) {
        self.finish(WritebackResult::Redirty);
    }
}
