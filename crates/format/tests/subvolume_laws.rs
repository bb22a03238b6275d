//! Laws of the items of a subvolume in a leaf: keys, hashes, previous items.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use butternut_format::check::{LeafContext, LeafItem, leaf_item};
use butternut_format::checksum::{ChecksumKind, extref_hash, name_hash};
use butternut_format::dir::RawDirItem;
use butternut_format::file_extent::RawFileExtentItem;
use butternut_format::inode::RawInodeItem;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::BlockRules;
use butternut_format::units::{Generation, TreeId};
use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

const LOG: TreeId = TreeId::TREE_LOG;
const FILE: Key = Key::new(257, ItemType::INODE_ITEM, 0);
const SUBVOLUME: Key = Key::new(258, ItemType::ROOT_ITEM, u64::MAX);

fn rules() -> BlockRules {
    BlockRules {
        csum: ChecksumKind::Crc32c,
        node_bytes: 16384,
        fsids: vec![[1; 16]],
        incompat: 0,
        compat_ro: 0,
    }
}

/// Returns the error of an item in a leaf of generation 10 with this owner; empty if it is valid.
fn check_item(key: Key, data: &[u8], previous: Option<(Key, &[u8])>, owner: TreeId) -> String {
    let previous = previous.map(|(key, data)| LeafItem { key, data });
    let rules = rules();
    let context = LeafContext { previous, owner, generation: Generation(10), rules: &rules };
    match leaf_item(&LeafItem { key, data }, &context) {
        Ok(()) => String::new(),
        Err(refused) => refused.to_string(),
    }
}

fn alone(objectid: u64, item_type: ItemType, offset: u64, data: &[u8]) -> String {
    check_item(Key::new(objectid, item_type, offset), data, None, TreeId::FS)
}

fn entry(location: Key, entry_type: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut raw = RawDirItem::new_zeroed();
    raw.location = RawKey::from(location);
    raw.entry_type = entry_type;
    raw.name_len.set(name.len().try_into().unwrap());
    raw.data_len.set(data.len().try_into().unwrap());
    [raw.as_bytes(), name, data].concat()
}

fn dir_item(location: Key, entry_type: u8, name: &[u8]) -> String {
    let item = entry(location, entry_type, name, b"");
    alone(256, ItemType::DIR_ITEM, name_hash(name), &item)
}

fn xattr(location: Key, entry_type: u8, data: &[u8]) -> String {
    let item = entry(location, entry_type, b"user.a", data);
    alone(257, ItemType::XATTR_ITEM, name_hash(b"user.a"), &item)
}

fn extent(run: u64) -> Vec<u8> {
    let mut raw = RawFileExtentItem::new_zeroed();
    raw.header.extent_type = 1;
    raw.num_bytes.set(run);
    raw.as_bytes().to_vec()
}

#[test]
fn an_inode_is_at_most_one_generation_newer_than_its_leaf() {
    let mut raw = RawInodeItem::new_zeroed();
    raw.mode.set(0o100_644);
    raw.generation.set(11);
    raw.transid.set(11);
    assert_eq!(alone(257, ItemType::INODE_ITEM, 0, raw.as_bytes()), "");
    raw.generation.set(12);
    let text = alone(257, ItemType::INODE_ITEM, 0, raw.as_bytes());
    assert_eq!(text, "generation: have 12, want at most 11");
    raw.generation.set(1);
    raw.transid.set(12);
    let text = alone(257, ItemType::INODE_ITEM, 0, raw.as_bytes());
    assert_eq!(text, "transid: have 12, want at most 11");
}

#[test]
fn an_inode_key_has_an_inode_number_and_offset_0() {
    let mut raw = RawInodeItem::new_zeroed();
    raw.mode.set(0o040_755);
    for ino in [6, 256, u64::MAX - 255, u64::MAX - 11] {
        assert_eq!(alone(ino, ItemType::INODE_ITEM, 0, raw.as_bytes()), "");
    }
    let text = alone(255, ItemType::INODE_ITEM, 0, raw.as_bytes());
    assert_eq!(text, "key: have (255 1 0), want an inode number, 256 or above");
    let text = alone(256, ItemType::INODE_ITEM, 1, raw.as_bytes());
    assert_eq!(text, "key: have (256 1 1), want offset 0");
}

#[test]
fn items_of_an_inode_follow_it_except_in_a_log() {
    let key = Key::new(257, ItemType::EXTENT_DATA, 0);
    let before = Key::new(256, ItemType::INODE_ITEM, 0);
    let text = check_item(key, &extent(4096), Some((before, &[])), TreeId::FS);
    assert_eq!(text, "key objectid: have 257, want 256, as no inode item precedes");
    assert_eq!(check_item(key, &extent(4096), Some((before, &[])), LOG), "");
    assert_eq!(check_item(key, &extent(4096), Some((FILE, &[])), TreeId(300)), "");
    assert_eq!(check_item(key, &extent(4096), None, TreeId::FS), "");
}

