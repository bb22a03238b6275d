//! [`BoundedCache`]: a concurrent cache of values by key, bounded in bytes.
//!
//! Laws:
//!
//! 1. The cached values together never exceed the limit; a value that alone exceeds the limit of
//!    its shard is not cached.
//! 2. A value that was found stays alive while its finder holds it; evicting it only means that it
//!    is read again later.
//! 3. Eviction is second chance: the oldest value is evicted, unless it was found since it last
//!    became the oldest.
//! 4. A value that is forgotten is not found again. A thread that was making the value meanwhile
//!    can check that ([`BoundedCache::insert_if`]): then its value is not cached either.

use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// Number of independent locks.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct BoundedCache<K, V: ?Sized> {
    /// After a panic: every value is whole; the byte counts may be wrong by one value.
    shards: [Mutex<Shard<K, V>, rank::BoundedCache>; SHARDS],
    shard_bytes_max: usize,
}

#[derive(Debug)]
struct Shard<K, V: ?Sized> {
    slots: HashMap<K, Slot<V>, BuildHasherDefault<Mixer>>,
    queue: VecDeque<K>,
    bytes: usize,
}

#[derive(Debug)]
struct Slot<V: ?Sized> {
    /// `None` after the value was forgotten: the key keeps its place in the queue.
    value: Option<Arc<V>>,
    bytes: usize,
    is_used: bool,
}

impl<K: Copy + Eq + Hash, V: ?Sized> BoundedCache<K, V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let shards = std::array::from_fn(|_| {
            Mutex::new(Shard { slots: HashMap::default(), queue: VecDeque::new(), bytes: 0 })
        });
        Self { shards, shard_bytes_max: bytes_max / SHARDS }
    }

    pub(crate) fn find(&self, key: &K) -> Option<Arc<V>> {
        let mut shard = self.shard(key);
        let slot = shard.slots.get_mut(key)?;
        slot.is_used = true;
        slot.value.clone()
    }

    /// Caches a value of `bytes` bytes, unless the key has one already.
    pub(crate) fn insert(&self, key: K, value: Arc<V>, bytes: usize) {
        self.insert_if(key, value, bytes, || true);
    }

    /// Caches a value like [`Self::insert`], if `is_current` returns true once the shard of the key
    /// is locked.
    pub(crate) fn insert_if(
        &self,
        key: K,
        value: Arc<V>,
        bytes: usize,
        is_current: impl FnOnce() -> bool,
    ) {
        if bytes > self.shard_bytes_max {
            return;
        }
        let mut shard = self.shard(&key);
        if !is_current() {
            return;
        }
        match shard.slots.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Slot { value: Some(value), bytes, is_used: false });
                shard.queue.push_back(key);
            }
            Entry::Occupied(mut slot) if slot.get().value.is_none() => {
                slot.get_mut().value = Some(value);
                slot.get_mut().bytes = bytes;
            }
            Entry::Occupied(_) => return,
        }
        shard.bytes += bytes;
        while shard.bytes > self.shard_bytes_max {
            shard.evict();
        }
    }

    /// Removes the value of a key (law 4).
    pub(crate) fn forget(&self, key: &K) {
        let mut shard = self.shard(key);
        let Some(slot) = shard.slots.get_mut(key) else { return };
        slot.value = None;
        let bytes = std::mem::take(&mut slot.bytes);
        shard.bytes -= bytes;
    }

    /// Bytes of all cached values.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        let mut mixer = Mixer::default();
        key.hash(&mut mixer);
        // The map inside uses the low bits of the same hash, so the shard is chosen by others.
        let index = usize::try_from(mixer.finish() >> 24).unwrap_or(0) % SHARDS;
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first).lock()
    }
}

impl<K: Copy + Eq + Hash, V: ?Sized> Shard<K, V> {
    /// Evicts the oldest value, or gives it a second chance (law 3).
    fn evict(&mut self) {
        let Some(key) = self.queue.pop_front() else { return };
        let Entry::Occupied(mut oldest) = self.slots.entry(key) else { return };
        if std::mem::take(&mut oldest.get_mut().is_used) {
            self.queue.push_back(key);
        } else {
            self.bytes -= oldest.remove().bytes;
        }
    }
}

/// A hash for keys made of a few integers: multiply and fold. Keys are the volume's own numbers; an
/// image that makes them collide only slows itself down.
#[derive(Debug, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x2545_F491_4F6C_DD1D)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let [low, high] = [product & u128::from(u64::MAX), product >> 64];
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_exceeded() {
        let cache = BoundedCache::new(SHARDS * 1000);
        for key in 0..10_000_u64 {
            let bytes = usize::try_from(key % 150).unwrap();
            cache.insert(key, Arc::new(key), bytes);
            assert!(cache.bytes() <= SHARDS * 1000);
        }
        cache.insert(1 << 40, Arc::new(0), 1001);
        assert!(cache.find(&(1 << 40)).is_none(), "heavier than a shard");
    }

    #[test]
    fn used_values_outlive_unused_ones() {
        let cache = BoundedCache::new(SHARDS * 1000);
        cache.insert(7_u64, Arc::new(7_u64), 100);
        for key in 100..2000 {
            cache.insert(key, Arc::new(key), 100);
            assert_eq!(cache.find(&7).as_deref(), Some(&7));
        }
    }

    #[test]
    fn a_forgotten_key_takes_no_bytes_and_can_be_inserted_again() {
        let cache = BoundedCache::new(SHARDS * 1000);
        for turn in 0..100 {
            cache.insert(7_u64, Arc::new(turn), 400);
            assert_eq!(cache.find(&7).as_deref(), Some(&turn));
            cache.forget(&7);
            assert!(cache.find(&7).is_none() && cache.bytes() == 0);
            cache.insert_if(7, Arc::new(0), 400, || false);
            assert!(cache.find(&7).is_none());
        }
        let queued: usize = cache.shards.iter().map(|shard| shard.lock().queue.len()).sum();
        assert_eq!(queued, 1, "a key is queued once however often it is inserted");
    }

    #[test]
    fn keys_spread_over_the_shards() {
        let cache = BoundedCache::new(SHARDS * 1000);
        for key in 0..160_u64 {
            cache.insert(key << 20, Arc::new(key), 1);
        }
        assert!(cache.shards.iter().all(|shard| (3..30).contains(&shard.lock().bytes)));
    }
}
