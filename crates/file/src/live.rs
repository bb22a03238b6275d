//! [`Live`]: what the readers of a file that is being written share with its writer.
//!
//! Laws:
//!
//! 1. Reads under the caller's shared lock see one state: only the writer, who has that lock
//!    alone, changes anything here; and direct writes, block by block whole, as they land
//!    ([`crate::direct`]).
//! 2. Every change of what the file reads as changes [`Live::version`]: what was read ahead of a
//!    change can be told from what was read behind it.
//! 3. Whoever reads ahead without the caller's lock keeps [`Live::read_ahead`] meanwhile. Before
//!    space that the file shows can become another's, its writer waits for those who do
//!    ([`Live::quiesce`]): nobody ever reads a block that somebody else writes.
//! 4. Every change of the file's items in the tree changes [`Live::stamp`], and no two states of
//!    any file ever have the same stamp: maps that are cached under one are never out of date.
//! 5. What readers look up in the tree they look up while its items stand still
//!    ([`Live::still_items`]): a merge that shares the file changes them ([`Live::changing_items`])
//!    in several steps, and only where the overlay shows something newer.
//! 6. What is known under a stamp of where a range is to be written stays true: before others can
//!    come to share what is the file's alone, the stamp changes.
//!
//! The lock of the overlay is held for a look or a change, never over I/O or a tree search.

use crate::error_sequence::ErrorSequence;
use crate::overlay::{Found, Overlay, PackedExtent, Place};
use crate::place::Target;
use crate::source::in_memory;
use crate::traffic::Traffic;
use butternut_format::units::{Logical, SECTOR_BYTES};
use butternut_pages::FilePages;
use butternut_sys::frames::Frame;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Runs of which it is known where they are to be written, at most.
const RUNS_MAX: usize = 16 << 10;

/// The next stamp. No file that cannot change has one (they are 0).
static NEXT_STAMP: AtomicU64 = AtomicU64::new(1);

/// What readers share with the writer of a file.
#[derive(Debug)]
pub(crate) struct Live {
    overlay: RwLock<Overlay>,
    pages: FilePages,
    size: AtomicU64,
    has_sums: AtomicBool,
    version: AtomicU64,
    stamp: AtomicU64,
    /// Held shared by those who read ahead (law 3).
    ahead: RwLock<()>,
    /// Held shared by those who read the file's items, alone by who changes them (law 5).
    items: RwLock<()>,
    traffic: Traffic,
    /// After a panic: each run is true by itself, and the stamp that they are of is set first.
    targets: RwLock<KnownTargets>,
    /// Brought down since the state was made: tells large files from small ones.
    bytes_written: AtomicU64,
    errors: ErrorSequence,
}

/// Where runs of the file are to be written (law 6): start -> end, and the target.
#[derive(Debug, Default)]
struct KnownTargets {
    stamp: u64,
    runs: BTreeMap<u64, (u64, Target)>,
}

/// What a read finds above the tree.
#[derive(Debug)]
pub(crate) enum Layer {
    /// From byte `skip` of a block in memory.
    Dirty { bytes: Frame, skip: usize },
    /// On disk, from `logical` on, up to byte `end` of the file. Digests are appended for every
    /// sector that this touches, if there are any.
    Written { logical: Logical, end: u64, has_digests: bool },
    /// From byte `skip` of what a packed extent holds, up to byte `end` of the file. The digests of
    /// its sectors are appended.
    Packed { extent: PackedExtent, skip: u64, end: u64 },
    /// Whatever the tree says, up to byte `end` of the file.
    Tree { end: u64 },
}

impl Live {
    pub(crate) fn new(pages: FilePages, size: u64, has_sums: bool) -> Self {
        Self {
            overlay: RwLock::new(Overlay::new(pages.clone())),
            pages,
            size: AtomicU64::new(size),
            has_sums: AtomicBool::new(has_sums),
            version: AtomicU64::new(1),
            stamp: AtomicU64::new(next_stamp()),
            ahead: RwLock::default(),
            items: RwLock::default(),
            traffic: Traffic::default(),
            targets: RwLock::default(),
            bytes_written: AtomicU64::new(0),
            errors: ErrorSequence::default(),
        }
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

    /// Why data of the file was lost.
    pub(crate) fn errors(&self) -> &ErrorSequence {
        &self.errors
    }

    /// Whether data that is written now has checksums; decided while there is none.
    pub(crate) fn has_sums(&self) -> bool {
        self.has_sums.load(Ordering::Acquire)
    }

    pub(crate) fn set_sums(&self, has_sums: bool) {
        self.has_sums.store(has_sums, Ordering::Release);
    }

    /// Whether a thread panicked while it changed the overlay, the items or the pages.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.overlay.is_poisoned() || self.items.is_poisoned() || self.pages.is_poisoned()
    }

