//! Where written data goes: where the file has it already, or elsewhere.
//!
//! Laws:
//!
//! 1. Space that is set aside for this file alone is written where it is. Until the tree says that
//!    it is written, it reads as zeroes, whatever became of the write.
//! 2. A file with the flag nodatacow is written where it is, as far as nobody shares its extents
//!    and nothing vouches for their bytes.
//! 3. Everything else goes to space that nothing references: what is there stays as it is until
//!    the trees change.

use crate::error::FileError;
use crate::map::{ItemMappings, Mapping, MappingKind};
use crate::state::FileState;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::inode::InodeFlags;
use butternut_format::units::Logical;
use std::ops::Range;

use crate::overlay::Place;

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
                        Place::New(_) => Target::New,
                        Place::SetAside { extent, skip } => Target::SetAside { extent, skip },
                    };
                    push(&mut targets, at..end, target);
                    at = end;
                }
                Err(gap_end) => {
                    for mapping in ItemMappings::near(&self.view, at..gap_end) {
                        let mapping = mapping?;
                        let target = self.target_of(&mapping)?;
                        push(&mut targets, mapping.offset..mapping.end(), target);
                        at = mapping.end();
                    }
                    if at < gap_end {
                        push(&mut targets, at..gap_end, Target::New);
                    }
                    at = gap_end;
                }
            }
        }
        Ok(targets)
    }

    fn target_of(&self, mapping: &Mapping) -> Result<Target, FileError> {
        let (extent, skip, target) = match mapping.kind {
            MappingKind::Preallocated { extent, skip } => {
                (extent, skip, Target::SetAside { extent, skip })
            }
            MappingKind::Regular { extent, packing, skip }
                if packing.compression == Compression::None
                    && self.flags.contains(InodeFlags::NODATACOW)
                    && !self.view.has_sums() =>
            {
                (extent, skip, Target::Over(Logical(extent.logical.0.saturating_add(skip))))
            }
            MappingKind::Hole
            | MappingKind::Inline { .. }
            | MappingKind::Regular { .. }
            | MappingKind::Buffered => return Ok(Target::New),
        };
        let reference = DataRef {
            tree: self.tree_id(),
            ino: self.ino(),
            offset: mapping.offset.wrapping_sub(skip),
            count: 1,
        };
        let forest = self.source.forest();
        let is_shared = forest.is_shared(extent.logical, extent.bytes, &reference)?;
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
