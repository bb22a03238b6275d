//! Truncation to a smaller or larger size.
//!
//! Laws:
//!
//! 1. Data past the new end is gone, also when the file becomes longer again later: the rest of
//!    its last block is zeroed. As every write, these zeroes can be lost if the device fails to
//!    write them back, which is recorded; then the old bytes of that block are back.
//! 2. Truncation to a smaller size succeeds on a full volume.
//! 3. A long file is cut from its end, in steps that a transaction can reserve for: smaller ones
//!    where the volume is too full for a whole one. Each step leaves the file as a truncation to
//!    another size would.
//! 4. In each step, nothing is dropped from memory before the edit of the tree has succeeded (law 4
//!    of [`crate::fallocate`]).

use crate::error::FileError;
use crate::merge::edit::Draft;
use crate::merge::items;
use crate::state::backing::Backing;
use crate::state::{FileState, InodeUpdate};
use crate::write::edge::Edge;
use butternut_format::refused::require;
use butternut_format::units::SECTOR_BYTES;
use butternut_sys::wait::Wait;
use butternut_tree::ReservationLevel;
use std::iter::once;

/// Items that one step drops (law 3), and the factor by which one without space is smaller.
pub(crate) const STEP_ITEMS: usize = 256;
pub(crate) const STEP_DIVISOR: usize = 4;

impl FileState {
    /// Sets the size. Data after it is dropped; new bytes read as zeroes.
    ///
    /// # Errors
    /// The volume is not open for writing, the size is too large, or the trees cannot be changed.
    /// The file then has its old size or, if it is long, one in between.
    pub fn truncate(&mut self, size: u64, update: InodeUpdate<'_>) -> Result<(), FileError> {
        let changed = self.change_size(size, update);
        self.end_operation(changed)
    }

    /// Drops the last items of a file that is deleted, in one step (law 3), and everything that
    /// memory has after them. Returns where the file ends now, or `None` if no data is left. Every
    /// step ends below `below`: the caller passes the end that the step before has returned.
    ///
    /// # Errors
    /// The volume is not open for writing, or the trees cannot be changed.
    pub fn drop_last_items(&mut self, below: u64) -> Result<Option<u64>, FileError> {
        self.check_writable()?;
        let dropped = self.drop_step(0, below, &mut |_| {});
        self.end_operation(dropped)
    }

    fn change_size(&mut self, size: u64, update: InodeUpdate<'_>) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_end(size, 0)?;
        if size > self.size() {
            self.zero_after_end(Wait::Block)?;
            // Before the first block becomes dirty, which counts as one more.
            self.reserve_metadata(1, 1, size, Wait::Block)?;
            self.leave_inline(size, &(0..0), Wait::Block)?;
            self.shared.set_size(size);
            self.try_merge(update);
            return Ok(());
        }
        let end = self.prepare_end(size)?;
        let is_closed = !end.is_empty();
        let cut = self.drop_past_end(size, update);
        self.finish_edges(end, cut)?;
        let start = size - size % SECTOR_BYTES;
        if start != size && !is_closed {
            // A clean page still holds the data past the new end.
            self.invalidate_pages(&(start..start + SECTOR_BYTES));
        }
        let is_inline = {
            let backing = self.newer_block(0).map(|(_, backing)| backing);
            // Compressed inline data may have become too long, and be waiting to be written.
            backing.is_some_and(Backing::is_inline)
                || backing.is_some() && self.shape(Wait::Block).is_ok_and(|shape| shape.is_inline)
        };
        if is_inline {
            self.try_merge(&mut |_| {});
        }
        Ok(())
    }

    /// Merges the file after an operation that has succeeded and whose metadata is reserved. What
    /// fails stays in the overlay; the next sync merges it or reports the error.
    pub(crate) fn try_merge(&mut self, update: InodeUpdate<'_>) {
        self.merge(update).ok();
    }

    /// Prepares to zero the rest of the block at the new end (law 1). Without space the block
    /// stays: it is zeroed before the end moves past it.
    fn prepare_end(&mut self, size: u64) -> Result<Vec<Edge>, FileError> {
        let start = size - size % SECTOR_BYTES;
        if start == size || !self.is_newer(start) && !self.has_data_at(start)? {
            return Ok(Vec::new());
        }
        let mut frames = self.frames(1, Wait::Block)?;
        let (part, old_size) = (size..start + SECTOR_BYTES, self.size());
        match self.prepare_edge(start, &part, old_size, &mut frames) {
            Err(error) if error.is_no_space() || error.is_quota_exceeded() => Ok(Vec::new()),
            edge => Ok(vec![edge?]),
        }
    }

    /// Drops all items past the new end from the tree and, after each step, the data in memory
    /// (law 4).
    fn drop_past_end(&mut self, size: u64, update: InodeUpdate<'_>) -> Result<(), FileError> {
        let mut cut_to = u64::MAX;
        while let Some(start) = self.drop_step(size, cut_to, update)? {
            cut_to = start;
        }
        Ok(())
    }

    /// Drops the last items past the new end, which lie below `cut_to`, where the step before
    /// starts. Returns where this step starts, or `None` if it was the last one.
    fn drop_step(
        &mut self,
        size: u64,
        cut_to: u64,
        update: InodeUpdate<'_>,
    ) -> Result<Option<u64>, FileError> {
        let mut items_max = STEP_ITEMS;
        loop {
            match self.drop_items(size, cut_to, items_max, update) {
                // A step without space has changed nothing.
                Err(error) if error.is_no_space() && items_max > 1 => items_max /= STEP_DIVISOR,
                dropped => return dropped,
            }
        }
    }

    /// As [`Self::drop_step`], for up to `items_max` items.
    fn drop_items(
        &mut self,
        size: u64,
        cut_to: u64,
        items_max: usize,
        update: InodeUpdate<'_>,
    ) -> Result<Option<u64>, FileError> {
        let end = size.next_multiple_of(SECTOR_BYTES);
        let last = items::last(&self.view, end, items_max)?;
        let is_whole = last.len() < items_max;
        let first = last.first().map_or(end, |item| item.start.max(end));
        let (start, new_size) =
            if is_whole { (end, size) } else { (first, self.size().min(first)) };
        if !is_whole {
            // Items of earlier steps are gone, so this step lies before them.
            let want = format_args!("below {cut_to}, where the step before starts").to_string();
            require(start < cut_to, "key offset", start, want)
                .map_err(|refused| self.view.corrupt(refused))?;
        }
        let in_tree = self.size_in_tree.min(new_size);
        let draft =
            Draft { dropped: once(start..u64::MAX).collect(), size: in_tree, ..self.draft() };
        self.shared.wait_for_readahead();
        if is_whole {
            self.apply(draft, ReservationLevel::Deletion, update)?;
        } else {
            self.apply(draft, ReservationLevel::Deletion, &mut |_| {})?;
        }
        self.drop_overlay(start..u64::MAX);
        self.shared.set_size(new_size);
        Ok((!is_whole).then_some(start))
    }
}
