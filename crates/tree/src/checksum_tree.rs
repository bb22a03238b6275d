//! The checksum tree: the checksums of consecutive data sectors, stored in long items.
//!
//! ```text
//! key (EXTENT_CSUM, address of the first sector)    | checksum | checksum | ...
//! ```
//!
//! Laws:
//!
//! 1. In a committed tree, items do not overlap. A range that gets checksums had none before: they
//!    were removed when its last extent was freed. On a damaged volume, free space may have some:
//!    they are removed first.
//! 2. An item holds at most [`item_bytes_max`] bytes. A longer run continues in the next item.
//! 3. Only the commit changes the tree. A reader finds the checksum of every sector meanwhile: the
//!    remaining parts of an item are inserted before the item is shortened or removed, so for a
//!    moment two items may hold the same checksums.
//!
//! Left to others: the checksums that are not in the tree yet (`pending_checksums`).

use crate::cow::change::Change;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::pending_checksums::Run;
use crate::transaction::TreeEdit;
use crate::transaction::commit::context::Commit;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, TreeId, length};
use std::cmp::Ordering;
use std::ops::Range;

/// About a quarter of a leaf of 16 KiB: long enough to be compact, and short enough that an
/// insertion or removal in the middle moves few bytes.
const ITEM_BYTES_MAX: usize = 4096;

/// Bytes of checksums that are written in one batch.
const BATCH_BYTES: usize = 64 << 10;
/// The number of ranges whose checksums are removed in one batch.
const RANGES_PER_BATCH: usize = 1024;

fn key(at: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, at)
}

/// Returns the longest item in bytes, if a leaf can hold an item of `leaf` bytes.
fn item_bytes_max(leaf: usize, checksum_bytes: usize) -> usize {
    let most = ITEM_BYTES_MAX.min(leaf / 2);
    most.saturating_sub(most.checked_rem(checksum_bytes).unwrap_or(0))
}

/// Returns how many bytes of data the checksums of an item cover.
fn bytes_covered(bytes: usize, checksum_bytes: usize) -> u64 {
    length(bytes.checked_div(checksum_bytes).unwrap_or(0)).saturating_mul(SECTOR_BYTES)
}

impl Commit<'_> {
    /// Writes the pending checksums of a logical range into the tree. The gate is closed, so no
    /// thread adds others.
    pub(crate) fn write_checksums(&self, within: Range<Logical>) -> Result<(), TreeError> {
        let pending = || self.running.pending_checksums();
        if pending().is_empty() {
            return Ok(());
        }
        let tree = self.edit(TreeId::CHECKSUM)?;
        let mut rest = within.clone();
        loop {
            let runs = pending().runs(&rest, BATCH_BYTES);
            let Some((start, checksums)) = runs.last() else { break };
            rest.start = pending().end(*start, checksums);
            tree.put_checksums(&runs)?;
        }
        pending().clear(&within);
        Ok(())
    }
}

impl TreeEdit<'_> {
    /// Inserts sorted runs of checksums that do not overlap (law 1).
    pub(crate) fn put_checksums(&self, runs: &[Run]) -> Result<(), TreeError> {
        let leftover = self.insert_checksums(runs)?;
        if leftover.is_empty() {
            return Ok(());
        }
        self.remove_checksums(&leftover)?;
        let left = self.insert_checksums(runs)?;
        debug_assert!(left.is_empty(), "they have been removed");
        Ok(())
    }

    /// Inserts sorted runs of checksums. If the tree has some for them already, changes nothing and
    /// returns the ranges of those runs.
    fn insert_checksums(&self, runs: &[Run]) -> Result<Vec<Range<u64>>, TreeError> {
        let checksum_bytes = self.running().params.csum.bytes();
        let bytes_max = item_bytes_max(self.running().params.item_bytes_max(), checksum_bytes);
        debug_assert!(runs.is_sorted_by(|a, b| a.0 < b.0), "runs are sorted");
        let mut items = self.tree().cursor();
        let mut changes = Vec::with_capacity(runs.len());
        let mut leftover = Vec::new();
        for (start, checksums) in runs {
            let (mut at, mut rest) = (start.0, &checksums[..]);
            let range = at..at.saturating_add(bytes_covered(rest.len(), checksum_bytes));
            let before = match item_before_end(&mut items, &range, checksum_bytes)? {
                Before::Overlap => {
                    leftover.push(range);
                    continue;
                }
                Before::Adjacent(key, data) => Some((key, data)),
                Before::Apart => None,
            };
            if let Some((key, mut data)) = before {
                let append = bytes_max.saturating_sub(data.len()).min(rest.len());
                if append > 0 {
                    let (now, later) = rest.split_at(append);
                    data.extend_from_slice(now);
                    changes.push(Change { key, to: Some(data) });
                    at = at.saturating_add(bytes_covered(append, checksum_bytes));
                    rest = later;
                }
            }
            for part in rest.chunks(bytes_max.max(checksum_bytes)) {
                changes.push(Change { key: key(at), to: Some(part.to_vec()) });
                at = at.saturating_add(bytes_covered(part.len(), checksum_bytes));
            }
        }
        if leftover.is_empty() {
            self.merge(&changes)?;
        }
        Ok(leftover)
    }

    /// Removes the checksums of sorted ranges that do not overlap, whatever items they are in.
    pub(crate) fn remove_checksums(&self, ranges: &[Range<u64>]) -> Result<(), TreeError> {
        for batch in ranges.chunks(RANGES_PER_BATCH) {
            let cuts = self.cut_items(batch)?;
            // The order of law 3.
            self.merge(&cuts.parts)?;
            self.merge(&cuts.items)?;
        }
        Ok(())
    }

    /// Computes the changes of the items that hold checksums of the ranges.
    fn cut_items(&self, ranges: &[Range<u64>]) -> Result<Cuts, TreeError> {
        let checksum_bytes = self.running().params.csum.bytes();
        let mut items = self.tree().cursor();
        let mut cuts = Cuts::default();
        let mut item: Option<Cut> = None;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                if item.as_ref().is_none_or(|item| item.end <= at) {
                    cuts.add(item.take(), checksum_bytes);
                    item = first_overlap(&mut items, &(at..range.end), checksum_bytes)?;
                }
                let Some(item) = item.as_mut().filter(|item| item.key.offset < range.end) else {
                    break;
                };
                item.cut(at..range.end);
                at = item.end;
            }
        }
        cuts.add(item, checksum_bytes);
        Ok(cuts)
    }
}

