//! No bytes make a check or an accessor panic, whether or not their checksum is valid.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod image;

use butternut_format::block_group::BlockGroup;
use butternut_format::check::{LeafContext, LeafItem, leaf_item};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::Chunk;
use butternut_format::extent::Extent;
use butternut_format::free_space::FreeBitmap;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{BlockRules, Expected, RawHeader, TreeBlock};
use butternut_format::quota::QgroupStatus;
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::{Generation, Logical, TreeId};
use image::{Folder, Image, fill, mkfs};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use zerocopy::FromBytes;

/// Every type that some check knows, the type of a free space cache header, and an unknown one.
const TYPES: [u8; 42] = [
    0, 1, 12, 13, 24, 36, 37, 48, 60, 72, 84, 96, 108, 128, 132, 144, 156, 168, 169, 172, 176, 178,
    182, 184, 192, 198, 199, 200, 204, 216, 228, 230, 240, 242, 244, 246, 248, 249, 250, 251, 252,
    77,
];

struct Corpus {
    super_block: Vec<u8>,
    blocks: Vec<Vec<u8>>,
    rules: BlockRules,
}

/// Up to 40 blocks of each tree and level of a volume with every kind of item that mkfs creates.
static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let folder = Folder::new("corpus");
    fill(&folder);
    let path = mkfs(&folder, &["-n", "4096", "-O", "squota"]);
    let image = Image::open(&path);
    let mut super_block = vec![0; SUPER_BLOCK_BYTES];
    std::fs::File::open(path).unwrap().read_exact_at(&mut super_block, COPY_OFFSETS[0]).unwrap();
    let mut selected = std::collections::BTreeMap::<_, u32>::new();
    let mut blocks = Vec::new();
    image.walk_all(&mut |block| {
        let selected = selected.entry((block.owner(), block.level())).or_default();
        if *selected < 40 {
            *selected += 1;
            blocks.push(block.bytes().to_vec());
        }
    });
    Corpus { super_block, blocks, rules: image.rules }
});

/// Returns what a parent of these bytes would expect.
fn expected_of(bytes: &[u8]) -> Expected {
    let (header, _) = RawHeader::ref_from_prefix(bytes).unwrap();
    Expected {
        logical: Logical(header.bytenr.get()),
        generation: Generation(header.generation.get()),
        level: header.level,
        tree: TreeId(header.owner.get()),
        first_key: None,
        end_key: None,
    }
}

fn seal(bytes: &mut [u8], csum: ChecksumKind) {
    let checksum = csum.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(&checksum);
}

fn changed(bytes: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, value) in changes {
        let at = at % bytes.len();
        bytes[at] = *value;
    }
    bytes
}

/// Calls every accessor, and every decoder that the floors above call.
fn exercise(block: &TreeBlock<Vec<u8>>, rules: &BlockRules) {
    for slot in 0..=block.len() {
        let key = block.key(slot).unwrap_or(Key::MAX);
        let (_, _, _) = (block.find(&key).is_ok(), block.child(slot), block.item(slot));
        let Some((key, data)) = block.item(slot) else { continue };
        if let Ok(extent) = Extent::check(key, data, block.generation(), rules) {
            assert!(extent.inline_refs().all(|reference| reference.is_ok()));
        }
        if let Ok(bitmap) = FreeBitmap::check(key, data) {
            assert!(bitmap.ranges().all(|range| range.end() <= bitmap.range.end()));
        }
    }
    assert!(!format!("{block:?}").is_empty());
}

fn check_item(key: Key, data: &[u8], previous: Option<(Key, &[u8])>) -> bool {
    let rules = &CORPUS.rules;
    let previous = previous.map(|(key, data)| LeafItem { key, data });
    let context =
        LeafContext { previous, owner: TreeId::FS, generation: Generation(1 << 40), rules };
    leaf_item(&LeafItem { key, data }, &context).is_ok()
}

fn any_key() -> impl Strategy<Value = Key> {
    let number = prop_oneof![
        any::<u64>(),
        (0_u64..1 << 20).prop_map(|sector| sector * 4096),
        (0_u64..20).prop_map(|number| u64::MAX - number),
        0_u64..300,
    ];
    (number.clone(), prop::sample::select(&TYPES[..]), number)
        .prop_map(|(objectid, item_type, offset)| Key::new(objectid, ItemType(item_type), offset))
}

fn any_changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    // Half of the changes hit the header and the first slots, where a byte has the largest effect.
    let at = prop_oneof![0_usize..400, any::<usize>()];
    let value = prop_oneof![any::<u8>(), Just(0), Just(u8::MAX)];
    prop::collection::vec((at, value), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn changed_blocks_are_checked_without_a_panic(
        which in any::<usize>(), changes in any_changes(),
    ) {
        let Corpus { blocks, rules, .. } = &*CORPUS;
        let mut bytes = changed(&blocks[which % blocks.len()], &changes);
        seal(&mut bytes, rules.csum);
        let expected = expected_of(&bytes);
        if let Ok(block) = TreeBlock::check(bytes, &expected, rules) {
            exercise(&block, rules);
        }
    }

    #[test]
    fn random_items_are_checked_without_a_panic(
        key in any_key(),
        data in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..3], 0..600),
        before in any_key(),
        previous in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        check_item(key, &data, None);
        check_item(key, &data, Some((before, &previous)));
        check_item(key, &data, Some((Key { item_type: key.item_type, ..before }, &previous)));
    }

    #[test]
    fn changed_items_are_checked_without_a_panic(
        which in any::<usize>(), slot in any::<usize>(),
        changes in any_changes(), cut in 0_usize..80,
    ) {
        let Corpus { blocks, rules, .. } = &*CORPUS;
        let bytes = blocks[which % blocks.len()].clone();
        let expected = expected_of(&bytes);
        let block = TreeBlock::check(bytes, &expected, rules).unwrap();
        let slot = slot % block.len().max(1);
        let Some((key, data)) = block.item(slot) else { return Ok(()) };
        prop_assert!(check_item(key, data, None));
        let data = if data.is_empty() { Vec::new() } else { changed(data, &changes) };
        check_item(key, &data[..data.len().saturating_sub(cut)], None);
    }

    #[test]
    fn changed_super_blocks_are_checked_without_a_panic(changes in any_changes(), reseal: bool) {
        let mut bytes = changed(&CORPUS.super_block, &changes);
        if reseal {
            seal(&mut bytes, CORPUS.rules.csum);
        }
        for copy in 0..4 {
            if let Ok(checked) = SuperBlock::check(&bytes, copy) {
                prop_assert!(checked.system_chunks().all(|chunk| chunk.is_ok()));
                prop_assert!(checked.label().len() <= 256);
                let _: [Expected; 2] = [checked.root(), checked.chunk_root()];
            }
        }
    }

    #[test]
    fn random_bytes_are_not_a_tree_block_or_superblock(
        data in prop::collection::vec(any::<u8>(), 0..5000), key in any_key(),
    ) {
        let expected = Expected {
            logical: Logical(0),
            generation: Generation(0),
            level: 0,
            tree: TreeId(0),
            first_key: None,
            end_key: None,
        };
        let is_err = TreeBlock::check(data.as_slice(), &expected, &CORPUS.rules).is_err();
        prop_assert!(is_err && SuperBlock::check(&data, 0).is_err());
        let _: (bool, bool, bool) = (
            Chunk::check(key, &data, u64::MAX).is_ok(),
            BlockGroup::check(key, &data, u64::MAX).is_ok(),
            QgroupStatus::check(key, &data).is_ok(),
        );
    }
}
