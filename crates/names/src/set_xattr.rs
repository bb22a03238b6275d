//! Sets and removes extended attributes.
//!
//! Attributes whose hashes collide share an item. As in the kernel, an attribute that is set again
//! moves to the end of the item.
//!
//! The caller decides which attributes of an inode may be set, and checks that the value is valid;
//! see `property` and `acl`.

use crate::error::{NamesError, corrupt};
use crate::items::EditItems;
use butternut_format::checksum::name_hash;
use butternut_format::dir::{
    DirEntry, EntryKind, NAME_BYTES_MAX, RawDirItem, check_xattr_name, without_entry,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino};
use butternut_tree::Alter;

/// The condition for setting an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It may exist or not.
    #[default]
    Either,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// An attribute and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
}

/// Sets an attribute.
///
/// # Errors
/// The name is invalid, `how` does not hold, or the item is too large. Nothing is changed then.
pub fn set_xattr(
    edit: &impl EditItems,
    ino: Ino,
    xattr: &Xattr<'_>,
    how: SetXattr,
    generation: Generation,
) -> Result<(), NamesError> {
    let Xattr { name, value } = *xattr;
    if name.len() > NAME_BYTES_MAX {
        return Err(NamesError::NameTooLong);
    }
    check_xattr_name(name).map_err(NamesError::BadName)?;
    let entry = DirEntry {
        location: Key::default(),
        transid: generation,
        kind: EntryKind::Xattr,
        name,
        data: value,
    };
    let limit = edit.limits().item_bytes_max;
    fits(entry.item_bytes(), limit)?;
    let key = xattr_key(ino, name);
    let mut verdict = Ok(());
    edit.alter(&key, &mut |item| {
        verdict = match with(item.unwrap_or_default(), &entry, how, limit) {
            Ok(Ok(item)) => return Alter::Put(item),
            Ok(Err(refused)) => Err(refused),
            Err(refused) => Err(corrupt(edit.edited_tree(), key, refused)),
        };
        Alter::Keep
    })?;
    verdict
}

/// Returns the item with the attribute at its end.
fn with(
    item: &[u8],
    entry: &DirEntry<'_>,
    how: SetXattr,
    limit: usize,
) -> Result<Result<Vec<u8>, NamesError>, Refused> {
    let rest = without_entry(item, entry.name)?;
    let mut item = match (rest, how) {
        (Some(_), SetXattr::Create) => return Ok(Err(NamesError::AttributeExists)),
        (None, SetXattr::Replace) => return Ok(Err(NamesError::NoAttribute)),
        (Some(rest), _) => rest,
        (None, _) => item.to_vec(),
    };
    if let Err(refused) = fits(item.len().saturating_add(entry.item_bytes()), limit) {
        return Ok(Err(refused));
    }
    entry.append_to(&mut item);
    Ok(Ok(item))
}

/// Removes an attribute. Returns `false` if the inode has no attribute of that name.
pub fn remove_xattr(edit: &impl EditItems, ino: Ino, name: &[u8]) -> Result<bool, NamesError> {
    let key = xattr_key(ino, name);
    let mut verdict = Ok(false);
    edit.alter(&key, &mut |item| match without_entry(item.unwrap_or_default(), name) {
        Ok(None) => Alter::Keep,
        Ok(Some(rest)) => {
            verdict = Ok(true);
            if rest.is_empty() { Alter::Remove } else { Alter::Put(rest) }
        }
        Err(refused) => {
            verdict = Err(corrupt(edit.edited_tree(), key, refused));
            Alter::Keep
        }
    })?;
    verdict
}

/// Returns the size of the largest value of an attribute of this name, in bytes.
pub fn xattr_value_bytes_max(edit: &impl EditItems, name: &[u8]) -> usize {
    let overhead = size_of::<RawDirItem>().saturating_add(name.len());
    edit.limits().item_bytes_max.saturating_sub(overhead)
}

fn fits(bytes: usize, limit: usize) -> Result<(), NamesError> {
    if bytes > limit {
        return Err(NamesError::AttributeTooLarge { bytes, limit });
    }
    Ok(())
}

fn xattr_key(ino: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, ItemType::XATTR_ITEM, name_hash(name))
}

#[cfg(test)]
mod tests;
