//! Quota groups: usage and limits of each subvolume, and of groups of subvolumes.
//!
//! ```text
//! RawQgroupStatus
//! 0         8            16      24       32           40
//! | version | generation | flags | rescan | enable_gen |
//!
//! RawQgroupInfo
//! 0            8      16          24     32          40
//! | generation | rfer | rfer_cmpr | excl | excl_cmpr |
//!
//! RawQgroupLimit
//! 0       8          16         24         32         40
//! | flags | max_rfer | max_excl | rsv_rfer | rsv_excl |
//! ```
//!
//! The id of a group has its level in the upper 16 bits and, at level 0, a subvolume's id in the
//! rest.
//!
//! 1. Keys: status (0, `QGROUP_STATUS`, 0), info and limit (0, type, group), relation (one group,
//!    `QGROUP_RELATION`, the other group). A relation is empty, and its groups have different
//!    levels. It exists in both directions, which one item alone does not show.
//! 2. `version` is 1. `enable_gen` exists if simple quotas were ever enabled; extents of older
//!    generations are charged to no group.

use crate::key::Key;
use crate::refused::{Refused, front, require, whole};
use crate::units::Generation;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size in bytes of a status item without `enable_gen`.
pub const STATUS_BYTES_SHORT: usize = 32;

/// The only `version` of the status item.
pub const STATUS_VERSION: u64 = 1;

/// Bits of a status item's `flags`.
pub const STATUS_ON: u64 = 1 << 0;
pub const STATUS_RESCAN: u64 = 1 << 1;
pub const STATUS_INCONSISTENT: u64 = 1 << 2;
pub const STATUS_SIMPLE_MODE: u64 = 1 << 3;

/// Bits of a limit item's `flags`: which of the limits are set.
pub const LIMIT_REFERENCED: u64 = 1 << 0;
pub const LIMIT_EXCLUSIVE: u64 = 1 << 1;

/// The quota status in its on-disk form (`struct btrfs_qgroup_status_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawQgroupStatus {
    pub version: U64,
    pub generation: U64,
    pub flags: U64,
    pub rescan: U64,
    pub enable_gen: U64,
}
const _: () = assert!(size_of::<RawQgroupStatus>() == 40);

/// The usage of a group in its on-disk form (`struct btrfs_qgroup_info_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawQgroupInfo {
    pub generation: U64,
    pub rfer: U64,
    pub rfer_cmpr: U64,
    pub excl: U64,
    pub excl_cmpr: U64,
}
const _: () = assert!(size_of::<RawQgroupInfo>() == 40);

/// The limits of a group in their on-disk form (`struct btrfs_qgroup_limit_item`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawQgroupLimit {
    pub flags: U64,
    pub max_rfer: U64,
    pub max_excl: U64,
    pub rsv_rfer: U64,
    pub rsv_excl: U64,
}
const _: () = assert!(size_of::<RawQgroupLimit>() == 40);

/// The id of a group: its level and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QgroupId(pub u64);

impl QgroupId {
    /// Makes the id of a group; `None` if the number is not below 2^48.
    pub fn of(level: u16, number: u64) -> Option<Self> {
        (number < 1 << 48).then(|| Self(u64::from(level) << 48 | number))
    }

    pub const fn level(self) -> u64 {
        self.0 >> 48
    }

    /// Returns the number within the level; at level 0, a subvolume's id.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

impl std::fmt::Display for QgroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

/// The state of quotas on this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupStatus {
    pub generation: Generation,
    pub flags: u64,
    /// The progress of a rescan.
    pub rescan: u64,
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        require(key.objectid == 0, "key objectid", key.objectid, 0)?;
        require(key.offset == 0, "key offset", key.offset, 0)?;
        let ([version, generation, flags, rescan], rest) = front::<[U64; 4]>(data)?;
        require(version.get() == STATUS_VERSION, "version", version, STATUS_VERSION)?;
        let enable_generation = if rest.is_empty() {
            None
        } else {
            Some(Generation(whole::<RawQgroupStatus>(data)?.enable_gen.get()))
        };
        Ok(Self {
            generation: Generation(generation.get()),
            flags: flags.get(),
            rescan: rescan.get(),
            enable_generation,
        })
    }
}

/// Checks the usage of a group, and returns it with the group.
pub fn check_info(key: Key, data: &[u8]) -> Result<(QgroupId, &RawQgroupInfo), Refused> {
    require(key.objectid == 0, "key objectid", key.objectid, 0)?;
    Ok((QgroupId(key.offset), whole(data)?))
}

/// Checks the limits of a group, and returns them with the group.
pub fn check_limit(key: Key, data: &[u8]) -> Result<(QgroupId, &RawQgroupLimit), Refused> {
    require(key.objectid == 0, "key objectid", key.objectid, 0)?;
    Ok((QgroupId(key.offset), whole(data)?))
}

/// Checks a relation, and returns its two groups; the one with the higher level is the parent.
pub fn check_relation(key: Key, data: &[u8]) -> Result<(QgroupId, QgroupId), Refused> {
    require(data.is_empty(), "item size", data.len(), 0)?;
    let (one, other) = (QgroupId(key.objectid), QgroupId(key.offset));
    require(one.level() != other.level(), "key offset", other, "a group of another level")?;
    Ok((one, other))
}
