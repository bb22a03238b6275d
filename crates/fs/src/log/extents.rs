//! The changed extents of a file that is logged, and the holes between them.

use super::{FileLog, Logged, Stop};
use crate::Result;
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::SECTOR_BYTES;
use butternut_tree::{CommitReason, LogEntry, Tree};
use std::collections::BTreeSet;
use std::ops::Range;

/// The most extents past the end of one file that are logged. With more, a commit is cheaper.
const PAST_END_MAX: usize = 1024;

impl FileLog<'_> {
    /// Adds the current state at each changed offset (law 2 of [`log`](super)).
    pub(super) fn add_extents(&self, changed: &BTreeSet<u64>, entry: &mut LogEntry) -> Result<()> {
        // Up to here the log has what the tree has, as far as it changed.
        let mut covered_to = 0;
        for &offset in changed {
            let is_covered = offset < covered_to || offset == covered_to && offset > 0;
            if !is_covered {
                // An earlier hole in the log may begin before this offset.
                let start = self.end_before(offset)?;
                covered_to = self.next_from(offset)?;
                self.log_hole(start..covered_to, entry);
            }
            if let Some((extent_end, next)) = self.log_extent(offset, entry)? {
                self.log_hole(extent_end..next, entry);
                covered_to = next;
            }
        }
        Ok(())
    }

    /// Adds the extents past the end that neither changed nor are in the log, because a replay cuts
    /// off what a logged file has there.
    pub(super) fn add_past_end(&self, changed: &BTreeSet<u64>, entry: &mut LogEntry) -> Logged<()> {
        for (key, _) in extents_past_end(&self.tree, self.ino.0, self.inode.size)? {
            if !changed.contains(&key.offset) && !self.log.has_logged(self.tree.id(), &key) {
                self.log_extent(key.offset, entry)?;
            }
        }
        Ok(())
    }

    fn extent_key(&self, offset: u64) -> Key {
        self.key(ItemType::EXTENT_DATA, offset)
    }

    /// Returns the last key of the items that begin before `end`.
    fn last_key_before(&self, end: u64) -> Key {
        self.extent_key(if end == u64::MAX { u64::MAX } else { end.saturating_sub(1) })
    }

    /// Adds the item at an offset, if there is one. Returns where it ends, and where the next item
    /// begins.
    fn log_extent(&self, offset: u64, entry: &mut LogEntry) -> Result<Option<(u64, u64)>> {
        let key = self.extent_key(offset);
        let Some(item) = self.tree.find(&key)? else { return Ok(None) };
        let extent =
            FileExtent::check(item.data(), offset).map_err(|refused| self.corrupt(key, refused))?;
        let end = offset.saturating_add(extent.file_bytes());
        let next = self.next_from(offset.saturating_add(1))?;
        let after = self.extent_key(offset.saturating_add(1));
        entry.stale.push(after..=self.last_key_before(next));
        let is_new = extent.generation == self.generation();
        let has_checksums = is_new && !self.inode.flags.contains(InodeFlags::NODATASUM);
        if let ExtentBody::Regular { disk, run } = extent.body
            && has_checksums
        {
            let whole = disk.logical.0..disk.logical.0.saturating_add(disk.bytes);
            entry.data.push(if extent.compression == Compression::None {
                let start = whole.start.saturating_add(run.offset);
                start..start.saturating_add(run.num_bytes)
            } else {
                whole
            });
        }
        entry.items.push((key, item.data().to_vec()));
        Ok(Some((end, next)))
    }

    /// Returns the end of the last extent that begins before an offset; 0 if there is none.
    fn end_before(&self, offset: u64) -> Result<u64> {
        let Some(before) = offset.checked_sub(1) else { return Ok(0) };
        let mut cursor = self.tree.cursor();
        cursor.seek_last(&self.extent_key(before))?;
        let Some((key, data)) = cursor.item_parts() else { return Ok(0) };
        if key.objectid != self.ino.0 || key.item_type != ItemType::EXTENT_DATA {
            return Ok(0);
        }
        let extent =
            FileExtent::check(data, key.offset).map_err(|refused| self.corrupt(key, refused))?;
        Ok(key.offset.saturating_add(extent.file_bytes()))
    }

    /// Returns the start of the first extent from an offset on; `u64::MAX` if there is none.
    fn next_from(&self, offset: u64) -> Result<u64> {
        let mut cursor = self.tree.cursor();
        cursor.seek(&self.extent_key(offset))?;
        let next = cursor
            .key()
            .filter(|key| key.objectid == self.ino.0 && key.item_type == ItemType::EXTENT_DATA);
        Ok(next.map_or(u64::MAX, |key| key.offset))
    }

    /// Logs that a range is a hole, as far as it is inside the file: a replay removes what is past
    /// the end.
    fn log_hole(&self, range: Range<u64>, entry: &mut LogEntry) {
        if range.is_empty() {
            return;
        }
        entry.stale.push(self.extent_key(range.start)..=self.last_key_before(range.end));
        let size = self.inode.size;
        let end = size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX - 4095);
        let end = end.min(range.end);
        if range.start < end {
            let hole = FileExtent::hole(self.generation(), end - range.start);
            entry.items.push((self.extent_key(range.start), hole.to_bytes()));
        }
    }
}

/// Returns the extent items of a file that reach past the block with its end: preallocated space
/// (`FALLOC_FL_KEEP_SIZE`).
pub(super) fn extents_past_end(tree: &Tree, ino: u64, size: u64) -> Logged<Vec<(Key, Vec<u8>)>> {
    let key = |offset| Key::new(ino, ItemType::EXTENT_DATA, offset);
    let is_own = |key: &Key| key.objectid == ino && key.item_type == ItemType::EXTENT_DATA;
    let Some(end) = size.checked_next_multiple_of(SECTOR_BYTES) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut cursor = tree.cursor();
    // An extent may begin before the end.
    cursor.seek_last(&key(end))?;
    if !cursor.key().is_some_and(|key| is_own(&key)) {
        cursor.seek(&key(end))?;
    }
    while let Some((key, data)) = cursor.item_parts().filter(|(key, _)| is_own(key)) {
        let extent =
            FileExtent::check(data, key.offset).map_err(|_| Stop(CommitReason::Unreadable))?;
        if extent.disk().is_some() && key.offset.saturating_add(extent.file_bytes()) > end {
            found.push((key, data.to_vec()));
        }
        if found.len() > PAST_END_MAX {
            return Err(Stop(CommitReason::TooMuch));
        }
        cursor.advance()?;
    }
    Ok(found)
}
