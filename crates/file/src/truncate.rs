//! Truncation, both ways.
//!
//! Laws:
//!
//! 1. What is behind the new end is gone, also where the file is made longer again later: its last
//!    block is zero there.
//! 2. A truncation that makes a file shorter succeeds on a full volume.
//! 3. A long file is cut from its end, in pieces that a transaction can reserve for; each leaves
//!    the file as a truncation to another size would.

use crate::dirty::Backing;
use crate::edit::Draft;
use crate::error::FileError;
use crate::items;
use crate::source::in_memory;
use crate::state::{FileState, Stamp};
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
            self.live.set_size(size);
            return self.merge_and_stamp(stamp);
        }
        self.close_at(size)?;
        let end = size.next_multiple_of(SECTOR_BYTES);
        self.drop_overlay(end..u64::MAX);
        self.live.set_size(size);
        self.cut_items(end, stamp)?;
        let is_inline = {
            let backing = self.newer_block(0).map(|(_, backing)| backing);
            // A packed one may wait for space on disk: it may have become too long.
            backing == Some(Backing::Inline) || backing.is_some() && self.shape()?.is_inline
        };
        if is_inline {
            self.merge(&mut |_| {})?;
        }
        Ok(())
    }

    /// Merges; the inode is stamped also if there was nothing to merge.
    pub(crate) fn merge_and_stamp(&mut self, stamp: Stamp<'_>) -> Result<(), FileError> {
        if self.merge(&mut *stamp)?.is_none() {
            self.apply(self.draft(), Purse::Free, stamp)?;
        }
        Ok(())
    }

    /// Makes the rest of the block at the new end zeroes (law 1). Without space for that it stays:
    /// it is made zeroes before it can be seen.
    fn close_at(&mut self, size: u64) -> Result<(), FileError> {
        let start = size - size % SECTOR_BYTES;
        if start == size {
            return Ok(());
        }
        if !self.is_newer(start) && !self.has_data_at(start)? {
            self.forget_pages(&(start..start + SECTOR_BYTES));
            return Ok(());
        }
        let blocks = start..start + SECTOR_BYTES;
        let mut frames = self.frames(1)?;
        let backed = match self.back(&blocks, size) {
            Err(error) if error.is_no_space() => {
                self.forget_pages(&blocks);
                return Ok(());
            }
            backed => backed?,
        };
        let Some(backing) = backed.first() else { return Ok(()) };
        let tail = vec![0; in_memory(start + SECTOR_BYTES - size)];
        self.write_block(size, &tail, *backing, None, &mut frames)
    }

    /// Takes all items behind `from` out of the tree, and their inode's size back to the file's.
    fn cut_items(&mut self, from: u64, stamp: Stamp<'_>) -> Result<(), FileError> {
        loop {
            let last = items::last(&self.view, from, PIECE_ITEMS)?;
            let is_whole = last.len() < PIECE_ITEMS;
            let first = last.first().map_or(from, |piece| piece.start.max(from));
            let start = if is_whole { from } else { first };
            let size = self.size_in_tree.min(if is_whole { self.size() } else { start });
            let draft = Draft { gone: once(start..u64::MAX).collect(), size, ..self.draft() };
            if is_whole {
                self.apply(draft, Purse::Deletion, stamp)?;
                return Ok(());
            }
            self.apply(draft, Purse::Deletion, &mut |_| {})?;
        }
    }
}
