//! The laws of what a subvolume and the tree log are made of: inodes, names, xattrs, file extents;
//! and of the small items that other trees keep about subvolumes.
//!
//! 1. What belongs to an inode follows an item of that inode, unless it starts its leaf. Log trees
//!    are excepted: they hold only what changed.
//! 2. An inode's key has an inode number and offset 0; it is at most one generation newer than its
//!    leaf.
//! 3. A `DIR_ITEM`, `XATTR_ITEM` or `INODE_EXTREF` lies under the hash of every name in it.
//! 4. A `DIR_INDEX` holds one entry. Items of names are never empty.
//! 5. A directory's entry leads to an inode or to a subvolume; an attribute's leads nowhere.
//! 6. An attribute fits into a leaf, name and value together.
//! 7. A file extent begins at or after the end of the one in front of it.
//!
//! The laws inside one entry or item are kept by the types: [`Inode`], [`DirEntries`],
//! [`InodeRefs`], [`InodeExtrefs`], [`FileExtent`].

use super::{Around, LeafItem};
use crate::balance::{BALANCE_OBJECTID, RawBalanceItem};
use crate::checksum::{extref_hash, name_hash};
use crate::dir::{DirEntries, DirEntry, EntryKind, RawDirItem};
use crate::file_extent::FileExtent;
use crate::inode::Inode;
use crate::inode_ref::{InodeExtrefs, InodeRefs};
use crate::key::{ItemType, Key};
use crate::log_item::check_dir_log;
use crate::node::RawItem;
use crate::orphan::ORPHAN_OBJECTID;
use crate::refused::{Refused, require};
use crate::units::TreeId;
use crate::uuid::subvolume_ids;
use crate::verity::RawVerityDescriptorItem;

/// Inode numbers that files have.
const INO_MIN: u64 = 256;
const INO_MAX: u64 = u64::MAX - 255;
/// The inode of the root tree's own directory, and of the free inode cache that kernels once kept.
const INO_ROOT_TREE_DIR: u64 = 6;
const INO_FREE_INO: u64 = u64::MAX - 11;

/// Checks one item whose type belongs to a subvolume; others pass.
pub(super) fn item(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    match item.key.item_type {
        ItemType::INODE_ITEM => inode(item, around),
        ItemType::INODE_REF => {
            follows_its_inode(item, around)?;
            inode_refs(item)
        }
        ItemType::INODE_EXTREF => {
            follows_its_inode(item, around)?;
            inode_extrefs(item)
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            follows_its_inode(item, around)?;
            entries(item, around)
        }
        ItemType::EXTENT_DATA => {
            follows_its_inode(item, around)?;
            file_extent(item, around)
        }
        ItemType::ORPHAN_ITEM => orphan(item),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => check_dir_log(item.data).map(drop),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
            subvolume_ids(item.data).map(drop)
        }
        ItemType::VERITY_DESC_ITEM if item.key.offset == 0 => {
            sized::<RawVerityDescriptorItem>(item)
        }
        ItemType::TEMPORARY_ITEM if item.key.objectid == BALANCE_OBJECTID => {
            sized::<RawBalanceItem>(item)
        }
        _ => Ok(()),
    }
}

fn follows_its_inode(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    let Some(previous) = around.previous.filter(|_| around.owner.is_subvolume()) else {
        return Ok(());
    };
    let (have, want) = (item.key.objectid, previous.key.objectid);
    require(have == want, "key objectid", have, format_args!("{want}, as no inode item precedes"))
}

fn inode(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    inode_key("key", &item.key)?;
    let inode = Inode::check(item.data)?;
    let newest = around.generation.0.saturating_add(1);
    let want = format_args!("at most {newest}");
    require(inode.generation.0 <= newest, "generation", inode.generation, want)?;
    require(inode.transid.0 <= newest, "transid", inode.transid, want)
}

/// Law 2, which an entry's location keeps as well.
fn inode_key(field: &'static str, key: &Key) -> Result<(), Refused> {
    let known = (INO_MIN..=INO_MAX).contains(&key.objectid)
        || key.objectid == INO_ROOT_TREE_DIR
        || key.objectid == INO_FREE_INO;
    require(known, field, key, "an inode number, 256 or above")?;
    require(key.offset == 0, field, key, "offset 0")
}

