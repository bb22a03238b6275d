//! Merges: what is down of many files, into the trees.
//!
//! Laws:
//!
//! 1. A merge goes in pieces that a transaction can reserve for. Each piece leaves the file as it
//!    might have been: its size reaches no further than what is in the tree, until the last; and
//!    never past a block that is dirty in memory, which a merge of a part leaves there.
//! 2. Files share transactions, and walks over leaves.
//! 3. One file's failure is its own.
//! 4. A part of a merge begins with the file alone, so that nobody reads what it is about to free,
//!    and goes on with the file shared ([`FileState::start_part`], [`FileState::merge_shared`]).

use crate::dirty::Backing;
use crate::edit::{Applied, Draft, Edit, apply, apply_shared};
use crate::error::FileError;
use crate::overlay::{PackedExtent, Patch, Place};
use crate::piece::Piece;
use crate::source::in_memory;
use crate::state::{FileState, Stamp};
use butternut_format::file_extent::{DiskExtent, ExtentRun, FileExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::units::{Generation, SECTOR_BYTES};
use butternut_pages::Reason;
use butternut_tree::Purse;
use std::collections::BTreeSet;
use std::ops::Range;

/// Items of one piece of a merge (law 1).
const ITEMS_MAX: u32 = 1024;
/// Patches of one file in one piece.
const PATCHES_MAX: usize = 256;
/// Patches of a part of a merge.
const PART_PATCHES_MAX: usize = 1024;
/// Patches of one file in one piece, where space is short.
const SQUEEZED_PATCHES_MAX: usize = 8;

/// One of the files of [`FileState::merge_many`].
pub struct Merging<'a> {
    pub file: &'a mut FileState,
    pub stamp: Stamp<'a>,
}

impl std::fmt::Debug for Merging<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merging").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Patches that are on their way into the trees while others go on with the file.
#[derive(Debug)]
pub struct MergePart {
    patches: Vec<(u64, Patch)>,
}

/// What is to be applied together.
#[derive(Default)]
struct Batch {
    edits: Vec<(usize, Edit)>,
    items: u32,
}

impl FileState {
    /// Flushes, then brings the trees up to date in the running transaction. Says in which one the
    /// last change is; a clean file has none, and is not stamped.
    pub fn merge(&mut self, stamp: Stamp<'_>) -> Result<Option<Generation>, FileError> {
        Self::merge_many(&mut [Merging { file: self, stamp }])
    }

