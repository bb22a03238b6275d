//! Laws of a block's header and slots, and of a superblock.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod image;

use butternut_format::checksum::ChecksumKind;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::{
    BlockRules, Expected, HEADER_BYTES, RawHeader, RawItem, RawKeyPtr, TreeBlock,
};
use butternut_format::super_block::{
    COPY_OFFSETS, FLAG_CHANGING_FSID_V2, FLAG_METADUMP_V2, RawSuperBlock, SUPER_BLOCK_BYTES,
    SuperBlock,
};
use butternut_format::units::{Generation, Logical, TreeId};
use image::{Folder, mkfs};
use std::os::unix::fs::FileExt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const NODE_BYTES: usize = 4096;
const SLOT_BYTES: u32 = 4096 - 101;
const ORPHAN: ItemType = ItemType::ORPHAN_ITEM;

fn rules() -> BlockRules {
    BlockRules {
        csum: ChecksumKind::Crc32c,
        node_bytes: 4096,
        fsids: vec![[1; 16], [2; 16]],
        incompat: 0,
        compat_ro: 0,
    }
}

fn header(nritems: usize, level: u8) -> RawHeader {
    let mut header = RawHeader::new_zeroed();
    header.fsid = [2; 16];
    header.bytenr.set(65536);
    header.flags.set(1 << 56 | 1);
    header.generation.set(9);
    header.owner.set(TreeId::TREE_LOG.0);
    header.nritems.set(nritems.try_into().unwrap());
    header.level = level;
    header
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(&checksum);
    bytes
}

/// Returns a block of a log tree with this header and these slots.
fn block(header: RawHeader, slots: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; NODE_BYTES];
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    bytes[HEADER_BYTES..HEADER_BYTES + slots.len()].copy_from_slice(slots);
    seal(bytes)
}

fn expected(level: u8) -> Expected {
    Expected {
        logical: Logical(65536),
        generation: Generation(9),
        level,
        tree: TreeId::TREE_LOG,
        first_key: None,
        end_key: None,
    }
}

fn check_block(bytes: &[u8], expected: &Expected) -> String {
    let checked = TreeBlock::check(bytes, expected, &rules());
    checked.map_or_else(|refused| refused.to_string(), |_| String::new())
}

/// Returns a leaf of items of an unknown type, which may have any contents.
fn leaf(items: &[(u64, u32, u32)]) -> Vec<u8> {
    let slots: Vec<_> = items
        .iter()
        .map(|(objectid, offset, size)| RawItem {
            key: RawKey::from(Key::new(*objectid, ItemType(77), 0)),
            offset: U32::new(*offset),
            size: U32::new(*size),
        })
        .collect();
    block(header(items.len(), 0), slots.as_bytes())
}

fn node(children: &[(u64, u64, u64)]) -> Vec<u8> {
    let slots: Vec<_> = children
        .iter()
        .map(|(objectid, blockptr, generation)| RawKeyPtr {
            key: RawKey::from(Key::new(*objectid, ORPHAN, 0)),
            blockptr: U64::new(*blockptr),
            generation: U64::new(*generation),
        })
        .collect();
    block(header(children.len(), 2), slots.as_bytes())
}

#[test]
fn items_are_adjacent_from_the_end_of_the_block() {
    let end = SLOT_BYTES;
    let refused = |items: &[(u64, u32, u32)]| check_block(&leaf(items), &expected(0));
    assert_eq!(refused(&[(1, end - 8, 8), (2, end - 8, 0), (3, end - 9, 1)]), "");
    let gap = "leaf 65536: slot 1: key (2 77 0): offset + size: have 3986, want 3987";
    assert_eq!(refused(&[(1, end - 8, 8), (2, end - 10, 1)]), gap);
    assert!(refused(&[(1, end - 8, 9)]).ends_with("offset + size: have 3996, want 3995"));
    assert!(refused(&[(1, u32::MAX, 8)]).ends_with("offset + size: have 4294967303, want 3995"));
    assert!(refused(&[(1, 24, end - 24)]).ends_with("offset: have 24, want at least 25"));
    assert_eq!(refused(&[(1, 25, end - 25)]), "");
    assert!(
        refused(&[(2, end, 0), (2, end, 0)]).ends_with("key: have (2 77 0), want above (2 77 0)")
    );
}

