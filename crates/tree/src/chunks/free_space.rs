//! The free space tree: each commit writes the ranges that it allocates and frees, as extents or
//! bitmaps.
//!
//! ```text
//! (group, FREE_SPACE_INFO, bytes)       extent_count, flags
//! (start, FREE_SPACE_EXTENT, bytes)     no data
//! (start, FREE_SPACE_BITMAP, bytes)     a bit for each sector, set if the sector is free
//! ```
//!
//! Laws:
//!
//! 1. After a commit the tree holds exactly the ranges that no extent item covers. As in the
//!    kernel, superblock copies are free here, and the reader of the tree excludes them.
//! 2. `extent_count` is the number of free runs, in extents and in bitmaps.
//! 3. A group changes to bitmaps when its extents take more space than bitmaps would, and back when
//!    they would take clearly less ([`Limits`]).

use crate::chunks::block_groups::free_ranges;
use crate::cow::change::Change;
use crate::error::TreeError;
use crate::transaction::TreeEdit;
use crate::transaction::commit::context::Commit;
use butternut_format::free_space::{BITMAP_BYTES_MAX, FreeSpaceInfo, RawFreeSpaceInfo};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, SECTOR_BYTES, TreeId, length};
use std::ops::Range;
use zerocopy::IntoBytes;

/// The logical bytes that a full bitmap covers: 8 MiB.
const BITMAP_RANGE_BYTES: u64 = SECTOR_BYTES * 8 * 256;

/// The numbers of extents above which a group changes to bitmaps, and below which it changes back.
/// They are those of the kernel, so that the two do not convert a group back and forth.
struct Limits {
    high: u64,
    low: u64,
}

impl Limits {
    fn of(group: &Range<u64>) -> Self {
        let item = length(crate::block_edit::ITEM_BYTES);
        let bitmaps = group.end.saturating_sub(group.start).div_ceil(BITMAP_RANGE_BYTES);
        let bytes = bitmaps.saturating_mul(item.saturating_add(length(BITMAP_BYTES_MAX)));
        let high = bytes.checked_div(item).unwrap_or(0);
        Self { high, low: high.saturating_sub(100) }
    }
}

impl Commit<'_> {
    /// Writes the changes into the tree. Returns whether there were any.
    pub(crate) fn write_free_space(&self) -> Result<bool, TreeError> {
        let chunks = self.volume().chunks();
        let is_border = |at| chunks.find(Logical(at)).is_none_or(|l| l.logical().0 == at);
        let changes = self.running.free_changes().drain(is_border);
        if changes.is_empty() || !self.running.params.has_free_space_tree {
            return Ok(false);
        }
        let mut rest = changes.into_iter().peekable();
        while let Some((first, _)) = rest.peek() {
            let group = self
                .group_of(Logical(first.start))
                .ok_or_else(|| corrupt(first.start, Refused::new("block group", "none", "one")))?;
            let is_in_group = |(range, _): &(Range<u64>, bool)| range.start < group.end;
            let mut in_group = Vec::new();
            while let Some(change) = rest.next_if(is_in_group) {
                in_group.push(change);
            }
            GroupEdit::open(self, group)?.write(&in_group)?;
        }
        Ok(true)
    }

    /// Inserts the items of a new group, which is free (law 1).
    pub(crate) fn add_free_group(&self, group: &Range<u64>) -> Result<(), TreeError> {
        if !self.running.params.has_free_space_tree {
            return Ok(());
        }
        let tree = self.edit(TreeId::FREE_SPACE)?;
        let (key, info) = info_item(group, 1, false);
        tree.put(&key, &info)?;
        tree.put(&extent_key(group), &[])
    }

    /// Removes the items of a removed group.
    pub(crate) fn remove_free_group(&self, group: &Range<u64>) -> Result<(), TreeError> {
        if !self.running.params.has_free_space_tree {
            return Ok(());
        }
        let tree = self.edit(TreeId::FREE_SPACE)?;
        tree.remove_range(whole(group), &mut |_, _| {}).map(|_| ())
    }
}

/// Returns the range of all keys of a group.
fn whole(group: &Range<u64>) -> Range<Key> {
    Key::new(group.start, ItemType(0), 0)..Key::new(group.end, ItemType(0), 0)
}

fn extent_key(range: &Range<u64>) -> Key {
    let bytes = range.end.saturating_sub(range.start);
    Key::new(range.start, ItemType::FREE_SPACE_EXTENT, bytes)
}

