//! The overlay: what one file holds that is newer than its tree.
//!
//! ```text
//! reads look here first    dirty blocks     in memory, whole blocks of 4 KiB
//! then here                patches          on disk, in no tree yet, with their digests
//! then in the tree         extent items
//! ```
//!
//! Laws:
//!
//! 1. Patches are sorted, do not overlap, and lie on whole blocks. Two that follow each other both
//!    in the file and on disk are one, up to [`EXTENT_BYTES_MAX`], unless one of them is on its way
//!    into the tree: but no extent lies in two block groups.
//! 2. A patch that is cut gives back exactly the new space that it no longer shows; one that is on
//!    its way into the tree gives back nothing: the tree is about to name it.
//! 3. Dirty blocks are whole, and zero behind the end of the file. They are pages of the cache:
//!    dirty, or on their way down.
//! 4. A patch has one digest for each of its sectors, or none at all. Of a packed extent, which
//!    several patches may show parts of, the digests are kept once.
//! 5. The space of a packed extent is given back when no patch shows any of it any more, unless a
//!    tree came to name it.
//!
//! It does not know the file's size, nor whether there is room for what it holds.

use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_pages::FilePages;
use butternut_sys::frames::Frame;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::source::in_memory;

/// The longest extent that a write makes.
pub(crate) const EXTENT_BYTES_MAX: u64 = 128 << 20;
/// A block, as a length in memory.
pub(crate) const BLOCK: usize = 4096;
const _: () = assert!(SECTOR_BYTES == 4096);

/// What a file holds that is newer than its tree.
#[derive(Debug)]
pub(crate) struct Overlay {
    pages: FilePages,
    patches: BTreeMap<u64, Patch>,
    patch_bytes: u64,
    /// The packed extents that patches show, by where they are.
    packed: BTreeMap<Logical, Shown>,
}

/// A packed extent that patches show.
#[derive(Debug)]
struct Shown {
    patches: usize,
    /// Of its sectors on disk.
    digests: Vec<u8>,
    /// A tree names it: its space is not ours to give back.
    is_named: bool,
}

/// A run of the file that is on disk, and in no tree yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) bytes: u64,
    pub(crate) place: Place,
    /// Packed; empty where nothing vouches for the data.
    pub(crate) digests: Vec<u8>,
    /// It is on its way into the tree, while others go on with the file.
    is_merging: bool,
}

/// Where a patch is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In space that nothing references yet, of the block group that starts at `group`.
    New { logical: Logical, group: Logical },
    /// `skip` bytes into an extent that the tree has as set aside.
    SetAside { extent: DiskExtent, skip: u64 },
    /// `skip` bytes into what a packed extent holds.
    Packed { extent: PackedExtent, skip: u64 },
}

/// An extent that was packed as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedExtent {
    pub(crate) disk: DiskExtent,
    /// Bytes of the file that it holds.
    pub(crate) ram_bytes: u64,
    pub(crate) compression: Compression,
    /// Unlike that of any other that ever was at the same place.
    pub(crate) serial: u64,
}

/// What the overlay says of one place in the file.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A dirty block, from its start on.
    Dirty { start: u64, bytes: Frame },
    /// A patch, up to `end`; what lies behind that is something else.
    Patch { start: u64, patch: &'a Patch, end: u64 },
    /// Nothing, up to here.
    Gap { end: u64 },
}

impl Place {
    /// Where the first byte is; of a packed extent, all of it.
    pub(crate) fn logical(self) -> Logical {
        match self {
            Self::New { logical, .. } => logical,
            Self::SetAside { extent, skip } => Logical(extent.logical.0.saturating_add(skip)),
            Self::Packed { extent, .. } => extent.disk.logical,
        }
    }

    /// The place `bytes` further on.
    pub(crate) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::New { logical, group } => {
                Self::New { logical: Logical(logical.0.saturating_add(bytes)), group }
            }
            Self::SetAside { extent, skip } => {
                Self::SetAside { extent, skip: skip.saturating_add(bytes) }
            }
            Self::Packed { extent, skip } => {
                Self::Packed { extent, skip: skip.saturating_add(bytes) }
            }
        }
    }
}

