//! [`SharedFile`]: what the readers of a file that is being written share with its writer.
//!
//! Laws:
//!
//! 1. Readers that hold the inode lock shared see one state of the file, with two exceptions: a
//!    direct write changes whole blocks when it completes ([`crate::direct`]), and blocks whose
//!    writeback fails read as before they were written ([`crate::writeback::batch`]). Every other
//!    change of the contents is made by the writer, which holds that lock exclusively. A writeback
//!    that succeeds and a shared merge change only where the contents are found.
//! 2. Every change of the file's contents changes [`SharedFile::data_version`], so that a thread
//!    can tell data that was read ahead before a change from data that was read after it.
//! 3. A thread that reads ahead without the inode lock enters a read epoch and then holds
//!    [`SharedFile::begin_readahead`] meanwhile: no thread ever reads a block while it is written
//!    for another file. Space that the trees have referenced is not reused before the epoch ends,
//!    so a merge does not wait. Space that only the overlay has shown is freed at once, so the
//!    writer first waits for these threads ([`SharedFile::wait_for_readahead`]).
//! 4. Every change of the file's items in the tree changes [`SharedFile::items_version`], and no
//!    two states of the items of any file have the same version: a map that is cached under a
//!    version is never out of date. The version changes while the items are locked exclusively.
//! 5. Readers look up the tree while they hold [`SharedFile::lock_items_shared`]. A merge that
//!    shares the file changes the items in several steps, under
//!    [`SharedFile::lock_items_exclusive`], and only where the overlay shows newer data.
//! 6. A write target that is cached under an items version stays valid: before extents of the file
//!    can become shared with another file, the version changes.
//!
//! The lock of the overlay is held for one lookup or one change, never across I/O or a tree search.

use crate::error_sequence::ErrorSequence;
use crate::in_flight::InFlightTable;
use crate::overlay::{CompressedExtent, Found, Overlay, Place};
use crate::pending_total::PendingBytes;
use crate::sealed_file::SealedFile;
use crate::target::Target;
use crate::units::in_memory;
use butternut_format::units::{Logical, SECTOR_BYTES};
use butternut_pages::FilePages;
use butternut_sys::frames::Frame;
use butternut_sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of cached write targets.
const CACHED_TARGETS_MAX: usize = 16 << 10;

/// The next items version. Files that cannot change have version 0.
static NEXT_ITEMS_VERSION: AtomicU64 = AtomicU64::new(1);

/// What the readers of a file share with its writer.
#[derive(Debug)]
pub(crate) struct SharedFile {
    overlay: RwLock<Overlay, rank::Overlay>,
    pages: FilePages,
    size: AtomicU64,
    has_checksums: AtomicBool,
    data_version: AtomicU64,
    items_version: AtomicU64,
    /// Held shared by threads that read ahead (law 3).
    readahead: RwLock<(), rank::Readahead>,
    /// Held shared to read the file's items, exclusively to change them (law 5).
    items: RwLock<(), rank::FileItems>,
    in_flight: InFlightTable,
    /// After a panic: each run is valid by itself, and the version that they belong to is set
    /// first.
    targets: RwLock<CachedTargets, rank::WriteTargets>,
    /// Bytes written back since the state was created: separates large files from small ones.
    bytes_written: AtomicU64,
    errors: ErrorSequence,
    /// Set when fs-verity seals the file.
    verity: OnceLock<Arc<SealedFile>>,
}

/// What write targets depend on: the file's items, and the snapshots that share its extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetsVersion {
    pub(crate) items: u64,
    /// [`Source::snapshot_epoch`](crate::Source).
    pub(crate) snapshots: u64,
}

/// Cached write targets (law 6): start -> end, and the target.
#[derive(Debug, Default)]
struct CachedTargets {
    version: TargetsVersion,
    runs: BTreeMap<u64, (u64, Target)>,
}

