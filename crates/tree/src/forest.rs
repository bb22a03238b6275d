//! The forest: all trees of one volume, and the access to their blocks.
//!
//! Opening a forest completes the opening of its volume. The chunk tree can be read with the chunk
//! array of the superblock; it names the devices and all other chunks.
//!
//! A forest that is open for writing has a running transaction too: each tree that it returns
//! follows that transaction.
//!
//! Laws:
//!
//! 1. Threads that miss the same block at the same time share one read. A thread reads the block
//!    itself only if that read failed, or if the block has already been evicted.
//! 2. No lock of this module is held while a device is read.
//!
//! Left to others: searches (`tree`, `cursor`).

use crate::Block;
use crate::cache::{CacheCounters, CachedBlock, NodeCache};
use crate::device_stats;
use crate::error::TreeError;
use crate::transaction::enospc::{EnospcInjector, Purpose};
use crate::transaction::running::Running;
use crate::tree::Tree;
use butternut_format::check;
use butternut_format::chunk::Chunk;
use butternut_format::device_item::DeviceItem;
use butternut_format::inode::Time;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::root::RootItem;
use butternut_format::units::{Logical, TreeId};
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use butternut_volume::{Volume, VolumeError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock};

/// The default limit of the node cache, in bytes.
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// The number of locks that the pending reads are spread over.
const PENDING_READ_SHARDS: usize = 16;

/// Options of [`Forest::open`] and [`Forest::open_writable`].
#[derive(Clone, Debug)]
pub struct ForestOptions {
    /// The limit of the node cache, in bytes.
    pub cache_bytes: u64,
    /// The clock for the times that commits write.
    pub clock: fn() -> Time,
    /// Whether each commit discards the space that it frees.
    pub discard: bool,
    /// Whether a caller without space commits to free some. On a full volume a reservation may
    /// succeed only after that. Without it, only explicit calls commit.
    pub commits_for_space: bool,
    /// Whether a volume with a log may be opened for writing: the caller replays the log, because
    /// the first commit ends it.
    pub replays_log: bool,
    /// For tests: makes reservations fail although there is space.
    pub enospc_injector: Option<EnospcInjector>,
}

impl Default for ForestOptions {
    fn default() -> Self {
        Self {
            cache_bytes: CACHE_BYTES_DEFAULT,
            clock: system_time,
            discard: false,
            commits_for_space: true,
            replays_log: false,
            enospc_injector: None,
        }
    }
}

fn system_time() -> Time {
    let (secs, nanos) = butternut_sys::clock::now();
    Time { secs, nanos }
}

/// A block that is borrowed from the cache, or that was just read.
pub(crate) enum BlockGuard {
    Cached(CachedBlock),
    Read(Arc<Block>),
}

impl BlockGuard {
    pub(crate) fn block(&self) -> &Arc<Block> {
        match self {
            Self::Cached(cached) => cached.block(),
            Self::Read(block) => block,
        }
    }

    pub(crate) fn into_arc(self) -> Arc<Block> {
        match self {
            Self::Cached(cached) => cached.into_arc(),
            Self::Read(block) => block,
        }
    }
}

/// A read in progress. Other threads wait for its end, then look in the cache again.
#[derive(Default)]
struct PendingRead {
    is_done: Mutex<bool, rank::PendingRead>,
    wake: Condvar,
}

impl PendingRead {
    fn wait(&self) {
        let mut is_done = self.is_done.lock();
        while !*is_done {
            is_done = self.wake.wait(is_done);
        }
    }

    fn complete(&self) {
        *self.is_done.lock() = true;
        self.wake.notify_all();
    }
}

/// The right to read a block. Dropping it completes the pending read, on success and on failure.
struct ReadClaim<'a> {
    forest: &'a Forest,
    logical: Logical,
    pending: Arc<PendingRead>,
}

impl Drop for ReadClaim<'_> {
    fn drop(&mut self) {
        self.forest.pending_reads(self.logical).remove(&self.logical);
        self.pending.complete();
    }
}

/// All trees of a volume.
pub struct Forest {
    volume: Arc<Volume>,
    cache: NodeCache,
    pending_reads:
        [Mutex<HashMap<Logical, Arc<PendingRead>>, rank::PendingReads>; PENDING_READ_SHARDS],
    clock: fn() -> Time,
    discard: bool,
    commits_for_space: bool,
    enospc_injector: Option<EnospcInjector>,
    /// Set if the volume is open for writing.
    running: OnceLock<Running>,
}