fn info_item(group: &Range<u64>, count: u64, is_bitmaps: bool) -> (Key, Vec<u8>) {
    let bytes = group.end.saturating_sub(group.start);
    let info = RawFreeSpaceInfo::of(u32::try_from(count).unwrap_or(u32::MAX), is_bitmaps);
    let key = Key::new(group.start, ItemType::FREE_SPACE_INFO, bytes);
    (key, info.as_bytes().to_vec())
}

fn corrupt(at: u64, refused: Refused) -> TreeError {
    let source = refused.at(format_args!("free space at {at}"));
    TreeError::Corrupt { tree: TreeId::FREE_SPACE, source }
}

/// An update of one group.
struct GroupEdit<'a> {
    tree: TreeEdit<'a>,
    group: Range<u64>,
    count: u64,
    is_bitmaps: bool,
}

impl<'a> GroupEdit<'a> {
    fn open(commit: &'a Commit<'_>, group: Range<u64>) -> Result<Self, TreeError> {
        let tree = commit.edit(TreeId::FREE_SPACE)?;
        let (key, _) = info_item(&group, 0, false);
        let found = tree.tree().find(&key)?;
        let found = found.ok_or_else(|| {
            corrupt(group.start, Refused::new("info item", "none", "one for the group"))
        })?;
        let info = FreeSpaceInfo::check(key, found.data())
            .map_err(|refused| corrupt(group.start, refused))?;
        let (count, is_bitmaps) = (u64::from(info.extent_count), info.is_bitmaps);
        Ok(Self { tree, group, count, is_bitmaps })
    }

    fn write(mut self, changes: &[(Range<u64>, bool)]) -> Result<(), TreeError> {
        for (range, is_free) in changes {
            match (self.is_bitmaps, *is_free) {
                (true, is_free) => self.set_bits(range, is_free)?,
                (false, true) => self.add_extent(range)?,
                (false, false) => self.remove_extent(range)?,
            }
        }
        if self.should_convert() {
            // Once more with what there is: the count of a crafted volume may be wrong, and bitmaps
            // for few runs of a huge group take much space (law 2).
            let free = free_ranges(self.tree.tree(), self.group.clone())?;
            self.count = length(free.len());
            if self.should_convert() {
                self.convert(&free)?;
            }
        }
        let (key, info) = info_item(&self.group, self.count, self.is_bitmaps);
        self.tree.put(&key, &info)
    }

    /// Whether the count calls for the other kind of items (law 3).
    fn should_convert(&self) -> bool {
        let limits = Limits::of(&self.group);
        if self.is_bitmaps { self.count < limits.low } else { self.count > limits.high }
    }

    /// Returns the last free extent that begins at or before `at`.
    fn extent_before(&self, at: u64) -> Result<Option<Range<u64>>, TreeError> {
        let mut cursor = self.tree.tree().cursor();
        cursor.seek_last(&Key::new(at, ItemType::FREE_SPACE_EXTENT, u64::MAX))?;
        let found = cursor.key().filter(|key| {
            key.item_type == ItemType::FREE_SPACE_EXTENT && key.objectid >= self.group.start
        });
        Ok(found.map(|key| key.objectid..key.objectid.saturating_add(key.offset)))
    }

    fn remove_extent(&mut self, range: &Range<u64>) -> Result<(), TreeError> {
        let free = self.extent_before(range.start)?.filter(|free| free.end >= range.end);
        let free = free.ok_or_else(|| {
            let have = format_args!("not free up to {}", range.end).to_string();
            corrupt(range.start, Refused::new("extent", have, "a free range"))
        })?;
        self.tree.remove(&extent_key(&free))?;
        self.count = self.count.saturating_sub(1);
        for left in [free.start..range.start, range.end..free.end] {
            if !left.is_empty() {
                self.tree.put(&extent_key(&left), &[])?;
                self.count = self.count.saturating_add(1);
            }
        }
        Ok(())
    }

