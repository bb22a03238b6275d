//! [`Source`]: what every read of a volume's files shares.
//!
//! It holds the checksum tree, the caches that keep small reads from searching trees and unpacking
//! extents again, memory for reads under way, and the threads that unpack.
//!
//! Laws:
//!
//! 1. Each cache holds at most the bytes that [`SourceOptions`] grants it.
//! 2. No lock is held over a device read, a tree search or an unpacking.
//! 3. Nothing found here is out of date. A volume that is only read never changes; files that are
//!    written have a stamp for each state of their items ([`crate::live`]), and who changes
//!    checksums forgets them here ([`crate::sums`]).

use crate::cache::BoundedCache;
use crate::error::FileError;
use crate::error_sequence::{ErrorCursor, VolumeErrors};
use crate::live::Live;
use crate::map::{ItemMappings, Mapping, MappingKind};
use crate::pack::Compress;
use crate::plain::{self, PlainMap};
use crate::plan::Plan;
use crate::stream::Spares;
use crate::sums::SumIndex;
use crate::traffic::{Help, Helpers};
use crate::view::FileView;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Logical, TreeId, length};
use butternut_pages::{CacheLimits, PageCache};
use butternut_sys::buffer::Buffer;
use butternut_tree::Forest;
use rayon::ThreadPool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A file is mapped in pieces of this size, and the pieces are cached.
pub(crate) const REGION_BYTES: u64 = 1 << 20;

/// What a file writes together at least, to be worth it while others hold most of what may be
/// dirty.
const FILE_DIRTY_BYTES_MIN: u64 = 1 << 20;

/// Memory of finished reads that is kept for the next: this many pieces, of at most this size.
const IDLE_WORKSPACES_MAX: usize = 8;
const IDLE_SCRATCH_BYTES_MAX: usize = 2 << 20;

/// How much memory the caches may take, in bytes; and how files are written.
#[derive(Clone, Copy, Debug)]
pub struct SourceOptions {
    pub map_cache_bytes: usize,
    /// Maps for direct reads.
    pub plain_map_cache_bytes: usize,
    pub sum_cache_bytes: usize,
    pub unpacked_cache_bytes: usize,
    /// Of file data, clean and dirty.
    pub page_cache_bytes: usize,
    /// Whether what is written is packed.
    pub compress: Option<Compress>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            map_cache_bytes: 8 << 20,
            plain_map_cache_bytes: 16 << 20,
            sum_cache_bytes: 8 << 20,
            unpacked_cache_bytes: 8 << 20,
            page_cache_bytes: 256 << 20,
            compress: None,
        }
    }
}

/// A mapped piece of a file: the mappings of one region, without gaps, neighbours on disk joined.
pub(crate) type Region = [Mapping];

/// A region's identity: tree, inode, number of the region in the file, and the state of a file
/// that is being written.
type RegionKey = (u64, u64, u64, u64);

/// An extent's identity: where it is, and who wrote it.
pub(crate) type PackedKey = (Logical, u64);

/// Memory that one read under way needs. Kept from read to read.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) plan: Plan,
    pub(crate) scratch: Buffer,
}

/// What every read of a volume's files shares. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Source(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    forest: Arc<Forest>,
    workers: Arc<ThreadPool>,
    sums: SumIndex,
    regions: BoundedCache<RegionKey, Region>,
    plain_maps: BoundedCache<RegionKey, PlainMap>,
    unpacked: BoundedCache<PackedKey, Vec<u8>>,
    idle: Mutex<Vec<Workspace>>,
    spares: Spares,
    pages: PageCache,
    has_flusher: AtomicBool,
    compress: Option<Compress>,
    helpers: Helpers,
    errors: VolumeErrors,
}