    /// Merges many files of one volume, sharing batches and transactions: best in ascending order
    /// of tree and inode. The first failure is returned; the others are merged all the same.
    pub fn merge_many(files: &mut [Merging<'_>]) -> Result<Option<Generation>, FileError> {
        let mut states: Vec<&mut Self> = files.iter_mut().map(|file| &mut *file.file).collect();
        let mut result = Self::flush_many(&mut states, Reason::Sync).map(|()| None);
        let mut batch = Batch::default();
        for number in 0..files.len() {
            let merged = batch.add(files, number);
            keep(&mut result, merged);
        }
        keep(&mut result, batch.apply(files));
        // The data is down and was promised a place: what is set aside for such needs is used.
        if result.as_ref().is_err_and(FileError::is_no_space) {
            result = squeeze(files);
        }
        result
    }

    /// Merges a part of what is down, and the next part with the next call, round and round. What
    /// is dirty stays so. Says in which transaction.
    pub fn merge_part(&mut self, stamp: Stamp<'_>) -> Result<Option<Generation>, FileError> {
        // A file that is still to grow in its tree grows from its start (law 1).
        let from = if self.size() == self.size_in_tree { self.merged_to } else { 0 };
        let (edit, is_last) = self.plan_merge_from(from, PART_PATCHES_MAX)?;
        self.merged_to = match edit.last_patch() {
            Some(last) if !is_last => last.saturating_add(1),
            _ => 0,
        };
        if edit.last_patch().is_none() {
            return Ok(None);
        }
        apply(&mut [Applied { file: self, edit, stamp }], Purse::Free)
    }

    /// Begins a part of a merge that shares the file (law 4), if the next part can be one: the tree
    /// has the file's size, and the patches lie in new space.
    pub fn start_part(&mut self) -> Option<MergePart> {
        let is_plain =
            self.size() == self.size_in_tree && !self.has_given_up && self.packed_inline.is_none();
        if !is_plain {
            return None;
        }
        let patches = self.live.overlay_to_settle().start_merging(self.merged_to, PART_PATCHES_MAX);
        self.merged_to = match patches.last() {
            Some((last, _)) if patches.len() == PART_PATCHES_MAX => last.saturating_add(1),
            _ => 0,
        };
        self.shape = None;
        (!patches.is_empty()).then_some(MergePart { patches })
    }

    /// Brings a part into the trees. The caller has shared the file since it began, and changes
    /// nothing of it but by direct writes. Says in which transaction.
    pub fn merge_shared(
        &self,
        part: &MergePart,
        stamp: Stamp<'_>,
    ) -> Result<Option<Generation>, FileError> {
        let mut draft = self.draft();
        part.patches.iter().for_each(|(start, patch)| draft.add(*start, patch));
        draft.fresh.sort_unstable();
        let merged =
            self.plan(draft).and_then(|edit| apply_shared(self, &edit, stamp, &part.patches));
        if merged.is_err() {
            let freed = self.live.overlay_to_settle().stop_merging(&part.patches);
            self.live.traffic().retire(freed);
        }
        merged
    }

    /// Plans the first piece of what is newer than the tree. Says whether it is all.
    fn plan_merge(&self, patches_max: usize) -> Result<(Edit, bool), FileError> {
        self.plan_merge_from(0, patches_max)
    }

    /// The same for what is newer from a place in the file on.
    fn plan_merge_from(&self, from: u64, patches_max: usize) -> Result<(Edit, bool), FileError> {
        let mut draft = Draft::default();
        let overlay = self.live.overlay();
        let is_last = from == 0 && overlay.patch_count() <= patches_max;
        let mut end = 0;
        let mut named = BTreeSet::new();
        for (start, patch) in overlay.patches_from(from).take(patches_max.max(1)) {
            end = start + patch.bytes;
            draft.add(start, patch);
            draft.patches.push(start);
            if let Place::Packed { extent, .. } = patch.place {
                let logical = extent.disk.logical;
                if !overlay.is_named(&extent) && named.insert(logical) {
                    draft.fresh.push(logical);
                    draft.sums.push((logical, overlay.packed_digests(&extent).to_vec()));
                }
            }
        }
        drop(overlay);
        let inline = self.newer_block(0).filter(|(_, backing)| *backing == Backing::Inline);
        let inline = inline.map(|(bytes, _)| bytes);
        if self.has_given_up {
            draft.flags = InodeFlags::NOCOMPRESS;
        }
        draft.fresh.sort_unstable();
        let size = self.size();
        // The item of an inline file has the dirty block; others stay in memory (law 1).
        let dirty = match &inline {
            Some(_) => None,
            None => self.first_newer_behind(self.size_in_tree),
        };
        draft.size = match dirty {
            None if is_last => size,
            None => self.size_in_tree.max(end.min(size)),
            Some(dirty) => self.size_in_tree.max(dirty.min(if is_last { size } else { end })),
        };
        if let Some(bytes) = inline.as_deref().and_then(|bytes| bytes.get(..in_memory(size))) {
            let extent = match &self.packed_inline {
                Some(packed) => packed.extent(size),
                None => FileExtent::inline(Generation(0), bytes),
            };
            draft.gone.push(0..SECTOR_BYTES);
            draft.come.push(Piece::new(0, extent));
            draft.is_inline = true;
        }
        draft.covered.push(self.grown(draft.size));
        Ok((self.plan(draft)?, is_last))
    }

    /// Where the first block starts that is newer than the disk, of those that reach behind `size`.
    fn first_newer_behind(&self, size: u64) -> Option<u64> {
        let pages = size / SECTOR_BYTES..u64::MAX;
        self.live.pages().next_newer(&pages).map(|page| page.saturating_mul(SECTOR_BYTES))
    }

    /// Blocks that the file has more, with `size`, than its tree knows.
    pub(crate) fn grown(&self, size: u64) -> Range<u64> {
        let blocks = |size: u64| size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(size);
        let start = blocks(self.size_in_tree);
        start..blocks(size).max(start)
    }

    /// Applies one edit of this file.
    pub(crate) fn apply(
        &mut self,
        draft: Draft<'_>,
        purse: Purse,
        stamp: Stamp<'_>,
    ) -> Result<Option<Generation>, FileError> {
        let edit = self.plan(draft)?;
        apply(&mut [Applied { file: self, edit, stamp }], purse)
    }

    /// A draft that changes nothing.
    pub(crate) fn draft(&self) -> Draft<'static> {
        Draft { size: self.size_in_tree, flags: InodeFlags::default(), ..Draft::default() }
    }
}

