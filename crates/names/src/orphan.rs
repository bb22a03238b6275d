//! Orphans: inodes without a name that are still open. Their items are what the next open of the
//! volume finds, should this one end without deleting them.

use crate::error::NamesError;
use crate::items::{Edit, Look};
use butternut_format::key::ItemType;
use butternut_format::orphan::{ORPHAN_OBJECTID, orphan_key};
use butternut_format::units::Ino;

/// Marks an inode as an orphan. It may be one already.
pub fn add_orphan(edit: &impl Edit, ino: Ino) -> Result<(), NamesError> {
    edit.insert(&orphan_key(ino.0), &[])?;
    Ok(())
}

/// Takes the mark away; whether there was one.
pub fn remove_orphan(edit: &impl Edit, ino: Ino) -> Result<bool, NamesError> {
    Ok(edit.remove(&orphan_key(ino.0))?)
}

/// The orphans of a subvolume from an inode number on, in order, at most `limit`.
pub fn orphans(tree: &impl Look, from: Ino, limit: usize) -> Result<Vec<Ino>, NamesError> {
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
