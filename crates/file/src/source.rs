//! [`Source`]: what the reads and writes of all files of a volume share.
//!
//! It holds the page cache, the caches that save small reads from searching trees and decompressing
//! extents again, memory for reads in progress, the worker threads, the owners of requests in
//! flight, and the writeback errors of all files.
//!
//! Laws:
//!
//! 1. Each cache holds at most the bytes that [`SourceOptions`] grants it.
//! 2. No lock of these caches is held across a device read, a tree search or a decompression.
//! 3. Nothing found here is out of date. A volume that is open read-only never changes. For files
//!    that are written, maps are cached by the version of their items ([`crate::shared_file`]), and
//!    a change of checksums drops them from the cache ([`crate::checksum_cache`]).

use crate::bounded_cache::BoundedCache;
use crate::checksum_cache::ChecksumCache;
use crate::compress::Compress;
use crate::error::FileError;
use crate::error_sequence::{ErrorCursor, VolumeErrors};
use crate::extent_map::caches::LookupCaches;
use crate::extent_map::plan::Plan;
use crate::extent_map::resolve::Resolved;
use crate::extent_map::view::FileView;
use crate::in_flight::{RequestOwner, RequestOwners};
use crate::pending_total::PendingTotal;
use crate::shared_file::SharedFile;
use crate::spare_buffers::SpareBuffers;
use butternut_format::units::{DiskRange, TreeId};
use butternut_pages::{CacheLimits, PageCache};
use butternut_sys::buffer::Buffer;
use butternut_sys::lock::{Mutex, rank};
use butternut_sys::wait::Wait;
use butternut_tree::Forest;
use rayon::ThreadPool;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes that a file must have dirty to be written back while other files hold most of the dirty
/// memory.
const FILE_DIRTY_BYTES_MIN: u64 = 1 << 20;

/// Number of workspaces of finished reads that are kept for the next ones, and the largest scratch
/// memory that is kept with one, in bytes.
const IDLE_WORKSPACES_MAX: usize = 8;
const IDLE_SCRATCH_BYTES_MAX: usize = 2 << 20;

/// Sizes of the caches in bytes, and how files are written.
#[derive(Clone, Copy, Debug)]
pub struct SourceOptions {
    /// Cache of extent maps.
    pub map_cache_bytes: usize,
    /// Cache of maps for direct reads.
    pub plain_map_cache_bytes: usize,
    /// Cache of checksums.
    pub checksum_cache_bytes: usize,
    /// Cache of decompressed extents.
    pub decompressed_cache_bytes: usize,
    /// Cache of verified blocks of hashes of fs-verity.
    pub verity_cache_bytes: usize,
    /// The page cache: file data, clean and dirty.
    pub page_cache_bytes: usize,
    /// Bytes of pending extents that all files may have together, and each file as many as the
    /// others leave: about 180 bytes of memory for each 4 KiB at most. A file may have 8 MiB in
    /// any case.
    pub pending_bytes: u64,
    /// Whether, and how, data is compressed when it is written.
    pub compress: Option<Compress>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            map_cache_bytes: 8 << 20,
            plain_map_cache_bytes: 16 << 20,
            checksum_cache_bytes: 8 << 20,
            decompressed_cache_bytes: 8 << 20,
            verity_cache_bytes: 2 << 20,
            page_cache_bytes: 256 << 20,
            pending_bytes: 3 << 29,
            compress: None,
        }
    }
}

/// Memory that one read needs while it is in progress. Reused from read to read.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) plan: Plan,
    pub(crate) scratch: Buffer,
}

/// What the reads and writes of all files of a volume share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Source(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    forest: Arc<Forest>,
    workers: Arc<ThreadPool>,
    lookups: LookupCaches,
    idle: Mutex<Vec<Workspace>, rank::Workspaces>,
    spare_buffers: SpareBuffers,
    pages: PageCache,
    pending: PendingTotal,
    has_flusher: AtomicBool,
    compress: Option<Compress>,
    request_owners: RequestOwners,
    errors: VolumeErrors,
    /// Counts snapshots.
    snapshot_epoch: AtomicU64,
    /// Blocks that did not agree with the hashes of fs-verity.
    verity_errors: AtomicU64,
}

