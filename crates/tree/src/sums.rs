//! The checksum tree: digests of data sectors, packed into items that run on where sectors do.
//!
//! ```text
//! key (EXTENT_CSUM, address of the first sector)    | digest | digest | ...
//! ```
//!
//! Laws:
//!
//! 1. Items never overlap. A range that gets sums has none before: they went when its extent was
//!    freed.
//! 2. An item holds at most [`item_bytes_max`]; a longer run goes on in the next.

use crate::error::TreeError;
use crate::live::change::Change;
use crate::transaction::TreeEdit;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use std::ops::Range;

/// What fills about a quarter of a leaf of 16 KiB: long enough to be dense, short enough that
/// neither an insertion nor a removal in its middle moves much.
const ITEM_BYTES_MAX: usize = 4096;

fn key(at: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, at)
}

/// How long an item may become in leaves with room for `leaf` bytes in one.
fn item_bytes_max(leaf: usize, digest: usize) -> usize {
    let most = ITEM_BYTES_MAX.min(leaf / 2);
    most.saturating_sub(most.checked_rem(digest).unwrap_or(0))
}

/// Sectors that an item's bytes are the digests of, in bytes.
fn covered(bytes: usize, digest: usize) -> u64 {
    length(bytes.checked_div(digest).unwrap_or(0)).saturating_mul(SECTOR_BYTES)
}

impl TreeEdit<'_> {
    /// Puts the digests of the sectors from `start` on in (law 1).
    pub(crate) fn put_sums(&self, start: Logical, digests: &[u8]) -> Result<(), TreeError> {
        let digest = self.running().facts.csum.bytes();
        let bytes_max = item_bytes_max(self.running().facts.item_bytes_max(), digest);
        let mut at = start.0;
        let mut rest = digests;
        let mut changes = Vec::new();
        if let Some((key, mut data)) = self.item_ending_at(at, digest)? {
            let room = bytes_max.saturating_sub(data.len()).min(rest.len());
            if room > 0 {
                let (now, later) = rest.split_at(room);
                data.extend_from_slice(now);
                changes.push(Change { key, to: Some(data) });
                at = at.saturating_add(covered(room, digest));
                rest = later;
            }
        }
        for piece in rest.chunks(bytes_max.max(digest)) {
            changes.push(Change { key: key(at), to: Some(piece.to_vec()) });
            at = at.saturating_add(covered(piece.len(), digest));
        }
        self.merge(&changes)
    }

    /// The item whose last sector ends where `at` begins.
    fn item_ending_at(&self, at: u64, digest: usize) -> Result<Option<(Key, Vec<u8>)>, TreeError> {
        let mut cursor = self.tree().cursor();
        cursor.seek_last(&key(at))?;
        let Some((key, data)) = cursor.item_parts() else { return Ok(None) };
        let is_sums =
            key.objectid == EXTENT_CSUM_OBJECTID && key.item_type == ItemType::EXTENT_CSUM;
        let ends_here = key.offset.saturating_add(covered(data.len(), digest)) == at;
        Ok((is_sums && ends_here).then(|| (key, data.to_vec())))
    }

    /// Takes the digests of a range out, whatever items they are in.
    pub(crate) fn remove_sums(&self, range: Range<u64>) -> Result<(), TreeError> {
        let digest = self.running().facts.csum.bytes();
        let mut at = range.start;
        while let Some((key, data)) = first_overlap(self, at, digest)? {
            let end = key.offset.saturating_add(covered(data.len(), digest));
            if key.offset >= range.end {
                break;
            }
            let part = |from: u64, to: u64| {
                let index = |at: u64| {
                    let sectors = at.saturating_sub(key.offset) / SECTOR_BYTES;
                    usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(digest)
                };
                data.get(index(from)..index(to)).unwrap_or_default().to_vec()
            };
            let mut changes = Vec::new();
            let before = (key.offset < range.start).then(|| part(key.offset, range.start));
            changes.push(Change { key, to: before });
            if end > range.end {
                changes.push(Change { key: self::key(range.end), to: Some(part(range.end, end)) });
            }
            self.merge(&changes)?;
            at = end;
            if at >= range.end {
                break;
            }
        }
        Ok(())
    }
}

/// The first item that covers `at` or begins behind it.
fn first_overlap(
    tree: &TreeEdit<'_>,
    at: u64,
    digest: usize,
) -> Result<Option<(Key, Vec<u8>)>, TreeError> {
    let mut cursor = tree.tree().cursor();
    cursor.seek_last(&key(at))?;
    let is_sums =
        |key: &Key| key.objectid == EXTENT_CSUM_OBJECTID && key.item_type == ItemType::EXTENT_CSUM;
    let covers = cursor.item_parts().is_some_and(|(key, data)| {
        is_sums(&key) && key.offset.saturating_add(covered(data.len(), digest)) > at
    });
    if !covers {
        cursor.seek(&key(at))?;
    }
    Ok(cursor.item_parts().filter(|(key, _)| is_sums(key)).map(|(key, data)| (key, data.to_vec())))
}
