//! Newtypes for integers that must not be confused: addresses, generations and identifiers.
//!
//! They have no arithmetic beyond what an address needs; sizes and lengths are plain `u64` bytes.
//! A [`DiskRange`] is a range of logical addresses. A range of bytes of a file is a plain
//! `Range<u64>`, which no function that takes space accepts.

use std::fmt;
use std::ops::Range;

/// The only sector size that is supported, in bytes.
pub const SECTOR_BYTES: u64 = 4096;

/// Smallest size of a tree block (`nodesize` in the superblock), in bytes.
pub const NODE_BYTES_MIN: u32 = 4096;
/// Largest size of a tree block, in bytes.
pub const NODE_BYTES_MAX: u32 = 65536;

/// Maximum number of levels of a tree: 0 (leaf) to 7.
pub const LEVELS_MAX: usize = 8;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit! {
    /// A logical address of the volume, in bytes. Chunks map it to devices.
    Logical
}
unit! {
    /// A byte offset on one device.
    Physical
}
unit! {
    /// A transaction number. Every tree block contains that of the transaction that wrote it.
    Generation
}
unit! {
    /// The object id of a tree: 1 is the root tree, 5 the top-level subvolume, 256 and above the
    /// other subvolumes.
    TreeId
}
unit! {
    /// An inode number inside one subvolume.
    Ino
}
unit! {
    /// The number of a device in its volume, from 1.
    DevId
}

impl Logical {
    /// Returns the address `bytes` further on, or `None` beyond the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

/// A range of logical addresses: space on disk. Its end is inside the address space, and not before
/// its start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct DiskRange {
    start: u64,
    end: u64,
}

impl DiskRange {
    /// Returns the range of `bytes` bytes from `start` on; `None` if it ends beyond the address
    /// space.
    pub fn new(start: Logical, bytes: u64) -> Option<Self> {
        Some(Self { start: start.0, end: start.0.checked_add(bytes)? })
    }

    /// Returns the range between two addresses; `None` if it ends before it starts.
    pub fn of(range: Range<u64>) -> Option<Self> {
        (range.start <= range.end).then_some(Self { start: range.start, end: range.end })
    }

    /// Returns the first address.
    pub fn start(self) -> Logical {
        Logical(self.start)
    }

    /// Returns the address of the first byte after the range.
    pub fn end(self) -> Logical {
        Logical(self.end)
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        // The constructors refuse an end before the start.
        self.end.saturating_sub(self.start)
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns both addresses, for a list of ranges that is indexed by them.
    pub fn addresses(self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns the part of `bytes` bytes from `skip` on; `None` if the range does not have it.
    pub fn part(self, skip: u64, bytes: u64) -> Option<Self> {
        let part = Self::new(self.start().checked_add(skip)?, bytes)?;
        (part.end <= self.end).then_some(part)
    }

    /// Removes the first `bytes_max` bytes, or all if there are fewer, and returns them.
    #[must_use]
    pub fn take_front(&mut self, bytes_max: u64) -> Self {
        let at = self.end.min(self.start.saturating_add(bytes_max));
        let taken = Self { start: self.start, end: at };
        self.start = at;
        taken
    }

    /// Removes the last `bytes_max` bytes, or all if there are fewer, and returns them.
    #[must_use]
    pub fn take_back(&mut self, bytes_max: u64) -> Self {
        let at = self.start.max(self.end.saturating_sub(bytes_max));
        let taken = Self { start: at, end: self.end };
        self.end = at;
        taken
    }
}

impl fmt::Debug for DiskRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl TreeId {
    pub const ROOT: Self = Self(1);
    pub const EXTENT: Self = Self(2);
    pub const CHUNK: Self = Self(3);
    pub const DEVICE: Self = Self(4);
    pub const FS: Self = Self(5);
    pub const ROOT_DIR: Self = Self(6);
    pub const CHECKSUM: Self = Self(7);
    pub const QUOTA: Self = Self(8);
    pub const UUID: Self = Self(9);
    pub const FREE_SPACE: Self = Self(10);
    pub const BLOCK_GROUP: Self = Self(11);
    pub const RAID_STRIPE: Self = Self(12);
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    pub const TREE_LOG_FIXUP: Self = Self(u64::MAX - 6);
    pub const TREE_RELOCATION: Self = Self(u64::MAX - 7);
    pub const DATA_RELOCATION: Self = Self(u64::MAX - 8);

    /// Returns whether this tree is a subvolume, including the top-level one. Ids from 2^48 on are
    /// quota groups above level 0, and the special trees.
    pub fn is_subvolume(self) -> bool {
        self == Self::FS || (self.0 >= 256 && self.0 < 1 << 48)
    }
}

/// Converts a 32-bit count or offset to an index. Lossless if a pointer has 32 bits or more.
pub fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Converts a length to 64 bits. Lossless if a pointer has at most 64 bits.
pub fn length(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> DiskRange {
        DiskRange::new(Logical(start), bytes).expect("inside the address space")
    }

    #[test]
    fn a_range_past_the_address_space_is_refused() {
        assert_eq!(DiskRange::new(Logical(u64::MAX), 1), None);
        assert_eq!(DiskRange::new(Logical(u64::MAX - 4096), 4097), None);
        assert_eq!(range(u64::MAX - 4096, 4096).end(), Logical(u64::MAX));
        let (start, end) = (9, 8);
        assert_eq!(DiskRange::of(start..end), None);
        assert_eq!(DiskRange::of(8..9), Some(range(8, 1)));
    }

    #[test]
    fn a_part_is_inside_the_range() {
        let whole = range(100, 10);
        assert_eq!(whole.part(4, 6), Some(range(104, 6)));
        assert_eq!((whole.part(4, 7), whole.part(11, 0)), (None, None));
        assert_eq!(whole.part(u64::MAX, 1), None);
        assert_eq!(whole.part(1, u64::MAX), None);
    }

    #[test]
    fn what_is_taken_and_what_is_left_are_the_range() {
        let mut left = range(100, 10);
        assert_eq!((left.take_front(3), left), (range(100, 3), range(103, 7)));
        assert_eq!((left.take_back(2), left), (range(108, 2), range(103, 5)));
        assert_eq!((left.take_front(u64::MAX), left.is_empty()), (range(103, 5), true));
        assert_eq!((left.take_back(1), left.bytes()), (range(108, 0), 0));
    }
}
