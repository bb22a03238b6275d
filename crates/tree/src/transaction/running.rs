//! The state of a forest that is open for writing: the trees of the running transaction, its
//! delayed references and pending checksums, the space, and the gate.
//!
//! Lock order:
//!
//! ```text
//! gate -> tree (one subvolume, then the extent tree to look up references) -> references -> space
//! ```
//!
//! None of these locks is held while a device is read or written. The lock that keeps commits apart
//! is.
//!
//! Left to others: the steps of a commit (`commit`), what they may cost (`global_reserve`), adding
//! and removing chunks (`chunks`).

use crate::Block;
use crate::blocks::Blocks;
use crate::chunks::block_groups::Changes;
use crate::chunks::changes::Chunks;
use crate::chunks::free_changes::FreeSpaceChanges;
use crate::chunks::{block_groups, device_extents};
use crate::committed::{CommittedTrees, root_item};
use crate::cow::{RootRecord, Stop, TransactionTree};
use crate::error::TreeError;
use crate::pending_checksums::PendingChecksums;
use crate::quota::state::Quota;
use crate::references::item::{ExtentItem, read_extent};
use crate::references::{self, Content, PendingRefs, Ref, References, SeenRefs};
use crate::transaction::discards::Discards;
use crate::transaction::gate::Gate;
use crate::transaction::global_reserve::{COW_BLOCKS_PER_REFERENCE, GlobalReserve};
use crate::transaction::need::{Need, ReservationLevel};
use crate::transaction::params::VolumeParams;
use crate::transaction::read_epochs::ReadEpochs;
use crate::transaction::resizes::Resizes;
use crate::tree::Tree;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::extent::{EXTENT_FLAG_FULL_BACKREF, Extent};
use butternut_format::feature::Feature;
use butternut_format::inode::Time;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, RawKeyPtr};
use butternut_format::refused::Refused;
use butternut_format::root::RawRootItem;
use butternut_format::super_block::RawSuperBlock;
use butternut_format::units::{Generation, Logical, TreeId, length};
use butternut_space::{
    AllocationRequest, ChunkPlan, Class, Cluster, ExtentChange, NoSpace, Reservation, Space,
    SpaceOptions,
};
use butternut_sys::lock::{Mutex, MutexGuard, RwLock, rank};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that one changed item may copy or add, splits included.
const COW_BLOCKS_PER_ITEM: u64 = 3;

/// Up to this many items of a deletion may each lie in a leaf of their own; of the others, at least
/// [`ITEMS_PER_LEAF_MIN`] share a leaf.
const SCATTERED_ITEMS_MAX: u64 = 8;
const ITEMS_PER_LEAF_MIN: u64 = 8;

/// Nodes that the changes of a caller inside a commit may copy or add, splits included.
const AT_COMMIT_NODES: u64 = 64;

/// Nodes that each further change of the same caller may copy or add: a snapshot with its items in
/// the root tree and the UUID tree, or one entry of a tree.
const NODES_PER_FURTHER_CHANGE: u64 = 16;

/// The approximate memory of one delayed reference, in bytes.
const HEAD_BYTES: u64 = 160;

/// The approximate memory of one dropped reference, in bytes.
const DROP_BYTES: u64 = 80;

/// The approximate memory of the address of one touched extent, in bytes.
const TOUCHED_BYTES: u64 = 16;

/// The reference count and the flags of a tree block, in the running transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRefs {
    pub(crate) refs: u64,
    pub(crate) flags: u64,
    /// The part of both that the running transaction has added.
    seen: SeenRefs,
}

impl BlockRefs {
    /// Whether the children of the block are referred to by the block, and not by its owner.
    pub(crate) fn is_full_backref(&self) -> bool {
        self.flags & EXTENT_FLAG_FULL_BACKREF != 0
    }
}

