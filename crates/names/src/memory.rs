//! A subvolume as an ordered map, for tests. [`Memory::audit`] checks all items after a change.

use crate::items::{EditItems, Limits, OwnedItem, ReadItems};
use butternut_format::check::{LeafContext, LeafItem, leaf_item};
use butternut_format::checksum::{ChecksumKind, name_hash};
use butternut_format::dir::DirEntries;
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::BlockRules;
use butternut_format::units::{Generation, TreeId};
use butternut_tree::{Alter, TreeError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) const NODE_BYTES: u32 = 4096;

/// The items of one tree.
#[derive(Debug)]
pub(crate) struct Memory {
    items: RefCell<BTreeMap<Key, Vec<u8>>>,
    /// Whether a change could not be completed.
    failed: Cell<bool>,
    pub(crate) limits: Limits,
}

impl Memory {
    pub(crate) fn new(extended_refs: bool) -> Self {
        let limits = Limits::new(NODE_BYTES, extended_refs);
        Self { items: RefCell::default(), failed: Cell::new(false), limits }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    pub(crate) fn items(&self) -> BTreeMap<Key, Vec<u8>> {
        self.items.borrow().clone()
    }

    pub(crate) fn count(&self, item_type: ItemType) -> usize {
        self.items.borrow().keys().filter(|key| key.item_type == item_type).count()
    }

    /// Checks that every item is valid and fits into a leaf, and that the three items of each name
    /// match.
    pub(crate) fn audit(&self) {
        let rules = BlockRules {
            csum: ChecksumKind::Crc32c,
            node_bytes: NODE_BYTES,
            fsids: Vec::new(),
            incompat: 0,
            compat_ro: 0,
        };
        let items = self.items();
        let mut previous = None;
        let (mut by_hash, mut by_index) = (BTreeSet::new(), BTreeSet::new());
        let mut by_reference = BTreeSet::new();
        for (key, data) in &items {
            assert!(data.len() <= self.limits.item_bytes_max, "{key}: {} bytes", data.len());
            let item = LeafItem { key: *key, data };
            let (owner, generation) = (TreeId::FS, Generation(9));
            let around = LeafContext { previous, owner, generation, rules: &rules };
            leaf_item(&item, &around).unwrap_or_else(|refused| panic!("{key}: {refused}"));
            previous = Some(item);
            let dir = key.objectid;
            match key.item_type {
                ItemType::DIR_ITEM => by_hash.extend(DirEntries::new(data).map(|entry| {
                    let entry = entry.unwrap();
                    (dir, entry.location.objectid, entry.name.to_vec())
                })),
                ItemType::DIR_INDEX => by_index.extend(DirEntries::new(data).map(|entry| {
                    let entry = entry.unwrap();
                    (dir, entry.location.objectid, entry.name.to_vec(), key.offset)
                })),
                ItemType::INODE_REF => by_reference.extend(InodeRefs::new(data).map(|entry| {
                    let entry = entry.unwrap();
                    (key.offset, key.objectid, entry.name.to_vec(), entry.index)
                })),
                ItemType::INODE_EXTREF => {
                    by_reference.extend(InodeExtrefs::new(data).map(|entry| {
                        let entry = entry.unwrap();
                        (entry.parent.0, key.objectid, entry.name.to_vec(), entry.index)
                    }));
                }
                _ => {}
            }
        }
        assert_eq!(by_index, by_reference);
        let indexed: BTreeSet<_> =
            by_index.into_iter().map(|(d, i, name, _)| (d, i, name)).collect();
        assert_eq!(by_hash, indexed);
    }
}

impl ReadItems for Memory {
    fn tree_id(&self) -> TreeId {
        TreeId::FS
    }

    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, TreeError> {
        Ok(self.items.borrow().get(key).cloned())
    }

    fn first_from(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        Ok(self.items.borrow().range(key..).next().map(|(key, data)| (*key, data.clone())))
    }

    fn last_to(&self, key: &Key) -> Result<Option<OwnedItem>, TreeError> {
        Ok(self.items.borrow().range(..=key).next_back().map(|(key, data)| (*key, data.clone())))
    }
}

impl EditItems for Memory {
    fn edited_tree(&self) -> TreeId {
        TreeId::FS
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn insert(&self, key: &Key, data: &[u8]) -> Result<bool, TreeError> {
        let mut items = self.items.borrow_mut();
        if items.contains_key(key) {
            return Ok(false);
        }
        items.insert(*key, data.to_vec());
        Ok(true)
    }

    fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.items.borrow_mut().insert(*key, data.to_vec());
        Ok(())
    }

    fn remove(&self, key: &Key) -> Result<bool, TreeError> {
        Ok(self.items.borrow_mut().remove(key).is_some())
    }

    fn update(&self, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError> {
        let mut items = self.items.borrow_mut();
        let Some(item) = items.get_mut(key) else { return Ok(false) };
        change(item);
        Ok(true)
    }

    fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError> {
        let mut items = self.items.borrow_mut();
        match decide(items.get(key).map(Vec::as_slice)) {
            Alter::Keep => None,
            Alter::Put(data) => items.insert(*key, data),
            Alter::Remove => items.remove(key),
        };
        Ok(())
    }

    fn remove_range(
        &self,
        keys: Range<Key>,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError> {
        let mut items = self.items.borrow_mut();
        items.range(keys.clone()).for_each(|(key, data)| visit(*key, data));
        let before = items.len();
        items.retain(|key, _| !keys.contains(key));
        Ok((before - items.len()) as u64)
    }

    fn fail(&self, error: TreeError) -> TreeError {
        self.failed.set(true);
        error
    }
}

/// Returns names of one length that start with `prefix` and have the same hash.
///
/// A CRC is linear: changing several letters from 'a' to 'c' changes it by the sum of the single
/// changes. With more letters than the hash has bits, some of these sums are zero.
pub(crate) fn colliding(prefix: &[u8], length: usize, count: usize) -> Vec<Vec<u8>> {
    let mut base = prefix.to_vec();
    base.resize(length, b'a');
    let with = |letters: u64| {
        let mut name = base.clone();
        for at in 0..64 {
            if letters >> at & 1 == 1 {
                name[prefix.len() + at] = b'c';
            }
        }
        name
    };
    let (mut pivots, mut sums) = (BTreeMap::<u32, (u64, u64)>::new(), Vec::new());
    for at in 0..45.min(length - prefix.len()) {
        let (mut change, mut letters) = (name_hash(&with(1 << at)) ^ name_hash(&base), 1 << at);
        while let Some((other, others)) = pivots.get(&change.leading_zeros()) {
            change ^= other;
            letters ^= others;
            if change == 0 {
                break;
            }
        }
        if change == 0 {
            sums.push(letters);
        } else {
            pivots.insert(change.leading_zeros(), (change, letters));
        }
    }
    let names: Vec<_> = (0..count)
        .map(|number| {
            let chosen = sums.iter().enumerate().filter(|(at, _)| number >> at & 1 == 1);
            with(chosen.fold(0, |letters, (_, sum)| letters ^ sum))
        })
        .collect();
    assert!(names.iter().all(|name| name_hash(name) == name_hash(&base)));
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count, "name too short");
    names
}
