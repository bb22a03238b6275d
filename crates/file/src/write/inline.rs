//! Inline files: small files whose data is in the tree.
//!
//! Laws, which are the kernel's:
//!
//! 1. A file is inline as a whole or not at all: it has at most [`INLINE_BYTES_MAX`] bytes, and no
//!    extent after its first block.
//! 2. The write that makes a file too large to be inline moves its first block to disk. If that
//!    block cannot be written, the next merge writes it once more. If it fails again, the tree has
//!    the inline item beside the extents that were written, as with the kernel, until a later write
//!    moves the block.
//! 3. Files with nodatacow are never inline.
//! 4. Inline data is compressed where the file is, and where that makes it smaller. A file of up to
//!    one block is inline if its compressed data is small enough (law 1). Its space on disk stays
//!    reserved until it is in the tree: its end may be cut off, or its flags may change, and then
//!    it may not be compressible any more.

use crate::error::FileError;
use crate::merge::extent_item::ExtentItem;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::state::inline::{CompressedInline, INLINE_BYTES_MAX, InlineShape};
use crate::units::in_memory;
use crate::wait::may_block;
use crate::writeback::compress::Outcome;
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::SECTOR_BYTES;
use butternut_sys::wait::Wait;
use std::ops::Range;

impl FileState {
    /// What the items of the file say; they are read from the tree once.
    pub(crate) fn shape(&mut self, wait: Wait) -> Result<InlineShape, FileError> {
        if let Some(shape) = self.shape {
            return Ok(shape);
        }
        may_block(wait)?;
        let mut shape = InlineShape { is_inline: false, has_later_extents: false };
        let mut cursor = self.view.tree().cursor();
        cursor.seek(&Key::new(self.ino().0, ItemType::EXTENT_DATA, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if (key.objectid, key.item_type) != (self.ino().0, ItemType::EXTENT_DATA) {
                break;
            }
            let item = ExtentItem::from_item(key.offset, data)
                .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))?;
            shape.is_inline |= item.is_inline();
            shape.has_later_extents = item.end() > SECTOR_BYTES;
            if shape.has_later_extents {
                break;
            }
            cursor.advance()?;
        }
        self.shape = Some(shape);
        Ok(shape)
    }

    /// Whether the file may be inline with this size when the blocks of `range` are written
    /// (law 1).
    pub(crate) fn may_be_inline(
        &mut self,
        size: u64,
        range: &Range<u64>,
        wait: Wait,
    ) -> Result<bool, FileError> {
        Ok(self.may_be_inline_by_size(size, range) && !self.shape(wait)?.has_later_extents)
    }

    /// Whether the file may be inline, as far as its size, its flags and its newer data tell; the
    /// tree is not read.
    fn may_be_inline_by_size(&self, size: u64, range: &Range<u64>) -> bool {
        size <= INLINE_BYTES_MAX
            && range.end <= SECTOR_BYTES
            && !self.flags.contains(InodeFlags::NODATACOW)
            && !self.has_other_newer_data()
    }

    /// Returns whether the file has dirty inline data, which only a merge writes.
    pub fn has_dirty_inline(&self) -> bool {
        self.dirty_backing(0).is_some_and(Backing::is_inline)
    }

    /// Whether data that is newer than the tree lies after the first block, or on disk.
    fn has_other_newer_data(&self) -> bool {
        self.has_other_newer_data_around(|| {})
    }

    /// Looks at the pages, calls `between`, and looks at the pending extents. A writeback that
    /// completes without the inode lock inserts its pending extents before it ends its pages, so in
    /// this order a block under writeback is seen in one of the two.
    fn has_other_newer_data_around(&self, between: impl FnOnce()) -> bool {
        let has_pages = self.shared.pages().state(0).is_under_writeback()
            || self.shared.pages().next_newer(&(1..u64::MAX)).is_some();
        between();
        has_pages || self.shared.overlay().pending_count() > 0
    }

    /// Decides, before dirty blocks are written back, whether the first block becomes inline, and
    /// compresses it (law 4).
    pub(crate) fn decide_inline(&mut self) -> Result<(), FileError> {
        self.compressed_inline = None;
        let is_leaving_inline = std::mem::take(&mut self.is_leaving_inline);
        let size = self.size();
        let Some((block, backing)) = self.newer_block(0) else { return Ok(()) };
        let may_be = match backing {
            Backing::Inline | Backing::CompressedInline => true,
            Backing::Reserved if self.compression_policy().is_some() => {
                size <= SECTOR_BYTES
                    && !is_leaving_inline
                    && !self.has_other_newer_data()
                    && !self.shape(Wait::Block)?.has_later_extents
            }
            Backing::Reserved | Backing::InPlace => false,
        };
        if !may_be {
            return Ok(());
        }
        self.compressed_inline =
            self.compress_inline(block.get(..in_memory(size)).unwrap_or_default());
        match (backing, &self.compressed_inline) {
            (Backing::Reserved, Some(_)) => self.set_backing(0, Backing::CompressedInline),
            (Backing::CompressedInline, None) => self.set_backing(0, Backing::Reserved),
            (Backing::Inline, None) if size > INLINE_BYTES_MAX => {
                // Without space it stays dirty, and no merge writes it.
                self.reserve(1, Wait::Block)?;
                self.set_backing(0, Backing::Reserved);
            }
            _ => {}
        }
        Ok(())
    }

    fn compress_inline(&self, bytes: &[u8]) -> Option<CompressedInline> {
        let policy = self.compression_policy()?;
        let bytes_max = bytes.len().checked_sub(1)?.min(in_memory(INLINE_BYTES_MAX));
        match policy.try_compress(bytes, bytes_max) {
            Outcome::Smaller(bytes) => {
                Some(CompressedInline { compression: policy.compression(), bytes })
            }
            Outcome::Plain { .. } => None,
        }
    }

    /// Moves the first block out of the tree, if the file will be too large to be inline, before
    /// the blocks of `range` are written and the file has `size` bytes (law 2).
    ///
    /// With [`Wait::NoWait`] it refuses before it changes anything, and reads no block: it changes
    /// at most where the first block will be written.
    pub(crate) fn leave_inline(
        &mut self,
        size: u64,
        range: &Range<u64>,
        wait: Wait,
    ) -> Result<(), FileError> {
        if self.may_be_inline(size, range, wait)? {
            return Ok(());
        }
        if !range.contains(&0) {
            self.wait_for_direct_writes(&(0..SECTOR_BYTES), wait)?;
        }
        self.is_leaving_inline |= range.end > SECTOR_BYTES;
        let first = self.newer_block(0).map(|(_, backing)| backing);
        if let Some(backing) = first.filter(|backing| backing.is_inline()) {
            self.reserve(usize::from(!backing.is_reserved()), wait)?;
            self.set_backing(0, Backing::Reserved);
        } else if first.is_none() && !range.contains(&0) && self.is_inline_now(wait)? {
            may_block(wait)?;
            let bytes = self.read_block(0, wait)?;
            self.reserve(1, wait)?;
            self.put_block(0, bytes, Backing::Reserved);
        }
        Ok(())
    }

    /// Dirties the first block once more, if its writeback failed when the file became too large to
    /// be inline (law 2). The caller writes it back before it merges the extents that follow it.
    pub(crate) fn retry_leave_inline(&mut self) -> Result<(), FileError> {
        let may_be_inline = (1..=SECTOR_BYTES).contains(&self.size_in_tree);
        if !may_be_inline || !self.has_other_newer_data() {
            return Ok(());
        }
        let wait = Wait::Block;
        self.wait_for_direct_writes(&(0..SECTOR_BYTES), wait)?;
        if self.is_inline_now(wait)? {
            let bytes = self.read_block(0, wait)?;
            self.reserve(1, wait)?;
            self.put_block(0, bytes, Backing::Reserved);
        }
        Ok(())
    }

    /// Whether the file reads from an inline item.
    pub(crate) fn is_inline_now(&mut self, wait: Wait) -> Result<bool, FileError> {
        Ok(!self.is_first_block_newer() && self.shape(wait)?.is_inline)
    }

    /// Whether the first block is newer than the tree.
    fn is_first_block_newer(&self) -> bool {
        self.is_newer(0)
            || self.shared.overlay().pending_extents().next().is_some_and(|(start, _)| start == 0)
    }
}

#[cfg(test)]
mod tests {
    use crate::test_volume::{file, open};
    use butternut_pages::WritebackReason;

    #[test]
    fn a_writeback_that_completes_between_the_two_looks_is_seen() {
        let source = open();
        let mut file = file(&source);
        file.write_at(0, &[1; 3000]).expect("space");
        file.truncate(1000, &mut |_| {}).expect("a smaller file");
        let (batch, planned) = file.start_writeback(u64::MAX, WritebackReason::Sync);
        planned.expect("a plan");
        let batch = batch.expect("a dirty block");
        assert!(file.has_other_newer_data_around(|| batch.write_and_complete().expect("a write")));
    }
}
