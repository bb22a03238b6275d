//! The free space tree, and the header of the older free space cache (v1).
//!
//! ```text
//! RawFreeSpaceInfo
//! 0              4       8
//! | extent_count | flags |
//!
//! RawFreeSpaceHeader
//! 0          17           25            33            41
//! | location | generation | num_entries | num_bitmaps |
//! ```
//!
//! Each block group has one `FREE_SPACE_INFO` whose key is the range of the group. Its free ranges
//! follow: `FREE_SPACE_EXTENT` items, which are empty, or `FREE_SPACE_BITMAP` items, which have a
//! bit per sector, lowest bit first, 1 for free.
//!
//! 1. Ranges are (start, type, length): sector aligned, not empty, inside the address space.
//! 2. The size of a bitmap matches its range, and is at most 256 bytes: 8 MiB of 4 KiB sectors.
//! 3. `flags` has no bit except bit 0: the group uses bitmaps.
//! 4. No range begins before the previous one in the same group ends.
//! 5. The header of the older cache has the key (-11, 0, block group) in the root tree; it counts
//!    at most as many bitmaps as entries.

use crate::key::{Key, RawKey};
use crate::refused::{Bits, Refused, require, whole};
use crate::units::{Generation, Logical, SECTOR_BYTES, length};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object id of the headers of the older cache (`BTRFS_FREE_SPACE_OBJECTID`).
pub const FREE_SPACE_OBJECTID: u64 = u64::MAX - 10;

/// Maximum size of a bitmap in bytes.
pub const BITMAP_BYTES_MAX: usize = 256;

/// The bit of `flags` that is set if a group uses bitmaps.
pub const USING_BITMAPS: u32 = 1 << 0;

/// How the free space of a block group is stored (`struct btrfs_free_space_info`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFreeSpaceInfo {
    pub extent_count: U32,
    pub flags: U32,
}
const _: () = assert!(size_of::<RawFreeSpaceInfo>() == 8);

impl RawFreeSpaceInfo {
    pub fn of(extent_count: u32, is_bitmaps: bool) -> Self {
        let flags = if is_bitmaps { USING_BITMAPS } else { 0 };
        Self { extent_count: U32::new(extent_count), flags: U32::new(flags) }
    }
}

/// The header of the older cache of one block group (`struct btrfs_free_space_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFreeSpaceHeader {
    pub location: RawKey,
    pub generation: U64,
    pub num_entries: U64,
    pub num_bitmaps: U64,
}
const _: () = assert!(size_of::<RawFreeSpaceHeader>() == 41);

/// The range in the key of an item of the free space tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRange {
    pub logical: Logical,
    pub bytes: u64,
}

impl FreeRange {
    pub fn check(key: Key) -> Result<Self, Refused> {
        let (logical, bytes) = (key.objectid, key.offset);
        require(logical.is_multiple_of(SECTOR_BYTES), "key objectid", logical, "sector aligned")?;
        let whole = bytes != 0 && bytes.is_multiple_of(SECTOR_BYTES);
        require(whole, "key offset", bytes, "sector aligned and not 0")?;
        let fits = logical.checked_add(bytes).is_some();
        require(fits, "key offset", bytes, "an end inside the address space")?;
        Ok(Self { logical: Logical(logical), bytes })
    }

    /// Returns the address behind the range. The check ensures that it does not overflow.
    pub fn end(&self) -> Logical {
        Logical(self.logical.0.saturating_add(self.bytes))
    }
}

/// How the free space of a block group is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceInfo {
    pub group: FreeRange,
    pub extent_count: u32,
    pub is_bitmaps: bool,
}

impl FreeSpaceInfo {
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        let raw = whole::<RawFreeSpaceInfo>(data)?;
        let flags = raw.flags.get();
        require(flags & !USING_BITMAPS == 0, "flags", Bits(flags.into()), "no bits but 0x1")?;
        let extent_count = raw.extent_count.get();
        let group = FreeRange::check(key)?;
        Ok(Self { group, extent_count, is_bitmaps: flags & USING_BITMAPS != 0 })
    }
}

