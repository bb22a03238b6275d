//! Damage to inodes and file extents.

use crate::test_image::TestImage;
use crate::{Case, case, old, sealed};
use butternut_check::Kind;
use butternut_format::file_extent::RawFileExtentItem;
use butternut_format::inode::{InodeFlags, RawInodeItem};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use zerocopy::little_endian::{U32, U64};

const FS: TreeId = TreeId::FS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = inodes();
    cases.push(case(
        "seal without hashes",
        |p| inode(p, "d/plain", |raw| raw.flags = U64::new(InodeFlags::VERITY.0)),
        &[Kind::VerityItems],
    ));
    cases.extend(seals());
    cases.extend(extents());
    cases
}

/// Changes an item of fs-verity of the file `a`.
fn verity(p: &TestImage, item_type: ItemType, offset: u64, change: impl FnOnce(&mut [u8])) {
    let key = Key::new(p.ino(FS, "a"), item_type, offset);
    p.change(FS, &key, |item| change(item));
}

/// Damage to what fs-verity has stored: a root block at byte 0 of the tree, and two blocks of level
/// 0 behind it, each of two items.
fn seals() -> Vec<Case> {
    const DESCRIPTOR: ItemType = ItemType::VERITY_DESC_ITEM;
    const HASHES: ItemType = ItemType::VERITY_MERKLE_ITEM;
    vec![
        sealed(
            "sealed file with another version",
            |p| verity(p, DESCRIPTOR, 1, |item| item[0] = 2),
            &[Kind::VerityDescriptor],
        ),
        sealed(
            "sealed file with another reserved byte",
            |p| verity(p, DESCRIPTOR, 0, |item| item[9] = 1),
            &[Kind::VerityDescriptor],
        ),
        sealed(
            "sealed file of another size",
            |p| verity(p, DESCRIPTOR, 1, |item| item[8] ^= 1),
            &[Kind::VerityDescriptor],
        ),
        sealed(
            "sealed file without its last hashes",
            |p| p.remove(FS, &Key::new(p.ino(FS, "a"), HASHES, 10240)),
            &[Kind::VerityItems],
        ),
        sealed(
            "sealed file with another root hash",
            |p| verity(p, DESCRIPTOR, 1, |item| item[16] ^= 1),
            &[Kind::VerityHashes],
        ),
        sealed(
            "sealed file with another root block",
            |p| verity(p, HASHES, 2048, |item| item[2047] ^= 1),
            &[Kind::VerityHashes],
        ),
        sealed(
            "sealed file with another block of hashes",
            |p| verity(p, HASHES, 8192, |item| item[40] ^= 1),
            &[Kind::VerityHashes],
        ),
    ]
}

fn inode(p: &TestImage, path: &str, alter: impl FnOnce(&mut RawInodeItem)) {
    p.alter(FS, &Key::new(p.ino(FS, path), ItemType::INODE_ITEM, 0), alter);
}

fn extent(p: &TestImage, path: &str) -> Key {
    let ino = p.ino(FS, path);
    p.find(FS, |key, _| key.objectid == ino && key.item_type == ItemType::EXTENT_DATA).0
}

fn alter(p: &TestImage, path: &str, alter: impl FnOnce(&mut RawFileExtentItem)) {
    p.alter(FS, &extent(p, path), alter);
}

