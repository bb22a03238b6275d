//! Newtypes for integers that must not be confused: addresses, generations and identifiers.
//!
//! They have no arithmetic beyond what an address needs; sizes and lengths are plain `u64` bytes.

use std::fmt;

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
