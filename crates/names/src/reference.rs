//! The references of an inode: its names and their directories, in both forms.
//!
//! ```text
//! (ino, INODE_REF, dir)                         the names in one directory, as long as they fit
//! (ino, INODE_EXTREF, hash of dir and name)     the names that do not fit
//! ```
//!
//! The second form needs the feature extended-iref. A name that fits in neither is refused before
//! anything is changed.

use crate::error::{NamesError, corrupt};
use crate::items::{EditItems, Limits, ReadItems};
use butternut_format::checksum::extref_hash;
use butternut_format::inode_ref::{
    InodeExtref, InodeExtrefs, InodeRef, InodeRefs, Shortened, without_extref, without_ref,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::Alter;

/// Adds the reference from `ino` to its name in `parent`.
pub(crate) fn add(
    edit: &impl EditItems,
    ino: Ino,
    parent: Ino,
    reference: &InodeRef<'_>,
) -> Result<(), NamesError> {
    in_either_form(edit.limits(), ino, parent, reference, |key, longer| extend(edit, key, longer))
}

/// Checks that an inode takes a reference to this name, so that adding it is not refused as long as
/// the references of the inode stay as they are.
///
/// # Errors
/// [`NamesError::TooManyLinks`], [`NamesError::Exists`]; a block cannot be read, or an item is
/// corrupt.
pub fn check_referable(
    tree: &impl ReadItems,
    limits: Limits,
    ino: Ino,
    (parent, name): (Ino, &[u8]),
) -> Result<(), NamesError> {
    in_either_form(limits, ino, parent, &InodeRef { index: 0, name }, |key, longer| {
        let item = tree.find(&key)?.unwrap_or_default();
        fitting(tree.tree_id(), key, longer(&item), limits).map(drop)
    })
}

/// Calls `apply` with the key of an item, and how it becomes longer by a reference: in the first
/// form, and where that does not fit in the second one.
fn in_either_form(
    limits: Limits,
    ino: Ino,
    parent: Ino,
    reference: &InodeRef<'_>,
    apply: impl Fn(Key, &dyn Fn(&[u8]) -> Longer) -> Result<(), NamesError>,
) -> Result<(), NamesError> {
    let InodeRef { index, name } = *reference;
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    match apply(key, &|item| with_ref(item, reference)) {
        Err(NamesError::TooManyLinks) if limits.extended_refs => {
            let reference = InodeExtref { parent, index, name };
            apply(extended_key(ino, parent, name), &|item| with_extref(item, &reference))
        }
        done => done,
    }
}

/// An item with one more reference; `None` if it has the reference.
type Longer = Result<Option<Vec<u8>>, Refused>;

fn with_ref(item: &[u8], reference: &InodeRef<'_>) -> Longer {
    for entry in InodeRefs::new(item) {
        if entry?.name == reference.name {
            return Ok(None);
        }
    }
    let mut item = item.to_vec();
    reference.append_to(&mut item);
    Ok(Some(item))
}

fn with_extref(item: &[u8], reference: &InodeExtref<'_>) -> Longer {
    for entry in InodeExtrefs::new(item) {
        let entry = entry?;
        if (entry.parent, entry.name) == (reference.parent, reference.name) {
            return Ok(None);
        }
    }
    let mut item = item.to_vec();
    reference.append_to(&mut item);
    Ok(Some(item))
}

/// Returns an item that is not too large.
fn fitting(tree: TreeId, key: Key, item: Longer, limits: Limits) -> Result<Vec<u8>, NamesError> {
    match item {
        Ok(Some(item)) if item.len() <= limits.item_bytes_max => Ok(item),
        Ok(Some(_)) => Err(NamesError::TooManyLinks),
        Ok(None) => Err(NamesError::Exists),
        Err(refused) => Err(corrupt(tree, key, refused)),
    }
}

/// Replaces an item with the result of `longer`.
fn extend(
    edit: &impl EditItems,
    key: Key,
    longer: impl Fn(&[u8]) -> Longer,
) -> Result<(), NamesError> {
    let (tree, limits) = (edit.edited_tree(), edit.limits());
    let mut verdict = Ok(());
    edit.alter(
        &key,
        &mut |item| match fitting(tree, key, longer(item.unwrap_or_default()), limits) {
            Ok(item) => Alter::Put(item),
            Err(refused) => {
                verdict = Err(refused);
                Alter::Keep
            }
        },
    )?;
    verdict
}

/// Changes the name and the index of a reference in `parent`. Returns the old index, or `None` if
/// the reference is not in the first form, the item has no space for both, or the item has the new
/// name: nothing is changed then.
pub(crate) fn rename(
    edit: &impl EditItems,
    ino: Ino,
    parent: Ino,
    old: &[u8],
    new: &InodeRef<'_>,
) -> Result<Option<u64>, NamesError> {
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    let limit = edit.limits().item_bytes_max;
    let mut index = None;
    edit.alter(&key, &mut |item| {
        let item = item.unwrap_or_default();
        let fits = item.len().saturating_add(new.item_bytes()) <= limit;
        // A damaged volume may have a reference without an entry.
        let is_there = |entry: InodeRef<'_>| entry.name == new.name;
        let is_taken = InodeRefs::new(item).map_while(Result::ok).any(is_there);
        match without_ref(item, old) {
            Ok(Some(mut shortened)) if fits && !is_taken => {
                index = Some(shortened.index);
                new.append_to(&mut shortened.item);
                Alter::Put(shortened.item)
            }
            _ => Alter::Keep,
        }
    })?;
    Ok(index)
}

/// Removes the reference to a name, in either form. Returns the index of the name.
///
/// # Errors
/// [`NamesError::NoEntry`] if the inode has no such reference.
pub(crate) fn remove(
    edit: &impl EditItems,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<u64, NamesError> {
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    match shorten(edit, key, |item| without_ref(item, name)) {
        Err(NamesError::NoEntry) => shorten(edit, extended_key(ino, parent, name), |item| {
            without_extref(item, parent, name)
        }),
        done => done,
    }
}

/// Returns the index in the reference of an inode to a name, in either form; `None` if there is no
/// such reference. Reads at most two items.
///
/// # Errors
/// A block cannot be read, or an item is corrupt.
pub fn index(
    tree: &impl ReadItems,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<Option<u64>, NamesError> {
    let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
    for entry in InodeRefs::new(&tree.find(&key)?.unwrap_or_default()) {
        let entry = entry.map_err(|refused| corrupt(tree.tree_id(), key, refused))?;
        if entry.name == name {
            return Ok(Some(entry.index));
        }
    }
    let key = extended_key(ino, parent, name);
    for entry in InodeExtrefs::new(&tree.find(&key)?.unwrap_or_default()) {
        let entry = entry.map_err(|refused| corrupt(tree.tree_id(), key, refused))?;
        if entry.parent == parent && entry.name == name {
            return Ok(Some(entry.index));
        }
    }
    Ok(None)
}

/// Returns the number of references that an inode has, in both forms. Stops at the item that brings
/// the number to `limit`.
pub(crate) fn count(tree: &impl ReadItems, ino: Ino, limit: u32) -> Result<u32, NamesError> {
    let mut count: u32 = 0;
    let mut next = Some(Key::new(ino.0, ItemType::INODE_REF, 0));
    while let Some(from) = next.filter(|_| count < limit) {
        let Some((key, item)) = tree.first_from(&from)? else { break };
        let refuse = |refused| corrupt(tree.tree_id(), key, refused);
        if key.objectid != ino.0 {
            break;
        }
        match key.item_type {
            ItemType::INODE_REF => {
                for entry in InodeRefs::new(&item) {
                    entry.map_err(refuse)?;
                    count = count.saturating_add(1);
                }
            }
            ItemType::INODE_EXTREF => {
                for entry in InodeExtrefs::new(&item) {
                    entry.map_err(refuse)?;
                    count = count.saturating_add(1);
                }
            }
            _ => break,
        }
        next = key.successor();
    }
    Ok(count)
}

/// Returns the index of a name if this is an item of references, in either form, that has it.
pub(crate) fn index_of(key: Key, item: &[u8], parent: Ino, name: &[u8]) -> Option<u64> {
    match key.item_type {
        ItemType::INODE_REF if key.offset == parent.0 => {
            let mut entries = InodeRefs::new(item).map_while(Result::ok);
            entries.find(|entry| entry.name == name).map(|entry| entry.index)
        }
        ItemType::INODE_EXTREF => {
            let mut entries = InodeExtrefs::new(item).map_while(Result::ok);
            entries
                .find(|entry| entry.parent == parent && entry.name == name)
                .map(|entry| entry.index)
        }
        _ => None,
    }
}

/// Replaces an item with the result of `shorter`. Returns the index of the removed reference.
fn shorten(
    edit: &impl EditItems,
    key: Key,
    shorter: impl Fn(&[u8]) -> Result<Option<Shortened>, Refused>,
) -> Result<u64, NamesError> {
    let mut verdict = Err(NamesError::NoEntry);
    edit.alter(&key, &mut |item| match shorter(item.unwrap_or_default()) {
        Ok(Some(shortened)) => {
            verdict = Ok(shortened.index);
            let is_last = shortened.item.is_empty();
            if is_last { Alter::Remove } else { Alter::Put(shortened.item) }
        }
        Ok(None) => Alter::Keep,
        Err(refused) => {
            verdict = Err(corrupt(edit.edited_tree(), key, refused));
            Alter::Keep
        }
    })?;
    verdict
}

fn extended_key(ino: Ino, parent: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent.0, name))
}
