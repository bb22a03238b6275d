//! Holes punched, space set aside, ranges made zero.
//!
//! Laws:
//!
//! 1. Whole blocks change in the trees at once; what is cut of the blocks at the edges is written,
//!    as any write is.
//! 2. Space is set aside for all of a range or for none of it.
//! 3. A long range goes in pieces that a transaction can reserve for.

use crate::edit::Draft;
use crate::error::FileError;
use crate::items;
use crate::map::{MappingKind, Mappings};
use crate::overlay::EXTENT_BYTES_MAX;
use crate::piece::Piece;
use crate::small::INLINE_BYTES_MAX;
use crate::source::in_memory;
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
        let blocks = self.zero_edges(&range, self.size())?;
        self.drop_overlay(blocks.clone());
        let mut at = blocks.start;
        while at < blocks.end {
            let stop = items::stop_after(&self.view, at..blocks.end, PIECE_ITEMS)?;
            let in_tree = self.size_in_tree.next_multiple_of(SECTOR_BYTES);
            let draft = Draft {
                gone: once(at..stop).collect(),
                covered: once(at.min(in_tree)..stop.min(in_tree)).collect(),
                ..self.draft()
            };
            at = stop;
            if at < blocks.end {
                self.apply(draft, Purse::Deletion, &mut |_| {})?;
            } else {
                self.apply(draft, Purse::Deletion, &mut *stamp)?;
            }
            self.live.touch();
        }
        if blocks.is_empty() {
            self.apply(self.draft(), Purse::Free, stamp)?;
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
        let holes = self.without_space(&blocks)?;
        self.outgrow(size, &(0..0))?;
        self.set_aside(&holes, size, stamp)
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
        let mut blocks = self.zero_edges(&range, self.size())?;
        if range.end >= self.size() && range.start < range.end {
            // There is nothing behind the end that a whole block could lose.
            blocks.end = range.end.next_multiple_of(SECTOR_BYTES).max(blocks.start);
        }
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
        self.set_aside(&joined(parts), size, stamp)
    }

    fn size_after(&self, range: &Range<u64>, end: FileEnd) -> u64 {
        match end {
            FileEnd::Moves if !range.is_empty() => self.size().max(range.end),
            FileEnd::Moves | FileEnd::Stays => self.size(),
        }
    }

    /// Writes zeroes over the cut blocks at the edges of a range. Returns its whole blocks.
    fn zero_edges(&mut self, range: &Range<u64>, size: u64) -> Result<Range<u64>, FileError> {
        let first = range.start.next_multiple_of(SECTOR_BYTES);
        let last = range.end - range.end % SECTOR_BYTES;
        self.zero_part(range.start..first.min(range.end), size)?;
        if last >= first {
            self.zero_part(last..range.end, size)?;
        }
        Ok(first..last.max(first))
    }

    /// Writes zeroes over a part of one block, as far as it is in the file and holds data.
    fn zero_part(&mut self, part: Range<u64>, size: u64) -> Result<(), FileError> {
        let part = part.start..part.end.min(size);
        let block = part.start - part.start % SECTOR_BYTES;
        if part.is_empty() {
            return Ok(());
        }
        if !self.is_newer(block) && !self.has_data_at(block)? {
            return Ok(());
        }
        self.write_buffered(part.start, &vec![0; in_memory(part.end - part.start)])
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

    /// Puts space that is set aside in place of whatever `parts` hold (law 2), and sets the size.
    fn set_aside(
        &mut self,
        parts: &[Range<u64>],
        size: u64,
        stamp: Stamp<'_>,
    ) -> Result<(), FileError> {
        let reaches = parts
            .first()
            .map_or(0..0, |first| first.start..parts.last().map_or(first.end, |last| last.end));
        if !reaches.is_empty() {
            // Extents behind the first block, or instead of it: the file is not inline any more.
            self.outgrow(INLINE_BYTES_MAX + 1, &reaches)?;
        }
        let mut asides = self.space_for(parts)?;
        for part in parts {
            self.drop_overlay(part.clone());
        }
        while !asides.is_empty() {
            let rest = asides.split_off(asides.len().min(PIECE_ITEMS));
            if let Err(error) = self.put_aside(&asides) {
                self.release(asides.into_iter().chain(rest).map(|(_, space)| space));
                return Err(error);
            }
            asides = rest;
            self.live.touch();
        }
        if size > self.size() {
            self.live.set_size(size);
        }
        self.merge_and_stamp(stamp)
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

    fn put_aside(&mut self, asides: &[Aside]) -> Result<(), FileError> {
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
        self.apply(draft, Purse::Free, &mut |_| {}).map(|_| ())
    }
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
