//! The extent map: from a range of a file to the extents that hold its bytes.
//!
//! [`ItemMappings`] are what the tree's items say. [`Mappings`] combine them with the overlay,
//! which is newer, for a file that is being written.
//!
//! ```text
//! extent_map      Mappings: any range, in order, for seeks and listings of extents
//!   plain         the uncompressed extents of one region, in few bytes
//!   caches        cached regions, checksums and decompressed extents
//!   plan          what a batch of reads needs of the devices
//!   resolve       where a range is on disk, for a read past the page cache
//! ```
//!
//! Laws:
//!
//! 1. Mappings follow one another without gap or overlap, from the start of the range to its end or
//!    to the end of the file and its extents, whichever is first. Where there is no item there is a
//!    hole, with and without the no-holes feature.
//! 2. Each mapping is as large as one item allows.
//! 3. An item that starts before its predecessor's end is rejected as corrupt.
//! 4. Offsets and lengths are whole sectors, except where the range itself cuts a sector.
//!
//! Left to others: the bytes (`read`), and which mappings count as data (`seek`).

pub(crate) mod caches;
pub(crate) mod plain;
pub(crate) mod plan;
pub(crate) mod resolve;
pub(crate) mod seek;
pub(crate) mod view;

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::overlay::{CompressedExtent, Found, PendingExtent, Place};
use crate::shared_file::SharedFile;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Generation, SECTOR_BYTES};
use butternut_tree::Cursor;
use std::ops::Range;
use std::sync::Arc;

/// A range of a file and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Where the bytes are.
    pub kind: MappingKind,
}

/// Where the bytes of a [`Mapping`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Nowhere: it reads as zeroes.
    Hole,
    /// Preallocated, `skip` bytes into `extent`: it reads as zeroes.
    Preallocated { extent: DiskExtent, skip: u64 },
    /// In the item itself, which holds `ram_bytes` bytes when decompressed; this mapping starts at
    /// byte `skip` of them.
    Inline { compression: Compression, ram_bytes: u64, skip: u64 },
    /// In `extent`, from byte `skip` of its decompressed contents.
    Regular { extent: DiskExtent, encoding: Encoding, skip: u64 },
    /// In a dirty block: written and not yet on disk.
    Buffered,
}

/// How a data extent is encoded. `ram_bytes` is its decompressed length, and meaningful only where
/// it is compressed. For an extent that is in no tree yet, `generation` only separates it from
/// other extents that were at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The algorithm, or none.
    pub compression: Compression,
    /// Decompressed length in bytes.
    pub ram_bytes: u64,
    /// The transaction that wrote the extent.
    pub generation: Generation,
}

/// The bit of generations of compressed extents that are in no tree. No transaction ever has such a
/// generation.
const IN_NO_TREE: u64 = 1 << 63;

impl Encoding {
    /// Returns whether the extent is in a tree, so that its generation is that of a transaction.
    pub fn is_in_tree(&self) -> bool {
        self.generation.0 != 0 && self.generation.0 & IN_NO_TREE == 0
    }
}

impl CompressedExtent {
    pub(crate) fn encoding(&self) -> Encoding {
        let Self { ram_bytes, compression, serial, .. } = *self;
        Encoding { compression, ram_bytes, generation: Generation(IN_NO_TREE | serial) }
    }
}

impl Mapping {
    /// Returns the offset after the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    fn buffered(offset: u64) -> Self {
        Self { offset, bytes: SECTOR_BYTES, kind: MappingKind::Buffered }
    }

    /// The mapping of a pending extent.
    fn pending(offset: u64, pending: &PendingExtent) -> Self {
        let plain = |extent: DiskExtent| Encoding {
            compression: Compression::None,
            ram_bytes: extent.bytes,
            generation: Generation(0),
        };
        let (extent, encoding, skip) = match pending.place {
            Place::New { logical, .. } => {
                let extent = DiskExtent { logical, bytes: pending.bytes };
                (extent, plain(extent), 0)
            }
            Place::Preallocated { extent, skip } => (extent, plain(extent), skip),
            Place::Compressed { extent, skip } => (extent.disk, extent.encoding(), skip),
        };
        let kind = MappingKind::Regular { extent, encoding, skip };
        Self { offset, bytes: pending.bytes, kind }
    }

    /// The part of this mapping inside `range`, which overlaps it.
    pub(crate) fn within(&self, range: &Range<u64>) -> Self {
        let offset = self.offset.max(range.start);
        let bytes = self.end().min(range.end).saturating_sub(offset);
        let cut = offset - self.offset;
        let kind = match self.kind {
            MappingKind::Hole => MappingKind::Hole,
            MappingKind::Preallocated { extent, skip } => {
                MappingKind::Preallocated { extent, skip: skip + cut }
            }
            MappingKind::Inline { compression, ram_bytes, skip } => {
                MappingKind::Inline { compression, ram_bytes, skip: skip + cut }
            }
            MappingKind::Regular { extent, encoding, skip } => {
                MappingKind::Regular { extent, encoding, skip: skip + cut }
            }
            MappingKind::Buffered => MappingKind::Buffered,
        };
        Self { offset, bytes, kind }
    }
}

