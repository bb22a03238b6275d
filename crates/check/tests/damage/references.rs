//! Damage to tree blocks, extent items and back references.

use crate::test_image::{Item, TestImage, set_key};
use crate::{Case, case, old};
use butternut_check::Kind;
use butternut_format::extent::{EXTENT_FLAG_FULL_BACKREF, RawExtentItem, RawTreeBlockInfo};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{HEADER_BYTES, RawHeader};
use butternut_format::units::{Logical, TreeId};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

const EXTENTS: TreeId = TreeId::EXTENT;
/// Offsets in an extent item with one inline reference: its value, or that of a reference to data.
const INLINE: usize = 24 + 1;
/// Offsets in an inline reference to data.
const DATA_ROOT: usize = INLINE;
const DATA_OFFSET: usize = INLINE + 16;
const DATA_COUNT: usize = INLINE + 24;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = blocks();
    cases.extend(extents());
    cases.extend(references());
    cases
}

/// The tree of `sub`, whose root is a node.
fn sub(p: &TestImage) -> TreeId {
    let (key, _) = p.first(TreeId::ROOT, ItemType::ROOT_BACKREF);
    TreeId(key.objectid)
}

/// A leaf of the top-level subvolume, and the node above it.
fn leaf_and_node(p: &TestImage) -> (Logical, Logical, usize) {
    let way = p.path_to(sub(p), &Key::new(300, ItemType::INODE_ITEM, 0));
    let [.., (node, slot), (leaf, _)] = way[..] else { panic!("a tree of two levels") };
    (leaf, node, slot)
}

/// A leaf of the UUID tree: it is not shared and refers to no data.
fn quiet_leaf(p: &TestImage) -> Logical {
    p.leaf_of(TreeId::UUID, &Key::MIN)
}

