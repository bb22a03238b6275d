//! Reads extended attributes: the value of a name, and the list of names.

use crate::error::{NamesError, corrupt};
use butternut_format::checksum::name_hash;
use butternut_format::dir::DirEntries;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::Ino;
use butternut_tree::Tree;

/// Returns the value of an attribute, or `None` if the inode has no attribute of that name.
pub fn xattr(tree: &Tree, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, NamesError> {
    let key = Key::new(ino.0, ItemType::XATTR_ITEM, name_hash(name));
    let Some(item) = tree.find(&key)? else { return Ok(None) };
    for entry in DirEntries::new(item.data()) {
        let entry = entry.map_err(|refused| corrupt(tree.id(), key, refused))?;
        if entry.name == name {
            return Ok(Some(entry.data.to_vec()));
        }
    }
    Ok(None)
}

/// Returns the names of all attributes of an inode, in the order of their hashes.
///
/// # Errors
/// [`NamesError::TooMany`] if there are more than `limit`.
pub fn xattr_names(tree: &Tree, ino: Ino, limit: usize) -> Result<Vec<Vec<u8>>, NamesError> {
    let mut names = Vec::new();
    let mut cursor = tree.cursor();
    cursor.seek(&Key::new(ino.0, ItemType::XATTR_ITEM, 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid != ino.0 || key.item_type != ItemType::XATTR_ITEM {
            break;
        }
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|refused| corrupt(tree.id(), key, refused))?;
            if names.len() >= limit {
                return Err(NamesError::TooMany { what: "attributes of one inode", limit });
            }
            names.push(entry.name.to_vec());
        }
        cursor.advance()?;
    }
    Ok(names)
}
