//! An extent item in memory: decodes it, changes its reference counts, and encodes it.
//!
//! Laws:
//!
//! 1. Inline references rise by type, after the owner reference. Within a type they fall by offset
//!    or hash, as the checks of the format require.
//! 2. A new reference is inline only if the item stays within [`inline_bytes_max`] and its extent
//!    has no keyed references. Otherwise it is a keyed item. No reference is both.
//! 3. Counts are exact: a count that does not fit its field on disk is refused, never clipped.

use super::{Content, Ref};
use crate::error::TreeError;
use butternut_format::extent::{
    EXTENT_FLAG_DATA, EXTENT_FLAG_FULL_BACKREF, EXTENT_FLAG_TREE_BLOCK, Extent, ExtentKind,
    InlineRef, RawExtentDataRef, RawExtentItem, RawInlineRef, RawSharedDataRef, RawTreeBlockInfo,
};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::HEADER_BYTES;
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_volume::Volume;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

/// The longest extent item with inline references (`BTRFS_MAX_EXTENT_ITEM_SIZE`), in bytes.
pub(crate) fn inline_bytes_max(node_len: usize) -> usize {
    (node_len.saturating_sub(HEADER_BYTES) >> 4).saturating_sub(crate::block_edit::ITEM_BYTES)
}

/// A decoded extent item.
#[derive(Clone, Debug)]
pub(crate) struct ExtentItem {
    pub(crate) refs: u64,
    pub(crate) generation: Generation,
    pub(crate) flags: u64,
    /// The level and the first key of a tree block with an `EXTENT_ITEM`.
    info: Option<(u8, Key)>,
    /// The tree that simple quotas charge for data: the owner reference, which is the first inline
    /// one, and does not count.
    pub(crate) owner: Option<TreeId>,
    inline: Vec<(Ref, u64)>,
}

impl ExtentItem {
    /// Makes the item of an extent that was just allocated.
    pub(crate) fn new(content: Content, generation: Generation, is_skinny: bool) -> Self {
        let (flags, info) = match content {
            Content::Data => (EXTENT_FLAG_DATA, None),
            Content::Block { level, first_key } => {
                (EXTENT_FLAG_TREE_BLOCK, (!is_skinny).then_some((level, first_key)))
            }
        };
        Self { refs: 0, generation, flags, info, owner: None, inline: Vec::with_capacity(1) }
    }

    /// Decodes a checked item.
    pub(crate) fn parse(extent: &Extent<'_>) -> Result<Self, Refused> {
        let info = match extent.kind {
            ExtentKind::TreeBlock { level, first_key } => first_key.map(|key| (level, key)),
            ExtentKind::Data => None,
        };
        let (mut owner, mut inline) = (None, Vec::new());
        for reference in extent.inline_refs() {
            let reference = reference?;
            match (Ref::of(reference), reference) {
                (Some(known), _) => inline.push((known, u64::from(reference.count()))),
                (None, InlineRef::Owner(tree)) if owner.is_none() => owner = Some(tree),
                (None, _) => {
                    return Err(Refused::new("inline reference", "a second owner", "one owner"));
                }
            }
        }
        let (refs, generation, flags) = (extent.refs, extent.generation, extent.flags);
        Ok(Self { refs, generation, flags, info, owner, inline })
    }

    pub(crate) fn set_full_backref(&mut self) {
        self.flags |= EXTENT_FLAG_FULL_BACKREF;
    }

    /// Changes an inline reference. Returns `false` if the reference is not inline.
    pub(crate) fn change_inline(&mut self, reference: Ref, delta: i64) -> Result<bool, Refused> {
        let Some(at) = self.inline.iter().position(|(known, _)| *known == reference) else {
            return Ok(false);
        };
        let old = self.inline.get(at).map_or(0, |(_, count)| *count);
        let count = checked_count(reference, old, delta)?;
        if count == 0 {
            self.inline.remove(at);
        } else if let Some((_, place)) = self.inline.get_mut(at) {
            *place = count;
        }
        Ok(true)
    }

    /// Adds an inline reference that is neither inline nor keyed yet (law 2).
    pub(crate) fn insert_inline(&mut self, reference: Ref, delta: i64) -> Result<(), Refused> {
        let count = checked_count(reference, 0, delta)?;
        let order = order(reference);
        let at = self.inline.partition_point(|(known, _)| self::order(*known) < order);
        self.inline.insert(at, (reference, count));
        Ok(())
    }

    /// Whether the item has no inline references that count.
    pub(crate) fn has_no_inline(&self) -> bool {
        self.inline.is_empty()
    }

    pub(crate) fn has_space(&self, reference: Ref, bytes_max: usize) -> bool {
        self.bytes().saturating_add(inline_bytes(reference)) <= bytes_max
    }

    fn bytes(&self) -> usize {
        let info = self.info.map_or(0, |_| size_of::<RawTreeBlockInfo>());
        let inline: usize = self.inline.iter().map(|(known, _)| inline_bytes(*known)).sum();
        let owner = self.owner.map_or(0, |_| size_of::<RawInlineRef>());
        size_of::<RawExtentItem>().saturating_add(info).saturating_add(owner).saturating_add(inline)
    }

