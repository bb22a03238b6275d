//! Tree blocks: the header, and the slots of leaves and inner nodes.
//!
//! ```text
//! RawHeader
//! 0      32     48       56      64                80           88      96        100     101
//! | csum | fsid | bytenr | flags | chunk_tree_uuid | generation | owner | nritems | level |
//!
//! RawKeyPtr: the slots of an inner node, from byte 101 on
//! 0     17         25           33
//! | key | blockptr | generation |
//!
//! RawItem: the slots of a leaf, from byte 101 on
//! 0     17       21     25
//! | key | offset | size |   data grows down from the block's end; `offset` counts from byte 101
//! ```
//!
//! [`TreeBlock`] is proof that the block passed [`TreeBlock::check`]: the checksum, the header
//! against the parent's pointer ([`Expected`]), the order of the keys, the position of every item,
//! and the contents of the items. The laws are in [`crate::check`].
//!
//! The bytes may be in any buffer `B`, for example device memory or a vector of a test. Every
//! accessor is O(1) or a binary search, allocates nothing, and returns `None` for a missing slot.

mod compose;

pub use compose::NewBlock;

use crate::check;
use crate::checksum::ChecksumKind;
use crate::key::{Key, RawKey};
use crate::refused::Refused;
use crate::super_block::SuperBlock;
use crate::units::{Generation, Logical, TreeId, index};
use std::fmt;
use std::ops::Deref;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size in bytes of the header of every block, which its slots follow.
pub const HEADER_BYTES: usize = 101;

/// Bytes at the start of a block that its checksum does not cover: the checksum field itself.
pub const CSUM_BYTES: usize = 32;

/// Bits of a header's `flags`; the top byte is the revision of back references.
pub const HEADER_FLAG_WRITTEN: u64 = 1 << 0;
pub const HEADER_FLAG_RELOC: u64 = 1 << 1;
pub const BACKREF_REVISION_SHIFT: u32 = 56;
pub const BACKREF_REVISION_MIXED: u64 = 1;

/// A block header in its on-disk form (`struct btrfs_header`).
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

/// What is known about a block before it is read, from its parent, a root item or the superblock.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub logical: Logical,
    pub generation: Generation,
    pub level: u8,
    /// The tree through which the block is reached. A shared block may have another owner; the
    /// check uses this to distinguish subvolume trees from others. Tree 0 means unknown: any owner
    /// is valid.
    pub tree: TreeId,
    /// The key of the parent's slot, if there is a parent.
    pub first_key: Option<Key>,
    /// A key above all keys of the block: that of the parent's next slot, or of the nearest
    /// ancestor that has a next slot.
    pub end_key: Option<Key>,
}

/// Properties of a volume, from its superblock, that every block must match.
#[derive(Clone, Debug)]
pub struct BlockRules {
    pub csum: ChecksumKind,
    pub node_bytes: u32,
    /// The ids that a header may contain: the volume's metadata id, and those of its seeds.
    pub fsids: Vec<[u8; 16]>,
    /// The `incompat_flags` of the superblock ([`crate::super_block`]).
    pub incompat: u64,
    /// The `compat_ro_flags` of the superblock.
    pub compat_ro: u64,
}

impl BlockRules {
    pub fn of(super_block: &SuperBlock) -> Self {
        Self {
            csum: super_block.csum(),
            node_bytes: super_block.node_bytes(),
            fsids: vec![super_block.metadata_uuid()],
            incompat: super_block.raw().incompat_flags.get(),
            compat_ro: super_block.raw().compat_ro_flags.get(),
        }
    }

    /// Returns the size in bytes of a block without its header.
    pub fn slot_bytes(&self) -> usize {
        index(self.node_bytes).saturating_sub(HEADER_BYTES)
    }
}

/// A pointer of an inner node to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    pub key: Key,
    pub logical: Logical,
    pub generation: Generation,
}

/// A tree block that passed [`TreeBlock::check`].
#[derive(Clone)]
pub struct TreeBlock<B> {
    bytes: B,
}

impl<B: Deref<Target = [u8]>> TreeBlock<B> {
    /// Checks every law of a block ([`check::block`]).
    ///
    /// # Errors
    /// The first law that the block violates.
    pub fn check(bytes: B, expected: &Expected, rules: &BlockRules) -> Result<Self, Refused> {
        check::block(&bytes, expected, rules)?;
        Ok(Self { bytes })
    }

    pub fn header(&self) -> &RawHeader {
        header(&self.bytes)
    }

    pub fn logical(&self) -> Logical {
        Logical(self.header().bytenr.get())
    }

