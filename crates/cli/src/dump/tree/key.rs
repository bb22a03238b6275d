//! Formats keys, with names for known object ids and types.

use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use std::fmt;

/// Shift of the level in the id of a quota group.
const QGROUP_LEVEL_SHIFT: u32 = 48;
const FIRST_CHUNK_TREE: u64 = 256;
const BALANCE: u64 = u64::MAX - 3;
const ORPHAN: u64 = u64::MAX - 4;
const FREE_SPACE: u64 = u64::MAX - 10;
const FREE_INO: u64 = u64::MAX - 11;
const CSUM_CHANGE: u64 = u64::MAX - 12;
const MULTIPLE: u64 = u64::MAX - 254;

/// Displays a key as `key (FS_TREE ROOT_ITEM 0)`.
pub(in crate::dump) struct KeyText(pub(in crate::dump) Key);

/// Displays an object id, by name if it has one in keys of this type.
pub(super) struct ObjectIdText {
    pub(super) objectid: u64,
    pub(super) item_type: ItemType,
}

/// Displays a type by name, or as `UNKNOWN.` and its number.
struct TypeText(ItemType);

/// Displays a quota group as `level/id`.
struct QgroupText(u64);

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { objectid, item_type, offset } = self.0;
        write!(f, "key ({} ", ObjectIdText { objectid, item_type })?;
        if item_type == ItemType(0) && objectid == FREE_SPACE {
            f.write_str("UNTYPED")?;
        } else {
            write!(f, "{}", TypeText(item_type))?;
        }
        match item_type {
            ItemType::QGROUP_RELATION | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => {
                write!(f, " {})", QgroupText(offset))
            }
            ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                write!(f, " {offset:#018x})")
            }
            // The offset of a relocation tree's root item is the id of the relocated tree.
            ItemType::ROOT_ITEM if objectid == TreeId::TREE_RELOCATION.0 => {
                write!(f, " {})", ObjectIdText { objectid: offset, item_type })
            }
            ItemType::ROOT_ITEM => write!(f, " {offset})"),
            _ if offset == u64::MAX => f.write_str(" -1)"),
            _ => write!(f, " {offset})"),
        }
    }
}

impl fmt::Display for ObjectIdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objectid = self.objectid;
        match self.item_type {
            ItemType::PERSISTENT_ITEM if objectid == 0 => return f.write_str("DEV_STATS"),
            ItemType::PERSISTENT_ITEM | ItemType::DEV_EXTENT => return write!(f, "{objectid}"),
            ItemType::QGROUP_RELATION => return QgroupText(objectid).fmt(f),
            ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                return write!(f, "{objectid:#018x}");
            }
            ItemType::DEV_ITEM if objectid == 1 => return f.write_str("DEV_ITEMS"),
            ItemType::CHUNK_ITEM if objectid == FIRST_CHUNK_TREE => {
                return f.write_str("FIRST_CHUNK_TREE");
            }
            _ => {}
        }
        match objectid_name(objectid) {
            Some(name) => f.write_str(name),
            None => write!(f, "{objectid}"),
        }
    }
}

impl fmt::Display for QgroupText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, id) = (self.0 >> QGROUP_LEVEL_SHIFT, self.0 & ((1 << QGROUP_LEVEL_SHIFT) - 1));
        write!(f, "{level}/{id}")
    }
}

fn objectid_name(objectid: u64) -> Option<&'static str> {
    Some(match objectid {
        1 => "ROOT_TREE",
        2 => "EXTENT_TREE",
        3 => "CHUNK_TREE",
        4 => "DEV_TREE",
        5 => "FS_TREE",
        6 => "ROOT_TREE_DIR",
        7 => "CSUM_TREE",
        8 => "QUOTA_TREE",
        9 => "UUID_TREE",
        10 => "FREE_SPACE_TREE",
        11 => "BLOCK_GROUP_TREE",
        12 => "RAID_STRIPE_TREE",
        BALANCE => "BALANCE",
        ORPHAN => "ORPHAN",
        EXTENT_CSUM_OBJECTID => "EXTENT_CSUM",
        FREE_SPACE => "FREE_SPACE",
        FREE_INO => "FREE_INO",
        CSUM_CHANGE => "CSUM_CHANGE",
        MULTIPLE => "MULTIPLE",
        u64::MAX => "-1",
        _ => match TreeId(objectid) {
            TreeId::TREE_LOG => "TREE_LOG",
            TreeId::TREE_LOG_FIXUP => "LOG_FIXUP",
            TreeId::TREE_RELOCATION => "TREE_RELOC",
            TreeId::DATA_RELOCATION => "DATA_RELOC_TREE",
            _ => return None,
        },
    })
}

/// Returns the name of a tree for its heading.
pub(super) fn tree_name(objectid: u64) -> &'static str {
    match TreeId(objectid) {
        TreeId::ROOT => "root",
        TreeId::EXTENT => "extent",
        TreeId::CHUNK => "chunk",
        TreeId::DEVICE => "device",
        TreeId::FS => "fs",
        TreeId::ROOT_DIR => "directory",
        TreeId::CHECKSUM => "checksum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::RAID_STRIPE => "raid stripe",
        TreeId(ORPHAN) => "orphan",
        TreeId::TREE_LOG => "log",
        TreeId::TREE_LOG_FIXUP => "log fixup",
        TreeId::TREE_RELOCATION => "reloc",
        TreeId::DATA_RELOCATION => "data reloc",
        TreeId(EXTENT_CSUM_OBJECTID) => "extent checksum",
        TreeId(MULTIPLE) => "multiple",
        _ => "file",
    }
}

