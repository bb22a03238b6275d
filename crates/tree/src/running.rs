//! What a writable forest has besides its committed trees: the trees of the running transaction,
//! their references, the space, and the gate of the transaction.
//!
//! ```text
//! gate -> tree (one subvolume, then the extent tree to look up references) -> references -> space
//! ```
//!
//! is the order of the locks. Nothing here is locked while a device is read or written, but the
//! one that keeps two commits apart.
//!
//! Left to others: the steps of a commit (`commit`), where chunks come from (`chunks`).

use crate::Block;
use crate::block_groups;
use crate::chunks::Chunks;
use crate::delayed_sums::DelayedSums;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::free_space::FreeChanges;
use crate::live::{LiveTree, RootRecord, Stop};
use crate::readers::Readers;
use crate::references::item::{ExtentItem, read_extent};
use crate::references::{Content, Look, Ref, References};
use crate::transaction::{Gate, Need, Purse};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::extent::{EXTENT_FLAG_FULL_BACKREF, Extent};
use butternut_format::feature;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, HEADER_BYTES};
use butternut_format::refused::Refused;
use butternut_format::super_block::{RawSuperBlock, SuperBlock};
use butternut_format::units::{Generation, Logical, TreeId, index, length};
use butternut_space::{Class, Cluster, Delta, NoSpace, Space, SpaceOptions, Ticket, Want};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Levels of copies that a changed item may cost, with what a split adds.
const BLOCKS_OF_AN_ITEM: u64 = 3;

/// Items of a deletion that may lie in leaves of their own, and how many of the rest share one.
const ITEMS_APART_MAX: u64 = 8;
const ITEMS_OF_A_LEAF_MIN: u64 = 8;

/// Bounds of what is set aside for a commit. The most is what the kernel sets aside.
const RESERVE_BYTES_MAX: u64 = 512 << 20;
const RESERVE_NODES_MIN: u64 = 160;

/// What a delayed reference may add to the trees of a commit, and how finely that is followed.
const RESERVE_OF_A_REFERENCE: u64 = 256;
const RESERVE_STEP: u64 = 256 << 10;

/// Leaves that one delayed reference may have a commit copy: of the extent tree, and of the
/// checksum tree or the free space tree.
const BLOCKS_OF_A_REFERENCE: u64 = 2;

/// About what one delayed reference takes in memory.
const HEAD_BYTES: u64 = 160;

/// What does not change while a volume is open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature bit of the superblock")]
pub(crate) struct Facts {
    pub(crate) node_bytes: u32,
    pub(crate) fsid: [u8; 16],
    pub(crate) chunk_tree_uuid: [u8; 16],
    pub(crate) csum: ChecksumKind,
    pub(crate) incompat: u64,
    pub(crate) is_skinny: bool,
    pub(crate) is_mixed: bool,
    /// There is a free space tree, and it is kept.
    pub(crate) has_free_space_tree: bool,
    pub(crate) has_block_group_tree: bool,
}

impl Facts {
    fn of(super_block: &SuperBlock, chunk_tree_uuid: [u8; 16]) -> Self {
        let kept = super_block.has_compat_ro(feature::FREE_SPACE_TREE)
            && super_block.has_compat_ro(feature::FREE_SPACE_TREE_VALID);
        Self {
            node_bytes: super_block.node_bytes(),
            fsid: super_block.metadata_uuid(),
            chunk_tree_uuid,
            csum: super_block.csum(),
            incompat: super_block.raw().incompat_flags.get(),
            is_skinny: super_block.has(feature::SKINNY_METADATA),
            is_mixed: super_block.has(feature::MIXED_GROUPS),
            has_free_space_tree: kept,
            has_block_group_tree: super_block.has_compat_ro(feature::BLOCK_GROUP_TREE),
        }
    }

    pub(crate) fn node_len(&self) -> usize {
        index(self.node_bytes)
    }

    /// The longest item that a leaf can hold.
    pub(crate) fn item_bytes_max(&self) -> usize {
        self.node_len().saturating_sub(HEADER_BYTES).saturating_sub(crate::edit::ITEM_BYTES)
    }

    /// The tree that block group items are in.
    pub(crate) fn group_tree(&self) -> TreeId {
        if self.has_block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT }
    }
}

