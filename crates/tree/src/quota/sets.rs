//! Sets of subvolumes, each kept once: many extents have the same set.
//!
//! ```text
//! subvolumes, numbered as they are met:   256 -> 0   257 -> 1   900 -> 2 ... 5000 -> 70
//! a set:                                  the words from the first to the last that is not zero
//! ```
//!
//! Laws:
//!
//! 1. A set takes a bit for each subvolume between its first and its last. A file that thousands of
//!    snapshots share, and another that the later half of them share, take a few hundred bytes.
//! 2. A crafted extent tree may describe far more sets than a real one. At most [`KEPT_MAX`] words
//!    are kept in all sets, and unions read at most [`READ_MAX`]: past that, a set is refused.

use butternut_format::refused::{Refused, require};
use butternut_format::units::{TreeId, length};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of words of 8 bytes that all sets take.
const KEPT_MAX: usize = 1 << 24;
/// Maximum number of sets and words that all unions read. It takes about ten seconds.
const READ_MAX: u64 = 1 << 32;

/// A set of [`RootSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetId(usize);

/// The bits of a set (law 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Bits {
    /// The number of the first word.
    first: usize,
    words: Vec<u64>,
}

/// All sets that were seen, and their unions.
#[derive(Debug)]
pub(crate) struct RootSets {
    trees: Vec<TreeId>,
    numbers: HashMap<TreeId, usize>,
    sets: Vec<Arc<Bits>>,
    ids: HashMap<Arc<Bits>, SetId>,
    /// Of two sets each.
    unions: HashMap<[SetId; 2], SetId>,
    /// The last union of more sets: neighbouring extents often have the same.
    last: (Vec<SetId>, SetId),
    /// Words that are kept in all sets.
    kept: usize,
    /// Sets and words that unions have read.
    read: u64,
    is_full: bool,
}

impl Bits {
    fn one(number: usize) -> Self {
        Self { first: number / 64, words: vec![1 << (number % 64)] }
    }

    fn add(&mut self, other: &Self) {
        if self.words.is_empty() {
            self.clone_from(other);
            return;
        }
        let first = self.first.min(other.first);
        let end = (self.first + self.words.len()).max(other.first + other.words.len());
        if first < self.first {
            let before = std::iter::repeat_n(0, self.first - first);
            self.words.splice(0..0, before);
            self.first = first;
        }
        self.words.resize(end - first, 0);
        for (word, more) in self.words.iter_mut().skip(other.first - first).zip(&other.words) {
            *word |= more;
        }
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        let of_word = |(at, word): (usize, &u64)| {
            let (at, word) = ((self.first + at) * 64, *word);
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at + bit)
        };
        self.words.iter().enumerate().flat_map(of_word)
    }

    fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }
}

impl RootSets {
    /// The set without a subvolume.
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn new() -> Self {
        let empty: Arc<Bits> = Arc::default();
        Self {
            trees: Vec::new(),
            numbers: HashMap::new(),
            ids: HashMap::from([(Arc::clone(&empty), Self::EMPTY)]),
            sets: vec![empty],
            unions: HashMap::new(),
            last: (Vec::new(), Self::EMPTY),
            kept: 0,
            read: 0,
            is_full: false,
        }
    }

    /// Whether a set was refused (law 2).
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the subvolumes of a set.
    pub(crate) fn get(&self, id: SetId) -> Vec<TreeId> {
        let set = self.sets.get(id.0);
        let numbers = set.into_iter().flat_map(|set| set.numbers());
        numbers.filter_map(|number| self.trees.get(number).copied()).collect()
    }

    /// Returns one subvolume of a set.
    pub(crate) fn one_of(&self, id: SetId) -> Option<TreeId> {
        let number = self.sets.get(id.0)?.numbers().next()?;
        self.trees.get(number).copied()
    }

    /// Whether a set has several subvolumes.
    pub(crate) fn is_shared(&self, id: SetId) -> bool {
        self.sets.get(id.0).is_some_and(|set| set.count() > 1)
    }

    /// Returns the set of one subvolume.
    ///
    /// # Errors
    /// There are too many sets (law 2).
    pub(crate) fn of_one(&mut self, tree: TreeId) -> Result<SetId, Refused> {
        let number = *self.numbers.entry(tree).or_insert_with(|| {
            self.trees.push(tree);
            self.trees.len() - 1
        });
        self.intern(Bits::one(number))
    }

