//! Edits: planned changes of the items of files, applied in the running transaction.
//!
//! ```text
//! plan, without a handle      reads the items and computes their changes
//! apply, with one handle      extent items and inode items of many files, sorted, in one pass;
//!                             references; checksums
//! finish, without a handle    the overlays drop what the trees show now
//! ```
//!
//! An edit that only merges pending extents may share the file with readers and direct writes:
//! until it is finished, the overlay shows the extents that it merges.
//!
//! Laws:
//!
//! 1. A plan stays valid until it is applied: no other thread changes the items of a file whose
//!    state is borrowed mutably, or merges extents that a shared merge has marked.
//! 2. Everything that reads data, allocates space or searches for items precedes the handle. While
//!    the handle is open only the trees are changed, in blocks that planning has read into memory.
//! 3. An edit is atomic: its items, the inode's size and byte count, the references and the
//!    checksums change in one transaction. When that fails half-way, nothing of it is committed.
//! 4. When a file gets more blocks, its old end is recorded as changed for the log. An earlier log
//!    of the transaction may have cut the file there, and a replay of the next log must not find
//!    what the last commit has after it.

use crate::error::FileError;
use crate::merge::extent_item::{ExtentItem, Reference};
use crate::merge::items;
use crate::merge::rewrite;
use crate::overlay::{Overlay, PendingExtent};
use crate::state::{FileState, InodeUpdate};
use butternut_format::extent::DataRef;
use butternut_format::feature::{self, Feature};
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino, Logical, SECTOR_BYTES, TreeId, length};
use butternut_tree::{Change, Handle, Need, ReservationLevel, TreeError};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A change of one file, as the caller describes it.
#[derive(Debug, Default)]
pub(crate) struct Draft<'a> {
    /// Ranges whose items are dropped, in file order.
    pub(crate) dropped: Vec<Range<u64>>,
    /// Items that are inserted. They lie in dropped ranges.
    pub(crate) inserted: Vec<ExtentItem<'a>>,
    /// Ranges that must have items, if the volume has items for holes.
    pub(crate) covered: Vec<Range<u64>>,
    /// The size that the inode item gets, in bytes.
    pub(crate) size: u64,
    /// Flags that are added to the inode.
    pub(crate) flags: InodeFlags,
    /// Starts of extents that nothing references yet, ascending.
    pub(crate) new_extents: Vec<Logical>,
    pub(crate) checksums: Vec<(Logical, Vec<u8>)>,
    /// Starts of the pending extents that are in the trees afterwards.
    pub(crate) pending_extents: Vec<u64>,
    /// The first block, which is dirty, is in the tree afterwards.
    pub(crate) is_inline: bool,
}

/// A planned change of one file.
#[derive(Debug)]
pub(crate) struct Edit {
    changes: Vec<(u64, Option<NewItem>)>,
    references: Vec<(Reference, i64)>,
    bytes_used: i64,
    size: u64,
    flags: InodeFlags,
    new_extents: Vec<Logical>,
    checksums: Vec<(Logical, Vec<u8>)>,
    pending_extents: Vec<u64>,
    is_inline: bool,
    /// Incompatible features that the items need.
    features: Vec<Feature>,
}

/// An extent item to insert.
#[derive(Debug)]
struct NewItem {
    extent: FileExtent<'static>,
    inline: Option<Vec<u8>>,
    is_new: bool,
}

impl NewItem {
    fn of(item: ExtentItem<'_>) -> Self {
        let FileExtent { generation, ram_bytes, compression, body } = item.extent;
        let (body, inline) = match body {
            ExtentBody::Inline(bytes) => (ExtentBody::Inline(&[][..]), Some(bytes.to_vec())),
            ExtentBody::Regular { disk, run } => (ExtentBody::Regular { disk, run }, None),
            ExtentBody::Hole { num_bytes } => (ExtentBody::Hole { num_bytes }, None),
            ExtentBody::Preallocated { disk, run } => {
                (ExtentBody::Preallocated { disk, run }, None)
            }
        };
        let extent = FileExtent { generation, ram_bytes, compression, body };
        Self { extent, inline, is_new: item.is_new }
    }

