//! Extents in a replay: each logged one replaces what the file has in its range.

use super::Replay;
use crate::Result;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::inode::{FileKind, Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, SECTOR_BYTES, length};
use std::ops::Range;

/// The key of the checksums of a log (`EXTENT_CSUM_OBJECTID`).
const CHECKSUM_OBJECT: u64 = u64::MAX - 9;

/// The bytes that an extent adds to the byte count of its inode.
fn bytes_used(extent: &FileExtent<'_>) -> u64 {
    match extent.body {
        ExtentBody::Inline(_) => extent.ram_bytes,
        ExtentBody::Hole { .. } => 0,
        ExtentBody::Regular { run, .. } | ExtentBody::Preallocated { run, .. } => run.num_bytes,
    }
}

/// Returns the part of an extent at `start` that is in `part`.
fn cut<'a>(extent: &FileExtent<'a>, start: u64, part: &Range<u64>) -> FileExtent<'a> {
    let (skipped, num_bytes) = (part.start - start, part.end - part.start);
    let run = |run: ExtentRun| ExtentRun { offset: run.offset.saturating_add(skipped), num_bytes };
    let body = match extent.body {
        ExtentBody::Inline(data) => ExtentBody::Inline(data),
        ExtentBody::Hole { .. } => ExtentBody::Hole { num_bytes },
        ExtentBody::Regular { disk, run: whole } => ExtentBody::Regular { disk, run: run(whole) },
        ExtentBody::Preallocated { disk, run: whole } => {
            ExtentBody::Preallocated { disk, run: run(whole) }
        }
    };
    let ram_bytes =
        if matches!(body, ExtentBody::Hole { .. }) { num_bytes } else { extent.ram_bytes };
    FileExtent { body, ram_bytes, ..*extent }
}

/// Returns an extent's disk extent, and the run of it that the file has.
fn disk_and_run(extent: &FileExtent<'_>) -> Option<(DiskExtent, ExtentRun)> {
    match extent.body {
        ExtentBody::Inline(_) | ExtentBody::Hole { .. } => None,
        ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run } => {
            Some((disk, run))
        }
    }
}

/// Checks that an inode can have an extent: a file, or a symlink with an inline one.
fn check_owner(inode: &Inode, extent: &FileExtent<'_>) -> Result<(), Refused> {
    let is_inline = matches!(extent.body, ExtentBody::Inline(_));
    if inode.kind == FileKind::File || inode.kind == FileKind::Symlink && is_inline {
        return Ok(());
    }
    Err(Refused::new("inode", "no file", "a file, or a symlink with an inline extent"))
}

