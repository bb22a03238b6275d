//! Merges: pending extents of many files, moved from their overlays into the trees.
//!
//! Laws:
//!
//! 1. A merge is split into steps that a transaction can reserve for. Each step leaves a state that
//!    the file might have had: until the last step, its size on disk covers only what is in the
//!    tree, and never reaches past a block that is dirty in memory, which a partial merge leaves
//!    dirty. A step contains all pending extents that show parts of one compressed extent, or none
//!    (law 6 of [`crate::overlay`]).
//! 2. Files share transactions, and tree searches for neighbouring leaves.
//! 3. The failure of one file does not affect the others.
//! 4. A shared merge begins with the inode lock held exclusively, so that no thread reads the space
//!    that it is about to free, and continues with the lock shared
//!    ([`FileState::begin_shared_merge`], [`FileState::merge_shared`]). A thread that reads ahead
//!    without the lock is in a read epoch (law 3 of [`crate::shared_file`]): no merge waits for it.
//! 5. On a full volume a step may be as small as one pending extent in place of one item. A pending
//!    extent over many items is split for that. What a step drops counts for the commit, and the
//!    transaction commits between steps where it needs to. A step without space has committed in
//!    vain, so the size of steps grows after several that had space ([`step_size`]).

pub(crate) mod dropped_extents;
pub(crate) mod edit;
pub(crate) mod extent_item;
pub(crate) mod items;
mod pass;
pub(crate) mod rewrite;
mod step_size;

use crate::error::FileError;
use crate::merge::edit::{Draft, Edit, FileEdit, apply, apply_shared};
use crate::merge::extent_item::ExtentItem;
use crate::merge::step_size::StepSize;
use crate::overlay::{CompressedExtent, PendingExtent, Place};
use crate::state::inline::INLINE_BYTES_MAX;
use crate::state::{FileState, InodeUpdate};
use crate::units::in_memory;
use butternut_format::file_extent::{DiskExtent, ExtentRun, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::units::{Generation, SECTOR_BYTES};
use butternut_pages::WritebackReason;
use butternut_tree::ReservationLevel;
use std::collections::BTreeSet;
use std::ops::Range;

pub use pass::{MergePass, PassStep};

/// Maximum number of items that one step changes (law 1).
const ITEMS_MAX: u32 = 1024;
/// Maximum number of pending extents of one file in one step. A step has a few more where it would
/// otherwise end inside a compressed extent (law 1).
const PENDING_MAX: usize = 256;
/// Maximum number of pending extents in a partial or shared merge. Few with assertions, so that
/// tests have passes of many parts.
const PARTIAL_PENDING_MAX: usize = if cfg!(debug_assertions) { 16 } else { 1024 };
/// Maximum number of pending extents of one file in one step on a full volume (law 5).
const FULL_VOLUME_PENDING_MAX: usize = 8;

/// One of the files of [`FileState::merge_many`].
pub struct MergeFile<'a> {
    /// The file to merge.
    pub file: &'a mut FileState,
    /// Called once for each step, on the inode item that is about to be written.
    pub update: InodeUpdate<'a>,
}

impl std::fmt::Debug for MergeFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merging").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Pending extents that a shared merge writes to the trees.
#[derive(Debug)]
pub struct SharedMerge {
    pending_extents: Vec<(u64, PendingExtent)>,
}

/// Edits that are applied in one transaction.
#[derive(Default)]
struct EditBatch {
    edits: Vec<(usize, Edit)>,
    items: u32,
}

impl FileState {
    /// Writes all dirty data back, then merges all pending extents into the trees in the running
    /// transaction. Returns the generation of the last change. For a clean file it returns `None`,
    /// and does not call `update`.
    ///
    /// # Errors
    /// Data could not be written back, or the trees could not be changed.
    pub fn merge(&mut self, update: InodeUpdate<'_>) -> Result<Option<Generation>, FileError> {
        Self::merge_many(&mut [MergeFile { file: self, update }])
    }