/// The mappings of a range of a file, in order. Ends after the first error.
///
/// The file may change between two steps: each mapping is as the file was at one moment since the
/// iterator was made.
#[derive(Debug)]
pub struct Mappings {
    items: ItemMappings,
    /// The overlay, and the next mapping of the items that has not been returned yet.
    newer: Option<(Arc<SharedFile>, Option<Mapping>)>,
    range: Range<u64>,
}

/// The mappings that the items of a range of a file describe.
#[derive(Debug)]
pub(crate) struct ItemMappings {
    view: FileView,
    range: Range<u64>,
    cursor: Cursor,
    is_positioned: bool,
    /// End of the last item that was read.
    item_end: u64,
    /// Found after a hole that was returned first.
    next: Option<Mapping>,
    /// The version of the items that `item_end` and `next` belong to.
    items_version: u64,
}

impl Mappings {
    /// Returns the mappings of a range that may be long: the next leaves are read in batches.
    pub fn of(view: &FileView, range: Range<u64>) -> Self {
        Self::with_items(view, range, ItemMappings::of)
    }

    /// The mappings of a short range.
    pub(crate) fn of_short_range(view: &FileView, range: Range<u64>) -> Self {
        Self::with_items(view, range, ItemMappings::of_short_range)
    }

    fn with_items(
        view: &FileView,
        range: Range<u64>,
        items: impl Fn(&FileView, Range<u64>) -> ItemMappings,
    ) -> Self {
        let newer = view.shared().map(|shared| (Arc::clone(shared), None));
        Self { items: items(view, range.clone()), newer, range }
    }

    /// The mapping at the start of the range: the overlay's, or else the items'.
    fn find_next(&mut self) -> Result<Option<Mapping>, FileError> {
        let Some((shared, next)) = &mut self.newer else { return self.items.next().transpose() };
        if self.range.is_empty() {
            return Ok(None);
        }
        if !self.items.is_current() {
            self.items.restart(self.range.start);
            *next = None;
        }
        let overlay = shared.overlay();
        let data_end = shared.size().max(overlay.end()).next_multiple_of(SECTOR_BYTES);
        let gap_end = match overlay.find(self.range.start, self.range.end) {
            Found::Dirty { start, .. } => {
                return Ok(Some(Mapping::buffered(start).within(&self.range)));
            }
            Found::Pending { start, pending, end } => {
                let found = Mapping::pending(start, pending);
                return Ok(Some(found.within(&(self.range.start..end.min(self.range.end)))));
            }
            Found::Gap { end } => end,
        };
        drop(overlay);
        let gap = self.range.start..gap_end;
        while next.is_none_or(|mapping| mapping.end() <= gap.start) {
            *next = self.items.next().transpose()?;
            if next.is_none() {
                break;
            }
        }
        Ok(match *next {
            Some(mapping) if mapping.offset < gap.end => {
                debug_assert!(mapping.offset <= gap.start, "law 1");
                Some(mapping.within(&gap))
            }
            // After all items there is a hole, up to the next dirty or pending data or the end of
            // the file.
            _ => {
                let end = gap.end.min(data_end.max(gap.start));
                let bytes = end - gap.start;
                let hole = Mapping { offset: gap.start, bytes, kind: MappingKind::Hole };
                Some(hole).filter(|hole| hole.bytes > 0)
            }
        })
    }
}

impl ItemMappings {
    pub(crate) fn of_short_range(view: &FileView, range: Range<u64>) -> Self {
        Self::with_cursor(view, range, view.tree().cursor())
    }

    fn of(view: &FileView, range: Range<u64>) -> Self {
        Self::with_cursor(view, range, view.tree().scan())
    }

    fn with_cursor(view: &FileView, range: Range<u64>, cursor: Cursor) -> Self {
        let (view, items_version) = (view.clone(), view.items_version());
        Self { view, range, cursor, is_positioned: false, item_end: 0, next: None, items_version }
    }

