//! Deletions that end after each number of blocks, each part in an open of its own.

use super::Dropped;
use crate::{Forest, ForestOptions, Need, QuotaMode, ReservationLevel, TreeError};
use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut_format::key::{ItemType, Key};
use butternut_format::root::RawRootItem;
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;
use zerocopy::FromZeros;

const SUBVOLUME: TreeId = TreeId(256);
const SNAPSHOT: TreeId = TreeId(257);
const SECOND: TreeId = TreeId(258);
const PARTS_MAX: usize = 10_000;

fn open(device: &Arc<MemoryDevice>) -> Arc<Forest> {
    open_on(Arc::<MemoryDevice>::clone(device))
}

fn open_on(device: Arc<dyn Device>) -> Arc<Forest> {
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
    subvolume_of(device, &MkfsOptions::default(), items)
}

/// Makes a subvolume of small nodes: one item fills a leaf, and 122 leaves a node above them.
fn tall_subvolume(device: &Arc<MemoryDevice>, items: u64) -> Arc<Forest> {
    subvolume_of(device, &MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() }, items)
}

fn subvolume_of(device: &Arc<MemoryDevice>, options: &MkfsOptions, items: u64) -> Arc<Forest> {
    butternut_mkfs::make(&**device, options).expect("a volume");
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
    for _ in 0..PARTS_MAX {
        if free_part(&open(device), id, blocks) {
            return;
        }
    }
    panic!("a part frees nothing");
}

/// Frees a deleted tree in parts of `blocks` blocks, in one open.
fn free_in(forest: &Arc<Forest>, id: TreeId, blocks: usize) {
    for _ in 0..PARTS_MAX {
        if free_part(forest, id, blocks) {
            return;
        }
    }
    panic!("a part frees nothing");
}

