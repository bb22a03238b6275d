//! The next free inode number of a subvolume, and the next free index of a directory.
//!
//! Both only grow, and are one more than the largest in use. The caller looks each up once and
//! counts on from there, and passes every index that it has counted to [`check_index`].

use crate::error::NamesError;
use crate::items::ReadItems;
use crate::list::INDEX_END;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};

/// The first inode number of a file: 256 is the root directory of the subvolume.
const INO_FIRST: u64 = 257;

/// The last inode number, as in the kernel. It is never allocated.
pub const INO_LAST: u64 = u64::MAX - 256;

/// The first index of an entry: the two below are those of `.` and `..`.
pub const INDEX_FIRST: u64 = 2;

/// Returns the number for the next inode of a subvolume; [`INO_LAST`] if none is left. Then the
/// inodes that exist can still be changed and deleted.
pub fn next_ino(tree: &impl ReadItems) -> Result<Ino, NamesError> {
    let last = tree.last_to(&Key::new(INO_LAST, Key::MAX.item_type, u64::MAX))?;
    let used = last.map_or(0, |(key, _)| key.objectid);
    Ok(Ino(used.saturating_add(1).clamp(INO_FIRST, INO_LAST)))
}

/// Returns the index for the next entry of a directory.
pub fn next_index(tree: &impl ReadItems, dir: Ino) -> Result<u64, NamesError> {
    let last = tree.last_to(&Key::new(dir.0, ItemType::DIR_INDEX, u64::MAX))?;
    let used = last
        .filter(|(key, _)| key.objectid == dir.0 && key.item_type == ItemType::DIR_INDEX)
        .map_or(0, |(key, _)| key.offset);
    check_index(tree.tree_id(), used.saturating_add(1).max(INDEX_FIRST))
}

/// Returns the index for the next entry of a directory of `tree`, if a listing can return it.
pub fn check_index(tree: TreeId, index: u64) -> Result<u64, NamesError> {
    if index < INDEX_END {
        return Ok(index);
    }
    Err(NamesError::NumbersUsedUp { tree, what: "directory indexes" })
}
