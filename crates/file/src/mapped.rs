//! Where a direct read's sectors are, by the mapper of all reads: what there is without the short
//! way of [`Source::direct_place`].

use crate::direct::DirectPlace;
use crate::error::FileError;
use crate::plan::{Manner, PieceKind, Plan};
use crate::source::Source;
use crate::view::FileView;
use butternut_volume::Sums;

impl Source {
    /// As [`Source::direct_place`], planned like any read: of bytes inside the file, from the start
    /// of a sector on.
    pub fn mapped_place(
        &self,
        view: &FileView,
        offset: u64,
        bytes: usize,
        digests: &mut Vec<u8>,
    ) -> Result<Option<DirectPlace>, FileError> {
        let mut workspace = self.take_workspace();
        let plan = &mut workspace.plan;
        plan.begin(Manner::Single);
        plan.add(self, view, offset, bytes);
        let failure = plan.reads.first_mut().and_then(|read| read.failure.take());
        let place = failure.map_or_else(|| Ok(single_place(plan, digests)), Err);
        self.give_back(workspace);
        place
    }
}

/// The place of a plan that is whole sectors in one run.
fn single_place(plan: &Plan, digests: &mut Vec<u8>) -> Option<DirectPlace> {
    let [piece] = &plan.pieces[..] else { return None };
    let (logical, sums) = match &piece.kind {
        PieceKind::Direct { logical, sums } | PieceKind::Edge { logical, sums, skip: 0, .. } => {
            (*logical, sums)
        }
        PieceKind::Zeroes
        | PieceKind::Buffered { .. }
        | PieceKind::Inline { .. }
        | PieceKind::Edge { .. }
        | PieceKind::Packed { .. } => return None,
    };
    let Sums::Packed(found) = plan.sums(sums) else {
        return Some(DirectPlace { logical, has_digests: false, is_cached: false });
    };
    digests.extend_from_slice(found);
    Some(DirectPlace { logical, has_digests: true, is_cached: false })
}