    pub(crate) fn overlay(&self) -> RwLockReadGuard<'_, Overlay> {
        self.overlay.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The overlay, to be changed; the file reads otherwise from now on.
    pub(crate) fn overlay_mut(&self) -> RwLockWriteGuard<'_, Overlay> {
        self.touch();
        self.overlay.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The overlay, to lose what the tree has now: the file reads as before.
    pub(crate) fn overlay_to_settle(&self) -> RwLockWriteGuard<'_, Overlay> {
        self.overlay.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kept while the file's items are read (law 5).
    pub(crate) fn still_items(&self) -> RwLockReadGuard<'_, ()> {
        self.items.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kept while the file's items change (law 5).
    pub(crate) fn changing_items(&self) -> RwLockWriteGuard<'_, ()> {
        self.items.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.touch();
        self.size.store(size, Ordering::Release);
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Where a range is to be written, if that is known.
    pub(crate) fn known_target(&self, range: &Range<u64>) -> Option<Target> {
        let known = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        if known.stamp != self.stamp() {
            return None;
        }
        let (start, (end, target)) = known.runs.range(..=range.start).next_back()?;
        (range.end <= *end).then(|| target.advanced(range.start - start))
    }

    /// Takes note of where runs are to be written, as of `stamp`.
    pub(crate) fn learn_targets(&self, stamp: u64, runs: &[(Range<u64>, Target)]) {
        let mut known = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        if known.stamp != stamp || known.runs.len() + runs.len() > RUNS_MAX {
            *known = KnownTargets { stamp, runs: BTreeMap::new() };
        }
        // What is set aside is so until it is written, under the same stamp.
        let lasting =
            runs.iter().filter(|(_, target)| matches!(target, Target::New | Target::Over(_)));
        known.runs.extend(lasting.map(|(range, target)| (range.start, (range.end, *target))));
    }

    /// The file reads otherwise than before (law 2).
    pub(crate) fn touch(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// To be kept while reading ahead, if the file is still as it was in `version` (law 3).
    pub(crate) fn read_ahead(&self, version: u64) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.ahead.read().unwrap_or_else(PoisonError::into_inner);
        (self.version() == version).then_some(guard)
    }

    /// Waits for those who read the file as it was; nobody begins to any more (law 3).
    pub(crate) fn quiesce(&self) {
        self.touch();
        drop(self.ahead.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The tree's items are others than before (law 4).
    pub(crate) fn restamp(&self) {
        self.stamp.store(next_stamp(), Ordering::Release);
    }

    /// The same, where patches were merged: what was to go to new space still is.
    pub(crate) fn restamp_merged(&self) {
        let mut known = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        let was = self.stamp.swap(next_stamp(), Ordering::AcqRel);
        if known.stamp == was {
            known.stamp = self.stamp();
            known.runs.retain(|_, (_, target)| *target == Target::New);
        }
    }

    /// What to read for the start of `range`.
    pub(crate) fn layer(&self, range: &Range<u64>, digests: &mut Vec<u8>) -> Layer {
        let overlay = self.overlay();
        match overlay.find(range.start, range.end) {
            Found::Dirty { start, bytes } => {
                Layer::Dirty { bytes, skip: in_memory(range.start - start) }
            }
            Found::Patch { start, patch, end } => {
                let end = end.min(range.end);
                if let Place::Packed { extent, skip } = patch.place {
                    digests.extend_from_slice(overlay.packed_digests(&extent));
                    return Layer::Packed { extent, skip: skip + (range.start - start), end };
                }
                let each = patch.digest_bytes();
                let first = in_memory((range.start - start) / SECTOR_BYTES);
                let last = in_memory((end - start).div_ceil(SECTOR_BYTES));
                let found = patch.digests.get(first * each..last * each);
                digests.extend_from_slice(found.unwrap_or_default());
                let logical = Logical(patch.place.logical().0 + (range.start - start));
                Layer::Written { logical, end, has_digests: each > 0 }
            }
            Found::Gap { end } => Layer::Tree { end },
        }
    }
}

fn next_stamp() -> u64 {
    NEXT_STAMP.fetch_add(1, Ordering::Relaxed)
}
