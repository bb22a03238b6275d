//! Inline references: the references in the extent item itself.

use super::{
    DataRef, Extent, ExtentKind, RawExtentDataRef, RawInlineRef, RawSharedDataRef, parent,
};
use crate::key::ItemType;
use crate::refused::{Refused, front, require};
use crate::units::{Logical, TreeId};

/// One inline reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineRef {
    /// The tree that is charged for the extent under simple quotas. Does not count as a reference.
    Owner(TreeId),
    TreeBlock(TreeId),
    SharedBlock(Logical),
    Data(DataRef),
    SharedData {
        parent: Logical,
        count: u32,
    },
}

impl InlineRef {
    pub const fn item_type(self) -> ItemType {
        match self {
            Self::Owner(_) => ItemType::EXTENT_OWNER_REF,
            Self::TreeBlock(_) => ItemType::TREE_BLOCK_REF,
            Self::SharedBlock(_) => ItemType::SHARED_BLOCK_REF,
            Self::Data(_) => ItemType::EXTENT_DATA_REF,
            Self::SharedData { .. } => ItemType::SHARED_DATA_REF,
        }
    }

    /// Returns how many of the extent's references this one counts for.
    pub const fn count(self) -> u32 {
        match self {
            Self::Owner(_) => 0,
            Self::TreeBlock(_) | Self::SharedBlock(_) => 1,
            Self::Data(DataRef { count, .. }) | Self::SharedData { count, .. } => count,
        }
    }

    /// Returns the value by which references of one type are sorted in descending order, which is
    /// the key offset of a keyed reference.
    pub fn sequence(self) -> u64 {
        match self {
            Self::Owner(tree) | Self::TreeBlock(tree) => tree.0,
            Self::SharedBlock(parent) | Self::SharedData { parent, .. } => parent.0,
            Self::Data(data) => data.hash(),
        }
    }
}

/// The inline references of an extent, in their order. Ends after an invalid one, which a checked
/// extent does not have.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a> {
    rest: &'a [u8],
}

impl<'a> InlineRefs<'a> {
    pub(super) fn of(inline: &'a [u8]) -> Self {
        Self { rest: inline }
    }

    fn parse(rest: &'a [u8]) -> Result<(InlineRef, &'a [u8]), Refused> {
        let (kind, after) = front::<u8>(rest)?;
        if ItemType(*kind) == ItemType::EXTENT_DATA_REF {
            let (raw, after) = front::<RawExtentDataRef>(after)?;
            return Ok((InlineRef::Data(DataRef::check(raw)?), after));
        }
        let (raw, after) = front::<RawInlineRef>(rest)?;
        let offset = raw.offset.get();
        match ItemType(raw.r#type) {
            ItemType::EXTENT_OWNER_REF => Ok((InlineRef::Owner(TreeId(offset)), after)),
            ItemType::TREE_BLOCK_REF => Ok((InlineRef::TreeBlock(TreeId(offset)), after)),
            ItemType::SHARED_BLOCK_REF => Ok((InlineRef::SharedBlock(parent(offset)?), after)),
            ItemType::SHARED_DATA_REF => {
                let (shared, after) = front::<RawSharedDataRef>(after)?;
                let count = shared.count.get();
                require(count != 0, "count", count, "not 0")?;
                Ok((InlineRef::SharedData { parent: parent(offset)?, count }, after))
            }
            other => Err(Refused::new("type", other.0, "the type of a reference")),
        }
    }
}

impl Iterator for InlineRefs<'_> {
    type Item = Result<InlineRef, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        Some(Self::parse(rest).map(|(reference, rest)| {
            self.rest = rest;
            reference
        }))
    }
}

/// Checks the laws of all inline references of one extent.
pub(super) fn check(extent: &Extent<'_>) -> Result<(), Refused> {
    let mut counted = 0_u64;
    let mut previous: Option<(ItemType, u64)> = None;
    for (position, reference) in extent.inline_refs().enumerate() {
        let checked = reference.and_then(|reference| {
            fits_kind(reference, extent.kind)?;
            let (item_type, sequence) = (reference.item_type(), reference.sequence());
            if let Some((before_type, before)) = previous {
                let is_ascending = before_type <= item_type;
                require(
                    is_ascending,
                    "type",
                    item_type.0,
                    format_args!("at least {}", before_type.0),
                )?;
                let is_descending = before_type != item_type || sequence <= before;
                require(
                    is_descending,
                    "offset or hash",
                    sequence,
                    format_args!("at most {before}"),
                )?;
            }
            counted = counted.saturating_add(u64::from(reference.count()));
            Ok((item_type, sequence))
        });
        let place = |refused: Refused| refused.at(format_args!("inline reference {position}"));
        previous = Some(checked.map_err(place)?);
    }
    require(counted <= extent.refs, "refs", extent.refs, format_args!("at least {counted}"))
}

/// Trees and blocks refer to tree blocks; files and leaves refer to data.
fn fits_kind(reference: InlineRef, kind: ExtentKind) -> Result<(), Refused> {
    let fits = match reference {
        InlineRef::Owner(_) => true,
        InlineRef::TreeBlock(_) | InlineRef::SharedBlock(_) => kind != ExtentKind::Data,
        InlineRef::Data(_) | InlineRef::SharedData { .. } => kind == ExtentKind::Data,
    };
    require(fits, "type", reference.item_type().0, "a reference type that matches flags")
}
