//! [`Walker`]: walks a tree, each block once, leaves in key order.
//!
//! A [`Survey`] interprets the leaves and returns a result for each. The results of adjacent
//! subtrees are joined from left to right into one result of the whole tree. So several threads can
//! walk subtrees in parallel, and a subtree that trees share is walked once, with its result
//! cached.
//!
//! 1. Every child matches the pointer in its parent (address, level, generation, first key), and
//!    its keys are below the first key of the next child.
//! 2. Every block is in a metadata chunk (those of the chunk tree in a system chunk) and matches
//!    its extent item. The blocks of log trees have no extent items.
//! 3. Only the first visit to a block counts its references.
//! 4. Levels decrease with each step, and a block is not descended into again unless a survey needs
//!    its result. So the time is bounded by the number of blocks, also for a forged tree.

use crate::blocks::{BATCH_BLOCKS, Block, Reader, block_at};
use crate::extent_items::BlockTable;
use crate::finding::Kind;
use crate::ledger::{Ledger, RefKind, Reference};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::Bits;
use butternut_format::units::{Logical, TreeId};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of shared leaves whose results are cached. Further leaves are processed again for
/// each parent, which bounds memory at the cost of time.
const LEAVES_KEPT_MAX: usize = 1 << 20;

/// Interprets the leaves of a tree.
pub(crate) trait Survey: Sync {
    type Out: Clone + Default + Send + Sync;

    /// Returns the result of one leaf. Only the first visit counts references.
    fn leaf(&self, leaf: &Block<'_>, is_first: bool) -> Self::Out;

    /// Appends the result of the leaves to the right.
    fn join(&self, left: &mut Self::Out, right: Self::Out);

    /// Returns the result of a subtree that cannot be read.
    fn lost(&self) -> Self::Out {
        Self::Out::default()
    }

    /// Returns the cache of results of subtrees that other trees may share.
    fn memo(&self) -> Option<&Memo<Self::Out>> {
        None
    }
}

/// Cached results of subtrees, by the address of their top block.
pub(crate) struct Memo<T> {
    known: Mutex<HashMap<Logical, Arc<Known<T>>>, rank::CheckShared>,
    leaves: AtomicUsize,
}

/// The result of a subtree, and the pointer to it that the parent had.
pub(crate) struct Known<T> {
    expected: Expected,
    last_key: Option<Key>,
    out: T,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self { known: Mutex::default(), leaves: AtomicUsize::new(0) }
    }
}

impl<T> Memo<T> {
    fn recall(&self, expected: &Expected) -> Option<Arc<Known<T>>> {
        let known = self.lock().get(&expected.logical).cloned()?;
        let is_same = known.expected.generation == expected.generation
            && known.expected.level == expected.level
            && (expected.first_key.is_none() || known.expected.first_key == expected.first_key);
        is_same.then_some(known)
    }

    fn keep(&self, known: Known<T>) {
        let is_leaf = known.expected.level == 0;
        if is_leaf && self.leaves.fetch_add(1, Ordering::Relaxed) >= LEAVES_KEPT_MAX {
            return;
        }
        self.lock().insert(known.expected.logical, Arc::new(known));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Logical, Arc<Known<T>>>> {
        self.known.lock()
    }
}

/// How a tree is walked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    /// Progress of the deletion of the tree: blocks before this key are freed already.
    pub(crate) removed_to: Option<(u8, Key)>,
    /// The blocks of the tree have no extent items: a log tree.
    pub(crate) is_unaccounted: bool,
}

/// A block to visit, and the exclusive upper bound of its keys.
#[derive(Clone, Copy)]
struct Target {
    expected: Expected,
    below: Option<Key>,
}

/// State of one block of a batch.
enum Visit<T> {
    Done {
        out: T,
        last_key: Option<Key>,
    },
    Node {
        children: Vec<Target>,
        keep: bool,
    },
    Lost,
    /// Visited before, and the survey does not need its result again.
    Again,
}

pub(crate) struct Walker<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) ledger: &'a Ledger,
    pool: Option<&'a rayon::ThreadPool>,
    seen: Mutex<HashSet<Logical>, rank::CheckSeen>,
    table: OnceLock<BlockTable>,
    /// Blocks that were visited before the table was set.
    early: Mutex<Vec<BlockFields>, rank::CheckEarly>,
}

