//! The forest: all trees of one volume.
//!
//! Opening a forest completes the opening of its volume. The chunk tree can be read with the chunk
//! array of the superblock; it names the devices and all other chunks.
//!
//! A forest that is open for writing has a running transaction too: each tree that it returns
//! follows that transaction.
//!
//! Left to others: the blocks (`blocks`), searches (`tree`, `cursor`), the running transaction
//! (`transaction`), its log (`log`).

use crate::Block;
use crate::blocks::Blocks;
use crate::cache::CacheCounters;
use crate::chunks::block_groups::Changes;
use crate::committed::{CommittedTrees, root_item};
use crate::device_stats;
use crate::error::TreeError;
use crate::log::Log;
use crate::transaction::enospc::{EnospcInjector, Purpose};
use crate::transaction::read_epochs::ReadEpoch;
use crate::transaction::running::Running;
use crate::transaction::writable;
use crate::tree::Tree;
use butternut_format::chunk::Chunk;
use butternut_format::device_item::DeviceItem;
use butternut_format::inode::Time;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::refused::Refused;
use butternut_format::root::RootItem;
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_volume::{Volume, VolumeError};
use std::sync::{Arc, OnceLock};

/// The default limit of the node cache, in bytes.
const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

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

/// All trees of a volume.
pub struct Forest {
    blocks: Arc<Blocks>,
    clock: fn() -> Time,
    discard: bool,
    commits_for_space: bool,
    enospc_injector: Option<EnospcInjector>,
    /// Set if the volume is open for writing.
    running: OnceLock<Running>,
    /// Set before `running`.
    log: OnceLock<Log>,
}

impl std::fmt::Debug for Forest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forest").field("volume", self.volume()).finish_non_exhaustive()
    }
}

impl Forest {
    /// Opens a forest for reading: reads the chunk tree, adds its devices and chunks to the volume,
    /// and seals the volume.
    ///
    /// # Errors
    /// The chunk tree cannot be read, or too many devices are missing.
    pub fn open(volume: Arc<Volume>, options: ForestOptions) -> Result<Arc<Self>, TreeError> {
        let forest = Arc::new(Self {
            blocks: Arc::new(Blocks::new(volume, options.cache_bytes)),
            clock: options.clock,
            discard: options.discard,
            commits_for_space: options.commits_for_space,
            enospc_injector: options.enospc_injector,
            running: OnceLock::new(),
            log: OnceLock::new(),
        });
        forest.add_devices_and_chunks()?;
        if forest.volume().devices().len() > 1 {
            // An unreadable device tree is no error here (law 3 of `device_stats`).
            device_stats::load(&forest.committed()).unwrap_or_default();
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
        writable::check(&forest.committed(), replays_log)?;
        if forest.volume().devices().len() == 1 {
            device_stats::load(&forest.committed())?;
        }
        forest.volume().record_stale_devices();
        forest.start_running(Changes::AreWritten)?;
        forest.running()?.load_quota(&forest.committed())?;
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
        forest.start_running(Changes::StayInMemory)?;
        Ok(forest)
    }

    /// Starts the running transaction of a forest.
    fn start_running(self: &Arc<Self>, changes: Changes) -> Result<(), TreeError> {
        let running = Running::open(&self.committed(), self.clock, self.discard, changes)?;
        let (raw, node_bytes) = (self.volume().super_block().raw(), running.params.node_bytes);
        self.log.set(Log::new(raw, running.gate.generation(), node_bytes)).ok();
        if self.running.set(running).is_ok() {
            self.blocks.set_writable();
            let running = self.running()?;
            running.open_commit_trees()?;
            running.set_global_reserve();
        }
        Ok(())
    }

    fn committed(&self) -> CommittedTrees {
        CommittedTrees::new(Arc::clone(&self.blocks))
    }

    pub(crate) fn running(&self) -> Result<&Running, TreeError> {
        self.running.get().ok_or(TreeError::NotWritable)
    }

    /// Returns the log of the running transaction.
    pub(crate) fn log(&self) -> Result<&Log, TreeError> {
        self.log.get().ok_or(TreeError::NotWritable)
    }

    /// Returns whether the volume is open for writing.
    pub fn is_writable(&self) -> bool {
        self.running.get().is_some()
    }

    /// Fails if the ENOSPC injector chooses this reservation.
    pub(crate) fn inject_enospc(&self, purpose: Purpose) -> Result<(), TreeError> {
        self.enospc_injector.as_ref().map_or(Ok(()), |injector| injector.check(purpose))
    }

    /// Fails if the ENOSPC injector chooses handles for so many items.
    pub(crate) fn inject_enospc_for(&self, items: u32) -> Result<(), TreeError> {
        self.enospc_injector.as_ref().map_or(Ok(()), |injector| injector.check_items(items))
    }

    /// Fails if the injector chooses this charge of space to a subvolume.
    pub(crate) fn inject_edquot(&self, tree: TreeId) -> Result<(), TreeError> {
        self.enospc_injector.as_ref().map_or(Ok(()), |injector| injector.check_charge(tree))
    }

    /// Returns whether a caller without space commits to free some. None does before the log that
    /// the superblock names is replayed: the commit would lose it.
    pub fn commits_for_space(&self) -> bool {
        self.commits_for_space && !self.has_unreplayed_log()
    }

    /// Whether the superblock on disk may name a log that no commit contains.
    fn has_unreplayed_log(&self) -> bool {
        let opened = self.volume().super_block();
        let is_first = |running: &Running| running.gate.committed() == opened.generation();
        opened.log_root().is_some() && self.running().is_ok_and(is_first)
    }

    /// Returns the volume of the forest.
    pub fn volume(&self) -> &Arc<Volume> {
        self.blocks.volume()
    }

    /// Returns the counters of the node cache.
    pub fn counters(&self) -> CacheCounters {
        self.blocks.counters()
    }

    /// Returns the root tree, whose items name the roots of all other trees.
    pub fn root_tree(self: &Arc<Self>) -> Tree {
        self.transaction_tree(TreeId::ROOT).unwrap_or_else(|| self.committed().root_tree())
    }

    /// Returns the chunk tree.
    pub fn chunk_tree(self: &Arc<Self>) -> Tree {
        self.transaction_tree(TreeId::CHUNK).unwrap_or_else(|| self.committed().chunk_tree())
    }

    /// Returns the root tree or the chunk tree of the running transaction.
    fn transaction_tree(self: &Arc<Self>, id: TreeId) -> Option<Tree> {
        let tree = self.running.get()?.tree(id).ok().flatten()?;
        Some(Tree::in_transaction(tree))
    }

    /// Returns the tree with this id, or `None` if the volume has none. On a volume that is open
    /// for writing it follows the running transaction.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn tree(self: &Arc<Self>, id: TreeId) -> Result<Option<Tree>, TreeError> {
        if let Some(running) = self.running.get() {
            return Ok(running.tree(id)?.map(Tree::in_transaction));
        }
        self.committed().tree(id)
    }

