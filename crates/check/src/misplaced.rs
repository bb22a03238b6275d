//! Reports items in trees where their type does not belong.
//!
//! Unknown types are accepted, since a later feature may have written them.

use crate::blocks::{Block, Reader, block_at};
use crate::finding::Kind;
use crate::walk::Survey;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;

/// All known item types.
const KNOWN: [ItemType; 41] = [
    ItemType::INODE_ITEM,
    ItemType::INODE_REF,
    ItemType::INODE_EXTREF,
    ItemType::XATTR_ITEM,
    ItemType::VERITY_DESC_ITEM,
    ItemType::VERITY_MERKLE_ITEM,
    ItemType::ORPHAN_ITEM,
    ItemType::DIR_LOG_ITEM,
    ItemType::DIR_LOG_INDEX,
    ItemType::DIR_ITEM,
    ItemType::DIR_INDEX,
    ItemType::EXTENT_DATA,
    ItemType::EXTENT_CSUM,
    ItemType::ROOT_ITEM,
    ItemType::ROOT_BACKREF,
    ItemType::ROOT_REF,
    ItemType::EXTENT_ITEM,
    ItemType::METADATA_ITEM,
    ItemType::EXTENT_OWNER_REF,
    ItemType::TREE_BLOCK_REF,
    ItemType::EXTENT_DATA_REF,
    ItemType::SHARED_BLOCK_REF,
    ItemType::SHARED_DATA_REF,
    ItemType::BLOCK_GROUP_ITEM,
    ItemType::FREE_SPACE_INFO,
    ItemType::FREE_SPACE_EXTENT,
    ItemType::FREE_SPACE_BITMAP,
    ItemType::DEV_EXTENT,
    ItemType::DEV_ITEM,
    ItemType::CHUNK_ITEM,
    ItemType::QGROUP_STATUS,
    ItemType::QGROUP_INFO,
    ItemType::QGROUP_LIMIT,
    ItemType::QGROUP_RELATION,
    ItemType::TEMPORARY_ITEM,
    ItemType::PERSISTENT_ITEM,
    ItemType::DEV_REPLACE,
    ItemType::UUID_SUBVOL,
    ItemType::UUID_RECEIVED_SUBVOL,
    ItemType::STRING_ITEM,
    ItemType::RAID_STRIPE,
];

/// Reports an item whose type does not belong in the tree.
pub(crate) fn misplaced(reader: &Reader<'_>, tree: TreeId, leaf: &Block<'_>, key: Key) {
    if KNOWN.contains(&key.item_type) {
        let place = block_at(tree.0, leaf.logical());
        let want = "none of this type in such a tree";
        reader.sink().add(Kind::ItemMisplaced, place, "item", key, want);
    }
}

/// Checks only the item types of a tree.
pub(crate) struct KeysOnly<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) tree: TreeId,
    /// The types that belong in the tree.
    pub(crate) own: &'a [ItemType],
}

impl Survey for KeysOnly<'_> {
    type Out = ();

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) {
        for key in (0..leaf.len()).filter_map(|slot| leaf.key(slot)) {
            if !self.own.contains(&key.item_type) {
                misplaced(self.reader, self.tree, leaf, key);
            }
        }
    }

    fn join(&self, _left: &mut (), _right: ()) {}
}
