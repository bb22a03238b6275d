//! Orphans: what must be cleaned up at the next writable mount.
//!
//! An orphan is a key alone, (-5, 48, id), with an empty item. In a subvolume `id` is an inode
//! that was unlinked while open; in the root tree it is a subvolume whose deletion has begun.

use crate::key::{ItemType, Key};

/// The object id of every orphan item.
pub const ORPHAN_OBJECTID: u64 = u64::MAX - 4;

/// The key of the orphan item for `id`.
pub const fn orphan_key(id: u64) -> Key {
    Key::new(ORPHAN_OBJECTID, ItemType::ORPHAN_ITEM, id)
}