impl Patch {
    pub(crate) fn new(bytes: u64, place: Place, digests: Vec<u8>) -> Self {
        Self { bytes, place, digests, is_merging: false }
    }

    /// The part of the patch from byte `from` to byte `to` of it.
    fn part(&self, from: u64, to: u64) -> Self {
        let digests = if self.digests.is_empty() {
            Vec::new()
        } else {
            let each = self.digests.len() / in_memory(self.bytes / SECTOR_BYTES).max(1);
            let at = |bytes: u64| in_memory(bytes / SECTOR_BYTES) * each;
            self.digests.get(at(from)..at(to)).unwrap_or_default().to_vec()
        };
        let place = self.place.advanced(from);
        Self { bytes: to - from, place, digests, is_merging: self.is_merging }
    }

    /// Bytes of one digest.
    pub(crate) fn digest_bytes(&self) -> usize {
        self.digests.len() / in_memory(self.bytes / SECTOR_BYTES).max(1)
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        let is_packed = matches!(self.place, Place::Packed { .. });
        !is_packed
            && !self.is_merging
            && !next.is_merging
            && self.bytes + next.bytes <= EXTENT_BYTES_MAX
            && self.place.advanced(self.bytes) == next.place
            && self.digests.is_empty() == next.digests.is_empty()
    }
}

impl Overlay {
    pub(crate) fn new(pages: FilePages) -> Self {
        let (patches, packed) = (BTreeMap::new(), BTreeMap::new());
        Self { pages, patches, patch_bytes: 0, packed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patches.is_empty() && self.pages.newer_pages() == 0
    }

    pub(crate) fn patch_count(&self) -> usize {
        self.patches.len()
    }

    pub(crate) fn patch_bytes(&self) -> u64 {
        self.patch_bytes
    }

    /// Bytes of the file that are newer than the tree. What is so twice counts twice.
    pub(crate) fn bytes(&self) -> u64 {
        self.patch_bytes + length(self.pages.newer_pages()) * SECTOR_BYTES
    }

    /// One behind the last byte that the overlay says anything of.
    pub(crate) fn end(&self) -> u64 {
        let dirty = self.pages.newer_end().saturating_mul(SECTOR_BYTES);
        let patch = self.patches.last_key_value().map_or(0, |(start, patch)| start + patch.bytes);
        dirty.max(patch)
    }

    /// What there is at byte `at`, looking no further than `until`.
    pub(crate) fn find(&self, at: u64, until: u64) -> Found<'_> {
        let block = at - at % SECTOR_BYTES;
        if let Some((bytes, _)) = self.pages.newer(at / SECTOR_BYTES) {
            return Found::Dirty { start: block, bytes };
        }
        let pages = at / SECTOR_BYTES..until.div_ceil(SECTOR_BYTES);
        let next_dirty = self.pages.next_newer(&pages).map_or(until, |page| page * SECTOR_BYTES);
        let next_dirty = next_dirty.min(until);
        let before = self.patches.range(..=at).next_back();
        if let Some((start, patch)) = before.filter(|(start, patch)| at < *start + patch.bytes) {
            let end = (start + patch.bytes).min(next_dirty);
            return Found::Patch { start: *start, patch, end };
        }
        let next_patch = self.patches.range(at..until).next().map_or(until, |(start, _)| *start);
        Found::Gap { end: next_dirty.min(next_patch) }
    }

    /// The patch at byte `at`, from there on, and where it ends, whatever is dirty above it; or
    /// else where the next one starts. Looks no further than `until`.
    pub(crate) fn find_patch(&self, at: u64, until: u64) -> Result<(Place, u64), u64> {
        let before = self.patches.range(..=at).next_back();
        if let Some((start, patch)) = before.filter(|(start, patch)| at < *start + patch.bytes) {
            return Ok((patch.place.advanced(at - start), (start + patch.bytes).min(until)));
        }
        Err(self.patches.range(at..until).next().map_or(until, |(start, _)| *start))
    }

