//! Touched extents: those whose references a transaction has changed, also where the changes cancel
//! each other out. Quotas account for them at the commit.
//!
//! Laws:
//!
//! 1. An extent that was created and freed in the transaction is left out: neither the last commit
//!    nor this one has it.
//! 2. Only references of subvolumes count. Blocks of other trees are never touched.

use super::reference::Ref;
use butternut_format::units::{Logical, TreeId};
use std::collections::BTreeSet;

/// The addresses of the extents that a transaction has touched.
pub(crate) type TouchedExtents = BTreeSet<Logical>;

/// Records touched extents while quotas are on.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    extents: Option<TouchedExtents>,
}

impl Touched {
    /// Begins to record with nothing, or ends it.
    pub(crate) fn set_enabled(&mut self, is_enabled: bool) {
        self.extents = is_enabled.then(TouchedExtents::new);
    }

    pub(crate) fn len(&self) -> usize {
        self.extents.as_ref().map_or(0, BTreeSet::len)
    }

    pub(super) fn add(&mut self, at: Logical, reference: Ref) {
        if let Some(extents) = self.extents.as_mut().filter(|_| counts(reference)) {
            extents.insert(at);
        }
    }

    pub(super) fn forget(&mut self, at: Logical) {
        if let Some(extents) = &mut self.extents {
            extents.remove(&at);
        }
    }

    /// Returns what was recorded, and goes on with nothing.
    pub(crate) fn take(&mut self) -> TouchedExtents {
        self.extents.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// Whether a reference may be one of a subvolume (law 2). Only subvolumes share blocks.
fn counts(reference: Ref) -> bool {
    let tree: Option<TreeId> = match reference {
        Ref::Tree(tree) => Some(tree),
        Ref::Data(data) => Some(data.tree),
        Ref::Shared(_) | Ref::SharedData(_) => None,
    };
    tree.is_none_or(TreeId::is_subvolume)
}
