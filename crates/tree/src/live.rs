//! A tree of the running transaction: its root, the blocks that belong to the transaction, and the
//! way to every other block.
//!
//! ```text
//! state (lock) -> root
//!              -> dirty    blocks of the running transaction: edited in place
//!              -> frozen   blocks of the transaction that is being written: immutable
//! elsewhere       the node cache and the devices: committed, immutable
//! ```
//!
//! Laws:
//!
//! 1. Each edit is atomic towards readers: they hold the lock shared for one descent, the writer
//!    holds it alone for one edit.
//! 2. No device is read while the lock is held. A descent that misses a block ends, the block is
//!    read, and the descent begins anew; blocks read that way are carried along, so that a small
//!    cache cannot make it begin for ever.
//!    A reader without a handle registers before it reads a device ([`crate::readers`]): the place
//!    of a block that it is about to read is not used again.
//! 3. A block that a reader holds is never changed under him: the writer then edits a copy.
//! 4. Blocks of older generations are never edited: they are copied first (`cow`).
//!
//! Left to others: changes (`change`), what they cost in references (`cow`), when the transaction
//! ends (`commit`).

pub(crate) mod change;
pub(crate) mod cow;
pub(crate) mod shape;

use crate::Block;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::tree::{child, covering_slot, no_child};
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::root::RawRootItem;
use butternut_format::units::{Logical, TreeId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Blocks by address.
pub(crate) type BlockMap = HashMap<Logical, Arc<Block>, BuildHasherDefault<AddressHasher>>;

/// Addresses are multiples of the node size: a multiplication spreads them well enough.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ (value >> 12)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// Why a descent did not end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This block is not in memory.
    Missing(Expected),
    Failed(TreeError),
}

impl From<TreeError> for Stop {
    fn from(error: TreeError) -> Self {
        Self::Failed(error)
    }
}

/// What the root tree says of a tree, as of the running transaction.
#[derive(Clone)]
pub(crate) struct RootRecord {
    pub(crate) key: Key,
    pub(crate) raw: Box<RawRootItem>,
}

/// A tree of the running transaction.
pub(crate) struct LiveTree {
    id: TreeId,
    /// Counts finished edits; a cursor that finds another count seeks again.
    version: AtomicU64,
    state: RwLock<LiveState>,
}

pub(crate) struct LiveState {
    pub(crate) root: Expected,
    pub(crate) dirty: BlockMap,
    pub(crate) frozen: Option<Arc<BlockMap>>,
    /// `None` for the root tree and the chunk tree, which the superblock names.
    pub(crate) record: Option<RootRecord>,
    /// The root moved since the root item was last written.
    pub(crate) is_moved: bool,
    /// Inodes changed in the running transaction.
    pub(crate) is_touched: bool,
}

impl std::fmt::Debug for LiveTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveTree").field("id", &self.id).finish_non_exhaustive()
    }
}

impl LiveTree {
    pub(crate) fn new(root: Expected, record: Option<RootRecord>) -> Self {
        let state = LiveState {
            root,
            dirty: BlockMap::default(),
            frozen: None,
            record,
            is_moved: false,
            is_touched: false,
        };
        Self { id: root.tree, version: AtomicU64::new(0), state: RwLock::new(state) }
    }