#[test]
fn a_directory_entry_refers_to_an_inode_or_a_subvolume() {
    assert_eq!(dir_item(FILE, 1, b"file"), "");
    assert_eq!(dir_item(SUBVOLUME, 2, b"snapshot"), "");
    let text = dir_item(Key::new(2, ItemType::ROOT_ITEM, 0), 2, b"extents");
    assert_eq!(text, "location: have (2 132 0), want a subvolume's id");
    let text = dir_item(Key::new(257, ItemType::EXTENT_DATA, 0), 1, b"x");
    assert_eq!(text, "location type: have 108, want 1 (inode) or 132 (subvolume)");
    let text = dir_item(Key::new(9, ItemType::INODE_ITEM, 0), 1, b"x");
    assert_eq!(text, "location: have (9 1 0), want an inode number, 256 or above");
    assert_eq!(dir_item(Key::default(), 8, b"x"), "type: have 8, want a file's, 1 to 7");
}

#[test]
fn names_are_keyed_by_their_hash_and_indexes_by_any_number() {
    let item = entry(SUBVOLUME, 2, b"default", b"");
    assert_eq!(alone(6, ItemType::DIR_ITEM, 2_378_154_706, &item), "");
    let text = alone(6, ItemType::DIR_ITEM, 3, &item);
    assert_eq!(text, "key offset: have 3, want 2378154706, the hash of the name");
    assert_eq!(alone(256, ItemType::DIR_INDEX, 3, &item), "");
    let extref = b"\0\x01\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x02\0xy";
    assert_eq!(alone(257, ItemType::INODE_EXTREF, extref_hash(256, b"xy"), extref), "");
    let text = alone(257, ItemType::INODE_EXTREF, 1, extref);
    assert!(text.starts_with("key offset: have 1, want "), "{text}");
}

#[test]
fn an_index_has_one_entry_and_no_item_of_names_is_empty() {
    let one = entry(FILE, 1, b"file", b"");
    let text = alone(256, ItemType::DIR_INDEX, 3, &[one.clone(), one].concat());
    assert_eq!(text, "entries: have 2, want 1 under an index");
    for item_type in [
        ItemType::DIR_INDEX,
        ItemType::DIR_ITEM,
        ItemType::XATTR_ITEM,
        ItemType::INODE_REF,
        ItemType::INODE_EXTREF,
    ] {
        let text = alone(256, item_type, 3, &[]);
        assert_eq!(text, "item size: have 0, want at least one entry");
    }
}

#[test]
fn an_attribute_has_no_location_and_fits_into_a_leaf() {
    let bytes_max = 16384 - 101 - 25 - 30 - b"user.a".len();
    assert_eq!(xattr(Key::default(), 8, &vec![1; bytes_max]), "");
    let text = xattr(Key::default(), 8, &vec![1; bytes_max + 1]);
    assert_eq!(text, "name_len + data_len: have 16229, want at most 16228");
    assert_eq!(xattr(FILE, 8, b"v"), "location: have (257 1 0), want (0 0 0)");
    assert_eq!(xattr(Key::default(), 1, b""), "type: have 1, want 8 of an attribute");
}

#[test]
fn file_extents_do_not_overlap() {
    let first = Key::new(257, ItemType::EXTENT_DATA, 0);
    let second = |at| Key::new(257, ItemType::EXTENT_DATA, at);
    let one = extent(8192);
    assert_eq!(check_item(second(8192), &one, Some((first, &one)), TreeId::FS), "");
    let text = check_item(second(4096), &one, Some((first, &one)), TreeId::FS);
    assert_eq!(text, "key offset: have 4096, want at least 8192, where the extent before ends");
}

#[test]
fn small_items_have_a_fixed_size() {
    let orphan = u64::MAX - 4;
    assert_eq!(alone(orphan, ItemType::ORPHAN_ITEM, 257, &[]), "");
    let text = alone(orphan, ItemType::ORPHAN_ITEM, 257, &[0]);
    assert_eq!(text, "item size: have 1, want 0");
    let text = alone(257, ItemType::DIR_LOG_INDEX, 2, &[0; 7]);
    assert_eq!(text, "item size: have 7, want 8");
    assert_eq!(alone(257, ItemType::VERITY_DESC_ITEM, 0, &[0; 25]), "");
    let text = alone(257, ItemType::VERITY_DESC_ITEM, 0, &[0; 24]);
    assert_eq!(text, "item size: have 24, want 25");
    let text = alone(u64::MAX - 3, ItemType::TEMPORARY_ITEM, 0, &[0; 447]);
    assert_eq!(text, "item size: have 447, want 448");
    assert_eq!(alone(7, ItemType::UUID_SUBVOL, 7, &[0; 16]), "");
    let text = alone(7, ItemType::UUID_SUBVOL, 7, &[0; 15]);
    assert_eq!(text, "item size: have 15, want a multiple of 8");
}

proptest! {
    #[test]
    fn no_item_panics_the_check(
        item_type: u8, offset: u64, objectid: u64, owner: u64,
        data in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let key = Key::new(objectid, ItemType(item_type), offset);
        let before = Key::new(objectid, ItemType::EXTENT_DATA, 0);
        check_item(key, &data, None, TreeId(owner));
        check_item(key, &data, Some((before, &data)), TreeId(owner));
    }
}
