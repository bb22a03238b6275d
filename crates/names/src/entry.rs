//! The two items of a directory entry: by hash of the name and by index.
//!
//! ```text
//! (dir, DIR_ITEM, hash of the name)   for lookup; names whose hashes collide share the item
//! (dir, DIR_INDEX, index)             for listing
//! ```
//!
//! A name that does not fit into the item of its hash is refused before anything is changed.

use crate::error::{NamesError, corrupt, corrupt_midway};
use crate::items::{EditItems, Limits, ReadItems};
use crate::lookup::{Found, Target};
use butternut_format::checksum::name_hash;
use butternut_format::dir::{
    DirEntries, DirEntry, EntryKind, NAME_BYTES_MAX, check_entry_name, without_entry,
};
use butternut_format::inode::FileKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino, TreeId};
use butternut_tree::Alter;

/// A name to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewName<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// The position of the entry in the listing; see [`next_index`](crate::next_index).
    pub index: u64,
    /// The target of the name.
    pub found: Found,
    /// The generation of the running transaction.
    pub generation: Generation,
}

impl NewName<'_> {
    fn item(&self) -> Vec<u8> {
        let location = match self.found.target {
            Target::Inode(ino) => Key::new(ino.0, ItemType::INODE_ITEM, 0),
            Target::Subvolume(id) => Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX),
        };
        let kind = EntryKind::File(self.found.kind);
        let (transid, name) = (self.generation, self.name);
        DirEntry { location, transid, kind, name, data: &[] }.to_bytes()
    }
}

/// Checks a new name.
pub(crate) fn check_new(name: &[u8]) -> Result<(), NamesError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NamesError::NameTooLong);
    }
    check_entry_name(name).map_err(NamesError::BadName)
}

pub(crate) fn hash_key(dir: Ino, name: &[u8]) -> Key {
    Key::new(dir.0, ItemType::DIR_ITEM, name_hash(name))
}

fn index_key(dir: Ino, index: u64) -> Key {
    Key::new(dir.0, ItemType::DIR_INDEX, index)
}

/// Adds an entry. The directory must have no entry of that name.
pub(crate) fn add(edit: &impl EditItems, new: &NewName<'_>) -> Result<(), NamesError> {
    let (key, item) = (hash_key(new.dir, new.name), new.item());
    let limit = edit.limits().item_bytes_max;
    let mut verdict = Ok(());
    edit.alter(
        &key,
        &mut |shared| match with(shared.unwrap_or_default(), new.name, &item, limit) {
            Ok(item) => Alter::Put(item),
            Err(refused) => {
                verdict = Err(refused);
                Alter::Keep
            }
        },
    )?;
    verdict.map_err(|refused| refused.at(edit.edited_tree(), key))?;
    add_index(edit, new, &item)
}

/// Checks that a directory takes an entry of this name, so that adding it is not refused as long as
/// the directory stays as it is.
///
/// # Errors
/// [`NamesError::Exists`], [`NamesError::Crowded`], or a name that no entry has; a block cannot be
/// read.
pub fn check_addable(
    tree: &impl ReadItems,
    limits: Limits,
    dir: Ino,
    name: &[u8],
) -> Result<(), NamesError> {
    check_new(name)?;
    let key = hash_key(dir, name);
    let shared = tree.find(&key)?.unwrap_or_default();
    let found = Found { target: Target::Inode(dir), kind: FileKind::Directory };
    let new = NewName { dir, name, index: 0, found, generation: Generation(0) };
    let added = with(&shared, name, &new.item(), limits.item_bytes_max);
    added.map(drop).map_err(|refused| refused.at(tree.tree_id(), key))
}

/// Returns an item with one more entry.
fn with(shared: &[u8], name: &[u8], entry: &[u8], limit: usize) -> Result<Vec<u8>, Full> {
    for other in DirEntries::new(shared) {
        if other.map_err(Full::Corrupt)?.name == name {
            return Err(Full::Exists);
        }
    }
    if shared.len().saturating_add(entry.len()) > limit {
        return Err(Full::Crowded);
    }
    Ok([shared, entry].concat())
}

/// The reason why an entry cannot be added to an item.
enum Full {
    Exists,
    Crowded,
    Corrupt(Refused),
}

impl Full {
    fn at(self, tree: TreeId, key: Key) -> NamesError {
        match self {
            Self::Exists => NamesError::Exists,
            Self::Crowded => NamesError::Crowded,
            Self::Corrupt(refused) => corrupt(tree, key, refused),
        }
    }
}

/// Replaces the target and the index of an entry. The caller has looked the entry up, so its
/// absence is corruption.
pub(crate) fn replace(
    edit: &impl EditItems,
    new: &NewName<'_>,
    old_index: u64,
) -> Result<(), NamesError> {
    let item = new.item();
    replace_in_item(edit, new.dir, new.name, &item)?;
    remove_index(edit, new.dir, new.name, old_index)?;
    add_index(edit, new, &item)
}

