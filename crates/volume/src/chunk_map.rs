//! Logical address -> chunk: a sorted, immutable snapshot that readers share without a lock.
//!
//! Laws:
//! 1. Chunks never overlap; one that would is refused, and the snapshot stays as it was.
//! 2. A snapshot never changes. Adding or removing chunks makes a new one, which readers see at
//!    their next load; the old one lives as long as somebody reads by it.
//! 3. The same chunk added again is no change: system chunks stand in the superblock and in the
//!    chunk tree.

use crate::stripe::Layout;
use arc_swap::{ArcSwap, Cache, Guard};
use butternut_format::refused::Refused;
use butternut_format::units::Logical;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The chunks of a volume, as they are now.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    snapshot: Arc<ArcSwap<Chunks>>,
    /// Whether `staged` holds anything: asked by every reader, set almost never.
    has_staged: AtomicBool,
    /// Serialises writers.
    staged: Mutex<Staged>,
}

/// A snapshot that is looked at again only when there is a newer one. It keeps its snapshot alive.
pub(crate) struct Follower(Cache<Arc<ArcSwap<Chunks>>, Arc<Chunks>>);

/// One snapshot: chunks in the order of their addresses.
#[derive(Debug, Default, Clone)]
pub struct Chunks {
    sorted: Vec<Arc<Layout>>,
}

/// Chunks that were added since the last snapshot was made. Publishing them in one go keeps the
/// reading of a chunk tree linear in its size.
#[derive(Debug, Default)]
struct Staged {
    added: Vec<Arc<Layout>>,
    /// The first verdict that nobody has heard yet.
    refused: Option<Refused>,
}

impl ChunkMap {
    /// The snapshot of this moment, with everything that was staged before.
    pub(crate) fn load(&self) -> Guard<Arc<Chunks>> {
        if self.has_staged.load(Ordering::Acquire) {
            self.merge(&mut self.lock());
        }
        self.snapshot.load()
    }

    /// A view that follows the snapshots, for who looks often: cheaper than a load each time.
    pub(crate) fn follow(&self) -> Follower {
        Follower(Cache::new(Arc::clone(&self.snapshot)))
    }

    /// Adds one chunk, to be seen at the next load.
    pub(crate) fn stage(&self, layout: Layout) {
        let mut staged = self.lock();
        staged.added.push(Arc::new(layout));
        self.has_staged.store(true, Ordering::Release);
    }

    /// Says whether all chunks staged so far fit; those that overlap were left out (law 1).
    pub(crate) fn settle(&self) -> Result<(), Refused> {
        let mut staged = self.lock();
        self.merge(&mut staged);
        staged.refused.take().map_or(Ok(()), Err)
    }

    /// Takes the chunk that begins at an address out, if there is one.
    pub(crate) fn remove(&self, logical: Logical) -> Option<Arc<Layout>> {
        let mut staged = self.lock();
        self.merge(&mut staged);
        let mut chunks = Chunks::clone(&self.snapshot.load());
        let at = chunks.sorted.binary_search_by_key(&logical, |chunk| chunk.logical()).ok()?;
        let removed = chunks.sorted.remove(at);
        self.snapshot.store(Arc::new(chunks));
        Some(removed)
    }

