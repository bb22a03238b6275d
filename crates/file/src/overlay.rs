//! The overlay: the data of one file that is newer than its tree.
//!
//! ```text
//! reads look here first    dirty blocks      in memory, whole blocks of 4 KiB
//! then here                pending extents   on disk, in no tree yet, with their checksums
//! then in the tree         extent items
//! ```
//!
//! Laws:
//!
//! 1. Pending extents are sorted, do not overlap, and consist of whole blocks. Two that are
//!    contiguous in the file and on disk are joined when one of them is inserted, up to
//!    [`EXTENT_BYTES_MAX`], unless one of them is being merged. No extent lies in two block groups,
//!    so extents of different block groups are not joined.
//! 2. Cutting a pending extent returns exactly the new space that it no longer shows, for the
//!    caller to free. Cutting one that is being merged returns nothing: the tree is about to
//!    reference that space.
//! 3. Dirty blocks are whole, and zero past the end of the file. They are pages of the page cache
//!    that are dirty or under writeback.
//! 4. A pending extent has one checksum for each of its sectors, or none at all. Several pending
//!    extents may show parts of one compressed extent; its checksums are kept once.
//! 5. The space of a compressed extent is returned when no pending extent shows any of it.
//! 6. All pending extents that show parts of one compressed extent are merged in one step
//!    ([`Overlay::merge_step`]). Otherwise the tree would reference the extent for some of the
//!    parts, and free it when these are dropped, while the overlay still shows the others.
//!
//! The overlay knows neither the file's size nor whether space is reserved for its contents.

use butternut_format::file_extent::{COMPRESSED_BYTES_MAX, Compression, DiskExtent};
use butternut_format::units::{DiskRange, Logical, SECTOR_BYTES, length};
use butternut_pages::FilePages;
use butternut_sys::frames::Frame;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::pending_total::PendingBytes;
use crate::units::in_memory;

/// The longest extent that a write creates, in bytes.
pub(crate) const EXTENT_BYTES_MAX: u64 = 128 << 20;

/// The data of a file that is newer than its tree.
#[derive(Debug)]
pub(crate) struct Overlay {
    pages: FilePages,
    pending_extents: BTreeMap<u64, PendingExtent>,
    pending_bytes: PendingBytes,
    /// The compressed extents that pending extents show, by logical address.
    compressed: BTreeMap<Logical, CompressedUse>,
    merges_aborted: u64,
}

/// A compressed extent that pending extents show.
#[derive(Debug)]
struct CompressedUse {
    pending_extents: usize,
    /// Checksums of its sectors on disk.
    checksums: Vec<u8>,
}

/// An extent whose data is on disk and whose item is not in the tree yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingExtent {
    pub(crate) bytes: u64,
    pub(crate) place: Place,
    /// One after the other; empty for a file without checksums, and for a part of a compressed
    /// extent.
    pub(crate) checksums: Vec<u8>,
    /// A shared merge is writing it to the tree while the file is in use.
    is_merging: bool,
}

/// Where a pending extent is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In newly allocated space of the block group that starts at `group`.
    New { logical: Logical, group: Logical },
    /// `skip` bytes into an extent that the tree has as preallocated.
    Preallocated { extent: DiskExtent, skip: u64 },
    /// `skip` bytes into the decompressed contents of a compressed extent.
    Compressed { extent: CompressedExtent, skip: u64 },
}

/// An extent that was compressed when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressedExtent {
    pub(crate) disk: DiskExtent,
    /// Length of its decompressed contents in bytes.
    pub(crate) ram_bytes: u64,
    pub(crate) compression: Compression,
    /// Unique among all extents that were ever at this address.
    pub(crate) serial: u64,
}

/// What the overlay holds at one offset of the file.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A dirty block. `start` is its first byte.
    Dirty { start: u64, bytes: Frame },
    /// A pending extent, which is the newest data up to `end`.
    Pending { start: u64, pending: &'a PendingExtent, end: u64 },
    /// Nothing up to `end`.
    Gap { end: u64 },
}

