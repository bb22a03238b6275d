//! A tree of the running transaction: its root, the blocks that belong to the transaction, and the
//! way to every other block.
//!
//! ```text
//! state (lock) -> root
//!              -> dirty    blocks of the running transaction: edited in place
//!              -> sealed   blocks of the running transaction that a snapshot shares: immutable
//!              -> frozen   blocks of the transaction that is being written: immutable
//! elsewhere       the node cache and the devices: committed, immutable
//! ```
//!
//! Laws:
//!
//! 1. Readers see each edit as one atomic change: a reader holds the lock shared for one descent,
//!    the writer holds it exclusively for one edit.
//! 2. No device is read while the lock is held. A descent that misses a block stops, the block is
//!    read, and the descent starts again. It keeps all blocks that were read that way, so that a
//!    small cache cannot make it start again for ever. A reader without a handle enters a read
//!    epoch first ([`crate::transaction::read_epochs`]), so that the space of the block is not
//!    reused.
//! 3. A block that a reader holds is never changed: the writer edits a copy of it.
//! 4. Blocks of older generations are never edited: they are copied first (`copy`). So are sealed
//!    blocks.
//!
//! Left to others: changes of items (`change`), copies and what they cost in references (`copy`),
//! splits and merges (`shape`), the end of the transaction (`commit`).

pub(crate) mod change;
pub(crate) mod copy;
pub(crate) mod shape;

use crate::Block;
use crate::blocks::Blocks;
use crate::drop_tree::converted::Converted;
use crate::error::TreeError;
use crate::log::changes::ChangedInodes;
use crate::search::{child, covering_slot, no_child};
use crate::transaction::read_epochs::ReadEpochs;
use butternut_format::checksum::ChecksumKind;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::Refused;
use butternut_format::root::RawRootItem;
use butternut_format::units::{Logical, TreeId};
use butternut_sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks by logical address.
pub(crate) type BlockMap = HashMap<Logical, Arc<Block>, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses. They are multiples of the node size, so a multiplication spreads them well.
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

/// Why a descent stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This block is not in memory.
    Missing(Expected),
    Failed(TreeError),
}

impl Stop {
    /// Returns the error of an edit of `tree` that cannot start again.
    pub(crate) fn into_error(self, tree: TreeId) -> TreeError {
        match self {
            Self::Failed(error) => error,
            Self::Missing(expected) => {
                let want = "in memory until the end of the edit";
                let source = Refused::new("block", expected.logical, want);
                TreeError::Corrupt { tree, source }
            }
        }
    }
}

impl From<TreeError> for Stop {
    fn from(error: TreeError) -> Self {
        Self::Failed(error)
    }
}

/// The root item of a tree, in the running transaction.
#[derive(Clone)]
pub(crate) struct RootRecord {
    pub(crate) key: Key,
    pub(crate) raw: Box<RawRootItem>,
}

/// A tree as the running transaction has changed it.
pub(crate) struct TransactionTree {
    id: TreeId,
    /// Incremented by each edit. A cursor that finds another value searches its key again.
    version: AtomicU64,
    state: RwLock<TreeState, rank::Tree>,
    blocks: Arc<Blocks>,
    epochs: Arc<ReadEpochs>,
}

pub(crate) struct TreeState {
    pub(crate) root: Expected,
    /// The root as of the last commit, or of the one in progress.
    pub(crate) committed_root: Expected,
    /// The bytes of the tree's blocks that are part of the usage of its quota group.
    pub(crate) committed_used: u64,
    /// Of a subvolume: what the running transaction has changed.
    pub(crate) changes: ChangedInodes,
    pub(crate) dirty: BlockMap,
    /// Blocks of the running transaction that this tree shares with a snapshot of it, or with the
    /// source of this snapshot. Their checksums are valid.
    pub(crate) sealed: BlockMap,
    pub(crate) frozen: Option<Arc<BlockMap>>,
    /// `None` for the root tree and the chunk tree, whose roots are in the superblock.
    pub(crate) record: Option<RootRecord>,
    /// Whether the root block or the size changed since the root item was last written.
    pub(crate) is_root_item_stale: bool,
    /// Whether the tree was edited in the running transaction.
    pub(crate) is_changed: bool,
    /// Whether the tree is a deleted subvolume: it is read, and freed, and not edited.
    pub(crate) is_deleted: bool,
    /// Of a deleted tree: how far shared blocks have full back references (law 2 of
    /// [`crate::drop_tree`]).
    pub(crate) converted: Converted,
}

