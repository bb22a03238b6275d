//! Clones: a range of a file that shares the extents of another range (`FICLONERANGE`).
//!
//! ```text
//! source   |---- A ----|  hole  |-- B, preallocated --|- C, inline -|
//!               |________________________|
//! target        |- A --|  hole  |--- B --|      A and B get one more reference each
//! ```
//!
//! The caller holds the inode locks of both files exclusively, in the order of their ids, has
//! drained both, and has merged the source. So each byte of both files is in the trees, with its
//! checksums, and stays there until the clone is complete.
//!
//! Laws:
//!
//! 1. A step drops what the target has in a part of the range and inserts the items of the source,
//!    in one transaction that has reserved its space before it changes anything. Each new item adds
//!    a reference to its extent in the same transaction.
//! 2. Only when a step is in the trees are the pages and pending extents of the target dropped, and
//!    its size set. A clone of several steps that fails keeps the steps before the failure.
//! 3. Before an extent is shared, the items version of the source changes: no write target that was
//!    cached before is used again (law 6 of [`crate::shared_file`]). Every later lookup finds the
//!    new reference, also while a commit applies it.
//! 4. A hole of the source becomes a hole of the target. A preallocated extent is shared as it is:
//!    neither file writes in place while it is shared.
//! 5. Each new item keeps the generation of the source's item. An fsync then logs the checksums of
//!    those extents only that the running transaction has added: the checksum tree of the last
//!    commit has the others.
//! 6. An inline item is copied where the target becomes inline as a whole (law 1 of
//!    [`crate::write::inline`]). Otherwise its bytes are written, and merged before the next step.

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::merge::extent_item::ExtentItem;
use crate::merge::items;
use crate::state::inline::INLINE_BYTES_MAX;
use crate::state::{FileState, InodeUpdate};
use crate::truncate::STEP_ITEMS;
use crate::units::in_memory;
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::require;
use butternut_format::units::{Generation, SECTOR_BYTES, length};
use butternut_sys::wait::Wait;
use butternut_tree::ReservationLevel;
use std::cell::Cell;
use std::iter::once;
use std::ops::Range;

/// The number of items of a step on a volume that has no space for the usual one.
const FULL_VOLUME_STEP_ITEMS: usize = 8;

/// A range of a source and where its clone begins, in bytes. Both offsets are block-aligned. The
/// length is too, unless the range ends at the end of the source and the clone at or after the end
/// of the target. The range is inside the source and not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRange {
    /// Offset in the source.
    pub from: u64,
    /// Offset in the target.
    pub to: u64,
    /// Length.
    pub bytes: u64,
}

impl CloneRange {
    /// The end of the clone in the target.
    fn end(&self) -> u64 {
        self.to.saturating_add(self.bytes)
    }

    /// The length in whole blocks.
    fn block_bytes(&self) -> u64 {
        self.bytes.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(self.bytes)
    }

    /// Records that the range is cloned up to block border `at`.
    fn note_done(&self, at: u64, done: &Cell<u64>) {
        done.set(done.get().max(at.min(self.bytes)));
    }

    /// The blocks of the source from byte `at` of the range on.
    fn source_blocks(&self, at: u64) -> Range<u64> {
        self.from.saturating_add(at)..self.from.saturating_add(self.block_bytes())
    }

    /// The blocks of the target from byte `at` of the range on.
    fn target_blocks(&self, at: u64) -> Range<u64> {
        self.to.saturating_add(at)..self.to.saturating_add(self.block_bytes())
    }
}

impl FileState {
    /// Makes a range of this file share the extents of a range of `source`, which may be this file
    /// if the ranges do not overlap. What the file had in the range is dropped; the file grows as
    /// needed. The caller has merged the source, and holds both inode locks. Raises `done` to the
    /// number of bytes that are cloned, also if the clone fails.
    ///
    /// # Errors
    /// There is not enough space, data cannot be written back, or the trees cannot be changed. The
    /// range then reads as before, or as the source up to some block and as before after that.
    pub fn clone_range(
        &mut self,
        source: &FileView,
        range: CloneRange,
        update: InodeUpdate<'_>,
        done: &Cell<u64>,
    ) -> Result<(), FileError> {
        let cloned = self.clone_parts(source, &range, update, done);
        self.end_operation(cloned)
    }

    fn clone_parts(
        &mut self,
        source: &FileView,
        range: &CloneRange,
        update: InodeUpdate<'_>,
        done: &Cell<u64>,
    ) -> Result<(), FileError> {
        self.check_writable()?;
        let end = self.check_end(range.to, range.bytes)?;
        if range.to > self.size() {
            self.zero_after_end(Wait::Block)?;
        }
        if range.to > 0 {
            // An extent lies after the first block then.
            self.reserve_metadata(1, 1, self.size().max(end), Wait::Block)?;
            self.leave_inline(INLINE_BYTES_MAX + 1, &range.target_blocks(0), Wait::Block)?;
        }
        self.merge(&mut |_| {})?;
        if let Some(source) = source.shared() {
            source.forget_write_targets();
        }
        let inline = InlineItem::read(source, range.from)?;
        let is_copied = match &inline {
            Some(inline) => self.may_copy_inline(inline, range)?,
            None => true,
        };
        let mut at = 0;
        if !is_copied {
            self.write_first_block(source, range, &mut *update)?;
            at = SECTOR_BYTES;
            range.note_done(at, done);
        }
        let mut items = STEP_ITEMS;
        while at < range.block_bytes() {
            let inline = inline.as_ref().filter(|_| at == 0);
            let shared = self.share_part(source, range, (at, inline), items, &mut *update);
            at = match shared {
                Err(error) if error.is_no_space() && items > FULL_VOLUME_STEP_ITEMS => {
                    // The rest, too: each attempt with more items would commit first.
                    items = FULL_VOLUME_STEP_ITEMS;
                    continue;
                }
                shared => shared?,
            };
            range.note_done(at, done);
        }
        Ok(())
    }

