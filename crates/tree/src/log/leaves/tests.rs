//! Log trees against a model in memory: what is composed is what was put.

use super::*;
use butternut_format::key::ItemType;
use butternut_format::units::{Generation, TreeId};
use std::collections::{BTreeMap, HashMap};

const NODE_BYTES: u32 = 4096;

fn key(number: u64) -> Key {
    Key::new(number, ItemType::XATTR_ITEM, 7)
}

fn new_block() -> NewBlock {
    NewBlock {
        logical: Logical(0),
        generation: Generation(9),
        owner: TreeId::TREE_LOG,
        level: 0,
        fsid: [1; 16],
        chunk_tree_uuid: [2; 16],
    }
}

/// A device in memory: composed blocks by address.
#[derive(Default)]
struct Written {
    blocks: HashMap<Logical, Arc<Block>>,
    next: u64,
}

impl Written {
    fn compose(&mut self, tree: &mut LogTree) -> (LogRoot, usize) {
        let mut blocks = Vec::new();
        let next = &mut self.next;
        let mut allocate = || {
            *next += 1;
            Ok::<_, ()>(Logical(*next * u64::from(NODE_BYTES)))
        };
        let root = tree.compose(&new_block(), &mut allocate, &mut blocks).unwrap();
        let count = blocks.len();
        for block in blocks {
            assert!(self.blocks.insert(block.logical(), block).is_none(), "law 1");
        }
        (root, count)
    }

    fn read(&self, root: LogRoot) -> BTreeMap<Key, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut below = vec![root.at];
        while let Some(at) = below.pop() {
            let block = &self.blocks[&at];
            for slot in 0..block.len() {
                if let Some(child) = block.child(slot) {
                    below.push(child.logical);
                    continue;
                }
                let (key, data) = block.item(slot).unwrap();
                assert!(found.insert(key, data.to_vec()).is_none());
            }
        }
        found
    }
}

#[test]
fn a_random_history_is_composed_as_it_is() {
    let mut state: u64 = 42;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % below
    };
    let (mut tree, mut written) = (LogTree::new(NODE_BYTES), Written::default());
    let mut model = BTreeMap::new();
    for round in 0..200_u8 {
        for _ in 0..random(60) {
            let (number, len) = (random(2000), usize::try_from(random(300)).unwrap());
            tree.put(key(number), vec![round; len]);
            model.insert(key(number), vec![round; len]);
        }
        let (from, to) = (random(2000), random(2000));
        if from <= to && round % 3 == 0 {
            tree.remove(&(key(from)..=key(to)));
            model.retain(|known, _| *known < key(from) || *known > key(to));
        }
        let blocks_max = tree.blocks_max();
        let (root, count) = written.compose(&mut tree);
        assert!(count <= blocks_max, "{count} blocks, at most {blocks_max}");
        assert_eq!(written.read(root), model, "round {round}");
        for dropped in tree.take_dropped() {
            assert!(
                written.blocks.remove(&dropped).is_some(),
                "dropped once, after it was written"
            );
        }
        assert_eq!(written.read(root), model, "dropped blocks are not part of the tree");
    }
    assert!(written.blocks.len() < 400, "what a tree no longer uses is dropped");
}

#[test]
fn a_small_change_composes_one_leaf_and_the_nodes_above() {
    let (mut tree, mut written) = (LogTree::new(NODE_BYTES), Written::default());
    for number in 0..1000 {
        tree.put(key(number), vec![3; 100]);
    }
    written.compose(&mut tree);
    let leaves = tree.leaves.len();
    assert!(leaves < 1000 * (100 + ITEM_BYTES) / (index(NODE_BYTES) - HEADER_BYTES) + 5, "full");
    tree.put(key(500), vec![4; 100]);
    let (root, count) = written.compose(&mut tree);
    assert_eq!((root.level, count), (1, 2));
    assert_eq!(written.compose(&mut tree).1, 0, "nothing changed");
}

#[test]
fn the_only_leaf_may_become_empty() {
    let (mut tree, mut written) = (LogTree::new(NODE_BYTES), Written::default());
    tree.put(key(1), vec![]);
    tree.remove(&(Key::MIN..=Key::MAX));
    let (root, _) = written.compose(&mut tree);
    assert!(written.read(root).is_empty() && root.level == 0);
    assert!(tree.can_hold(&vec![0; index(NODE_BYTES) - HEADER_BYTES - ITEM_BYTES]));
    assert!(!tree.can_hold(&vec![0; index(NODE_BYTES) - HEADER_BYTES - ITEM_BYTES + 1]));
}

#[test]
fn a_leaf_that_was_emptied_is_in_the_old_root_only() {
    let (mut tree, mut written) = (LogTree::new(NODE_BYTES), Written::default());
    let mut model = BTreeMap::new();
    for number in 0..30 {
        tree.put(key(number), vec![7; 1000]);
        model.insert(key(number), vec![7; 1000]);
    }
    let (first, _) = written.compose(&mut tree);
    assert_eq!(written.read(first), model);
    let last = tree.leaves[0].items.last().unwrap().0;
    tree.remove(&(key(0)..=last));
    model.retain(|key, _| *key > last);
    let (second, _) = written.compose(&mut tree);
    assert_eq!(written.read(second), model);
}