/// The newest data at an offset of the file, as a read finds it.
#[derive(Debug)]
pub(crate) enum Layer {
    /// A dirty block, from its byte `skip` on.
    Dirty { bytes: Frame, skip: usize },
    /// A pending extent, at `logical`, up to byte `end` of the file. The checksums of every sector
    /// that the range touches are appended, if there are any.
    OnDisk { logical: Logical, end: u64, has_checksums: bool },
    /// From byte `skip` of the decompressed contents of a compressed extent, up to byte `end` of
    /// the file. The checksums of all its sectors are appended.
    Compressed { extent: CompressedExtent, skip: u64, end: u64 },
    /// Only in the tree, up to byte `end` of the file.
    Tree { end: u64 },
}

/// A request in flight on a file. It ends when this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<SharedFile>);

impl SharedFile {
    pub(crate) fn new(
        pages: FilePages,
        pending_bytes: PendingBytes,
        size: u64,
        has_checksums: bool,
    ) -> Self {
        Self {
            overlay: RwLock::new(Overlay::new(pages.clone(), pending_bytes)),
            pages,
            size: AtomicU64::new(size),
            has_checksums: AtomicBool::new(has_checksums),
            data_version: AtomicU64::new(1),
            items_version: AtomicU64::new(next_items_version()),
            readahead: RwLock::default(),
            items: RwLock::default(),
            in_flight: InFlightTable::default(),
            targets: RwLock::default(),
            bytes_written: AtomicU64::new(0),
            errors: ErrorSequence::default(),
            verity: OnceLock::new(),
        }
    }

    pub(crate) fn verity(&self) -> Option<&Arc<SealedFile>> {
        self.verity.get()
    }

    /// Makes all reads that begin from now on verify what they read.
    pub(crate) fn set_verity(&self, verity: Arc<SealedFile>) {
        self.verity.get_or_init(|| verity);
    }

    /// Records that a request is in flight from now on. The caller holds the inode lock shared.
    pub(crate) fn begin_request(self: &Arc<Self>) -> InFlight {
        self.in_flight().begin();
        InFlight(Arc::clone(self))
    }

    pub(crate) fn pages(&self) -> &FilePages {
        &self.pages
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    pub(crate) fn add_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The writeback errors of the file.
    pub(crate) fn errors(&self) -> &ErrorSequence {
        &self.errors
    }

    /// Whether data that is written now has checksums. It changes only while the file has no data.
    pub(crate) fn has_checksums(&self) -> bool {
        self.has_checksums.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_checksums(&self, has_checksums: bool) {
        self.has_checksums.store(has_checksums, Ordering::Release);
    }

    /// Whether a thread panicked while it changed the overlay, the items or the pages.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.overlay.is_poisoned() || self.items.is_poisoned() || self.pages.is_poisoned()
    }

    pub(crate) fn overlay(&self) -> RwLockReadGuard<'_, Overlay> {
        self.overlay.read()
    }

