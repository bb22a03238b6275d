//! Extent items: the allocated ranges of the volume, and all references to them.
//!
//! ```text
//! RawExtentItem
//! 0      8            16      24
//! | refs | generation | flags | inline references ...
//!
//! RawTreeBlockInfo
//! 0     17      18
//! | key | level |
//!
//! RawInlineRef
//! 0      1        9
//! | type | offset |
//!
//! RawExtentDataRef
//! 0      8          16       24      28
//! | root | objectid | offset | count |
//!
//! RawSharedDataRef
//! 0       4
//! | count |
//! ```
//!
//! An `EXTENT_ITEM` (address, type, bytes) describes data, or a tree block, and then has a
//! [`RawTreeBlockInfo`] before its references. A `METADATA_ITEM` (address, type, level) describes
//! a tree block and has no such structure (feature skinny-metadata). As many references as fit
//! follow inline; the rest are keyed items at the same address:
//!
//! | type | inline | key offset | item |
//! |---|---|---|---|
//! | `TREE_BLOCK_REF` | the tree | the tree | nothing |
//! | `SHARED_BLOCK_REF` | the parent block | the parent block | nothing |
//! | `EXTENT_DATA_REF` | a [`RawExtentDataRef`] in place of `offset` | its hash | the same |
//! | `SHARED_DATA_REF` | the parent leaf, then a count | the parent leaf | a count |
//! | `EXTENT_OWNER_REF` | the tree that is charged (simple quotas) | - | inline only |
//!
//! 1. Address and length are sector aligned, the length is not 0, and the end is inside the
//!    address space. A tree block's extent is one node; its level is below 8.
//! 2. `flags` is either data or tree block, and matches the key and the references. Only tree
//!    blocks have full back references.
//! 3. `generation` is at most that of the leaf.
//! 4. Inline references fill the item exactly, in ascending order of type, and within a type in
//!    descending order of `offset` or hash; no count is 0.
//! 5. The inline references count at most `refs`; an owner reference does not count.
//! 6. Parents and file offsets are sector aligned. A data reference refers to a subvolume, or
//!    another tree that has files, and to an inode number that is valid in such a tree.

mod inline;

pub use inline::{InlineRef, InlineRefs};

use crate::checksum::data_ref_hash;
use crate::feature::SKINNY_METADATA;
use crate::key::{ItemType, Key, RawKey};
use crate::node::BlockRules;
use crate::refused::{Bits, Refused, front, require, whole};
use crate::units::{Generation, Ino, LEVELS_MAX, Logical, SECTOR_BYTES, TreeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bits of an extent's `flags` (`BTRFS_EXTENT_FLAG_*`, `BTRFS_BLOCK_FLAG_FULL_BACKREF`).
pub const EXTENT_FLAG_DATA: u64 = 1 << 0;
pub const EXTENT_FLAG_TREE_BLOCK: u64 = 1 << 1;
pub const EXTENT_FLAG_FULL_BACKREF: u64 = 1 << 8;

/// The range of inode numbers of files, and the inode number of the free inode cache.
const INO_FIRST: u64 = 256;
const INO_LAST: u64 = u64::MAX - 255;
const INO_CACHE: u64 = u64::MAX - 11;

/// The front of an extent item in its on-disk form (`struct btrfs_extent_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtentItem {
    pub refs: U64,
    pub generation: U64,
    pub flags: U64,
}
const _: () = assert!(size_of::<RawExtentItem>() == 24);

/// The level and first key of a tree block in its `EXTENT_ITEM` (`struct btrfs_tree_block_info`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTreeBlockInfo {
    pub key: RawKey,
    pub level: u8,
}
const _: () = assert!(size_of::<RawTreeBlockInfo>() == 18);

/// The front of an inline reference (`struct btrfs_extent_inline_ref`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInlineRef {
    pub r#type: u8,
    pub offset: U64,
}
const _: () = assert!(size_of::<RawInlineRef>() == 9);

/// A reference from a file (`struct btrfs_extent_data_ref`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtentDataRef {
    pub root: U64,
    pub objectid: U64,
    pub offset: U64,
    pub count: U32,
}
const _: () = assert!(size_of::<RawExtentDataRef>() == 28);