/// Replaces the target of an entry in place, at the index that it has: no node on the way to it is
/// split, as an insertion might do. The caller has looked the entry up, so its absence is
/// corruption.
///
/// # Errors
/// [`NamesError::Tree`]: a block cannot be read or copied, or an item lacks the entry.
pub fn retarget(edit: &impl EditItems, new: &NewName<'_>) -> Result<(), NamesError> {
    let item = new.item();
    for key in [hash_key(new.dir, new.name), index_key(new.dir, new.index)] {
        let mut is_replaced = false;
        edit.update(&key, &mut |shared| is_replaced = replace_bytes(shared, new.name, &item))?;
        if !is_replaced {
            let refused = Refused::new("entry", "none, or a longer one", "one of that name");
            return Err(corrupt_midway(edit, key, refused));
        }
    }
    Ok(())
}

/// Replaces the entry of a name by one of the same length. Returns `false` if there is none.
fn replace_bytes(shared: &mut [u8], name: &[u8], item: &[u8]) -> bool {
    let (mut at, mut range) = (0_usize, None);
    for entry in DirEntries::new(shared).map_while(Result::ok) {
        let end = at.saturating_add(entry.item_bytes());
        if entry.name == name {
            range = Some(at..end);
            break;
        }
        at = end;
    }
    let place = range.and_then(|range| shared.get_mut(range));
    match place.filter(|place| place.len() == item.len()) {
        Some(place) => {
            place.copy_from_slice(item);
            true
        }
        None => false,
    }
}

/// Removes an entry. The caller has looked the entry up, so its absence is corruption.
pub(crate) fn remove(
    edit: &impl EditItems,
    dir: Ino,
    name: &[u8],
    index: u64,
) -> Result<(), NamesError> {
    replace_in_item(edit, dir, name, &[])?;
    remove_index(edit, dir, name, index)
}

/// Removes an entry from its item, and appends `instead` to the item.
fn replace_in_item(
    edit: &impl EditItems,
    dir: Ino,
    name: &[u8],
    instead: &[u8],
) -> Result<(), NamesError> {
    let key = hash_key(dir, name);
    let mut verdict = Ok(());
    edit.alter(&key, &mut |shared| {
        let missing = || Refused::new("entry", "none", "the name that a reference has");
        let rest = without_entry(shared.unwrap_or_default(), name);
        match rest.and_then(|rest| rest.ok_or_else(missing)) {
            Ok(mut rest) => {
                rest.extend_from_slice(instead);
                if rest.is_empty() { Alter::Remove } else { Alter::Put(rest) }
            }
            Err(refused) => {
                verdict = Err(refused);
                Alter::Keep
            }
        }
    })?;
    verdict.map_err(|refused| corrupt_midway(edit, key, refused))
}

/// Returns whether a directory lists a name under an index.
pub(crate) fn is_listed_at(
    tree: &impl ReadItems,
    dir: Ino,
    name: &[u8],
    index: u64,
) -> Result<bool, NamesError> {
    Ok(tree.find(&index_key(dir, index))?.is_some_and(|item| is_listed(&item, name)))
}

/// Returns the index of a name by a search of the whole directory. For entries without a reference
/// that holds the index: subvolumes that are referenced elsewhere, and damaged directories.
pub fn find_index(tree: &impl ReadItems, dir: Ino, name: &[u8]) -> Result<Option<u64>, NamesError> {
    let mut next = Some(index_key(dir, 0));
    while let Some(from) = next {
        let Some((key, data)) = tree.first_from(&from)? else { return Ok(None) };
        if key.objectid != dir.0 || key.item_type != ItemType::DIR_INDEX {
            return Ok(None);
        }
        for entry in DirEntries::new(&data) {
            let entry = entry.map_err(|refused| corrupt(tree.tree_id(), key, refused))?;
            if entry.name == name {
                return Ok(Some(key.offset));
            }
        }
        next = key.successor();
    }
    Ok(None)
}

fn add_index(edit: &impl EditItems, new: &NewName<'_>, item: &[u8]) -> Result<(), NamesError> {
    let key = index_key(new.dir, new.index);
    if edit.insert(&key, item)? {
        return Ok(());
    }
    Err(corrupt_midway(edit, key, Refused::new("index", "taken", "above all in use")))
}

/// Removes an entry from the listing of its directory. A damaged directory may have lost the item,
/// and may have given its index to another name, whose item stays. The entry is removed all the
/// same.
fn remove_index(
    edit: &impl EditItems,
    dir: Ino,
    name: &[u8],
    index: u64,
) -> Result<(), NamesError> {
    edit.alter(&index_key(dir, index), &mut |item| {
        if item.is_some_and(|item| is_listed(item, name)) { Alter::Remove } else { Alter::Keep }
    })?;
    Ok(())
}

fn is_listed(item: &[u8], name: &[u8]) -> bool {
    DirEntries::new(item).map_while(Result::ok).any(|entry| entry.name == name)
}