    /// Returns the union of some sets. Only the result is kept, not what a part of them has: a
    /// block may have a reference for each of thousands of snapshots.
    ///
    /// # Errors
    /// There are too many sets (law 2).
    pub(crate) fn union(&mut self, mut parts: Vec<SetId>) -> Result<SetId, Refused> {
        parts.retain(|part| *part != Self::EMPTY);
        parts.sort_unstable();
        parts.dedup();
        let pair = match *parts.as_slice() {
            [] => return Ok(Self::EMPTY),
            [one] => return Ok(one),
            [one, other] => Some([one, other]),
            _ => None,
        };
        if let Some(known) = pair.and_then(|pair| self.unions.get(&pair)) {
            return Ok(*known);
        }
        if parts == self.last.0 {
            return Ok(self.last.1);
        }
        let mut all = Bits::default();
        for part in &parts {
            let Some(more) = self.sets.get(part.0) else { continue };
            self.read = self.read.saturating_add(1 + length(more.words.len()));
            all.add(more);
        }
        self.check(self.read <= READ_MAX, self.read, "fewer to be read for unions")?;
        let union = self.intern(all)?;
        if let Some(pair) = pair {
            self.unions.insert(pair, union);
        } else {
            self.last = (parts, union);
        }
        Ok(union)
    }

    fn intern(&mut self, set: Bits) -> Result<SetId, Refused> {
        if let Some(known) = self.ids.get(&set) {
            return Ok(*known);
        }
        let kept = self.kept.saturating_add(set.words.len());
        self.check(kept <= KEPT_MAX, length(kept), "fewer words to be kept")?;
        self.kept = kept;
        let set = Arc::new(set);
        let id = SetId(self.sets.len());
        self.sets.push(Arc::clone(&set));
        self.ids.insert(set, id);
        Ok(id)
    }

    fn check(&mut self, is_allowed: bool, have: u64, want: &'static str) -> Result<(), Refused> {
        self.is_full |= !is_allowed;
        require(is_allowed, "sets of subvolumes", have, want)
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT_MAX, RootSets, SetId};
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
        let [a, b, c] = [300, 200, 100].map(|id| sets.of_one(TreeId(id)).expect("few"));
        let mut union = |parts: Vec<SetId>| sets.union(parts).expect("few");
        let ab = union(vec![a, b]);
        let abc = union(vec![ab, c, ab]);
        let ca = union(vec![c, a]);
        assert_eq!(union(vec![ca, b]), abc);
        assert_eq!(union(vec![abc, a]), abc);
        assert_eq!(union(vec![a, b, c]), abc);
        assert_eq!(union(vec![RootSets::EMPTY, b]), b);
        assert_eq!(union(Vec::new()), RootSets::EMPTY);
        assert_eq!(sets.get(abc), [TreeId(300), TreeId(200), TreeId(100)]);
        assert_eq!(sets.of_one(TreeId(300)).expect("few"), a);
    }

    /// As of a crafted extent tree: sets whose first and last subvolume lie far apart.
    #[test]
    fn the_sets_of_a_crafted_extent_tree_take_bounded_memory() {
        let mut sets = RootSets::new();
        let ones: Vec<SetId> =
            (0..64 << 10).map(|nth| sets.of_one(TreeId(256 + nth)).expect("few")).collect();
        let (low, high) = ones.split_at(ones.len() / 2);
        let pairs = low.iter().zip(high);
        let refused = pairs.filter(|(one, other)| sets.union(vec![**one, **other]).is_err());
        assert!(refused.count() > 0 && sets.is_full() && sets.kept <= KEPT_MAX, "{}", sets.kept);
    }

    /// As a user makes them: a new file before each snapshot of one subvolume. Each file has the
    /// set of all later snapshots.
    #[test]
    fn the_sets_of_files_of_many_snapshots_are_kept() {
        let mut sets = RootSets::new();
        let ones: Vec<SetId> =
            (0..5800).map(|nth| sets.of_one(TreeId(256 + nth)).expect("few")).collect();
        for first in 0..ones.len() {
            let union = sets.union(ones[first..].to_vec()).expect("few");
            assert_eq!(sets.get(union).len(), ones.len() - first);
        }
        assert!(sets.kept < 1 << 19, "{} words", sets.kept);
    }

    /// As the extents of leaves that 500 snapshots have copied: each names the same 500 leaves as
    /// its neighbour.
    #[test]
    fn the_union_of_the_same_many_sets_is_read_once() {
        let mut sets = RootSets::new();
        let parts: Vec<SetId> =
            (0..500).map(|nth| sets.of_one(TreeId(256 + nth)).expect("few")).collect();
        let first = sets.union(parts.clone()).expect("few");
        let read = sets.read;
        for _ in 0..1000 {
            assert_eq!(sets.union(parts.clone()).expect("few"), first);
        }
        assert_eq!(sets.read, read);
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
        assert!(sets.kept <= 2 * count, "{} words for one block of {count}", sets.kept);
    }
}