impl Place {
    /// The logical address of the first byte; for a compressed extent, of the whole extent.
    pub(crate) fn logical(self) -> Logical {
        match self {
            Self::New { logical, .. } => logical,
            Self::Preallocated { extent, skip } => Logical(extent.logical.0.saturating_add(skip)),
            Self::Compressed { extent, .. } => extent.disk.logical,
        }
    }

    /// The place `bytes` further into the extent.
    pub(crate) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::New { logical, group } => {
                Self::New { logical: Logical(logical.0.saturating_add(bytes)), group }
            }
            Self::Preallocated { extent, skip } => {
                Self::Preallocated { extent, skip: skip.saturating_add(bytes) }
            }
            Self::Compressed { extent, skip } => {
                Self::Compressed { extent, skip: skip.saturating_add(bytes) }
            }
        }
    }
}

impl PendingExtent {
    pub(crate) fn new(bytes: u64, place: Place, checksums: Vec<u8>) -> Self {
        // Parts of it would lose their checksums.
        let sectors = in_memory(bytes / SECTOR_BYTES).max(1);
        let is_compressed = matches!(place, Place::Compressed { .. });
        assert!(
            is_compressed || checksums.len().is_multiple_of(sectors),
            "law 4: {} bytes of checksums for {bytes} bytes of data",
            checksums.len()
        );
        Self { bytes, place, checksums, is_merging: false }
    }

    /// The part of the pending extent from its byte `from` to its byte `to`.
    fn part(&self, from: u64, to: u64) -> Self {
        let checksums = if self.checksums.is_empty() {
            Vec::new()
        } else {
            let each = self.checksums.len() / in_memory(self.bytes / SECTOR_BYTES).max(1);
            let at = |bytes: u64| in_memory(bytes / SECTOR_BYTES) * each;
            self.checksums.get(at(from)..at(to)).unwrap_or_default().to_vec()
        };
        let place = self.place.advanced(from);
        Self { bytes: to - from, place, checksums, is_merging: self.is_merging }
    }

    /// The space of `bytes` bytes from byte `from` on, of a pending extent in new space.
    fn new_space(&self, from: u64, bytes: u64) -> DiskRange {
        debug_assert!(matches!(self.place, Place::New { .. }), "law 2");
        debug_assert!(from + bytes <= self.bytes, "law 2");
        let start = self.place.advanced(from).logical();
        DiskRange::new(start, bytes).expect("allocated space ends in the address space")
    }

    /// Length of one checksum in bytes.
    pub(crate) fn checksum_bytes(&self) -> usize {
        self.checksums.len() / in_memory(self.bytes / SECTOR_BYTES).max(1)
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        let is_compressed = matches!(self.place, Place::Compressed { .. });
        !is_compressed
            && !self.is_merging
            && !next.is_merging
            && self.bytes + next.bytes <= EXTENT_BYTES_MAX
            && self.place.advanced(self.bytes) == next.place
            && self.checksums.is_empty() == next.checksums.is_empty()
    }
}