/// A reference from a leaf that several trees share (`struct btrfs_shared_data_ref`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawSharedDataRef {
    pub count: U32,
}
const _: () = assert!(size_of::<RawSharedDataRef>() == 4);

/// Whether an extent contains data or a tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    Data,
    /// A tree block. Only `EXTENT_ITEM`s contain its first key.
    TreeBlock {
        level: u8,
        first_key: Option<Key>,
    },
}

/// An allocated range and its inline references.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    pub logical: Logical,
    pub bytes: u64,
    pub kind: ExtentKind,
    /// Number of all references, inline and keyed.
    pub refs: u64,
    pub generation: Generation,
    pub flags: u64,
    inline: &'a [u8],
}

/// A reference from a file of a subvolume. `offset` is the file offset where the extent's first
/// byte would be; it may be negative, and then wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataRef {
    pub tree: TreeId,
    pub ino: Ino,
    pub offset: u64,
    pub count: u32,
}

impl<'a> Extent<'a> {
    /// Checks an `EXTENT_ITEM` or `METADATA_ITEM` of a leaf of generation `leaf`.
    ///
    /// # Errors
    /// The first law that the item violates.
    pub fn check(
        key: Key,
        data: &'a [u8],
        leaf: Generation,
        rules: &BlockRules,
    ) -> Result<Self, Refused> {
        let (raw, rest) = front::<RawExtentItem>(data)?;
        let (refs, generation, flags) = (raw.refs.get(), raw.generation.get(), raw.flags.get());
        require(generation <= leaf.0, "generation", generation, format_args!("at most {leaf}"))?;
        let (kind, inline) = kind(key, flags, rest, rules)?;
        let bytes = match kind {
            ExtentKind::Data => key.offset,
            ExtentKind::TreeBlock { .. } => u64::from(rules.node_bytes),
        };
        range_laws(key.objectid, bytes)?;
        let logical = Logical(key.objectid);
        let generation = Generation(generation);
        let extent = Self { logical, bytes, kind, refs, generation, flags, inline };
        inline::check(&extent)?;
        Ok(extent)
    }

    pub fn inline_refs(&self) -> InlineRefs<'a> {
        InlineRefs::of(self.inline)
    }

    /// Returns the tree that simple quotas charge for the extent, if it has an owner reference: the
    /// first inline one.
    pub fn owner(&self) -> Option<TreeId> {
        let first = self.inline_refs().next()?.ok()?;
        if let InlineRef::Owner(tree) = first { Some(tree) } else { None }
    }

    /// Returns the address behind the extent. The check ensures that it does not overflow.
    pub fn end(&self) -> Logical {
        Logical(self.logical.0.saturating_add(self.bytes))
    }
}

impl DataRef {
    pub fn check(raw: &RawExtentDataRef) -> Result<Self, Refused> {
        let tree = TreeId(raw.root.get());
        let has_files =
            tree.is_subvolume() || tree == TreeId::DATA_RELOCATION || tree == TreeId::ROOT;
        require(has_files, "data ref: root", tree, "a tree with files")?;
        let ino = raw.objectid.get();
        let is_file = (INO_FIRST..=INO_LAST).contains(&ino) || ino == INO_CACHE;
        require(is_file, "data ref: objectid", ino, "an inode number")?;
        let offset = raw.offset.get();
        require(offset.is_multiple_of(SECTOR_BYTES), "data ref: offset", offset, "sector aligned")?;
        let count = raw.count.get();
        require(count != 0, "data ref: count", count, "not 0")?;
        Ok(Self { tree, ino: Ino(ino), offset, count })
    }

    /// Returns the key offset of this reference as a keyed item.
    pub fn hash(&self) -> u64 {
        data_ref_hash(self.tree.0, self.ino.0, self.offset)
    }
}

/// Checks an `EXTENT_DATA_REF` item, and returns the reference.
///
/// References with the same hash use the next free offsets, so the key offset may exceed the hash.
pub fn check_data_ref(key: Key, data: &[u8]) -> Result<DataRef, Refused> {
    address(key)?;
    let reference = DataRef::check(whole::<RawExtentDataRef>(data)?)?;
    let hash = reference.hash();
    require(key.offset >= hash, "key offset", key.offset, format_args!("at least {hash}"))?;
    Ok(reference)
}