    /// Shares the extents of one step, from byte `at` of the range on (law 1): at most `items` of
    /// either file. Returns where the next step begins.
    fn share_part(
        &mut self,
        source: &FileView,
        range: &CloneRange,
        (at, inline): (u64, Option<&InlineItem>),
        items: usize,
        update: InodeUpdate<'_>,
    ) -> Result<u64, FileError> {
        let (from, to) = (range.source_blocks(at), range.target_blocks(at));
        let stop_in_source = items::stop_after(source, from.clone(), items)? - range.from;
        let stop_in_target = items::stop_after(&self.view, to.clone(), items)? - range.to;
        let stop = stop_in_source.min(stop_in_target).next_multiple_of(SECTOR_BYTES);
        let want = format_args!("above {at}, where the step begins").to_string();
        require(stop > at, "end of a clone step", stop, want)
            .map_err(|refused| source.corrupt(refused))?;
        let (from, to) = (from.start..range.from + stop, to.start..range.to + stop);
        let mut draft = self.draft();
        for item in items::touching(source, std::slice::from_ref(&from))? {
            let part = item.start.max(from.start)..item.end().min(from.end);
            if part.is_empty() {
                continue;
            }
            match item.extent.body {
                ExtentBody::Hole { .. } | ExtentBody::Inline(_) => continue,
                ExtentBody::Regular { .. } => {}
                ExtentBody::Preallocated { .. } => draft.flags = InodeFlags::PREALLOC,
            }
            let cut = item.part(part.start, part.end);
            let start = part.start - range.from + range.to;
            draft.inserted.push(ExtentItem { start, extent: cut.extent, is_new: false });
        }
        if let Some(inline) = inline {
            draft.inserted.insert(0, ExtentItem::new(0, inline.extent()));
        }
        let size = self.size_in_tree.max(to.end.min(range.end()));
        // Past the old end, the gap before the range has no items yet.
        let grown = self.grown(size);
        let first = if grown.is_empty() { to.start } else { to.start.min(grown.start) };
        draft.size = size;
        draft.covered = once(first..to.end).collect();
        draft.dropped = once(to.clone()).collect();
        self.shared.wait_for_readahead();
        if stop < range.block_bytes() {
            self.apply(draft, ReservationLevel::Normal, &mut |_| {})?;
        } else {
            self.apply(draft, ReservationLevel::Normal, update)?;
        }
        self.drop_overlay(to);
        if size > self.size() {
            self.shared.set_size(size);
        }
        Ok(stop)
    }

    /// Returns whether the target can have the inline item of the source (law 6).
    fn may_copy_inline(
        &mut self,
        inline: &InlineItem,
        range: &CloneRange,
    ) -> Result<bool, FileError> {
        Ok(range.to == 0
            && self.size().max(range.bytes) == inline.ram_bytes
            && !self.flags.contains(InodeFlags::NODATACOW)
            && !self.shape(Wait::Block)?.has_later_extents)
    }

    /// Writes the first block of the range, and merges it (law 6).
    fn write_first_block(
        &mut self,
        source: &FileView,
        range: &CloneRange,
        update: InodeUpdate<'_>,
    ) -> Result<(), FileError> {
        let mut block = vec![0; in_memory(range.bytes.min(SECTOR_BYTES))];
        let mut done = 0;
        while let Some(rest) = block.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.source.read_at(source, range.from + length(done), rest)? {
                0 => break,
                read => done += read,
            }
        }
        // One block is written as a whole, or not at all.
        self.write_at(range.to, &block)?;
        self.merge(update).map(drop)
    }
}

/// The inline item of a source.
struct InlineItem {
    ram_bytes: u64,
    compression: Compression,
    bytes: Vec<u8>,
}

impl InlineItem {
    /// Reads the item at the start of a file, if it is inline and the range begins there.
    fn read(file: &FileView, from: u64) -> Result<Option<Self>, FileError> {
        if from > 0 {
            return Ok(None);
        }
        let key = Key::new(file.ino().0, ItemType::EXTENT_DATA, 0);
        let Some(item) = file.tree().find(&key)? else { return Ok(None) };
        let extent = FileExtent::check(item.data(), 0)
            .map_err(|refused| file.corrupt(refused.at(format_args!("extent item {key}"))))?;
        let FileExtent { ram_bytes, compression, body, .. } = extent;
        let ExtentBody::Inline(bytes) = body else { return Ok(None) };
        // The clone writes it as one block.
        require(ram_bytes <= SECTOR_BYTES, "ram_bytes", ram_bytes, "at most 4096, of inline data")
            .map_err(|refused| file.corrupt(refused.at(format_args!("extent item {key}"))))?;
        Ok(Some(Self { ram_bytes, compression, bytes: bytes.to_vec() }))
    }

    fn extent(&self) -> FileExtent<'_> {
        let Self { ram_bytes, compression, ref bytes } = *self;
        let body = ExtentBody::Inline(bytes);
        FileExtent { generation: Generation(0), ram_bytes, compression, body }
    }
}
