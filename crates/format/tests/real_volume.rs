//! Volumes that mkfs.btrfs writes pass every check, block by block.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod image;

use butternut_format::checksum::ChecksumKind;
use butternut_format::key::Key;
use butternut_format::node::TreeBlock;
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::Logical;
use image::{Folder, Image, fill, items, mkfs};
use std::os::unix::fs::FileExt;

#[test]
fn every_checksum_and_node_size_is_read() {
    let folder = Folder::new("checksums");
    let cases = [
        ("crc32c", "4096", ChecksumKind::Crc32c),
        ("xxhash", "16384", ChecksumKind::Xxhash64),
        ("sha256", "32768", ChecksumKind::Sha256),
        ("blake2", "65536", ChecksumKind::Blake2b),
    ];
    for (csum, node_bytes, kind) in cases {
        let image = Image::open(&mkfs(&folder, &["--csum", csum, "-n", node_bytes]));
        assert_eq!(image.super_block.csum(), kind);
        assert_eq!(image.super_block.node_bytes().to_string(), node_bytes);
        assert!(image.tally().values().sum::<usize>() > 30);
    }
}

#[test]
fn every_feature_of_mkfs_is_read() {
    let folder = Folder::new("features");
    fill(&folder);
    let cases: [&[&str]; 8] = [
        &["-O", "^no-holes,^free-space-tree,^block-group-tree"],
        &["-O", "^skinny-metadata,^extref,^block-group-tree"],
        &["-O", "free-space-tree,block-group-tree,no-holes"],
        &["-O", "quota"],
        &["-O", "squota"],
        &["-O", "mixed-bg", "-n", "4096"],
        &["-m", "single", "-d", "single", "-n", "4096"],
        &["-m", "dup", "-d", "dup"],
    ];
    for options in cases {
        let image = Image::open(&mkfs(&folder, options));
        let tally = image.tally();
        // Inodes, names in both forms, and extents of 3000 files, some of them inline.
        for (item_type, least) in [(1, 3003), (12, 3003), (84, 3004), (96, 3004), (108, 2999)] {
            let have = tally.get(&item_type).copied().unwrap_or_default();
            assert!(have >= least, "{options:?}: type {item_type}: {have} items of {least}");
        }
    }
}

#[test]
fn find_agrees_with_a_scan_of_the_slots() {
    let folder = Folder::new("find");
    fill(&folder);
    let image = Image::open(&mkfs(&folder, &["-n", "4096"]));
    let mut inner_nodes = 0;
    image.walk_all(&mut |block| {
        inner_nodes += usize::from(!block.is_leaf());
        for slot in 0..block.len() {
            let key = block.key(slot).unwrap();
            assert_eq!(block.find(&key), Ok(slot));
            let next = key.successor().unwrap();
            let want = if block.key(slot + 1) == Some(next) { Ok(slot + 1) } else { Err(slot + 1) };
            assert_eq!(block.find(&next), want);
            assert_eq!(block.item(slot).is_some(), block.is_leaf());
            assert_eq!(block.child(slot).is_some(), !block.is_leaf());
        }
        assert_eq!(block.key(block.len()), None);
        assert_eq!(block.item(block.len()), None);
        assert_eq!(block.child(block.len()), None);
    });
    assert!(inner_nodes > 3, "the trees have too few inner nodes: {inner_nodes}");
}

#[test]
fn any_flipped_bit_of_a_block_is_refused() {
    let folder = Folder::new("bits");
    let image = Image::open(&mkfs(&folder, &["-n", "4096"]));
    let expected = image.super_block.root();
    let good = image.read(expected.logical);
    for at in (0..good.len()).step_by(3) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let refused = TreeBlock::check(bad, &expected, &image.rules).map(drop);
        // The 28 bytes behind a short checksum are not covered, and are ignored.
        assert_eq!(refused.is_ok(), (4..32).contains(&at), "byte {at}: {refused:?}");
    }
}

#[test]
fn a_block_that_does_not_match_its_parent_is_refused() {
    let folder = Folder::new("promise");
    let image = Image::open(&mkfs(&folder, &[]));
    let expected = image.super_block.root();
    let refused = |change: &dyn Fn(&mut butternut_format::node::Expected)| {
        let mut other = expected;
        change(&mut other);
        let bytes = image.read(expected.logical);
        TreeBlock::check(bytes, &other, &image.rules).unwrap_err().field().to_owned()
    };
    assert_eq!(refused(&|other| other.logical = Logical(other.logical.0 + 16384)), "bytenr");
    assert_eq!(refused(&|other| other.generation.0 += 1), "generation");
    assert_eq!(refused(&|other| other.level += 1), "level");
    assert_eq!(refused(&|other| other.tree.0 = 5), "owner");
    assert_eq!(refused(&|other| other.first_key = Some(Key::MIN)), "first key");
    let mut rules = image.rules.clone();
    rules.fsids = vec![[9; 16]];
    let bytes = image.read(expected.logical);
    assert_eq!(TreeBlock::check(bytes, &expected, &rules).unwrap_err().field(), "fsid");
}

#[test]
fn super_block_copies_are_valid_only_at_their_own_offset() {
    let folder = Folder::new("copies");
    let path = mkfs(&folder, &["-L", "a label"]);
    let file = std::fs::File::open(path).unwrap();
    for (copy, other) in [(0, 1), (1, 0)] {
        let mut bytes = vec![0; SUPER_BLOCK_BYTES];
        file.read_exact_at(&mut bytes, COPY_OFFSETS[copy]).unwrap();
        let super_block = SuperBlock::check(&bytes, copy).unwrap();
        assert_eq!(super_block.label(), b"a label");
        super_block.writable().unwrap();
        assert_eq!(SuperBlock::check(&bytes, other).unwrap_err().field(), "bytenr");
    }
}

#[test]
fn items_of_a_leaf_fit_into_the_block() {
    let folder = Folder::new("slots");
    let image = Image::open(&mkfs(&folder, &[]));
    image.walk_all(&mut |block| {
        let held: usize = items(block).map(|(_, data)| data.len() + 25).sum();
        assert!(held <= image.rules.slot_bytes());
    });
}
