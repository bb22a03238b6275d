//! Walking a tree: every block once, leaves in the order of their keys.
//!
//! What a leaf means is a [`Survey`]'s business; it gives back what it learnt, and neighbours are
//! joined from left to right until one result stands for the whole tree. So subtrees may be walked
//! by several threads, and a subtree that many trees share is walked once: its result is kept.
//!
//! 1. Every child keeps what its parent promised (address, level, generation, first key), and its
//!    keys stay below the next child's.
//! 2. Every block lies in a chunk for tree blocks, and is what its extent item says.
//! 3. The first visit to a block counts its references; a later one does not.
//! 4. Levels fall with each step, and a block that was seen is not descended into again unless a
//!    survey needs its result: no forged tree takes longer than its blocks do.

use crate::blocks::{BATCH_BLOCKS, Block, Reader, block_at};
use crate::extent_items::BlockTable;
use crate::finding::Kind;
use crate::ledger::{Ledger, RefKind, Reference};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::Bits;
use butternut_format::units::{Logical, TreeId};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Leaves whose results are kept for other trees. Those beyond are looked at again for each node
/// that leads to them, which costs time and not memory.
const LEAVES_KEPT_MAX: usize = 1 << 20;

/// What is made of the leaves of a tree.
pub(crate) trait Survey: Sync {
    type Out: Clone + Default + Send + Sync;

    /// What one leaf says. Its references count if this is the first visit.
    fn leaf(&self, leaf: &Block<'_>, is_first: bool) -> Self::Out;

    /// Adds what the leaves to the right said.
    fn join(&self, left: &mut Self::Out, right: Self::Out);

    /// In place of a subtree that cannot be read.
    fn lost(&self) -> Self::Out {
        Self::Out::default()
    }

    /// Results of subtrees that other trees may share.
    fn memo(&self) -> Option<&Memo<Self::Out>> {
        None
    }
}

/// Results by the address of the block on top.
pub(crate) struct Memo<T> {
    known: Mutex<HashMap<Logical, Arc<Known<T>>>>,
    leaves: AtomicUsize,
}

/// The result of a subtree, and what was promised of it when it was made.
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
    fn recall(&self, wanted: &Expected) -> Option<Arc<Known<T>>> {
        let known = self.lock().get(&wanted.logical).cloned()?;
        let is_same = known.expected.generation == wanted.generation
            && known.expected.level == wanted.level
            && (wanted.first_key.is_none() || known.expected.first_key == wanted.first_key);
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
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a tree is walked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    /// How far the removal of the tree has come: what lies before is gone already.
    pub(crate) removed_to: Option<(u8, Key)>,
    /// The tree is in no extent tree: a log.
    pub(crate) is_unaccounted: bool,
}

/// A block to visit, and the key that all in it stay below.
#[derive(Clone, Copy)]
struct Wanted {
    expected: Expected,
    below: Option<Key>,
}

/// What has been made of one wanted block so far.
enum Visit<T> {
    Done {
        out: T,
        last_key: Option<Key>,
    },
    Node {
        children: Vec<Wanted>,
        keep: bool,
    },
    Lost,
    /// Was seen, and no survey needs it again.
    Again,
}

pub(crate) struct Walker<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) ledger: &'a Ledger,
    pool: Option<&'a rayon::ThreadPool>,
    seen: Mutex<HashSet<Logical>>,
    table: OnceLock<BlockTable>,
    /// Blocks that were visited before the table was there.
    early: Mutex<Vec<Early>>,
}

/// What the table will be asked about a block.
#[derive(Clone, Copy)]
struct Early {
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

    /// From now on blocks are held against their extent items; those seen already are, too.
    pub(crate) fn set_table(&self, table: BlockTable) {
        let table = self.table.get_or_init(|| table);
        let early = std::mem::take(&mut *lock(&self.early));
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

    /// Walks a whole tree; `None` where its root block cannot be read.
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
        let wanted = [Wanted { expected: root, below: None }];
        match self.pool {
            Some(pool) => pool.install(|| self.siblings(survey, &wanted, route).0),
            None => self.siblings(survey, &wanted, route).0,
        }
    }

    /// Visits blocks that follow one another, and joins what they say.
    fn siblings<S: Survey>(
        &self,
        survey: &S,
        wanted: &[Wanted],
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
        if self.pool.is_none() || wanted.len() <= BATCH_BLOCKS {
            return join(
                &mut wanted.chunks(BATCH_BLOCKS).map(|batch| self.batch(survey, batch, route)),
            );
        }
        let results: Vec<_> =
            wanted.par_chunks(BATCH_BLOCKS).map(|batch| self.batch(survey, batch, route)).collect();
        join(&mut results.into_iter())
    }

