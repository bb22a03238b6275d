//! Reads volumes of `make` back without the engine: every block of every tree passes the checks of
//! the format, and the same options give the same bytes.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::chunk::Chunk;
use butternut_format::key::ItemType;
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::root::RootItem;
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::TreeId;
use butternut_mkfs::{
    ChecksumKind, Features, Identity, MkfsError, MkfsOptions, Profile, Time, Uuid, make,
};

const MIB: u64 = 1 << 20;

fn options(words: &[&str]) -> MkfsOptions {
    let mut features = Features::default();
    for word in words {
        features.choose(word).unwrap();
    }
    let identity = Some(Identity::derived(Uuid(*b"0123456789abcdef")));
    MkfsOptions { identity, features, ..MkfsOptions::default() }
}

fn read(device: &dyn Device, offset: u64, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    device.read_at(offset, &mut memory).unwrap();
    memory
}

/// A volume as its superblock and chunks describe it.
struct Volume<'a> {
    device: &'a dyn Device,
    super_block: SuperBlock,
    chunks: Vec<Chunk>,
}

impl<'a> Volume<'a> {
    fn open(device: &'a dyn Device) -> Self {
        let bytes = read(device, COPY_OFFSETS[0], SUPER_BLOCK_BYTES);
        let super_block = SuperBlock::check(&bytes, 0).unwrap();
        let chunks = super_block.system_chunks().collect::<Result<_, _>>().unwrap();
        let mut volume = Self { device, super_block, chunks };
        let incompat = volume.super_block.raw().incompat_flags.get();
        for (key, data) in volume.items(&volume.super_block.chunk_root()) {
            if key.item_type == ItemType::CHUNK_ITEM {
                volume.chunks.push(Chunk::check(key, &data, incompat).unwrap());
            }
        }
        volume
    }

    /// Every copy of a block, checked; all copies are the same.
    fn block(&self, expected: &Expected) -> TreeBlock<Vec<u8>> {
        let at = expected.logical;
        let chunk = self.chunks.iter().find(|c| (c.logical..c.end()).contains(&at)).unwrap();
        let rules = BlockRules::of(&self.super_block);
        let mut blocks = chunk.stripes.iter().map(|stripe| {
            let physical = stripe.offset.0 + (at.0 - chunk.logical.0);
            let bytes = read(self.device, physical, self.super_block.node_bytes() as usize);
            TreeBlock::check(bytes, expected, &rules).unwrap()
        });
        let first = blocks.next().unwrap();
        assert!(blocks.all(|block| block.bytes() == first.bytes()));
        first
    }

    fn items(&self, root: &Expected) -> Vec<(butternut_format::key::Key, Vec<u8>)> {
        let block = self.block(root);
        let mut items = Vec::new();
        for slot in 0..block.len() {
            if let Some(child) = block.child(slot) {
                let expected = Expected {
                    logical: child.logical,
                    generation: child.generation,
                    level: root.level - 1,
                    tree: root.tree,
                    first_key: Some(child.key),
                    end_key: None,
                };
                items.extend(self.items(&expected));
            } else {
                let (key, data) = block.item(slot).unwrap();
                items.push((key, data.to_vec()));
            }
        }
        items
    }

    /// The items of every tree but that of chunks.
    fn trees(&self) -> Vec<(TreeId, usize)> {
        let mut trees = Vec::new();
        for (key, data) in self.items(&self.super_block.root()) {
            if key.item_type == ItemType::ROOT_ITEM {
                let root = RootItem::check(key, &data).unwrap();
                let tree = TreeId(key.objectid);
                let expected = root.block(tree);
                trees.push((tree, self.items(&expected).len()));
            }
        }
        trees
    }
}

#[test]
fn every_block_of_every_combination_is_valid() {
    let mut made = 0;
    for features in [&[][..], &["^fst"], &["bgt"], &["^skinny-metadata"], &["bgt", "^extref"]] {
        for csum in ChecksumKind::ALL {
            for node_bytes in [4096, 8192, 16384, 32768, 65536] {
                for metadata in [Profile::Single, Profile::Dup] {
                    let device = MemoryDevice::new("m", 300 * MIB);
                    let mut options = options(features);
                    options.csum = csum;
                    options.node_bytes = Some(node_bytes);
                    options.metadata = Some(metadata);
                    let report = make(&device, &options).unwrap();
                    let volume = Volume::open(&device);
                    assert_eq!(volume.super_block.fsid(), report.fsid.0);
                    let trees = volume.trees();
                    assert_eq!(trees.iter().filter(|tree| tree.0 == TreeId::FS).count(), 1);
                    made += 1;
                }
            }
        }
    }
    assert_eq!(made, 200);
}

