//! [`Bounded`]: a tree that is searched for entries whose references do not tell the index.
//!
//! The index of such an entry is found only by a search of its whole directory. A volume has few of
//! them; a crafted one, with a million, would keep the replay of a log busy for days, or a
//! recursive snapshot, beside which nothing is written. So the items that these searches read are
//! counted, and past [`STEPS_MAX`] the log or the snapshot is refused.

use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_names::{OwnedItem, ReadItems};
use butternut_tree::{Tree, TreeError};
use std::cell::Cell;

/// The most items that the searches of one subvolume's replay, or of one snapshot, read.
pub(crate) const STEPS_MAX: u32 = if cfg!(test) { 1 << 12 } else { 1 << 20 };

pub(crate) struct Bounded<'a> {
    pub(crate) tree: &'a Tree,
    /// How many items may still be read.
    pub(crate) steps_left: &'a Cell<u32>,
}

impl ReadItems for Bounded<'_> {
    fn tree_id(&self) -> TreeId {
        self.tree.id()
    }

    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError> {
        ReadItems::find(self.tree, key)
    }

    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        let left = self.steps_left.get().checked_sub(1);
        let left = left.ok_or_else(|| TreeError::Corrupt {
            tree: self.tree.id(),
            source: Refused::new("entries", "many without references", "few")
                .at(format_args!("item {key}")),
        })?;
        self.steps_left.set(left);
        self.tree.first_from(key)
    }

    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        self.tree.last_to(key)
    }
}