/// Frees one part, and commits. Returns whether it was the last.
fn free_part(forest: &Arc<Forest>, id: TreeId, blocks: usize) -> bool {
    let handle = forest.join(Need::items(4).deleting()).expect("space");
    let dropped = handle.drop_tree(id, blocks).expect("a part");
    if dropped == Dropped::Whole {
        let (key, _) = forest.root_item(id).expect("a search").expect("the root item");
        handle.tree(TreeId::ROOT).expect("the tree").remove(&key).expect("a change");
        handle.forget_tree(id);
    }
    drop(handle);
    forest.commit().expect("a commit");
    dropped == Dropped::Whole
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

/// Copies every block of a tree, which counts all its references, and deletes it.
fn use_and_delete(device: &Arc<MemoryDevice>, id: TreeId, items: u64) {
    let forest = open(device);
    put(&forest, id, 0..items);
    forest.commit().expect("a commit");
    commit_with(&forest, |at_commit| at_commit.delete_tree(id));
    free_in(&forest, id, 64);
    drop(forest);
    open(device).commit().expect("a commit");
}

#[test]
fn shared_nodes_above_leaves_get_their_references_wherever_the_parts_end() {
    for blocks in [1, 2, 3, 5, 8, 61, 64] {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        let forest = tall_subvolume(&device, 300);
        commit_with(&forest, |at_commit| at_commit.snapshot(SUBVOLUME, SNAPSHOT, |_| {}));
        put(&forest, SUBVOLUME, 140..145);
        commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
        free_in(&forest, SUBVOLUME, blocks);
        drop(forest);
        use_and_delete(&device, SNAPSHOT, 300);
    }
}

#[test]
fn shared_nodes_that_others_copy_meanwhile_get_their_references() {
    for blocks in [1, 2, 7] {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        let forest = tall_subvolume(&device, 300);
        for snapshot in [SNAPSHOT, SECOND] {
            commit_with(&forest, |at_commit| at_commit.snapshot(SUBVOLUME, snapshot, |_| {}));
        }
        commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
        std::thread::scope(|scope| {
            for (tree, step) in [(SNAPSHOT, 7), (SECOND, 11)] {
                let forest = &forest;
                scope.spawn(move || {
                    for number in (0..300).rev().step_by(step) {
                        put(forest, tree, number..number + 1);
                    }
                });
            }
            free_in(&forest, SUBVOLUME, blocks);
        });
        forest.commit().expect("a commit");
        drop(forest);
        use_and_delete(&device, SNAPSHOT, 300);
        use_and_delete(&device, SECOND, 300);
    }
}

#[test]
fn a_part_counts_blocks_that_need_nothing() {
    let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
    let forest = tall_subvolume(&device, 300);
    commit_with(&forest, |at_commit| at_commit.snapshot(SUBVOLUME, SNAPSHOT, |_| {}));
    commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
    assert!(!free_part(&forest, SUBVOLUME, 100), "the part is smaller than the subtree");
    drop(forest);
    let forest = open(&device);
    assert!(!free_part(&forest, SUBVOLUME, 4));
    let tree = forest.running().expect("writable").tree(SUBVOLUME).expect("a search");
    let converted = tree.expect("the tree").state().converted;
    let leaf = |number| (Key::new(300, ItemType(77), number), 0);
    assert!(converted.includes(leaf(1)) && !converted.includes(leaf(20)), "{converted:?}");
}

#[test]
fn a_deletion_that_cannot_go_on_causes_no_commit() {
    let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
    let forest = tall_subvolume(&device, 3);
    commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
    drop(forest);
    let faulty = Arc::new(FaultyDevice::new(Arc::<MemoryDevice>::clone(&device), 1));
    let forest = open_on(Arc::<FaultyDevice>::clone(&faulty));
    let handle = forest.join(Need::items(4).deleting()).expect("space");
    // Reads the root, and what the references need.
    handle.drop_tree(SUBVOLUME, 1).expect("a part");
    drop(handle);
    forest.commit().expect("a commit");
    faulty.add(Rule::everywhere(Fault::ReadError));
    for _ in 0..2 {
        let handle = forest.join(Need::items(4).deleting()).expect("space");
        handle.drop_tree(SUBVOLUME, 1).expect_err("a leaf that cannot be read");
        drop(handle);
        let before = device.counters().now().writes;
        forest.commit().expect("a commit");
        assert_eq!(device.counters().now().writes, before, "nothing has changed");
    }
}

#[test]
fn progress_that_names_no_child_is_refused() {
    let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
    let forest = tall_subvolume(&device, 10);
    commit_with(&forest, |at_commit| at_commit.delete_tree(SUBVOLUME));
    commit_with(&forest, |at_commit| {
        at_commit.update_root(SUBVOLUME, |root| {
            root.drop_progress = Key::new(300, ItemType(77), 500).into();
            root.drop_level = 1;
        })
    });
    let handle = forest.join(Need::items(4).deleting()).expect("space");
    let refused = handle.drop_tree(SUBVOLUME, 4).expect_err("no such child");
    assert!(format!("{refused:?}").contains("drop_progress"), "{refused:?}");
}

/// A rescan looks at every subvolume; it leaves none of them among the trees that each commit, and
/// each charge below a limit, goes through.
#[test]
fn a_rescan_leaves_no_tree_to_the_running_transaction() {
    let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
    let forest = subvolume(&device, 30);
    commit_with(&forest, |at_commit| at_commit.enable_quotas(QuotaMode::Full).map(drop));
    for number in 1..=50 {
        let id = TreeId(SUBVOLUME.0 + number);
        commit_with(&forest, |at_commit| at_commit.snapshot(SUBVOLUME, id, |_| {}));
    }
    drop(forest);
    let forest = open(&device);
    commit_with(&forest, |at_commit| {
        at_commit.rescan_quotas()?;
        Ok(())
    });
    let trees = forest.running().expect("writable").trees();
    let kept: Vec<_> = trees.iter().map(|tree| tree.id()).filter(|id| id.is_subvolume()).collect();
    // The open may have used the top level.
    assert!(kept.iter().all(|id| *id == TreeId::FS), "{kept:?} were not changed");
}

/// As a recursive snapshot changes its entries: in the commit that makes the snapshot.
#[test]
fn blocks_that_were_changed_in_the_commit_of_their_snapshot_get_their_references() {
    for blocks in [1, 3, 64] {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        let forest = tall_subvolume(&device, 300);
        commit_with(&forest, |at_commit| {
            at_commit.snapshot(SUBVOLUME, SNAPSHOT, |_| {})?;
            at_commit.tree(SNAPSHOT)?.put(&Key::new(300, ItemType(77), 5), &[8; 3000])
        });
        commit_with(&forest, |at_commit| at_commit.snapshot(SNAPSHOT, SECOND, |_| {}));
        commit_with(&forest, |at_commit| at_commit.delete_tree(SNAPSHOT));
        free_in(&forest, SNAPSHOT, blocks);
        drop(forest);
        use_and_delete(&device, SECOND, 300);
    }
}
