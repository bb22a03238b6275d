//! Damage to roots and to names: of subvolumes, and of inodes in directories.

use crate::test_image::{Item, TestImage};
use crate::{Case, case, old};
use butternut_check::Kind;
use butternut_format::checksum::name_hash;
use butternut_format::dir::RawDirItem;
use butternut_format::inode::RawInodeItem;
use butternut_format::key::{ItemType, Key};
use butternut_format::orphan::orphan_key;
use butternut_format::root::RawRootItem;
use butternut_format::units::TreeId;
use zerocopy::little_endian::{U32, U64};

const FS: TreeId = TreeId::FS;
const ROOT: TreeId = TreeId::ROOT;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = roots();
    cases.extend(uuids());
    cases.extend(directories());
    cases.extend(references());
    cases.extend(orphans());
    cases
}

fn forward(p: &TestImage) -> Key {
    p.first(ROOT, ItemType::ROOT_REF).0
}

fn back(p: &TestImage) -> Key {
    let forward = forward(p);
    Key::new(forward.offset, ItemType::ROOT_BACKREF, forward.objectid)
}

fn root_item(p: &TestImage, tree: u64, alter: impl FnOnce(&mut RawRootItem)) {
    let (key, _) =
        p.find(ROOT, |key, _| key.objectid == tree && key.item_type == ItemType::ROOT_ITEM);
    p.alter(ROOT, &key, alter);
}