impl Source {
    /// Opens the files of `forest`. `workers` decompress, compress, and read ahead.
    ///
    /// # Errors
    /// The checksum tree cannot be found.
    pub fn open(
        forest: Arc<Forest>,
        workers: Arc<ThreadPool>,
        options: SourceOptions,
    ) -> Result<Self, FileError> {
        let tree = forest.tree(TreeId::CHECKSUM)?;
        let checksum_bytes = forest.volume().super_block().csum().bytes();
        let cache_bytes = options.checksum_cache_bytes;
        let checksums = ChecksumCache::new(Arc::clone(&forest), tree, checksum_bytes, cache_bytes);
        Ok(Self(Arc::new(Shared {
            forest,
            workers,
            lookups: LookupCaches {
                checksums,
                regions: BoundedCache::new(options.map_cache_bytes),
                plain_maps: BoundedCache::new(options.plain_map_cache_bytes),
                decompressed: BoundedCache::new(options.decompressed_cache_bytes),
                verity_blocks: BoundedCache::new(options.verity_cache_bytes),
            },
            idle: Mutex::default(),
            spare_buffers: SpareBuffers::default(),
            pages: PageCache::new(CacheLimits::of(options.page_cache_bytes)),
            pending: PendingTotal::new(options.pending_bytes),
            has_flusher: AtomicBool::new(false),
            compress: options.compress,
            request_owners: RequestOwners::default(),
            errors: VolumeErrors::default(),
            snapshot_epoch: AtomicU64::new(0),
            verity_errors: AtomicU64::new(0),
        })))
    }

    /// Returns how many blocks were read and did not agree with the hashes of fs-verity.
    pub fn verity_errors(&self) -> u64 {
        self.0.verity_errors.load(Ordering::Relaxed)
    }

