//! The node cache: tree blocks by logical address, bounded in bytes, read without locks.
//!
//! ```text
//! address --hash--> set of 8 ways: | tag | block |   tag: the address, 0 if empty
//!                                  one reference bit for each way, one clock hand for each set
//! ```
//!
//! A block is evicted when its set is full and the clock hand finds that it was not referenced
//! since the hand last passed. Readers of an evicted block keep it alive.
//!
//! Laws:
//!
//! 1. The maximum number of blocks is fixed when the cache is created: the byte limit divided by
//!    the block size, in whole sets, but at least 64 blocks. A limit of 0 keeps no block: each
//!    search then reads the devices, so that tests can fail each of these reads.
//! 2. A hit takes no lock, allocates nothing and writes no memory that other hits write, except for
//!    a reference bit that is still clear.
//! 3. A block is found only under its address and its generation: an address that was freed and
//!    written again never returns the old contents.
//!
//! Left to others: reading absent blocks (`blocks`).

use crate::Block;
use arc_swap::{ArcSwapOption, Guard};
use butternut_format::units::{Generation, Logical};
use butternut_sys::lock::{Mutex, rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WAYS: usize = 8;

/// The fewest sets of a cache: a descent of eight levels must fit.
const SETS_MIN: u64 = 8;

/// Counters since the cache was created. Hits are not counted: a hit writes no shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub misses: u64,
    pub evicted: u64,
}

/// A cached block, borrowed without touching its reference count.
pub(crate) struct CachedBlock(Guard<Option<Arc<Block>>>);

impl CachedBlock {
    fn new(guard: Guard<Option<Arc<Block>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        self.0.as_ref().expect("the guard of a cached block holds a block")
    }

    pub(crate) fn into_arc(self) -> Arc<Block> {
        Guard::into_inner(self.0).expect("the guard of a cached block holds a block")
    }
}

#[derive(Default)]
struct Set {
    tags: [AtomicU64; WAYS],
    referenced: AtomicU8,
    blocks: [ArcSwapOption<Block>; WAYS],
    /// The clock hand: a way. The thread that changes the set holds this lock.
    hand: Mutex<usize, rank::NodeCache>,
}

pub(crate) struct NodeCache {
    sets: Box<[Set]>,
    misses: AtomicU64,
    evicted: AtomicU64,
}

impl NodeCache {
    /// Creates a cache of at most `limit_bytes` bytes for blocks of `node_bytes` bytes (law 1).
    pub(crate) fn new(limit_bytes: u64, node_bytes: u32) -> Self {
        let blocks = limit_bytes / u64::from(node_bytes.max(1));
        let sets = if limit_bytes == 0 { 0 } else { (blocks / 8).max(SETS_MIN) };
        let sets = usize::try_from(sets).unwrap_or(usize::MAX);
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Returns the block at `logical` if it is cached with this generation.
    pub(crate) fn find(&self, logical: Logical, generation: Generation) -> Option<CachedBlock> {
        let found = self.peek(logical, generation);
        if found.is_none() {
            self.misses.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Looks up like [`Self::find`], but does not count a miss. For readahead.
    pub(crate) fn peek(&self, logical: Logical, generation: Generation) -> Option<CachedBlock> {
        let set = self.set(logical)?;
        let ways = set.tags.iter().zip(&set.blocks).enumerate();
        for (way, (tag, slot)) in ways {
            if tag.load(Ordering::Acquire) != logical.0 {
                continue;
            }
            let Some(cached) = CachedBlock::new(slot.load()) else { continue };
            let block = cached.block();
            if block.logical() == logical && block.generation() == generation {
                let bit = 1u8 << way;
                if set.referenced.load(Ordering::Relaxed) & bit == 0 {
                    set.referenced.fetch_or(bit, Ordering::Relaxed);
                }
                return Some(cached);
            }
        }
        None
    }

    /// Inserts a block. It replaces an older block at its address, or else takes an empty way, or
    /// else evicts a block.
    pub(crate) fn insert(&self, block: Arc<Block>) {
        let logical = block.logical();
        let Some(set) = self.set(logical) else { return };
        let mut hand = set.hand.lock();
        let way_of = |tag_value: u64| {
            set.tags.iter().position(|tag| tag.load(Ordering::Relaxed) == tag_value)
        };
        let way = way_of(logical.0).or_else(|| way_of(0)).unwrap_or_else(|| {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            Self::advance_hand(set, &mut hand)
        });
        if let (Some(tag), Some(slot)) = (set.tags.get(way), set.blocks.get(way)) {
            slot.store(Some(block));
            tag.store(logical.0, Ordering::Release);
            set.referenced.fetch_and(!(1u8 << way), Ordering::Relaxed);
        }
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        CacheCounters {
            misses: self.misses.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Returns the next way that is not referenced. It ends, since one round of the hand clears all
    /// bits.
    fn advance_hand(set: &Set, hand: &mut usize) -> usize {
        loop {
            let way = *hand;
            *hand = (way + 1) % WAYS;
            let bit = 1u8 << way;
            if set.referenced.fetch_and(!bit, Ordering::Relaxed) & bit == 0 {
                return way;
            }
        }
    }

    fn set(&self, logical: Logical) -> Option<&Set> {
        // Fibonacci hashing. The high half, scaled by the number of sets, is uniform for any
        // number.
        let hash = (logical.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let sets = u64::try_from(self.sets.len()).ok()?;
        let index = usize::try_from(hash.wrapping_mul(sets) >> 32).ok()?;
        self.sets.get(index)
    }
}

#[cfg(test)]
mod tests;
