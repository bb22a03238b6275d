//! The next free number: of an inode in its subvolume, of an entry in its directory.
//!
//! Both only grow, and are one more than the largest in use. They are found once and counted on
//! from there by whoever gives them out.

use crate::error::NamesError;
use crate::items::Look;
use crate::list::INDEX_END;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::Ino;

/// The first inode number that a file can have: 256 is the subvolume's own root directory.
const INO_FIRST: u64 = 257;

/// The last, as the kernel has it; it is never given out.
pub const INO_LAST: u64 = u64::MAX - 256;

/// The first index that an entry can have: the two below are those of `.` and `..`.
pub const INDEX_FIRST: u64 = 2;

/// The number for the next inode of a subvolume.
pub fn next_ino(tree: &impl Look) -> Result<Ino, NamesError> {
    let last = tree.last_to(&Key::new(INO_LAST, Key::MAX.item_type, u64::MAX))?;
    let taken = last.map_or(0, |(key, _)| key.objectid);
    if taken >= INO_LAST {
        return Err(NamesError::NumbersUsedUp { tree: tree.tree_id(), what: "inode numbers" });
    }
    Ok(Ino(taken.saturating_add(1).max(INO_FIRST)))
}

/// The index for the next entry of a directory.
pub fn next_index(tree: &impl Look, dir: Ino) -> Result<u64, NamesError> {
    let last = tree.last_to(&Key::new(dir.0, ItemType::DIR_INDEX, u64::MAX))?;
    let taken = last
        .filter(|(key, _)| key.objectid == dir.0 && key.item_type == ItemType::DIR_INDEX)
        .map_or(0, |(key, _)| key.offset);
    match taken.checked_add(1).filter(|next| *next < INDEX_END) {
        Some(next) => Ok(next.max(INDEX_FIRST)),
        None => Err(NamesError::NumbersUsedUp { tree: tree.tree_id(), what: "directory indexes" }),
    }
}
