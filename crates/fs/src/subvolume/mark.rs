//! [`CheckpointMark`]: what says of a subvolume that a receive has made it as a checkpoint, and
//! that it has the same content since then.
//!
//! ```text
//! | received UUID | stransid                      | rtransid |
//! | of the mark   | otransid: when it was created | 0        |
//! ```
//!
//! 1. Only a receive makes it. The sender of a stream chooses the received UUID, and in the kernel
//!    the owner of a subvolume can set it. Both also set `rtransid`, here as in the kernel.
//! 2. A snapshot has another `otransid` than its source, and the same `stransid`.
//! 3. A subvolume that becomes writable loses its received UUID. The kernel keeps that, but a
//!    change sets `ctransid`, which is at most `otransid` before.

use butternut_format::root::{RawRootItem, RootFlags, RootItem};
use butternut_format::uuid::Uuid;

/// The mark of one checkpoint. Its UUID says which commands have made the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointMark(pub(crate) Uuid);

impl CheckpointMark {
    /// Marks a subvolume that is being created, and makes it read-only.
    pub(crate) fn set(self, root: &mut RawRootItem) {
        root.flags.set(root.flags.get() | RootFlags::READ_ONLY.0);
        root.forget_received();
        root.received_uuid = self.0.0;
        root.stransid = root.otransid;
    }

    /// Returns whether a subvolume has the mark.
    pub(crate) fn is_of(self, root: &RootItem) -> bool {
        let history = root.history().unwrap_or_default();
        self.is_kept(root) && history.change.0 <= history.origin.0
    }

    /// Returns whether a subvolume that had the mark since the volume was opened has not been
    /// writable. A deletion of orphans may have changed it.
    pub(crate) fn is_kept(self, root: &RootItem) -> bool {
        let Some(history) = root.history() else { return false };
        root.flags().contains(RootFlags::READ_ONLY)
            && history.received_uuid == self.0.0
            && history.send.0 == history.origin.0
            && history.receive.0.0 == 0
    }
}
