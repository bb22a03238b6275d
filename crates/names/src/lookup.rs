//! Looks a name up in its directory.
//!
//! The `DIR_ITEM` of a name is stored under the hash of the name. Names whose hashes collide share
//! the item, and the names in it are compared.

use crate::error::{NamesError, corrupt};
use butternut_format::checksum::name_hash;
use butternut_format::dir::{DirEntries, DirEntry, EntryKind};
use butternut_format::inode::FileKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::Tree;

/// The target of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(Ino),
    /// Another subvolume. Only the root tree knows whether the entry is its place or the copy of
    /// one in a snapshot.
    Subvolume(TreeId),
}

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub target: Target,
    pub kind: FileKind,
}

/// Returns the target of `name` in `dir`, or `None` if there is no such name or no such directory.
pub fn lookup(tree: &Tree, dir: Ino, name: &[u8]) -> Result<Option<Found>, NamesError> {
    let key = Key::new(dir.0, ItemType::DIR_ITEM, name_hash(name));
    let Some(item) = tree.find(&key)? else { return Ok(None) };
    for entry in DirEntries::new(item.data()) {
        let entry = entry.map_err(|refused| corrupt(tree.id(), key, refused))?;
        if entry.name == name {
            return found(&entry).map(Some).map_err(|refused| corrupt(tree.id(), key, refused));
        }
    }
    Ok(None)
}

/// Returns the target and the kind of a directory entry.
pub(crate) fn found(entry: &DirEntry<'_>) -> Result<Found, Refused> {
    let EntryKind::File(kind) = entry.kind else {
        return Err(Refused::new("type", entry.kind.entry_type(), "a file's"));
    };
    let location = entry.location;
    let target = match location.item_type {
        ItemType::INODE_ITEM => Target::Inode(Ino(location.objectid)),
        ItemType::ROOT_ITEM => Target::Subvolume(TreeId(location.objectid)),
        other => return Err(Refused::new("location type", other.0, "an inode or a root")),
    };
    Ok(Found { target, kind })
}
