//! Truncation, both ways.
//!
//! Laws:
//!
//! 1. What is behind the new end is gone, also where the file is made longer again later: its last
//!    block is zero there.
//! 2. A truncation that makes a file shorter succeeds on a full volume.
//! 3. A long file is cut from its end, in pieces that a transaction can reserve for; each leaves
//!    the file as a truncation to another size would.
//! 4. Nothing leaves memory before the tree has agreed, piece by piece (law 4 of [`crate::hole`]).

use crate::dirty::Backing;
use crate::edge::Edge;
use crate::edit::Draft;
use crate::error::FileError;
use crate::items;
use crate::state::{FileState, Stamp};
use butternut_format::refused::require;
use butternut_format::units::SECTOR_BYTES;
use butternut_tree::Purse;
use std::iter::once;

/// Items that go in one piece (law 3).
pub(crate) const PIECE_ITEMS: usize = 256;

impl FileState {
    /// Sets the size: what is behind it is gone, what is new reads as zeroes.
    pub fn truncate(&mut self, size: u64, stamp: Stamp<'_>) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_end(size, 0)?;
        if size > self.size() {
            self.close_end()?;
            self.outgrow(size, &(0..0))?;
            self.promise(1, 0, size)?;
            self.live.set_size(size);
            self.try_merge(stamp);
            return Ok(());
        }
        let end = self.prepare_end(size)?;
        let is_closed = !end.is_empty();
        let cut = self.cut_behind(size, stamp);
        self.finish_edges(end, cut)?;
        let start = size - size % SECTOR_BYTES;
        if start != size && !is_closed {
            // A clean page still holds what was behind the new end.
            self.forget_pages(&(start..start + SECTOR_BYTES));
        }
        let is_inline = {
            let backing = self.newer_block(0).map(|(_, backing)| backing);
            // A packed one may wait for space on disk: it may have become too long.
            backing == Some(Backing::Inline)
                || backing.is_some() && self.shape().is_ok_and(|shape| shape.is_inline)
        };
        if is_inline {
            self.try_merge(&mut |_| {});
        }
        Ok(())
    }

    /// Merges the file behind an operation that is done, and covered by the promise: what fails
    /// here stays above the tree, and the next sync merges it, and tells why.
    pub(crate) fn try_merge(&mut self, stamp: Stamp<'_>) {
        self.merge(stamp).ok();
    }

    /// Prepares to make the rest of the block at the new end zeroes (law 1). Without space for that
    /// it stays: it is made zeroes before it can be seen.
    fn prepare_end(&mut self, size: u64) -> Result<Vec<Edge>, FileError> {
        let start = size - size % SECTOR_BYTES;
        if start == size || !self.is_newer(start) && !self.has_data_at(start)? {
            return Ok(Vec::new());
        }
        let mut frames = self.frames(1)?;
        match self.prepare_edge(start, &(size..start + SECTOR_BYTES), &mut frames) {
            Err(error) if error.is_no_space() => Ok(Vec::new()),
            edge => Ok(vec![edge?]),
        }
    }

    /// Takes all items behind the new end out of the tree, and with each piece what memory has
    /// there (law 4).
    fn cut_behind(&mut self, size: u64, stamp: Stamp<'_>) -> Result<(), FileError> {
        let end = size.next_multiple_of(SECTOR_BYTES);
        let mut cut_to = u64::MAX;
        loop {
            let last = items::last(&self.view, end, PIECE_ITEMS)?;
            let is_whole = last.len() < PIECE_ITEMS;
            let first = last.first().map_or(end, |piece| piece.start.max(end));
            let (start, new_size) =
                if is_whole { (end, size) } else { (first, self.size().min(first)) };
            if !is_whole {
                // What was cut before is gone, so the next piece lies before it.
                let want =
                    format_args!("below {cut_to}, where the piece before starts").to_string();
                require(start < cut_to, "key offset", start, want)
                    .map_err(|refused| self.view.corrupt(refused))?;
                cut_to = start;
            }
            let in_tree = self.size_in_tree.min(new_size);
            let draft =
                Draft { gone: once(start..u64::MAX).collect(), size: in_tree, ..self.draft() };
            self.live.quiesce();
            if is_whole {
                self.apply(draft, Purse::Deletion, &mut *stamp)?;
            } else {
                self.apply(draft, Purse::Deletion, &mut |_| {})?;
            }
            self.drop_overlay(start..u64::MAX);
            self.live.set_size(new_size);
            if is_whole {
                return Ok(());
            }
        }
    }
}