/// References and flags of a tree block, as of the running transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRefs {
    pub(crate) refs: u64,
    pub(crate) flags: u64,
}

pub(crate) struct Running {
    pub(crate) facts: Facts,
    pub(crate) gate: Gate,
    pub(crate) space: Space,
    trees: RwLock<HashMap<TreeId, Arc<LiveTree>>>,
    references: Mutex<References>,
    sums: Mutex<DelayedSums>,
    /// Blocks of the running transaction.
    dirty_blocks: AtomicU64,
    /// What is set aside for a commit: without what waits, and with it.
    reserve_base: AtomicU64,
    reserved: AtomicU64,
    /// Bytes of the trees that a commit changes, as of the last one.
    pub(crate) commit_trees: AtomicU64,
    /// What a commit of what waits needs, at most, as `space` knows it.
    needed: AtomicU64,
    free_changes: Mutex<FreeChanges>,
    chunks: Mutex<Chunks>,
    /// The superblock of the last commit.
    super_block: Mutex<RawSuperBlock>,
    pub(crate) readers: Readers,
    /// Held by the commit that is under way.
    pub(crate) committing: Mutex<()>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Running {
    /// Reads what writing needs to know: groups, their free space, devices and their extents.
    pub(crate) fn open(forest: &Arc<Forest>) -> Result<Self, TreeError> {
        let super_block = forest.volume().super_block();
        let root = forest.block(&super_block.root())?;
        let facts = Facts::of(super_block, root.header().chunk_tree_uuid);
        let options = SpaceOptions { node_bytes: facts.node_bytes, is_mixed: facts.is_mixed };
        let running = Self {
            gate: Gate::new(super_block.generation()),
            space: Space::new(options),
            trees: RwLock::default(),
            references: Mutex::default(),
            sums: Mutex::new(DelayedSums::new(facts.csum.bytes())),
            dirty_blocks: AtomicU64::new(0),
            reserve_base: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            commit_trees: AtomicU64::new(0),
            needed: AtomicU64::new(0),
            free_changes: Mutex::default(),
            chunks: Mutex::new(Chunks::default()),
            super_block: Mutex::new(*super_block.raw()),
            readers: Readers::default(),
            committing: Mutex::default(),
            facts,
        };
        block_groups::load(forest, &running.facts, &running.space)?;
        Chunks::load(forest, &running.space)?;
        Ok(running)
    }

    /// A tree as the running transaction has it.
    pub(crate) fn tree(
        &self,
        forest: &Arc<Forest>,
        id: TreeId,
    ) -> Result<Option<Arc<LiveTree>>, TreeError> {
        let known = self.trees.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let super_block = forest.volume().super_block();
        let live = match id {
            TreeId::ROOT => LiveTree::new(super_block.root(), None),
            TreeId::CHUNK => LiveTree::new(super_block.chunk_root(), None),
            _ => match Self::root_record(forest, id)? {
                Some((root, record)) => LiveTree::new(root, Some(record)),
                None => return Ok(None),
            },
        };
        let mut trees = self.trees.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Some(Arc::clone(trees.entry(id).or_insert_with(|| Arc::new(live)))))
    }

    fn root_record(
        forest: &Arc<Forest>,
        id: TreeId,
    ) -> Result<Option<(Expected, RootRecord)>, TreeError> {
        let Some((key, item)) = forest.root_item(id)? else { return Ok(None) };
        let record = RootRecord { key, raw: Box::new(*item.raw()) };
        Ok(Some((item.block(id), record)))
    }

    /// All trees that were used since the volume was opened.
    pub(crate) fn trees(&self) -> Vec<Arc<LiveTree>> {
        let trees = self.trees.read().unwrap_or_else(PoisonError::into_inner);
        let mut trees: Vec<_> = trees.values().cloned().collect();
        trees.sort_by_key(|tree| tree.id());
        trees
    }