    fn bytes(&self, generation: Generation) -> Vec<u8> {
        let mut extent = self.extent;
        if self.is_new {
            extent.generation = generation;
        }
        if let Some(inline) = &self.inline {
            return FileExtent { body: ExtentBody::Inline(inline), ..extent }.to_bytes();
        }
        extent.to_bytes()
    }
}

impl Edit {
    /// Start of the last pending extent that it merges.
    pub(crate) fn last_pending(&self) -> Option<u64> {
        self.pending_extents.last().copied()
    }

    /// Whether the trees show more of the file afterwards than a file of `size_in_tree` bytes.
    pub(crate) fn makes_progress(&self, size_in_tree: u64) -> bool {
        !self.pending_extents.is_empty() || self.is_inline || self.size != size_in_tree
    }

    /// Upper bound of the items that it changes.
    pub(crate) fn items(&self) -> u32 {
        let items = 1 + self.changes.len() + self.references.len();
        u32::try_from(items).unwrap_or(u32::MAX)
    }

    fn inode(&self, old: &Inode, generation: Generation) -> Inode {
        let bytes_used = old.bytes_used.saturating_add_signed(self.bytes_used);
        Inode {
            size: self.size,
            bytes_used,
            transid: generation,
            flags: old.flags.with(self.flags),
            ..*old
        }
    }
}

impl FileState {
    /// Plans an edit: reads the items that it touches.
    pub(crate) fn plan(&self, draft: Draft<'_>) -> Result<Edit, FileError> {
        let covered = if self.has_hole_items() { draft.covered } else { Vec::new() };
        let mut ranges: Vec<Range<u64>> = draft.dropped.iter().chain(&covered).cloned().collect();
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        let mut features: Vec<Feature> = Vec::new();
        for item in &draft.inserted {
            features.extend(feature_of(item.extent.compression).filter(|f| !features.contains(f)));
        }
        let old = items::touching(&self.view, &ranges)?;
        let rewrite = rewrite::plan(&old, &draft.dropped, draft.inserted, &covered)
            .map_err(|refused| self.view.corrupt(refused))?;
        // Reads the inode item's leaf into memory (law 2).
        self.inode()?;
        let changes = rewrite.changes.into_iter().map(|(at, item)| (at, item.map(NewItem::of)));
        Ok(Edit {
            changes: changes.collect(),
            references: rewrite.references,
            bytes_used: rewrite.bytes_used,
            size: draft.size,
            flags: draft.flags,
            new_extents: draft.new_extents,
            checksums: draft.checksums,
            pending_extents: draft.pending_extents,
            is_inline: draft.is_inline,
            features,
        })
    }

    /// Reads the inode item.
    pub(crate) fn inode(&self) -> Result<Inode, FileError> {
        let key = inode_key(self.ino());
        let item = self.view.tree().find(&key)?;
        let missing = FileError::Stale { tree: self.tree_id(), ino: self.ino() };
        let item = item.ok_or(missing)?;
        Inode::check(item.data())
            .map_err(|refused| self.view.corrupt(refused.at(format_args!("item {key}"))))
    }

    /// Records that an edit is in the trees, in the state that readers share. `finish_edit` removes
    /// from the overlay what the tree shows now. The items version has changed before: a reader
    /// that does not find a pending extent any more must see the new items.
    fn finish_edit_shared(&self, edit: &Edit, finish_edit: impl FnOnce(&mut Overlay)) {
        finish_edit(&mut self.shared.overlay_mut_same_data());
        let bytes = self.bytes_in_tree.load(Ordering::Acquire);
        let bytes = bytes.saturating_add_signed(edit.bytes_used);
        self.bytes_in_tree.store(bytes, Ordering::Release);
    }

    /// Records that an edit is in the trees.
    pub(crate) fn finish_edit(&mut self, edit: &Edit) {
        self.finish_edit_shared(edit, |overlay| overlay.drop_merged(&edit.pending_extents));
        if edit.is_inline {
            self.finish_inline();
            self.compressed_inline = None;
        }
        self.size_in_tree = edit.size;
        self.flags = self.flags.with(edit.flags);
        if edit.flags.contains(InodeFlags::NOCOMPRESS) {
            self.gave_up_compression = false;
        }
        self.shape = None;
    }
}

