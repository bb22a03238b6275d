//! The entry of a name in its directory, in both its places: by hash and by index.
//!
//! ```text
//! (dir, DIR_ITEM, hash of the name)   for lookup; names whose hashes collide share the item
//! (dir, DIR_INDEX, index)             for listing
//! ```
//!
//! A name that does not fit beside those with its hash is refused before anything is changed.

use crate::error::{NamesError, corrupt, corrupt_midway};
use crate::items::{Edit, Look};
use crate::lookup::{Found, Target};
use butternut_format::checksum::name_hash;
use butternut_format::dir::{
    DirEntries, DirEntry, EntryKind, NAME_BYTES_MAX, check_name, without_entry,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino, TreeId};
use butternut_tree::Alter;

/// A name that is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewName<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
    /// The entry's place in the listing; see [`next_index`](crate::next_index).
    pub index: u64,
    /// What the name is to lead to.
    pub leads: Found,
    /// The running transaction's.
    pub generation: Generation,
}

impl NewName<'_> {
    fn item(&self) -> Vec<u8> {
        let location = match self.leads.target {
            Target::Inode(ino) => Key::new(ino.0, ItemType::INODE_ITEM, 0),
            Target::Subvolume(id) => Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX),
        };
        let kind = EntryKind::File(self.leads.kind);
        let (transid, name) = (self.generation, self.name);
        DirEntry { location, transid, kind, name, data: &[] }.to_bytes()
    }
}

/// Checks a name that a caller brings.
pub(crate) fn check_new(name: &[u8]) -> Result<(), NamesError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NamesError::NameTooLong);
    }
    check_name(name).map_err(NamesError::BadName)
}

fn hash_key(dir: Ino, name: &[u8]) -> Key {
    Key::new(dir.0, ItemType::DIR_ITEM, name_hash(name))
}

fn index_key(dir: Ino, index: u64) -> Key {
    Key::new(dir.0, ItemType::DIR_INDEX, index)
}

/// Adds an entry whose name is new to the directory.
pub(crate) fn add(edit: &impl Edit, new: &NewName<'_>) -> Result<(), NamesError> {
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
    verdict.map_err(|refused| refused.at(edit.tree_id(), key))?;
    add_index(edit, new, &item)
}

/// An item with one entry more.
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

/// Why an entry does not come to an item.
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

/// Gives an entry another target and another index, under the same name. That it is there its
/// reference has said.
pub(crate) fn replace(
    edit: &impl Edit,
    new: &NewName<'_>,
    old_index: u64,
) -> Result<(), NamesError> {
    let item = new.item();
    take(edit, new.dir, new.name, &item)?;
    remove_index(edit, new.dir, old_index)?;
    add_index(edit, new, &item)
}

/// Takes an entry out. That it is there its reference has said.
pub(crate) fn remove(
    edit: &impl Edit,
    dir: Ino,
    name: &[u8],
    index: u64,
) -> Result<(), NamesError> {
    take(edit, dir, name, &[])?;
    remove_index(edit, dir, index)
}

/// Takes an entry out of its item, and puts another at the item's end.
fn take(edit: &impl Edit, dir: Ino, name: &[u8], instead: &[u8]) -> Result<(), NamesError> {
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

/// The index of a name, found by a walk through the directory. References know it at once; this is
/// for entries that have none: of subvolumes that hang elsewhere.
pub fn find_index(tree: &impl Look, dir: Ino, name: &[u8]) -> Result<Option<u64>, NamesError> {
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

fn add_index(edit: &impl Edit, new: &NewName<'_>, item: &[u8]) -> Result<(), NamesError> {
    let key = index_key(new.dir, new.index);
    if edit.insert(&key, item)? {
        return Ok(());
    }
    Err(corrupt_midway(edit, key, Refused::new("index", "taken", "above all in use")))
}

fn remove_index(edit: &impl Edit, dir: Ino, index: u64) -> Result<(), NamesError> {
    let key = index_key(dir, index);
    if edit.remove(&key)? {
        return Ok(());
    }
    Err(corrupt_midway(edit, key, Refused::new("item", "none", "the entry by its index")))
}