impl Replay<'_> {
    /// Replays one extent item.
    pub(super) fn extent(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let ino = key.objectid;
        let Some(inode) = self.inode(ino)? else {
            return Err(self.corrupt(key, Refused::new("inode", "none", "one for an extent")));
        };
        let extent = FileExtent::check(data, key.offset).map_err(|r| self.corrupt(key, r))?;
        check_owner(&inode, &extent).map_err(|refused| self.corrupt(key, refused))?;
        let end = key.offset.checked_add(extent.file_bytes());
        let end = end.ok_or_else(|| self.corrupt(key, Refused::new("end", "2^64", "below")))?;
        // An empty extent would replace nothing, and stand in the midst of another.
        if end == key.offset {
            return Err(self.corrupt(key, Refused::new("num_bytes", 0, "above 0")));
        }
        self.drop_extents(ino, key.offset..end)?;
        if matches!(extent.body, ExtentBody::Hole { .. }) && self.has_no_holes {
            return Ok(());
        }
        if let Some((disk, run)) = disk_and_run(&extent) {
            self.add_reference(key, disk, run)?;
            if matches!(extent.body, ExtentBody::Regular { .. })
                && !inode.flags.contains(InodeFlags::NODATASUM)
            {
                self.checksums(&extent, disk, run)?;
            }
        }
        self.edit.put(&key, data)?;
        let added = bytes_used(&extent);
        self.update_inode(ino, |inode| inode.bytes_used = inode.bytes_used.saturating_add(added))
    }

    /// Adds the reference of a file to an extent, and the extent if only the log has it.
    fn add_reference(&mut self, key: Key, disk: DiskExtent, run: ExtentRun) -> Result<()> {
        let DiskExtent { logical, bytes } = disk;
        let reference = self.data_ref(key.objectid, key.offset, run);
        if self.claim.take_extent(logical, bytes) {
            self.handle.add_data_extent(logical, bytes, reference);
            return Ok(());
        }
        if !self.handle.forest().has_extent(logical, bytes)? {
            let refused = Refused::new("disk_bytenr", logical, "an extent of the volume or free");
            return Err(self.corrupt(key, refused));
        }
        self.handle.add_data_ref(logical, bytes, reference);
        Ok(())
    }

    fn data_ref(&self, ino: u64, offset: u64, run: ExtentRun) -> DataRef {
        let offset = offset.wrapping_sub(run.offset);
        DataRef { tree: self.id(), ino: Ino(ino), offset, count: 1 }
    }

    /// Replays the checksums of the data that an extent refers to.
    fn checksums(&self, extent: &FileExtent<'_>, disk: DiskExtent, run: ExtentRun) -> Result<()> {
        let start = disk.logical.0;
        let range = if extent.compression == Compression::None {
            start.saturating_add(run.offset)..start.saturating_add(run.offset + run.num_bytes)
        } else {
            start..start.saturating_add(disk.bytes)
        };
        let csum = self.handle.forest().volume().super_block().csum().bytes().max(1);
        let key = |at| Key::new(CHECKSUM_OBJECT, ItemType::EXTENT_CSUM, at);
        let mut cursor = self.log.cursor();
        // An item may begin before the range.
        cursor.seek_last(&key(range.start))?;
        let is_checksums =
            |key: Key| key.objectid == CHECKSUM_OBJECT && key.item_type == ItemType::EXTENT_CSUM;
        if !cursor.key().is_some_and(is_checksums) {
            cursor.seek(&key(range.start))?;
        }
        while let Some((key, data)) = cursor.item_parts() {
            if !is_checksums(key) || key.offset >= range.end {
                break;
            }
            let sectors = length(data.len() / csum);
            let item_end = key.offset.saturating_add(sectors.saturating_mul(SECTOR_BYTES));
            let (from, to) = (key.offset.max(range.start), item_end.min(range.end));
            if from < to {
                let index = |at: u64| {
                    usize::try_from((at - key.offset) / SECTOR_BYTES).map_or(0, |at| at * csum)
                };
                let part = data.get(index(from)..index(to)).unwrap_or_default();
                self.handle.put_checksums(Logical(from), part);
            }
            cursor.advance()?;
        }
        Ok(())
    }

    /// Removes what a file has in a range, and keeps the parts of extents outside of it.
    pub(super) fn drop_extents(&self, ino: u64, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let at = |offset| Key::new(ino, ItemType::EXTENT_DATA, offset);
        let mut from = at(range.start);
        let mut before = self.tree.cursor();
        before.seek_last(&from)?;
        if let Some(key) = before.key()
            && key.objectid == ino
            && key.item_type == ItemType::EXTENT_DATA
        {
            from = key;
        }
        let last = at(range.end - 1);
        let mut dropped = 0_u64;
        for (key, data) in Self::items_in(&self.tree, &(from..=last))? {
            // Extents of a crafted volume may be of any length.
            let falls = self.drop_from_extent(key, &data, &range)?;
            dropped = dropped.saturating_add(falls);
        }
        if dropped > 0 {
            self.update_inode(ino, |inode| {
                inode.bytes_used = inode.bytes_used.saturating_sub(dropped);
            })?;
        }
        Ok(())
    }

    /// Removes a range from one extent item. Returns by how much the byte count falls.
    fn drop_from_extent(&self, key: Key, data: &[u8], range: &Range<u64>) -> Result<u64> {
        let extent = FileExtent::check(data, key.offset).map_err(|r| self.corrupt(key, r))?;
        let end = key.offset.saturating_add(extent.file_bytes());
        if end <= range.start && end > key.offset {
            return Ok(0);
        }
        let front = key.offset..range.start.clamp(key.offset, end);
        let back = range.end.clamp(key.offset, end)..end;
        let kept: Vec<Range<u64>> =
            [front, back].into_iter().filter(|part| !part.is_empty()).collect();
        // Only a crafted inline extent is longer than a sector.
        if matches!(extent.body, ExtentBody::Inline(_)) && range.end < end {
            return Err(self.corrupt(key, Refused::new("inline bytes", "more", "one sector")));
        }
        let mut falls = bytes_used(&extent);
        self.edit.remove(&key)?;
        for part in &kept {
            let cut = cut(&extent, key.offset, part);
            falls = falls.saturating_sub(bytes_used(&cut));
            let key = Key::new(key.objectid, ItemType::EXTENT_DATA, part.start);
            self.edit.put(&key, &cut.to_bytes())?;
        }
        if let Some((disk, run)) = disk_and_run(&extent) {
            let reference = self.data_ref(key.objectid, key.offset, run);
            match kept.len() {
                0 => self.handle.drop_data_ref(disk.logical, disk.bytes, reference),
                1 => {}
                _ => self.handle.add_data_ref(disk.logical, disk.bytes, reference),
            }
        }
        Ok(falls)
    }
}