    /// As [`Self::siblings`], for as many as are read at once.
    fn batch<S: Survey>(
        &self,
        survey: &S,
        wanted: &[Wanted],
        route: &Route,
    ) -> (S::Out, Option<Key>) {
        let mut visits: Vec<Visit<S::Out>> = Vec::with_capacity(wanted.len());
        let mut missing: Vec<(usize, Expected)> = Vec::with_capacity(wanted.len());
        for (at, wanted) in wanted.iter().enumerate() {
            let known = survey.memo().and_then(|memo| memo.recall(&wanted.expected));
            visits.push(if let Some(known) = known {
                self.check_keys(&wanted.expected, known.last_key, wanted.below);
                Visit::Done { out: known.out.clone(), last_key: known.last_key }
            } else {
                missing.push((at, wanted.expected));
                Visit::Lost
            });
        }
        let expected: Vec<Expected> = missing.iter().map(|(_, expected)| *expected).collect();
        self.reader.read(&expected, &mut |number, block| {
            let Some((at, _)) = missing.get(number) else { return };
            if let (Some(wanted), Some(visit)) = (wanted.get(*at), visits.get_mut(*at)) {
                *visit = match block {
                    Some(block) => self.visit(survey, wanted, block, route),
                    None => self.lose(&wanted.expected),
                };
            }
        });
        let mut all: Option<S::Out> = None;
        let mut last = None;
        for (visit, wanted) in visits.into_iter().zip(wanted) {
            let (out, last_key) = match visit {
                Visit::Done { out, last_key } => (out, last_key),
                Visit::Lost => (survey.lost(), None),
                Visit::Again => (S::Out::default(), None),
                Visit::Node { children, keep } => {
                    let (out, last_key) = self.siblings(survey, &children, route);
                    if let Some(memo) = survey.memo().filter(|_| keep) {
                        let expected = wanted.expected;
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
        wanted: &Wanted,
        block: &Block<'_>,
        route: &Route,
    ) -> Visit<S::Out> {
        let is_first = lock(&self.seen).insert(block.logical());
        if is_first {
            self.check_block(&wanted.expected, block, route);
        } else if survey.memo().is_none() {
            return Visit::Again;
        }
        let last_key = block.len().checked_sub(1).and_then(|slot| block.key(slot));
        self.check_keys(&wanted.expected, last_key, wanted.below);
        let item = self.table.get().and_then(|table| table.find(block.logical()));
        let keep = !is_first || item.is_some_and(|item| item.is_shared);
        if !block.is_leaf() {
            let children = children(wanted, block, route);
            if is_first && !route.is_unaccounted {
                let is_full = item.is_some_and(|item| item.is_full);
                self.count_children(block, is_full, &children);
            }
            return Visit::Node { children, keep };
        }
        let out = survey.leaf(block, is_first);
        if let Some(memo) = survey.memo().filter(|_| keep) {
            let expected = Expected { first_key: block.key(0), ..wanted.expected };
            memo.keep(Known { expected, last_key, out: out.clone() });
        }
        Visit::Done { out, last_key }
    }

    fn lose<T>(&self, expected: &Expected) -> Visit<T> {
        let lost = &self.reader.sink().lost;
        let side = if expected.tree == TreeId::EXTENT { &lost.extents } else { &lost.users };
        side.store(true, Ordering::Relaxed);
        Visit::Lost
    }

    /// Law 3: a block's references go out from its owner, or from itself once it is shared.
    fn count_children(&self, block: &Block<'_>, is_full: bool, children: &[Wanted]) {
        let (kind, from) = if is_full {
            (RefKind::SharedBlock, block.logical().0)
        } else {
            (RefKind::Tree, block.owner().0)
        };
        for child in children {
            self.ledger.add_use(&Reference::of(child.expected.logical.0, kind, from));
        }
    }

    /// Law 1, behind the block's own check.
    fn check_keys(&self, expected: &Expected, last_key: Option<Key>, below: Option<Key>) {
        if let (Some(last), Some(below)) = (last_key, below)
            && last >= below
        {
            let place = block_at(expected.tree.0, expected.logical);
            let want = format!("below {below}, the next child's first");
            self.reader.sink().add(Kind::BlockKeys, place, "last key", last, want);
        }
    }

    /// Law 2.
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
        let block = Early {
            logical: block.logical(),
            generation: block.generation().0,
            level: block.level(),
            owner: block.owner().0,
            tree,
        };
        match self.table.get() {
            Some(table) => self.check_item(table, &block),
            None => lock(&self.early).push(block),
        }
    }

    fn check_item(&self, table: &BlockTable, block: &Early) {
        // That an item is missing shows in the ledger.
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
        if !block.tree.is_subvolume() && item.is_full && is_of_the_engine(block.tree) {
            sink.add(Kind::BlockExtent, place(), "full back references", "set", "unset");
        }
        if let Some(owner) = item.only_tree.filter(|owner| *owner != block.owner && !item.is_full) {
            let want = format!("{owner}, the only tree that its extent item names");
            sink.add(Kind::BlockOwner, place(), "owner", block.owner, want);
        }
    }
}

/// The children of a node that are still there.
fn children(wanted: &Wanted, block: &Block<'_>, route: &Route) -> Vec<Wanted> {
    let slots = 0..block.len();
    let mut children: Vec<Wanted> = slots
        .filter_map(|slot| {
            let child = block.child(slot)?;
            let expected = Expected {
                logical: child.logical,
                generation: child.generation,
                level: block.level().checked_sub(1)?,
                tree: wanted.expected.tree,
                first_key: Some(child.key),
                // `below`: what breaks this law is reported, and its items are still read.
                end_key: None,
            };
            let below = block.key(slot + 1).or(wanted.below);
            Some(Wanted { expected, below })
        })
        .collect();
    if let Some((level, key)) = route.removed_to
        && block.level() >= level
    {
        // On the way down to where the removal stands, what lies before is gone.
        let first_above = children
            .iter()
            .position(|child| child.expected.first_key > Some(key))
            .unwrap_or(children.len());
        let is_there = |child: &Wanted| child.expected.first_key == Some(key);
        let stands_at = first_above.checked_sub(1);
        let from = match stands_at {
            Some(at) if block.level() > level || children.get(at).is_some_and(is_there) => at,
            _ => first_above,
        };
        children.drain(..from);
    }
    children
}

/// Trees that are never shared between snapshots.
fn is_of_the_engine(tree: TreeId) -> bool {
    tree != TreeId::TREE_RELOCATION && tree != TreeId::DATA_RELOCATION
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
