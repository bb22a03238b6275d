//! The three-part key that orders the items of every tree.
//!
//! ```text
//! RawKey
//! 0          8           9        17
//! | objectid | item_type | offset |
//! ```
//!
//! Keys are ordered by object id, then type, then offset (On-disk-format, "Key").

use std::fmt;
use zerocopy::little_endian::U64;

/// A key in its on-disk form (`struct btrfs_disk_key`).
#[derive(
    Clone,
    Copy,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct RawKey {
    pub objectid: U64,
    pub item_type: u8,
    pub offset: U64,
}
const _: () = assert!(size_of::<RawKey>() == 17);

/// A key. Any three values form a key; the check of the item decides whether a tree may contain it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub objectid: u64,
    pub item_type: ItemType,
    pub offset: u64,
}

impl Key {
    pub const MIN: Self = Self::new(0, ItemType(0), 0);
    pub const MAX: Self = Self::new(u64::MAX, ItemType(u8::MAX), u64::MAX);

    pub const fn new(objectid: u64, item_type: ItemType, offset: u64) -> Self {
        Self { objectid, item_type, offset }
    }

    /// Returns the smallest key above this one, or `None` for [`Key::MAX`].
    pub fn successor(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(item_type) = self.item_type.0.checked_add(1) {
            return Some(Self::new(self.objectid, ItemType(item_type), 0));
        }
        self.objectid.checked_add(1).map(|objectid| Self::new(objectid, ItemType(0), 0))
    }
}

impl From<&RawKey> for Key {
    fn from(raw: &RawKey) -> Self {
        Self::new(raw.objectid.get(), ItemType(raw.item_type), raw.offset.get())
    }
}

impl From<Key> for RawKey {
    fn from(key: Key) -> Self {
        Self {
            objectid: U64::new(key.objectid),
            item_type: key.item_type.0,
            offset: U64::new(key.offset),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.item_type.0, self.offset)
    }
}

/// The type byte of a key, which determines the structure of the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemType(pub u8);

/// Item types (`btrfs_tree.h`, `BTRFS_*_KEY`).
impl ItemType {
    pub const INODE_ITEM: Self = Self(1);
    pub const INODE_REF: Self = Self(12);
    pub const INODE_EXTREF: Self = Self(13);
    pub const XATTR_ITEM: Self = Self(24);
    pub const VERITY_DESC_ITEM: Self = Self(36);
    pub const VERITY_MERKLE_ITEM: Self = Self(37);
    pub const ORPHAN_ITEM: Self = Self(48);
    pub const DIR_LOG_ITEM: Self = Self(60);
    pub const DIR_LOG_INDEX: Self = Self(72);
    pub const DIR_ITEM: Self = Self(84);
    pub const DIR_INDEX: Self = Self(96);
    pub const EXTENT_DATA: Self = Self(108);
    pub const EXTENT_CSUM: Self = Self(128);
    pub const ROOT_ITEM: Self = Self(132);
    pub const ROOT_BACKREF: Self = Self(144);
    pub const ROOT_REF: Self = Self(156);
    pub const EXTENT_ITEM: Self = Self(168);
    pub const METADATA_ITEM: Self = Self(169);
    pub const EXTENT_OWNER_REF: Self = Self(172);
    pub const TREE_BLOCK_REF: Self = Self(176);
    pub const EXTENT_DATA_REF: Self = Self(178);
    pub const SHARED_BLOCK_REF: Self = Self(182);
    pub const SHARED_DATA_REF: Self = Self(184);
    pub const BLOCK_GROUP_ITEM: Self = Self(192);
    pub const FREE_SPACE_INFO: Self = Self(198);
    pub const FREE_SPACE_EXTENT: Self = Self(199);
    pub const FREE_SPACE_BITMAP: Self = Self(200);
    pub const DEV_EXTENT: Self = Self(204);
    pub const DEV_ITEM: Self = Self(216);
    pub const CHUNK_ITEM: Self = Self(228);
    pub const RAID_STRIPE: Self = Self(230);
    pub const QGROUP_STATUS: Self = Self(240);
    pub const QGROUP_INFO: Self = Self(242);
    pub const QGROUP_LIMIT: Self = Self(244);
    pub const QGROUP_RELATION: Self = Self(246);
    pub const TEMPORARY_ITEM: Self = Self(248);
    pub const PERSISTENT_ITEM: Self = Self(249);
    pub const DEV_REPLACE: Self = Self(250);
    pub const UUID_SUBVOL: Self = Self(251);
    pub const UUID_RECEIVED_SUBVOL: Self = Self(252);
    pub const STRING_ITEM: Self = Self(253);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_carries_into_type_and_object() {
        let key = Key::new(5, ItemType(u8::MAX), u64::MAX);
        assert_eq!(key.successor(), Some(Key::new(6, ItemType(0), 0)));
        assert_eq!(Key::MAX.successor(), None);
    }
}