    /// Merges many files of one volume, which share batches and transactions: best in ascending
    /// order of tree and inode number. If some fail, the others are merged all the same. A file
    /// that is clean afterwards keeps no metadata reservation.
    ///
    /// # Errors
    /// The first failure.
    pub fn merge_many(files: &mut [MergeFile<'_>]) -> Result<Option<Generation>, FileError> {
        let mut states: Vec<&mut Self> = files.iter_mut().map(|file| &mut *file.file).collect();
        for state in &mut states {
            // Without space the inline item stays. The merge meets a tree that is unreadable.
            state.retry_leave_inline().ok();
        }
        let mut result = Self::write_back_many(&mut states, WritebackReason::Sync).map(|()| None);
        let mut batch = EditBatch::default();
        for number in 0..files.len() {
            let merged = batch.add(files, number);
            combine(&mut result, merged);
        }
        combine(&mut result, batch.apply(files));
        // The data is on disk and its metadata is reserved, so the global reserve may be used.
        if result.as_ref().is_err_and(FileError::is_no_space) {
            let merged = merge_on_full_volume(files);
            // Blocks that stay dirty are on no disk, and the error is the only one that says so.
            if merged.is_err() || files.iter().all(|merging| merging.file.is_clean()) {
                result = merged;
            }
        }
        for merging in files.iter().filter(|merging| merging.file.is_clean()) {
            merging.file.trim_metadata();
        }
        result
    }

    /// Merges some pending extents; the next call merges the next ones, and starts over at the end
    /// of the file. Dirty blocks stay dirty. Returns the generation of the change.
    ///
    /// # Errors
    /// The trees cannot be read or changed.
    pub fn merge_part(&mut self, update: InodeUpdate<'_>) -> Result<Option<Generation>, FileError> {
        // A file whose size in the tree is still to grow is merged from its start (law 1).
        let from = if self.size() == self.size_in_tree { self.merged_to } else { 0 };
        let (edit, is_last) = self.plan_merge_from(from, PARTIAL_PENDING_MAX)?;
        self.merged_to = match edit.last_pending() {
            Some(last) if !is_last => last.saturating_add(1),
            _ => 0,
        };
        if edit.last_pending().is_none() {
            return Ok(None);
        }
        apply(&mut [FileEdit { file: self, edit, update }], ReservationLevel::Normal)
    }

    /// Begins a shared merge (law 4) of the next pending extents. Returns `None` unless the tree
    /// has the file's size and the extents lie in new space.
    pub fn begin_shared_merge(&mut self) -> Option<SharedMerge> {
        let part = self.begin_shared_merge_from(self.merged_to)?;
        self.merged_to = match part.pending_extents.last() {
            Some((last, _)) if part.pending_extents.len() == PARTIAL_PENDING_MAX => {
                last.saturating_add(1)
            }
            _ => 0,
        };
        (!part.pending_extents.is_empty()).then_some(part)
    }

    /// Begins a shared merge of the first pending extents that end after byte `from`, up to the
    /// first that does not lie in new space. Returns `None` if the file cannot be merged shared.
    fn begin_shared_merge_from(&mut self, from: u64) -> Option<SharedMerge> {
        let is_plain = self.size() == self.size_in_tree
            && !self.gave_up_compression
            && self.compressed_inline.is_none();
        if !is_plain {
            return None;
        }
        let pending_extents =
            self.shared.overlay_mut_same_data().begin_merging(from, PARTIAL_PENDING_MAX);
        self.shape = None;
        Some(SharedMerge { pending_extents })
    }

    /// Merges the extents of a shared merge into the trees. The caller has held the inode lock at
    /// least shared since [`Self::begin_shared_merge`], and changes nothing of the file but by
    /// direct writes. Returns the generation of the change.
    ///
    /// # Errors
    /// The trees cannot be read or changed. The extents then stay in the overlay.
    pub fn merge_shared(
        &self,
        part: &SharedMerge,
        update: InodeUpdate<'_>,
    ) -> Result<Option<Generation>, FileError> {
        let mut draft = self.draft();
        part.pending_extents.iter().for_each(|(start, pending)| draft.add(*start, pending));
        draft.new_extents.sort_unstable();
        let merged = self
            .plan(draft)
            .and_then(|edit| apply_shared(self, &edit, update, &part.pending_extents));
        if merged.is_err() {
            let freed = self.shared.overlay_mut_same_data().abort_merging(&part.pending_extents);
            self.shared.in_flight().defer_free(freed);
        }
        merged
    }

    /// Plans the first step of a merge. Also returns whether it is the only one.
    fn plan_merge(&self, pending_max: usize) -> Result<(Edit, bool), FileError> {
        self.plan_merge_from(0, pending_max)
    }

    /// Plans a step of at most `items_max` items, or as few as possible (law 5). Also returns
    /// whether it is the only one.
    fn plan_small_merge(&mut self, items_max: u32) -> Result<(Edit, bool), FileError> {
        // A step behind a split is that one part: the rest may cover very many items.
        let is_split = self.split_first(items_max)?;
        let mut pending_max = if is_split { 1 } else { FULL_VOLUME_PENDING_MAX };
        loop {
            let planned = self.plan_merge(pending_max)?;
            if planned.0.items() <= items_max || pending_max == 1 {
                return Ok(planned);
            }
            pending_max /= 2;
        }
    }

    /// Splits the first pending extent if it covers too many items for a step of `items_max`.
    /// Returns whether it did. Reads no more items than the step has.
    fn split_first(&mut self, items_max: u32) -> Result<bool, FileError> {
        let first = {
            let overlay = self.shared.overlay();
            let mut pending = overlay.pending_extents();
            pending.next().map(|(start, pending)| start..start.saturating_add(pending.bytes))
        };
        let Some(range) = first else { return Ok(false) };
        // Each old item is a change, and has a reference. One more is behind the part, and the new
        // item, its reference and the inode item are counted, too.
        let count = usize::try_from(items_max.saturating_sub(6) / 2).unwrap_or(usize::MAX);
        let stop = items::stop_after(&self.view, range.clone(), count)?;
        let bytes = (stop - range.start).next_multiple_of(SECTOR_BYTES);
        let is_inside = range.start < stop && range.start + bytes < range.end;
        Ok(is_inside && self.shared.overlay_mut_same_data().split(range.start, bytes))
    }

    /// Plans the first step of a merge of the extents from byte `from` on. Also returns whether it
    /// is the only one.
    fn plan_merge_from(&self, from: u64, pending_max: usize) -> Result<(Edit, bool), FileError> {
        let mut draft = Draft::default();
        let overlay = self.shared.overlay();
        let step = overlay.merge_step(from, pending_max);
        let is_last = from == 0 && step.len() == overlay.pending_count();
        let mut end = 0;
        let mut seen_extents = BTreeSet::new();
        for (start, pending) in step {
            end = start + pending.bytes;
            draft.add(start, pending);
            draft.pending_extents.push(start);
            if let Place::Compressed { extent, .. } = pending.place {
                let logical = extent.disk.logical;
                if seen_extents.insert(logical) {
                    draft.new_extents.push(logical);
                    draft.checksums.push((logical, overlay.compressed_checksums(&extent).to_vec()));
                }
            }
        }
        drop(overlay);
        if self.gave_up_compression {
            draft.flags = InodeFlags::NOCOMPRESS;
        }
        draft.new_extents.sort_unstable();
        let size = self.size();
        let may_be_inline = size <= INLINE_BYTES_MAX || self.compressed_inline.is_some();
        let inline = self.newer_block(0);
        let inline = inline.filter(|(_, backing)| may_be_inline && backing.is_inline());
        let inline = inline.map(|(bytes, _)| bytes);
        // The item of an inline file contains the dirty block; other dirty blocks stay in memory
        // (law 1).
        let dirty = match &inline {
            Some(_) => None,
            None => self.first_newer_past(self.size_in_tree),
        };
        draft.size = match dirty {
            None if is_last => size,
            None => self.size_in_tree.max(end.min(size)),
            Some(dirty) => self.size_in_tree.max(dirty.min(if is_last { size } else { end })),
        };
        if let Some(bytes) = inline.as_deref().and_then(|bytes| bytes.get(..in_memory(size))) {
            let extent = match &self.compressed_inline {
                Some(compressed) => compressed.extent(size),
                None => FileExtent::inline(Generation(0), bytes),
            };
            draft.dropped.push(0..SECTOR_BYTES);
            draft.inserted.push(ExtentItem::new(0, extent));
            draft.is_inline = true;
        }
        draft.covered.push(self.grown(draft.size));
        Ok((self.plan(draft)?, is_last))
    }

    /// Start of the first block that is newer than the disk, of those that reach past `size`.
    fn first_newer_past(&self, size: u64) -> Option<u64> {
        let pages = size / SECTOR_BYTES..u64::MAX;
        self.shared.pages().next_newer(&pages).map(|page| page.saturating_mul(SECTOR_BYTES))
    }

    /// The range of blocks that a file of `size` bytes has beyond the size in the tree.
    pub(crate) fn grown(&self, size: u64) -> Range<u64> {
        let blocks = |size: u64| size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(size);
        let start = blocks(self.size_in_tree);
        start..blocks(size).max(start)
    }

    /// Plans and applies one edit of this file.
    pub(crate) fn apply(
        &mut self,
        draft: Draft<'_>,
        level: ReservationLevel,
        update: InodeUpdate<'_>,
    ) -> Result<Option<Generation>, FileError> {
        let edit = self.plan(draft)?;
        apply(&mut [FileEdit { file: self, edit, update }], level)
    }

    /// A draft that changes nothing.
    pub(crate) fn draft(&self) -> Draft<'static> {
        Draft { size: self.size_in_tree, flags: InodeFlags::default(), ..Draft::default() }
    }
}

