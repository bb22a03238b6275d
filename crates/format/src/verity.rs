//! fs-verity items of a file. They are decoded and listed, but not verified here.
//!
//! ```text
//! RawVerityDescriptorItem
//! 0      8          24           25
//! | size | reserved | encryption |
//! ```
//!
//! The key (ino, `VERITY_DESC_ITEM`, 0) has this structure. From offset 1 on, items of that type
//! hold the descriptor that the kernel's fs-verity layer wrote, `size` bytes in all. Items of type
//! `VERITY_MERKLE_ITEM` hold the Merkle tree; their key offset is the byte offset in it.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The item at key offset 0 (`struct btrfs_verity_descriptor_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawVerityDescriptorItem {
    /// Size in bytes of the descriptor that starts at key offset 1.
    pub size: U64,
    pub reserved: [U64; 2],
    pub encryption: u8,
}
const _: () = assert!(size_of::<RawVerityDescriptorItem>() == 25);