impl Source {
    /// Finds the checksum tree. `workers` unpack extents and read ahead.
    pub fn open(
        forest: Arc<Forest>,
        workers: Arc<ThreadPool>,
        options: SourceOptions,
    ) -> Result<Self, FileError> {
        let tree = forest.tree(TreeId::CHECKSUM)?;
        let digest_bytes = forest.volume().super_block().csum().bytes();
        Ok(Self(Arc::new(Shared {
            forest,
            workers,
            sums: SumIndex::new(tree, digest_bytes, options.sum_cache_bytes),
            regions: BoundedCache::new(options.map_cache_bytes),
            plain_maps: BoundedCache::new(options.plain_map_cache_bytes),
            unpacked: BoundedCache::new(options.unpacked_cache_bytes),
            idle: Mutex::default(),
            spares: Spares::default(),
            pages: PageCache::new(CacheLimits::of(options.page_cache_bytes)),
            has_flusher: AtomicBool::new(false),
            compress: options.compress,
            helpers: Helpers::default(),
            errors: VolumeErrors::default(),
        })))
    }

    pub fn forest(&self) -> &Arc<Forest> {
        &self.0.forest
    }

    /// Whether, and how, the volume's files are packed as they are written.
    pub fn compress(&self) -> Option<Compress> {
        self.0.compress
    }

    pub(crate) fn workers(&self) -> &ThreadPool {
        &self.0.workers
    }

    pub(crate) fn sums(&self) -> &SumIndex {
        &self.0.sums
    }

    pub(crate) fn spares(&self) -> &Spares {
        &self.0.spares
    }

    /// Bytes that files being written have in memory only.
    pub fn dirty_bytes(&self) -> u64 {
        self.0.pages.dirty_bytes()
    }

    /// More is in memory only than is wanted: files are to be flushed.
    pub fn is_over_dirty_limit(&self) -> bool {
        self.dirty_bytes() > self.0.pages.limits().dirty.hard_bytes
    }

    /// The page cache of all files.
    pub fn pages(&self) -> &PageCache {
        &self.0.pages
    }

    /// Somebody brings down what is dirty from now on, or does not any more: writers need not.
    pub fn set_flusher(&self, is_there: bool) {
        self.0.has_flusher.store(is_there, Ordering::Release);
    }

    pub fn has_flusher(&self) -> bool {
        self.0.has_flusher.load(Ordering::Acquire)
    }

    /// Whether a file with so much in memory only is to bring it down now. Far beyond the limit
    /// every writer does, however little he has.
    pub(crate) fn wants_flush(&self, bytes: u64) -> bool {
        let (used, limit) = (self.dirty_bytes(), self.0.pages.limits().dirty.hard_bytes);
        if self.has_flusher() {
            return false;
        }
        bytes >= limit / 4
            || (used > limit && bytes >= FILE_DIRTY_BYTES_MIN.min(limit / 4))
            || (used > 2 * limit && bytes > 0)
    }

    pub(crate) fn unpacked(&self) -> &BoundedCache<PackedKey, Vec<u8>> {
        &self.0.unpacked
    }

    /// Whom to ask for what is in flight; forgotten when it is gone.
    pub fn add_helper(&self, helper: Weak<dyn Help>) {
        self.0.helpers.add(helper);
    }

    /// Those who hold space for requests to come give it back.
    pub fn give_back_space(&self) {
        self.0.helpers.all().iter().for_each(|helper| helper.give_back_space());
    }

    /// Takes note of data that was lost, for every handle of the file, and for syncs of all files.
    pub(crate) fn note(&self, live: &Live, error: &FileError) {
        self.0.errors.note(live.errors(), error);
    }

    /// Returns why data of any file was lost since the last check with this cursor.
    pub fn check_errors(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.0.errors.check(cursor)
    }

    /// Returns why data was lost, if no check of a file or of all files has returned it.
    pub fn take_untold_error(&self) -> Option<FileError> {
        self.0.errors.take_untold()
    }

    pub(crate) fn helpers(&self) -> &Helpers {
        &self.0.helpers
    }

