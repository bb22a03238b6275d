//! The forest: every tree of one volume, and the one way to a block.
//!
//! Opening it completes the volume: the chunk tree, readable through the superblock's own chunk
//! array, tells of the devices and of all the other chunks.
//!
//! Opened for writing, it has a running state besides: every tree it gives then follows the
//! transaction that is under way.
//!
//! Laws:
//!
//! 1. A missing block is read once however many threads ask for it at the same time.
//! 2. No lock is held while a device is read.
//!
//! Left to others: the walk from block to block (`tree`, `cursor`).

use crate::Block;
use crate::cache::{CacheCounters, CachedBlock, NodeCache};
use crate::device_stats;
use crate::error::TreeError;
use crate::refusals::{Purpose, Refusals};
use crate::running::Running;
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
use butternut_volume::{Volume, VolumeError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How much memory the node cache may take unless told otherwise, in bytes.
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Independent locks over the reads under way.
const FLIGHT_SHARDS: usize = 16;

#[derive(Clone, Debug)]
pub struct ForestOptions {
    /// Limit of the node cache, in bytes.
    pub cache_bytes: u64,
    /// The time that commits write down.
    pub clock: fn() -> Time,
    /// Tell the devices of what each commit frees.
    pub discard: bool,
    /// Where space is short, commit to have what is freed: on a full volume, what asks for space
    /// may find some only then. Without it, nothing is committed that nobody asked for.
    pub commits_for_space: bool,
    /// For tests: room that is refused although there is some.
    pub refusals: Option<Refusals>,
}

impl Default for ForestOptions {
    fn default() -> Self {
        Self {
            cache_bytes: CACHE_BYTES_DEFAULT,
            clock: system_time,
            discard: false,
            commits_for_space: true,
            refusals: None,
        }
    }
}

fn system_time() -> Time {
    let (secs, nanos) = butternut_sys::clock::now();
    Time { secs, nanos }
}

/// A block in use: borrowed from the cache, or just read.
pub(crate) enum Held {
    Cached(CachedBlock),
    Read(Arc<Block>),
}

impl Held {
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

/// One read under way. Others wait for its end, then look in the cache again.
#[derive(Default)]
struct Flight {
    landed: Mutex<bool>,
    wake: Condvar,
}

impl Flight {
    fn wait(&self) {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        while !*landed {
            landed = self.wake.wait(landed).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn land(&self) {
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_all();
    }
}

/// Lands its flight when the reader is done with it, however it ends.
struct Landing<'a> {
    forest: &'a Forest,
    logical: Logical,
    flight: Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.forest.flights(self.logical).remove(&self.logical);
        self.flight.land();
    }
}

/// Every tree of a volume.
pub struct Forest {
    volume: Arc<Volume>,
    cache: NodeCache,
    flights: [Mutex<HashMap<Logical, Arc<Flight>>>; FLIGHT_SHARDS],
    clock: fn() -> Time,
    discard: bool,
    commits_for_space: bool,
    refusals: Option<Refusals>,
    /// Set where the volume was opened for writing.
    running: OnceLock<Running>,
}

impl std::fmt::Debug for Forest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forest").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Forest {
    /// Reads the chunk tree, hands its devices and chunks to the volume and seals it.
    pub fn open(volume: Arc<Volume>, options: ForestOptions) -> Result<Arc<Self>, TreeError> {
        let node_bytes = volume.super_block().node_bytes();
        let forest = Arc::new(Self {
            volume,
            cache: NodeCache::new(options.cache_bytes, node_bytes),
            flights: std::array::from_fn(|_| Mutex::default()),
            clock: options.clock,
            discard: options.discard,
            commits_for_space: options.commits_for_space,
            refusals: options.refusals,
            running: OnceLock::new(),
        });
        forest.assemble()?;
        if forest.volume().devices().len() > 1 {
            // Law 3 of `device_stats`.
            device_stats::load(&forest).unwrap_or_default();
        }
        Ok(forest)
    }

    /// As [`Self::open`], and ready for transactions.
    ///
    /// # Errors
    /// What the volume is or holds cannot be written, by name.
    pub fn open_writable(
        volume: Arc<Volume>,
        options: ForestOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let forest = Self::open(volume, options)?;
        crate::writable::check(&forest)?;
        if forest.volume().devices().len() == 1 {
            device_stats::load(&forest)?;
        }
        forest.volume().doubt_stale_devices();
        let running = Running::open(&forest)?;
        if forest.running.set(running).is_ok() {
            forest.running()?.set_reserve(&forest)?;
        }
        Ok(forest)
    }

    pub(crate) fn running(&self) -> Result<&Running, TreeError> {
        self.running.get().ok_or(TreeError::NotWritable)
    }

    /// Whether the volume was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.running.get().is_some()
    }

    /// Fails where a test wants it to.
    pub(crate) fn ask(&self, purpose: Purpose) -> Result<(), TreeError> {
        self.refusals.as_ref().map_or(Ok(()), |refusals| refusals.ask(purpose))
    }

    /// Whether who lacks space may commit to have what is freed.
    pub fn commits_for_space(&self) -> bool {
        self.commits_for_space
    }

    pub(crate) fn discards(&self) -> bool {
        self.discard
    }

    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    pub fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }

    /// The tree that the superblock names as the root of all others.
    pub fn root_tree(self: &Arc<Self>) -> Tree {
        self.live_tree(TreeId::ROOT)
            .unwrap_or_else(|| Tree::new(Arc::clone(self), self.volume.super_block().root()))
    }

    /// The tree of chunks and devices.
    pub fn chunk_tree(self: &Arc<Self>) -> Tree {
        self.live_tree(TreeId::CHUNK).unwrap_or_else(|| self.committed_chunk_tree())
    }

    pub(crate) fn committed_chunk_tree(self: &Arc<Self>) -> Tree {
        Tree::new(Arc::clone(self), self.volume.super_block().chunk_root())
    }

    /// The root tree and the chunk tree as the running transaction has them.
    fn live_tree(self: &Arc<Self>, id: TreeId) -> Option<Tree> {
        let live = self.running.get()?.tree(self, id).ok().flatten()?;
        Some(Tree::live(Arc::clone(self), live))
    }

    /// The tree with this id, or `None` where the volume has none. On a volume that was opened for
    /// writing it follows the running transaction.
    pub fn tree(self: &Arc<Self>, id: TreeId) -> Result<Option<Tree>, TreeError> {
        if let Some(running) = self.running.get() {
            let live = running.tree(self, id)?;
            return Ok(live.map(|live| Tree::live(Arc::clone(self), live)));
        }
        self.committed_tree(id)
    }

    /// The tree with this id as the volume had it when it was opened.
    pub(crate) fn committed_tree(self: &Arc<Self>, id: TreeId) -> Result<Option<Tree>, TreeError> {
        match id {
            TreeId::ROOT => Ok(Some(self.root_tree())),
            TreeId::CHUNK => Ok(Some(self.chunk_tree())),
            _ => Ok(self.root_item(id)?.map(|(_, root)| self.tree_of_root(id, &root))),
        }
    }

    /// The newest root item of a tree, with its key.
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

    /// The tree that a root item names.
    pub fn tree_of_root(self: &Arc<Self>, id: TreeId, root: &RootItem) -> Tree {
        self.tree_at(root.block(id))
    }

    /// A tree given by what its root block must be.
    pub fn tree_at(self: &Arc<Self>, root: Expected) -> Tree {
        Tree::new(Arc::clone(self), root)
    }

    /// A committed block, if it is cached.
    pub(crate) fn cached_block(
        &self,
        expected: &Expected,
    ) -> Result<Option<Arc<Block>>, TreeError> {
        let Some(found) = self.cache.find(expected.logical, expected.generation) else {
            return Ok(None);
        };
        keeps_promise(found.block(), expected)?;
        Ok(Some(found.into_arc()))
    }

    /// Puts a block that was just written into the cache.
    pub(crate) fn keep(&self, block: Arc<Block>) {
        self.cache.insert(block);
    }

    /// One verified block, from the cache or a device.
    pub fn block(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        self.hold(expected).map(Held::into_arc)
    }

    /// As [`Self::block`], without touching its reference count where it is cached.
    pub(crate) fn hold(&self, expected: &Expected) -> Result<Held, TreeError> {
        if let Some(found) = self.cache.find(expected.logical, expected.generation) {
            keeps_promise(found.block(), expected)?;
            return Ok(Held::Cached(found));
        }
        self.read(expected).map(Held::Read)
    }

    /// Reads those of the given blocks that are not cached, as one batch. Errors are left for
    /// whoever asks for the block itself.
    pub(crate) fn read_ahead(&self, wanted: &[Expected]) {
        let missing: Vec<Expected> = wanted
            .iter()
            .filter(|e| self.cache.peek(e.logical, e.generation).is_none())
            .copied()
            .collect();
        for block in self.volume.read_blocks(&missing).into_iter().flatten() {
            self.cache.insert(Arc::new(block));
        }
    }

    fn read(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        match self.take_off(expected.logical) {
            Ok(_landing) => self.read_alone(expected),
            Err(under_way) => {
                under_way.wait();
                match self.cache.peek(expected.logical, expected.generation) {
                    Some(found) => {
                        keeps_promise(found.block(), expected)?;
                        Ok(found.into_arc())
                    }
                    // The other reader failed, or wanted another generation.
                    None => self.read_alone(expected),
                }
            }
        }
    }

    /// Claims the reading of a block, or finds who has.
    fn take_off(&self, logical: Logical) -> Result<Landing<'_>, Arc<Flight>> {
        let mut flights = self.flights(logical);
        match flights.entry(logical) {
            Entry::Occupied(under_way) => Err(Arc::clone(under_way.get())),
            Entry::Vacant(free) => {
                let flight = Arc::clone(free.insert(Arc::default()));
                Ok(Landing { forest: self, logical, flight })
            }
        }
    }

    fn flights(&self, logical: Logical) -> MutexGuard<'_, HashMap<Logical, Arc<Flight>>> {
        let index = usize::try_from(logical.0 >> 14).unwrap_or(0) % FLIGHT_SHARDS;
        let [first, ..] = &self.flights;
        self.flights.get(index).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_alone(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        let block = self.volume.read_block(expected).map_err(|source| TreeError::Block {
            tree: expected.tree,
            logical: expected.logical,
            source: Box::new(source),
        })?;
        let block = Arc::new(block);
        self.cache.insert(Arc::clone(&block));
        Ok(block)
    }

    /// Feeds the chunk tree to the volume.
    fn assemble(self: &Arc<Self>) -> Result<(), TreeError> {
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

/// Law 1 of this crate, for a block that was checked under another parent.
fn keeps_promise(block: &Block, expected: &Expected) -> Result<(), TreeError> {
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
