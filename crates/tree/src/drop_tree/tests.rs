//! Deletions that end after each number of blocks, each part in an open of its own.

use super::Dropped;
use crate::{Forest, ForestOptions, Need, ReservationLevel, TreeError};
use butternut_device::{Device, MemoryDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::root::RawRootItem;
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;
use zerocopy::FromZeros;

const SUBVOLUME: TreeId = TreeId(256);
const SNAPSHOT: TreeId = TreeId(257);

fn open(device: &Arc<MemoryDevice>) -> Arc<Forest> {
    let device: Arc<dyn Device> = Arc::<MemoryDevice>::clone(device);
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a forest")
}

fn commit_with(
    forest: &Arc<Forest>,
    change: impl FnOnce(&crate::AtCommit<'_>) -> Result<(), TreeError>,
) {
    forest.commit_with(ReservationLevel::Normal, change).expect("a commit");
}

fn put(forest: &Arc<Forest>, tree: TreeId, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let handle = forest.join(Need::items(1)).expect("space");
        let edit = handle.tree(tree).expect("the tree");
        edit.put(&Key::new(300, ItemType(77), number), &[7; 3000]).expect("a reserved change");
    }
}

/// Makes a subvolume of `items` items, of which five fill a leaf.
fn subvolume(device: &Arc<MemoryDevice>, items: u64) -> Arc<Forest> {
    butternut_mkfs::make(&**device, &MkfsOptions::default()).expect("a volume");
    let forest = open(device);
    let mut root = RawRootItem::new_zeroed();
    root.refs.set(1);
    commit_with(&forest, |at_commit| at_commit.create_tree(SUBVOLUME, &root));
    put(&forest, SUBVOLUME, 0..items);
    forest.commit().expect("a commit");
    forest
}

/// Frees a deleted tree in parts of `blocks` blocks, each in a commit and an open of its own.
fn free(device: &Arc<MemoryDevice>, id: TreeId, blocks: usize) {
    for _ in 0..10_000 {
        let forest = open(device);
        let handle = forest.join(Need::items(4).deleting()).expect("space");
        let dropped = handle.drop_tree(id, blocks).expect("a part");
        if dropped == Dropped::Whole {
            let (key, _) = forest.root_item(id).expect("a search").expect("the root item");
            handle.tree(TreeId::ROOT).expect("the tree").remove(&key).expect("a change");
            handle.forget_tree(id);
        }
        drop(handle);
        forest.commit().expect("a commit");
        if dropped == Dropped::Whole {
            return;
        }
    }
    panic!("a part frees nothing");
}

fn used(forest: &Arc<Forest>) -> u64 {
    forest.groups().expect("the groups").iter().map(|group| group.used).sum()
}

#[test]
fn a_tree_is_freed_whole_wherever_its_parts_end() {
    for items in [0, 3, 5 * 4, 5 * 6 + 1, 5 * 17] {
        for blocks in [1, 2, 3, 4, 6, 7, 17, 64] {
            let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
            let forest = subvolume(&device, 0);
            forest.commit().expect("a commit");
            let empty = used(&forest);
            put(&forest, SUBVOLUME, 0..items);
            commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
            assert!(forest.join(Need::items(1)).expect("space").tree(SUBVOLUME).is_err());
            drop(forest);
            free(&device, SUBVOLUME, blocks);
            let forest = open(&device);
            assert!(used(&forest) < empty, "{items} items, {blocks} blocks: {}", used(&forest));
        }
    }
}

#[test]
fn a_shared_tree_keeps_its_blocks_wherever_the_parts_end() {
    for blocks in [1, 2, 3, 5, 8, 64] {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        let forest = subvolume(&device, 90);
        commit_with(&forest, |at_commit| at_commit.snapshot(SUBVOLUME, SNAPSHOT, |_| {}));
        put(&forest, SUBVOLUME, 30..50);
        commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
        drop(forest);
        free(&device, SUBVOLUME, blocks);
        let forest = open(&device);
        // Copies every block of the snapshot, which counts all references.
        put(&forest, SNAPSHOT, 0..90);
        forest.commit().expect("a commit");
        commit_with(&forest, |at_commit| at_commit.delete_tree(SNAPSHOT));
        drop(forest);
        free(&device, SNAPSHOT, blocks);
        open(&device).commit().expect("a commit");
    }
}
