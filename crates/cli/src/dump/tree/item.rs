//! Prints the contents of items, by the type in their key.
//!
//! Items have been verified when their block was read. If an item is shorter than its structure, as
//! in older formats, the missing fields read as zero.

mod balance;
mod device;
mod extent;
mod inode;
mod names;
mod quota;
mod raw;
mod root;
mod space;

pub(in crate::dump) use device::chunk;
pub(in crate::dump) use raw::padded;

use super::render::Style;
use butternut_format::key::{ItemType, Key};
use butternut_format::log_item::RawDirLogItem;
use std::io::{self, Write};

/// Prints the lines after the first line of an item.
pub(super) fn print(key: Key, data: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    match key.item_type {
        ItemType::INODE_ITEM => inode::inode(data, out),
        ItemType::EXTENT_DATA => inode::file_extent(data, out),
        ItemType::INODE_REF => names::inode_refs(data, style, out),
        ItemType::INODE_EXTREF => names::inode_extrefs(data, style, out),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            names::entries(data, style, out)
        }
        ItemType::ROOT_REF => names::root_ref("ref", data, out),
        ItemType::ROOT_BACKREF => names::root_ref("backref", data, out),
        ItemType::STRING_ITEM => names::string(data, out),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => {
            writeln!(out, "\t\tdir log end {}", padded::<RawDirLogItem>(data).end)
        }
        ItemType::ORPHAN_ITEM => writeln!(out, "\t\torphan item"),
        ItemType::ROOT_ITEM => root::root(data, out),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => root::uuid(data, out),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent::extent(key, data, out),
        ItemType::EXTENT_OWNER_REF
        | ItemType::TREE_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::SHARED_DATA_REF
        | extent::EXTENT_REF_V0 => extent::keyed(key.item_type, data, out),
        space::CSUM_ITEM => writeln!(out, "\t\tcsum item"),
        ItemType::EXTENT_CSUM => space::checksums(key, data, style, out),
        ItemType::BLOCK_GROUP_ITEM => space::block_group(data, out),
        ItemType::FREE_SPACE_INFO => space::free_space_info(data, out),
        ItemType::FREE_SPACE_EXTENT => writeln!(out, "\t\tfree space extent"),
        ItemType::FREE_SPACE_BITMAP => writeln!(out, "\t\tfree space bitmap"),
        ItemType(0) if key.objectid == butternut_format::free_space::FREE_SPACE_OBJECTID => {
            space::cache_header(data, out)
        }
        ItemType::CHUNK_ITEM => device::chunk(data, out),
        ItemType::DEV_ITEM => device::device(data, out),
        ItemType::DEV_EXTENT => device::device_extent(data, out),
        ItemType::RAID_STRIPE => device::raid_stripe(data, out),
        ItemType::DEV_REPLACE => device::replace(data, out),
        ItemType::PERSISTENT_ITEM => device::persistent(key, data, out),
        ItemType::TEMPORARY_ITEM => balance::temporary(key, data, out),
        ItemType::QGROUP_STATUS => quota::status(data, style, out),
        ItemType::QGROUP_INFO => quota::info(data, out),
        ItemType::QGROUP_LIMIT => quota::limit(data, out),
        _ => Ok(()),
    }
}
