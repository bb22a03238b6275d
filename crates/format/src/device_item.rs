//! Device items: one per device in the chunk tree, and a copy in the device's superblocks.
//!
//! ```text
//! RawDeviceItem
//! 0       8             16           24         28         32            36     44
//! | devid | total_bytes | bytes_used | io_align | io_width | sector_size | type | generation |
//! 52             60          64           65          66     82     98
//! | start_offset | dev_group | seek_speed | bandwidth | uuid | fsid |
//! ```
//!
//! 1. The key of a device item is (1, `DEV_ITEM`, devid).
//! 2. `bytes_used` is at most `total_bytes`.

use crate::key::Key;
use crate::refused::{Refused, require};
use crate::units::DevId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object id of every device item (`BTRFS_DEV_ITEMS_OBJECTID`).
pub const DEV_ITEMS: u64 = 1;

/// A device item in its on-disk form (`struct btrfs_dev_item`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDeviceItem {
    pub devid: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub io_align: U32,
    pub io_width: U32,
    pub sector_size: U32,
    pub r#type: U64,
    pub generation: U64,
    pub start_offset: U64,
    pub dev_group: U32,
    pub seek_speed: u8,
    pub bandwidth: u8,
    pub uuid: [u8; 16],
    pub fsid: [u8; 16],
}
const _: () = assert!(size_of::<RawDeviceItem>() == 98);

/// A device of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceItem {
    pub devid: DevId,
    pub total_bytes: u64,
    pub bytes_used: u64,
    pub generation: u64,
    pub uuid: [u8; 16],
    /// The metadata id of the volume for which the device was created. That of a seed differs from
    /// the sprout's.
    pub fsid: [u8; 16],
}

impl DeviceItem {
    /// Checks an item of the chunk tree.
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        let raw = RawDeviceItem::ref_from_bytes(data)
            .map_err(|_| Refused::new("item size", data.len(), size_of::<RawDeviceItem>()))?;
        require(key.objectid == DEV_ITEMS, "key objectid", key.objectid, DEV_ITEMS)?;
        require(key.offset == raw.devid.get(), "devid", raw.devid, key.offset)?;
        Self::check_raw(raw)
    }

    /// Checks a device item without a key, as in a superblock.
    pub fn check_raw(raw: &RawDeviceItem) -> Result<Self, Refused> {
        let (total_bytes, bytes_used) = (raw.total_bytes.get(), raw.bytes_used.get());
        require(
            bytes_used <= total_bytes,
            "bytes_used",
            bytes_used,
            format_args!("at most total_bytes {total_bytes}"),
        )?;
        Ok(Self {
            devid: DevId(raw.devid.get()),
            total_bytes,
            bytes_used,
            generation: raw.generation.get(),
            uuid: raw.uuid,
            fsid: raw.fsid,
        })
    }
}