impl Draft<'_> {
    /// Adds what a patch shows; of a packed extent, but for its first mention.
    fn add(&mut self, start: u64, patch: &Patch) {
        self.gone.push(start..start + patch.bytes);
        self.come.push(Piece::new(start, extent_of(patch.place, patch.bytes)));
        if let Place::New { logical, .. } = patch.place {
            self.fresh.push(logical);
        }
        if !patch.digests.is_empty() {
            self.sums.push((patch.place.logical(), patch.digests.clone()));
        }
    }
}

impl Merging<'_> {
    /// Merges a file on a full volume, little by little.
    fn squeeze(&mut self) -> Result<Option<Generation>, FileError> {
        let mut generation = None;
        while !self.file.is_clean() {
            let (edit, is_last) = self.file.plan_merge(SQUEEZED_PATCHES_MAX)?;
            let (file, stamp) = (&mut *self.file, &mut *self.stamp);
            generation = apply(&mut [Applied { file, edit, stamp }], Purse::Promise)?;
            if is_last {
                // What is dirty still cannot be written back now.
                break;
            }
        }
        Ok(generation)
    }
}

impl Batch {
    /// Adds a file; whatever does not fit is applied at once.
    fn add(
        &mut self,
        files: &mut [Merging<'_>],
        number: usize,
    ) -> Result<Option<Generation>, FileError> {
        let mut result = Ok(None);
        while let Some(merging) = files.get(number).filter(|merging| !merging.file.is_clean()) {
            let (edit, is_last) = merging.file.plan_merge(PATCHES_MAX)?;
            if self.items.saturating_add(edit.items()) > ITEMS_MAX {
                keep(&mut result, self.apply(files));
            }
            self.items = self.items.saturating_add(edit.items());
            self.edits.push((number, edit));
            if is_last {
                break;
            }
            // The next piece of this file is planned on what this one leaves.
            keep(&mut result, self.apply(files));
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Applies what was gathered.
    fn apply(&mut self, files: &mut [Merging<'_>]) -> Result<Option<Generation>, FileError> {
        self.items = 0;
        let mut edits = std::mem::take(&mut self.edits).into_iter().peekable();
        let mut applied = Vec::with_capacity(edits.len());
        for (number, merging) in files.iter_mut().enumerate() {
            if let Some((_, edit)) = edits.next_if(|(file, _)| *file == number) {
                let (file, stamp) = (&mut *merging.file, &mut *merging.stamp);
                applied.push(Applied { file, edit, stamp });
            }
        }
        apply(&mut applied, Purse::Free)
    }
}

/// Merges files on a full volume. What one sets free may be what another needs.
fn squeeze(files: &mut [Merging<'_>]) -> Result<Option<Generation>, FileError> {
    loop {
        let (mut generation, mut failed) = (None, None);
        for file in files.iter_mut() {
            match file.squeeze() {
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
fn keep(
    result: &mut Result<Option<Generation>, FileError>,
    next: Result<Option<Generation>, FileError>,
) {
    match (&*result, &next) {
        (Ok(_), Err(_) | Ok(Some(_))) => *result = next,
        (Ok(_), Ok(None)) | (Err(_), _) => {}
    }
}

/// The item of a run that is on disk.
fn extent_of(place: Place, bytes: u64) -> FileExtent<'static> {
    let (disk, offset) = match place {
        Place::New { logical, .. } => (DiskExtent { logical, bytes }, 0),
        Place::SetAside { extent, skip } => (extent, skip),
        Place::Packed { extent, skip } => {
            let run = ExtentRun { offset: skip, num_bytes: bytes };
            let plain = FileExtent::regular(Generation(0), extent.disk, run);
            let PackedExtent { ram_bytes, compression, .. } = extent;
            return FileExtent { ram_bytes, compression, ..plain };
        }
    };
    FileExtent::regular(Generation(0), disk, ExtentRun { offset, num_bytes: bytes })
}
