//! The node cache: tree blocks by logical address, bounded in bytes, read without locks.
//!
//! ```text
//! address --hash--> set of 8 ways: | tag | block |   tag: the address, 0 when empty
//!                                  one reference bit a way, one clock hand a set
//! ```
//!
//! Owns which blocks stay in memory. A block leaves when its set is full and the clock hand finds
//! it unreferenced since the hand last passed; whoever still holds it keeps it alive.
//!
//! Laws:
//!
//! 1. The number of blocks is fixed when the cache is made: the byte limit over the block size.
//! 2. A hit takes no lock, allocates nothing and writes no memory that other hits write, but for a
//!    reference bit that is still clear.
//! 3. A block is found only under the address and the generation that were asked for: an address
//!    that was freed and written again never answers with its old contents.
//!
//! Left to others: reading what is missing (`forest`).

use crate::Block;
use arc_swap::{ArcSwapOption, Guard};
use butternut_format::units::{Generation, Logical};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const WAYS: usize = 8;

/// Sets that even the smallest cache has: a descent of eight levels must find room.
const SETS_MIN: u64 = 8;

/// What the cache did since it was made. Hits are not counted: they write no shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub misses: u64,
    pub evicted: u64,
}

/// A block borrowed from the cache without touching its reference count.
pub(crate) struct CachedBlock(Guard<Option<Arc<Block>>>);

impl CachedBlock {
    fn new(guard: Guard<Option<Arc<Block>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        self.0.as_ref().expect("a cached block is made only of a guard that holds one")
    }

    pub(crate) fn into_arc(self) -> Arc<Block> {
        Guard::into_inner(self.0).expect("a cached block is made only of a guard that holds one")
    }
}

#[derive(Default)]
struct Set {
    tags: [AtomicU64; WAYS],
    referenced: AtomicU8,
    blocks: [ArcSwapOption<Block>; WAYS],
    /// The clock hand: a way. Whoever changes the set holds it.
    hand: Mutex<usize>,
}

pub(crate) struct NodeCache {
    sets: Box<[Set]>,
    misses: AtomicU64,
    evicted: AtomicU64,
}

impl NodeCache {
    /// A cache that holds at most `limit_bytes` of blocks of `node_bytes` each.
    pub(crate) fn new(limit_bytes: u64, node_bytes: u32) -> Self {
        let blocks = limit_bytes / u64::from(node_bytes.max(1));
        let sets = (blocks / 8).max(SETS_MIN);
        let sets = usize::try_from(sets).unwrap_or(usize::MAX);
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// The block at `logical` if it is here and was written in `generation`.
    pub(crate) fn find(&self, logical: Logical, generation: Generation) -> Option<CachedBlock> {
        let found = self.peek(logical, generation);
        if found.is_none() {
            self.misses.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// As [`Self::find`], but a miss is not counted: for readahead, which only asks.
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

    /// Puts a block in, in the place of its older self, else of an empty way, else of the first
    /// that the clock hand finds unreferenced.
    pub(crate) fn insert(&self, block: Arc<Block>) {
        let logical = block.logical();
        let Some(set) = self.set(logical) else { return };
        let mut hand = set.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let way_of =
            |wanted: u64| set.tags.iter().position(|tag| tag.load(Ordering::Relaxed) == wanted);
        let way = way_of(logical.0).or_else(|| way_of(0)).unwrap_or_else(|| {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            Self::turn(set, &mut hand)
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

    /// Moves the hand to the next unreferenced way; one full turn clears every bit, so it ends.
    fn turn(set: &Set, hand: &mut usize) -> usize {
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
        // Fibonacci hashing; the high half times the set count spreads over any count.
        let hash = (logical.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let sets = u64::try_from(self.sets.len()).ok()?;
        let index = usize::try_from(hash.wrapping_mul(sets) >> 32).ok()?;
        self.sets.get(index)
    }
}

#[cfg(test)]
mod tests;
