//! The laws of the items of subvolumes and of the tree log: inodes, names, xattrs, file extents;
//! and of small items that other trees have about subvolumes.
//!
//! 1. An item of an inode follows an item of the same inode, unless it is the first of its leaf.
//!    Log trees are exempt: they contain only what changed.
//! 2. An inode's key has an inode number and offset 0. An inode is at most one generation newer
//!    than its leaf.
//! 3. The key offset of a `DIR_ITEM`, `XATTR_ITEM` or `INODE_EXTREF` is the hash of every name in
//!    it.
//! 4. A `DIR_INDEX` has one entry. Items of names are never empty.
//! 5. A directory entry refers to an inode or to a subvolume; the location of an attribute is zero.
//! 6. An attribute fits into a leaf, name and value together.
//! 7. A file extent does not begin before the previous one ends.
//!
//! The laws inside one entry or item are kept by the types: [`Inode`], [`DirEntries`],
//! [`InodeRefs`], [`InodeExtrefs`], [`FileExtent`].

use super::{LeafContext, LeafItem};
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

/// The range of inode numbers of files.
const INO_MIN: u64 = 256;
const INO_MAX: u64 = u64::MAX - 255;
/// The inode of the root tree's directory.
const INO_ROOT_TREE_DIR: u64 = 6;
/// The inode of the free inode cache, which old kernels wrote.
const INO_FREE_INO: u64 = u64::MAX - 11;

/// Checks one item whose type belongs to a subvolume; others pass.
pub(super) fn item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    match item.key.item_type {
        ItemType::INODE_ITEM => inode(item, context),
        ItemType::INODE_REF => {
            follows_its_inode(item, context)?;
            inode_refs(item)
        }
        ItemType::INODE_EXTREF => {
            follows_its_inode(item, context)?;
            inode_extrefs(item)
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            follows_its_inode(item, context)?;
            entries(item, context)
        }
        ItemType::EXTENT_DATA => {
            follows_its_inode(item, context)?;
            file_extent(item, context)
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

fn follows_its_inode(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let Some(previous) = context.previous.filter(|_| context.owner.is_subvolume()) else {
        return Ok(());
    };
    let (have, want) = (item.key.objectid, previous.key.objectid);
    require(have == want, "key objectid", have, format_args!("{want}, as no inode item precedes"))
}

fn inode(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    inode_key("key", &item.key)?;
    let inode = Inode::check(item.data)?;
    let newest = context.generation.0.saturating_add(1);
    let want = format_args!("at most {newest}");
    require(inode.generation.0 <= newest, "generation", inode.generation, want)?;
    require(inode.transid.0 <= newest, "transid", inode.transid, want)
}

/// Checks law 2 for the key of an inode or the location of an entry.
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

fn entries(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    holds_something(item)?;
    let mut count = 0_usize;
    for entry in DirEntries::new(item.data) {
        let entry = entry?;
        count = count.saturating_add(1);
        if item.key.item_type != ItemType::DIR_INDEX {
            under_hash(item, name_hash(entry.name))?;
        }
        if item.key.item_type == ItemType::XATTR_ITEM {
            xattr(&entry, context)?;
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

fn xattr(entry: &DirEntry<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let kind = entry.kind.entry_type();
    require(entry.kind == EntryKind::Xattr, "type", kind, "8 of an attribute")?;
    require(entry.location == Key::default(), "location", entry.location, "(0 0 0)")?;
    let overhead = size_of::<RawItem>().saturating_add(size_of::<RawDirItem>());
    let bytes_max = context.rules.slot_bytes().saturating_sub(overhead);
    let bytes = entry.name.len().saturating_add(entry.data.len());
    require(bytes <= bytes_max, "name_len + data_len", bytes, format_args!("at most {bytes_max}"))
}

fn file_extent(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    FileExtent::check(item.data, item.key.offset)?;
    let Some(previous) = context.previous.filter(|previous| {
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