pub(crate) struct Running {
    pub(crate) params: VolumeParams,
    pub(crate) gate: Arc<Gate>,
    pub(crate) space: Arc<Space>,
    blocks: Arc<Blocks>,
    clock: fn() -> Time,
    trees: RwLock<HashMap<TreeId, Arc<TransactionTree>>, rank::Trees>,
    references: Mutex<References, rank::DelayedReferences>,
    /// `None` if quotas are off.
    quota: Mutex<Option<Quota>, rank::Quota>,
    /// Whether quotas are on, for callers that have nothing to do if not.
    has_quotas: AtomicBool,
    pending_checksums: Mutex<PendingChecksums, rank::PendingChecksums>,
    /// The number of dirty blocks of the running transaction.
    dirty_blocks: AtomicU64,
    pub(crate) global_reserve: GlobalReserve,
    free_changes: Mutex<FreeSpaceChanges, rank::FreeSpaceChanges>,
    chunks: Mutex<Chunks, rank::NewChunks>,
    /// The newest generation that added a chunk.
    new_chunk: AtomicU64,
    /// The superblock of the last commit, with the changes of the running transaction.
    super_block: Mutex<RawSuperBlock, rank::NextSuperBlock>,
    pub(crate) read_epochs: Arc<ReadEpochs>,
    pub(crate) discards: Arc<Discards>,
    pub(crate) resizes: Resizes,
    /// Held during a commit (law 5 of `commit`). Whether commits have ended.
    pub(crate) committing: Mutex<bool, rank::Commit>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("params", &self.params).finish_non_exhaustive()
    }
}

/// A tree, and its root item. The root tree and the chunk tree have none.
pub(crate) type TreeWithItem = (Tree, Option<Box<RawRootItem>>);

impl Running {
    /// Reads the state that writing needs: block groups, their free space, devices and their
    /// extents.
    pub(crate) fn open(
        trees: &CommittedTrees,
        clock: fn() -> Time,
        discards_freed: bool,
        changes: Changes,
    ) -> Result<Self, TreeError> {
        let (blocks, volume) = (Arc::clone(trees.blocks()), trees.volume());
        let super_block = volume.super_block();
        let root = blocks.read(&super_block.root())?;
        let params = VolumeParams::of(super_block, root.header().chunk_tree_uuid);
        let options = SpaceOptions { node_bytes: params.node_bytes, is_mixed: params.is_mixed };
        let gate = Arc::new(Gate::new(super_block.generation()));
        let (space, discards) = (Arc::new(Space::new(options)), Arc::new(Discards::default()));
        let read_epochs = Arc::new(ReadEpochs::new(
            Arc::clone(volume),
            Arc::clone(&space),
            Arc::clone(&gate),
            Arc::clone(&discards),
            discards_freed,
        ));
        let running = Self {
            gate,
            space,
            blocks,
            clock,
            trees: RwLock::default(),
            references: Mutex::default(),
            quota: Mutex::default(),
            has_quotas: AtomicBool::new(false),
            pending_checksums: Mutex::new(PendingChecksums::new(params.csum.bytes())),
            dirty_blocks: AtomicU64::new(0),
            global_reserve: GlobalReserve::default(),
            free_changes: Mutex::default(),
            chunks: Mutex::new(Chunks::default()),
            new_chunk: AtomicU64::new(0),
            super_block: Mutex::new(*super_block.raw()),
            read_epochs,
            discards,
            resizes: Resizes::default(),
            committing: Mutex::default(),
            params,
        };
        block_groups::load(trees, &running.params, &running.space, changes)?;
        device_extents::load_devices(trees, &running.space)?;
        Ok(running)
    }

    /// Returns the access to the blocks that the transaction has not changed.
    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// Returns the time that the commit writes.
    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    /// Returns a tree of the running transaction; `None` if the volume has no such tree.
    pub(crate) fn tree(&self, id: TreeId) -> Result<Option<Arc<TransactionTree>>, TreeError> {
        let known = self.trees.read().get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let super_block = self.blocks.volume().super_block();
        let (root, record) = match id {
            TreeId::ROOT => (super_block.root(), None),
            TreeId::CHUNK => (super_block.chunk_root(), None),
            _ => match self.root_record(id)? {
                Some((root, record)) => (root, Some(record)),
                None => return Ok(None),
            },
        };
        let (blocks, epochs) = (Arc::clone(&self.blocks), Arc::clone(&self.read_epochs));
        let tree = TransactionTree::new(root, record, blocks, epochs);
        let mut trees = self.trees.write();
        Ok(Some(Arc::clone(trees.entry(id).or_insert_with(|| Arc::new(tree)))))
    }

