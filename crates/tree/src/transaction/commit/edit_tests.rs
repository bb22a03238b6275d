//! Edits that fail or find no space after their first change in memory, and commits that cannot
//! read.

use super::tests::{change_item, fresh, item, open, put};
use crate::references::{Content, Ref};
use crate::{Block, Change, Forest, ForestOptions, Need, TreeError};
use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Child, Expected};
use butternut_format::units::{Logical, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::{AllocationRequest, Class, Cluster};
use butternut_volume::{OpenOptions, Volume};
use std::ops::Range;
use std::sync::Arc;

/// Allocates all metadata space, and adds chunks until the device has no space for more.
fn allocate_all(forest: &Arc<Forest>) -> Vec<Range<u64>> {
    let running = forest.running().expect("writable");
    let request = || AllocationRequest::node(running.params.node_bytes, Cluster(9));
    let mut taken = Vec::new();
    loop {
        while let Some(range) = running.space.allocate(Class::Metadata, request()) {
            taken.push(range);
        }
        if !running.add_chunk(Class::Metadata) {
            return taken;
        }
    }
}

/// Returns the children of the root of a tree.
fn children(forest: &Arc<Forest>, id: TreeId) -> Vec<Child> {
    let tree = forest.tree(id).expect("the root tree").expect("the tree");
    let root = forest.block(&tree.root()).expect("the root");
    assert_eq!(root.level(), 1, "a root and its leaves");
    (0..root.len()).filter_map(|slot| root.child(slot)).collect()
}

fn expected(id: TreeId, child: &Child) -> Expected {
    Expected {
        logical: child.logical,
        generation: child.generation,
        level: 0,
        tree: id,
        first_key: Some(child.key),
        end_key: None,
    }
}

#[test]
fn a_tree_that_loses_its_last_item_needs_no_space() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..70);
    forest.commit().expect("a commit");
    let leaves = children(&forest, TreeId::UUID);
    assert_eq!(leaves.len(), 2, "the items fill two leaves");
    let middle = leaves.last().expect("a leaf").key;
    drop(forest);

    // The other leaf is not in memory, so a root with one child is left.
    let forest = open(&device);
    let handle = forest.join(Need::items(70)).expect("space");
    let tree = handle.tree(TreeId::UUID).expect("the tree");
    tree.remove_range(middle..Key::MAX, &mut |_, _| {}).expect("a change");
    assert_eq!(tree.tree().root().level, 1, "a root with one child");
    let (key, data) = item(0);
    assert!(tree.update(&key, &mut |item| item.fill(1)).expect("a change"));
    assert_eq!(data.len(), 300);
    let taken = allocate_all(&forest);
    tree.remove_range(Key::MIN..Key::MAX, &mut |_, _| {}).expect("a removal without space");
    assert_eq!(tree.tree().root().level, 0);
    assert!(tree.tree().find(&key).expect("a search").is_none());
    for range in taken {
        let space = &forest.running().expect("writable").space;
        space.release(range).expect("an allocated range");
    }
    drop(handle);
    forest.commit().expect("a commit");
    drop(forest);
    let forest = open(&device);
    let tree = forest.tree(TreeId::UUID).expect("the root tree").expect("the tree");
    assert!(tree.find(&key).expect("a search").is_none());
    put(&forest, 0..70);
    forest.commit().expect("a commit");
}

#[test]
fn a_merge_with_an_item_that_is_too_large_changes_nothing() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..10);
    let handle = forest.join(Need::items(4)).expect("space");
    let tree = handle.tree(TreeId::UUID).expect("the tree");
    let new = item(20);
    let changes = [
        Change { key: new.0, to: Some(new.1) },
        Change { key: item(21).0, to: Some(vec![0; 1 << 20]) },
    ];
    let refused = tree.merge(&changes).expect_err("an item that no leaf can hold");
    assert!(matches!(refused, TreeError::TooLarge { .. }), "{refused}");
    assert!(tree.tree().find(&new.0).expect("a search").is_none());
    assert!(forest.write_error().is_none());
}

/// Fills the tree of subvolume 5 with two leaves and more, commits, and returns the leaves.
fn subvolume_leaves(forest: &Arc<Forest>) -> Vec<Child> {
    let handle = forest.join(Need::items(200)).expect("space");
    let tree = handle.tree(TreeId::FS).expect("the tree");
    for number in 0..200 {
        tree.put(&Key::new(256, ItemType(77), number), &[7; 300]).expect("a reserved change");
    }
    for number in 0..2 {
        let key = Key::new(256, ItemType::EXTENT_DATA, number << 12);
        tree.put(&key, &file_extent(number)).expect("a reserved change");
    }
    drop(handle);
    forest.commit().expect("a commit");
    children(forest, TreeId::FS)
}

/// Makes a file extent item of one sector.
fn file_extent(number: u64) -> Vec<u8> {
    let mut item = vec![0; 53];
    let mut set = |at: usize, value: u64| {
        for (to, from) in item.iter_mut().skip(at).zip(value.to_le_bytes()) {
            *to = from;
        }
    };
    set(0, 1);
    set(8, 4096);
    set(21, (1 << 40) + (number << 12));
    set(29, 4096);
    set(45, 4096);
    if let Some(kind) = item.get_mut(20) {
        *kind = 1;
    }
    item
}

