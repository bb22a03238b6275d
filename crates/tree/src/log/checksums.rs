//! The checksums of logged data, as items of a log.
//!
//! Checksums of data that the running transaction wrote are pending. An extent of this transaction
//! may hold data of an earlier one, too, where it was preallocated: these checksums are in the
//! checksum tree, and the log has them all the same, as the kernel's log does.

use super::leaves::LogItem;
use crate::error::TreeError;
use crate::pending_checksums::PendingChecksums;
use crate::tree::Tree;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use std::ops::Range;

/// The most checksum bytes in one item of a log.
const ITEM_BYTES_MAX: usize = 2048;

/// The key of the checksums of a log, like that of the checksum tree (`EXTENT_CSUM_OBJECTID`).
const CHECKSUM_OBJECT: u64 = u64::MAX - 9;

fn key(at: u64) -> Key {
    Key::new(CHECKSUM_OBJECT, ItemType::EXTENT_CSUM, at)
}

fn bytes_covered(checksums: &[u8], checksum_bytes: usize) -> u64 {
    length(checksums.len() / checksum_bytes).saturating_mul(SECTOR_BYTES)
}

/// Adds checksums from a logical address on.
fn push(items: &mut Vec<LogItem>, at: u64, checksums: &[u8], checksum_bytes: usize) {
    let mut at = at;
    for part in checksums.chunks(ITEM_BYTES_MAX / checksum_bytes * checksum_bytes) {
        items.push((key(at), part.to_vec()));
        at = at.saturating_add(bytes_covered(part, checksum_bytes));
    }
}

/// Returns the pending checksums of a range.
pub(super) fn pending_items(
    pending: &PendingChecksums,
    range: &Range<u64>,
    checksum_bytes: usize,
) -> Vec<LogItem> {
    let mut items = Vec::new();
    pending.find(range, &mut |at: Logical, checksums| {
        push(&mut items, at.0, checksums, checksum_bytes);
    });
    items
}

/// Returns the parts of a range without pending checksums.
pub(super) fn gaps(
    pending: &PendingChecksums,
    range: &Range<u64>,
    checksum_bytes: usize,
) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut from = range.start;
    pending.find(range, &mut |at: Logical, checksums| {
        if from < at.0 {
            gaps.push(from..at.0);
        }
        from = at.0.saturating_add(bytes_covered(checksums, checksum_bytes));
    });
    if from < range.end {
        gaps.push(from..range.end);
    }
    gaps
}

/// Returns the checksums of a range that the checksum tree has.
pub(super) fn committed_items(
    tree: &Tree,
    range: &Range<u64>,
    checksum_bytes: usize,
) -> Result<Vec<LogItem>, TreeError> {
    let mut items = Vec::new();
    let mut cursor = tree.cursor();
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
        let end = key.offset.saturating_add(bytes_covered(data, checksum_bytes));
        let (from, to) = (key.offset.max(range.start), end.min(range.end));
        if from < to {
            let index = |at: u64| {
                let sectors = usize::try_from((at - key.offset) / SECTOR_BYTES);
                sectors.map_or(0, |sectors| sectors * checksum_bytes)
            };
            let part = data.get(index(from)..index(to)).unwrap_or_default();
            push(&mut items, from, part, checksum_bytes);
        }
        cursor.advance()?;
    }
    Ok(items)
}
