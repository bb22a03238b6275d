//! Edits: planned changes of files' items, carried out in the running transaction.
//!
//! ```text
//! plan, without a handle     read the items, see what becomes of them
//! apply, with one handle     extent items and inode items of many files, sorted, in one merge;
//!                            references; checksums
//! settle, without            what the trees say now, the overlays need not say any more
//! ```
//!
//! A merge of patches alone may share the file meanwhile with those who read it and with direct
//! writes: the overlay shows what is merged until that is settled.
//!
//! Laws:
//!
//! 1. Plans stay true until they are applied: nobody else changes the items of a file whose state
//!    is borrowed for changes, or merges what it shares.
//! 2. Everything that reads data, allocates it or searches for items comes before the handle. With
//!    the handle the trees are changed, in blocks that planning has brought into memory.
//! 3. An edit is whole: with its items, the inode's size and byte count, the references and the
//!    checksums change in one transaction. When that fails half-way, nothing of it is committed.

use crate::error::FileError;
use crate::items;
use crate::overlay::{Overlay, Patch};
use crate::piece::{Piece, Reference};
use crate::rewrite;
use crate::state::{FileState, Stamp};
use butternut_format::extent::DataRef;
use butternut_format::feature::{self, Feature};
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Ino, Logical, SECTOR_BYTES, TreeId, length};
use butternut_tree::{Change, Handle, Need, Purse, TreeError};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What becomes of one file, as the caller puts it.
#[derive(Debug, Default)]
pub(crate) struct Draft<'a> {
    /// Ranges whose items go, in file order.
    pub(crate) gone: Vec<Range<u64>>,
    /// Items that come; in ranges that go.
    pub(crate) come: Vec<Piece<'a>>,
    /// Ranges that must have items, if the volume wants items for holes.
    pub(crate) covered: Vec<Range<u64>>,
    /// What the inode item is to say.
    pub(crate) size: u64,
    /// Flags that the inode gets.
    pub(crate) flags: InodeFlags,
    /// Starts of extents that nothing has referenced yet, ascending.
    pub(crate) fresh: Vec<Logical>,
    pub(crate) sums: Vec<(Logical, Vec<u8>)>,
    /// Patches that are in the trees then.
    pub(crate) patches: Vec<u64>,
    /// The first block, which is dirty, is in the tree then.
    pub(crate) is_inline: bool,
}

/// A planned change of one file.
#[derive(Debug)]
pub(crate) struct Edit {
    changes: Vec<(u64, Option<Item>)>,
    references: Vec<(Reference, i64)>,
    bytes_used: i64,
    size: u64,
    flags: InodeFlags,
    fresh: Vec<Logical>,
    sums: Vec<(Logical, Vec<u8>)>,
    patches: Vec<u64>,
    is_inline: bool,
    /// What those who read the volume have to know of.
    features: Vec<Feature>,
}

/// An item that is to be put.
#[derive(Debug)]
struct Item {
    extent: FileExtent<'static>,
    inline: Option<Vec<u8>>,
    is_new: bool,
}