#[test]
fn a_copy_that_fails_changes_no_reference_and_keeps_no_space() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    let leaves = subvolume_leaves(&forest);
    let leaf = expected(TreeId::FS, leaves.last().expect("a leaf"));
    // The last file extent of the cached leaf becomes unreadable, and the leaf is shared.
    let mut bad = Block::clone(&forest.block(&leaf).expect("the leaf"));
    let last = bad.len() - 1;
    assert_eq!(bad.key(last).map(|key| key.item_type), Some(ItemType::EXTENT_DATA));
    let data = bad.item(last).map(|(_, data)| data.to_vec()).expect("an item");
    let at = bad.bytes().windows(data.len()).position(|bytes| bytes == data).expect("its data");
    *bad.bytes_mut().get_mut(at + 20).expect("a type") = 9;
    forest.running().expect("writable").blocks().insert(Arc::new(bad));
    let running = forest.running().expect("writable");
    let (bytes, content) = (running.params.node_bytes, Content::block(leaf.level, leaf.first_key));
    let reference = Ref::Shared(Logical(1 << 45));
    running.references().change(leaf.logical, bytes.into(), content, reference, 1);
    let trees = running.trees();
    let tree = trees.iter().find(|tree| tree.id() == TreeId::FS).expect("a tree");
    let generation = forest.generation().expect("writable");
    if let Some(record) = tree.state_mut().record.as_mut() {
        record.raw.last_snapshot.set(generation.0);
    }
    let key = Key::new(256, ItemType::EXTENT_DATA, 0);
    let handle = forest.join(Need::items(2)).expect("space");
    let edit = handle.tree(TreeId::FS).expect("the tree");
    // The root is copied before the free space is read.
    edit.update(&Key::new(256, ItemType(77), 0), &mut |_| {}).expect("a change");
    let free = running.space.totals(Class::Metadata).free;
    let heads = running.references().len();
    edit.update(&key, &mut |_| {}).expect_err("an unreadable extent");
    assert_eq!(running.references().len(), heads, "no reference has changed");
    assert_eq!(running.space.totals(Class::Metadata).free, free, "no space is allocated");
}

#[test]
fn an_edit_that_fails_after_its_first_change_is_never_committed() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..200);
    forest.commit().expect("a commit");
    let leaves = children(&forest, TreeId::UUID);
    let [_, first, second, ..] = leaves.as_slice() else { panic!("{} leaves", leaves.len()) };
    let end = second.key;
    let before = leaves.first().expect("a leaf");
    // The left neighbour in the cache has another first key than its parent says.
    let block = forest.block(&expected(TreeId::UUID, before)).expect("the leaf");
    let mut bad = Block::clone(&block);
    crate::block_edit::LeafEdit::new(bad.bytes_mut()).remove(0..1);
    forest.running().expect("writable").blocks().insert(Arc::new(bad));

    let handle = forest.join(Need::items(100)).expect("space");
    let tree = handle.tree(TreeId::UUID).expect("the tree");
    let most = Key::new(first.key.objectid, first.key.item_type, first.key.offset + 1);
    let failed = tree.remove_range(most..end, &mut |_, _| {});
    assert!(failed.is_err(), "the leaf cannot be merged with its neighbour");
    drop(handle);
    assert!(forest.write_error().is_some(), "half a change ends writing");
    assert!(forest.commit().is_err());
}

#[test]
fn a_durable_commit_is_reported_even_if_the_root_tree_cannot_be_read() {
    // Without a block group tree, there is a tree to look for in vain.
    let mut options = MkfsOptions::default();
    options.features.choose("^block-group-tree").expect("a feature");
    let memory = MemoryDevice::new("memory", 512 << 20);
    butternut_mkfs::make(&memory, &options).expect("a fresh volume");
    let faulty = Arc::new(FaultyDevice::new(Arc::new(memory), 1));
    let device: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&faulty);
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    let small = ForestOptions { cache_bytes: 0, ..ForestOptions::default() };
    let forest = Forest::open_writable(Arc::new(volume), small).expect("writable");
    // The root item of that tree would be in a leaf without any other root item.
    let handle = forest.join(Need::items(200)).expect("space");
    let root_tree = handle.tree(TreeId::ROOT).expect("the tree");
    for number in 0..200 {
        let item_type = ItemType(if number < 100 { 77 } else { 210 });
        let key = Key::new(TreeId::BLOCK_GROUP.0, item_type, number);
        root_tree.put(&key, &[7; 300]).expect("a reserved change");
    }
    drop(handle);
    put(&forest, 0..4000);
    forest.commit().expect("a commit");
    let leaves = children(&forest, TreeId::ROOT);
    let sought = Key::new(TreeId::BLOCK_GROUP.0, ItemType::ROOT_ITEM, 0);
    let leaf = leaves.iter().rfind(|child| child.key <= sought).expect("a leaf");
    assert_eq!(leaf.key.objectid, TreeId::BLOCK_GROUP.0);
    let leaf = expected(TreeId::ROOT, leaf);

    change_item(&forest);
    let mut scan = forest.tree(TreeId::UUID).expect("the root tree").expect("the tree").scan();
    scan.seek(&Key::MIN).expect("a search");
    while scan.key().is_some() {
        scan.advance().expect("a step");
    }
    assert!(
        forest.running().expect("writable").blocks().cached(&leaf).expect("a leaf").is_none(),
        "the leaf is evicted"
    );
    let chunks = forest.volume().chunks();
    let layout = chunks.find(leaf.logical).expect("a chunk");
    for stripe in layout.stripes() {
        let at = stripe.physical.0 + (leaf.logical.0 - layout.logical().0);
        faulty.add(Rule::at(at..at + 16384, Fault::ReadError));
    }
    forest.commit().expect("a durable commit");
    assert!(forest.write_error().is_none());
    faulty.clear();
}