    /// Returns a tree as the running transaction has it, with its root item, for a reader of many
    /// subvolumes: one that was not used is not kept, because each commit looks at those that were.
    pub(crate) fn tree_to_read(&self, id: TreeId) -> Result<Option<TreeWithItem>, TreeError> {
        let is_kept = self.trees.read().contains_key(&id);
        if !is_kept && id.is_subvolume() {
            let found = self.root_record(id)?;
            let fixed = |root| Tree::new(Arc::clone(&self.blocks), root);
            return Ok(found.map(|(root, record)| (fixed(root), Some(record.raw))));
        }
        let Some(tree) = self.tree(id)? else { return Ok(None) };
        let raw = tree.state().record.as_ref().map(|record| record.raw.clone());
        Ok(Some((Tree::in_transaction(tree), raw)))
    }

    /// Adds a tree that the running transaction has created. Returns `false` if there is one with
    /// this id.
    pub(crate) fn add_tree(&self, tree: Arc<TransactionTree>) -> bool {
        let mut trees = self.trees.write();
        match trees.entry(tree.id()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(tree);
                true
            }
        }
    }

    fn root_record(&self, id: TreeId) -> Result<Option<(Expected, RootRecord)>, TreeError> {
        let roots = self.tree(TreeId::ROOT)?.ok_or(TreeError::NoTree { tree: TreeId::ROOT })?;
        let found = root_item(&Tree::in_transaction(roots), id)?;
        let Some((key, item)) = found else { return Ok(None) };
        let record = RootRecord { key, raw: Box::new(*item.raw()) };
        Ok(Some((item.block(id), record)))
    }

    /// Returns all trees that were used since the volume was opened, sorted by id.
    pub(crate) fn trees(&self) -> Vec<Arc<TransactionTree>> {
        let trees = self.trees.read();
        let mut trees: Vec<_> = trees.values().cloned().collect();
        trees.sort_by_key(|tree| tree.id());
        trees
    }

    /// Returns the owners of the tree blocks that are in memory and may not be on disk yet.
    pub(crate) fn owners_of_new_blocks(&self) -> HashMap<Logical, TreeId> {
        let mut owners = HashMap::new();
        for tree in self.trees() {
            let state = tree.state();
            let blocks = state.dirty.iter().chain(state.sealed.iter());
            owners.extend(blocks.map(|(at, block)| (*at, block.owner())));
        }
        owners
    }

    pub(crate) fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock_or_else(|_| self.fail_after_panic())
    }

    /// Calls `read` to read the extent tree, and returns its result with the delayed references of
    /// the extent at `at`, both as of one moment, for a caller that has the reference `own`, if
    /// any.
    pub(crate) fn with_pending_refs<R>(
        &self,
        at: Logical,
        own: Option<Ref>,
        mut read: impl FnMut(&PendingRefs) -> Result<R, TreeError>,
    ) -> Result<(R, PendingRefs), TreeError> {
        loop {
            let Some(pending) = self.references().pending_refs(at, own) else {
                // A commit that failed or panicked in the middle of a batch has set the cause, or
                // is about to.
                if let Some(error) = self.gate.cause() {
                    return Err(error);
                }
                std::thread::yield_now();
                continue;
            };
            let found = read(&pending)?;
            if self.references().is_current(&pending) {
                return Ok((found, pending));
            }
        }
    }

    /// Reads the quotas. From here on the transaction records what they account for.
    pub(crate) fn load_quota(&self, trees: &CommittedTrees) -> Result<(), TreeError> {
        let Some(tree) = trees.tree(TreeId::QUOTA)? else { return Ok(()) };
        let quota = Quota::read(&tree, trees.volume().super_block().generation())?;
        self.set_quota(quota);
        Ok(())
    }

    /// Sets the quotas of a volume on which they were just enabled, or disabled.
    pub(crate) fn set_quota(&self, quota: Option<Quota>) {
        let is_on = quota.is_some();
        let simple_since = quota.as_ref().and_then(|quota| quota.simple_since);
        {
            let mut references = self.references();
            references.touched().set_enabled(is_on && simple_since.is_none());
            references.owned().set_since(simple_since);
        }
        let old = std::mem::replace(&mut *self.quota(), quota);
        drop(old);
        self.has_quotas.store(is_on, Ordering::Release);
    }

    /// Whether quotas are on.
    pub(crate) fn has_quotas(&self) -> bool {
        self.has_quotas.load(Ordering::Acquire)
    }

    /// Returns the quotas; `None` if they are off, and while a commit accounts for them.
    pub(crate) fn quota(&self) -> MutexGuard<'_, Option<Quota>> {
        self.quota.lock_or_else(|_| self.fail_after_panic())
    }

    /// Replaces the quotas by their changed copy. Keeps the charges, which other threads may have
    /// changed meanwhile; if `is_accounted`, without those that are part of the usage now.
    pub(crate) fn replace_quota(&self, changed: Quota, is_accounted: bool) {
        let mut quota = self.quota();
        let charges = quota.take().map(|old| old.charges).unwrap_or_default();
        let mut new = Quota { charges, ..changed };
        if is_accounted {
            new.charges.account();
            new.accounted = new.accounted.wrapping_add(1);
        }
        *quota = Some(new);
    }

    pub(crate) fn pending_checksums(&self) -> MutexGuard<'_, PendingChecksums> {
        self.pending_checksums.lock_or_else(|_| self.fail_after_panic())
    }

    pub(crate) fn free_changes(&self) -> MutexGuard<'_, FreeSpaceChanges> {
        self.free_changes.lock_or_else(|_| self.fail_after_panic())
    }

    pub(crate) fn super_block(&self) -> MutexGuard<'_, RawSuperBlock> {
        self.super_block.lock_or_else(|_| self.fail_after_panic())
    }

    /// Sets a feature bit of the superblock. Returns whether it was not set.
    pub(crate) fn add_feature(&self, feature: Feature) -> bool {
        let mut raw = self.super_block();
        let is_new = !raw.has(feature);
        let with = raw.incompat_flags.get() | feature.mask();
        raw.incompat_flags.set(with);
        is_new
    }

    /// Sets a read-only compatible feature bit of the superblock. Returns whether it was not set.
    pub(crate) fn add_compat_ro_feature(&self, feature: Feature) -> bool {
        let mut raw = self.super_block();
        let flags = raw.compat_ro_flags.get();
        raw.compat_ro_flags.set(flags | feature.mask());
        flags & feature.mask() == 0
    }

    pub(crate) fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.chunks.lock_or_else(|_| self.fail_after_panic())
    }

    /// A lock that a panic left poisoned may guard half a change. Readers get its state and go on,
    /// and the volume becomes read-only.
    fn fail_after_panic(&self) {
        self.gate.poison(TreeError::Panicked);
    }

    /// Makes the volume read-only if a panic left a lock of the running state poisoned.
    pub(crate) fn check_locks(&self) {
        let is_poisoned = self.references.is_poisoned()
            || self.pending_checksums.is_poisoned()
            || self.quota.is_poisoned()
            || self.free_changes.is_poisoned()
            || self.chunks.is_poisoned()
            || self.super_block.is_poisoned()
            || self.trees.is_poisoned()
            || self.space.is_poisoned()
            || self.trees().iter().any(|tree| tree.is_poisoned());
        if is_poisoned {
            self.gate.poison(TreeError::Panicked);
        }
    }

    /// Returns the bytes that changing `need.items` items may cost.
    pub(crate) fn items_bytes(&self, need: Need) -> u64 {
        let items = u64::from(need.items);
        let blocks_of_items = match need.level {
            ReservationLevel::Normal => items.saturating_mul(COW_BLOCKS_PER_ITEM),
            ReservationLevel::Deletion | ReservationLevel::Prereserved => {
                // Items that are deleted together lie together, except for the first few.
                let scattered = items.min(SCATTERED_ITEMS_MAX).saturating_mul(COW_BLOCKS_PER_ITEM);
                scattered.saturating_add(items / ITEMS_PER_LEAF_MIN)
            }
        };
        // Those of the root item too, which the commit writes when the handle has returned this.
        let blocks = match blocks_of_items {
            0 => 0,
            blocks => blocks.saturating_add(self.blocks_per_root_item()),
        };
        blocks.saturating_mul(self.params.node_bytes.into())
    }

    /// Reserves the space that changing `need.items` items may cost.
    pub(crate) fn reserve_items(&self, need: Need) -> Result<Reservation, NoSpace> {
        self.expect_references(need.references.into());
        let bytes = self.items_bytes(need);
        let reserved = match need.level {
            ReservationLevel::Normal => self.space.reserve(Class::Metadata, bytes),
            ReservationLevel::Deletion => self.space.reserve_for_deletion(Class::Metadata, bytes),
            ReservationLevel::Prereserved => self.space.reserve_prereserved(Class::Metadata, bytes),
        };
        if reserved.is_err() {
            self.forget_expected_references(need.references.into());
            self.update_global_reserve();
        }
        reserved
    }

    /// Returns what a number of changes inside a commit may cost, in bytes of metadata: of each,
    /// those of a few items, and the references of a snapshot to the children of its source's root.
    pub(crate) fn at_commit_bytes(&self, changes: u64) -> u64 {
        let node = u64::from(self.params.node_bytes);
        let children = length(self.params.node_len() / size_of::<RawKeyPtr>());
        let references = children.saturating_mul(node.saturating_mul(COW_BLOCKS_PER_REFERENCE));
        let references = references.saturating_mul(changes);
        let references = references.min(self.global_reserve.commit_trees.load(Ordering::Relaxed));
        let further = NODES_PER_FURTHER_CHANGE.saturating_mul(changes.saturating_sub(1));
        let nodes = AT_COMMIT_NODES.saturating_add(further);
        nodes.saturating_mul(node).saturating_add(references)
    }

    /// As [`Self::at_commit_bytes`], for a deletion, which adds no references.
    pub(crate) fn deletion_at_commit_bytes(&self) -> u64 {
        AT_COMMIT_NODES.saturating_mul(self.params.node_bytes.into()) / 2
    }

    /// Allocates the address of a new block of a tree.
    ///
    /// Reservations are estimates. Where one was too low, this adds a chunk if the devices have
    /// space.
    pub(crate) fn allocate_block(&self, tree: TreeId) -> Result<Logical, TreeError> {
        let is_system = tree == TreeId::CHUNK;
        let class = if is_system { Class::System } else { Class::Metadata };
        let want = AllocationRequest::node(self.params.node_bytes, cluster(tree));
        let mut found = self.space.allocate(class, want);
        if found.is_none() && (self.add_chunk(class) || self.add_chunk_beyond_next_ends(class)) {
            found = self.space.allocate(class, want);
        }
        let bytes = u64::from(self.params.node_bytes);
        found.map(|range| Logical(range.start)).ok_or(TreeError::NoSpace { bytes })
    }

    /// Adds a chunk of a class. Returns `false` if the devices lack the space. The caller is a
    /// member of the running transaction, or its commit.
    pub(crate) fn add_chunk(&self, class: Class) -> bool {
        self.add_planned_chunk(class, |space, flags| space.plan_chunk(class, flags, 0))
    }

    /// Adds a chunk like [`Self::add_chunk`], also behind the end that a resize in progress will
    /// give a device: without it, the commit would fail. The resize fails instead.
    fn add_chunk_beyond_next_ends(&self, class: Class) -> bool {
        self.add_planned_chunk(class, |space, flags| {
            space.plan_chunk_beyond_next_ends(class, flags)
        })
    }

    fn add_planned_chunk(
        &self,
        class: Class,
        plan: impl FnOnce(&Space, BlockGroupFlags) -> Option<ChunkPlan>,
    ) -> bool {
        // Before any of its space can be allocated.
        self.new_chunk.fetch_max(self.gate.generation().0, Ordering::SeqCst);
        let mut chunks = self.chunks();
        match chunks.add(self.blocks.volume(), &self.space, class, plan) {
            Ok(is_added) => {
                if is_added {
                    self.gate.mark_changed();
                }
                is_added
            }
            Err(error) => {
                self.gate.poison(error);
                false
            }
        }
    }

    /// Whether a transaction has added a chunk.
    pub(crate) fn has_new_chunk(&self, generation: Generation) -> bool {
        self.new_chunk.load(Ordering::SeqCst) >= generation.0
    }

    fn node_range(&self, at: Logical) -> Range<u64> {
        at.0..at.0.saturating_add(self.params.node_bytes.into())
    }

    pub(crate) fn create_block(&self, block: &Block, tree: TreeId) {
        let content = Content::block(block.level(), block.key(0));
        let bytes = self.params.node_bytes.into();
        self.dirty_blocks.fetch_add(1, Ordering::Relaxed);
        if !self.references().create(block.logical(), bytes, content, Ref::Tree(tree)) {
            self.refuse_address(block.logical());
        }
    }

    /// Whether the running transaction has delayed references of an extent.
    pub(crate) fn has_references(&self, at: Logical) -> bool {
        self.references().get(at).is_some()
    }

    /// Whether an extent was allocated in the running transaction.
    pub(crate) fn is_created(&self, at: Logical) -> bool {
        self.references().get(at).is_some_and(|head| head.is_created)
    }

    /// Makes the volume read-only because an address that was free is in use. Returns the error to
    /// report.
    pub(crate) fn refuse_address(&self, at: Logical) -> TreeError {
        let refused = Refused::new("extent", "free and in use", "one of the two");
        self.gate.poison(references::corrupt(at, refused))
    }

    /// Drops the only reference to a block. A block of this transaction is freed.
    pub(crate) fn drop_block(&self, block: &Block, reference: Ref) {
        let content = Content::block(block.level(), block.key(0));
        let (at, bytes) = (block.logical(), self.params.node_bytes.into());
        let is_freed = {
            let mut references = self.references();
            let is_freed = references.change(at, bytes, content, reference, -1);
            references.note_dropped_block(block, true);
            is_freed
        };
        if is_freed {
            // The next block of this cluster gets the hole, so that the commit writes long runs.
            self.release_block(at, block.owner());
        }
    }

    /// Changes the references of a data extent. Returns `true` if the extent belongs to this
    /// transaction and has no references any more.
    pub(crate) fn change_data(&self, at: Logical, bytes: u64, reference: Ref, delta: i64) -> bool {
        self.references().change(at, bytes, Content::Data, reference, delta)
    }

    pub(crate) fn create_data(&self, at: Logical, bytes: u64, reference: Ref) {
        let is_new = self.references().create(at, bytes, Content::Data, reference);
        if !is_new {
            self.refuse_address(at);
        }
        if let Ref::Data(data) = reference
            && self.has_quotas()
            && let Some(quota) = self.quota().as_mut()
        {
            quota.charges.add(data.tree, bytes);
        }
    }

    /// Accounts for an extent item that was inserted.
    pub(crate) fn account_inserted(&self, range: Range<u64>) {
        self.check(self.space.account(&range, ExtentChange::Inserted));
        self.free_changes().allocate(range);
    }

    /// Accounts for an extent item that was removed. Its bytes are free after the commit.
    pub(crate) fn account_removed(&self, range: Range<u64>, generation: Generation) {
        self.check(self.space.account(&range, ExtentChange::Removed));
        self.check(self.space.pin(range.clone(), generation));
        self.free_changes().free(range);
    }

    /// Whether there are delayed references, or chunks without items.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.references().is_empty() || self.chunks().has_pending()
    }

    /// Returns the memory of the running transaction in bytes: dirty blocks, delayed references and
    /// pending checksums.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let (heads, drops, touched) = {
            let mut references = self.references();
            let (drops, touched) = (references.drops().len(), references.touched().len());
            (length(references.len()), length(drops), length(touched))
        };
        let references = heads.saturating_mul(HEAD_BYTES);
        let references = references.saturating_add(drops.saturating_mul(DROP_BYTES));
        let references = references.saturating_add(touched.saturating_mul(TOUCHED_BYTES));
        let blocks = self.dirty_blocks.load(Ordering::Relaxed);
        let blocks = blocks.saturating_mul(self.params.node_bytes.into());
        blocks.saturating_add(references).saturating_add(self.pending_checksums().bytes())
    }

    pub(crate) fn reset_dirty(&self) {
        self.dirty_blocks.store(0, Ordering::Relaxed);
        self.global_reserve.reset_stale_root_items();
    }

    /// Makes the volume read-only after an error of `space`, which means that the trees contradict
    /// each other.
    pub(crate) fn check<T>(&self, result: Result<T, butternut_space::SpaceError>) {
        self.gate.check_space(result);
    }

    /// Returns the references and flags of a block: those in the extent tree, changed by the
    /// delayed ones.
    pub(crate) fn block_refs(
        &self,
        fetched: &[Arc<Block>],
        at: Logical,
        level: u8,
    ) -> Result<BlockRefs, Stop> {
        let skinny = Key::new(at.0, ItemType::METADATA_ITEM, level.into());
        let whole = Key::new(at.0, ItemType::EXTENT_ITEM, self.params.node_bytes.into());
        let seen = self.references().seen(at);
        let mut found = BlockRefs { refs: 0, flags: 0, seen };
        if !seen.is_created {
            let item = match self.extent_item(fetched, &skinny)? {
                Some(item) => Some(item),
                None => self.extent_item(fetched, &whole)?,
            };
            let item = item.ok_or_else(|| {
                let source = Refused::new("extent item", "none", "one for a block in use")
                    .at(format_args!("block {at}"));
                TreeError::Corrupt { tree: TreeId::EXTENT, source }
            })?;
            found = BlockRefs { refs: item.refs, flags: item.flags, seen };
        }
        found.refs = found.refs.saturating_add_signed(seen.sum);
        if seen.is_full_backref {
            found.flags |= EXTENT_FLAG_FULL_BACKREF;
        }
        Ok(found)
    }

    /// Calls `change` if the references of a block are still as `found` (law 5 of
    /// [`crate::references`]). Returns `None` if another thread has changed them since.
    pub(crate) fn change_found_refs<R>(
        &self,
        at: Logical,
        found: &BlockRefs,
        change: impl FnOnce(&mut References) -> R,
    ) -> Option<R> {
        let mut references = self.references();
        (references.seen(at) == found.seen).then(|| change(&mut references))
    }

    /// Frees the address of a block that was allocated and not used.
    pub(crate) fn release_block(&self, at: Logical, tree: TreeId) {
        self.check(self.space.release_to_cluster(&self.node_range(at), cluster(tree)));
    }

    /// Frees a sealed block without references. It is written with the commit nevertheless, so its
    /// space is not reused before.
    pub(crate) fn release_sealed_block(&self, at: Logical, generation: Generation) {
        self.check(self.space.pin(self.node_range(at), generation));
    }

    /// Forgets a tree that is deleted.
    pub(crate) fn forget_tree(&self, id: TreeId) {
        let forgotten = self.trees.write().remove(&id);
        drop(forgotten);
        if let Some(quota) = self.quota().as_mut() {
            quota.note_dropped(id);
        }
    }

    /// Reads an item of the running extent tree. Fails with [`Stop::Missing`] if a block on the
    /// path is not in memory.
    fn extent_item(&self, fetched: &[Arc<Block>], key: &Key) -> Result<Option<ExtentItem>, Stop> {
        let trees = self.trees.read();
        let Some(extents) = trees.get(&TreeId::EXTENT).cloned() else {
            return Err(TreeError::NoTree { tree: TreeId::EXTENT }.into());
        };
        drop(trees);
        let place = extents.read_once_nested(fetched, |reader| reader.descend(key, 0))?;
        let Some((found, data)) = place.leaf.item(place.slot).filter(|(found, _)| found == key)
        else {
            return Ok(None);
        };
        let parse = |extent: Extent<'_>| ExtentItem::parse(&extent);
        Ok(Some(read_extent(self.blocks.volume(), found, data, parse)?))
    }

    /// Whether a commit may free space: pinned bytes, or extents that delayed references drop.
    pub(crate) fn commit_may_free_space(&self, pinned_bytes: u64) -> bool {
        pinned_bytes > 0 || !self.references().is_empty()
    }
}

/// The trees that change at each commit use another cluster than subvolumes, so that their blocks
/// lie apart.
fn cluster(tree: TreeId) -> Cluster {
    Cluster(if tree.is_subvolume() { 1 } else { 2 })
}
