//! Orphan items: marks of inodes that have no name and are still in use. If the volume is closed
//! before an orphan is deleted, the next open finds its item and deletes it.

use crate::error::NamesError;
use crate::items::{EditItems, ReadItems};
use butternut_format::key::ItemType;
use butternut_format::orphan::{ORPHAN_OBJECTID, orphan_key};
use butternut_format::units::Ino;

/// Inserts the orphan item of an inode, if there is none.
pub fn add_orphan(edit: &impl EditItems, ino: Ino) -> Result<(), NamesError> {
    Ok(edit.put(&orphan_key(ino.0), &[])?)
}

/// Removes the orphan item of an inode. Returns whether there was one.
pub fn remove_orphan(edit: &impl EditItems, ino: Ino) -> Result<bool, NamesError> {
    Ok(edit.remove(&orphan_key(ino.0))?)
}

/// Returns the orphans of a subvolume from an inode number on, in rising order, at most `limit`.
pub fn orphans(tree: &impl ReadItems, from: Ino, limit: usize) -> Result<Vec<Ino>, NamesError> {
    let mut found = Vec::new();
    let mut next = Some(orphan_key(from.0));
    while let Some(from) = next.filter(|_| found.len() < limit) {
        let Some((key, _)) = tree.first_from(&from)? else { break };
        if key.objectid != ORPHAN_OBJECTID || key.item_type != ItemType::ORPHAN_ITEM {
            break;
        }
        found.push(Ino(key.offset));
        next = key.successor();
    }
    Ok(found)
}
