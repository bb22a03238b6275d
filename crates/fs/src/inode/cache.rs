//! [`InodeCache`]: attributes of recently used inodes, of a volume that is open for reading.
//!
//! The cache is split into shards by id, each under its own lock, which readers share. When a shard
//! is full, the clock algorithm evicts an inode that was not used since the hand last passed.
//!
//! Laws:
//!
//! 1. The number of inodes never exceeds the limit of the cache (at least one per shard).
//! 2. A hit allocates nothing and takes only its shard's lock, shared.

use crate::FileId;
use butternut_format::inode::Inode;
use butternut_sys::lock::{RwLock, rank};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 64;

#[derive(Debug)]
struct Slot {
    id: FileId,
    inode: Inode,
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<FileId, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

#[derive(Debug)]
pub(crate) struct InodeCache {
    shards: Box<[RwLock<Shard, rank::InodeCache>]>,
    shard_limit: usize,
}

impl InodeCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_limit: (limit / SHARDS).max(1),
        }
    }

    pub(crate) fn find(&self, id: FileId) -> Option<Inode> {
        let shard = self.shard(id).read();
        let slot = shard.slots.get(*shard.places.get(&id)?)?;
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        Some(slot.inode)
    }

    pub(crate) fn insert(&self, id: FileId, inode: Inode) {
        let mut shard = self.shard(id).write();
        let slot = Slot { id, inode, used: AtomicBool::new(false) };
        if let Some(&place) = shard.places.get(&id) {
            shard.slots[place] = slot;
        } else if shard.slots.len() < self.shard_limit {
            let place = shard.slots.len();
            shard.slots.push(slot);
            shard.places.insert(id, place);
        } else {
            let place = shard.evict_next();
            let left = shard.slots[place].id;
            shard.places.remove(&left);
            shard.slots[place] = slot;
            shard.places.insert(id, place);
        }
    }

    fn shard(&self, id: FileId) -> &RwLock<Shard, rank::InodeCache> {
        let mixed = (id.ino ^ id.subvolume.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[usize::from(mixed.to_le_bytes()[7]) % SHARDS]
    }
}

impl Shard {
    /// Returns the first slot from the hand on that was not used; one full turn clears all use
    /// bits.
    fn evict_next(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (place + 1) % self.slots.len();
            if !self.slots[place].used.swap(false, Ordering::Relaxed) {
                return place;
            }
        }
    }
}