impl Overlay {
    pub(crate) fn new(pages: FilePages, pending_bytes: PendingBytes) -> Self {
        let (pending_extents, compressed) = (BTreeMap::new(), BTreeMap::new());
        Self { pages, pending_extents, pending_bytes, compressed, merges_aborted: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending_extents.is_empty() && self.pages.newer_pages() == 0
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.pending_extents.len()
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.get()
    }

    /// Returns how many pending bytes the overlay may hold.
    pub(crate) fn pending_bytes_max(&self) -> u64 {
        self.pending_bytes.limit()
    }

    /// Bytes of dirty blocks and pending extents. A block that is both counts twice.
    pub(crate) fn bytes(&self) -> u64 {
        self.pending_bytes() + length(self.pages.newer_pages()) * SECTOR_BYTES
    }

    /// End of the last dirty block or pending extent.
    pub(crate) fn end(&self) -> u64 {
        let dirty = self.pages.newer_end().saturating_mul(SECTOR_BYTES);
        let pending = self
            .pending_extents
            .last_key_value()
            .map_or(0, |(start, pending)| start + pending.bytes);
        dirty.max(pending)
    }

    /// Returns what the overlay holds at byte `at`. Looks no further than `until`.
    pub(crate) fn find(&self, at: u64, until: u64) -> Found<'_> {
        let block = at - at % SECTOR_BYTES;
        if let Some((bytes, _)) = self.pages.newer_frame(at / SECTOR_BYTES) {
            return Found::Dirty { start: block, bytes };
        }
        let pages = at / SECTOR_BYTES..until.div_ceil(SECTOR_BYTES);
        let next_dirty = self.pages.next_newer(&pages).map_or(until, |page| page * SECTOR_BYTES);
        let next_dirty = next_dirty.min(until);
        let before = self.pending_extents.range(..=at).next_back();
        if let Some((start, pending)) =
            before.filter(|(start, pending)| at < *start + pending.bytes)
        {
            let end = (start + pending.bytes).min(next_dirty);
            return Found::Pending { start: *start, pending, end };
        }
        let next_pending =
            self.pending_extents.range(at..until).next().map_or(until, |(start, _)| *start);
        Found::Gap { end: next_dirty.min(next_pending) }
    }

    /// Returns the place of the pending extent at byte `at` and the end of that extent, also where
    /// a dirty block lies over it; else, as the error, where the next pending extent starts. Looks
    /// no further than `until`.
    pub(crate) fn find_pending(&self, at: u64, until: u64) -> Result<(Place, u64), u64> {
        let before = self.pending_extents.range(..=at).next_back();
        if let Some((start, pending)) =
            before.filter(|(start, pending)| at < *start + pending.bytes)
        {
            return Ok((pending.place.advanced(at - start), (start + pending.bytes).min(until)));
        }
        Err(self.pending_extents.range(at..until).next().map_or(until, |(start, _)| *start))
    }

    /// The pending extents, in file order.
    pub(crate) fn pending_extents(&self) -> impl Iterator<Item = (u64, &PendingExtent)> {
        self.pending_from(0)
    }

    /// The pending extents that start at or after `from`, in file order.
    pub(crate) fn pending_from(&self, from: u64) -> impl Iterator<Item = (u64, &PendingExtent)> {
        self.pending_extents.range(from..).map(|(start, pending)| (*start, pending))
    }

    /// Returns the pending extents of one step of a merge (law 6), in file order. The step begins
    /// with the first that starts at or after `from`, or before that where a compressed extent has
    /// parts on both sides. It has at most `count` pending extents, or the fewest possible if
    /// `count` would end inside the first compressed extent.
    pub(crate) fn merge_step(&self, from: u64, count: usize) -> Vec<(u64, &PendingExtent)> {
        let mut step = Vec::new();
        // The pending extents, up to the last one after which the step may end.
        let mut whole = 0;
        // How many parts of compressed extents are still to come.
        let mut missing: BTreeMap<Logical, usize> = BTreeMap::new();
        for (start, pending) in self.pending_from(self.start_of_step(from)) {
            if whole > 0 && step.len() >= count {
                break;
            }
            step.push((start, pending));
            if let Place::Compressed { extent, .. } = pending.place {
                let at = extent.disk.logical;
                let parts = self.compressed.get(&at).map_or(1, |usage| usage.pending_extents);
                let left = missing.remove(&at).unwrap_or(parts).saturating_sub(1);
                if left > 0 {
                    missing.insert(at, left);
                }
            }
            if missing.is_empty() {
                whole = step.len();
            }
        }
        debug_assert!(whole > 0 || step.is_empty(), "law 6: no part lies before the step");
        step.truncate(whole);
        step
    }

