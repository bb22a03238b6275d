//! Maps logical addresses to chunks: a sorted, immutable snapshot that readers share without a
//! lock.
//!
//! Laws:
//! 1. Chunks never overlap. A chunk that would overlap another is refused and left out.
//! 2. A snapshot never changes. Adding or removing chunks makes a new snapshot, which readers see
//!    at their next load. The old one lives as long as a reader uses it.
//! 3. Adding the same chunk again changes nothing: system chunks are both in the superblock and in
//!    the chunk tree.

use crate::stripe::Layout;
use arc_swap::{ArcSwap, Cache, Guard};
use butternut_format::refused::Refused;
use butternut_format::units::Logical;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The chunks of a volume, as they are now.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    snapshot: Arc<ArcSwap<Chunks>>,
    /// Whether `staged` holds anything. Every reader checks it; it is almost never set.
    has_staged: AtomicBool,
    /// Serialises writers.
    staged: Mutex<Staged, rank::ChunkMap>,
}

/// A cached snapshot that is reloaded only if there is a newer one. It keeps its snapshot alive.
pub(crate) struct ChunkReader(Cache<Arc<ArcSwap<Chunks>>, Arc<Chunks>>);

/// One snapshot: chunks in the order of their addresses.
#[derive(Debug, Default, Clone)]
pub struct Chunks {
    sorted: Vec<Arc<Layout>>,
}

/// Chunks that were added since the last snapshot. Publishing them together keeps the cost of
/// reading a chunk tree linear in its size.
#[derive(Debug, Default)]
struct Staged {
    added: Vec<Arc<Layout>>,
    /// The first refusal that has not been returned yet.
    refused: Option<Refused>,
}

impl ChunkMap {
    /// Returns the current snapshot, including everything that was staged before.
    pub(crate) fn load(&self) -> Guard<Arc<Chunks>> {
        if self.has_staged.load(Ordering::Acquire) {
            self.publish_staged(&mut self.lock());
        }
        self.snapshot.load()
    }

    /// Returns a reader that caches the snapshot; its loads are cheaper.
    pub(crate) fn reader(&self) -> ChunkReader {
        ChunkReader(Cache::new(Arc::clone(&self.snapshot)))
    }

    /// Adds one chunk, visible at the next load.
    pub(crate) fn stage(&self, layout: Layout) {
        let mut staged = self.lock();
        staged.added.push(Arc::new(layout));
        self.has_staged.store(true, Ordering::Release);
    }

    /// Publishes all staged chunks. Fails if any overlapped another and was left out (law 1).
    pub(crate) fn publish(&self) -> Result<(), Refused> {
        let mut staged = self.lock();
        self.publish_staged(&mut staged);
        staged.refused.take().map_or(Ok(()), Err)
    }

    /// Removes the chunk that begins at an address, and returns it.
    pub(crate) fn remove(&self, logical: Logical) -> Option<Arc<Layout>> {
        let mut staged = self.lock();
        self.publish_staged(&mut staged);
        let mut chunks = Chunks::clone(&self.snapshot.load());
        let at = chunks.sorted.binary_search_by_key(&logical, |chunk| chunk.logical()).ok()?;
        let removed = chunks.sorted.remove(at);
        self.snapshot.store(Arc::new(chunks));
        Some(removed)
    }

    fn publish_staged(&self, staged: &mut Staged) {
        let added = std::mem::take(&mut staged.added);
        if !added.is_empty() {
            let (chunks, refused) = self.snapshot.load().with_added(added);
            staged.refused = staged.refused.take().or(refused);
            self.snapshot.store(Arc::new(chunks));
        }
        self.has_staged.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock()
    }
}

impl ChunkReader {
    /// Returns the current snapshot of `map`, as [`ChunkMap::load`].
    pub(crate) fn load(&mut self, map: &ChunkMap) -> &Chunks {
        if map.has_staged.load(Ordering::Acquire) {
            map.publish_staged(&mut map.lock());
        }
        self.0.load()
    }
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkReader").finish_non_exhaustive()
    }
}

impl Chunks {
    /// Returns the chunk that contains an address.
    pub fn find(&self, logical: Logical) -> Option<&Arc<Layout>> {
        let after = self.sorted.partition_point(|chunk| chunk.logical() <= logical);
        let chunk = self.sorted.get(after.checked_sub(1)?)?;
        (logical.0 < chunk.end()).then_some(chunk)
    }

    /// Returns the bytes from an address to the end of its chunk, or 0 if it is in no chunk.
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

    /// Returns a snapshot with the added chunks, and the refusal of the first one that was left
    /// out.
    fn with_added(&self, added: Vec<Arc<Layout>>) -> (Self, Option<Refused>) {
        let mut all = self.sorted.clone();
        all.extend(added);
        // The sort is stable: of two chunks at one address, the older one stays.
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
    use crate::stripe::IoStripe;
    use butternut_format::chunk::BlockGroupFlags;
    use butternut_format::units::{DevId, Physical};

    fn chunk(logical: u64, bytes: u64) -> Layout {
        let stripe = IoStripe {
            devid: DevId(1),
            uuid: [1; 16],
            physical: Physical(logical),
            slot: Some(0),
            is_stale: false,
        };
        Layout::new(Logical(logical), bytes, BlockGroupFlags::DATA, vec![stripe]).unwrap()
    }

    #[test]
    fn lookup_finds_chunks_and_no_gaps() {
        let map = ChunkMap::default();
        for (logical, bytes) in [(8192, 4096), (0, 4096), (1 << 40, 1 << 30)] {
            map.stage(chunk(logical, bytes));
        }
        map.publish().unwrap();
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
    fn an_overlapping_chunk_is_refused_and_others_stay() {
        let map = ChunkMap::default();
        map.stage(chunk(0, 8192));
        map.publish().unwrap();
        map.stage(chunk(4096, 8192));
        map.stage(chunk(65536, 4096));
        let refused = map.publish().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "chunk 4096: logical: have 4096 + 8192, want nothing below 8192, the end of chunk 0"
        );
        assert_eq!(map.load().len(), 2);
        assert!(map.load().find(Logical(65536)).is_some());
    }

    #[test]
    fn adding_a_chunk_twice_changes_nothing() {
        let map = ChunkMap::default();
        map.stage(chunk(0, 8192));
        map.publish().unwrap();
        map.stage(chunk(0, 8192));
        map.publish().unwrap();
        assert_eq!(map.load().len(), 1);
        map.stage(chunk(0, 4096));
        assert!(map.publish().is_err());
        assert_eq!(map.load().len_available(Logical(0)), 8192);
    }

    #[test]
    fn a_reader_sees_every_change() {
        let map = ChunkMap::default();
        let mut reader = map.reader();
        assert!(reader.load(&map).is_empty());
        map.stage(chunk(0, 4096));
        assert_eq!(reader.load(&map).len(), 1);
        map.stage(chunk(4096, 4096));
        map.publish().unwrap();
        assert_eq!(reader.load(&map).len_available(Logical(4096)), 4096);
        map.remove(Logical(4096));
        assert_eq!(reader.load(&map).len_available(Logical(4096)), 0);
    }

    #[test]
    fn readers_keep_their_snapshot_while_chunks_are_added() {
        let map = ChunkMap::default();
        let before = Arc::clone(&map.load());
        map.stage(chunk(0, 4096));
        map.publish().unwrap();
        assert!(before.is_empty());
        assert_eq!(Arc::clone(&map.load()).len(), 1);
    }
}
