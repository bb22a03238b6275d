//! Reads the references between subvolumes and their parents in the root tree.
//!
//! ```text
//! (parent, ROOT_REF, child)      the parent's directory and name, one for each child
//! (child, ROOT_BACKREF, parent)  the same data, found by the child
//! (6, DIR_ITEM, hash "default")  the subvolume that a mount without options shows
//! ```
//!
//! A snapshot copies the directory entries of the subvolumes inside its source, but not these
//! references: [`is_referenced_at`] distinguishes a real entry from such a copy.

use crate::error::{NamesError, corrupt};
use crate::lookup::{Target, lookup};
use butternut_format::key::{ItemType, Key};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::Tree;

/// The directory of the root tree that holds the entry `default`.
const ROOT_TREE_DIRECTORY: Ino = Ino(6);

/// The parent of a subvolume, and its entry there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeLink {
    pub child: TreeId,
    pub parent: TreeId,
    pub dir: Ino,
    /// The index of the entry in `dir`.
    pub index: u64,
    pub name: Vec<u8>,
}

/// Returns the parent of `child`, or `None` for the top level and for deleted subvolumes.
pub fn parent_link(root_tree: &Tree, child: TreeId) -> Result<Option<SubvolumeLink>, NamesError> {
    let mut cursor = root_tree.cursor();
    cursor.seek(&Key::new(child.0, ItemType::ROOT_BACKREF, 0))?;
    let Some((key, data)) = cursor.item_parts() else { return Ok(None) };
    if key.objectid != child.0 || key.item_type != ItemType::ROOT_BACKREF {
        return Ok(None);
    }
    link(root_tree, key, data, child, TreeId(key.offset)).map(Some)
}

/// Returns the subvolumes whose parent is `parent`.
///
/// # Errors
/// [`NamesError::TooMany`] if there are more than `limit`.
pub fn children(
    root_tree: &Tree,
    parent: TreeId,
    limit: usize,
) -> Result<Vec<SubvolumeLink>, NamesError> {
    let mut found = Vec::new();
    let mut cursor = root_tree.cursor();
    cursor.seek(&Key::new(parent.0, ItemType::ROOT_REF, 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid != parent.0 || key.item_type != ItemType::ROOT_REF {
            break;
        }
        if found.len() >= limit {
            return Err(NamesError::TooMany { what: "subvolumes in one subvolume", limit });
        }
        found.push(link(root_tree, key, data, TreeId(key.offset), parent)?);
        cursor.advance()?;
    }
    Ok(found)
}

/// Returns whether the root tree has `child` in `parent`, as `name` in `dir`.
pub fn is_referenced_at(
    root_tree: &Tree,
    parent: TreeId,
    child: TreeId,
    dir: Ino,
    name: &[u8],
) -> Result<bool, NamesError> {
    let key = Key::new(parent.0, ItemType::ROOT_REF, child.0);
    let Some(item) = root_tree.find(&key)? else { return Ok(false) };
    let reference =
        RootRef::check(item.data()).map_err(|refused| corrupt(root_tree.id(), key, refused))?;
    Ok(reference.dir == dir && reference.name == name)
}

/// Returns the default subvolume, if one is set.
pub fn default_subvolume(root_tree: &Tree) -> Result<Option<TreeId>, NamesError> {
    Ok(match lookup(root_tree, ROOT_TREE_DIRECTORY, b"default")?.map(|found| found.target) {
        Some(Target::Subvolume(id)) => Some(id),
        Some(Target::Inode(_)) | None => None,
    })
}

fn link(
    root_tree: &Tree,
    key: Key,
    data: &[u8],
    child: TreeId,
    parent: TreeId,
) -> Result<SubvolumeLink, NamesError> {
    let reference =
        RootRef::check(data).map_err(|refused| corrupt(root_tree.id(), key, refused))?;
    let RootRef { dir, index, name } = reference;
    Ok(SubvolumeLink { child, parent, dir, index, name: name.to_vec() })
}