/// Checks a `SHARED_DATA_REF` item, and returns the address of the referring leaf and the count.
pub fn check_shared_data_ref(key: Key, data: &[u8]) -> Result<(Logical, u32), Refused> {
    address(key)?;
    let count = whole::<RawSharedDataRef>(data)?.count.get();
    require(count != 0, "count", count, "not 0")?;
    Ok((parent(key.offset)?, count))
}

/// Checks a `SHARED_BLOCK_REF` item, and returns the address of the referring block.
pub fn check_shared_block_ref(key: Key, data: &[u8]) -> Result<Logical, Refused> {
    address(key)?;
    require(data.is_empty(), "item size", data.len(), 0)?;
    parent(key.offset)
}

/// Checks a `TREE_BLOCK_REF` item, and returns the referring tree.
pub fn check_tree_block_ref(key: Key, data: &[u8]) -> Result<TreeId, Refused> {
    address(key)?;
    require(data.is_empty(), "item size", data.len(), 0)?;
    require(key.offset != 0, "key offset", key.offset, "a tree")?;
    Ok(TreeId(key.offset))
}

fn address(key: Key) -> Result<(), Refused> {
    let address = key.objectid;
    require(address.is_multiple_of(SECTOR_BYTES), "key objectid", address, "sector aligned")
}

fn parent(address: u64) -> Result<Logical, Refused> {
    let placed = address != 0 && address.is_multiple_of(SECTOR_BYTES);
    require(placed, "parent", address, "sector aligned and not 0")?;
    Ok(Logical(address))
}

fn range_laws(logical: u64, bytes: u64) -> Result<(), Refused> {
    require(logical.is_multiple_of(SECTOR_BYTES), "key objectid", logical, "sector aligned")?;
    let whole = bytes != 0 && bytes.is_multiple_of(SECTOR_BYTES);
    require(whole, "key offset", bytes, "sector aligned and not 0")?;
    let fits = logical.checked_add(bytes).is_some();
    require(fits, "key offset", bytes, "an end inside the address space")
}

/// Returns the kind of the extent by its key and flags, and the bytes of its inline references.
fn kind<'a>(
    key: Key,
    flags: u64,
    rest: &'a [u8],
    rules: &BlockRules,
) -> Result<(ExtentKind, &'a [u8]), Refused> {
    let known = EXTENT_FLAG_DATA | EXTENT_FLAG_TREE_BLOCK | EXTENT_FLAG_FULL_BACKREF;
    require(flags & !known == 0, "flags", Bits(flags), format_args!("no bits but {known:#x}"))?;
    let is_skinny = key.item_type == ItemType::METADATA_ITEM;
    match flags & (EXTENT_FLAG_DATA | EXTENT_FLAG_TREE_BLOCK) {
        EXTENT_FLAG_DATA => {
            require(!is_skinny, "flags", Bits(flags), "a tree block, matching the key type")?;
            let full = flags & EXTENT_FLAG_FULL_BACKREF != 0;
            require(!full, "flags", Bits(flags), "no full back references for data")?;
            Ok((ExtentKind::Data, rest))
        }
        EXTENT_FLAG_TREE_BLOCK if is_skinny => {
            let has_skinny = rules.incompat & SKINNY_METADATA.mask() != 0;
            require(has_skinny, "key type", key.item_type.0, "168 without skinny-metadata")?;
            let level = u8::try_from(key.offset).ok().filter(|level| is_level(*level));
            let level = level.ok_or_else(|| Refused::new("key offset", key.offset, "below 8"))?;
            Ok((ExtentKind::TreeBlock { level, first_key: None }, rest))
        }
        EXTENT_FLAG_TREE_BLOCK => {
            let node_bytes = u64::from(rules.node_bytes);
            require(key.offset == node_bytes, "key offset", key.offset, node_bytes)?;
            let (info, rest) = front::<RawTreeBlockInfo>(rest)?;
            require(is_level(info.level), "level", info.level, "below 8")?;
            let first_key = Some(Key::from(&info.key));
            Ok((ExtentKind::TreeBlock { level: info.level, first_key }, rest))
        }
        _ => Err(Refused::new("flags", Bits(flags), "either data or tree block")),
    }
}

fn is_level(level: u8) -> bool {
    usize::from(level) < LEVELS_MAX
}
