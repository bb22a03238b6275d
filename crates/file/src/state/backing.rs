//! [`Backing`]: where a dirty block will be written.

use butternut_pages::{Tag, Tags};

/// Where a dirty block will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// To space in the file's data reservation.
    Reserved,
    /// In place: to where the file has it.
    InPlace,
    /// Into the tree: the file is inline.
    Inline,
    /// Into the tree, because the compressed data is small enough. The block keeps its space in the
    /// file's data reservation: data that changes may not be compressible any more.
    CompressedInline,
}

impl Backing {
    /// The tag of such pages in the page cache.
    pub(crate) fn tag(self) -> Tag {
        let [reserved, in_place, inline, compressed_inline] = Tag::ALL;
        match self {
            Self::Reserved => reserved,
            Self::InPlace => in_place,
            Self::Inline => inline,
            Self::CompressedInline => compressed_inline,
        }
    }

    pub(crate) fn of(tag: Tag) -> Self {
        let all = [Self::Reserved, Self::InPlace, Self::Inline, Self::CompressedInline];
        all.into_iter().find(|backing| backing.tag() == tag).unwrap_or(Self::Reserved)
    }

    /// Whether the block is to be in the tree.
    pub(crate) fn is_inline(self) -> bool {
        matches!(self, Self::Inline | Self::CompressedInline)
    }

    /// Whether the block has space in the file's data reservation.
    pub(crate) fn is_reserved(self) -> bool {
        matches!(self, Self::Reserved | Self::CompressedInline)
    }

    /// The tags of pages that writeback writes; inline data waits for a merge.
    pub(crate) fn writeback_tags() -> Tags {
        Tags::NONE.with(Self::Reserved.tag()).with(Self::InPlace.tag())
    }

    /// The tags of pages that a merge writes.
    pub(crate) fn inline_tags() -> Tags {
        Tags::NONE.with(Self::Inline.tag()).with(Self::CompressedInline.tag())
    }
}