    /// Returns the data of the item.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        let front = RawExtentItem {
            refs: U64::new(self.refs),
            generation: U64::new(self.generation.0),
            flags: U64::new(self.flags),
        };
        bytes.extend_from_slice(front.as_bytes());
        if let Some((level, key)) = self.info {
            let info = RawTreeBlockInfo { key: RawKey::from(key), level };
            bytes.extend_from_slice(info.as_bytes());
        }
        if let Some(owner) = self.owner {
            let (kind, offset) = (ItemType::EXTENT_OWNER_REF.0, U64::new(owner.0));
            bytes.extend_from_slice(RawInlineRef { r#type: kind, offset }.as_bytes());
        }
        for (reference, count) in &self.inline {
            let kind = reference.item_type().0;
            match reference {
                Ref::Data(_) => bytes.push(kind),
                Ref::Tree(_) | Ref::Shared(_) | Ref::SharedData(_) => {
                    let offset = U64::new(reference.sequence());
                    bytes.extend_from_slice(RawInlineRef { r#type: kind, offset }.as_bytes());
                }
            }
            bytes.extend_from_slice(&keyed_bytes(*reference, *count));
        }
        bytes
    }
}

impl Ref {
    /// Converts an inline reference; `None` for the owner mark of simple quotas.
    pub(crate) fn of(inline: InlineRef) -> Option<Self> {
        Some(match inline {
            InlineRef::TreeBlock(tree) => Self::Tree(tree),
            InlineRef::SharedBlock(parent) => Self::Shared(parent),
            InlineRef::Data(data) => Self::data(data),
            InlineRef::SharedData { parent, .. } => Self::SharedData(parent),
            InlineRef::Owner(_) => return None,
        })
    }

    pub(crate) fn item_type(self) -> ItemType {
        match self {
            Self::Tree(_) => ItemType::TREE_BLOCK_REF,
            Self::Shared(_) => ItemType::SHARED_BLOCK_REF,
            Self::Data(_) => ItemType::EXTENT_DATA_REF,
            Self::SharedData(_) => ItemType::SHARED_DATA_REF,
        }
    }

    fn sequence(self) -> u64 {
        match self {
            Self::Tree(tree) => tree.0,
            Self::Shared(parent) | Self::SharedData(parent) => parent.0,
            Self::Data(data) => data.hash(),
        }
    }

    /// Returns the key of this reference as a keyed item.
    pub(crate) fn key(self, at: Logical) -> Key {
        Key::new(at.0, self.item_type(), self.sequence())
    }
}

/// Checks an item of the extent tree and passes it to `read`.
pub(crate) fn read_extent<'a, R>(
    volume: &Volume,
    key: Key,
    data: &'a [u8],
    read: impl FnOnce(Extent<'a>) -> Result<R, Refused>,
) -> Result<R, TreeError> {
    // The generation of the item was checked with its leaf.
    let leaf = Generation(u64::MAX);
    Extent::check(key, data, leaf, &volume.block_rules()).and_then(read).map_err(|refused| {
        let source = refused.at(format_args!("item {key}"));
        TreeError::Corrupt { tree: TreeId::EXTENT, source }
    })
}

/// Returns the sort key of an inline reference (law 1).
fn order(reference: Ref) -> (u8, u64) {
    (reference.item_type().0, u64::MAX.saturating_sub(reference.sequence()))
}

fn inline_bytes(reference: Ref) -> usize {
    match reference {
        Ref::Tree(_) | Ref::Shared(_) => size_of::<RawInlineRef>(),
        Ref::Data(_) => size_of::<RawExtentDataRef>().saturating_add(1),
        Ref::SharedData(_) => {
            size_of::<RawInlineRef>().saturating_add(size_of::<RawSharedDataRef>())
        }
    }
}

/// Returns the count of a reference after a change (law 3). A tree block has each reference once.
pub(crate) fn checked_count(reference: Ref, count: u64, delta: i64) -> Result<u64, Refused> {
    let max = match reference {
        Ref::Tree(_) | Ref::Shared(_) => 1,
        Ref::Data(_) | Ref::SharedData(_) => u64::from(u32::MAX),
    };
    count.checked_add_signed(delta).filter(|new| *new <= max).ok_or_else(|| {
        let want = format_args!("a count that {delta} can be added to, up to {max}").to_string();
        Refused::new("reference count", count, want)
    })
}

/// Returns the data of a reference as a keyed item.
pub(crate) fn keyed_bytes(reference: Ref, count: u64) -> Vec<u8> {
    let count = U32::new(u32::try_from(count).expect("law 3: a count is checked when it is made"));
    match reference {
        Ref::Tree(_) | Ref::Shared(_) => Vec::new(),
        Ref::Data(data) => {
            let raw = RawExtentDataRef {
                root: U64::new(data.tree.0),
                objectid: U64::new(data.ino.0),
                offset: U64::new(data.offset),
                count,
            };
            raw.as_bytes().to_vec()
        }
        Ref::SharedData(_) => RawSharedDataRef { count }.as_bytes().to_vec(),
    }
}
