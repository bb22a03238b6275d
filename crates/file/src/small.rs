//! Small files: whose bytes are in the tree itself.
//!
//! Laws, which are the kernel's:
//!
//! 1. A file is inline whole or not at all: it has at most [`INLINE_BYTES_MAX`] bytes, and no
//!    extent behind its first block.
//! 2. A file that outgrows this gets its first block on disk with the write that does it.
//! 3. Files that are written in place are never inline.
//! 4. What is inline is packed where the file is, and where that makes it smaller. A file of up to
//!    a block is inline if packing makes it so small that it may be (law 1).

use crate::dirty::Backing;
use crate::error::FileError;
use crate::pack::Packed;
use crate::piece::Piece;
use crate::source::in_memory;
use crate::state::FileState;
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, SECTOR_BYTES, length};
use std::ops::Range;

/// The largest inline file (the kernel's `max_inline`).
pub(crate) const INLINE_BYTES_MAX: u64 = 2048;

/// The bytes of a file, packed, as an inline item holds them.
#[derive(Debug)]
pub(crate) struct PackedInline {
    compression: Compression,
    bytes: Vec<u8>,
}

/// What the tree's items are, as far as small files care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) is_inline: bool,
    /// Some item shows more than the first block.
    pub(crate) reaches_on: bool,
}

impl FileState {
    pub(crate) fn shape(&mut self) -> Result<Shape, FileError> {
        if let Some(shape) = self.shape {
            return Ok(shape);
        }
        let mut shape = Shape { is_inline: false, reaches_on: false };
        let mut cursor = self.view.tree().cursor();
        cursor.seek(&Key::new(self.ino().0, ItemType::EXTENT_DATA, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if (key.objectid, key.item_type) != (self.ino().0, ItemType::EXTENT_DATA) {
                break;
            }
            let piece = Piece::of_item(key.offset, data)
                .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))?;
            shape.is_inline |= piece.is_inline();
            shape.reaches_on = piece.end() > SECTOR_BYTES;
            if shape.reaches_on {
                break;
            }
            cursor.advance()?;
        }
        self.shape = Some(shape);
        Ok(shape)
    }

    /// Whether the file may be inline with this size, blocks of `range` being written (law 1).
    pub(crate) fn is_small(&mut self, size: u64, range: &Range<u64>) -> Result<bool, FileError> {
        Ok(self.may_be_small(size, range) && !self.shape()?.reaches_on)
    }

    /// The same, as far as the tree need not be asked.
    fn may_be_small(&self, size: u64, range: &Range<u64>) -> bool {
        size <= INLINE_BYTES_MAX
            && range.end <= SECTOR_BYTES
            && !self.flags.contains(InodeFlags::NODATACOW)
            && !self.has_more()
    }

    /// Whether [`FileState::is_small`] and [`FileState::outgrow`] ask nothing of the tree.
    pub(crate) fn knows_smallness(&self, size: u64, range: &Range<u64>) -> bool {
        if self.may_be_small(size, range) {
            return self.shape.is_some();
        }
        let is_first_new = range.start == 0 || self.is_first_covered();
        is_first_new || self.shape.is_some_and(|shape| !shape.is_inline)
    }

    /// Whether something dirty is to go into the tree: it goes down no other way.
    pub fn has_dirty_inline(&self) -> bool {
        self.dirty_backing(0) == Some(Backing::Inline)
    }

    /// Something newer than the tree is behind the first block, or on disk.
    fn has_more(&self) -> bool {
        self.live.overlay().patch_count() > 0
            || self.live.pages().state(0).is_written()
            || self.live.pages().next_newer(&(1..u64::MAX)).is_some()
    }

    /// Law 4, before what is dirty goes down: whether the first block goes into the tree, and how.
    pub(crate) fn decide_inline(&mut self) -> Result<(), FileError> {
        self.packed_inline = None;
        let size = self.size();
        let Some((block, backing)) = self.newer_block(0) else { return Ok(()) };
        let may_be = match backing {
            Backing::Inline => true,
            Backing::Reserved if self.packing().is_some() => {
                size <= SECTOR_BYTES && !self.has_more() && !self.shape()?.reaches_on
            }
            Backing::Reserved | Backing::InPlace => false,
        };
        if !may_be {
            return Ok(());
        }
        self.packed_inline = self.pack_inline(block.get(..in_memory(size)).unwrap_or_default());
        match (backing, &self.packed_inline) {
            (Backing::Reserved, Some(_)) => {
                self.back_with(0, Backing::Inline);
                self.bytes_reserved -= SECTOR_BYTES;
            }
            (Backing::Inline, None) if size > INLINE_BYTES_MAX => {
                if let Err(error) = self.reserve(1) {
                    self.note(&error);
                    self.forget_pages(&(0..SECTOR_BYTES));
                    return Err(error);
                }
                self.back_with(0, Backing::Reserved);
            }
            _ => {}
        }
        Ok(())
    }

    fn pack_inline(&self, bytes: &[u8]) -> Option<PackedInline> {
        let packing = self.packing()?;
        let bytes_max = bytes.len().checked_sub(1)?.min(in_memory(INLINE_BYTES_MAX));
        match packing.try_pack(bytes, bytes_max) {
            Packed::Smaller(bytes) => {
                Some(PackedInline { compression: packing.compression(), bytes })
            }
            Packed::Plain { .. } => None,
        }
    }

    /// Law 2, before the blocks of `range` are written and the file has `size` bytes.
    pub(crate) fn outgrow(&mut self, size: u64, range: &Range<u64>) -> Result<(), FileError> {
        if self.is_small(size, range)? {
            return Ok(());
        }
        if !range.contains(&0) {
            self.wait_for_direct_writes(&(0..SECTOR_BYTES));
        }
        let first = self.newer_block(0).map(|(_, backing)| backing);
        if first == Some(Backing::Inline) {
            self.reserve(1)?;
            self.back_with(0, Backing::Reserved);
        } else if first.is_none() && !range.contains(&0) && self.is_inline_now()? {
            let bytes = self.read_block(0)?;
            self.reserve(1)?;
            self.put_block(0, bytes, Backing::Reserved);
        }
        Ok(())
    }

    /// The file reads from an inline item.
    pub(crate) fn is_inline_now(&mut self) -> Result<bool, FileError> {
        Ok(!self.is_first_covered() && self.shape()?.is_inline)
    }

    /// The tree's item of the first block is out of date.
    fn is_first_covered(&self) -> bool {
        self.is_newer(0)
            || self.live.overlay().patches().next().is_some_and(|(start, _)| start == 0)
    }
}

impl PackedInline {
    /// The item of a file of `size` bytes.
    pub(crate) fn extent(&self, size: u64) -> FileExtent<'_> {
        debug_assert!(length(self.bytes.len()) < size, "packing made it smaller");
        FileExtent {
            generation: Generation(0),
            ram_bytes: size,
            compression: self.compression,
            body: ExtentBody::Inline(&self.bytes),
        }
    }
}