    /// Returns where a step of a merge begins that is to begin at `from`: there, or at the first
    /// part of a compressed extent that has another part after `from`.
    fn start_of_step(&self, from: u64) -> u64 {
        let mut start = from;
        let after = self.pending_extents.range(from..from.saturating_add(COMPRESSED_BYTES_MAX));
        for (at, pending) in after {
            if let Place::Compressed { extent, skip } = pending.place {
                // The extent was written there in one piece, so none of its parts is before that.
                let written_at = at.saturating_sub(skip).min(start);
                let mut before = self.pending_extents.range(written_at..start);
                let is_part = |place: &Place| match place {
                    Place::Compressed { extent: other, .. } => other.serial == extent.serial,
                    Place::New { .. } | Place::Preallocated { .. } => false,
                };
                start =
                    before.find(|(_, other)| is_part(&other.place)).map_or(start, |(at, _)| *at);
            }
        }
        start
    }

    /// Removes the pending extents of one step of a merge, which are in the tree now, without
    /// returning their space.
    pub(crate) fn drop_merged(&mut self, starts: &[u64]) {
        let mut compressed = Vec::new();
        for start in starts {
            let Some(pending) = self.pending_extents.remove(start) else { continue };
            self.pending_bytes.subtract(pending.bytes);
            if let Place::Compressed { extent, .. } = pending.place {
                self.drop_use(&extent, 0);
                compressed.push(extent.disk.logical);
            }
        }
        debug_assert!(compressed.iter().all(|at| !self.compressed.contains_key(at)), "law 6");
    }

    /// Marks the first `count` pending extents that end after `from` as being merged, up to the
    /// first that does not lie in new space. Returns copies of them.
    pub(crate) fn begin_merging(&mut self, from: u64, count: usize) -> Vec<(u64, PendingExtent)> {
        let first = self.first_ending_after(from).unwrap_or(from);
        let pending_extents = self.pending_extents.range_mut(first..).take(count);
        let in_new_space =
            pending_extents.take_while(|(_, pending)| matches!(pending.place, Place::New { .. }));
        in_new_space
            .map(|(start, pending)| {
                pending.is_merging = true;
                (*start, pending.clone())
            })
            .collect()
    }

    /// Returns the start of the first pending extent that ends after `from`.
    pub(crate) fn first_ending_after(&self, from: u64) -> Option<u64> {
        let before = self.pending_extents.range(..from).next_back();
        let around = before.filter(|(start, pending)| start.saturating_add(pending.bytes) > from);
        around.or_else(|| self.pending_extents.range(from..).next()).map(|(start, _)| *start)
    }

    /// Returns the end of the last pending extent, or 0.
    pub(crate) fn pending_end(&self) -> u64 {
        let last = self.pending_extents.last_key_value();
        last.map_or(0, |(start, pending)| start.saturating_add(pending.bytes))
    }

    /// Returns how often extents that were being merged have stayed in the overlay.
    pub(crate) fn merges_aborted(&self) -> u64 {
        self.merges_aborted
    }

    /// Removes what is left of extents that have been merged.
    pub(crate) fn finish_merging(&mut self, merging: &[(u64, PendingExtent)]) {
        for start in self.remaining_of(merging) {
            if let Some(pending) = self.pending_extents.remove(&start) {
                self.pending_bytes.subtract(pending.bytes);
            }
        }
    }

    /// Unmarks extents whose merge failed. Returns the new space that nothing shows any more
    /// (law 2).
    pub(crate) fn abort_merging(&mut self, merging: &[(u64, PendingExtent)]) -> Vec<DiskRange> {
        self.merges_aborted = self.merges_aborted.wrapping_add(1);
        let mut shown: Vec<DiskRange> = Vec::new();
        for start in self.remaining_of(merging) {
            if let Some(pending) = self.pending_extents.get_mut(&start) {
                pending.is_merging = false;
                shown.push(pending.new_space(0, pending.bytes));
            }
        }
        shown.sort_by_key(|part| part.start());
        let mut freed = Vec::new();
        for (_, pending) in merging {
            let mut left = pending.new_space(0, pending.bytes);
            let first = shown.partition_point(|part| part.end() <= left.start());
            let (parts, end) = (shown.iter().skip(first), left.end());
            for part in parts.take_while(|part| part.start() < end) {
                freed.push(left.take_front(part.start().0.saturating_sub(left.start().0)));
                left = left.take_back(left.end().0.saturating_sub(part.end().0));
            }
            freed.push(left);
        }
        freed.retain(|part| !part.is_empty());
        freed
    }

