//! Orphan items: inodes and subvolumes that the next writable mount must delete.
//!
//! An orphan item is a key alone, (-5, 48, id), without data. In a subvolume `id` is an inode that
//! was unlinked while open. In the root tree it is a subvolume whose deletion has begun.

use crate::key::{ItemType, Key};

/// The object id of every orphan item.
pub const ORPHAN_OBJECTID: u64 = u64::MAX - 4;

/// Returns the key of the orphan item for `id`.
pub const fn orphan_key(id: u64) -> Key {
    Key::new(ORPHAN_OBJECTID, ItemType::ORPHAN_ITEM, id)
}
