//! Sets of subvolumes, each kept once: many extents have the same set.

use butternut_format::units::TreeId;
use std::collections::HashMap;

/// A set of [`RootSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SetId(usize);

/// All sets that were seen, and their unions.
#[derive(Debug)]
pub(crate) struct RootSets {
    sets: Vec<Box<[TreeId]>>,
    ids: HashMap<Box<[TreeId]>, SetId>,
    unions: HashMap<(SetId, SetId), SetId>,
}

impl RootSets {
    /// The set without a subvolume.
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn new() -> Self {
        let empty: Box<[TreeId]> = Box::default();
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

    pub(crate) fn union(&mut self, one: SetId, other: SetId) -> SetId {
        if one == other || other == Self::EMPTY {
            return one;
        }
        if one == Self::EMPTY {
            return other;
        }
        if let Some(known) = self.unions.get(&(one, other)) {
            return *known;
        }
        let mut all = [self.get(one), self.get(other)].concat();
        all.sort_unstable();
        all.dedup();
        let union = self.intern(all);
        self.unions.insert((one, other), union);
        union
    }

    fn intern(&mut self, set: Vec<TreeId>) -> SetId {
        let set = set.into_boxed_slice();
        if let Some(known) = self.ids.get(&set) {
            return *known;
        }
        let id = SetId(self.sets.len());
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::RootSets;
    use butternut_format::units::TreeId;

    #[test]
    fn a_set_is_kept_once() {
        let mut sets = RootSets::new();
        let [a, b, c] = [300, 200, 100].map(|id| sets.of_one(TreeId(id)));
        let ab = sets.union(a, b);
        let abc = sets.union(ab, c);
        assert_eq!(sets.get(abc), [TreeId(100), TreeId(200), TreeId(300)]);
        let ca = sets.union(c, a);
        assert_eq!(sets.union(ca, b), abc);
        assert_eq!(sets.union(abc, a), abc);
        assert_eq!(sets.union(RootSets::EMPTY, b), b);
        assert_eq!(sets.of_one(TreeId(300)), a);
    }
}