    /// Starts of the remaining parts of extents that are being merged.
    fn remaining_of(&self, merging: &[(u64, PendingExtent)]) -> Vec<u64> {
        let left = merging.iter().flat_map(|(start, pending)| {
            let parts = self.pending_extents.range(*start..start + pending.bytes);
            parts.filter(|(_, pending)| pending.is_merging).map(|(start, _)| *start)
        });
        left.collect()
    }

    /// The checksums of a compressed extent, one for each of its sectors on disk.
    pub(crate) fn compressed_checksums(&self, extent: &CompressedExtent) -> &[u8] {
        self.compressed.get(&extent.disk.logical).map_or(&[], |usage| &usage.checksums)
    }

    /// Replaces one pending extent that showed `extent` with `left` of them. Returns the extent's
    /// space if none is left (law 5).
    fn drop_use(&mut self, extent: &CompressedExtent, left: usize) -> Option<DiskRange> {
        let at = extent.disk.logical;
        let usage = self.compressed.get_mut(&at)?;
        usage.pending_extents = (usage.pending_extents + left).saturating_sub(1);
        if usage.pending_extents > 0 {
            return None;
        }
        self.compressed.remove(&at);
        Some(DiskRange::new(at, extent.disk.bytes).expect("it was allocated"))
    }