fn inodes() -> Vec<Case> {
    vec![
        case(
            "bytes of a file",
            |p| inode(p, "d/plain", |raw| raw.nbytes = U64::new(4096)),
            &[Kind::InodeBytes],
        ),
        case(
            "nodatasum without cause",
            |p| inode(p, "d/plain", |raw| raw.flags = U64::new(InodeFlags::NODATASUM.0)),
            &[Kind::ChecksumsUnexpected],
        ),
        case(
            "nodatasum lost",
            |p| inode(p, "d/bare", |raw| raw.flags = U64::new(0)),
            &[Kind::ChecksumsMissing],
        ),
        case(
            "nodatasum lost beside an unreadable block of another tree",
            |p| {
                inode(p, "d/bare", |raw| raw.flags = U64::new(0));
                p.write(p.root(TreeId::UUID).logical, &[0x55; 16384], 2);
            },
            &[Kind::ChecksumsMissing, Kind::BlockBad],
        ),
        case(
            "nodatasum lost beside an unreadable checksum tree",
            |p| {
                inode(p, "d/bare", |raw| raw.flags = U64::new(0));
                p.write(p.root(TreeId::CHECKSUM).logical, &[0x55; 16384], 2);
            },
            &[Kind::BlockBad],
        ),
        case(
            "fifo with data",
            |p| {
                inode(p, "d/plain", |raw| raw.mode = U32::new(0o010_644));
            },
            &[Kind::FileExtentForm, Kind::EntryKind],
        ),
        case(
            "attribute twice",
            |p| {
                let (key, data) = p.first(FS, ItemType::XATTR_ITEM);
                p.change(FS, &key, |item| item.extend_from_slice(&data));
            },
            &[Kind::XattrTwice],
        ),
        case(
            "symlink shorter than its target",
            |p| inode(p, "link", |raw| raw.size = U64::new(3)),
            &[Kind::FileExtentForm],
        ),
        case(
            "file shorter than its extents",
            |p| inode(p, "d/plain", |raw| raw.size = U64::new(4096)),
            &[Kind::FileExtentBehind],
        ),
        case(
            "file shorter than what is inline",
            |p| inode(p, "d/small", |raw| raw.size = U64::new(1)),
            &[Kind::FileExtentForm],
        ),
        old(
            "file longer than its extents",
            |p| inode(p, "d/plain", |raw| raw.size = U64::new(1 << 20)),
            &[Kind::FileExtentGap],
        ),
    ]
}

fn extents() -> Vec<Case> {
    vec![
        case(
            "file extent missing",
            |p| p.remove(FS, &extent(p, "d/other")),
            &[Kind::InodeBytes, Kind::ExtentUnused],
        ),
        case(
            "file extent of a clone missing",
            |p| p.remove(FS, &extent(p, "d/clone")),
            &[Kind::InodeBytes, Kind::ReferenceExtra],
        ),
        old(
            "hole extent missing",
            |p| p.remove(FS, &extent(p, "d/sparse")),
            &[Kind::FileExtentGap],
        ),
        case(
            "file extents overlap",
            |p| {
                let key = extent(p, "d/plain");
                let data = p.find(FS, |found, _| *found == key).1;
                p.insert(FS, Key { offset: 4096, ..key }, &data);
            },
            &[Kind::BlockBad],
        ),
        case(
            "file extent of a longer extent",
            |p| alter(p, "d/other", |raw| raw.disk_num_bytes = U64::new(24576)),
            &[Kind::ExtentSize],
        ),
        case(
            "file extent of a free place",
            |p| {
                alter(p, "d/other", |raw| {
                    raw.disk_bytenr = U64::new(raw.disk_bytenr.get() + (1 << 23));
                });
            },
            &[Kind::ExtentUnused, Kind::ExtentItemMissing, Kind::ChecksumsMissing],
        ),
        case(
            "file extent from the future",
            |p| alter(p, "d/other", |raw| raw.header.generation = U64::new(1 << 40)),
            &[Kind::FileExtentForm],
        ),
        case(
            "preallocated extent that is compressed",
            |p| alter(p, "d/reserved", |raw| raw.header.compression = 1),
            &[Kind::BlockBad],
        ),
        case(
            "inline extent longer than a sector",
            |p| {
                let key = extent(p, "d/small");
                p.change(FS, &key, |data| {
                    data[8..16].copy_from_slice(&8192_u64.to_le_bytes());
                    data[16] = 1;
                });
            },
            &[Kind::FileExtentForm, Kind::InodeBytes, Kind::FileExtentBehind],
        ),
        case(
            "shorter extent of a file",
            |p| alter(p, "d/other", |raw| raw.num_bytes = U64::new(4096)),
            &[Kind::InodeBytes],
        ),
    ]
}