    pub fn generation(&self) -> Generation {
        Generation(self.header().generation.get())
    }

    pub fn owner(&self) -> TreeId {
        TreeId(self.header().owner.get())
    }

    pub fn level(&self) -> u8 {
        self.header().level
    }

    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    /// Returns the number of items of a leaf, or of children of an inner node.
    pub fn len(&self) -> usize {
        index(self.header().nritems.get())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> B {
        self.bytes
    }

    pub fn key(&self, slot: usize) -> Option<Key> {
        let slots = Slots::of(&self.bytes)?;
        slots.key(slot).map(Key::from)
    }

    /// Returns the key of the last slot, or `None` if the block is empty.
    pub fn last_key(&self) -> Option<Key> {
        let slots = Slots::of(&self.bytes)?;
        slots.key(slots.len().checked_sub(1)?).map(Key::from)
    }

    /// Returns the slot of `key`.
    ///
    /// # Errors
    /// The slot at which `key` would be inserted.
    pub fn find(&self, key: &Key) -> Result<usize, usize> {
        let Some(slots) = Slots::of(&self.bytes) else { return Err(0) };
        let (mut low, mut high) = (0, slots.len());
        while low < high {
            let middle = low.midpoint(high);
            let Some(found) = slots.key(middle).map(Key::from) else { return Err(low) };
            match found.cmp(key) {
                std::cmp::Ordering::Less => low = middle.saturating_add(1),
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns the child of a slot of an inner node, or `None` in a leaf.
    pub fn child(&self, slot: usize) -> Option<Child> {
        match Slots::of(&self.bytes)? {
            Slots::Node(children) => children.get(slot).map(Child::from),
            Slots::Leaf(_) => None,
        }
    }

    /// Returns the item of a slot of a leaf, or `None` in an inner node.
    pub fn item(&self, slot: usize) -> Option<(Key, &[u8])> {
        match Slots::of(&self.bytes)? {
            Slots::Leaf(items) => {
                let item = items.get(slot)?;
                Some((Key::from(&item.key), item_data(&self.bytes, item)?))
            }
            Slots::Node(_) => None,
        }
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for TreeBlock<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeBlock")
            .field("logical", &self.logical())
            .field("owner", &self.owner())
            .field("generation", &self.generation())
            .field("level", &self.level())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl From<&RawKeyPtr> for Child {
    fn from(raw: &RawKeyPtr) -> Self {
        Self {
            key: Key::from(&raw.key),
            logical: Logical(raw.blockptr.get()),
            generation: Generation(raw.generation.get()),
        }
    }
}

/// The `nritems` slots behind a header.
#[derive(Clone, Copy)]
pub(crate) enum Slots<'a> {
    Leaf(&'a [RawItem]),
    Node(&'a [RawKeyPtr]),
}

impl<'a> Slots<'a> {
    /// Returns `None` if the block is too small for its `nritems`.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let (header, slots) = RawHeader::ref_from_prefix(bytes).ok()?;
        let count = index(header.nritems.get());
        if header.level == 0 {
            let (items, _) = <[RawItem]>::ref_from_prefix_with_elems(slots, count).ok()?;
            Some(Self::Leaf(items))
        } else {
            let (children, _) = <[RawKeyPtr]>::ref_from_prefix_with_elems(slots, count).ok()?;
            Some(Self::Node(children))
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Leaf(items) => items.len(),
            Self::Node(children) => children.len(),
        }
    }

    fn key(self, slot: usize) -> Option<&'a RawKey> {
        match self {
            Self::Leaf(items) => items.get(slot).map(|item| &item.key),
            Self::Node(children) => children.get(slot).map(|child| &child.key),
        }
    }
}

/// Returns the bytes of an item, if they are inside the block.
pub(crate) fn item_data<'a>(bytes: &'a [u8], item: &RawItem) -> Option<&'a [u8]> {
    let start = HEADER_BYTES.checked_add(index(item.offset.get()))?;
    let end = start.checked_add(index(item.size.get()))?;
    bytes.get(start..end)
}

/// Returns the header of a checked block. The fallback is never used: the check refuses shorter
/// blocks.
fn header(bytes: &[u8]) -> &RawHeader {
    const NONE: &RawHeader = &RawHeader {
        csum: [0; 32],
        fsid: [0; 16],
        bytenr: U64::ZERO,
        flags: U64::ZERO,
        chunk_tree_uuid: [0; 16],
        generation: U64::ZERO,
        owner: U64::ZERO,
        nritems: U32::ZERO,
        level: 0,
    };
    RawHeader::ref_from_prefix(bytes).map_or(NONE, |(header, _)| header)
}