    /// Whether the items are those of the last step.
    fn is_current(&self) -> bool {
        self.items_version == self.view.items_version()
    }

    /// Begins again at byte `start`. An item that was read before may have been split since.
    fn restart(&mut self, start: u64) {
        self.range.start = start;
        (self.is_positioned, self.item_end, self.next) = (false, 0, None);
        self.items_version = self.view.items_version();
    }

    fn find_next(&mut self) -> Result<Option<Mapping>, FileError> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let found = match self.next.take() {
            Some(found) => Some(found),
            None => self.next_item()?,
        };
        let item_start = found.map_or_else(|| self.last_hole_end(), |mapping| mapping.offset);
        let mapping = if item_start > self.range.start {
            self.next = found;
            let end = item_start.min(self.range.end);
            let bytes = end - self.range.start;
            Mapping { offset: self.range.start, bytes, kind: MappingKind::Hole }
        } else if let Some(found) = found {
            found.within(&self.range)
        } else {
            return Ok(None);
        };
        self.range.start = mapping.end();
        Ok(Some(mapping))
    }

    /// End of the hole after the last item: the end of the file's last sector.
    fn last_hole_end(&self) -> u64 {
        let size = self.view.size();
        size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(size)
    }

    /// The mapping of the next item that ends past the start of the remaining range.
    fn next_item(&mut self) -> Result<Option<Mapping>, FileError> {
        loop {
            self.step()?;
            let Some((key, data)) = self.cursor.item_parts() else { return Ok(None) };
            let file = (self.view.ino().0, ItemType::EXTENT_DATA);
            if (key.objectid, key.item_type) != file {
                return Ok(None);
            }
            let mapping = mapping_of(key.offset, data).and_then(|mapping| {
                let no_overlap = mapping.offset >= self.item_end;
                let want = format_args!("at least {}", self.item_end).to_string();
                require(no_overlap, "key offset", key.offset, want)?;
                Ok(mapping)
            });
            let mapping = mapping.map_err(|refused| {
                self.view.corrupt(refused.at(format_args!("extent item {key}")))
            })?;
            self.item_end = mapping.end();
            if mapping.bytes > 0 && mapping.end() > self.range.start {
                return Ok(Some(mapping));
            }
        }
    }

    /// Moves the cursor to the next item; at first, to the item that may cover the range's start.
    fn step(&mut self) -> Result<(), butternut_tree::TreeError> {
        if self.is_positioned {
            return self.cursor.advance();
        }
        self.is_positioned = true;
        let (ino, start) = (self.view.ino().0, self.range.start);
        self.cursor.seek_last(&Key::new(ino, ItemType::EXTENT_DATA, start))?;
        let is_extent = self
            .cursor
            .key()
            .is_some_and(|key| key.objectid == ino && key.item_type == ItemType::EXTENT_DATA);
        if is_extent {
            return Ok(());
        }
        self.cursor.seek(&Key::new(ino, ItemType::EXTENT_DATA, start))
    }
}

impl Iterator for Mappings {
    type Item = Result<Mapping, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let shared = self.newer.as_ref().map(|(shared, _)| Arc::clone(shared));
        let _items = shared.as_ref().map(|shared| shared.lock_items_shared());
        let found = self.find_next();
        self.range.start = match &found {
            Ok(Some(mapping)) => mapping.end(),
            Ok(None) | Err(_) => self.range.end,
        };
        found.transpose()
    }
}

impl Iterator for ItemMappings {
    type Item = Result<Mapping, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find_next();
        if found.is_err() {
            self.range.end = self.range.start;
        }
        found.transpose()
    }
}

/// The mapping of one extent item.
pub(crate) fn mapping_of(offset: u64, data: &[u8]) -> Result<Mapping, Refused> {
    let extent = FileExtent::check(data, offset)?;
    let bytes = extent.file_bytes();
    let kind = match extent.body {
        ExtentBody::Hole { .. } => MappingKind::Hole,
        ExtentBody::Preallocated { disk, run } => {
            MappingKind::Preallocated { extent: disk, skip: run.offset }
        }
        ExtentBody::Inline(_) => MappingKind::Inline {
            compression: extent.compression,
            ram_bytes: extent.ram_bytes,
            skip: 0,
        },
        ExtentBody::Regular { disk, run } => MappingKind::Regular {
            extent: disk,
            encoding: Encoding {
                compression: extent.compression,
                ram_bytes: extent.ram_bytes,
                generation: extent.generation,
            },
            skip: run.offset,
        },
    };
    Ok(Mapping { offset, bytes, kind })
}