    pub(crate) fn id(&self) -> TreeId {
        self.id
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn bump(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether a thread panicked in the middle of an edit.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }

    pub(crate) fn root(&self) -> Expected {
        self.state().root
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, LiveState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, LiveState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a descent over the state as of one moment (law 2).
    pub(crate) fn read<R>(
        &self,
        forest: &Forest,
        mut descend: impl FnMut(&Reader<'_>) -> Result<R, Stop>,
    ) -> Result<R, TreeError> {
        let mut carried = Vec::new();
        match self.read_once(forest, &carried, &mut descend) {
            Err(Stop::Missing(_)) => {}
            Err(Stop::Failed(error)) => return Err(error),
            Ok(found) => return Ok(found),
        }
        // From here on what the tree names stays where it is, also if commits pass.
        let _reading = forest.reading();
        loop {
            match self.read_once(forest, &carried, &mut descend) {
                Ok(found) => return Ok(found),
                Err(stopped) => carry(forest, &mut carried, stopped)?,
            }
        }
    }

    /// One try of [`Self::read`]: it ends where a block is not in memory.
    pub(crate) fn read_once<R>(
        &self,
        forest: &Forest,
        carried: &[Arc<Block>],
        mut descend: impl FnMut(&Reader<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let state = self.state();
        let version = self.version();
        descend(&Reader { state: &state, forest, carried, version })
    }
}

/// Reads the block that a descent missed, or ends it.
pub(crate) fn carry(
    forest: &Forest,
    carried: &mut Vec<Arc<Block>>,
    stopped: Stop,
) -> Result<(), TreeError> {
    match stopped {
        Stop::Missing(expected) => {
            carried.push(forest.block(&expected)?);
            Ok(())
        }
        Stop::Failed(error) => Err(error),
    }
}

impl LiveState {
    /// A block, if it is in memory.
    pub(crate) fn find(
        &self,
        forest: &Forest,
        carried: &[Arc<Block>],
        expected: &Expected,
    ) -> Result<Arc<Block>, Stop> {
        if let Some(block) = self.dirty.get(&expected.logical) {
            return Ok(Arc::clone(block));
        }
        let matches = |block: &Arc<Block>| block.generation() == expected.generation;
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.get(&expected.logical));
        if let Some(block) = frozen.filter(|block| matches(block)) {
            return Ok(Arc::clone(block));
        }
        if let Some(block) = forest.cached_block(expected)? {
            return Ok(block);
        }
        let found = carried.iter().find(|block| block.logical() == expected.logical);
        let found = found.filter(|block| matches(block));
        found.cloned().ok_or(Stop::Missing(*expected))
    }

    /// Whether a block can be read from a device.
    fn is_committed(&self, at: Logical) -> bool {
        let is_frozen = self.frozen.as_ref().is_some_and(|frozen| frozen.contains_key(&at));
        !is_frozen && !self.dirty.contains_key(&at)
    }
}

/// One descent's view of the tree.
pub(crate) struct Reader<'a> {
    pub(crate) state: &'a LiveState,
    forest: &'a Forest,
    carried: &'a [Arc<Block>],
    pub(crate) version: u64,
}

/// Where a descent came to.
pub(crate) struct Place {
    pub(crate) leaf: Arc<Block>,
    /// The first item at or after the key; one past the last where there is none in this leaf.
    pub(crate) slot: usize,
    /// The first key of the next leaf, as its parent has it.
    pub(crate) next: Option<Key>,
    pub(crate) version: u64,
    /// The leaves from this one on, below the same parent, where they were asked for.
    pub(crate) ahead: Vec<Expected>,
}

impl Reader<'_> {
    pub(crate) fn block(&self, expected: &Expected) -> Result<Arc<Block>, Stop> {
        self.state.find(self.forest, self.carried, expected)
    }

    /// The leaf that covers the key, with up to `ahead` of the leaves that follow it.
    pub(crate) fn descend(&self, key: &Key, ahead: usize) -> Result<Place, Stop> {
        let mut expected = self.state.root;
        let mut next = None;
        let mut leaves = Vec::new();
        loop {
            let block = self.block(&expected)?;
            if block.level() == 0 {
                let slot = block.find(key).unwrap_or_else(|slot| slot);
                let version = self.version;
                return Ok(Place { leaf: block, slot, next, version, ahead: leaves });
            }
            let slot = covering_slot(&block, key).unwrap_or(0);
            let after = slot.saturating_add(1);
            next = block.key(after).or(next);
            if block.level() == 1 && ahead > 0 {
                let end = after.saturating_add(ahead).min(block.len());
                let below = |slot| child(&block, slot, expected.tree, expected.end_key);
                let children = (after..end).filter_map(below);
                leaves = children.filter(|leaf| self.state.is_committed(leaf.logical)).collect();
            }
            expected = child(&block, slot, expected.tree, expected.end_key)
                .ok_or_else(|| no_child(&block, slot))?;
        }
    }
}