#[test]
fn accessors_return_the_contents_of_the_slots() {
    let mut bytes = leaf(&[(5, SLOT_BYTES - 3, 3), (7, SLOT_BYTES - 3, 0)]);
    bytes[4093..].copy_from_slice(b"abc");
    let block = TreeBlock::check(seal(bytes), &expected(0), &rules()).unwrap();
    let key = Key::new(5, ItemType(77), 0);
    assert_eq!(block.item(0), Some((key, &b"abc"[..])));
    assert_eq!(block.item(1).unwrap().1, b"");
    assert_eq!((block.find(&key), block.find(&Key::new(6, ORPHAN, 0))), (Ok(0), Err(1)));
    assert_eq!((block.find(&Key::MIN), block.find(&Key::MAX)), (Err(0), Err(2)));
    assert_eq!((block.len(), block.level(), block.is_leaf()), (2, 0, true));
}

#[test]
fn children_are_aligned_and_not_newer_than_their_node() {
    let refused = |children: &[(u64, u64, u64)]| check_block(&node(children), &expected(2));
    assert_eq!(refused(&[(1, 4096, 9), (2, 8192, 1)]), "");
    assert_eq!(refused(&[]), "node 65536: nritems: have 0, want at least one child");
    let newer = "node 65536: slot 1: generation: have 10, want at most 9";
    assert_eq!(refused(&[(1, 4096, 9), (2, 8192, 10)]), newer);
    assert!(refused(&[(1, 0, 9)]).ends_with("blockptr: have 0, want not 0"));
    assert!(refused(&[(1, 100, 9)]).ends_with("blockptr: have 100, want sector aligned"));
    assert!(refused(&[(2, 4096, 9), (1, 4096, 9)]).ends_with("want above (2 48 0)"));
}

#[test]
fn a_header_matches_the_volume_and_has_the_written_flag() {
    let refused = |change: &dyn Fn(&mut RawHeader)| {
        let mut header = header(0, 0);
        change(&mut header);
        check_block(&block(header, &[]), &expected(0)).replace("leaf 65536: ", "")
    };
    assert_eq!(refused(&|_| ()), "");
    assert!(refused(&|raw| raw.fsid = [3; 16]).starts_with("fsid: have 0303"));
    let unwritten = "flags: have 0x100000000000000, want WRITTEN (bit 0) set";
    assert_eq!(refused(&|raw| raw.flags.set(1 << 56)), unwritten);
    assert_eq!(refused(&|raw| raw.flags.set(1)), "flags: backref revision: have 0, want 1");
    assert_eq!(refused(&|raw| raw.level = 9), "level: have 9, want below 8");
    let many = "nritems: have 4294967295, want at most as many as fit into the block";
    assert_eq!(refused(&|raw| raw.nritems.set(u32::MAX)), many);
    assert_eq!(refused(&|raw| raw.owner.set(5)), "owner: have 5, want 18446744073709551610");
}

#[test]
fn only_some_roots_may_be_empty() {
    let refused = |owner: TreeId, first_key| {
        let mut header = header(0, 0);
        header.owner.set(owner.0);
        let expected = Expected { tree: owner, first_key, ..expected(0) };
        check_block(&block(header, &[]), &expected)
    };
    assert_eq!(refused(TreeId::CHECKSUM, None), "");
    assert_eq!(refused(TreeId(300), None), "");
    let root = "leaf 65536: nritems: have 0, want at least one item in tree 1";
    assert_eq!(refused(TreeId::ROOT, None), root);
    let below = "leaf 65536: nritems: have 0, want at least one item in a leaf below a node";
    assert_eq!(refused(TreeId::CHECKSUM, Some(Key::MIN)), below);
}

#[test]
fn keys_stay_below_the_parents_next_key() {
    let end = SLOT_BYTES;
    let leaf = leaf(&[(5, end, 0), (7, end, 0)]);
    let node = node(&[(5, 8192, 9), (7, 12288, 9)]);
    for (bytes, level, kind) in [(leaf, 0, "leaf"), (node, 2, "node")] {
        let refused = |objectid: u64| {
            let end_key = Some(Key::new(objectid, ItemType(0), 0));
            check_block(&bytes, &Expected { end_key, ..expected(level) })
        };
        assert_eq!(refused(8), "");
        let past = refused(7);
        assert!(past.starts_with(&format!("{kind} 65536: last key: have (7 ")), "{past}");
        assert!(past.ends_with("want below (7 0 0), the parent's next"), "{past}");
        assert!(refused(6).contains("last key"));
    }
}

#[test]
fn subvolumes_share_blocks_with_subvolumes_only() {
    let refused = |owner: u64, tree: u64| {
        let mut header = header(0, 0);
        header.owner.set(owner);
        check_block(&block(header, &[]), &Expected { tree: TreeId(tree), ..expected(0) })
    };
    assert_eq!((refused(256, 300), refused(300, 5)), (String::new(), String::new()));
    assert_eq!(refused(7, 300), "leaf 65536: owner: have 7, want a subvolume");
    assert_eq!(refused(300, 7), "leaf 65536: owner: have 300, want 7");
    assert_eq!(refused(7, 0), "");
}

