//! What the rest of this crate needs of a tree in order to change it: items by key.
//!
//! [`Edit`] has one real implementation, a tree inside a transaction. That it is a trait lets every
//! change be tested over a plain ordered map, item by item.

use butternut_format::feature;
use butternut_format::key::Key;
use butternut_format::node::{HEADER_BYTES, RawItem};
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{TreeId, index};
use butternut_tree::{Alter, Tree, TreeEdit, TreeError};
use std::ops::Range;

/// An item, copied out of its leaf.
pub type OwnedItem = (Key, Vec<u8>);

/// The reading of single items.
pub trait Look {
    fn tree_id(&self) -> TreeId;

    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError>;

    /// The first item at or after a key.
    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError>;

    /// The last item at or before a key.
    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError>;
}

/// What the volume allows the items of its trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest item: alone in a leaf, with its slot.
    pub item_bytes_max: usize,
    /// Whether references may have their second form (the feature extended-iref).
    pub extended_refs: bool,
}

/// The changing of single items. What one call does readers see at once or not at all.
pub trait Edit: Look {
    fn limits(&self) -> Limits;

    /// Adds an item. `false` where the key is taken; nothing is changed then.
    fn insert(&self, key: &Key, data: &[u8]) -> Result<bool, TreeError>;

    /// Adds or replaces an item.
    fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError>;

    /// Takes an item out. `false` where there was none.
    fn remove(&self, key: &Key) -> Result<bool, TreeError>;

    /// Changes an item in place. `false` where there is none.
    fn update(&self, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError>;

    /// Shows an item, or that there is none, to `decide`, and does what that says. It may be asked
    /// more than once.
    fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError>;

    /// Takes out all items from one key to before another, showing each first; how many there were.
    fn remove_range(
        &self,
        keys: Range<Key>,
        see: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError>;

    /// Says that a change of several items cannot go on: what was done so far must never be
    /// committed.
    fn fail(&self, error: TreeError) -> TreeError;
}

impl Limits {
    pub fn of(super_block: &SuperBlock) -> Self {
        Self::new(super_block.node_bytes(), super_block.has(feature::EXTENDED_IREF))
    }

    pub(crate) fn new(node_bytes: u32, extended_refs: bool) -> Self {
        let taken = HEADER_BYTES.saturating_add(size_of::<RawItem>());
        Self { item_bytes_max: index(node_bytes).saturating_sub(taken), extended_refs }
    }
}

impl Look for TreeEdit<'_> {
    fn tree_id(&self) -> TreeId {
        self.id()
    }

    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError> {
        Look::find(self.tree(), key)
    }

    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        self.tree().first_from(key)
    }

    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        self.tree().last_to(key)
    }
}

impl Edit for TreeEdit<'_> {
    fn limits(&self) -> Limits {
        Limits::of(self.tree().forest().volume().super_block())
    }

    fn insert(&self, key: &Key, data: &[u8]) -> Result<bool, TreeError> {
        match TreeEdit::insert(self, key, data) {
            Ok(()) => Ok(true),
            Err(TreeError::Exists { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        TreeEdit::put(self, key, data)
    }

    fn remove(&self, key: &Key) -> Result<bool, TreeError> {
        TreeEdit::remove(self, key)
    }

    fn update(&self, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError> {
        TreeEdit::update(self, key, change)
    }

    fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError> {
        TreeEdit::alter(self, key, decide)
    }

    fn remove_range(
        &self,
        keys: Range<Key>,
        see: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError> {
        TreeEdit::remove_range(self, keys, see)
    }

    fn fail(&self, error: TreeError) -> TreeError {
        TreeEdit::fail(self, error)
    }
}

impl Look for Tree {
    fn tree_id(&self) -> TreeId {
        self.id()
    }

    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError> {
        Ok(Tree::find(self, key)?.map(|item| item.data().to_vec()))
    }

    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.item_parts().map(|(key, data)| (key, data.to_vec())))
    }

    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        let mut cursor = self.cursor();
        cursor.seek_last(key)?;
        Ok(cursor.item_parts().map(|(key, data)| (key, data.to_vec())))
    }
}