/// The fields of a block that are compared with its extent item.
#[derive(Clone, Copy)]
struct BlockFields {
    logical: Logical,
    generation: u64,
    level: u8,
    owner: u64,
    tree: TreeId,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        reader: &'a Reader<'a>,
        ledger: &'a Ledger,
        pool: Option<&'a rayon::ThreadPool>,
    ) -> Self {
        Self {
            reader,
            ledger,
            pool,
            seen: Mutex::default(),
            table: OnceLock::new(),
            early: Mutex::default(),
        }
    }

    /// Sets the table of extent items. Compares all blocks that were visited before; later blocks
    /// are compared when they are visited.
    pub(crate) fn set_table(&self, table: BlockTable) {
        let table = self.table.get_or_init(|| table);
        let early = std::mem::take(&mut *self.early.lock());
        for block in &early {
            self.check_item(table, block);
        }
    }

    pub(crate) fn table(&self) -> Option<&BlockTable> {
        self.table.get()
    }

    pub(crate) fn pool(&self) -> Option<&'a rayon::ThreadPool> {
        self.pool
    }

    /// Walks a whole tree and returns its result, which is [`Survey::lost`] if the root block
    /// cannot be read.
    pub(crate) fn tree<S: Survey>(&self, survey: &S, root: Expected, route: &Route) -> S::Out {
        if !route.is_unaccounted {
            let from = if root.tree == TreeId::TREE_RELOCATION {
                Reference::of(root.logical.0, RefKind::SharedBlock, root.logical.0)
            } else {
                Reference::of(root.logical.0, RefKind::Tree, root.tree.0)
            };
            self.ledger.add_use(&from);
        }
        self.reader.sink().count(&self.reader.sink().counters.trees, 1);
        let targets = [Target { expected: root, below: None }];
        match self.pool {
            Some(pool) => pool.install(|| self.siblings(survey, &targets, route).0),
            None => self.siblings(survey, &targets, route).0,
        }
    }

    /// Visits adjacent blocks and joins their results.
    fn siblings<S: Survey>(
        &self,
        survey: &S,
        targets: &[Target],
        route: &Route,
    ) -> (S::Out, Option<Key>) {
        let join = |results: &mut dyn Iterator<Item = (S::Out, Option<Key>)>| {
            let Some((mut out, mut last_key)) = results.next() else { return Default::default() };
            for (right, last) in results {
                survey.join(&mut out, right);
                last_key = last.or(last_key);
            }
            (out, last_key)
        };
        if self.pool.is_none() || targets.len() <= BATCH_BLOCKS {
            return join(
                &mut targets.chunks(BATCH_BLOCKS).map(|batch| self.batch(survey, batch, route)),
            );
        }
        let results: Vec<_> = targets
            .par_chunks(BATCH_BLOCKS)
            .map(|batch| self.batch(survey, batch, route))
            .collect();
        join(&mut results.into_iter())
    }

    /// Visits adjacent blocks that are read in one batch, and joins their results.
    fn batch<S: Survey>(
        &self,
        survey: &S,
        targets: &[Target],
        route: &Route,
    ) -> (S::Out, Option<Key>) {
        let mut visits: Vec<Visit<S::Out>> = Vec::with_capacity(targets.len());
        let mut missing: Vec<(usize, Expected)> = Vec::with_capacity(targets.len());
        for (at, target) in targets.iter().enumerate() {
            let known = survey.memo().and_then(|memo| memo.recall(&target.expected));
            visits.push(if let Some(known) = known {
                self.check_keys(&target.expected, known.last_key, target.below);
                Visit::Done { out: known.out.clone(), last_key: known.last_key }
            } else {
                missing.push((at, target.expected));
                Visit::Lost
            });
        }
        let expected: Vec<Expected> = missing.iter().map(|(_, expected)| *expected).collect();
        self.reader.read(&expected, &mut |number, block| {
            let Some((at, _)) = missing.get(number) else { return };
            if let (Some(target), Some(visit)) = (targets.get(*at), visits.get_mut(*at)) {
                *visit = match block {
                    Some(block) => self.visit(survey, target, block, route),
                    None => self.lose(target),
                };
            }
        });
        let mut all: Option<S::Out> = None;
        let mut last = None;
        for (visit, target) in visits.into_iter().zip(targets) {
            let (out, last_key) = match visit {
                Visit::Done { out, last_key } => (out, last_key),
                Visit::Lost => (survey.lost(), None),
                Visit::Again => (S::Out::default(), None),
                Visit::Node { children, keep } => {
                    let (out, last_key) = self.siblings(survey, &children, route);
                    if let Some(memo) = survey.memo().filter(|_| keep) {
                        let expected = target.expected;
                        memo.keep(Known { expected, last_key, out: out.clone() });
                    }
                    (out, last_key)
                }
            };
            last = last_key.or(last);
            match &mut all {
                Some(all) => survey.join(all, out),
                None => all = Some(out),
            }
        }
        (all.unwrap_or_default(), last)
    }

    fn visit<S: Survey>(
        &self,
        survey: &S,
        target: &Target,
        block: &Block<'_>,
        route: &Route,
    ) -> Visit<S::Out> {
        let is_first = self.seen.lock().insert(block.logical());
        if is_first {
            self.check_block(&target.expected, block, route);
        } else if survey.memo().is_none() {
            return Visit::Again;
        }
        let last_key = block.len().checked_sub(1).and_then(|slot| block.key(slot));
        self.check_keys(&target.expected, last_key, target.below);
        let item = self.table.get().and_then(|table| table.find(block.logical()));
        let keep = !is_first || item.is_some_and(|item| item.is_shared);
        if !block.is_leaf() {
            let children = children(target, block, route);
            if is_first && !route.is_unaccounted {
                let is_full = item.is_some_and(|item| item.is_full);
                self.count_children(block, is_full, &children);
            }
            return Visit::Node { children, keep };
        }
        let out = survey.leaf(block, is_first);
        if let Some(memo) = survey.memo().filter(|_| keep) {
            let expected = Expected { first_key: block.key(0), ..target.expected };
            memo.keep(Known { expected, last_key, out: out.clone() });
        }
        Visit::Done { out, last_key }
    }

    fn lose<T>(&self, target: &Target) -> Visit<T> {
        self.reader.sink().lost.add(&target.expected, target.below);
        Visit::Lost
    }

    /// Posts the references to the children (law 3). A block with full back references refers to
    /// them by its own address, any other block by its owner.
    fn count_children(&self, block: &Block<'_>, is_full: bool, children: &[Target]) {
        let (kind, from) = if is_full {
            (RefKind::SharedBlock, block.logical().0)
        } else {
            (RefKind::Tree, block.owner().0)
        };
        for child in children {
            self.ledger.add_use(&Reference::of(child.expected.logical.0, kind, from));
        }
    }

    /// Checks the upper bound of keys (law 1). `TreeBlock::check` has done the rest of law 1.
    fn check_keys(&self, expected: &Expected, last_key: Option<Key>, below: Option<Key>) {
        if let (Some(last), Some(below)) = (last_key, below)
            && last >= below
        {
            let place = block_at(expected.tree.0, expected.logical);
            let want = format!("below {below}, the next child's first");
            self.reader.sink().add(Kind::BlockKeys, place, "last key", last, want);
        }
    }

    /// Checks law 2.
    fn check_block(&self, expected: &Expected, block: &Block<'_>, route: &Route) {
        let sink = self.reader.sink();
        sink.count_block(u64::try_from(block.len()).unwrap_or_default());
        let tree = expected.tree;
        self.reader.check_uuid(tree.0, block);
        let chunks = self.reader.volume().chunks();
        let flags = chunks.find(block.logical()).map_or(BlockGroupFlags(0), |chunk| chunk.flags());
        let want =
            if tree == TreeId::CHUNK { BlockGroupFlags::SYSTEM } else { BlockGroupFlags::METADATA };
        if !flags.contains(want) {
            let place = block_at(tree.0, block.logical());
            let want = format!("{:#x} among them", want.0);
            sink.add(Kind::BlockPlace, place, "chunk type", Bits(flags.0), want);
        }
        if route.is_unaccounted {
            return;
        }
        let block = BlockFields {
            logical: block.logical(),
            generation: block.generation().0,
            level: block.level(),
            owner: block.owner().0,
            tree,
        };
        match self.table.get() {
            Some(table) => self.check_item(table, &block),
            None => self.early.lock().push(block),
        }
    }

    fn check_item(&self, table: &BlockTable, block: &BlockFields) {
        // The ledger finds a missing item.
        let Some(item) = table.find(block.logical) else { return };
        let sink = self.reader.sink();
        let place = || block_at(block.tree.0, block.logical);
        let differs = |field: &str, have: u64, want: u64| {
            if have != want {
                let field = format!("{field} in its extent item");
                sink.add(Kind::BlockExtent, place(), field, have, want);
            }
        };
        differs("generation", item.generation, block.generation);
        differs("level", item.level.into(), block.level.into());
        if !block.tree.is_subvolume() && item.is_full && is_never_shared(block.tree) {
            sink.add(Kind::BlockExtent, place(), "full back references", "set", "unset");
        }
        if let Some(owner) = item.only_tree.filter(|owner| *owner != block.owner && !item.is_full) {
            let want = format!("{owner}, the only tree in its extent item");
            sink.add(Kind::BlockOwner, place(), "owner", block.owner, want);
        }
    }
}