    /// Where the sectors of region `number` are that are on disk as they are; `is_cached` becomes
    /// false where the tree had to be asked.
    pub(crate) fn plain_map(
        &self,
        view: &FileView,
        number: u64,
        is_cached: &mut bool,
    ) -> Result<Arc<PlainMap>, FileError> {
        let key = region_key(view, number);
        if let Some(map) = self.0.plain_maps.find(&key) {
            return Ok(map);
        }
        *is_cached = false;
        let map: Arc<PlainMap> = Arc::from(plain::load(view, number)?);
        let bytes = size_of_val(&*map) + size_of::<RegionKey>() * 4;
        self.0.plain_maps.insert(key, Arc::clone(&map), bytes);
        Ok(map)
    }

    /// The same, if it is in memory.
    pub(crate) fn known_plain_map(&self, view: &FileView, number: u64) -> Option<Arc<PlainMap>> {
        self.0.plain_maps.find(&region_key(view, number))
    }

    /// The region of the file that holds byte `offset`, as the tree has it.
    pub(crate) fn region(&self, view: &FileView, offset: u64) -> Result<Arc<Region>, FileError> {
        let number = offset / REGION_BYTES;
        let key = region_key(view, number);
        if let Some(region) = self.0.regions.find(&key) {
            return Ok(region);
        }
        let start = number * REGION_BYTES;
        let mut region: Vec<Mapping> = Vec::new();
        let _still = view.still_items();
        for mapping in ItemMappings::near(view, start..start.saturating_add(REGION_BYTES)) {
            let mapping = mapping?;
            if !region.last_mut().is_some_and(|last| last.absorb(&mapping)) {
                region.push(mapping);
            }
        }
        let bytes = region.len() * size_of::<Mapping>() + size_of::<RegionKey>() * 4;
        let region: Arc<Region> = Arc::from(region);
        self.0.regions.insert(key, Arc::clone(&region), bytes);
        Ok(region)
    }

    pub(crate) fn take_workspace(&self) -> Workspace {
        // After a panic: each workspace in the list is whole, and holds nothing that is used again.
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, mut workspace: Workspace) {
        if workspace.scratch.capacity() > IDLE_SCRATCH_BYTES_MAX {
            workspace.scratch = Buffer::default();
        }
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_WORKSPACES_MAX {
            idle.push(workspace);
        }
    }
}

fn region_key(view: &FileView, number: u64) -> RegionKey {
    (view.tree().id().0, view.ino().0, number, view.stamp())
}

impl Workspace {
    /// Makes the scratch memory at least `bytes` long.
    pub(crate) fn grow_scratch(&mut self, bytes: usize) {
        if self.scratch.capacity() < bytes {
            self.scratch = Buffer::zeroed(bytes.next_power_of_two());
        }
        self.scratch.set_len(bytes);
    }
}

impl Mapping {
    /// Grows by `next`, if that reads on where this one ends.
    fn absorb(&mut self, next: &Self) -> bool {
        match (&mut self.kind, &next.kind) {
            (MappingKind::Hole, MappingKind::Hole) => {}
            (
                MappingKind::Regular { extent, packing, skip },
                MappingKind::Regular { extent: follower, packing: its_packing, skip: its_skip },
            ) => {
                let is_plain = packing.compression == Compression::None
                    && its_packing.compression == Compression::None;
                let (start, end) =
                    (extent.logical.0 + *skip, extent.logical.0 + *skip + self.bytes);
                if !is_plain || end != follower.logical.0 + its_skip {
                    return false;
                }
                *extent = DiskExtent { logical: Logical(start), bytes: self.bytes + next.bytes };
                *skip = 0;
            }
            _ => return false,
        }
        self.bytes += next.bytes;
        true
    }
}

/// The mapping of a region that holds byte `offset`.
pub(crate) fn mapping_at(region: &Region, offset: u64) -> Option<&Mapping> {
    let index = region.partition_point(|mapping| mapping.end() <= offset);
    region.get(index).filter(|mapping| mapping.offset <= offset)
}

/// Bytes, as a length in memory. On the 64-bit machines this runs on, it always fits.
pub(crate) fn in_memory(bytes: u64) -> usize {
    debug_assert!(length(usize::MAX) >= bytes, "a length in memory is at most the address space");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