#[test]
fn the_smallest_volumes_open() {
    let check = |words: &[&str], data, metadata, mib| {
        let mut options = options(words);
        (options.data, options.metadata) = (data, metadata);
        let device = MemoryDevice::new("m", mib * MIB);
        make(&device, &options).unwrap();
        Volume::open(&device).trees();
        let device = MemoryDevice::new("m", mib * MIB - 4096);
        assert!(matches!(make(&device, &options), Err(MkfsError::TooSmall { .. })));
    };
    let (single, dup) = (Some(Profile::Single), Some(Profile::Dup));
    check(&[], None, None, 109);
    check(&[], None, single, 45);
    check(&[], dup, single, 165);
    check(&[], dup, dup, 229);
    check(&["mixed-bg"], None, None, 16);
    check(&["mixed-bg", "bgt"], dup, dup, 157);
}

#[test]
fn nodes_of_4_kib_with_all_trees_need_a_root_tree_of_two_levels() {
    let device = MemoryDevice::new("m", 200 * MIB);
    let mut options = options(&["bgt"]);
    options.node_bytes = Some(4096);
    make(&device, &options).unwrap();
    let volume = Volume::open(&device);
    assert_eq!(volume.super_block.raw().root_level, 1);
    assert_eq!(volume.trees().len(), 8);
}

#[test]
fn the_same_options_give_the_same_bytes() {
    let image = || {
        let device = MemoryDevice::new("m", 120 * MIB);
        let mut options = options(&["bgt"]);
        options.label = b"twice".to_vec();
        options.time = Time { secs: 1_700_000_000, nanos: 0 };
        make(&device, &options).unwrap();
        read(&device, 0, 120 << 20)
    };
    assert!(image() == image());
}

#[test]
fn superblock_copies_are_written_inside_the_volume_and_old_ones_are_wiped() {
    let device = MemoryDevice::new("m", 300 << 30);
    make(&device, &options(&[])).unwrap();
    for (copy, offset) in COPY_OFFSETS.into_iter().enumerate() {
        let bytes = read(&device, offset, SUPER_BLOCK_BYTES);
        SuperBlock::check(&bytes, copy).unwrap();
    }
    let mut smaller = options(&[]);
    smaller.identity = None;
    (smaller.bytes, smaller.overwrite) = (Some(200 << 30), true);
    make(&device, &smaller).unwrap();
    assert_eq!(Volume::open(&device).super_block.raw().total_bytes.get(), 200 << 30);
    let bytes = read(&device, COPY_OFFSETS[2], SUPER_BLOCK_BYTES);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn an_existing_volume_is_refused_and_unchanged() {
    let device = MemoryDevice::new("m", 120 * MIB);
    make(&device, &options(&[])).unwrap();
    let before = read(&device, 0, 120 << 20);
    let refused = make(&device, &MkfsOptions::default()).unwrap_err();
    assert_eq!(refused.to_string(), "it holds a btrfs volume");
    assert!(before == read(&device, 0, 120 << 20));
    make(&device, &MkfsOptions { overwrite: true, ..options(&["bgt"]) }).unwrap();
    assert_eq!(Volume::open(&device).trees().len(), 8);
}

#[test]
fn a_device_is_neither_read_nor_written_as_a_whole() {
    let device = MemoryDevice::new("m", 10 << 30);
    make(&device, &options(&[])).unwrap();
    let counts = device.counters().now();
    assert!(counts.write_bytes < MIB, "{counts:?}");
    assert!(counts.read_bytes < 6 * MIB, "{counts:?}");
    assert_eq!(counts.flushes, 3, "{counts:?}");
}

#[test]
fn both_ends_and_the_reserved_space_are_wiped() {
    let device = MemoryDevice::new("m", 120 * MIB);
    let junk = vec![0xab; 1 << 20];
    device.write_at(0, &junk).unwrap();
    device.write_at(119 * MIB, &junk).unwrap();
    make(&device, &options(&[])).unwrap();
    let all = read(&device, 0, 120 << 20);
    assert!(all[..65536].iter().all(|byte| *byte == 0));
    assert!(all[69632..1 << 20].iter().all(|byte| *byte == 0));
    assert!(all[119 << 20..].iter().all(|byte| *byte == 0));
}
