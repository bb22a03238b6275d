//! Holes punched, space set aside, ranges made zero.
//!
//! Laws:
//!
//! 1. Whole blocks change in the trees at once; what is cut of the blocks at the edges is written,
//!    as any write is.
//! 2. Space is set aside for all of a range or for none of it.
//! 3. A long range goes in pieces that a transaction can reserve for.
//! 4. Nothing leaves memory before the tree has agreed: everything that can fail comes first (the
//!    edges are read and their space is reserved), then the edit of the tree, and only when that
//!    has succeeded are the pages and pending extents of the piece dropped, the edges made zero
//!    and the size set, which cannot fail. An operation of one piece that fails has changed
//!    nothing; one of several pieces has changed those before the failure, and each byte is as
//!    before or zero.

use crate::edge::Edge;
use crate::edit::Draft;
use crate::error::FileError;
use crate::items;
use crate::map::{MappingKind, Mappings};
use crate::overlay::EXTENT_BYTES_MAX;
use crate::piece::Piece;
use crate::small::INLINE_BYTES_MAX;
use crate::state::{FileEnd, FileState, Stamp};
use crate::truncate::PIECE_ITEMS;
use butternut_format::file_extent::{DiskExtent, ExtentRun, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::units::{Generation, Logical, SECTOR_BYTES};
use butternut_tree::Purse;
use std::iter::once;
use std::ops::Range;

/// A part of the file, and the space that is set aside for it.
type Aside = (Range<u64>, Range<u64>);

impl FileState {
    /// Makes a range read as zeroes and gives its whole blocks back. The size stays.
    pub fn punch_hole(&mut self, range: Range<u64>, stamp: Stamp<'_>) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_end(range.end, 0)?;
        let blocks = whole_blocks(&range);
        let edges = self.prepare_edges(&range, &blocks)?;
        let punched = self.punch_blocks(&blocks, stamp);
        self.finish_edges(edges, punched)
    }

    /// Takes whole blocks out of the tree, then out of memory (law 4).
    fn punch_blocks(&mut self, blocks: &Range<u64>, stamp: Stamp<'_>) -> Result<(), FileError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let stop = items::stop_after(&self.view, at..blocks.end, PIECE_ITEMS)?;
            let in_tree = self.size_in_tree.next_multiple_of(SECTOR_BYTES);
            let draft = Draft {
                gone: once(at..stop).collect(),
                covered: once(at.min(in_tree)..stop.min(in_tree)).collect(),
                ..self.draft()
            };
            self.live.quiesce();
            if stop < blocks.end {
                self.apply(draft, Purse::Deletion, &mut |_| {})?;
            } else {
                self.apply(draft, Purse::Deletion, &mut *stamp)?;
            }
            self.drop_overlay(at..stop);
            at = stop;
        }
        Ok(())
    }

    /// Before a range is changed that may lie behind the end: the size that the file will have.
    fn begin_range(&mut self, range: &Range<u64>, end: FileEnd) -> Result<u64, FileError> {
        self.check_writable()?;
        self.check_end(range.end, 0)?;
        let size = self.size_after(range, end);
        if range.start.max(size) > self.size() {
            self.close_end()?;
        }
        Ok(size)
    }

    /// Sets space aside for the holes of a range.
    pub fn allocate(
        &mut self,
        range: Range<u64>,
        end: FileEnd,
        stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        let size = self.begin_range(&range, end)?;
        let blocks =
            range.start - range.start % SECTOR_BYTES..range.end.next_multiple_of(SECTOR_BYTES);
        self.outgrow(size, &(0..0))?;
        let holes = self.without_space(&blocks)?;
        self.prepare_aside(&holes, size)?;
        self.set_aside(&holes, size, &mut *stamp)?;
        self.try_merge(stamp);
        Ok(())
    }

    /// Makes a range read as zeroes, with space set aside for it.
    pub fn zero_range(
        &mut self,
        range: Range<u64>,
        end: FileEnd,
        stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        let size = self.begin_range(&range, end)?;
        self.outgrow(size, &(0..0))?;
        let mut blocks = whole_blocks(&range);
        if range.end >= self.size() && range.start < range.end {
            // There is nothing behind the end that a whole block could lose.
            blocks.end = range.end.next_multiple_of(SECTOR_BYTES).max(blocks.start);
        }
        let parts = self.not_preallocated(&blocks)?;
        self.prepare_aside(&parts, size)?;
        let edges = self.prepare_edges(&range, &blocks)?;
        let zeroed = self.set_aside(&parts, size, &mut *stamp);
        self.finish_edges(edges, zeroed)?;
        self.try_merge(stamp);
        Ok(())
    }

    /// What of some blocks holds data or nothing.
    fn not_preallocated(&self, blocks: &Range<u64>) -> Result<Vec<Range<u64>>, FileError> {
        let mut parts = Vec::new();
        let mut at = blocks.start;
        for mapping in Mappings::of(&self.view, blocks.clone()) {
            let mapping = mapping?;
            if !matches!(mapping.kind, MappingKind::Preallocated { .. }) {
                parts.push(mapping.offset..mapping.end());
            }
            at = mapping.end();
        }
        parts.push(at..blocks.end.max(at));
        Ok(joined(parts))
    }

    fn size_after(&self, range: &Range<u64>, end: FileEnd) -> u64 {
        match end {
            FileEnd::Moves if !range.is_empty() => self.size().max(range.end),
            FileEnd::Moves | FileEnd::Stays => self.size(),
        }
    }

    /// Prepares to write zeroes over what of a range lies before and behind some blocks.
    fn prepare_edges(
        &mut self,
        range: &Range<u64>,
        blocks: &Range<u64>,
    ) -> Result<Vec<Edge>, FileError> {
        let before = range.start..blocks.start.min(range.end);
        let behind = blocks.end.min(range.end)..range.end;
        self.prepare_zeroes(&[before, behind], self.size())
    }

    /// The holes of some blocks.
    fn without_space(&self, blocks: &Range<u64>) -> Result<Vec<Range<u64>>, FileError> {
        let mut holes = Vec::new();
        let mut at = blocks.start;
        for mapping in Mappings::of(&self.view, blocks.clone()) {
            let mapping = mapping?;
            if mapping.kind == MappingKind::Hole {
                holes.push(mapping.offset..mapping.end());
            }
            at = mapping.end();
        }
        holes.push(at..blocks.end.max(at));
        Ok(joined(holes))
    }

    /// Does what has to come before [`Self::set_aside`], and may bring the file into the tree: the
    /// file leaves the inline form, also in the tree, as extents come behind its first block or
    /// instead of it; and the item of the new size is covered.
    fn prepare_aside(&mut self, parts: &[Range<u64>], size: u64) -> Result<(), FileError> {
        let ends = parts.first().zip(parts.last());
        if let Some(reaches) = ends.map(|(first, last)| first.start..last.end) {
            let is_inline = self.shape()?.is_inline;
            self.outgrow(INLINE_BYTES_MAX + 1, &reaches)?;
            if is_inline && reaches.start > 0 {
                self.merge(&mut |_| {})?;
            }
        }
        self.promise(1, 0, size)
    }

    /// Puts space that is set aside in place of whatever `parts` hold (law 2), and sets the size.
    fn set_aside(
        &mut self,
        parts: &[Range<u64>],
        size: u64,
        stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        let mut asides = self.space_for(parts)?;
        while !asides.is_empty() {
            let rest = asides.split_off(asides.len().min(PIECE_ITEMS));
            self.live.quiesce();
            let put = if rest.is_empty() {
                self.put_aside(&asides, &mut *stamp)
            } else {
                self.put_aside(&asides, &mut |_| {})
            };
            if let Err(error) = put {
                self.release(asides.into_iter().chain(rest).map(|(_, space)| space));
                return Err(error);
            }
            for (part, _) in &asides {
                self.drop_overlay(part.clone());
            }
            asides = rest;
        }
        if size > self.size() {
            self.live.set_size(size);
        }
        Ok(())
    }

    /// Space for all of the parts, or none.
    fn space_for(&self, parts: &[Range<u64>]) -> Result<Vec<Aside>, FileError> {
        let mut asides: Vec<Aside> = Vec::new();
        for part in parts {
            let mut at = part.start;
            while at < part.end {
                match self.allocate_run((part.end - at).min(EXTENT_BYTES_MAX)) {
                    Ok(space) => {
                        let end = at + (space.end - space.start);
                        asides.push((at..end, space));
                        at = end;
                    }
                    Err(error) => {
                        self.release(asides.into_iter().map(|(_, space)| space));
                        return Err(error);
                    }
                }
            }
        }
        Ok(asides)
    }

    fn put_aside(&mut self, asides: &[Aside], stamp: Stamp<'_>) -> Result<(), FileError> {
        let mut draft = Draft { flags: InodeFlags::PREALLOC, ..self.draft() };
        for (part, space) in asides {
            let bytes = space.end - space.start;
            let disk = DiskExtent { logical: Logical(space.start), bytes };
            let run = ExtentRun { offset: 0, num_bytes: bytes };
            let extent = FileExtent::preallocated(Generation(0), disk, run);
            draft.gone.push(part.clone());
            draft.come.push(Piece::new(part.start, extent));
            draft.fresh.push(disk.logical);
        }
        draft.fresh.sort_unstable();
        self.apply(draft, Purse::Free, stamp).map(|_| ())
    }
}

/// The whole blocks of a range; where there are none, an empty range.
fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    let first = range.start.next_multiple_of(SECTOR_BYTES);
    first..(range.end - range.end % SECTOR_BYTES).max(first)
}

/// Joins ranges that follow one another; leaves out empty ones.
fn joined(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
