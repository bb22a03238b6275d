//! Write targets: whether a block is written in place or to new space.
//!
//! Laws:
//!
//! 1. Preallocated space that only this file references is written in place. Until the tree says
//!    that it is written it reads as zeroes, whatever became of the write. Only the first write of
//!    a block goes there, unless the file is written in place anyway (law 2): a second write that
//!    fails half-way would leave blocks that do not match the checksums of the first, and a merge
//!    in between makes the extent a regular one, which is not overwritten.
//! 2. A file with the flag nodatacow is written in place where no other file shares its extents and
//!    its data has no checksums.
//! 3. Nothing is written in place on a seed device.
//! 4. Everything else goes to newly allocated space: the old data stays as it is until the trees
//!    change.

use crate::error::FileError;
use crate::merge::extent_item::{ExtentItem, Reference};
use crate::merge::items;
use crate::overlay::Place;
use crate::state::FileState;
use crate::target::Target;
use crate::wait::may_block;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, ExtentBody};
use butternut_format::inode::InodeFlags;
use butternut_format::units::Logical;
use butternut_sys::wait::Wait;
use std::ops::Range;
use std::slice;

impl FileState {
    /// Whether anything of the file may be written in place.
    pub(crate) fn may_write_in_place(&self) -> bool {
        self.flags.contains(InodeFlags::PREALLOC) || self.flags.contains(InodeFlags::NODATACOW)
    }

    /// Whether blocks that are on disk are overwritten in place (law 2), unless they are shared.
    pub(crate) fn can_overwrite(&self) -> bool {
        self.flags.contains(InodeFlags::NODATACOW) && !self.view.has_checksums()
    }

    /// The write targets of `range`, in file order and without gaps. Those of a file that may be
    /// written in place are in the trees.
    pub(crate) fn write_targets(
        &self,
        range: &Range<u64>,
        wait: Wait,
    ) -> Result<Vec<(Range<u64>, Target)>, FileError> {
        if !self.may_write_in_place() {
            return Ok(vec![(range.clone(), Target::New)]);
        }
        may_block(wait)?;
        let mut targets: Vec<(Range<u64>, Target)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let found = self.shared.overlay().find_pending(at, range.end);
            match found {
                Ok((place, end)) => {
                    let target = match place {
                        Place::Preallocated { extent, skip } if self.can_overwrite() => {
                            Target::Preallocated { extent, skip }
                        }
                        Place::Preallocated { .. }
                        | Place::New { .. }
                        | Place::Compressed { .. } => Target::New,
                    };
                    push(&mut targets, at..end, target);
                    at = end;
                }
                Err(gap_end) => {
                    let gap = at..gap_end;
                    let items_lock = self.shared.lock_items_shared();
                    let items = items::touching(&self.view, slice::from_ref(&gap))?;
                    drop(items_lock);
                    for item in items {
                        let part = item.start.max(at)..item.end().min(gap_end);
                        if part.is_empty() {
                            continue;
                        }
                        push(&mut targets, at..part.start, Target::New);
                        let target = self.target_of_item(&item)?;
                        at = part.end;
                        push(&mut targets, part.clone(), target.advanced(part.start - item.start));
                    }
                    push(&mut targets, at..gap_end, Target::New);
                    at = gap_end;
                }
            }
        }
        Ok(targets)
    }

    /// The write target of the range that an item shows.
    fn target_of_item(&self, item: &ExtentItem<'_>) -> Result<Target, FileError> {
        let is_over = self.can_overwrite() && item.extent.compression == Compression::None;
        let target = match item.extent.body {
            ExtentBody::Preallocated { disk, run } => {
                Target::Preallocated { extent: disk, skip: run.offset }
            }
            ExtentBody::Regular { disk, run } if is_over => {
                Target::Overwrite(Logical(disk.logical.0.saturating_add(run.offset)))
            }
            ExtentBody::Hole { .. } | ExtentBody::Inline(_) | ExtentBody::Regular { .. } => {
                return Ok(Target::New);
            }
        };
        let Some(Reference { extent, offset }) = item.reference() else { return Ok(Target::New) };
        let (tree, ino) = (self.tree_id(), self.ino());
        let forest = self.source.forest();
        if forest.volume().is_on_seed(extent.logical) {
            return Ok(Target::New);
        }
        // A leaf that a snapshot shares counts as one reference.
        let is_shared = item.extent.generation <= forest.last_snapshot(tree)?
            || forest.is_shared(
                extent.logical,
                extent.bytes,
                &DataRef { tree, ino, offset, count: 1 },
            )?;
        Ok(if is_shared { Target::New } else { target })
    }
}

/// Appends a run, or extends the last one by it.
fn push(targets: &mut Vec<(Range<u64>, Target)>, range: Range<u64>, target: Target) {
    if range.is_empty() {
        return;
    }
    if let Some((last, known)) = targets.last_mut() {
        let advanced = known.advanced(range.start - last.start);
        if last.end == range.start && advanced == target {
            last.end = range.end;
            return;
        }
    }
    targets.push((range, target));
}
