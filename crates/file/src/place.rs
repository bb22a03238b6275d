//! Where written data goes: where the file has it already, or elsewhere.
//!
//! Laws:
//!
//! 1. Space that is set aside for this file alone is written where it is. Until the tree says that
//!    it is written, it reads as zeroes, whatever became of the write. With checksums that holds
//!    for the first write only: a second one that fails half-way would leave blocks that the
//!    checksums of the first contradict.
//! 2. A file with the flag nodatacow is written where it is, as far as nobody shares its extents
//!    and nothing vouches for their bytes.
//! 3. Everything else goes to space that nothing references: what is there stays as it is until
//!    the trees change.

use crate::error::FileError;
use crate::items;
use crate::overlay::Place;
use crate::piece::{Piece, Reference};
use crate::state::FileState;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody};
use butternut_format::inode::InodeFlags;
use butternut_format::units::Logical;
use std::ops::Range;
use std::slice;

/// Where a run of blocks is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Where it is to be allocated.
    New,
    /// Into space that is set aside (law 1).
    SetAside { extent: DiskExtent, skip: u64 },
    /// Over what is there (law 2).
    Over(Logical),
}

impl FileState {
    /// Whether anything of the file may be written where it is.
    pub(crate) fn may_be_in_place(&self) -> bool {
        self.flags.contains(InodeFlags::PREALLOC) || self.flags.contains(InodeFlags::NODATACOW)
    }

    /// Where the blocks of `range` go, in file order and without gaps.
    pub(crate) fn targets(
        &self,
        range: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Target)>, FileError> {
        if !self.may_be_in_place() {
            return Ok(vec![(range.clone(), Target::New)]);
        }
        let mut targets: Vec<(Range<u64>, Target)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let found = self.live.overlay().find_patch(at, range.end);
            match found {
                Ok((place, end)) => {
                    let target = match place {
                        Place::SetAside { extent, skip } if !self.view.has_sums() => {
                            Target::SetAside { extent, skip }
                        }
                        Place::SetAside { .. } | Place::New { .. } | Place::Packed { .. } => {
                            Target::New
                        }
                    };
                    push(&mut targets, at..end, target);
                    at = end;
                }
                Err(gap_end) => {
                    let gap = at..gap_end;
                    let still = self.live.still_items();
                    let pieces = items::touching(&self.view, slice::from_ref(&gap))?;
                    drop(still);
                    for piece in pieces {
                        let part = piece.start.max(at)..piece.end().min(gap_end);
                        if part.is_empty() {
                            continue;
                        }
                        push(&mut targets, at..part.start, Target::New);
                        let target = self.target_of(&piece)?;
                        at = part.end;
                        push(&mut targets, part.clone(), target.advanced(part.start - piece.start));
                    }
                    push(&mut targets, at..gap_end, Target::New);
                    at = gap_end;
                }
            }
        }
        Ok(targets)
    }

    /// Where what an item shows is to be written.
    fn target_of(&self, piece: &Piece<'_>) -> Result<Target, FileError> {
        let is_over = self.flags.contains(InodeFlags::NODATACOW)
            && !self.view.has_sums()
            && piece.extent.compression == Compression::None;
        let target = match piece.extent.body {
            ExtentBody::Preallocated { disk, run } => {
                Target::SetAside { extent: disk, skip: run.offset }
            }
            ExtentBody::Regular { disk, run } if is_over => {
                Target::Over(Logical(disk.logical.0.saturating_add(run.offset)))
            }
            ExtentBody::Hole { .. } | ExtentBody::Inline(_) | ExtentBody::Regular { .. } => {
                return Ok(Target::New);
            }
        };
        let Some(Reference { extent, offset }) = piece.reference() else { return Ok(Target::New) };
        let (tree, ino) = (self.tree_id(), self.ino());
        let forest = self.source.forest();
        // A leaf that a snapshot shares counts as one reference.
        let is_shared = piece.extent.generation <= forest.last_snapshot(tree)?
            || forest.is_shared(
                extent.logical,
                extent.bytes,
                &DataRef { tree, ino, offset, count: 1 },
            )?;
        Ok(if is_shared { Target::New } else { target })
    }
}

/// Appends a run; joins it with the last where it goes on.
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

impl Target {
    /// The target of what lies `bytes` further on.
    pub(crate) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::New => Self::New,
            Self::SetAside { extent, skip } => Self::SetAside { extent, skip: skip + bytes },
            Self::Over(logical) => Self::Over(Logical(logical.0 + bytes)),
        }
    }
}
