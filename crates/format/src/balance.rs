//! The balance item: the parameters of a running balance, so that it resumes after a mount.
//!
//! ```text
//! RawBalanceArgs
//! 0          8       16      24       32     40       48     56       64      72
//! | profiles | usage | devid | pstart | pend | vstart | vend | target | flags |
//! 72      80            84            88       136
//! | limit | stripes_min | stripes_max | unused |
//!
//! RawBalanceItem
//! 0       8      144    280   416      448
//! | flags | data | meta | sys | unused |
//! ```
//!
//! The key is (-4, `TEMPORARY_ITEM`, 0) in the root tree.

use crate::key::{ItemType, Key};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object id of the balance item.
pub const BALANCE_OBJECTID: u64 = u64::MAX - 3;

/// The key of the balance item.
pub const BALANCE_KEY: Key = Key::new(BALANCE_OBJECTID, ItemType::TEMPORARY_ITEM, 0);

/// The filters for one kind of chunk (`struct btrfs_disk_balance_args`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawBalanceArgs {
    pub profiles: U64,
    /// One number, or two 32-bit ones if the flags specify a range.
    pub usage: U64,
    pub devid: U64,
    pub pstart: U64,
    pub pend: U64,
    pub vstart: U64,
    pub vend: U64,
    pub target: U64,
    pub flags: U64,
    /// One number, or two 32-bit ones if the flags specify a range.
    pub limit: U64,
    pub stripes_min: U32,
    pub stripes_max: U32,
    pub unused: [U64; 6],
}
const _: () = assert!(size_of::<RawBalanceArgs>() == 136);

/// A balance in its on-disk form (`struct btrfs_balance_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawBalanceItem {
    pub flags: U64,
    pub data: RawBalanceArgs,
    pub meta: RawBalanceArgs,
    pub sys: RawBalanceArgs,
    pub unused: [U64; 4],
}
const _: () = assert!(size_of::<RawBalanceItem>() == 448);