    pub(crate) fn references(&self) -> MutexGuard<'_, References> {
        self.recover(self.references.lock())
    }

    /// What the extent tree says, by `read`, and what waits to come into it, as of one moment.
    pub(crate) fn with_references<R>(
        &self,
        at: Logical,
        mut read: impl FnMut(&Look) -> Result<R, TreeError>,
    ) -> Result<(R, Look), TreeError> {
        loop {
            let Some(look) = self.references().look(at) else {
                // A commit that failed or died in the middle of a batch has left the cause, or is
                // about to.
                if let Some(error) = self.gate.cause() {
                    return Err(error);
                }
                std::thread::yield_now();
                continue;
            };
            let found = read(&look)?;
            if self.references().still(&look) {
                return Ok((found, look));
            }
        }
    }

    pub(crate) fn sums(&self) -> MutexGuard<'_, DelayedSums> {
        self.recover(self.sums.lock())
    }

    pub(crate) fn free_changes(&self) -> MutexGuard<'_, FreeChanges> {
        self.recover(self.free_changes.lock())
    }

    pub(crate) fn super_block(&self) -> MutexGuard<'_, RawSuperBlock> {
        self.recover(self.super_block.lock())
    }

    pub(crate) fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.recover(self.chunks.lock())
    }

    /// A lock that a panic has poisoned guards what may be half a change: it is given, so that
    /// readers go on, and nothing is written any more.
    fn recover<G>(&self, locked: Result<G, PoisonError<G>>) -> G {
        locked.unwrap_or_else(|poisoned| {
            self.gate.poison(TreeError::Panicked);
            poisoned.into_inner()
        })
    }

    /// Ends all writing if a panic has poisoned a lock of the running state.
    pub(crate) fn check_locks(&self) {
        let is_poisoned = self.references.is_poisoned()
            || self.sums.is_poisoned()
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

    /// A ticket for what changing some items may cost.
    pub(crate) fn reserve_items(&self, need: Need) -> Result<Ticket, NoSpace> {
        self.adjust_reserve();
        let items = u64::from(need.items);
        let blocks = match need.purse {
            Purse::Free => items.saturating_mul(BLOCKS_OF_AN_ITEM),
            Purse::Deletion | Purse::Promise => {
                // What goes together lies together, but for its first few items.
                let apart = items.min(ITEMS_APART_MAX).saturating_mul(BLOCKS_OF_AN_ITEM);
                apart.saturating_add(items / ITEMS_OF_A_LEAF_MIN)
            }
        };
        let bytes = blocks.saturating_mul(self.facts.node_bytes.into());
        match need.purse {
            Purse::Free => self.space.reserve(Class::Metadata, bytes),
            Purse::Deletion => self.space.reserve_urgent(Class::Metadata, bytes),
            Purse::Promise => self.space.reserve_promised(Class::Metadata, bytes),
        }
    }

    /// An address for a new block of a tree.
    /// What was reserved for a change is an estimate: where it was too low, a chunk is made, if the
    /// devices have room for one.
    pub(crate) fn allocate_block(
        &self,
        forest: &Forest,
        tree: TreeId,
    ) -> Result<Logical, TreeError> {
        let is_system = tree == TreeId::CHUNK;
        let class = if is_system { Class::System } else { Class::Metadata };
        let want = Want::node(self.facts.node_bytes, cluster(tree));
        let mut found = self.space.allocate(class, want);
        if found.is_none() && self.add_chunk(forest, class) {
            found = self.space.allocate(class, want);
        }
        let wanted = u64::from(self.facts.node_bytes);
        found.map(|range| Logical(range.start)).ok_or(TreeError::NoSpace { wanted })
    }

    fn node_range(&self, at: Logical) -> Range<u64> {
        at.0..at.0.saturating_add(self.facts.node_bytes.into())
    }

    pub(crate) fn create_block(&self, block: &Block, tree: TreeId) {
        let content = content(block.level(), block.key(0));
        let bytes = self.facts.node_bytes.into();
        self.dirty_blocks.fetch_add(1, Ordering::Relaxed);
        self.references().create(block.logical(), bytes, content, Ref::Tree(tree));
    }

    /// Gives up one reference to a block; a new block that loses its only one is free at once.
    pub(crate) fn drop_block(&self, block: &Block, reference: Ref) {
        let content = content(block.level(), block.key(0));
        let (at, bytes) = (block.logical(), self.facts.node_bytes.into());
        let is_gone = self.references().change(at, bytes, content, reference, -1);
        if is_gone {
            // The next block of its kind fills the hole, and the commit writes them in one piece.
            let range = self.node_range(at);
            self.check(self.space.release_near(&range, cluster(block.owner())));
        }
    }

    pub(crate) fn change_block(&self, block: &Expected, reference: Ref, delta: i64) {
        let content = content(block.level, block.first_key);
        let bytes = self.facts.node_bytes.into();
        self.references().change(block.logical, bytes, content, reference, delta);
    }

    pub(crate) fn set_full_backref(&self, block: &Block) {
        let content = content(block.level(), block.key(0));
        let bytes = self.facts.node_bytes.into();
        self.references().set_full_backref(block.logical(), bytes, content);
    }

    /// Changes the references of data. `true`: the extent is of this transaction, and nobody
    /// refers to it any more.
    pub(crate) fn change_data(&self, at: Logical, bytes: u64, reference: Ref, delta: i64) -> bool {
        self.references().change(at, bytes, Content::Data, reference, delta)
    }

    pub(crate) fn create_data(&self, at: Logical, bytes: u64, reference: Ref) {
        self.references().create(at, bytes, Content::Data, reference);
    }

    /// An extent got its item.
    pub(crate) fn use_extent(&self, range: Range<u64>) {
        self.check(self.space.account(&range, Delta::Used));
        self.free_changes().take(range);
    }

    /// An extent lost its item: it is free once the transaction is down.
    pub(crate) fn free_extent(&self, range: Range<u64>, generation: Generation) {
        self.check(self.space.account(&range, Delta::Freed));
        self.check(self.space.pin(range.clone(), generation));
        self.free_changes().give(range);
    }

    /// Whether references, or chunks without items, wait.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.references().len() > 0 || self.chunks().has_pending()
    }

    /// Memory that the running transaction holds: blocks, and references and checksums that wait.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let references = length(self.references().len()).saturating_mul(HEAD_BYTES);
        let blocks = self.dirty_blocks.load(Ordering::Relaxed);
        let blocks = blocks.saturating_mul(self.facts.node_bytes.into());
        blocks.saturating_add(references).saturating_add(self.sums().bytes())
    }

    pub(crate) fn reset_dirty(&self) {
        self.dirty_blocks.store(0, Ordering::Relaxed);
    }

    /// What `space` refuses is a contradiction between trees; nothing more must be written.
    pub(crate) fn check<T>(&self, result: Result<T, butternut_space::SpaceError>) {
        if let Err(error) = result {
            self.gate.poison(TreeError::Space(Box::new(error)));
        }
    }

    /// References and flags of a block, those that are delayed with those that are in the tree.
    pub(crate) fn block_refs(
        &self,
        forest: &Forest,
        carried: &[Arc<Block>],
        at: Logical,
        level: u8,
    ) -> Result<BlockRefs, Stop> {
        let skinny = Key::new(at.0, ItemType::METADATA_ITEM, level.into());
        let whole = Key::new(at.0, ItemType::EXTENT_ITEM, self.facts.node_bytes.into());
        let (delta, is_full_backref, is_created) = {
            let references = self.references();
            let head = references.get(at);
            let flag = head.is_some_and(|head| head.is_full_backref);
            let is_created = head.is_some_and(|head| head.is_created);
            (head.map_or(0, crate::references::Head::sum), flag, is_created)
        };
        let mut found = BlockRefs { refs: 0, flags: 0 };
        if !is_created {
            let item = match self.extent_item(forest, carried, &skinny)? {
                Some(item) => Some(item),
                None => self.extent_item(forest, carried, &whole)?,
            };
            let item = item.ok_or_else(|| {
                let source = Refused::new("extent item", "none", "one for a block in use")
                    .at(format_args!("block {at}"));
                TreeError::Corrupt { tree: TreeId::EXTENT, source }
            })?;
            found = BlockRefs { refs: item.refs, flags: item.flags };
        }
        found.refs = found.refs.saturating_add_signed(delta);
        if is_full_backref {
            found.flags |= EXTENT_FLAG_FULL_BACKREF;
        }
        Ok(found)
    }

    /// An item of the running extent tree, if all on the way to it is in memory.
    fn extent_item(
        &self,
        forest: &Forest,
        carried: &[Arc<Block>],
        key: &Key,
    ) -> Result<Option<ExtentItem>, Stop> {
        let trees = self.trees.read().unwrap_or_else(PoisonError::into_inner);
        let Some(extents) = trees.get(&TreeId::EXTENT).cloned() else {
            return Err(TreeError::NoTree { tree: TreeId::EXTENT }.into());
        };
        drop(trees);
        let place = extents.read_once(forest, carried, |reader| reader.descend(key, 0))?;
        let Some((found, data)) = place.leaf.item(place.slot).filter(|(found, _)| found == key)
        else {
            return Ok(None);
        };
        let parse = |extent: Extent<'_>| ExtentItem::parse(&extent);
        Ok(Some(read_extent(forest, found, data, parse)?))
    }

    /// Sets aside what a commit may cost: the trees that it changes, once over and to spare.
    pub(crate) fn set_reserve(&self, forest: &Arc<Forest>) -> Result<(), TreeError> {
        let mut bytes: u64 = 0;
        for id in [
            TreeId::EXTENT,
            TreeId::CHECKSUM,
            TreeId::FREE_SPACE,
            TreeId::BLOCK_GROUP,
            TreeId::DEVICE,
            TreeId::ROOT,
        ] {
            if let Some(tree) = self.tree(forest, id)? {
                let used = tree.state().record.as_ref().map_or(0, |r| r.raw.bytes_used.get());
                bytes = bytes.saturating_add(used);
            }
        }
        let node = u64::from(self.facts.node_bytes);
        let least = node.saturating_mul(RESERVE_NODES_MIN);
        let total = self.space.totals(Class::Metadata).bytes;
        self.commit_trees.store(bytes, Ordering::Relaxed);
        let bytes = bytes.saturating_mul(2).clamp(least, RESERVE_BYTES_MAX).min(total / 4);
        self.reserve_base.store(bytes, Ordering::Relaxed);
        self.adjust_reserve();
        Ok(())
    }

    /// Whether a commit may set space free: what is pinned, or what references that wait give
    /// up.
    pub(crate) fn commit_gains(&self, pinned_bytes: u64) -> bool {
        pinned_bytes > 0 || self.references().len() > 0
    }

    /// Sets aside more the more references and checksums wait: each may bring the commit an item.
    fn adjust_reserve(&self) {
        let waiting = length(self.references().len()).saturating_mul(RESERVE_OF_A_REFERENCE);
        let waiting = waiting.saturating_add(self.sums().bytes().saturating_mul(2));
        let waiting = waiting - waiting % RESERVE_STEP;
        let wanted = self.reserve_base.load(Ordering::Relaxed).saturating_add(waiting);
        let needed = self.commit_needs(waiting);
        let is_new = self.reserved.swap(wanted, Ordering::Relaxed) != wanted;
        if self.needed.swap(needed, Ordering::Relaxed) != needed || is_new {
            self.space.set_reserve(Class::Metadata, wanted, needed);
        }
    }

    /// What a commit of what waits may take, in bytes: each reference may bring a copy of a leaf of
    /// the extent tree and of one that goes with it, but no more leaves than the trees have; and
    /// what the items add. No handle joins without so much free space, whatever it is for: that
    /// bounds how many references wait on a full volume, and lets each commit find its space.
    fn commit_needs(&self, waiting: u64) -> u64 {
        let node = u64::from(self.facts.node_bytes);
        let references = length(self.references().len());
        let copies = references.saturating_mul(node.saturating_mul(BLOCKS_OF_A_REFERENCE));
        let copies = copies.min(self.commit_trees.load(Ordering::Relaxed));
        let copies = copies.checked_next_multiple_of(RESERVE_STEP).unwrap_or(copies);
        copies.saturating_add(waiting)
    }

    /// Flags of the groups that a new chunk of a class joins: those of the newest one there is.
    pub(crate) fn group_flags(&self, class: Class) -> BlockGroupFlags {
        let wanted = class.flag();
        let groups = self.space.groups();
        let found = groups.iter().rev().find(|group| group.flags.contains(wanted));
        found.map_or(wanted, |group| group.flags)
    }
}

/// Trees that change together at a commit lie apart from those that change with the files.
fn cluster(tree: TreeId) -> Cluster {
    Cluster(if tree.is_subvolume() { 1 } else { 2 })
}

fn content(level: u8, first_key: Option<Key>) -> Content {
    Content::Block { level, first_key: first_key.unwrap_or_default() }
}