/// The last item that begins before the end of a range.
enum Before {
    /// It ends before the range, or there is none.
    Apart,
    /// It ends where the range begins.
    Adjacent(Key, Vec<u8>),
    Overlap,
}

/// Changes of items that lose checksums, and new items for their remaining parts.
#[derive(Default)]
struct Cuts {
    items: Vec<Change>,
    parts: Vec<Change>,
}

/// An item that loses checksums.
struct Cut {
    key: Key,
    data: Vec<u8>,
    end: u64,
    /// The ranges that remain, up to `removed_to`.
    remaining: Vec<Range<u64>>,
    removed_to: u64,
}

impl Cut {
    /// Removes a range, which lies behind all ranges that were removed before.
    fn cut(&mut self, range: Range<u64>) {
        if self.removed_to < range.start {
            self.remaining.push(self.removed_to..range.start);
        }
        self.removed_to = range.end.clamp(self.removed_to, self.end);
    }

    fn part(&self, range: &Range<u64>, checksum_bytes: usize) -> Vec<u8> {
        let index = |at: u64| {
            let sectors = at.saturating_sub(self.key.offset) / SECTOR_BYTES;
            usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(checksum_bytes)
        };
        self.data.get(index(range.start)..index(range.end)).unwrap_or_default().to_vec()
    }
}

impl Cuts {
    fn add(&mut self, cut: Option<Cut>, checksum_bytes: usize) {
        let Some(mut cut) = cut.filter(|cut| cut.removed_to > cut.key.offset) else { return };
        let end = cut.end;
        cut.cut(end..end);
        let mut first = None;
        for remaining in &cut.remaining {
            let to = Some(cut.part(remaining, checksum_bytes));
            if remaining.start == cut.key.offset {
                first = to;
            } else {
                self.parts.push(Change { key: key(remaining.start), to });
            }
        }
        self.items.push(Change { key: cut.key, to: first });
    }
}

/// Returns the checksum item at the cursor.
fn checksum_item(items: &Cursor) -> Option<(Key, &[u8])> {
    items.item_parts().filter(|(key, _)| {
        key.objectid == EXTENT_CSUM_OBJECTID && key.item_type == ItemType::EXTENT_CSUM
    })
}

/// Returns where the last item that begins before the end of a range ends.
fn item_before_end(
    items: &mut Cursor,
    range: &Range<u64>,
    checksum_bytes: usize,
) -> Result<Before, TreeError> {
    items.seek_last(&key(range.end.saturating_sub(1)))?;
    let Some((key, data)) = checksum_item(items) else { return Ok(Before::Apart) };
    let end = key.offset.saturating_add(bytes_covered(data.len(), checksum_bytes));
    Ok(match end.cmp(&range.start) {
        Ordering::Less => Before::Apart,
        Ordering::Equal => Before::Adjacent(key, data.to_vec()),
        Ordering::Greater => Before::Overlap,
    })
}

/// Returns the first item that overlaps a range. Reads no leaf that can hold no such item: it may
/// be unreadable.
fn first_overlap(
    items: &mut Cursor,
    range: &Range<u64>,
    checksum_bytes: usize,
) -> Result<Option<Cut>, TreeError> {
    let end = |(key, data): (Key, &[u8])| {
        key.offset.saturating_add(bytes_covered(data.len(), checksum_bytes))
    };
    items.seek_last(&key(range.start))?;
    if checksum_item(items).is_none_or(|item| end(item) <= range.start) {
        items.seek_last(&key(range.end.saturating_sub(1)))?;
        if checksum_item(items).is_none_or(|(key, _)| key.offset < range.start) {
            return Ok(None);
        }
        items.seek(&key(range.start))?;
    }
    Ok(checksum_item(items).map(|item| Cut {
        key: item.0,
        data: item.1.to_vec(),
        end: end(item),
        remaining: Vec::new(),
        removed_to: item.0.offset,
    }))
}