impl Draft<'_> {
    /// Adds a pending extent. The caller adds the checksums of a compressed one, once for the
    /// extent.
    fn add(&mut self, start: u64, pending: &PendingExtent) {
        self.dropped.push(start..start + pending.bytes);
        self.inserted.push(ExtentItem::new(start, extent_of(pending.place, pending.bytes)));
        if let Place::New { logical, .. } = pending.place {
            self.new_extents.push(logical);
        }
        if !pending.checksums.is_empty() {
            self.checksums.push((pending.place.logical(), pending.checksums.clone()));
        }
    }
}

impl MergeFile<'_> {
    /// Merges a file on a full volume, in small steps (law 5). Returns `None` if there was nothing
    /// that could be merged.
    fn merge_on_full_volume(&mut self) -> Result<Option<Generation>, FileError> {
        let mut generation = None;
        let mut size = StepSize::default();
        while !self.file.is_clean() {
            let (edit, is_last) = self.file.plan_small_merge(size.items())?;
            if !edit.makes_progress(self.file.size_in_tree) {
                break;
            }
            let (file, update) = (&mut *self.file, &mut *self.update);
            let edits = &mut [FileEdit { file, edit, update }];
            generation = match apply(edits, ReservationLevel::Prereserved) {
                // A step without space has changed nothing.
                Err(error) if error.is_no_space() && size.shrink() => continue,
                applied => applied?,
            };
            size.had_space();
            if is_last {
                // Blocks that are still dirty cannot be written back now.
                break;
            }
        }
        Ok(generation)
    }
}

