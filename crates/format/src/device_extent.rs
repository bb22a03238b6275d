//! The device tree: allocated ranges of devices, error counts, and the state of a replacement.
//!
//! ```text
//! RawDeviceExtent
//! 0            8                16             24       32                48
//! | chunk_tree | chunk_objectid | chunk_offset | length | chunk_tree_uuid |
//!
//! RawDeviceStats
//! 0            8           16           24                32                  40
//! | write_errs | read_errs | flush_errs | corruption_errs | generation_errs |
//!
//! RawDeviceReplace
//! 0           8             16             24
//! | src_devid | cursor_left | cursor_right | cont_reading_from_srcdev_mode |
//! 32              40             48             56                 64
//! | replace_state | time_started | time_stopped | num_write_errors |
//! 64                               72
//! | num_uncorrectable_read_errors |
//! ```
//!
//! 1. The key of an extent is (devid, `DEV_EXTENT`, offset on the device); its length is not 0;
//!    address and length are sector aligned, and the end is inside the address space.
//! 2. It belongs to a chunk of tree 3 whose key has object id 256.
//! 3. No extent begins before the previous one ends.
//! 4. Error counts have the key (0, `PERSISTENT_ITEM`, devid). Kernels may write more or fewer of
//!    them: missing ones are 0, unknown ones are ignored.
//! 5. The state of a replacement has the key (0, `DEV_REPLACE`, 0).

use crate::chunk::FIRST_CHUNK_TREE;
use crate::key::Key;
use crate::refused::{Refused, require, whole};
use crate::units::{DevId, Logical, Physical, SECTOR_BYTES, TreeId};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object id of device error counts (`BTRFS_DEV_STATS_OBJECTID`).
pub const DEV_STATS: u64 = 0;

/// A device extent in its on-disk form (`struct btrfs_dev_extent`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDeviceExtent {
    pub chunk_tree: U64,
    pub chunk_objectid: U64,
    pub chunk_offset: U64,
    pub length: U64,
    pub chunk_tree_uuid: [u8; 16],
}
const _: () = assert!(size_of::<RawDeviceExtent>() == 48);

/// The error counts of a device in their on-disk form (`struct btrfs_dev_stats_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDeviceStats {
    pub write_errs: U64,
    pub read_errs: U64,
    pub flush_errs: U64,
    pub corruption_errs: U64,
    pub generation_errs: U64,
}
const _: () = assert!(size_of::<RawDeviceStats>() == 40);

/// The state of a device replacement in its on-disk form (`struct btrfs_dev_replace_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDeviceReplace {
    pub src_devid: U64,
    pub cursor_left: U64,
    pub cursor_right: U64,
    pub cont_reading_from_srcdev_mode: U64,
    pub replace_state: U64,
    pub time_started: U64,
    pub time_stopped: U64,
    pub num_write_errors: U64,
    pub num_uncorrectable_read_errors: U64,
}
const _: () = assert!(size_of::<RawDeviceReplace>() == 72);

impl RawDeviceExtent {
    /// Makes the device extent of a stripe of this chunk that uses `bytes` of its device.
    pub fn of(chunk: Logical, bytes: u64, chunk_tree_uuid: [u8; 16]) -> Self {
        Self {
            chunk_tree: U64::new(TreeId::CHUNK.0),
            chunk_objectid: U64::new(FIRST_CHUNK_TREE),
            chunk_offset: U64::new(chunk.0),
            length: U64::new(bytes),
            chunk_tree_uuid,
        }
    }
}

/// A range of a device that is a stripe of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    pub devid: DevId,
    pub offset: Physical,
    pub bytes: u64,
    pub chunk: Logical,
}

impl DeviceExtent {
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        let raw = whole::<RawDeviceExtent>(data)?;
        let (tree, objectid) = (raw.chunk_tree.get(), raw.chunk_objectid.get());
        require(tree == TreeId::CHUNK.0, "chunk_tree", tree, TreeId::CHUNK)?;
        require(objectid == FIRST_CHUNK_TREE, "chunk_objectid", objectid, FIRST_CHUNK_TREE)?;
        let (offset, chunk, bytes) = (key.offset, raw.chunk_offset.get(), raw.length.get());
        require(offset.is_multiple_of(SECTOR_BYTES), "key offset", offset, "sector aligned")?;
        require(chunk.is_multiple_of(SECTOR_BYTES), "chunk_offset", chunk, "sector aligned")?;
        let whole = bytes != 0 && bytes.is_multiple_of(SECTOR_BYTES);
        require(whole, "length", bytes, "sector aligned and not 0")?;
        let fits = offset.checked_add(bytes).is_some();
        require(fits, "length", bytes, "an end inside the address space")?;
        Ok(Self {
            devid: DevId(key.objectid),
            offset: Physical(offset),
            bytes,
            chunk: Logical(chunk),
        })
    }

    /// Returns the offset behind the extent. The check ensures that it does not overflow.
    pub fn end(&self) -> Physical {
        Physical(self.offset.0.saturating_add(self.bytes))
    }
}

/// The error counts of one device since they were last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    pub write_errors: u64,
    pub read_errors: u64,
    pub flush_errors: u64,
    pub corruption_errors: u64,
    pub generation_errors: u64,
}

impl DeviceStats {
    pub fn check(data: &[u8]) -> Result<Self, Refused> {
        let counts = <[U64]>::ref_from_bytes(data)
            .map_err(|_| Refused::new("item size", data.len(), "a multiple of 8"))?;
        let count = |at: usize| counts.get(at).map_or(0, |count| count.get());
        Ok(Self {
            write_errors: count(0),
            read_errors: count(1),
            flush_errors: count(2),
            corruption_errors: count(3),
            generation_errors: count(4),
        })
    }
}

/// The progress of a device replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceState {
    NeverStarted,
    Started,
    Finished,
    Canceled,
    Suspended,
}

impl RawDeviceReplace {
    pub fn check(data: &[u8]) -> Result<&Self, Refused> {
        let raw = whole::<Self>(data)?;
        raw.state()?;
        Ok(raw)
    }

    pub fn state(&self) -> Result<ReplaceState, Refused> {
        match self.replace_state.get() {
            0 => Ok(ReplaceState::NeverStarted),
            1 => Ok(ReplaceState::Started),
            2 => Ok(ReplaceState::Finished),
            3 => Ok(ReplaceState::Canceled),
            4 => Ok(ReplaceState::Suspended),
            other => Err(Refused::new("replace_state", other, "0 to 4")),
        }
    }
}