    /// The patches, in file order.
    pub(crate) fn patches(&self) -> impl Iterator<Item = (u64, &Patch)> {
        self.patches_from(0)
    }

    /// The patches that start at or behind a place, in file order.
    pub(crate) fn patches_from(&self, from: u64) -> impl Iterator<Item = (u64, &Patch)> {
        self.patches.range(from..).map(|(start, patch)| (*start, patch))
    }

    /// Takes a patch out, without giving space back: it is in the tree now.
    pub(crate) fn settle_patch(&mut self, start: u64) {
        if let Some(patch) = self.patches.remove(&start) {
            self.patch_bytes -= patch.bytes;
            if let Place::Packed { extent, .. } = patch.place {
                if let Some(shown) = self.packed.get_mut(&extent.disk.logical) {
                    shown.is_named = true;
                }
                self.recount(&extent, 0);
            }
        }
    }

    /// Sends patches from a place on into the tree, `count` at most: those up to the first that is
    /// not in space of its own. Says what they are.
    pub(crate) fn start_merging(&mut self, from: u64, count: usize) -> Vec<(u64, Patch)> {
        let patches = self.patches.range_mut(from..).take(count);
        let own = patches.take_while(|(_, patch)| matches!(patch.place, Place::New { .. }));
        own.map(|(start, patch)| {
            patch.is_merging = true;
            (*start, patch.clone())
        })
        .collect()
    }

    /// What was sent into the tree is there: what is left of it here goes.
    pub(crate) fn settle_merging(&mut self, merging: &[(u64, Patch)]) {
        for start in self.left_of(merging) {
            if let Some(patch) = self.patches.remove(&start) {
                self.patch_bytes -= patch.bytes;
            }
        }
    }

    /// What was sent into the tree did not come there. Returns the new space of it that nothing
    /// shows any more (law 2).
    pub(crate) fn stop_merging(&mut self, merging: &[(u64, Patch)]) -> Vec<Range<u64>> {
        let mut shown: Vec<Range<u64>> = Vec::new();
        for start in self.left_of(merging) {
            if let Some(patch) = self.patches.get_mut(&start) {
                patch.is_merging = false;
                let logical = patch.place.logical().0;
                shown.push(logical..logical + patch.bytes);
            }
        }
        shown.sort_by_key(|part| part.start);
        let mut freed = Vec::new();
        for (_, patch) in merging {
            let mut at = patch.place.logical().0;
            let end = at + patch.bytes;
            let first = shown.partition_point(|part| part.end <= at);
            for part in shown.iter().skip(first).take_while(|part| part.start < end) {
                freed.extend((at < part.start).then_some(at..part.start));
                at = part.end;
            }
            freed.extend((at < end).then_some(at..end));
        }
        freed
    }

    /// Where what is left starts of patches that are on their way into the tree.
    fn left_of(&self, merging: &[(u64, Patch)]) -> Vec<u64> {
        let left = merging.iter().flat_map(|(start, patch)| {
            let parts = self.patches.range(*start..start + patch.bytes);
            parts.filter(|(_, patch)| patch.is_merging).map(|(start, _)| *start)
        });
        left.collect()
    }

    /// The digests of a packed extent, by its sectors on disk.
    pub(crate) fn packed_digests(&self, extent: &PackedExtent) -> &[u8] {
        self.packed.get(&extent.disk.logical).map_or(&[], |shown| &shown.digests)
    }

    /// Whether a tree names a packed extent already.
    pub(crate) fn is_named(&self, extent: &PackedExtent) -> bool {
        self.packed.get(&extent.disk.logical).is_some_and(|shown| shown.is_named)
    }

    /// `left` patches show what one did. Returns the space, if nothing does any more (law 5).
    fn recount(&mut self, extent: &PackedExtent, left: usize) -> Option<Range<u64>> {
        let at = extent.disk.logical;
        let shown = self.packed.get_mut(&at)?;
        shown.patches = (shown.patches + left).saturating_sub(1);
        if shown.patches > 0 {
            return None;
        }
        let is_ours = !shown.is_named;
        self.packed.remove(&at);
        is_ours.then_some(at.0..at.0 + extent.disk.bytes)
    }