impl EditBatch {
    /// Adds a file. When the batch is full, it is applied first.
    fn add(
        &mut self,
        files: &mut [MergeFile<'_>],
        number: usize,
    ) -> Result<Option<Generation>, FileError> {
        let mut result = Ok(None);
        while let Some(merging) = files.get(number).filter(|merging| !merging.file.is_clean()) {
            let (edit, is_last) = merging.file.plan_merge(PENDING_MAX)?;
            if self.items.saturating_add(edit.items()) > ITEMS_MAX {
                combine(&mut result, self.apply(files));
            }
            self.items = self.items.saturating_add(edit.items());
            self.edits.push((number, edit));
            if is_last {
                break;
            }
            // The next step of this file is planned on the tree that this one leaves.
            combine(&mut result, self.apply(files));
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Applies the edits of the batch.
    fn apply(&mut self, files: &mut [MergeFile<'_>]) -> Result<Option<Generation>, FileError> {
        self.items = 0;
        let mut edits = std::mem::take(&mut self.edits).into_iter().peekable();
        let mut applied = Vec::with_capacity(edits.len());
        for (number, merging) in files.iter_mut().enumerate() {
            if let Some((_, edit)) = edits.next_if(|(file, _)| *file == number) {
                let (file, update) = (&mut *merging.file, &mut *merging.update);
                applied.push(FileEdit { file, edit, update });
            }
        }
        apply(&mut applied, ReservationLevel::Normal)
    }
}

/// Merges files on a full volume. Space that one file frees may be what another needs, so it
/// repeats while some progress is made.
fn merge_on_full_volume(files: &mut [MergeFile<'_>]) -> Result<Option<Generation>, FileError> {
    loop {
        let (mut generation, mut failed) = (None, None);
        for file in files.iter_mut() {
            match file.merge_on_full_volume() {
                Ok(merged) => generation = merged.or(generation),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if generation.is_none() || !error.is_no_space() => return Err(error),
            Some(_) => {}
            None => return Ok(generation),
        }
    }
}

/// Keeps the first error, or else the last generation.
fn combine(
    result: &mut Result<Option<Generation>, FileError>,
    next: Result<Option<Generation>, FileError>,
) {
    match (&*result, &next) {
        (Ok(_), Err(_) | Ok(Some(_))) => *result = next,
        (Ok(_), Ok(None)) | (Err(_), _) => {}
    }
}

/// The extent item of a pending extent.
fn extent_of(place: Place, bytes: u64) -> FileExtent<'static> {
    let (disk, offset) = match place {
        Place::New { logical, .. } => (DiskExtent { logical, bytes }, 0),
        Place::Preallocated { extent, skip } => (extent, skip),
        Place::Compressed { extent, skip } => {
            let run = ExtentRun { offset: skip, num_bytes: bytes };
            let plain = FileExtent::regular(Generation(0), extent.disk, run);
            let CompressedExtent { ram_bytes, compression, .. } = extent;
            return FileExtent { ram_bytes, compression, ..plain };
        }
    };
    FileExtent::regular(Generation(0), disk, ExtentRun { offset, num_bytes: bytes })
}

#[cfg(test)]
mod tests;
