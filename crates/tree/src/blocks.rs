//! The tree blocks of one volume: the node cache, and the devices beneath it.
//!
//! Laws:
//!
//! 1. Threads that miss the same block at the same time share one read. A thread reads the block
//!    itself only if that read failed or was for another generation, or if the block has already
//!    been evicted. A batch that is read ahead shares no reads: a search that meets it may read a
//!    block once more.
//! 2. No lock of this module is held while a device is read.
//!
//! Left to others: which blocks a tree has (`tree`, `cow`), searches (`search`, `cursor`).

use crate::Block;
use crate::cache::{CacheCounters, CachedBlock, NodeCache};
use crate::error::TreeError;
use butternut_format::check;
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::units::Logical;
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use butternut_volume::Volume;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of locks that the pending reads are spread over.
const PENDING_READ_SHARDS: usize = 16;

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
    blocks: &'a Blocks,
    logical: Logical,
    pending: Arc<PendingRead>,
}

impl Drop for ReadClaim<'_> {
    fn drop(&mut self) {
        self.blocks.pending_reads(self.logical).remove(&self.logical);
        self.pending.complete();
    }
}

/// The verified tree blocks of a volume.
pub(crate) struct Blocks {
    volume: Arc<Volume>,
    cache: NodeCache,
    pending_reads:
        [Mutex<HashMap<Logical, Arc<PendingRead>>, rank::PendingReads>; PENDING_READ_SHARDS],
    /// Whether leaves are checked for what only a writer depends on, too.
    is_writable: AtomicBool,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Blocks {
    /// Makes an empty cache of at most `cache_bytes` bytes over a volume.
    pub(crate) fn new(volume: Arc<Volume>, cache_bytes: u64) -> Self {
        let node_bytes = volume.super_block().node_bytes();
        Self {
            volume,
            cache: NodeCache::new(cache_bytes, node_bytes),
            pending_reads: std::array::from_fn(|_| Mutex::default()),
            is_writable: AtomicBool::new(false),
        }
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        self.cache.counters()
    }

    /// Makes each leaf that is read from now on pass the checks for writing, too.
    pub(crate) fn set_writable(&self) {
        self.is_writable.store(true, Ordering::Release);
    }

    /// Returns a committed block if it is in the cache.
    pub(crate) fn cached(&self, expected: &Expected) -> Result<Option<Arc<Block>>, TreeError> {
        let Some(found) = self.cache.find(expected.logical, expected.generation) else {
            return Ok(None);
        };
        check_expected(found.block(), expected)?;
        Ok(Some(found.into_arc()))
    }

    /// Adds a block that was just written to the cache.
    pub(crate) fn insert(&self, block: Arc<Block>) {
        self.cache.insert(block);
    }

    /// Returns a verified block, from the cache or a device.
    ///
    /// # Errors
    /// No mirror of the block can be read, or its contents contradict `expected`.
    pub(crate) fn read(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        self.borrow(expected).map(BlockGuard::into_arc)
    }

    /// Returns a block like [`Self::read`]. The reference count of a cached block is not touched.
    pub(crate) fn borrow(&self, expected: &Expected) -> Result<BlockGuard, TreeError> {
        if let Some(found) = self.cache.find(expected.logical, expected.generation) {
            check_expected(found.block(), expected)?;
            return Ok(BlockGuard::Cached(found));
        }
        self.read_missing(expected).map(BlockGuard::Read)
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
            if self.check_writable(&block).is_ok() {
                self.cache.insert(Arc::new(block));
            }
        }
    }

    fn read_missing(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
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
                Ok(ReadClaim { blocks: self, logical, pending })
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
        self.check_writable(&block).map_err(|refused| TreeError::Corrupt {
            tree: expected.tree,
            source: refused.at(format_args!("leaf {}", expected.logical)),
        })?;
        let block = Arc::new(block);
        self.cache.insert(Arc::clone(&block));
        Ok(block)
    }

    /// Checks what [`Self::set_writable`] requires of a block.
    fn check_writable(&self, block: &Block) -> Result<(), Refused> {
        if self.is_writable.load(Ordering::Acquire) && block.level() == 0 {
            check::writable_leaf(block)?;
        }
        Ok(())
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
