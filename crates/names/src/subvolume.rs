//! What names subvolumes have in the root tree: their parents, the default one, the next id.
//!
//! ```text
//! (parent, ROOT_REF, child)      the parent's directory and name, one for each child
//! (child, ROOT_BACKREF, parent)  the same data, found by the child
//! (6, DIR_ITEM, hash "default")  the subvolume that a mount without options shows
//! ```
//!
//! A snapshot copies the directory entries of the subvolumes inside its source, but not these
//! references: [`is_referenced_at`] distinguishes a real entry from such a copy.

use crate::entry;
use crate::error::{NamesError, corrupt};
use crate::inode::insert_inode;
use crate::items::{EditItems, ReadItems};
use crate::lookup::{Target, lookup};
use crate::reference;
use butternut_format::dir::DirEntries;
use butternut_format::inode::Inode;
use butternut_format::inode_ref::InodeRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Alter, Tree};

/// The directory of the root tree that holds the entry `default`.
const ROOT_TREE_DIRECTORY: Ino = Ino(6);
const DEFAULT_NAME: &[u8] = b"default";

/// The root directory of each subvolume.
const ROOT_DIRECTORY: Ino = Ino(256);

/// The first id of a subvolume below the top-level one (`BTRFS_FIRST_FREE_OBJECTID`).
const SUBVOLUME_FIRST: u64 = 256;
/// The end of the ids of subvolumes, which none of them has: the upper bits of such an id are the
/// level of a quota group.
pub const SUBVOLUME_LAST: u64 = 1 << 48;

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

/// Returns the index under which the directory of a subvolume lists it. It is the one of its
/// reference, except on a damaged volume.
///
/// # Errors
/// A block cannot be read, or an item is corrupt.
pub fn index_of_subvolume(tree: &impl ReadItems, link: &SubvolumeLink) -> Result<u64, NamesError> {
    let SubvolumeLink { dir, index, name, .. } = link;
    if entry::is_listed_at(tree, *dir, name, *index)? {
        return Ok(*index);
    }
    Ok(entry::find_index(tree, *dir, name)?.unwrap_or(*index))
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
    Ok(match lookup(root_tree, ROOT_TREE_DIRECTORY, DEFAULT_NAME)?.map(|found| found.target) {
        Some(Target::Subvolume(id)) => Some(id),
        Some(Target::Inode(_)) | None => None,
    })
}

/// Makes `id` the default subvolume.
///
/// # Errors
/// The volume has no entry for the default subvolume, or it is corrupt; nothing is changed.
pub fn set_default_subvolume(root_tree: &impl EditItems, id: TreeId) -> Result<(), NamesError> {
    let key = entry::hash_key(ROOT_TREE_DIRECTORY, DEFAULT_NAME);
    let location = Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
    let mut verdict = Ok(());
    root_tree.alter(&key, &mut |item| match with_location(item.unwrap_or_default(), location) {
        Ok(item) => Alter::Put(item),
        Err(refused) => {
            verdict = Err(refused);
            Alter::Keep
        }
    })?;
    verdict.map_err(|refused| corrupt(root_tree.edited_tree(), key, refused))
}

/// Returns the item with the default entry leading to `location`.
fn with_location(item: &[u8], location: Key) -> Result<Vec<u8>, Refused> {
    let mut entries = Vec::new();
    let mut is_found = false;
    for entry in DirEntries::new(item) {
        let mut entry = entry?;
        if entry.name == DEFAULT_NAME {
            entry.location = location;
            is_found = true;
        }
        entries.extend(entry.to_bytes());
    }
    require(is_found, "entry default", "none", "one")?;
    Ok(entries)
}

/// Returns the id for the next subvolume: one more than the highest that the root tree has.
///
/// # Errors
/// [`NamesError::NumbersUsedUp`]; a block cannot be read.
pub fn next_subvolume(root_tree: &impl ReadItems) -> Result<TreeId, NamesError> {
    let last = root_tree.last_to(&Key::new(SUBVOLUME_LAST, Key::MAX.item_type, u64::MAX))?;
    let used = last.map_or(0, |(key, _)| key.objectid);
    let next = TreeId(used.saturating_add(1).max(SUBVOLUME_FIRST));
    if next.0 >= SUBVOLUME_LAST {
        let tree = root_tree.tree_id();
        return Err(NamesError::NumbersUsedUp { tree, what: "subvolume ids" });
    }
    Ok(next)
}

/// Inserts the root directory of an empty subvolume.
///
/// # Errors
/// As [`insert_inode`].
pub fn insert_root_directory(edit: &impl EditItems, inode: &Inode) -> Result<(), NamesError> {
    insert_inode(edit, ROOT_DIRECTORY, inode)?;
    let reference = InodeRef { index: 0, name: b".." };
    reference::add(edit, ROOT_DIRECTORY, ROOT_DIRECTORY, &reference)
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
