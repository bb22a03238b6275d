//! The mapper: from a range of a file to where its bytes live.
//!
//! [`ItemMappings`] are what the tree's items say; [`Mappings`] lay over them what is newer, where
//! the file is being written.
//!
//! Laws:
//!
//! 1. Mappings follow one another without gap or overlap, from the start of the range to its end
//!    or to the end of the file and its extents, whichever is first. Where no item is, there is a
//!    hole, whether or not the volume says so with items (the no-holes feature).
//! 2. Each mapping is as large as one item allows.
//! 3. An item that starts before its predecessor's end is refused.
//! 4. Offsets and lengths are whole sectors; only the range itself may cut one.
//!
//! Left to others: what the bytes are (`read`), which of them count as data (`seek`).

use crate::error::FileError;
use crate::live::Live;
use crate::overlay::{Found, PackedExtent, Patch, Place};
use crate::view::FileView;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Generation, SECTOR_BYTES};
use butternut_tree::Cursor;
use std::ops::Range;
use std::sync::Arc;

/// A range of a file and where its bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where in the file, in bytes.
    pub offset: u64,
    pub bytes: u64,
    pub kind: MappingKind,
}

/// Where the bytes of a [`Mapping`] live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// Nowhere: zeroes.
    Hole,
    /// Space is set aside, `skip` bytes into `extent`; reads as zeroes.
    Preallocated { extent: DiskExtent, skip: u64 },
    /// In the item itself, which holds `ram_bytes` once unpacked; this is from byte `skip` on.
    Inline { compression: Compression, ram_bytes: u64, skip: u64 },
    /// In `extent`, from byte `skip` of what it holds once unpacked.
    Regular { extent: DiskExtent, packing: Packing, skip: u64 },
    /// In memory, written and not yet on disk.
    Buffered,
}

/// How a data extent is packed. `ram_bytes` is its whole length once unpacked, and only meaningful
/// where it is compressed at all. Of an extent that is in no tree yet, the generation only tells it
/// from others that were at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    pub compression: Compression,
    pub ram_bytes: u64,
    pub generation: Generation,
}

impl PackedExtent {
    pub(crate) fn packing(&self) -> Packing {
        /// No transaction ever has such a number.
        const IN_NO_TREE: u64 = 1 << 63;
        let Self { ram_bytes, compression, serial, .. } = *self;
        Packing { compression, ram_bytes, generation: Generation(IN_NO_TREE | serial) }
    }
}

impl Mapping {
    /// One behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    fn buffered(offset: u64) -> Self {
        Self { offset, bytes: SECTOR_BYTES, kind: MappingKind::Buffered }
    }

    /// What is on disk, and not in the tree yet.
    fn patch(offset: u64, patch: &Patch) -> Self {
        let plain = |extent: DiskExtent| Packing {
            compression: Compression::None,
            ram_bytes: extent.bytes,
            generation: Generation(0),
        };
        let (extent, packing, skip) = match patch.place {
            Place::New { logical, .. } => {
                let extent = DiskExtent { logical, bytes: patch.bytes };
                (extent, plain(extent), 0)
            }
            Place::SetAside { extent, skip } => (extent, plain(extent), skip),
            Place::Packed { extent, skip } => (extent.disk, extent.packing(), skip),
        };
        let kind = MappingKind::Regular { extent, packing, skip };
        Self { offset, bytes: patch.bytes, kind }
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
            MappingKind::Regular { extent, packing, skip } => {
                MappingKind::Regular { extent, packing, skip: skip + cut }
            }
            MappingKind::Buffered => MappingKind::Buffered,
        };
        Self { offset, bytes, kind }
    }
}

/// The mappings of a range of a file, in order. Ends after the first error.
#[derive(Debug)]
pub struct Mappings {
    items: ItemMappings,
    /// What is newer than the items, and the item that is to be looked at next.
    over: Option<(Arc<Live>, Option<Mapping>)>,
    range: Range<u64>,
}

/// What the items of a range of a file say.
#[derive(Debug)]
pub(crate) struct ItemMappings {
    view: FileView,
    range: Range<u64>,
    cursor: Cursor,
    is_placed: bool,
    /// Where the last item that was looked at ends.
    item_end: u64,
    /// Found behind a hole that went out first.
    next: Option<Mapping>,
}

impl Mappings {
    /// The mappings of a range that may be long: leaves ahead are read in batches.
    pub fn of(view: &FileView, range: Range<u64>) -> Self {
        Self::over(view, range, ItemMappings::of)
    }

    /// The mappings of a few neighbouring bytes.
    pub(crate) fn near(view: &FileView, range: Range<u64>) -> Self {
        Self::over(view, range, ItemMappings::near)
    }

    fn over(
        view: &FileView,
        range: Range<u64>,
        items: impl Fn(&FileView, Range<u64>) -> ItemMappings,
    ) -> Self {
        let over = view.live().map(|live| (Arc::clone(live), None));
        Self { items: items(view, range.clone()), over, range }
    }

    /// What is at the start of the range: the overlay's, or else the items'.
    fn find_next(&mut self) -> Result<Option<Mapping>, FileError> {
        let Some((live, next)) = &mut self.over else { return self.items.next().transpose() };
        if self.range.is_empty() {
            return Ok(None);
        }
        let overlay = live.overlay();
        let known_end = live.size().max(overlay.end()).next_multiple_of(SECTOR_BYTES);
        let gap_end = match overlay.find(self.range.start, self.range.end) {
            Found::Dirty { start, .. } => {
                return Ok(Some(Mapping::buffered(start).within(&self.range)));
            }
            Found::Patch { start, patch, end } => {
                let found = Mapping::patch(start, patch);
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
            // Behind all items there is a hole, up to what the overlay has or the file's end.
            _ => {
                let end = gap.end.min(known_end.max(gap.start));
                let bytes = end - gap.start;
                let hole = Mapping { offset: gap.start, bytes, kind: MappingKind::Hole };
                Some(hole).filter(|hole| hole.bytes > 0)
            }
        })
    }
}

impl ItemMappings {
    pub(crate) fn near(view: &FileView, range: Range<u64>) -> Self {
        Self::with_cursor(view, range, view.tree().cursor())
    }

    fn of(view: &FileView, range: Range<u64>) -> Self {
        Self::with_cursor(view, range, view.tree().scan())
    }

    fn with_cursor(view: &FileView, range: Range<u64>, cursor: Cursor) -> Self {
        Self { view: view.clone(), range, cursor, is_placed: false, item_end: 0, next: None }
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

    /// Where the hole behind the last item ends: at the last sector of the file.
    fn last_hole_end(&self) -> u64 {
        let size = self.view.size();
        size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(size)
    }

    /// The next item that ends behind the start of what is left of the range, as a mapping.
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

    /// Moves the cursor to the next item; at first, to the one that may cover the range's start.
    fn step(&mut self) -> Result<(), butternut_tree::TreeError> {
        if self.is_placed {
            return self.cursor.advance();
        }
        self.is_placed = true;
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

/// What one extent item maps.
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
            packing: Packing {
                compression: extent.compression,
                ram_bytes: extent.ram_bytes,
                generation: extent.generation,
            },
            skip: run.offset,
        },
    };
    Ok(Mapping { offset, bytes, kind })
}