fn sub(p: &TestImage) -> u64 {
    forward(p).offset
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn roots() -> Vec<Case> {
    vec![
        case("root reference missing", |p| p.remove(ROOT, &forward(p)), &[Kind::RootReference]),
        case("root back reference missing", |p| p.remove(ROOT, &back(p)), &[Kind::RootReference]),
        case(
            "root reference of another name",
            |p| {
                let last = |data: &mut Vec<u8>| *data.last_mut().unwrap() = b'X';
                p.change(ROOT, &forward(p), last);
            },
            &[Kind::RootReference, Kind::RootEntry],
        ),
        case(
            "root references to nothing",
            |p| {
                let (_, data) = p.find(ROOT, |key, _| *key == forward(p));
                p.insert(ROOT, Key { offset: 999, ..forward(p) }, &data);
                p.insert(ROOT, Key { objectid: 999, ..back(p) }, &data);
            },
            &[Kind::RootReference, Kind::RootEntry],
        ),
        case(
            "subvolume without references",
            |p| {
                let (forward, back) = (forward(p), back(p));
                p.remove(ROOT, &forward);
                p.remove(ROOT, &back);
            },
            &[Kind::RootUnreachable],
        ),
        case(
            "root item with two references",
            |p| root_item(p, sub(p), |raw| raw.refs = U32::new(2)),
            &[Kind::RootItem],
        ),
        case(
            "root item with another root directory",
            |p| root_item(p, sub(p), |raw| raw.root_dirid = U64::new(257)),
            &[Kind::RootItem],
        ),
        case(
            "root item without references or orphan",
            |p| root_item(p, sub(p), |raw| raw.refs = U32::new(0)),
            &[Kind::RootOrphan],
        ),
        case(
            "root item of another level",
            |p| root_item(p, sub(p), |raw| raw.level += 1),
            &[Kind::BlockBad],
        ),
        case(
            "default subvolume that is none",
            |p| {
                let key = Key::new(6, ItemType::DIR_ITEM, name_hash(b"default"));
                p.alter(ROOT, &key, |raw: &mut RawDirItem| raw.location.objectid = U64::new(999));
            },
            &[Kind::RootItem],
        ),
        case(
            "tree missing",
            no_checksum_tree,
            &[Kind::TreeMissing, Kind::ExtentUnused, Kind::SuperBackup],
        ),
        case(
            "subvolume without its entries",
            |p| {
                let (by_hash, by_index) = entries(p, 256, b"sub");
                p.remove(FS, &by_hash);
                p.remove(FS, &by_index);
            },
            &[Kind::RootEntry, Kind::DirectorySize],
        ),
    ]
}

fn no_checksum_tree(p: &TestImage) {
    let is_it =
        |key: &Key| key.objectid == TreeId::CHECKSUM.0 && key.item_type == ItemType::ROOT_ITEM;
    let (key, _) = p.find(ROOT, |key, _| is_it(key));
    p.remove(ROOT, &key);
}

fn uuids() -> Vec<Case> {
    vec![
        case(
            "uuid entry missing",
            |p| {
                let (key, _) = p.first(TreeId::UUID, ItemType::UUID_SUBVOL);
                p.remove(TreeId::UUID, &key);
            },
            &[Kind::UuidEntry],
        ),
        case(
            "uuid entry of another subvolume",
            |p| {
                let (key, _) = p.first(TreeId::UUID, ItemType::UUID_SUBVOL);
                p.change(TreeId::UUID, &key, |data| data[1] ^= 7);
            },
            &[Kind::UuidEntry],
        ),
    ]
}

/// Returns the keys of a name by hash and by index.
fn entries(p: &TestImage, dir: u64, name: &[u8]) -> (Key, Key) {
    let by_hash = Key::new(dir, ItemType::DIR_ITEM, name_hash(name));
    let (by_index, _) = p.find(FS, |key, data| {
        key.objectid == dir && key.item_type == ItemType::DIR_INDEX && data[30..] == *name
    });
    (by_hash, by_index)
}

fn dir(p: &TestImage) -> u64 {
    p.ino(FS, "d")
}

fn inode(p: &TestImage, path: &str, alter: impl FnOnce(&mut RawInodeItem)) {
    p.alter(FS, &Key::new(p.ino(FS, path), ItemType::INODE_ITEM, 0), alter);
}

fn both(p: &TestImage, name: &[u8], alter: impl Fn(&mut RawDirItem)) {
    let (by_hash, by_index) = entries(p, dir(p), name);
    p.alter(FS, &by_hash, &alter);
    p.alter(FS, &by_index, &alter);
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn directories() -> Vec<Case> {
    vec![
        case(
            "directory of another size",
            |p| inode(p, "d", |raw| raw.size = U64::new(raw.size.get() + 2)),
            &[Kind::DirectorySize],
        ),
        case(
            "entry by hash missing",
            |p| p.remove(FS, &entries(p, dir(p), b"plain").0),
            &[Kind::DirectoryItems, Kind::DirectorySize],
        ),
        case(
            "entry by index missing",
            |p| p.remove(FS, &entries(p, dir(p), b"plain").1),
            &[Kind::DirectoryItems, Kind::DirectorySize, Kind::ReferenceUnpaired],
        ),
        case(
            "entries missing",
            |p| {
                let (by_hash, by_index) = entries(p, dir(p), b"plain");
                p.remove(FS, &by_hash);
                p.remove(FS, &by_index);
            },
            &[Kind::DirectorySize, Kind::ReferenceUnpaired],
        ),
        case(
            "entry extra",
            |p| {
                let (by_hash, by_index) = entries(p, dir(p), b"plain");
                let data = p.find(FS, |key, _| *key == by_hash).1;
                let data = [&data[..30], b"plaim"].concat();
                p.insert(FS, Key { offset: name_hash(b"plaim"), ..by_hash }, &data);
                p.insert(FS, Key { offset: 9999, ..by_index }, &data);
            },
            &[Kind::DirectorySize, Kind::EntryUnpaired],
        ),
        case(
            "entries that lead elsewhere",
            |p| {
                let other = p.ino(FS, "d/other");
                both(p, b"plain", |raw| raw.location.objectid = U64::new(other));
            },
            &[Kind::EntryUnpaired, Kind::ReferenceUnpaired],
        ),
        case(
            "entries that lead to different inodes",
            |p| {
                let other = p.ino(FS, "d/other");
                let (by_hash, _) = entries(p, dir(p), b"plain");
                p.alter(FS, &by_hash, |raw: &mut RawDirItem| {
                    raw.location.objectid = U64::new(other);
                });
            },
            &[Kind::DirectoryItems],
        ),
        case(
            "entries of another kind",
            |p| both(p, b"plain", |raw| raw.entry_type = 5),
            &[Kind::EntryKind],
        ),
        case(
            "entry under another hash",
            |p| {
                let (by_hash, _) = entries(p, dir(p), b"plain");
                p.rekey(FS, &by_hash, Key { offset: by_hash.offset + 1, ..by_hash });
            },
            &[Kind::BlockBad],
        ),
        case(
            "names in a file",
            |p| {
                let (by_hash, by_index) = entries(p, dir(p), b"plain");
                let ino = p.ino(FS, "d/other");
                let data = p.find(FS, |key, _| *key == by_hash).1;
                p.insert(FS, Key { objectid: ino, ..by_hash }, &data);
                p.insert(FS, Key { objectid: ino, ..by_index }, &data);
            },
            &[Kind::DirectoryItems, Kind::EntryUnpaired],
        ),
        case("directories inside each other", ring, &[Kind::DirectoryLoop]),
        case(
            "root directory is none",
            root_is_a_file,
            &[Kind::RootDirectory, Kind::DirectoryItems],
        ),
    ]
}

/// Moves `d` into `d/e`, as a rename without checks would.
fn ring(p: &TestImage) {
    let (dir, inner) = (dir(p), p.ino(FS, "d/e"));
    let (by_hash, by_index) = entries(p, 256, b"d");
    let data = p.find(FS, |key, _| *key == by_hash).1;
    p.remove(FS, &by_hash);
    p.remove(FS, &by_index);
    p.insert(FS, Key { objectid: inner, ..by_hash }, &data);
    p.insert(FS, Key { objectid: inner, offset: 5000, ..by_index }, &data);
    let reference = Key::new(dir, ItemType::INODE_REF, 256);
    p.change(FS, &reference, |data| data[..8].copy_from_slice(&5000_u64.to_le_bytes()));
    p.rekey(FS, &reference, Key { offset: inner, ..reference });
    let resize = |ino, by: i64| {
        p.alter(FS, &Key::new(ino, ItemType::INODE_ITEM, 0), |raw: &mut RawInodeItem| {
            raw.size = U64::new(raw.size.get().checked_add_signed(by).unwrap());
        });
    };
    resize(256, -2);
    resize(inner, 2);
}

fn root_is_a_file(p: &TestImage) {
    p.alter(FS, &Key::new(256, ItemType::INODE_ITEM, 0), |raw: &mut RawInodeItem| {
        raw.mode = U32::new(0o100_755);
        raw.size = U64::new(0);
        raw.nbytes = U64::new(0);
    });
}

fn reference(p: &TestImage, path: &str) -> Item {
    let ino = p.ino(FS, path);
    p.find(FS, |key, _| key.objectid == ino && key.item_type == ItemType::INODE_REF)
}

fn references() -> Vec<Case> {
    let moved = &[Kind::EntryUnpaired, Kind::ReferenceUnpaired];
    vec![
        case(
            "link count",
            |p| inode(p, "d/plain", |raw| raw.nlink = U32::new(2)),
            &[Kind::InodeLinks],
        ),
        case(
            "inode reference missing",
            |p| p.remove(FS, &reference(p, "d/plain").0),
            &[Kind::InodeLinks, Kind::EntryUnpaired],
        ),
        case(
            "inode reference of another index",
            |p| p.change(FS, &reference(p, "d/plain").0, |data| data[0] ^= 0x80),
            moved,
        ),
        case(
            "inode reference of another name",
            |p| p.change(FS, &reference(p, "d/plain").0, |data| data[10] = b'X'),
            moved,
        ),
        case(
            "inode reference in another directory",
            |p| {
                let (key, _) = reference(p, "d/plain");
                p.rekey(FS, &key, Key { offset: p.ino(FS, "d/e"), ..key });
            },
            moved,
        ),
        case(
            "extended reference of another index",
            |p| {
                let (key, _) = p.first(FS, ItemType::INODE_EXTREF);
                p.change(FS, &key, |data| data[8] ^= 0x80);
            },
            moved,
        ),
        case(
            "extended reference missing",
            |p| {
                let (key, _) = p.first(FS, ItemType::INODE_EXTREF);
                p.remove(FS, &key);
            },
            &[Kind::InodeLinks, Kind::EntryUnpaired],
        ),
        old("inode missing", inode_missing, &[Kind::InodeMissing]),
    ]
}

/// Removes the inode item of an inode at either end of a leaf; the leaf stays valid.
fn inode_missing(p: &TestImage) {
    let keys: Vec<Key> = p.items(FS).into_iter().map(|(key, _)| key).collect();
    let is_inode = |key: &Key| key.item_type == ItemType::INODE_ITEM;
    let cuts = keys.windows(2).filter(|pair| {
        p.leaf_of(FS, &pair[0]) != p.leaf_of(FS, &pair[1]) && pair.iter().any(is_inode)
    });
    let inode = cuts.into_iter().flatten().find(|key| is_inode(key));
    p.remove(FS, inode.expect("a leaf begins or ends with an inode"));
}

fn orphans() -> Vec<Case> {
    vec![
        case(
            "orphan item missing",
            |p| {
                let (key, _) = p.first(FS, ItemType::ORPHAN_ITEM);
                p.remove(FS, &key);
            },
            &[Kind::OrphanMissing],
        ),
        case(
            "orphan item of what has links",
            |p| p.insert(FS, orphan_key(p.ino(FS, "d/plain")), &[]),
            &[Kind::OrphanExtra],
        ),
        case(
            "orphan item of nothing",
            |p| p.insert(FS, orphan_key(99_999), &[]),
            &[Kind::OrphanExtra],
        ),
    ]
}
