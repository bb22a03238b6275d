//! Sets of subvolumes, each kept once: many extents have the same set.

use butternut_format::units::TreeId;
use std::collections::HashMap;
use std::sync::Arc;

/// A set of [`RootSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetId(usize);

/// All sets that were seen, and their unions.
#[derive(Debug)]
pub(crate) struct RootSets {
    sets: Vec<Arc<[TreeId]>>,
    ids: HashMap<Arc<[TreeId]>, SetId>,
    /// Of two sets each.
    unions: HashMap<Box<[SetId]>, SetId>,
}

impl RootSets {
    /// The set without a subvolume.
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn new() -> Self {
        let empty: Arc<[TreeId]> = Arc::from([]);
        let ids = HashMap::from([(empty.clone(), Self::EMPTY)]);
        Self { sets: vec![empty], ids, unions: HashMap::new() }
    }

    /// Returns the subvolumes of a set, sorted.
    pub(crate) fn get(&self, id: SetId) -> &[TreeId] {
        self.sets.get(id.0).map_or(&[], |set| set)
    }

    pub(crate) fn of_one(&mut self, tree: TreeId) -> SetId {
        self.intern(vec![tree])
    }

    /// Returns the union of some sets. Only the result is kept, not what a part of them has: a
    /// block may have a reference for each of thousands of snapshots.
    pub(crate) fn union(&mut self, mut parts: Vec<SetId>) -> SetId {
        parts.retain(|part| *part != Self::EMPTY);
        parts.sort_unstable();
        parts.dedup();
        match *parts.as_slice() {
            [] => return Self::EMPTY,
            [one] => return one,
            _ => {}
        }
        if let Some(known) = self.unions.get(parts.as_slice()) {
            return *known;
        }
        let mut all: Vec<_> = parts.iter().flat_map(|part| self.get(*part)).copied().collect();
        all.sort_unstable();
        all.dedup();
        let union = self.intern(all);
        if let &[_, _] = parts.as_slice() {
            self.unions.insert(parts.into_boxed_slice(), union);
        }
        union
    }

    fn intern(&mut self, set: Vec<TreeId>) -> SetId {
        if let Some(known) = self.ids.get(set.as_slice()) {
            return *known;
        }
        let set: Arc<[TreeId]> = set.into();
        let id = SetId(self.sets.len());
        self.sets.push(Arc::clone(&set));
        self.ids.insert(set, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::RootSets;
    use crate::quota::roots::{Roots, Trees};
    use crate::{AtCommit, Forest, ForestOptions, Need, ReservationLevel, TreeError};
    use butternut_device::{Device, MemoryDevice};
    use butternut_format::key::{ItemType, Key};
    use butternut_format::root::RawRootItem;
    use butternut_format::units::TreeId;
    use butternut_mkfs::MkfsOptions;
    use butternut_volume::{OpenOptions, Volume};
    use std::sync::Arc;
    use zerocopy::FromZeros;

    #[test]
    fn a_set_is_kept_once() {
        let mut sets = RootSets::new();
        let [a, b, c] = [300, 200, 100].map(|id| sets.of_one(TreeId(id)));
        let ab = sets.union(vec![a, b]);
        let abc = sets.union(vec![ab, c, ab]);
        assert_eq!(sets.get(abc), [TreeId(100), TreeId(200), TreeId(300)]);
        let ca = sets.union(vec![c, a]);
        assert_eq!(sets.union(vec![ca, b]), abc);
        assert_eq!(sets.union(vec![abc, a]), abc);
        assert_eq!(sets.union(vec![a, b, c]), abc);
        assert_eq!(sets.union(vec![RootSets::EMPTY, b]), b);
        assert_eq!(sets.union(Vec::new()), RootSets::EMPTY);
        assert_eq!(sets.of_one(TreeId(300)), a);
    }

    fn at_commit(
        forest: &Arc<Forest>,
        change: impl FnOnce(&AtCommit<'_>) -> Result<(), TreeError>,
    ) {
        forest.commit_with(ReservationLevel::Normal, change).expect("a commit");
    }

    /// With one for each of its references, it grows with their square.
    #[test]
    fn a_block_of_many_snapshots_keeps_one_set_and_not_one_for_each_of_its_references() {
        const SOURCE: TreeId = TreeId(256);
        const SNAPSHOTS: u64 = 200;
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).expect("a volume");
        let devices: Vec<Arc<dyn Device>> = vec![device];
        let volume = Volume::open(devices, OpenOptions::default());
        let volume = Arc::new(volume.expect("a volume"));
        let forest = Forest::open_writable(volume, ForestOptions::default()).expect("a forest");
        let mut root = RawRootItem::new_zeroed();
        root.refs.set(1);
        at_commit(&forest, |commit| commit.create_tree(SOURCE, &root));
        for number in 0..10 {
            let handle = forest.join(Need::items(1)).expect("space");
            let edit = handle.tree(SOURCE).expect("the tree");
            edit.put(&Key::new(300, ItemType(77), number), &[7; 3000]).expect("a reserved change");
        }
        forest.commit().expect("a commit");
        for number in 1..=SNAPSHOTS {
            let id = TreeId(SOURCE.0 + number);
            at_commit(&forest, |commit| commit.snapshot(SOURCE, id, |_| {}));
        }
        let tree = forest.tree(SOURCE).expect("the root tree").expect("the tree");
        let root = forest.block(&tree.root()).expect("the root");
        let leaf = root.child(0).expect("a leaf").logical;
        let mut sets = RootSets::new();
        let running = forest.running().expect("writable");
        let mut roots = Roots::new(Trees::Running(running)).expect("the extent tree");
        let found = roots.find(leaf, &mut sets).expect("its references").expect("the leaf");
        let count = usize::try_from(SNAPSHOTS).expect("small") + 1;
        assert_eq!(sets.get(found.roots).len(), count);
        let kept: usize = sets.sets.iter().map(|set| set.len()).sum();
        assert!(kept <= 4 * count, "{kept} ids are kept for one block of {count} subvolumes");
    }
}