/// An edit of one file, to be applied.
pub(crate) struct FileEdit<'a, 'b> {
    pub(crate) file: &'a mut FileState,
    pub(crate) edit: Edit,
    pub(crate) update: &'a mut (dyn FnMut(&mut Inode) + 'b),
}

/// The part of [`FileEdit`] that the change of the trees needs.
struct TreeEdit<'a, 'b> {
    file: &'a FileState,
    edit: &'a Edit,
    update: &'a mut (dyn FnMut(&mut Inode) + 'b),
    /// It merges pending extents, and may do other things too.
    is_merge: bool,
}

/// Applies edits of several files of one volume in one transaction, and finishes them.
pub(crate) fn apply(
    files: &mut [FileEdit<'_, '_>],
    level: ReservationLevel,
) -> Result<Option<Generation>, FileError> {
    let rows = files.iter_mut().map(|applied| {
        let FileEdit { file, edit, update } = applied;
        let is_merge = !edit.pending_extents.is_empty();
        TreeEdit { file, edit, update: &mut **update, is_merge }
    });
    let generation = apply_to_trees(&mut rows.collect::<Vec<_>>(), level)?;
    for applied in files {
        applied.file.finish_edit(&applied.edit);
        applied.file.trim_metadata();
    }
    Ok(generation)
}

/// Applies a shared merge, and finishes it.
pub(crate) fn apply_shared(
    file: &FileState,
    edit: &Edit,
    update: InodeUpdate<'_>,
    merging: &[(u64, PendingExtent)],
) -> Result<Option<Generation>, FileError> {
    let row = TreeEdit { file, edit, update, is_merge: true };
    let generation = apply_to_trees(&mut [row], ReservationLevel::Normal)?;
    file.finish_edit_shared(edit, |overlay| overlay.finish_merging(merging));
    file.trim_metadata();
    Ok(generation)
}

fn apply_to_trees(
    rows: &mut [TreeEdit<'_, '_>],
    level: ReservationLevel,
) -> Result<Option<Generation>, FileError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let forest = first.file.source.forest().clone();
    // A change in memory that a panic interrupted must not be committed: the join below fails then.
    if rows.iter().any(|row| row.file.shared.is_poisoned()) {
        forest.fail_after_panic();
    }
    let items = rows.iter().fold(0_u32, |sum, row| sum.saturating_add(row.edit.items()));
    // At the normal level, the reservation for the items has the blocks that the commit copies for
    // the references, and the commit reserve has them before it ends.
    let references = if level == ReservationLevel::Normal { 0 } else { references_of(rows) };
    let handle = forest.join(Need { level, ..Need::items(items).references(references) })?;
    let generation = handle.generation();
    change_trees(&handle, rows)?;
    Ok(Some(generation))
}