#[test]
fn a_block_of_another_size_is_refused() {
    let bytes = leaf(&[]);
    assert_eq!(
        check_block(&bytes[..4095], &expected(0)),
        "leaf 65536: bytes: have 4095, want 4096"
    );
    assert_eq!(check_block(&[], &expected(0)), "leaf 65536: bytes: have 0, want 4096");
}

#[test]
fn an_invalid_super_block_is_refused_by_field() {
    let folder = Folder::new("super");
    let file = std::fs::File::open(mkfs(&folder, &[])).unwrap();
    let mut good = vec![0; SUPER_BLOCK_BYTES];
    file.read_exact_at(&mut good, COPY_OFFSETS[0]).unwrap();
    let refused = |change: &dyn Fn(&mut RawSuperBlock)| {
        let mut bytes = good.clone();
        change(RawSuperBlock::mut_from_bytes(&mut bytes).unwrap());
        let refused = SuperBlock::check(&seal(bytes), 0).unwrap_err().to_string();
        refused.replace("superblock copy 0: ", "")
    };
    assert_eq!(refused(&|raw| raw.magic.set(0)), "magic: have 0x0, want 0x4d5f53665248425f");
    assert_eq!(refused(&|raw| raw.csum_type.set(4)), "csum_type: have 4, want 0 to 3");
    assert_eq!(refused(&|raw| raw.sectorsize.set(16384)), "sectorsize: have 16384, want 4096");
    let nodesize = "nodesize: have 12288, want a power of two from 4096 to 65536";
    assert_eq!(refused(&|raw| raw.nodesize.set(12288)), nodesize);
    assert_eq!(refused(&|raw| raw.unused_leafsize.set(4096)), "leafsize: have 4096, want 16384");
    assert_eq!(refused(&|raw| raw.root.set(5)), "root: have 5, want sector aligned");
    assert_eq!(refused(&|raw| raw.chunk_root.set(0)), "chunk_root: have 0, want not 0");
    assert_eq!(refused(&|raw| raw.log_root_level = 8), "log_root_level: have 8, want below 8");
    assert_eq!(refused(&|raw| raw.num_devices.set(0)), "num_devices: have 0, want 1 to 2^31");
    assert_eq!(refused(&|raw| raw.bytes_used.set(7)), "bytes_used: have 7, want at least 98304");
    assert!(refused(&|raw| raw.dev_item.fsid = [7; 16]).starts_with("dev_item: fsid: have 0707"));
    let chunkless = "sys_chunk_array_size: have 0, want 1 to 2048";
    assert_eq!(refused(&|raw| raw.sys_chunk_array_size.set(0)), chunkless);
    assert!(refused(&|raw| raw.sys_chunk_array_size.set(20)).starts_with("system chunk"));
    let fsid = refused(&|raw| raw.flags.set(raw.flags.get() | FLAG_CHANGING_FSID_V2));
    assert!(fsid.ends_with("want no CHANGING_FSID_V2 (bit 36): finish it with btrfstune"));
    let dump = refused(&|raw| raw.flags.set(raw.flags.get() | FLAG_METADUMP_V2));
    assert!(dump.ends_with("want no METADUMP_V2 (bit 34): restore the image first"));
    let zoned = refused(&|raw| raw.incompat_flags.set(raw.incompat_flags.get() | 1 << 12));
    assert_eq!(zoned, "incompat_flags: have zoned (bit 12), want only supported features");
    let group_tree = refused(&|raw| raw.compat_ro_flags.set(0x8));
    assert!(
        group_tree.ends_with("want a valid free-space-tree (bits 0 and 1) with block-group-tree")
    );
}

#[test]
fn an_unknown_compat_ro_bit_forbids_only_writing() {
    let folder = Folder::new("compat-ro");
    let file = std::fs::File::open(mkfs(&folder, &[])).unwrap();
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    file.read_exact_at(&mut bytes, COPY_OFFSETS[0]).unwrap();
    let raw = RawSuperBlock::mut_from_bytes(&mut bytes).unwrap();
    raw.compat_ro_flags.set(raw.compat_ro_flags.get() | 1 << 9);
    let checked = SuperBlock::check(&seal(bytes), 0).unwrap();
    let want = "compat_ro_flags: have unknown (bit 9), want only supported features";
    assert_eq!(checked.writable().unwrap_err().to_string(), want);
}