impl std::fmt::Debug for TransactionTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionTree").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TransactionTree {
    pub(crate) fn new(
        root: Expected,
        record: Option<RootRecord>,
        blocks: Arc<Blocks>,
        epochs: Arc<ReadEpochs>,
    ) -> Self {
        let is_unreferenced = record.as_ref().is_some_and(|record| record.raw.refs.get() == 0);
        let state = TreeState {
            is_deleted: is_unreferenced && root.tree.is_subvolume() && root.tree != TreeId::FS,
            converted: Converted::NOTHING,
            root,
            committed_root: root,
            committed_used: record.as_ref().map_or(0, |record| record.raw.bytes_used.get()),
            changes: ChangedInodes::default(),
            dirty: BlockMap::default(),
            sealed: BlockMap::default(),
            frozen: None,
            record,
            is_root_item_stale: false,
            is_changed: false,
        };
        let (version, state) = (AtomicU64::new(0), RwLock::new(state));
        Self { id: root.tree, version, state, blocks, epochs }
    }

    pub(crate) fn id(&self) -> TreeId {
        self.id
    }

    /// Returns the access to the blocks that the transaction has not changed.
    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    pub(crate) fn epochs(&self) -> &ReadEpochs {
        &self.epochs
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn bump_version(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether a thread panicked in the middle of an edit.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }

    pub(crate) fn root(&self) -> Expected {
        self.state().root
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, TreeState> {
        self.state.read()
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, TreeState> {
        self.state.write()
    }

    /// Runs a descent, and repeats it until all its blocks are in memory (law 2).
    pub(crate) fn read<R>(
        &self,
        mut descend: impl FnMut(&Reader<'_>) -> Result<R, Stop>,
    ) -> Result<R, TreeError> {
        let mut fetched = Vec::new();
        match self.read_once(&fetched, &mut descend) {
            Err(Stop::Missing(_)) => {}
            Err(Stop::Failed(error)) => return Err(error),
            Ok(found) => return Ok(found),
        }
        // The blocks that the tree names from here on are not overwritten, even after commits.
        let _epoch = self.epochs.enter();
        loop {
            match self.read_once(&fetched, &mut descend) {
                Ok(found) => return Ok(found),
                Err(stopped) => fetch_missing(&self.blocks, &mut fetched, stopped)?,
            }
        }
    }

    /// Runs a descent once. It stops where a block is not in memory.
    pub(crate) fn read_once<R>(
        &self,
        fetched: &[Arc<Block>],
        mut descend: impl FnMut(&Reader<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let state = self.state();
        let version = self.version();
        descend(&Reader { state: &state, blocks: &self.blocks, fetched, version })
    }

    /// Runs a descent once, like [`Self::read_once`], in the extent tree: the thread may hold the
    /// lock of a subvolume's tree, which it edits.
    pub(crate) fn read_once_nested<R>(
        &self,
        fetched: &[Arc<Block>],
        descend: impl FnOnce(&Reader<'_>) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let state = self.state.read_nested();
        let version = self.version();
        descend(&Reader { state: &state, blocks: &self.blocks, fetched, version })
    }
}

/// Reads the block that a descent missed. Returns the error if the descent failed for another
/// reason.
pub(crate) fn fetch_missing(
    blocks: &Blocks,
    fetched: &mut Vec<Arc<Block>>,
    stopped: Stop,
) -> Result<(), TreeError> {
    match stopped {
        Stop::Missing(expected) => {
            fetched.push(blocks.read(&expected)?);
            Ok(())
        }
        Stop::Failed(error) => Err(error),
    }
}

impl TreeState {
    /// Returns a block that is in memory, or [`Stop::Missing`].
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        fetched: &[Arc<Block>],
        expected: &Expected,
    ) -> Result<Arc<Block>, Stop> {
        // On a volume whose free space is wrong, an older block may have the address too.
        let matches = |block: &Arc<Block>| block.generation() == expected.generation;
        if let Some(block) = self.dirty.get(&expected.logical).filter(|block| matches(block)) {
            return Ok(Arc::clone(block));
        }
        if let Some(block) = self.sealed.get(&expected.logical).filter(|block| matches(block)) {
            return Ok(Arc::clone(block));
        }
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.get(&expected.logical));
        if let Some(block) = frozen.filter(|block| matches(block)) {
            return Ok(Arc::clone(block));
        }
        if let Some(block) = blocks.cached(expected)? {
            return Ok(block);
        }
        let found = fetched.iter().find(|block| block.logical() == expected.logical);
        let found = found.filter(|block| matches(block));
        found.cloned().ok_or(Stop::Missing(*expected))
    }

    /// Makes the blocks of the running transaction immutable, except for the one at `root`.
    pub(crate) fn seal(&mut self, root: Logical, csum: ChecksumKind) {
        let mut sealed = std::mem::take(&mut self.dirty);
        self.dirty.extend(sealed.remove_entry(&root));
        for block in sealed.values_mut() {
            Arc::make_mut(block).seal(csum);
        }
        self.sealed.extend(sealed);
    }

    /// Whether a block has been committed, so that it can be read from a device.
    fn is_committed(&self, at: Logical) -> bool {
        let is_frozen = self.frozen.as_ref().is_some_and(|frozen| frozen.contains_key(&at));
        let is_own = self.dirty.contains_key(&at) || self.sealed.contains_key(&at);
        !is_frozen && !is_own
    }
}

/// The view of the tree during one descent.
pub(crate) struct Reader<'a> {
    pub(crate) state: &'a TreeState,
    blocks: &'a Blocks,
    fetched: &'a [Arc<Block>],
    pub(crate) version: u64,
}

/// The end of a descent: a slot of a leaf.
pub(crate) struct LeafSlot {
    pub(crate) leaf: Arc<Block>,
    /// The slot of the first item at or after the key; the number of items if this leaf has none.
    pub(crate) slot: usize,
    /// The first key of the next leaf, as its parent has it.
    pub(crate) next: Option<Key>,
    pub(crate) version: u64,
    /// The committed leaves that follow below the same parent, as many as the caller requested.
    pub(crate) ahead: Vec<Expected>,
}

impl Reader<'_> {
    pub(crate) fn block(&self, expected: &Expected) -> Result<Arc<Block>, Stop> {
        self.state.find(self.blocks, self.fetched, expected)
    }

    /// Returns the addresses of the blocks on the way to a key, to the one of `level`, which is not
    /// read.
    pub(crate) fn path(&self, key: &Key, level: u8) -> Result<Vec<Logical>, Stop> {
        let (mut expected, mut path) = (self.state.root, Vec::new());
        loop {
            path.push(expected.logical);
            if expected.level <= level {
                return Ok(path);
            }
            let block = self.block(&expected)?;
            let slot = covering_slot(&block, key).unwrap_or(0);
            expected = child(&block, slot, expected.tree, expected.end_key)
                .ok_or_else(|| no_child(&block, slot))?;
        }
    }

    /// Descends to the leaf that covers the key. Returns up to `ahead` of the leaves that follow it
    /// too.
    pub(crate) fn descend(&self, key: &Key, ahead: usize) -> Result<LeafSlot, Stop> {
        let mut expected = self.state.root;
        let mut next = None;
        let mut leaves = Vec::new();
        loop {
            let block = self.block(&expected)?;
            if block.level() == 0 {
                let slot = block.find(key).unwrap_or_else(|slot| slot);
                let version = self.version;
                return Ok(LeafSlot { leaf: block, slot, next, version, ahead: leaves });
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
