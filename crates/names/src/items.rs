//! The access to a tree that the rest of this crate needs: items by key.
//!
//! [`EditItems`] has one implementation outside of tests, a tree inside a transaction. Tests
//! implement it with an ordered map, and compare every item. It cannot read an item without
//! altering it: a change reads what it needs before it starts, through a [`ReadItems`], because an
//! error of a read in the midst would leave a part of the change.

use butternut_format::feature;
use butternut_format::key::Key;
use butternut_format::node::{HEADER_BYTES, RawItem};
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{TreeId, index};
use butternut_tree::{Alter, Tree, TreeEdit, TreeError};
use std::ops::Range;

/// A copy of an item.
pub type OwnedItem = (Key, Vec<u8>);

/// Reads single items.
pub trait ReadItems {
    /// Returns the id of the tree.
    fn tree_id(&self) -> TreeId;

    /// Returns the data of an item.
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError>;

    /// Returns the first item at or after a key.
    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError>;

    /// Returns the last item at or before a key.
    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError>;
}

/// Limits of the items of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the largest item, in bytes: it fills a leaf together with its slot.
    pub item_bytes_max: usize,
    /// Whether references may have their second form (feature extended-iref).
    pub extended_refs: bool,
}

/// Changes single items. Readers see each call as one atomic change. An error of a call ends the
/// transaction if an earlier call has changed an item.
pub trait EditItems {
    /// Returns the id of the tree that is changed.
    fn edited_tree(&self) -> TreeId;

    /// Returns the limits of the volume.
    fn limits(&self) -> Limits;

    /// Inserts an item. Returns `false` and changes nothing if there is one with this key.
    fn insert(&self, key: &Key, data: &[u8]) -> Result<bool, TreeError>;

    /// Inserts or replaces an item.
    fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError>;

    /// Removes an item. Returns `false` if there was none.
    fn remove(&self, key: &Key) -> Result<bool, TreeError>;

    /// Changes an item in place. Returns `false` if there is none.
    fn update(&self, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError>;

    /// Passes the data of an item, or `None`, to `decide`, and does what it returns. `decide` may
    /// be called more than once.
    fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError>;

    /// Removes all items of a range, and passes each to `visit` first. Returns their number.
    fn remove_range(
        &self,
        keys: Range<Key>,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError>;

    /// Makes the volume read-only, because a change of several items cannot be completed: its first
    /// part must never be committed. Returns the error to report.
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

impl EditItems for TreeEdit<'_> {
    fn edited_tree(&self) -> TreeId {
        self.id()
    }

    fn limits(&self) -> Limits {
        Limits::of(self.tree().volume().super_block())
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
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError> {
        TreeEdit::remove_range(self, keys, visit)
    }

    fn fail(&self, error: TreeError) -> TreeError {
        TreeEdit::fail(self, error)
    }
}

impl ReadItems for Tree {
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