impl std::fmt::Debug for Forest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forest").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Forest {
    /// Opens a forest for reading: reads the chunk tree, adds its devices and chunks to the volume,
    /// and seals the volume.
    ///
    /// # Errors
    /// The chunk tree cannot be read, or too many devices are missing.
    pub fn open(volume: Arc<Volume>, options: ForestOptions) -> Result<Arc<Self>, TreeError> {
        let node_bytes = volume.super_block().node_bytes();
        let forest = Arc::new(Self {
            volume,
            cache: NodeCache::new(options.cache_bytes, node_bytes),
            pending_reads: std::array::from_fn(|_| Mutex::default()),
            clock: options.clock,
            discard: options.discard,
            commits_for_space: options.commits_for_space,
            enospc_injector: options.enospc_injector,
            running: OnceLock::new(),
        });
        forest.add_devices_and_chunks()?;
        if forest.volume().devices().len() > 1 {
            // An unreadable device tree is no error here (law 3 of `device_stats`).
            device_stats::load(&forest).unwrap_or_default();
        }
        Ok(forest)
    }

    /// Opens a forest for reading and writing.
    ///
    /// # Errors
    /// As [`Self::open`], or the volume has a feature or a state that cannot be written.
    pub fn open_writable(
        volume: Arc<Volume>,
        options: ForestOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let replays_log = options.replays_log;
        let forest = Self::open(volume, options)?;
        crate::transaction::writable::check(&forest, replays_log)?;
        if forest.volume().devices().len() == 1 {
            device_stats::load(&forest)?;
        }
        forest.volume().record_stale_devices();
        forest.start_running()?;
        Ok(forest)
    }

    /// Opens a forest for reading, with a running transaction that is never committed: a log is
    /// replayed in it. Must not be committed.
    ///
    /// # Errors
    /// As [`Self::open`], or the accounts of the volume's space cannot be read.
    pub fn open_for_replay(
        volume: Arc<Volume>,
        options: ForestOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let options = ForestOptions { commits_for_space: false, ..options };
        let forest = Self::open(volume, options)?;
        forest.start_running()?;
        Ok(forest)
    }

    /// Starts the running transaction of a forest.
    fn start_running(self: &Arc<Self>) -> Result<(), TreeError> {
        let running = Running::open(self)?;
        if self.running.set(running).is_ok() {
            let running = self.running()?;
            running.open_commit_trees(self)?;
            running.set_global_reserve();
        }
        Ok(())
    }

    pub(crate) fn running(&self) -> Result<&Running, TreeError> {
        self.running.get().ok_or(TreeError::NotWritable)
    }

    /// Whether the volume is open for writing.
    pub fn is_writable(&self) -> bool {
        self.running.get().is_some()
    }

    /// Fails if the ENOSPC injector chooses this reservation.
    pub(crate) fn inject_enospc(&self, purpose: Purpose) -> Result<(), TreeError> {
        self.enospc_injector.as_ref().map_or(Ok(()), |injector| injector.check(purpose))
    }

    /// Whether a caller without space commits to free some. Not before the log that the superblock
    /// names is replayed: the commit would lose it.
    pub fn commits_for_space(&self) -> bool {
        self.commits_for_space && !self.has_unreplayed_log()
    }

    /// Whether the superblock on disk may name a log that no commit contains.
    fn has_unreplayed_log(&self) -> bool {
        let opened = self.volume.super_block();
        let is_first = |running: &Running| running.gate.committed() == opened.generation();
        opened.log_root().is_some() && self.running().is_ok_and(is_first)
    }

    pub(crate) fn discards(&self) -> bool {
        self.discard
    }

    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    /// Returns the volume of the forest.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the counters of the node cache.
    pub fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }

    /// Returns the root tree, whose items name the roots of all other trees.
    pub fn root_tree(self: &Arc<Self>) -> Tree {
        self.transaction_tree(TreeId::ROOT)
            .unwrap_or_else(|| Tree::new(Arc::clone(self), self.volume.super_block().root()))
    }

    /// Returns the chunk tree.
    pub fn chunk_tree(self: &Arc<Self>) -> Tree {
        self.transaction_tree(TreeId::CHUNK).unwrap_or_else(|| self.committed_chunk_tree())
    }

    pub(crate) fn committed_chunk_tree(self: &Arc<Self>) -> Tree {
        Tree::new(Arc::clone(self), self.volume.super_block().chunk_root())
    }

    /// Returns the root tree or the chunk tree of the running transaction.
    fn transaction_tree(self: &Arc<Self>, id: TreeId) -> Option<Tree> {
        let tree = self.running.get()?.tree(self, id).ok().flatten()?;
        Some(Tree::in_transaction(Arc::clone(self), tree))
    }

    /// Returns the tree with this id, or `None` if the volume has none. On a volume that is open
    /// for writing it follows the running transaction.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn tree(self: &Arc<Self>, id: TreeId) -> Result<Option<Tree>, TreeError> {
        if let Some(running) = self.running.get() {
            let tree = running.tree(self, id)?;
            return Ok(tree.map(|tree| Tree::in_transaction(Arc::clone(self), tree)));
        }
        self.committed_tree(id)
    }

    /// Returns the tree with this id as it was when the volume was opened.
    pub(crate) fn committed_tree(self: &Arc<Self>, id: TreeId) -> Result<Option<Tree>, TreeError> {
        match id {
            TreeId::ROOT => Ok(Some(self.root_tree())),
            TreeId::CHUNK => Ok(Some(self.chunk_tree())),
            _ => Ok(self.root_item(id)?.map(|(_, root)| self.tree_of_root(id, &root))),
        }
    }

    /// Returns the newest root item of a tree, with its key.
    ///
    /// # Errors
    /// The root tree cannot be read, or the item is corrupt.
    pub fn root_item(self: &Arc<Self>, id: TreeId) -> Result<Option<(Key, RootItem)>, TreeError> {
        let mut cursor = self.root_tree().cursor();
        cursor.seek_last(&Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX))?;
        let Some((key, data)) = cursor.key().zip(cursor.data()) else { return Ok(None) };
        if key.objectid != id.0 || key.item_type != ItemType::ROOT_ITEM {
            return Ok(None);
        }
        let root = RootItem::check(key, data).map_err(|refused| TreeError::Corrupt {
            tree: TreeId::ROOT,
            source: refused.at(format_args!("root item {key}")),
        })?;
        Ok(Some((key, root)))
    }

    /// Returns the tree that a root item names.
    pub fn tree_of_root(self: &Arc<Self>, id: TreeId, root: &RootItem) -> Tree {
        self.tree_at(root.block(id))
    }

    /// Returns the tree with this root block.
    pub fn tree_at(self: &Arc<Self>, root: Expected) -> Tree {
        Tree::new(Arc::clone(self), root)
    }

    /// Returns a committed block if it is in the cache.
    pub(crate) fn cached_block(
        &self,
        expected: &Expected,
    ) -> Result<Option<Arc<Block>>, TreeError> {
        let Some(found) = self.cache.find(expected.logical, expected.generation) else {
            return Ok(None);
        };
        check_expected(found.block(), expected)?;
        Ok(Some(found.into_arc()))
    }

    /// Adds a block that was just written to the cache.
    pub(crate) fn cache_block(&self, block: Arc<Block>) {
        self.cache.insert(block);
    }

    /// Returns a verified block, from the cache or a device.
    ///
    /// # Errors
    /// No mirror of the block can be read, or its contents contradict `expected`.
    pub fn block(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        self.borrow_block(expected).map(BlockGuard::into_arc)
    }

    /// Returns a block like [`Self::block`]. The reference count of a cached block is not touched.
    pub(crate) fn borrow_block(&self, expected: &Expected) -> Result<BlockGuard, TreeError> {
        if let Some(found) = self.cache.find(expected.logical, expected.generation) {
            check_expected(found.block(), expected)?;
            return Ok(BlockGuard::Cached(found));
        }
        self.read(expected).map(BlockGuard::Read)
    }

    /// Reads those blocks that are not cached, in one batch. Errors are ignored: reading the block
    /// itself reports them.
    pub(crate) fn read_ahead(&self, blocks: &[Expected]) {
        let missing: Vec<Expected> = blocks
            .iter()
            .filter(|e| self.cache.peek(e.logical, e.generation).is_none())
            .copied()
            .collect();
        for block in self.volume.read_blocks(&missing).into_iter().flatten() {
            self.cache.insert(Arc::new(block));
        }
    }

    fn read(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        let claimed = self.claim_read(expected.logical);
        if let Err(other) = &claimed {
            other.wait();
        }
        // A claim may come after another thread's whole read, too.
        if let Some(found) = self.cache.peek(expected.logical, expected.generation) {
            check_expected(found.block(), expected)?;
            return Ok(found.into_arc());
        }
        // No thread has read it yet, or the other one failed or read another generation.
        self.read_from_device(expected)
    }

    /// Claims the read of a block, or returns the pending read of another thread.
    fn claim_read(&self, logical: Logical) -> Result<ReadClaim<'_>, Arc<PendingRead>> {
        let mut pending_reads = self.pending_reads(logical);
        match pending_reads.entry(logical) {
            Entry::Occupied(other) => Err(Arc::clone(other.get())),
            Entry::Vacant(free) => {
                let pending = Arc::clone(free.insert(Arc::default()));
                Ok(ReadClaim { forest: self, logical, pending })
            }
        }
    }

    fn pending_reads(
        &self,
        logical: Logical,
    ) -> MutexGuard<'_, HashMap<Logical, Arc<PendingRead>>> {
        let index = usize::try_from(logical.0 >> 14).unwrap_or(0) % PENDING_READ_SHARDS;
        let [first, ..] = &self.pending_reads;
        self.pending_reads.get(index).unwrap_or(first).lock()
    }

    fn read_from_device(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        let block = self.volume.read_block(expected).map_err(|source| TreeError::Block {
            tree: expected.tree,
            logical: expected.logical,
            source: Box::new(source),
        })?;
        if self.is_writable() && block.level() == 0 {
            check::writable_leaf(&block).map_err(|refused| TreeError::Corrupt {
                tree: expected.tree,
                source: refused.at(format_args!("leaf {}", expected.logical)),
            })?;
        }
        let block = Arc::new(block);
        self.cache.insert(Arc::clone(&block));
        Ok(block)
    }

    /// Adds the devices and chunks of the chunk tree to the volume.
    fn add_devices_and_chunks(self: &Arc<Self>) -> Result<(), TreeError> {
        let incompat = self.volume.super_block().raw().incompat_flags.get();
        let mut cursor = self.chunk_tree().scan();
        cursor.seek(&Key::MIN)?;
        while let Some((key, data)) = cursor.key().zip(cursor.data()) {
            match key.item_type {
                ItemType::DEV_ITEM => {
                    let device =
                        DeviceItem::check(key, data).map_err(|r| corrupt_chunk_tree(key, r))?;
                    self.volume.install_device(&device);
                }
                ItemType::CHUNK_ITEM => {
                    let chunk = Chunk::check(key, data, incompat)
                        .map_err(|r| corrupt_chunk_tree(key, r))?;
                    self.volume.install_chunk(Logical(key.offset), &chunk).map_err(assemble)?;
                }
                _ => {}
            }
            cursor.advance()?;
        }
        self.volume.seal().map_err(assemble)
    }
}

/// Checks law 1 of this crate for a block that was checked under another parent.
fn check_expected(block: &Block, expected: &Expected) -> Result<(), TreeError> {
    let checked = require(block.level() == expected.level, "level", block.level(), expected.level)
        .and_then(|()| match expected.first_key {
            Some(want) if block.key(0) != Some(want) => {
                let have = block.key(0).unwrap_or_default();
                Err(Refused::new("first key", have, want))
            }
            _ => Ok(()),
        })
        .and_then(|()| check::below_end(block.last_key(), expected));
    checked.map_err(|refused| TreeError::Corrupt {
        tree: expected.tree,
        source: refused.at(format_args!("block {}", expected.logical)),
    })
}

fn corrupt_chunk_tree(key: Key, refused: Refused) -> TreeError {
    TreeError::Corrupt { tree: TreeId::CHUNK, source: refused.at(format_args!("item {key}")) }
}

fn assemble(source: VolumeError) -> TreeError {
    TreeError::Assemble(Box::new(source))
}
