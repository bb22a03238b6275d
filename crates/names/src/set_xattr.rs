//! Changes of extended attributes.
//!
//! Attributes whose names' hashes collide share an item. One that is set anew moves to its end, as
//! the kernel has it.
//!
//! What may be set of which inode by whom, and that a value is one the attribute can have, the
//! caller decides; see `property` and `acl`.

use crate::error::{NamesError, corrupt};
use crate::items::Edit;
use butternut_format::checksum::name_hash;
use butternut_format::dir::{
    DirEntry, EntryKind, NAME_BYTES_MAX, RawDirItem, check_xattr_name, without_entry,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino};
use butternut_tree::Alter;

/// What must be so for an attribute to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    #[default]
    Either,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// An attribute and the value it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
}

/// Sets an attribute.
pub fn set_xattr(
    edit: &impl Edit,
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
            Err(refused) => Err(corrupt(edit.tree_id(), key, refused)),
        };
        Alter::Keep
    })?;
    verdict
}

/// An item with the attribute at its end.
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

/// Removes an attribute; `false` where the inode has none of that name.
pub fn remove_xattr(edit: &impl Edit, ino: Ino, name: &[u8]) -> Result<bool, NamesError> {
    let key = xattr_key(ino, name);
    let mut verdict = Ok(false);
    edit.alter(&key, &mut |item| match without_entry(item.unwrap_or_default(), name) {
        Ok(None) => Alter::Keep,
        Ok(Some(rest)) => {
            verdict = Ok(true);
            if rest.is_empty() { Alter::Remove } else { Alter::Put(rest) }
        }
        Err(refused) => {
            verdict = Err(corrupt(edit.tree_id(), key, refused));
            Alter::Keep
        }
    })?;
    verdict
}

/// Bytes of the largest value that an attribute of this name can have.
pub fn xattr_value_bytes_max(edit: &impl Edit, name: &[u8]) -> usize {
    let taken = size_of::<RawDirItem>().saturating_add(name.len());
    edit.limits().item_bytes_max.saturating_sub(taken)
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
