//! Tree blocks: the header, and the slots of leaves and inner nodes.
//!
//! ```text
//! header   0      32     48       56      64                80           88      96        100
//!          | csum | fsid | bytenr | flags | chunk tree uuid | generation | owner | nritems | level
//! node     101 + 33 i: | key 17 | blockptr 8 | generation 8 |
//! leaf     101 + 25 i: | key 17 | offset 4 | size 4 |      data grows down from the end;
//!                                                          `offset` counts from byte 101
//! ```
//!
//! [`TreeBlock`] is proof that the block passed [`TreeBlock::check`]: the checksum, the header
//! against what the parent promised ([`Expected`]), the order of the keys, and the placing of
//! every item. What the items hold is checked by [`crate::check`], which `check` calls for leaves.
//!
//! The bytes may live in any buffer `B`: memory that a device read into, or a test's vector.

use crate::key::{ItemType, Key, RawKey};
use crate::refused::{Refused, require};
use crate::units::{Generation, LEVELS_MAX, Logical, TreeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header in front of every block's slots.
pub const HEADER_BYTES: usize = 101;

/// A block header as it lies on disk (`struct btrfs_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawHeader {
    pub csum: [u8; 32],
    pub fsid: [u8; 16],
    pub bytenr: U64,
    pub flags: U64,
    pub chunk_tree_uuid: [u8; 16],
    pub generation: U64,
    pub owner: U64,
    pub nritems: U32,
    pub level: u8,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// A slot of an inner node (`struct btrfs_key_ptr`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawKeyPtr {
    pub key: RawKey,
    pub blockptr: U64,
    pub generation: U64,
}
const _: () = assert!(size_of::<RawKeyPtr>() == 33);

/// A slot of a leaf (`struct btrfs_item`). `offset` counts from the end of the header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawItem {
    pub key: RawKey,
    pub offset: U32,
    pub size: U32,
}
const _: () = assert!(size_of::<RawItem>() == 25);

/// What a parent (or a root item, or the superblock) promises of a block before it is read.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub logical: Logical,
    pub generation: Generation,
    pub level: u8,
    /// The tree the block is reached from. Shared blocks may name another owner; the check uses
    /// it to tell subvolume trees from the rest.
    pub tree: TreeId,
    /// The first key the parent's slot holds, where there is a parent.
    pub first_key: Option<Key>,
}

/// A child that an inner node points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    pub key: Key,
    pub logical: Logical,
    pub generation: Generation,
}
