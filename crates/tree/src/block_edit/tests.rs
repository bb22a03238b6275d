//! Random edits of leaves and nodes, compared with a map.

use super::*;
use butternut_format::key::ItemType;
use butternut_format::node::{NewBlock, TreeBlock};
use butternut_format::units::{Generation, Logical, TreeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn empty(level: u8) -> TreeBlock<Vec<u8>> {
    let new = NewBlock {
        logical: Logical(65536),
        generation: Generation(7),
        owner: TreeId::FS,
        level,
        fsid: [1; 16],
        chunk_tree_uuid: [2; 16],
    };
    TreeBlock::compose(vec![0; 4096], &new)
}

fn key(number: u16) -> Key {
    Key::new(number.into(), ItemType::XATTR_ITEM, 0)
}

fn items(block: &TreeBlock<Vec<u8>>) -> Vec<(Key, Vec<u8>)> {
    (0..block.len()).map(|slot| block.item(slot).map(|(k, d)| (k, d.to_vec())).unwrap()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, Vec<u8>),
    Resize(u16, usize),
    Remove(u16, u16),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        4 => (0u16..40, bytes).prop_map(|(number, bytes)| Step::Put(number, bytes)),
        1 => (0u16..40, 0usize..400).prop_map(|(number, size)| Step::Resize(number, size)),
        1 => (0u16..40, 1u16..5).prop_map(|(first, count)| Step::Remove(first, count)),
    ]
}

fn apply(block: &mut TreeBlock<Vec<u8>>, model: &mut BTreeMap<Key, Vec<u8>>, step: Step) {
    match step {
        Step::Put(number, bytes) => {
            let key = key(number);
            let Err(slot) = block.find(&key) else { return };
            let mut leaf = LeafEdit::new(block.bytes_mut());
            let fits = bytes.len() + ITEM_BYTES <= leaf.free();
            let placed = leaf.insert(slot, &key, bytes.len());
            assert_eq!(placed.is_some(), fits);
            if let Some(place) = placed {
                place.copy_from_slice(&bytes);
                model.insert(key, bytes);
            }
        }
        Step::Resize(number, size) => {
            let Ok(slot) = block.find(&key(number)) else { return };
            if LeafEdit::new(block.bytes_mut()).resize(slot, size) {
                model.get_mut(&key(number)).unwrap().resize(size, 0);
            }
        }
        Step::Remove(first, count) => {
            let at = |number| block.find(&key(number)).unwrap_or_else(|slot| slot);
            let slots = at(first)..at(first + count);
            LeafEdit::new(block.bytes_mut()).remove(slots);
            model.retain(|k, _| !(key(first)..key(first + count)).contains(k));
        }
    }
}

proptest! {
    #[test]
    fn a_leaf_holds_the_inserted_items(steps in prop::collection::vec(step(), 1..80)) {
        let (mut block, mut model) = (empty(0), BTreeMap::new());
        for step in steps {
            apply(&mut block, &mut model, step);
            let want: Vec<_> = model.iter().map(|(k, v)| (*k, v.clone())).collect();
            prop_assert_eq!(items(&block), want);
        }
        let used: usize = model.values().map(|v| v.len() + ITEM_BYTES).sum();
        prop_assert_eq!(LeafEdit::new(block.bytes_mut()).used(), used);
    }

    #[test]
    fn a_tail_moved_away_and_back_changes_nothing(
        steps in prop::collection::vec(step(), 1..60),
        at in 0usize..40,
    ) {
        let (mut block, mut model) = (empty(0), BTreeMap::new());
        for step in steps {
            apply(&mut block, &mut model, step);
        }
        let before = items(&block);
        let at = at.min(block.len());
        let mut right = empty(0);
        let (mut left_edit, mut right_edit) =
            (LeafEdit::new(block.bytes_mut()), LeafEdit::new(right.bytes_mut()));
        left_edit.move_tail(at, &mut right_edit);
        prop_assert!(left_edit.append_all(&mut LeafEdit::new(right.bytes_mut())));
        prop_assert_eq!(items(&right), before[at..].to_vec());
        prop_assert_eq!(items(&block), before);
    }
}

#[test]
fn a_full_node_refuses_children_and_splits() {
    let child = |n: u64| Child {
        key: Key::new(n, ItemType(1), 0),
        logical: Logical(n * 4096),
        generation: Generation(n),
    };
    let (mut block, mut right) = (empty(1), empty(1));
    let mut node = NodeEdit::new(block.bytes_mut());
    let capacity = node.capacity();
    assert_eq!(capacity, 121);
    for n in (1..=121).rev() {
        assert!(node.insert(0, &child(n)));
    }
    assert!(!node.insert(5, &child(500)));
    node.move_tail(60, &mut NodeEdit::new(right.bytes_mut()));
    assert_eq!((block.len(), right.len()), (60, 61));
    assert_eq!(right.child(0), Some(child(61)));
    let mut node = NodeEdit::new(block.bytes_mut());
    node.remove(0);
    assert!(node.append_all(&NodeEdit::new(right.bytes_mut())));
    assert_eq!(block.len(), 120);
    assert_eq!((block.child(0), block.child(119)), (Some(child(2)), Some(child(121))));
}