fn inode_refs(item: &LeafItem<'_>) -> Result<(), Refused> {
    holds_something(item)?;
    for entry in InodeRefs::new(item.data) {
        entry?;
    }
    Ok(())
}

fn inode_extrefs(item: &LeafItem<'_>) -> Result<(), Refused> {
    holds_something(item)?;
    for entry in InodeExtrefs::new(item.data) {
        let entry = entry?;
        under_hash(item, extref_hash(entry.parent.0, entry.name))?;
    }
    Ok(())
}

fn entries(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    holds_something(item)?;
    let mut count = 0_usize;
    for entry in DirEntries::new(item.data) {
        let entry = entry?;
        count = count.saturating_add(1);
        if item.key.item_type != ItemType::DIR_INDEX {
            under_hash(item, name_hash(entry.name))?;
        }
        if item.key.item_type == ItemType::XATTR_ITEM {
            xattr(&entry, around)?;
        } else {
            directory_entry(&entry)?;
        }
    }
    let single = item.key.item_type != ItemType::DIR_INDEX || count == 1;
    require(single, "entries", count, "1 under an index")
}

fn directory_entry(entry: &DirEntry<'_>) -> Result<(), Refused> {
    require(matches!(entry.kind, EntryKind::File(_)), "type", "8", "a file's, 1 to 7")?;
    let location = &entry.location;
    match location.item_type {
        ItemType::INODE_ITEM => inode_key("location", location),
        ItemType::ROOT_ITEM => {
            let leads = TreeId(location.objectid).is_subvolume();
            require(leads, "location", location, "a subvolume's id")
        }
        other => Err(Refused::new("location type", other.0, "1 (inode) or 132 (subvolume)")),
    }
}

fn xattr(entry: &DirEntry<'_>, around: &Around<'_>) -> Result<(), Refused> {
    let kind = entry.kind.entry_type();
    require(entry.kind == EntryKind::Xattr, "type", kind, "8 of an attribute")?;
    require(entry.location == Key::default(), "location", entry.location, "(0 0 0)")?;
    let taken = size_of::<RawItem>().saturating_add(size_of::<RawDirItem>());
    let room = around.rules.slot_bytes().saturating_sub(taken);
    let bytes = entry.name.len().saturating_add(entry.data.len());
    require(bytes <= room, "name_len + data_len", bytes, format_args!("at most {room}"))
}

fn file_extent(item: &LeafItem<'_>, around: &Around<'_>) -> Result<(), Refused> {
    FileExtent::check(item.data, item.key.offset)?;
    let Some(previous) = around.previous.filter(|previous| {
        previous.key.objectid == item.key.objectid
            && previous.key.item_type == ItemType::EXTENT_DATA
    }) else {
        return Ok(());
    };
    let covered = FileExtent::check(previous.data, previous.key.offset)?.file_bytes();
    let end = previous.key.offset.saturating_add(covered);
    let want = format_args!("at least {end}, where the extent before ends");
    require(end <= item.key.offset, "key offset", item.key.offset, want)
}

fn orphan(item: &LeafItem<'_>) -> Result<(), Refused> {
    require(item.key.objectid == ORPHAN_OBJECTID, "key objectid", item.key.objectid, "-5")?;
    require(item.data.is_empty(), "item size", item.data.len(), 0)
}

fn under_hash(item: &LeafItem<'_>, hash: u64) -> Result<(), Refused> {
    let want = format_args!("{hash}, the hash of the name");
    require(item.key.offset == hash, "key offset", item.key.offset, want)
}

fn holds_something(item: &LeafItem<'_>) -> Result<(), Refused> {
    require(!item.data.is_empty(), "item size", 0, "at least one entry")
}

fn sized<T>(item: &LeafItem<'_>) -> Result<(), Refused> {
    require(item.data.len() == size_of::<T>(), "item size", item.data.len(), size_of::<T>())
}