fn references_of(rows: &[TreeEdit<'_, '_>]) -> u32 {
    let count = rows.iter().map(|row| row.edit.references.len()).fold(0, usize::saturating_add);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Changes the trees (law 3).
fn change_trees(handle: &Handle, rows: &mut [TreeEdit<'_, '_>]) -> Result<(), FileError> {
    let mut changes: Vec<(TreeId, Change)> = Vec::new();
    let mut old_ends: Vec<(TreeId, Key)> = Vec::new();
    // An item that cannot be read fails the transaction before the caller of any row takes its own
    // for written.
    let old = rows.iter().map(|row| row.file.inode()).collect::<Result<Vec<_>, _>>()?;
    for (row, old) in rows.iter_mut().zip(old) {
        row.edit.features.iter().for_each(|feature| handle.add_feature(*feature));
        let (tree, ino) = (row.file.tree_id(), row.file.ino());
        let mut inode = row.edit.inode(&old, handle.generation());
        old_ends.extend(grown_from(&old, &inode).map(|at| {
            // The log must have what follows the old end (law 4), also where that is a hole.
            (tree, Key::new(ino.0, ItemType::EXTENT_DATA, at))
        }));
        (row.update)(&mut inode);
        let to = Some(inode.to_bytes().to_vec());
        changes.push((tree, Change { key: inode_key(ino), to }));
        for (at, item) in &row.edit.changes {
            let key = Key::new(ino.0, ItemType::EXTENT_DATA, *at);
            let to = item.as_ref().map(|item| item.bytes(handle.generation()));
            changes.push((tree, Change { key, to }));
        }
    }
    changes.sort_by_key(|(tree, change)| (*tree, change.key));
    for row in &*rows {
        queue_references(handle, row);
    }
    put_items(handle, rows, changes, &old_ends)
        .map_err(|error| FileError::from(handle.abort(error)))
}

/// Returns where the blocks of a file ended that has more of them now.
fn grown_from(old: &Inode, new: &Inode) -> Option<u64> {
    let end = |inode: &Inode| inode.size.checked_next_multiple_of(SECTOR_BYTES);
    let (old, new) = (end(old)?, end(new).unwrap_or(u64::MAX));
    (old < new).then_some(old)
}

/// Changes the items of the files, and their versions. References and checksums are queued before,
/// so a reader that finds an item finds its checksums too.
fn put_items(
    handle: &Handle,
    rows: &[TreeEdit<'_, '_>],
    changes: Vec<(TreeId, Change)>,
    old_ends: &[(TreeId, Key)],
) -> Result<(), TreeError> {
    let _exclusive: Vec<_> =
        rows.iter().map(|row| row.file.shared.lock_items_exclusive()).collect();
    let mut rest = changes.into_iter().peekable();
    while let Some((tree, first)) = rest.next() {
        let mut batch = vec![first];
        while let Some((_, next)) = rest.next_if(|(next, _)| *next == tree) {
            batch.push(next);
        }
        handle.tree(tree)?.merge(&batch)?;
    }
    for (tree, end) in old_ends {
        handle.tree(*tree)?.note_for_log(end);
    }
    for row in rows {
        let shared = &row.file.shared;
        if row.is_merge {
            shared.bump_items_version_after_merge();
        } else {
            shared.bump_items_version();
        }
    }
    Ok(())
}

/// Queues the changes of references and checksums for the commit. From now on no lookup finds the
/// checksums that an earlier extent had in the same space; no reader has found the new items yet.
fn queue_references(handle: &Handle, row: &TreeEdit<'_, '_>) {
    let edit = row.edit;
    for (Reference { extent, offset }, by) in &edit.references {
        let (start, bytes) = (extent.logical, extent.bytes);
        let reference =
            DataRef { tree: row.file.tree_id(), ino: row.file.ino(), offset: *offset, count: 1 };
        let mut by = *by;
        if by > 0 && edit.new_extents.binary_search(&start).is_ok() {
            handle.add_data_extent(start, bytes, reference);
            by -= 1;
        }
        for _ in 0..by {
            handle.add_data_ref(start, bytes, reference);
        }
        for _ in by..0 {
            handle.drop_data_ref(start, bytes, reference);
        }
    }
    for (start, checksums) in &edit.checksums {
        handle.put_checksums(*start, checksums);
    }
    let cache = row.file.source.checksums();
    cache.forget(edit.checksums.iter().map(|(start, checksums)| {
        start.0..start.0 + length(checksums.len() / cache.checksum_bytes()) * SECTOR_BYTES
    }));
}

/// The incompatible feature that extents of an algorithm need. Every btrfs implementation reads
/// zlib.
fn feature_of(compression: Compression) -> Option<Feature> {
    match compression {
        Compression::None | Compression::Zlib => None,
        Compression::Lzo => Some(feature::COMPRESS_LZO),
        Compression::Zstd => Some(feature::COMPRESS_ZSTD),
    }
}

fn inode_key(ino: Ino) -> Key {
    Key::new(ino.0, ItemType::INODE_ITEM, 0)
}

#[cfg(test)]
mod tests;