    /// Returns the newest root item of a tree, with its key.
    ///
    /// # Errors
    /// The root tree cannot be read, or the item is corrupt.
    pub fn root_item(self: &Arc<Self>, id: TreeId) -> Result<Option<(Key, RootItem)>, TreeError> {
        root_item(&self.root_tree(), id)
    }

    /// Returns the tree that a root item names.
    pub fn tree_of_root(self: &Arc<Self>, id: TreeId, root: &RootItem) -> Tree {
        self.tree_at(root.block(id))
    }

    /// Returns the tree with this root block.
    pub fn tree_at(self: &Arc<Self>, root: Expected) -> Tree {
        Tree::new(Arc::clone(&self.blocks), root)
    }

    /// Returns a verified block, from the cache or a device.
    ///
    /// # Errors
    /// No mirror of the block can be read, or its contents contradict `expected`.
    pub fn block(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        self.blocks.read(expected)
    }

    /// Enters the epoch of the running transaction, and leaves it when the result is dropped (law 1
    /// of `read_epochs`). Does nothing on a forest that is not open for writing, where no space is
    /// ever freed.
    pub fn enter_read_epoch(&self) -> ReadEpoch<'_> {
        self.running.get().map_or_else(ReadEpoch::none, |running| running.read_epochs.enter())
    }

    /// Returns the generation of the last commit.
    pub fn committed_generation(&self) -> Generation {
        let opened = self.volume().super_block().generation();
        self.running.get().map_or(opened, |running| running.gate.committed())
    }

    /// Adds the devices and chunks of the chunk tree to the volume.
    fn add_devices_and_chunks(self: &Arc<Self>) -> Result<(), TreeError> {
        let incompat = self.volume().super_block().raw().incompat_flags.get();
        let mut cursor = self.chunk_tree().scan();
        cursor.seek(&Key::MIN)?;
        while let Some((key, data)) = cursor.key().zip(cursor.data()) {
            match key.item_type {
                ItemType::DEV_ITEM => {
                    let device =
                        DeviceItem::check(key, data).map_err(|r| corrupt_chunk_tree(key, r))?;
                    self.volume().install_device(&device);
                }
                ItemType::CHUNK_ITEM => {
                    let chunk = Chunk::check(key, data, incompat)
                        .map_err(|r| corrupt_chunk_tree(key, r))?;
                    self.volume().install_chunk(Logical(key.offset), &chunk).map_err(assemble)?;
                }
                _ => {}
            }
            cursor.advance()?;
        }
        self.volume().seal().map_err(assemble)
    }
}

fn corrupt_chunk_tree(key: Key, refused: Refused) -> TreeError {
    TreeError::Corrupt { tree: TreeId::CHUNK, source: refused.at(format_args!("item {key}")) }
}

fn assemble(source: VolumeError) -> TreeError {
    TreeError::Assemble(Box::new(source))
}
