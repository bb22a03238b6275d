//! `fallocate`: punches holes, preallocates space, and zeroes ranges.
//!
//! Laws:
//!
//! 1. The items of whole blocks are changed in the trees before a call returns. The partial blocks
//!    at the edges of a range are written like any other data.
//! 2. Space is allocated for all of a range before any of it is preallocated: where there is not
//!    enough, none of it is.
//! 3. A long range is changed in steps that a transaction can reserve for; a hole in smaller ones
//!    where the volume is too full for a whole one.
//! 4. Nothing is dropped from memory before the edit of the tree has succeeded: everything that can
//!    fail comes first (the edges are read and their space is reserved), then the edit of the tree.
//!    Only when that has succeeded are the pages and pending extents of the step dropped, the edges
//!    zeroed and the size set, which cannot fail. An operation of one step that fails has changed
//!    nothing; one of several steps has changed those before the failure, and each byte is as
//!    before or zero.

use crate::error::FileError;
use crate::extent_map::{MappingKind, Mappings};
use crate::merge::edit::Draft;
use crate::merge::extent_item::ExtentItem;
use crate::merge::items;
use crate::overlay::EXTENT_BYTES_MAX;
use crate::state::inline::INLINE_BYTES_MAX;
use crate::state::{FallocateSize, FileState, InodeUpdate};
use crate::truncate::{STEP_DIVISOR, STEP_ITEMS};
use crate::write::edge::Edge;
use butternut_format::file_extent::{DiskExtent, ExtentRun, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::units::{DiskRange, Generation, SECTOR_BYTES};
use butternut_sys::wait::Wait;
use butternut_tree::{ReservationLevel, TreeError};
use std::iter::once;
use std::ops::Range;

/// A range of the file, and the space that is preallocated for it.
type Preallocation = (Range<u64>, DiskRange);

impl FileState {
    /// Returns whether the inode has the flag of preallocated extents.
    pub fn has_preallocated(&self) -> bool {
        self.flags.contains(InodeFlags::PREALLOC)
    }

    /// Makes a range read as zeroes and frees its whole blocks. The size stays.
    ///
    /// # Errors
    /// The volume is not open for writing, or the trees cannot be changed. Each byte of the range
    /// then reads as before or as zero.
    pub fn punch_hole(
        &mut self,
        range: Range<u64>,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let punched = self.punch(&range, update);
        self.end_operation(punched)
    }

    fn punch(&mut self, range: &Range<u64>, update: InodeUpdate<'_>) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_end(range.end, 0)?;
        let blocks = whole_blocks(range);
        let edges = self.prepare_edges(range, &blocks, self.size())?;
        let punched = self.punch_blocks(&blocks, update);
        self.finish_edges(edges, punched)
    }

    /// Drops whole blocks from the tree, then from memory (law 4).
    fn punch_blocks(
        &mut self,
        blocks: &Range<u64>,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let (mut at, mut items_max) = (blocks.start, STEP_ITEMS);
        while at < blocks.end {
            let stop = items::stop_after(&self.view, at..blocks.end, items_max)?;
            assert!(at < stop && stop <= blocks.end, "a step from {at} to {stop} of {blocks:?}");
            let in_tree = self.size_in_tree.next_multiple_of(SECTOR_BYTES);
            let draft = Draft {
                dropped: once(at..stop).collect(),
                covered: once(at.min(in_tree)..stop.min(in_tree)).collect(),
                ..self.draft()
            };
            self.shared.wait_for_readahead();
            let applied = if stop < blocks.end {
                self.apply(draft, ReservationLevel::Deletion, &mut |_| {})
            } else {
                self.apply(draft, ReservationLevel::Deletion, &mut *update)
            };
            match applied {
                // A step without space has changed nothing.
                Err(error) if error.is_no_space() && items_max > 1 => {
                    items_max /= STEP_DIVISOR;
                    continue;
                }
                applied => applied?,
            };
            self.drop_overlay(at..stop);
            at = stop;
        }
        Ok(())
    }

    /// Prepares the change of a range that may lie past the end: reserves metadata, and moves
    /// inline data to disk. Returns the size that the file will have.
    fn begin_range(&mut self, range: &Range<u64>, end: FallocateSize) -> Result<u64, FileError> {
        self.check_writable()?;
        self.check_end(range.end, 0)?;
        let size = self.size_after(range, end);
        if range.start.max(size) > self.size() {
            self.zero_after_end(Wait::Block)?;
        }
        // Before the first block becomes dirty, which counts as one more.
        self.reserve_metadata(1, 1, size, Wait::Block)?;
        self.leave_inline(size, &(0..0), Wait::Block)?;
        Ok(size)
    }

    /// Preallocates space for the holes of a range.
    ///
    /// # Errors
    /// There is not enough space for the whole range, or the trees cannot be changed.
    pub fn allocate(
        &mut self,
        range: Range<u64>,
        end: FallocateSize,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let allocated = self.allocate_holes(&range, end, update);
        self.end_operation(allocated)
    }

    fn allocate_holes(
        &mut self,
        range: &Range<u64>,
        end: FallocateSize,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let size = self.begin_range(range, end)?;
        let blocks =
            range.start - range.start % SECTOR_BYTES..range.end.next_multiple_of(SECTOR_BYTES);
        let holes = self.holes_in(&blocks)?;
        self.prepare_preallocation(&holes, size)?;
        self.preallocate(&holes, size, &mut *update)?;
        self.try_merge(update);
        Ok(())
    }

    /// Makes a range read as zeroes, with preallocated space.
    ///
    /// # Errors
    /// There is not enough space for the whole range, or the trees cannot be changed.
    pub fn zero_range(
        &mut self,
        range: Range<u64>,
        end: FallocateSize,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let zeroed = self.zero(&range, end, update);
        self.end_operation(zeroed)
    }

    fn zero(
        &mut self,
        range: &Range<u64>,
        end: FallocateSize,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let size = self.begin_range(range, end)?;
        let mut blocks = whole_blocks(range);
        if range.end >= self.size() && range.start < range.end {
            // The last block has no data past the end that could be lost.
            blocks.end = range.end.next_multiple_of(SECTOR_BYTES).max(blocks.start);
        }
        let parts = self.not_preallocated(&blocks)?;
        self.prepare_preallocation(&parts, size)?;
        // Extents after the first block, and a larger size, make the file too large to be inline.
        let extents = if parts.is_empty() { 0 } else { INLINE_BYTES_MAX + 1 };
        let edges = self.prepare_edges(range, &blocks, size.max(extents))?;
        let zeroed = self.preallocate(&parts, size, &mut *update);
        self.finish_edges(edges, zeroed)?;
        self.try_merge(update);
        Ok(())
    }

    /// The parts of some blocks that are not preallocated.
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

    fn size_after(&self, range: &Range<u64>, end: FallocateSize) -> u64 {
        match end {
            FallocateSize::Extend if !range.is_empty() => self.size().max(range.end),
            FallocateSize::Extend | FallocateSize::Keep => self.size(),
        }
    }

    /// Prepares zeroes over the parts of a range that lie before and after some blocks.
    fn prepare_edges(
        &mut self,
        range: &Range<u64>,
        blocks: &Range<u64>,
        new_size: u64,
    ) -> Result<Vec<Edge>, FileError> {
        let before = range.start..blocks.start.min(range.end);
        let after = blocks.end.min(range.end)..range.end;
        self.prepare_zeroes(&[before, after], new_size)
    }

    /// The holes of some blocks.
    fn holes_in(&self, blocks: &Range<u64>) -> Result<Vec<Range<u64>>, FileError> {
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

    /// Does what must precede [`Self::preallocate`]. It moves inline data to disk, and merges it
    /// where extents will lie after the first block; and it reserves the metadata of the new size.
    fn prepare_preallocation(&mut self, parts: &[Range<u64>], size: u64) -> Result<(), FileError> {
        let ends = parts.first().zip(parts.last());
        if let Some(reaches) = ends.map(|(first, last)| first.start..last.end) {
            let is_inline = self.shape(Wait::Block)?.is_inline;
            self.leave_inline(INLINE_BYTES_MAX + 1, &reaches, Wait::Block)?;
            if is_inline && reaches.start > 0 {
                self.merge(&mut |_| {})?;
            }
        }
        self.reserve_metadata(1, 0, size, Wait::Block)
    }

    /// Replaces whatever `parts` hold by preallocated space (law 2), and sets the size.
    fn preallocate(
        &mut self,
        parts: &[Range<u64>],
        size: u64,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let mut preallocations = self.allocate_for(parts)?;
        while !preallocations.is_empty() {
            let rest = preallocations.split_off(preallocations.len().min(STEP_ITEMS));
            self.shared.wait_for_readahead();
            let put = if rest.is_empty() {
                self.insert_preallocated(&preallocations, &mut *update)
            } else {
                self.insert_preallocated(&preallocations, &mut |_| {})
            };
            if let Err(error) = put {
                self.release(preallocations.into_iter().chain(rest).map(|(_, space)| space));
                return Err(error);
            }
            for (part, _) in &preallocations {
                self.drop_overlay(part.clone());
            }
            preallocations = rest;
        }
        if size > self.size() {
            self.shared.set_size(size);
        }
        Ok(())
    }

    /// Allocates space for all of the parts, or none.
    fn allocate_for(&self, parts: &[Range<u64>]) -> Result<Vec<Preallocation>, FileError> {
        // What cannot fit takes no space from others meanwhile.
        let bytes =
            parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.end - part.start));
        let forest = self.source.forest();
        if bytes > forest.unused_bytes()? && forest.commits_for_space() {
            // What was deleted counts as used until then.
            forest.commit()?;
        }
        if bytes > forest.unused_bytes()? {
            return Err(TreeError::NoSpace { bytes }.into());
        }
        let mut preallocations: Vec<Preallocation> = Vec::new();
        for part in parts {
            let mut at = part.start;
            while at < part.end {
                match self.allocate_run((part.end - at).min(EXTENT_BYTES_MAX)) {
                    Ok(space) => {
                        let end = at + space.bytes();
                        preallocations.push((at..end, space));
                        at = end;
                    }
                    Err(error) => {
                        self.release(preallocations.into_iter().map(|(_, space)| space));
                        return Err(error);
                    }
                }
            }
        }
        Ok(preallocations)
    }

    fn insert_preallocated(
        &mut self,
        preallocations: &[Preallocation],
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let mut draft = Draft { flags: InodeFlags::PREALLOC, ..self.draft() };
        for (part, space) in preallocations {
            let bytes = space.bytes();
            let disk = DiskExtent { logical: space.start(), bytes };
            let run = ExtentRun { offset: 0, num_bytes: bytes };
            let extent = FileExtent::preallocated(Generation(0), disk, run);
            draft.dropped.push(part.clone());
            draft.inserted.push(ExtentItem::new(part.start, extent));
            draft.new_extents.push(disk.logical);
        }
        draft.new_extents.sort_unstable();
        self.apply(draft, ReservationLevel::Normal, update).map(|_| ())
    }
}

/// The whole blocks of a range; where there are none, an empty range.
fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    let first = range.start.next_multiple_of(SECTOR_BYTES);
    first..(range.end - range.end % SECTOR_BYTES).max(first)
}

/// Joins adjacent ranges, and drops empty ones.
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