fn header(p: &TestImage, logical: Logical, edit: impl FnOnce(&mut RawHeader)) {
    p.edit_block(logical, |bytes| {
        edit(RawHeader::mut_from_bytes(&mut bytes[..HEADER_BYTES]).unwrap());
    });
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn blocks() -> Vec<Case> {
    vec![
        case(
            "block corrupt on one copy",
            |p| p.write(quiet_leaf(p), &[0x55; 16384], 1),
            &[Kind::BlockCopy],
        ),
        case(
            "block stale on one copy",
            |p| {
                let leaf = quiet_leaf(p);
                let before = p.bytes(leaf);
                header(p, leaf, |raw| raw.generation = U64::new(raw.generation.get() - 1));
                let stale = p.bytes(leaf);
                p.write(leaf, &before, 2);
                p.write(leaf, &stale, 1);
            },
            &[Kind::BlockCopy],
        ),
        case(
            "block valid and different on one copy",
            |p| {
                let (key, data) = p.first(TreeId::UUID, ItemType::UUID_SUBVOL);
                let leaf = p.leaf_of(TreeId::UUID, &key);
                let before = p.bytes(leaf);
                p.change(TreeId::UUID, &key, |item| item[0] = data[0] ^ 0x80);
                let other = p.bytes(leaf);
                p.write(leaf, &other, 2);
                p.write(leaf, &before, 1);
            },
            &[Kind::BlockCopy],
        ),
        case(
            "block corrupt on every copy",
            |p| p.write(leaf_and_node(p).0, &[0x55; 16384], 2),
            &[Kind::BlockBad],
        ),
        case(
            "block of another generation than its slot",
            |p| {
                let (_, node, slot) = leaf_and_node(p);
                p.edit_block(node, |bytes| bytes[HEADER_BYTES + slot * 33 + 25] -= 1);
            },
            &[Kind::BlockBad],
        ),
        case(
            "block with another first key than its slot",
            |p| {
                let (_, node, slot) = leaf_and_node(p);
                let key = Key::new(300, ItemType::INODE_ITEM, 0);
                p.edit_block(node, |bytes| set_key(bytes, slot, key));
            },
            &[Kind::BlockBad],
        ),
        old(
            "block keys beyond the next",
            keys_beyond,
            &[
                Kind::BlockKeys,
                Kind::ExtentOverlap,
                Kind::ExtentItemMissing,
                Kind::ReferenceCount,
                Kind::GroupUsed,
                Kind::FreeSpaceMissing,
                Kind::SuperField,
            ],
        ),
        case(
            "block with another owner",
            |p| {
                let way = p.path_to(TreeId::FS, &Key::new(256, ItemType::INODE_ITEM, 0));
                let (leaf, _) = *way.last().unwrap();
                header(p, leaf, |raw| raw.owner = U64::new(300));
            },
            &[Kind::BlockOwner],
        ),
        case(
            "block item of another generation",
            |p| block_item(p, |data| data[8] -= 1),
            &[Kind::BlockExtent],
        ),
        case(
            "block item of another level",
            |p| {
                let (key, _) = item_of(p, quiet_leaf(p).0);
                p.rekey(EXTENTS, &key, Key { offset: 1, ..key });
            },
            &[Kind::BlockExtent],
        ),
        case(
            "block item with full back references",
            |p| {
                let (leaf, ..) = leaf_of_data(p);
                let (key, _) = item_of(p, leaf);
                p.alter(EXTENTS, &key, |raw: &mut RawExtentItem| {
                    raw.flags = U64::new(raw.flags.get() | EXTENT_FLAG_FULL_BACKREF);
                });
            },
            &[Kind::ReferenceMissing, Kind::ReferenceExtra],
        ),
        case(
            "block of another chunk tree",
            |p| header(p, quiet_leaf(p), |raw| raw.chunk_tree_uuid[0] ^= 1),
            &[Kind::BlockUuid],
        ),
        case("item where none belongs", stray, &[Kind::ItemMisplaced]),
    ]
}

/// Moves the last extent of a leaf onto the first of the next leaf.
fn keys_beyond(p: &TestImage) {
    let keys: Vec<Key> = p.items(EXTENTS).into_iter().map(|(key, _)| key).collect();
    let is_last = |pair: &&[Key]| p.leaf_of(EXTENTS, &pair[0]) != p.leaf_of(EXTENTS, &pair[1]);
    let pair = keys.windows(2).find(is_last).expect("the extent tree has leaves");
    p.rekey(EXTENTS, &pair[0], pair[1]);
}

fn stray(p: &TestImage) {
    let key = Key::new(1, ItemType::TREE_BLOCK_REF, 5);
    p.insert(TreeId::UUID, Key { objectid: 4096, ..key }, &[]);
}

fn item_of(p: &TestImage, logical: u64) -> Item {
    p.find(EXTENTS, |key, _| {
        key.objectid == logical
            && matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
    })
}

fn block_item(p: &TestImage, change: impl FnOnce(&mut Vec<u8>)) {
    let (key, _) = item_of(p, quiet_leaf(p).0);
    p.change(EXTENTS, &key, change);
}

/// A leaf of the top-level subvolume that refers to data, and the extent item of that.
fn leaf_of_data(p: &TestImage) -> (u64, Key) {
    let ino = p.ino(TreeId::FS, "d/other");
    let key = Key::new(ino, ItemType::EXTENT_DATA, 0);
    let (_, data) = p.find(TreeId::FS, |found, _| *found == key);
    let logical = u64::from_le_bytes(data[21..29].try_into().unwrap());
    (p.leaf_of(TreeId::FS, &key).0, item_of(p, logical).0)
}

fn data_item(p: &TestImage) -> Key {
    leaf_of_data(p).1
}

const GONE: [Kind; 4] =
    [Kind::ExtentItemMissing, Kind::GroupUsed, Kind::SuperField, Kind::FreeSpaceMissing];

fn extents() -> Vec<Case> {
    vec![
        case(
            "extent item of data missing",
            |p| p.remove(EXTENTS, &data_item(p)),
            &[GONE[0], GONE[1], GONE[2], GONE[3], Kind::ChecksumsUnallocated],
        ),
        case(
            "extent item of a block missing",
            |p| p.remove(EXTENTS, &item_of(p, quiet_leaf(p).0).0),
            &GONE,
        ),
        old(
            "extent item of a block missing, not skinny",
            |p| p.remove(EXTENTS, &item_of(p, quiet_leaf(p).0).0),
            &GONE,
        ),
        case(
            "extent without users",
            unused_extent,
            &[Kind::ExtentUnused, Kind::GroupUsed, Kind::SuperField, Kind::FreeSpaceAllocated],
        ),
        case(
            "extent longer than its users say",
            |p| {
                let key = data_item(p);
                p.rekey(EXTENTS, &key, Key { offset: key.offset + 4096, ..key });
            },
            &[Kind::ExtentSize, Kind::GroupUsed, Kind::SuperField, Kind::FreeSpaceAllocated],
        ),
        case(
            "extent shorter than its users say",
            |p| {
                let key = data_item(p);
                p.rekey(EXTENTS, &key, Key { offset: key.offset - 4096, ..key });
            },
            &[
                Kind::ExtentSize,
                Kind::GroupUsed,
                Kind::SuperField,
                Kind::FreeSpaceMissing,
                Kind::ChecksumsUnallocated,
            ],
        ),
        case(
            "extents overlap behind a keyed reference",
            overlap,
            &[Kind::ExtentOverlap, Kind::ExtentUnused],
        ),
        case(
            "extent of data among blocks",
            misplaced,
            &[
                Kind::ExtentPlace,
                Kind::ExtentUnused,
                Kind::GroupUsed,
                Kind::SuperField,
                Kind::FreeSpaceAllocated,
            ],
        ),
    ]
}

/// A free address in the chunk that holds `like`.
fn free_near(p: &TestImage, like: u64) -> u64 {
    let chunks = p.volume().chunks();
    let chunk = chunks.find(Logical(like)).unwrap();
    let range = chunk.logical().0..chunk.end();
    let (key, _) = p.find(TreeId::FREE_SPACE, |key, _| {
        key.item_type == ItemType::FREE_SPACE_EXTENT
            && range.contains(&key.objectid)
            && key.offset > 65536
    });
    key.objectid + 16384
}

fn unused_extent(p: &TestImage) {
    let (key, data) = p.find(EXTENTS, |key, _| *key == data_item(p));
    let start = free_near(p, key.objectid);
    p.insert(EXTENTS, Key { objectid: start, offset: 4096, ..key }, &data);
}

fn misplaced(p: &TestImage) {
    let (key, data) = p.find(EXTENTS, |key, _| *key == data_item(p));
    let start = free_near(p, quiet_leaf(p).0);
    p.insert(EXTENTS, Key { objectid: start, offset: 4096, ..key }, &data);
}

/// Turns an extent's reference into a keyed one, and adds an extent that begins inside the first.
fn overlap(p: &TestImage) {
    let (key, data) = p.find(EXTENTS, |key, _| *key == data_item(p));
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let (root, ino, offset) = (number(DATA_ROOT), number(DATA_ROOT + 8), number(DATA_OFFSET));
    let hash = butternut_format::checksum::data_ref_hash(root, ino, offset);
    let keyed = Key::new(key.objectid, ItemType::EXTENT_DATA_REF, hash);
    p.edit(EXTENTS, &key, |items| {
        items.push((keyed, data[DATA_ROOT..].to_vec()));
        items.push((Key { objectid: key.objectid + 4096, offset: 4096, ..key }, data.clone()));
        let item = items.iter_mut().find(|(found, _)| *found == key).unwrap();
        item.1.truncate(24);
    });
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn references() -> Vec<Case> {
    let moved = &[Kind::ReferenceMissing, Kind::ReferenceExtra];
    vec![
        case(
            "refs of an extent",
            |p| p.change(EXTENTS, &data_item(p), |data| data[0] += 1),
            &[Kind::ReferenceCount],
        ),
        case(
            "count of a data reference",
            |p| {
                p.change(EXTENTS, &data_item(p), |data| {
                    data[0] += 1;
                    data[DATA_COUNT] += 1;
                });
            },
            &[Kind::ReferenceCount],
        ),
        case(
            "data reference of another tree",
            |p| p.change(EXTENTS, &data_item(p), |data| data[DATA_ROOT + 1] ^= 1),
            moved,
        ),
        case(
            "data reference of another inode",
            |p| p.change(EXTENTS, &data_item(p), |data| data[DATA_ROOT + 8] ^= 64),
            moved,
        ),
        case(
            "data reference at another offset",
            |p| p.change(EXTENTS, &data_item(p), |data| data[DATA_OFFSET + 1] ^= 0x10),
            moved,
        ),
        case(
            "data reference extra",
            |p| {
                p.change(EXTENTS, &data_item(p), |data| {
                    let mut more = data[INLINE - 1..].to_vec();
                    more[1 + 17] ^= 0x10;
                    data[0] += 1;
                    let (own, other) = (more.clone(), data[INLINE - 1..].to_vec());
                    data.truncate(24);
                    let hash = |bytes: &[u8]| {
                        let at =
                            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                        butternut_format::checksum::data_ref_hash(at(1), at(9), at(17))
                    };
                    let mut both = [own, other];
                    both.sort_by_key(|bytes| std::cmp::Reverse(hash(bytes)));
                    data.extend(both.concat());
                });
            },
            &[Kind::ReferenceExtra],
        ),
        case(
            "shared data reference of another leaf",
            |p| shared(p, ItemType::SHARED_DATA_REF),
            moved,
        ),
        case(
            "shared data reference missing",
            shared_missing,
            &[Kind::ReferenceCount, Kind::ReferenceMissing],
        ),
        case(
            "block reference of another tree",
            |p| block_item(p, |data| data[INLINE] ^= 1),
            &[Kind::ReferenceMissing, Kind::ReferenceExtra, Kind::BlockOwner],
        ),
        old(
            "shared block reference of another block",
            |p| shared(p, ItemType::SHARED_BLOCK_REF),
            moved,
        ),
        case(
            "keyed reference without an extent",
            |p| {
                let key = Key::new(free_near(p, quiet_leaf(p).0), ItemType::TREE_BLOCK_REF, 5);
                p.insert(EXTENTS, key, &[]);
            },
            &[Kind::ReferenceNoExtent, Kind::ExtentItemMissing],
        ),
    ]
}

/// The first extent with a shared reference inline, and where in its item that lies.
fn with_shared(p: &TestImage, item_type: ItemType) -> (Key, usize) {
    for (key, data) in p.items(EXTENTS) {
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let is_block = data[16] & 2 != 0;
        let has_info = is_block && key.item_type == ItemType::EXTENT_ITEM;
        let mut at = if has_info { 24 + size_of::<RawTreeBlockInfo>() } else { 24 };
        while at < data.len() {
            let found = ItemType(data[at]);
            if found == item_type {
                return (key, at);
            }
            at += match found {
                ItemType::EXTENT_DATA_REF => 29,
                ItemType::SHARED_DATA_REF => 13,
                _ => 9,
            };
        }
    }
    panic!("the image has such a reference");
}

fn shared(p: &TestImage, item_type: ItemType) {
    let (key, at) = with_shared(p, item_type);
    // Further down, so that the order of several stays.
    p.change(EXTENTS, &key, |data| data[at + 2] ^= 0x40);
}

fn shared_missing(p: &TestImage) {
    let (key, at) = with_shared(p, ItemType::SHARED_DATA_REF);
    p.change(EXTENTS, &key, |data| {
        data.drain(at..at + 13);
        data[0] -= 1;
    });
}
