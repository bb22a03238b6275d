//! The references between a subvolume and its parent in the root tree: both directions are always
//! written and removed together.

use crate::error::{NamesError, corrupt_midway};
use crate::items::EditItems;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::root_ref::RootRef;
use butternut_format::units::TreeId;

/// A subvolume and its parent, the subvolume that contains its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumePair {
    pub child: TreeId,
    pub parent: TreeId,
}

impl SubvolumePair {
    fn keys(self) -> [Key; 2] {
        [
            Key::new(self.parent.0, ItemType::ROOT_REF, self.child.0),
            Key::new(self.child.0, ItemType::ROOT_BACKREF, self.parent.0),
        ]
    }
}

/// Inserts or replaces the references between a subvolume and its parent.
pub fn put_root_ref(
    root_tree: &impl EditItems,
    pair: SubvolumePair,
    reference: &RootRef<'_>,
) -> Result<(), NamesError> {
    let item = reference.to_bytes();
    for key in pair.keys() {
        root_tree.put(&key, &item)?;
    }
    Ok(())
}

/// Removes the references between a subvolume and its parent.
///
/// # Errors
/// One of them does not exist.
pub fn remove_root_ref(root_tree: &impl EditItems, pair: SubvolumePair) -> Result<(), NamesError> {
    for key in pair.keys() {
        if !root_tree.remove(&key)? {
            let refused =
                Refused::new("item", "none", "the reference of a subvolume with a parent");
            return Err(corrupt_midway(root_tree, key, refused));
        }
    }
    Ok(())
}