    /// Locks the overlay for a change of the file's contents.
    pub(crate) fn overlay_mut(&self) -> RwLockWriteGuard<'_, Overlay> {
        self.bump_data_version();
        self.overlay.write()
    }

    /// Locks the overlay for a change that leaves the file's contents as they are.
    pub(crate) fn overlay_mut_same_data(&self) -> RwLockWriteGuard<'_, Overlay> {
        self.overlay.write()
    }

    /// Locks the file's items for reading (law 5).
    pub(crate) fn lock_items_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.items.read()
    }

    /// Locks the file's items for a change (law 5). The thread may have locked those of other
    /// files, whose inode locks it holds exclusively.
    pub(crate) fn lock_items_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.items.write_nested()
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.bump_data_version();
        self.size.store(size, Ordering::Release);
    }

    pub(crate) fn data_version(&self) -> u64 {
        self.data_version.load(Ordering::Acquire)
    }

    pub(crate) fn items_version(&self) -> u64 {
        self.items_version.load(Ordering::Acquire)
    }

    pub(crate) fn in_flight(&self) -> &InFlightTable {
        &self.in_flight
    }

    /// The cached write target of a range, as of `version`.
    pub(crate) fn cached_target(
        &self,
        version: TargetsVersion,
        range: &Range<u64>,
    ) -> Option<Target> {
        let cached = self.targets.read();
        if cached.version != version {
            return None;
        }
        let (start, (end, target)) = cached.runs.range(..=range.start).next_back()?;
        (range.end <= *end).then(|| target.advanced(range.start - start))
    }

    /// Caches the write targets of runs, as of `version`.
    pub(crate) fn cache_targets(&self, version: TargetsVersion, runs: &[(Range<u64>, Target)]) {
        let mut cached = self.targets.write();
        if cached.version != version || cached.runs.len() + runs.len() > CACHED_TARGETS_MAX {
            *cached = CachedTargets { version, runs: BTreeMap::new() };
        }
        // Preallocated space is not cached: it stops being preallocated when it is written, under
        // the same version.
        let lasting =
            runs.iter().filter(|(_, target)| matches!(target, Target::New | Target::Overwrite(_)));
        cached.runs.extend(lasting.map(|(range, target)| (range.start, (range.end, *target))));
    }

    /// Records that the file's contents change (law 2).
    pub(crate) fn bump_data_version(&self) {
        self.data_version.fetch_add(1, Ordering::AcqRel);
    }

    /// Allows readahead while the result is held, if the file's contents still have this version
    /// (law 3).
    pub(crate) fn begin_readahead(&self, data_version: u64) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.readahead.read();
        (self.data_version() == data_version).then_some(guard)
    }

    /// Waits for the threads that read ahead. None begins with an earlier version afterwards
    /// (law 3).
    pub(crate) fn wait_for_readahead(&self) {
        self.bump_data_version();
        drop(self.readahead.write());
    }

    /// Records that the file's items in the tree have changed (law 4).
    pub(crate) fn bump_items_version(&self) {
        self.items_version.store(next_items_version(), Ordering::Release);
    }

    /// Makes the file look up again where it may write in place, because its extents are about to
    /// be shared (law 6). The caller holds the inode lock exclusively.
    pub(crate) fn forget_write_targets(&self) {
        let _items = self.lock_items_exclusive();
        self.bump_items_version();
    }

    /// Records that pending extents were merged. Targets in new space stay cached: such a range
    /// goes to new space again.
    pub(crate) fn bump_items_version_after_merge(&self) {
        let mut cached = self.targets.write();
        let old_version = self.items_version.swap(next_items_version(), Ordering::AcqRel);
        if cached.version.items == old_version {
            cached.version.items = self.items_version();
            cached.runs.retain(|_, (_, target)| *target == Target::New);
        }
    }

    /// Returns where the newest data at the start of `range` is.
    pub(crate) fn layer(&self, range: &Range<u64>, checksums: &mut Vec<u8>) -> Layer {
        let overlay = self.overlay();
        match overlay.find(range.start, range.end) {
            Found::Dirty { start, bytes } => {
                Layer::Dirty { bytes, skip: in_memory(range.start - start) }
            }
            Found::Pending { start, pending, end } => {
                let end = end.min(range.end);
                if let Place::Compressed { extent, skip } = pending.place {
                    checksums.extend_from_slice(overlay.compressed_checksums(&extent));
                    return Layer::Compressed { extent, skip: skip + (range.start - start), end };
                }
                let each = pending.checksum_bytes();
                let first = in_memory((range.start - start) / SECTOR_BYTES);
                let last = in_memory((end - start).div_ceil(SECTOR_BYTES));
                let found = pending.checksums.get(first * each..last * each);
                checksums.extend_from_slice(found.unwrap_or_default());
                let logical = Logical(pending.place.logical().0 + (range.start - start));
                Layer::OnDisk { logical, end, has_checksums: each > 0 }
            }
            Found::Gap { end } => Layer::Tree { end },
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight().end();
    }
}

fn next_items_version() -> u64 {
    NEXT_ITEMS_VERSION.fetch_add(1, Ordering::Relaxed)
}