/// Checks a free extent, which consists of its key only.
pub fn check_extent(key: Key, data: &[u8]) -> Result<FreeRange, Refused> {
    require(data.is_empty(), "item size", data.len(), 0)?;
    FreeRange::check(key)
}

/// The sectors of a range, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBitmap<'a> {
    pub range: FreeRange,
    bits: &'a [u8],
}

impl<'a> FreeBitmap<'a> {
    pub fn check(key: Key, data: &'a [u8]) -> Result<Self, Refused> {
        let range = FreeRange::check(key)?;
        let sectors = range.bytes / SECTOR_BYTES;
        let short = data.len() <= BITMAP_BYTES_MAX;
        require(short, "item size", data.len(), format_args!("at most {BITMAP_BYTES_MAX}"))?;
        let want = sectors.div_ceil(8);
        require(length(data.len()) == want, "item size", data.len(), want)?;
        Ok(Self { range, bits: data })
    }

    /// Returns the free ranges, with adjacent sectors joined.
    pub fn ranges(self) -> impl Iterator<Item = FreeRange> {
        let sectors = self.range.bytes / SECTOR_BYTES;
        let mut sector = 0;
        std::iter::from_fn(move || {
            let first = (sector..sectors).find(|sector| self.is_free(*sector))?;
            let end = (first..sectors).find(|sector| !self.is_free(*sector)).unwrap_or(sectors);
            sector = end;
            let start = first.saturating_mul(SECTOR_BYTES);
            let logical = Logical(self.range.logical.0.saturating_add(start));
            Some(FreeRange { logical, bytes: end.saturating_sub(first) * SECTOR_BYTES })
        })
    }

    fn is_free(self, sector: u64) -> bool {
        let byte = usize::try_from(sector / 8).ok().and_then(|at| self.bits.get(at));
        byte.is_some_and(|byte| byte >> (sector % 8) & 1 == 1)
    }
}

/// The header of the older cache of one block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceHeader {
    pub group: Logical,
    /// The inode in the root tree that contains the cache.
    pub location: Key,
    pub generation: Generation,
    pub entries: u64,
    pub bitmaps: u64,
}

impl FreeSpaceHeader {
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        let raw = whole::<RawFreeSpaceHeader>(data)?;
        let (entries, bitmaps) = (raw.num_entries.get(), raw.num_bitmaps.get());
        require(bitmaps <= entries, "num_bitmaps", bitmaps, format_args!("at most {entries}"))?;
        Ok(Self {
            group: Logical(key.offset),
            location: Key::from(&raw.location),
            generation: Generation(raw.generation.get()),
            entries,
            bitmaps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;

    #[test]
    fn a_bitmap_returns_its_free_sectors_as_joined_ranges() {
        let key = Key::new(1 << 20, ItemType::FREE_SPACE_BITMAP, 20 * SECTOR_BYTES);
        let bitmap = FreeBitmap::check(key, &[0b1000_0110, 0b0000_0001, 0b1111_1000]).unwrap();
        let ranges: Vec<_> = bitmap
            .ranges()
            .map(|range| ((range.logical.0 - (1 << 20)) / 4096, range.bytes / 4096))
            .collect();
        // The last byte covers only sectors 16 to 19: bits behind the range are ignored.
        assert_eq!(ranges, [(1, 2), (7, 2), (19, 1)]);
    }

    #[test]
    fn a_bitmap_whose_size_does_not_match_its_range_is_refused() {
        let key = Key::new(1 << 20, ItemType::FREE_SPACE_BITMAP, 20 * SECTOR_BYTES);
        let refused = FreeBitmap::check(key, &[0; 4]).unwrap_err();
        assert_eq!(refused.to_string(), "item size: have 4, want 3");
    }
}