/// Returns the children of a node, without those that a deletion has freed.
fn children(target: &Target, block: &Block<'_>, route: &Route) -> Vec<Target> {
    let slots = 0..block.len();
    let mut children: Vec<Target> = slots
        .filter_map(|slot| {
            let child = block.child(slot)?;
            let expected = Expected {
                logical: child.logical,
                generation: child.generation,
                level: block.level().checked_sub(1)?,
                tree: target.expected.tree,
                first_key: Some(child.key),
                // `below` has the bound: a block beyond it is reported, and still read.
                end_key: None,
            };
            let below = block.key(slot + 1).or(target.below);
            Some(Target { expected, below })
        })
        .collect();
    if let Some((level, key)) = route.removed_to
        && block.level() >= level
    {
        // On the path to the deletion's progress key, children before it are freed.
        let first_above = children
            .iter()
            .position(|child| child.expected.first_key > Some(key))
            .unwrap_or(children.len());
        let is_there = |child: &Target| child.expected.first_key == Some(key);
        let stands_at = first_above.checked_sub(1);
        let from = match stands_at {
            Some(at) if block.level() > level || children.get(at).is_some_and(is_there) => at,
            _ => first_above,
        };
        children.drain(..from);
    }
    children
}

/// Returns whether the blocks of the tree are never shared, given that it is no subvolume.
fn is_never_shared(tree: TreeId) -> bool {
    tree != TreeId::TREE_RELOCATION && tree != TreeId::DATA_RELOCATION
}