    pub(crate) fn count_verity_error(&self) {
        self.0.verity_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes all files look up again where they may write in place: a snapshot shares their
    /// extents. No write is in flight or begins meanwhile.
    pub fn forget_write_targets(&self) {
        self.0.snapshot_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of calls of [`Self::forget_write_targets`].
    pub(crate) fn snapshot_epoch(&self) -> u64 {
        self.0.snapshot_epoch.load(Ordering::Acquire)
    }

    /// Returns the trees of the volume.
    pub fn forest(&self) -> &Arc<Forest> {
        &self.0.forest
    }

    /// Returns whether, and how, the volume's files are compressed when they are written.
    pub fn compress(&self) -> Option<Compress> {
        self.0.compress
    }

    pub(crate) fn workers(&self) -> &ThreadPool {
        &self.0.workers
    }

    pub(crate) fn lookups(&self) -> &LookupCaches {
        &self.0.lookups
    }

    pub(crate) fn checksums(&self) -> &ChecksumCache {
        &self.0.lookups.checksums
    }

    pub(crate) fn spare_buffers(&self) -> &SpareBuffers {
        &self.0.spare_buffers
    }

    /// Returns the dirty bytes of all files.
    pub fn dirty_bytes(&self) -> u64 {
        self.0.pages.dirty_bytes()
    }

    /// Returns whether the dirty bytes exceed the hard limit, so that files must be written back.
    pub fn is_over_dirty_limit(&self) -> bool {
        self.dirty_bytes() > self.0.pages.limits().dirty.hard_bytes
    }

    /// Returns the page cache of all files.
    pub fn pages(&self) -> &PageCache {
        &self.0.pages
    }

    /// Sets whether a flusher writes dirty data back. Without one, writers do it themselves.
    pub fn set_flusher(&self, has_flusher: bool) {
        self.0.has_flusher.store(has_flusher, Ordering::Release);
    }

    /// Returns whether a flusher writes dirty data back.
    pub fn has_flusher(&self) -> bool {
        self.0.has_flusher.load(Ordering::Acquire)
    }

    /// Whether a file with so many dirty bytes is to write them back now. Far beyond the limit
    /// every writer does, however few bytes it has dirty.
    pub(crate) fn should_write_back(&self, bytes: u64) -> bool {
        let (used, limit) = (self.dirty_bytes(), self.0.pages.limits().dirty.hard_bytes);
        if self.has_flusher() {
            return false;
        }
        bytes >= limit / 4
            || (used > limit && bytes >= FILE_DIRTY_BYTES_MIN.min(limit / 4))
            || (used > 2 * limit && bytes > 0)
    }

    /// Adds an owner of requests in flight. It is forgotten when it is dropped.
    pub fn add_request_owner(&self, owner: Weak<dyn RequestOwner>) {
        self.0.request_owners.add(owner);
    }

    /// Frees the space that owners hold for requests which have not begun.
    pub fn release_space(&self) {
        self.0.request_owners.all().iter().for_each(|owner| owner.release_space());
    }

    /// Records a writeback error for every handle of the file, and for syncs of all files.
    pub(crate) fn record_error(&self, shared: &SharedFile, error: &FileError) {
        let tree = TreeId(shared.pages().key().tree);
        self.0.errors.record(shared.errors(), tree, error);
    }

    /// Returns the last writeback error of any file since the previous check with this cursor.
    pub fn check_errors(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.0.errors.check(cursor)
    }

    /// Returns the last writeback error of any file since the previous check with this cursor, and
    /// leaves it for all other callers: it counts as an error that no check has returned.
    pub fn check_errors_and_keep(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.0.errors.check_and_keep(cursor)
    }

    /// Returns a position behind all writeback errors so far, for [`Source::error_in_tree`].
    pub fn error_position(&self) -> ErrorCursor {
        self.0.errors.position()
    }

    /// Returns the last writeback error of a file of `tree`, if it was recorded after `since`; a
    /// default cursor is before all of them. It is left for all other callers, and `since` stays
    /// where it is.
    pub fn error_in_tree(&self, tree: TreeId, since: &ErrorCursor) -> Option<FileError> {
        self.0.errors.in_tree(tree, since)
    }

    /// Forgets which writeback errors the files of a tree had, for a tree that is deleted. Handles
    /// of the files, and syncs of all files, return them all the same.
    pub fn forget_errors_in_tree(&self, tree: TreeId) {
        self.0.errors.forget_tree(tree);
    }

    /// Returns the last writeback error, if there is one that no check of a file or of all files
    /// has returned.
    pub fn take_unreported_error(&self) -> Option<FileError> {
        self.0.errors.take_unreported()
    }

    /// Returns the error of [`Source::take_unreported_error`], and leaves it for other callers.
    pub fn peek_unreported_error(&self) -> Option<FileError> {
        self.0.errors.peek_unreported()
    }

    pub(crate) fn pending(&self) -> &PendingTotal {
        &self.0.pending
    }

    pub(crate) fn request_owners(&self) -> &RequestOwners {
        &self.0.request_owners
    }

    /// Frees space that was allocated for data of a subvolume, and that nothing has referenced.
    pub(crate) fn release(&self, tree: TreeId, ranges: impl IntoIterator<Item = DiskRange>) {
        for range in ranges {
            // It fails only on a volume that is open read-only.
            self.0.forest.release_data(range).ok();
            self.0.forest.release_quota_charge(tree, range.bytes());
        }
    }

    /// Returns where the sectors of `range` are, and appends their checksums to `checksums`. The
    /// caller holds the inode lock shared.
    ///
    /// # Errors
    /// The trees cannot be searched.
    pub fn resolve(
        &self,
        view: &FileView,
        range: &Range<u64>,
        wait: Wait,
        checksums: &mut Vec<u8>,
    ) -> Result<Resolved, FileError> {
        self.0.lookups.resolve(view, range, wait, checksums)
    }

    /// Returns the answer of [`Source::resolve`] with [`Wait::Block`], found by a read plan, for
    /// `bytes` bytes inside the file from `offset` on, which starts a sector.
    ///
    /// # Errors
    /// The trees cannot be searched.
    pub fn resolve_by_plan(
        &self,
        view: &FileView,
        offset: u64,
        bytes: usize,
        checksums: &mut Vec<u8>,
    ) -> Result<Resolved, FileError> {
        let mut workspace = self.take_workspace();
        let plan = &mut workspace.plan;
        let place = self.0.lookups.resolve_by_plan(plan, view, offset, bytes, checksums);
        self.return_workspace(workspace);
        place
    }

    pub(crate) fn take_workspace(&self) -> Workspace {
        // After a panic: each workspace in the list is whole, and its contents are not used again.
        let mut idle = self.0.idle.lock();
        idle.pop().unwrap_or_default()
    }

    pub(crate) fn return_workspace(&self, mut workspace: Workspace) {
        if workspace.scratch.capacity() > IDLE_SCRATCH_BYTES_MAX {
            workspace.scratch = Buffer::default();
        }
        let mut idle = self.0.idle.lock();
        if idle.len() < IDLE_WORKSPACES_MAX {
            idle.push(workspace);
        }
    }
}

impl Workspace {
    /// Makes the scratch memory `bytes` bytes long.
    pub(crate) fn grow_scratch(&mut self, bytes: usize) {
        if self.scratch.capacity() < bytes {
            self.scratch = Buffer::zeroed(bytes.next_power_of_two());
        }
        self.scratch.set_len(bytes);
    }
}
