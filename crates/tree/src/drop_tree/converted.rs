//! [`Converted`]: how far the references of a deleted tree have been changed.

use butternut_format::key::Key;

/// How far the blocks of a deleted tree keep law 2: all that end before a key, and those up to a
/// level that end at it. The last child of a node ends where the node ends, and comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Converted((Key, u8));

impl Converted {
    pub(crate) const NOTHING: Self = Self((Key::MIN, 0));

    /// Returns whether a block that ends at this key, on this level, is one of them.
    pub(crate) fn includes(self, end: (Key, u8)) -> bool {
        end <= self.0
    }

    /// Adds the block that ends at this key, on this level. All blocks that come before it are
    /// there.
    pub(crate) fn pass(&mut self, end: (Key, u8)) {
        self.0 = self.0.max(end);
    }
}