impl Item {
    fn of(piece: Piece<'_>) -> Self {
        let FileExtent { generation, ram_bytes, compression, body } = piece.extent;
        let (body, inline) = match body {
            ExtentBody::Inline(bytes) => (ExtentBody::Inline(&[][..]), Some(bytes.to_vec())),
            ExtentBody::Regular { disk, run } => (ExtentBody::Regular { disk, run }, None),
            ExtentBody::Hole { num_bytes } => (ExtentBody::Hole { num_bytes }, None),
            ExtentBody::Preallocated { disk, run } => {
                (ExtentBody::Preallocated { disk, run }, None)
            }
        };
        let extent = FileExtent { generation, ram_bytes, compression, body };
        Self { extent, inline, is_new: piece.is_new }
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
    /// Where the last of the patches starts that it merges.
    pub(crate) fn last_patch(&self) -> Option<u64> {
        self.patches.last().copied()
    }

    /// Items that it may change.
    pub(crate) fn items(&self) -> u32 {
        let items = 1 + self.changes.len() + self.references.len();
        u32::try_from(items).unwrap_or(u32::MAX)
    }

    fn inode(&self, was: &Inode, generation: Generation) -> Inode {
        let bytes_used = was.bytes_used.saturating_add_signed(self.bytes_used);
        Inode {
            size: self.size,
            bytes_used,
            transid: generation,
            flags: was.flags.with(self.flags),
            ..*was
        }
    }
}

impl FileState {
    /// Plans an edit: reads the items that it touches.
    pub(crate) fn plan(&self, draft: Draft<'_>) -> Result<Edit, FileError> {
        let covered = if self.has_hole_items() { draft.covered } else { Vec::new() };
        let mut ranges: Vec<Range<u64>> = draft.gone.iter().chain(&covered).cloned().collect();
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        let mut features: Vec<Feature> = Vec::new();
        for piece in &draft.come {
            features.extend(feature_of(piece.extent.compression).filter(|f| !features.contains(f)));
        }
        let old = items::touching(&self.view, &ranges)?;
        let rewrite = rewrite::plan(&old, &draft.gone, draft.come, &covered)
            .map_err(|refused| self.view.corrupt(refused))?;
        // Brings the inode item's leaf into memory (law 2).
        self.inode()?;
        let changes = rewrite.changes.into_iter().map(|(at, piece)| (at, piece.map(Item::of)));
        Ok(Edit {
            changes: changes.collect(),
            references: rewrite.references,
            bytes_used: rewrite.bytes_used,
            size: draft.size,
            flags: draft.flags,
            fresh: draft.fresh,
            sums: draft.sums,
            patches: draft.patches,
            is_inline: draft.is_inline,
            features,
        })
    }

    /// The inode as its item says.
    pub(crate) fn inode(&self) -> Result<Inode, FileError> {
        let key = inode_key(self.ino());
        let item = self.view.tree().find(&key)?;
        let gone = FileError::Gone { tree: self.tree_id(), ino: self.ino() };
        let item = item.ok_or(gone)?;
        Inode::check(item.data())
            .map_err(|refused| self.view.corrupt(refused.at(format_args!("item {key}"))))
    }

    /// Takes note that an edit is in the trees, as far as those see it who share the file:
    /// `settle` takes out of the overlay what the tree shows now.
    fn settle_shared(&self, edit: &Edit, is_merge: bool, settle: impl FnOnce(&mut Overlay)) {
        let digest_bytes = self.source.sums().digest_bytes();
        self.source.sums().forget(edit.sums.iter().map(|(start, digests)| {
            start.0..start.0 + length(digests.len() / digest_bytes) * SECTOR_BYTES
        }));
        // First the new stamp: whoever does not find a patch any more must see the new items.
        if is_merge {
            self.live.restamp_merged();
        } else {
            self.live.restamp();
        }
        settle(&mut self.live.overlay_to_settle());
        let bytes = self.bytes_in_tree.load(Ordering::Acquire);
        let bytes = bytes.saturating_add_signed(edit.bytes_used);
        self.bytes_in_tree.store(bytes, Ordering::Release);
    }

    /// Takes note that an edit is in the trees.
    pub(crate) fn settle(&mut self, edit: &Edit) {
        self.settle_shared(edit, !edit.patches.is_empty(), |overlay| {
            edit.patches.iter().for_each(|start| overlay.settle_patch(*start));
        });
        if edit.is_inline {
            self.settle_inline();
            self.packed_inline = None;
        }
        self.size_in_tree = edit.size;
        self.flags = self.flags.with(edit.flags);
        if edit.flags.contains(InodeFlags::NOCOMPRESS) {
            self.has_given_up = false;
        }
        self.shape = None;
    }
}

/// One file of an application.
pub(crate) struct Applied<'a, 'b> {
    pub(crate) file: &'a mut FileState,
    pub(crate) edit: Edit,
    pub(crate) stamp: &'a mut (dyn FnMut(&mut Inode) + 'b),
}

/// The same, for the trees alone.
struct Row<'a, 'b> {
    file: &'a FileState,
    edit: &'a Edit,
    stamp: &'a mut (dyn FnMut(&mut Inode) + 'b),
}