impl fmt::Display for TypeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match type_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "UNKNOWN.{}", self.0.0),
        }
    }
}

fn type_name(item_type: ItemType) -> Option<&'static str> {
    Some(match item_type {
        ItemType::INODE_ITEM => "INODE_ITEM",
        ItemType::INODE_REF => "INODE_REF",
        ItemType::INODE_EXTREF => "INODE_EXTREF",
        ItemType::XATTR_ITEM => "XATTR_ITEM",
        ItemType::VERITY_DESC_ITEM => "VERITY_DESC_ITEM",
        ItemType::VERITY_MERKLE_ITEM => "VERITY_MERKLE_ITEM",
        ItemType::ORPHAN_ITEM => "ORPHAN_ITEM",
        ItemType::DIR_LOG_ITEM => "DIR_LOG_ITEM",
        ItemType::DIR_LOG_INDEX => "DIR_LOG_INDEX",
        ItemType::DIR_ITEM => "DIR_ITEM",
        ItemType::DIR_INDEX => "DIR_INDEX",
        ItemType::EXTENT_DATA => "EXTENT_DATA",
        ItemType(120) => "CSUM_ITEM",
        ItemType::EXTENT_CSUM => "EXTENT_CSUM",
        ItemType::ROOT_ITEM => "ROOT_ITEM",
        ItemType::ROOT_BACKREF => "ROOT_BACKREF",
        ItemType::ROOT_REF => "ROOT_REF",
        ItemType::EXTENT_ITEM => "EXTENT_ITEM",
        ItemType::METADATA_ITEM => "METADATA_ITEM",
        ItemType::EXTENT_OWNER_REF => "EXTENT_OWNER_REF",
        ItemType::TREE_BLOCK_REF => "TREE_BLOCK_REF",
        ItemType::EXTENT_DATA_REF => "EXTENT_DATA_REF",
        ItemType(180) => "EXTENT_REF_V0",
        ItemType::SHARED_BLOCK_REF => "SHARED_BLOCK_REF",
        ItemType::SHARED_DATA_REF => "SHARED_DATA_REF",
        ItemType::BLOCK_GROUP_ITEM => "BLOCK_GROUP_ITEM",
        ItemType::FREE_SPACE_INFO => "FREE_SPACE_INFO",
        ItemType::FREE_SPACE_EXTENT => "FREE_SPACE_EXTENT",
        ItemType::FREE_SPACE_BITMAP => "FREE_SPACE_BITMAP",
        ItemType::DEV_EXTENT => "DEV_EXTENT",
        ItemType::DEV_ITEM => "DEV_ITEM",
        ItemType::CHUNK_ITEM => "CHUNK_ITEM",
        ItemType::RAID_STRIPE => "RAID_STRIPE",
        ItemType::QGROUP_STATUS => "QGROUP_STATUS",
        ItemType::QGROUP_INFO => "QGROUP_INFO",
        ItemType::QGROUP_LIMIT => "QGROUP_LIMIT",
        ItemType::QGROUP_RELATION => "QGROUP_RELATION",
        ItemType::TEMPORARY_ITEM => "TEMPORARY_ITEM",
        ItemType::PERSISTENT_ITEM => "PERSISTENT_ITEM",
        ItemType::DEV_REPLACE => "DEV_REPLACE",
        ItemType::UUID_SUBVOL => "UUID_KEY_SUBVOL",
        ItemType::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL",
        ItemType::STRING_ITEM => "STRING_ITEM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(objectid: u64, item_type: ItemType, offset: u64) -> String {
        KeyText(Key::new(objectid, item_type, offset)).to_string()
    }

    #[test]
    fn object_ids_are_named_by_key_type() {
        assert_eq!(text(1, ItemType::DEV_ITEM, 2), "key (DEV_ITEMS DEV_ITEM 2)");
        assert_eq!(text(1, ItemType::DEV_EXTENT, 2), "key (1 DEV_EXTENT 2)");
        assert_eq!(text(1, ItemType::ROOT_ITEM, 2), "key (ROOT_TREE ROOT_ITEM 2)");
        assert_eq!(text(0, ItemType::PERSISTENT_ITEM, 1), "key (DEV_STATS PERSISTENT_ITEM 1)");
        assert_eq!(text(256, ItemType::CHUNK_ITEM, 0), "key (FIRST_CHUNK_TREE CHUNK_ITEM 0)");
        assert_eq!(text(FREE_SPACE, ItemType(0), 9), "key (FREE_SPACE UNTYPED 9)");
        assert_eq!(text(u64::MAX, ItemType(0), 0), "key (-1 UNKNOWN.0 0)");
    }

    #[test]
    fn offsets_are_formatted_by_key_type() {
        let group = (7 << 48) | 9;
        assert_eq!(text(group, ItemType::QGROUP_RELATION, 5), "key (7/9 QGROUP_RELATION 0/5)");
        assert_eq!(text(5, ItemType::DIR_INDEX, u64::MAX), "key (FS_TREE DIR_INDEX -1)");
        let most = "key (FS_TREE ROOT_ITEM 18446744073709551615)";
        assert_eq!(text(5, ItemType::ROOT_ITEM, u64::MAX), most);
        let reloc = TreeId::TREE_RELOCATION.0;
        assert_eq!(text(reloc, ItemType::ROOT_ITEM, 5), "key (TREE_RELOC ROOT_ITEM FS_TREE)");
        let uuid = "key (0x0000000000000001 UUID_KEY_SUBVOL 0x0000000000000002)";
        assert_eq!(text(1, ItemType::UUID_SUBVOL, 2), uuid);
    }
}
