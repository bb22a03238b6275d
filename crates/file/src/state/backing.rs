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
}

impl Backing {
    /// The tag of such pages in the page cache.
    pub(crate) fn tag(self) -> Tag {
        let [reserved, in_place, inline, _] = Tag::ALL;
        match self {
            Self::Reserved => reserved,
            Self::InPlace => in_place,
            Self::Inline => inline,
        }
    }

    pub(crate) fn of(tag: Tag) -> Self {
        let all = [Self::Reserved, Self::InPlace, Self::Inline];
        all.into_iter().find(|backing| backing.tag() == tag).unwrap_or(Self::Reserved)
    }

    /// The tags of pages that writeback writes; inline data waits for a merge.
    pub(crate) fn writeback_tags() -> Tags {
        Tags::NONE.with(Self::Reserved.tag()).with(Self::InPlace.tag())
    }
}