    /// Forgets what patches say of `range`. Returns the new space that nothing shows any more
    /// (law 2).
    pub(crate) fn cut(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut freed = Vec::new();
        if range.is_empty() {
            return freed;
        }
        let before = self.patches.range(..range.start).next_back();
        let first = before.filter(|(start, patch)| *start + patch.bytes > range.start);
        let first = first.map_or(range.start, |(start, _)| *start);
        let touched: Vec<u64> =
            self.patches.range(first..range.end.max(first)).map(|(start, _)| *start).collect();
        for start in touched {
            let Some(patch) = self.patches.remove(&start) else { continue };
            self.patch_bytes -= patch.bytes;
            let end = start + patch.bytes;
            let (from, to) = (range.start.max(start), range.end.min(end));
            match patch.place {
                Place::New { .. } if patch.is_merging => {}
                Place::New { logical, .. } => {
                    freed.push(logical.0 + (from - start)..logical.0 + (to - start));
                }
                Place::Packed { extent, .. } => {
                    let left = usize::from(start < from) + usize::from(to < end);
                    freed.extend(self.recount(&extent, left));
                }
                Place::SetAside { .. } => {}
            }
            if start < from {
                self.put(start, patch.part(0, from - start));
            }
            if to < end {
                self.put(to, patch.part(to - start, patch.bytes));
            }
        }
        freed
    }

    /// Adds a patch in place of what patches said of its range. Returns the new space that
    /// nothing shows any more.
    pub(crate) fn insert(&mut self, start: u64, mut patch: Patch) -> Vec<Range<u64>> {
        debug_assert!(start.is_multiple_of(SECTOR_BYTES), "law 1");
        debug_assert!(patch.bytes.is_multiple_of(SECTOR_BYTES) && patch.bytes > 0, "law 1");
        let freed = self.cut(&(start..start + patch.bytes));
        let mut at = start;
        let before = self.patches.range(..start).next_back().map(|(start, _)| *start);
        if let Some(before) = before
            && let Some(left) = self.patches.get_mut(&before)
            && before + left.bytes == start
            && left.is_followed_by(&patch)
        {
            // The left one grows: a file that is appended to stays one patch, at no cost.
            self.patch_bytes += patch.bytes;
            left.bytes += patch.bytes;
            left.digests.append(&mut patch.digests);
            at = before;
        } else {
            self.put(start, patch);
        }
        self.join_next(at);
        freed
    }

    /// Adds a patch that shows all of a new packed extent, with its digests; as [`Self::insert`].
    pub(crate) fn insert_packed(
        &mut self,
        start: u64,
        extent: PackedExtent,
        digests: Vec<u8>,
    ) -> Vec<Range<u64>> {
        let bytes = extent.ram_bytes;
        let freed = self.cut(&(start..start + bytes));
        self.packed.insert(extent.disk.logical, Shown { patches: 1, digests, is_named: false });
        let place = Place::Packed { extent, skip: 0 };
        self.put(start, Patch::new(bytes, place, Vec::new()));
        freed
    }

    fn join_next(&mut self, at: u64) {
        let Some(end) = self.patches.get(&at).map(|patch| at + patch.bytes) else { return };
        let Some(next) = self.patches.get(&end) else { return };
        if !self.patches.get(&at).is_some_and(|patch| patch.is_followed_by(next)) {
            return;
        }
        if let Some(mut next) = self.patches.remove(&end)
            && let Some(patch) = self.patches.get_mut(&at)
        {
            patch.bytes += next.bytes;
            patch.digests.append(&mut next.digests);
        }
    }

    fn put(&mut self, start: u64, patch: Patch) {
        self.patch_bytes += patch.bytes;
        self.patches.insert(start, patch);
    }
}

#[cfg(test)]
mod tests;