/// Applies edits of several files of one volume in one transaction, and settles them.
pub(crate) fn apply(
    files: &mut [Applied<'_, '_>],
    purse: Purse,
) -> Result<Option<Generation>, FileError> {
    let rows = files.iter_mut().map(|applied| {
        let Applied { file, edit, stamp } = applied;
        Row { file, edit, stamp: &mut **stamp }
    });
    let generation = apply_rows(&mut rows.collect::<Vec<_>>(), purse)?;
    for applied in files {
        applied.file.settle(&applied.edit);
        applied.file.trim_ticket();
    }
    Ok(generation)
}

/// Applies a merge of patches that shares the file, and settles it.
pub(crate) fn apply_shared(
    file: &FileState,
    edit: &Edit,
    stamp: Stamp<'_>,
    merging: &[(u64, Patch)],
) -> Result<Option<Generation>, FileError> {
    let generation = apply_rows(&mut [Row { file, edit, stamp }], Purse::Free)?;
    file.settle_shared(edit, true, |overlay| overlay.settle_merging(merging));
    file.trim_ticket();
    Ok(generation)
}

fn apply_rows(rows: &mut [Row<'_, '_>], purse: Purse) -> Result<Option<Generation>, FileError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let forest = first.file.source.forest().clone();
    // Half a change in memory must not come into the trees: the join below fails then.
    if rows.iter().any(|row| row.file.live.is_poisoned()) {
        forest.fail_after_panic();
    }
    let items = rows.iter().fold(0_u32, |sum, row| sum.saturating_add(row.edit.items()));
    let handle = forest.join(Need { items, purse })?;
    let generation = handle.generation();
    change(&handle, rows)?;
    Ok(Some(generation))
}

/// Changes the trees (law 3).
fn change(handle: &Handle, rows: &mut [Row<'_, '_>]) -> Result<(), FileError> {
    let mut changes: Vec<(TreeId, Change)> = Vec::new();
    for row in &mut *rows {
        row.edit.features.iter().for_each(|feature| handle.add_feature(*feature));
        let (tree, ino) = (row.file.tree_id(), row.file.ino());
        let mut inode = row.edit.inode(&row.file.inode()?, handle.generation());
        (row.stamp)(&mut inode);
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
        tell(handle, row);
    }
    put_items(handle, rows, changes).map_err(|error| FileError::from(handle.abort(error)))
}

/// Changes the items of the files: whoever finds one finds its checksums too.
fn put_items(
    handle: &Handle,
    rows: &[Row<'_, '_>],
    changes: Vec<(TreeId, Change)>,
) -> Result<(), TreeError> {
    let _changing: Vec<_> = rows.iter().map(|row| row.file.live.changing_items()).collect();
    let mut rest = changes.into_iter().peekable();
    while let Some((tree, first)) = rest.next() {
        let mut batch = vec![first];
        while let Some((_, next)) = rest.next_if(|(next, _)| *next == tree) {
            batch.push(next);
        }
        handle.tree(tree)?.merge(&batch)?;
    }
    Ok(())
}

/// Tells of references, and of checksums.
fn tell(handle: &Handle, row: &Row<'_, '_>) {
    let edit = row.edit;
    for (Reference { extent, offset }, by) in &edit.references {
        let (start, bytes) = (extent.logical, extent.bytes);
        let reference =
            DataRef { tree: row.file.tree_id(), ino: row.file.ino(), offset: *offset, count: 1 };
        let mut by = *by;
        if by > 0 && edit.fresh.binary_search(&start).is_ok() {
            handle.claim_data(start.0..start.0 + bytes, reference);
            by -= 1;
        }
        for _ in 0..by {
            handle.add_data_ref(start, bytes, reference);
        }
        for _ in by..0 {
            handle.drop_data_ref(start, bytes, reference);
        }
    }
    for (start, digests) in &edit.sums {
        handle.put_sums(*start, digests);
    }
}

/// The feature that extents of some algorithm need. Every btrfs reads zlib.
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