    /// Removes the pending extents of `range`. Returns the new space that nothing shows any more
    /// (law 2).
    pub(crate) fn cut(&mut self, range: &Range<u64>) -> Vec<DiskRange> {
        let mut freed = Vec::new();
        if range.is_empty() {
            return freed;
        }
        let before = self.pending_extents.range(..range.start).next_back();
        let first = before.filter(|(start, pending)| *start + pending.bytes > range.start);
        let first = first.map_or(range.start, |(start, _)| *start);
        let touched: Vec<u64> = self
            .pending_extents
            .range(first..range.end.max(first))
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            let Some(pending) = self.pending_extents.remove(&start) else { continue };
            self.pending_bytes.subtract(pending.bytes);
            let end = start + pending.bytes;
            let (from, to) = (range.start.max(start), range.end.min(end));
            match pending.place {
                Place::New { .. } if pending.is_merging => {}
                Place::New { .. } => freed.push(pending.new_space(from - start, to - from)),
                Place::Compressed { extent, .. } => {
                    let left = usize::from(start < from) + usize::from(to < end);
                    freed.extend(self.drop_use(&extent, left));
                }
                Place::Preallocated { .. } => {}
            }
            if start < from {
                self.put(start, pending.part(0, from - start));
            }
            if to < end {
                self.put(to, pending.part(to - start, pending.bytes));
            }
        }
        freed
    }

    /// Splits a pending extent `bytes` bytes behind its start, so that a merge can take the first
    /// part alone. Returns whether it did: what lies in a compressed extent cannot be split.
    pub(crate) fn split(&mut self, start: u64, bytes: u64) -> bool {
        debug_assert!(bytes.is_multiple_of(SECTOR_BYTES) && bytes > 0, "law 1");
        let can_split = |pending: &&PendingExtent| {
            let is_compressed = matches!(pending.place, Place::Compressed { .. });
            !is_compressed && !pending.is_merging && bytes < pending.bytes
        };
        let Some(pending) = self.pending_extents.get(&start).filter(can_split) else {
            return false;
        };
        let parts = (pending.part(0, bytes), pending.part(bytes, pending.bytes));
        self.pending_bytes.subtract(pending.bytes);
        self.pending_extents.remove(&start);
        self.put(start, parts.0);
        self.put(start + bytes, parts.1);
        true
    }

    /// Inserts a pending extent in place of whatever its range held. Returns the new space that
    /// nothing shows any more.
    pub(crate) fn insert(&mut self, start: u64, mut pending: PendingExtent) -> Vec<DiskRange> {
        debug_assert!(start.is_multiple_of(SECTOR_BYTES), "law 1");
        debug_assert!(pending.bytes.is_multiple_of(SECTOR_BYTES) && pending.bytes > 0, "law 1");
        if self.can_replace(start, &pending)
            && let Some(place) = self.pending_extents.get_mut(&start)
        {
            let replaced = std::mem::replace(place, pending);
            return vec![replaced.new_space(0, replaced.bytes)];
        }
        let freed = self.cut(&(start..start + pending.bytes));
        let mut at = start;
        let before = self.pending_extents.range(..start).next_back().map(|(start, _)| *start);
        if let Some(before) = before
            && let Some(left) = self.pending_extents.get_mut(&before)
            && before + left.bytes == start
            && left.is_followed_by(&pending)
        {
            // The left neighbour grows, so that appending to a file costs constant time and keeps
            // one extent.
            self.pending_bytes.add(pending.bytes);
            left.bytes += pending.bytes;
            left.checksums.append(&mut pending.checksums);
            at = before;
        } else {
            self.put(start, pending);
        }
        self.join_next(at);
        freed
    }

    /// Whether `pending` replaces exactly one pending extent, which was written in new space too,
    /// and joins no neighbour: overwrites of single blocks do that again and again.
    fn can_replace(&self, start: u64, pending: &PendingExtent) -> bool {
        let is_new = |pending: &PendingExtent| matches!(pending.place, Place::New { .. });
        let mut from_start = self.pending_extents.range(start..);
        let Some((at, replaced)) = from_start.next() else { return false };
        let is_alike = *at == start
            && replaced.bytes == pending.bytes
            && is_new(replaced)
            && !replaced.is_merging
            && is_new(pending);
        if !is_alike {
            return false;
        }
        let end = start + pending.bytes;
        let joins_next =
            from_start.next().is_some_and(|(at, next)| *at == end && pending.is_followed_by(next));
        let before = self.pending_extents.range(..start).next_back();
        let joins_before = before
            .is_some_and(|(at, left)| at + left.bytes == start && left.is_followed_by(pending));
        !joins_next && !joins_before
    }

    /// Inserts a pending extent that shows all of a new compressed extent, with its checksums.
    /// Returns what [`Self::insert`] returns.
    pub(crate) fn insert_compressed(
        &mut self,
        start: u64,
        extent: CompressedExtent,
        checksums: Vec<u8>,
    ) -> Vec<DiskRange> {
        let bytes = extent.ram_bytes;
        let freed = self.cut(&(start..start + bytes));
        let usage = CompressedUse { pending_extents: 1, checksums };
        self.compressed.insert(extent.disk.logical, usage);
        let place = Place::Compressed { extent, skip: 0 };
        self.put(start, PendingExtent::new(bytes, place, Vec::new()));
        freed
    }

    fn join_next(&mut self, at: u64) {
        let Some(end) = self.pending_extents.get(&at).map(|pending| at + pending.bytes) else {
            return;
        };
        let Some(next) = self.pending_extents.get(&end) else { return };
        if !self.pending_extents.get(&at).is_some_and(|pending| pending.is_followed_by(next)) {
            return;
        }
        if let Some(mut next) = self.pending_extents.remove(&end)
            && let Some(pending) = self.pending_extents.get_mut(&at)
        {
            pending.bytes += next.bytes;
            pending.checksums.append(&mut next.checksums);
        }
    }

    fn put(&mut self, start: u64, pending: PendingExtent) {
        debug_assert_eq!(
            self.find_pending(start, start + pending.bytes).err(),
            Some(start + pending.bytes),
            "law 1: pending extents do not overlap"
        );
        self.pending_bytes.add(pending.bytes);
        self.pending_extents.insert(start, pending);
    }
}

#[cfg(test)]
mod tests;
