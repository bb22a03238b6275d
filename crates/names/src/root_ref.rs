//! The references between a subvolume and the one it hangs in: written in the root tree, both ways
//! at once.

use crate::error::{NamesError, corrupt_midway};
use crate::items::Edit;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::root_ref::RootRef;
use butternut_format::units::TreeId;

/// A subvolume, and the one it hangs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hanging {
    pub child: TreeId,
    pub parent: TreeId,
}

impl Hanging {
    fn keys(self) -> [Key; 2] {
        [
            Key::new(self.parent.0, ItemType::ROOT_REF, self.child.0),
            Key::new(self.child.0, ItemType::ROOT_BACKREF, self.parent.0),
        ]
    }
}

/// Writes where a subvolume hangs, anew or in place of where it hung in the same parent.
pub fn put_root_ref(
    root_tree: &impl Edit,
    hanging: Hanging,
    reference: &RootRef<'_>,
) -> Result<(), NamesError> {
    let item = reference.to_bytes();
    for key in hanging.keys() {
        root_tree.put(&key, &item)?;
    }
    Ok(())
}

/// Takes the references out.
pub fn remove_root_ref(root_tree: &impl Edit, hanging: Hanging) -> Result<(), NamesError> {
    for key in hanging.keys() {
        if !root_tree.remove(&key)? {
            let refused = Refused::new("item", "none", "the reference of a subvolume that hangs");
            return Err(corrupt_midway(root_tree, key, refused));
        }
    }
    Ok(())
}
