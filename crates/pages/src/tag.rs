//! Tags: a mark that the owner of a file gives to dirty pages. The pages of a
//! [`WritebackPages`](crate::WritebackPages) share one tag.

/// One of four tags. Their meaning is up to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag(u8);

/// A set of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags(u8);

impl Tag {
    pub const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
}

impl Tags {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(15);

    #[must_use]
    pub fn with(self, tag: Tag) -> Self {
        Self(self.0 | 1 << tag.0)
    }

    #[must_use]
    pub fn without(self, tag: Tag) -> Self {
        Self(self.0 & !(1 << tag.0))
    }

    pub fn contains(self, tag: Tag) -> bool {
        self.0 & 1 << tag.0 != 0
    }
}