    fn merge(&self, staged: &mut Staged) {
        let added = std::mem::take(&mut staged.added);
        if !added.is_empty() {
            let (chunks, refused) = self.snapshot.load().merged(added);
            staged.refused = staged.refused.take().or(refused);
            self.snapshot.store(Arc::new(chunks));
        }
        self.has_staged.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// As [`ChunkMap::load`] of the map that it follows.
    pub(crate) fn load(&mut self, map: &ChunkMap) -> &Chunks {
        if map.has_staged.load(Ordering::Acquire) {
            map.merge(&mut map.lock());
        }
        self.0.load()
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}

impl Chunks {
    /// The chunk that holds an address.
    pub fn find(&self, logical: Logical) -> Option<&Arc<Layout>> {
        let after = self.sorted.partition_point(|chunk| chunk.logical() <= logical);
        let chunk = self.sorted.get(after.checked_sub(1)?)?;
        (logical.0 < chunk.end()).then_some(chunk)
    }

    /// Bytes from an address to the end of its chunk; zero where no chunk holds it.
    pub fn len_available(&self, logical: Logical) -> u64 {
        self.find(logical).map_or(0, |chunk| chunk.end().saturating_sub(logical.0))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Layout>> {
        self.sorted.iter()
    }

    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// These and the added chunks; with the verdict on the first that was left out.
    fn merged(&self, added: Vec<Arc<Layout>>) -> (Self, Option<Refused>) {
        let mut all = self.sorted.clone();
        all.extend(added);
        // Stable: of two at one address, the one that was there first stays.
        all.sort_by_key(|chunk| chunk.logical());
        let mut sorted: Vec<Arc<Layout>> = Vec::with_capacity(all.len());
        let mut refused = None;
        for chunk in all {
            match sorted.last() {
                Some(last) if *last == chunk => {}
                Some(last) if last.end() > chunk.logical().0 => {
                    refused.get_or_insert_with(|| overlap(last, &chunk));
                }
                Some(_) | None => sorted.push(chunk),
            }
        }
        (Self { sorted }, refused)
    }
}

fn overlap(last: &Layout, chunk: &Layout) -> Refused {
    let have = format_args!("{} + {}", chunk.logical(), chunk.bytes()).to_string();
    let want = format!("nothing below {}, the end of chunk {}", last.end(), last.logical());
    Refused::new("logical", have, want).at(format_args!("chunk {}", chunk.logical()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripe::Place;
    use butternut_format::chunk::BlockGroupFlags;
    use butternut_format::units::{DevId, Physical};

    fn chunk(logical: u64, bytes: u64) -> Layout {
        let place = Place {
            devid: DevId(1),
            uuid: [1; 16],
            physical: Physical(logical),
            slot: Some(0),
            is_stale: false,
        };
        Layout::new(Logical(logical), bytes, BlockGroupFlags::DATA, vec![place]).unwrap()
    }

    #[test]
    fn addresses_find_their_chunk_and_gaps_find_none() {
        let map = ChunkMap::default();
        for (logical, bytes) in [(8192, 4096), (0, 4096), (1 << 40, 1 << 30)] {
            map.stage(chunk(logical, bytes));
        }
        map.settle().unwrap();
        let chunks = map.load();
        let at = |logical| chunks.find(Logical(logical)).map(|chunk| chunk.logical().0);
        assert_eq!(at(0), Some(0));
        assert_eq!(at(4095), Some(0));
        assert_eq!(at(4096), None);
        assert_eq!(at(8192), Some(8192));
        assert_eq!(at((1 << 40) + (1 << 30) - 1), Some(1 << 40));
        assert_eq!(at((1 << 40) + (1 << 30)), None);
        assert_eq!(at(u64::MAX), None);
        assert_eq!(chunks.len_available(Logical(8193)), 4095);
        assert_eq!(chunks.len_available(Logical(5000)), 0);
    }

    #[test]
    fn an_overlapping_chunk_is_refused_and_the_rest_stays() {
        let map = ChunkMap::default();
        map.stage(chunk(0, 8192));
        map.settle().unwrap();
        map.stage(chunk(4096, 8192));
        map.stage(chunk(65536, 4096));
        let refused = map.settle().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "chunk 4096: logical: have 4096 + 8192, want nothing below 8192, the end of chunk 0"
        );
        assert_eq!(map.load().len(), 2);
        assert!(map.load().find(Logical(65536)).is_some());
    }

    #[test]
    fn the_same_chunk_twice_is_one_and_a_different_one_there_is_refused() {
        let map = ChunkMap::default();
        map.stage(chunk(0, 8192));
        map.settle().unwrap();
        map.stage(chunk(0, 8192));
        map.settle().unwrap();
        assert_eq!(map.load().len(), 1);
        map.stage(chunk(0, 4096));
        assert!(map.settle().is_err());
        assert_eq!(map.load().len_available(Logical(0)), 8192);
    }

    #[test]
    fn a_follower_sees_every_change() {
        let map = ChunkMap::default();
        let mut follower = map.follow();
        assert!(follower.load(&map).is_empty());
        map.stage(chunk(0, 4096));
        assert_eq!(follower.load(&map).len(), 1);
        map.stage(chunk(4096, 4096));
        map.settle().unwrap();
        assert_eq!(follower.load(&map).len_available(Logical(4096)), 4096);
        map.remove(Logical(4096));
        assert_eq!(follower.load(&map).len_available(Logical(4096)), 0);
    }

    #[test]
    fn readers_keep_their_snapshot_while_chunks_are_added() {
        let map = ChunkMap::default();
        let before = Arc::clone(&map.load());
        map.stage(chunk(0, 4096));
        map.settle().unwrap();
        assert!(before.is_empty());
        assert_eq!(Arc::clone(&map.load()).len(), 1);
    }
}
