//! The references of an inode: which directories hold it under which names, in both forms.
//!
//! ```text
//! (ino, INODE_REF, dir)                         the names in one directory, while they fit
//! (ino, INODE_EXTREF, hash of dir and name)     each name that did not
//! ```
//!
//! The second form needs the feature extended-iref. A name that fits in neither is refused before
//! anything is changed.

use crate::error::{NamesError, corrupt};
use crate::items::Edit;
use butternut_format::checksum::extref_hash;
use butternut_format::inode_ref::{
    InodeExtref, InodeExtrefs, InodeRef, InodeRefs, without_extref, without_ref,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::Ino;

/// Adds the reference from `ino` to its name in `parent`.
pub(crate) fn add(
    edit: &impl Edit,
    ino: Ino,
    parent: Ino,
    reference: &InodeRef<'_>,
) -> Result<(), NamesError> {
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    let mut item = Vec::new();
    reference.append_to(&mut item);
    if edit.insert(&key, &item)? {
        return Ok(());
    }
    let mut shared = edit.find(&key)?.unwrap_or_default();
    for entry in InodeRefs::new(&shared) {
        let entry = entry.map_err(|refused| corrupt(edit.tree_id(), key, refused))?;
        if entry.name == reference.name {
            return Err(NamesError::Exists);
        }
    }
    shared.extend_from_slice(&item);
    if shared.len() <= edit.limits().item_bytes_max {
        return Ok(edit.put(&key, &shared)?);
    }
    let InodeRef { index, name } = *reference;
    add_extended(edit, ino, &InodeExtref { parent, index, name })
}

fn add_extended(edit: &impl Edit, ino: Ino, reference: &InodeExtref<'_>) -> Result<(), NamesError> {
    let limits = edit.limits();
    if !limits.extended_refs {
        return Err(NamesError::TooManyLinks);
    }
    let key = extended_key(ino, reference.parent, reference.name);
    let mut item = Vec::new();
    reference.append_to(&mut item);
    if edit.insert(&key, &item)? {
        return Ok(());
    }
    let mut shared = edit.find(&key)?.unwrap_or_default();
    for entry in InodeExtrefs::new(&shared) {
        let entry = entry.map_err(|refused| corrupt(edit.tree_id(), key, refused))?;
        if entry.parent == reference.parent && entry.name == reference.name {
            return Err(NamesError::Exists);
        }
    }
    shared.extend_from_slice(&item);
    if shared.len() > limits.item_bytes_max {
        return Err(NamesError::TooManyLinks);
    }
    Ok(edit.put(&key, &shared)?)
}

/// Takes the reference to a name out, in whichever form it is; the index that the name has.
pub(crate) fn remove(
    edit: &impl Edit,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<u64, NamesError> {
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    let shortened = match edit.find(&key)? {
        Some(item) => without_ref(&item, name)
            .map_err(|refused| corrupt(edit.tree_id(), key, refused))?
            .map(|shortened| (key, shortened)),
        None => None,
    };
    let (key, shortened) = if let Some(found) = shortened {
        found
    } else {
        let key = extended_key(ino, parent, name);
        let item = edit.find(&key)?.ok_or(NamesError::NoEntry)?;
        let shortened = without_extref(&item, parent, name)
            .map_err(|refused| corrupt(edit.tree_id(), key, refused))?;
        (key, shortened.ok_or(NamesError::NoEntry)?)
    };
    if shortened.item.is_empty() {
        edit.remove(&key)?;
    } else {
        edit.put(&key, &shortened.item)?;
    }
    Ok(shortened.index)
}

fn extended_key(ino: Ino, parent: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent.0, name))
}