    fn add_extent(&mut self, range: &Range<u64>) -> Result<(), TreeError> {
        let mut joined = range.clone();
        if let Some(before) = self.extent_before(range.start)? {
            if before.end > range.start {
                let have = format_args!("{}..{} free already", before.start, before.end);
                let refused = Refused::new("extent", have.to_string(), "a range in use");
                return Err(corrupt(range.start, refused));
            }
            if before.end == range.start {
                self.tree.remove(&extent_key(&before))?;
                self.count = self.count.saturating_sub(1);
                joined.start = before.start;
            }
        }
        let after = self.extent_before(range.end)?.filter(|after| after.start == range.end);
        if let Some(after) = after.filter(|_| range.end < self.group.end) {
            self.tree.remove(&extent_key(&after))?;
            self.count = self.count.saturating_sub(1);
            joined.end = after.end;
        }
        self.tree.put(&extent_key(&joined), &[])?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Returns the range of the bitmap that covers an address.
    fn bitmap_of(&self, at: u64) -> Range<u64> {
        let within = at.saturating_sub(self.group.start) / BITMAP_RANGE_BYTES;
        let start = self.group.start.saturating_add(within.saturating_mul(BITMAP_RANGE_BYTES));
        start..start.saturating_add(BITMAP_RANGE_BYTES).min(self.group.end)
    }

    fn is_free(&self, at: u64) -> Result<bool, TreeError> {
        if !self.group.contains(&at) {
            return Ok(false);
        }
        let bitmap = self.bitmap_of(at);
        let Some(found) = self.tree.tree().find(&bitmap_key(&bitmap))? else { return Ok(false) };
        let (byte, bit) = bit_of(&bitmap, at);
        Ok(found.data().get(byte).is_some_and(|bits| bits & bit != 0))
    }

    /// Sets or clears the bits of a range, and updates the number of runs (law 2).
    fn set_bits(&mut self, range: &Range<u64>, is_free: bool) -> Result<(), TreeError> {
        let before = match range.start.checked_sub(SECTOR_BYTES) {
            Some(before) => self.is_free(before)?,
            None => false,
        };
        let after = self.is_free(range.end)?;
        let mut at = range.start;
        while at < range.end {
            let bitmap = self.bitmap_of(at);
            let end = range.end.min(bitmap.end);
            let found = self.tree.update(&bitmap_key(&bitmap), &mut |bits| {
                for sector in (at..end).step_by(4096) {
                    let (byte, bit) = bit_of(&bitmap, sector);
                    if let Some(byte) = bits.get_mut(byte) {
                        *byte = if is_free { *byte | bit } else { *byte & !bit };
                    }
                }
            })?;
            if !found {
                return Err(corrupt(at, Refused::new("bitmap", "none", "one for the range")));
            }
            at = end;
        }
        match (before, after, is_free) {
            (false, false, true) | (true, true, false) => self.count = self.count.saturating_add(1),
            (true, true, true) | (false, false, false) => {
                self.count = self.count.saturating_sub(1);
            }
            _ => {}
        }
        Ok(())
    }

    /// Converts the group, with these free ranges, to bitmaps or to extents.
    fn convert(&mut self, free: &[Range<u64>]) -> Result<(), TreeError> {
        self.tree.remove_range(whole(&self.group), &mut |_, _| {})?;
        self.is_bitmaps = !self.is_bitmaps;
        let changes = if self.is_bitmaps { self.bitmaps(free) } else { extents(free) };
        self.tree.merge(&changes)
    }

    fn bitmaps(&self, free: &[Range<u64>]) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut start = self.group.start;
        let mut rest = free;
        while start < self.group.end {
            let bitmap = self.bitmap_of(start);
            let sectors = bitmap.end.saturating_sub(bitmap.start) / SECTOR_BYTES;
            let bytes = usize::try_from(sectors.div_ceil(8)).unwrap_or(BITMAP_BYTES_MAX);
            let mut bits = vec![0; bytes];
            while let Some(range) = rest.first().filter(|range| range.start < bitmap.end) {
                let part = range.start.max(bitmap.start)..range.end.min(bitmap.end);
                for sector in part.step_by(4096) {
                    let (byte, bit) = bit_of(&bitmap, sector);
                    if let Some(byte) = bits.get_mut(byte) {
                        *byte |= bit;
                    }
                }
                if range.end > bitmap.end {
                    break;
                }
                rest = rest.get(1..).unwrap_or_default();
            }
            changes.push(Change { key: bitmap_key(&bitmap), to: Some(bits) });
            start = bitmap.end;
        }
        changes
    }
}

fn extents(free: &[Range<u64>]) -> Vec<Change> {
    free.iter().map(|range| Change { key: extent_key(range), to: Some(Vec::new()) }).collect()
}

fn bitmap_key(bitmap: &Range<u64>) -> Key {
    let bytes = bitmap.end.saturating_sub(bitmap.start);
    Key::new(bitmap.start, ItemType::FREE_SPACE_BITMAP, bytes)
}

/// Returns the index of the byte of an address in its bitmap, and the bit in that byte.
fn bit_of(bitmap: &Range<u64>, at: u64) -> (usize, u8) {
    let sector = at.saturating_sub(bitmap.start) / SECTOR_BYTES;
    let byte = usize::try_from(sector / 8).unwrap_or(usize::MAX);
    (byte, 1_u8 << (sector % 8))
}
