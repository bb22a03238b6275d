//! Reservations that flush: what a caller without space tries before it fails with ENOSPC.
//!
//! ```text
//! reserve --> reserved
//!  ^   |
//!  |   +--> add a chunk, while the devices have space for one -----+
//!  |   +--> commit, at most 4 times, if that may free space, or    |
//!  |   |    removes empty groups of another class                  |
//!  |   +--> wait once for readers, if space is pinned -------------+
//!  |   +--> wait for a thread that discards freed space -----------+
//!  |   +--> try again, if another thread returned space meanwhile -+
//!  |   +--> no space                                               |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Empty groups of other classes are removed before a reservation fails. A forest that was opened
//! without `commits_for_space` does not commit here.
//!
//! One commit would be enough for one caller. With several, others may allocate what it freed.
//!
//! Laws:
//!
//! 1. A caller holds no handle, because a commit waits until no handle is open.
//! 2. Space that another thread held for a moment is no reason to fail: a member returns its
//!    reservation before it ends, and a thread that discards is counted. So when a reservation is
//!    about to fail, space that others held during the last attempt is waited for, or has returned.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::enospc::Purpose;
use crate::transaction::running::Running;
use butternut_space::{Class, NoSpace};
use butternut_sys::lock::{Mark, rank};
use std::sync::Arc;

/// The most commits for one reservation.
const COMMITS_MAX: usize = 4;

/// The most attempts after which other threads took what had returned.
const RETRIES_MAX: usize = 16;

impl Forest {
    /// Calls `reserve` until it finds space. Adds chunks and commits in between.
    ///
    /// # Errors
    /// There is no space, or `reserve` fails for another reason.
    pub(crate) fn reserve_or_flush<R>(
        self: &Arc<Self>,
        purpose: Purpose,
        mut reserve: impl FnMut(&Running) -> Result<Result<R, NoSpace>, TreeError>,
    ) -> Result<R, TreeError> {
        debug_assert!(!Mark::<rank::Handle>::is_held(), "law 1");
        let running = self.running()?;
        self.inject_enospc(purpose)?;
        let mut commits = 0;
        let mut has_waited = false;
        let mut retries = 0;
        loop {
            let no_space = match reserve(running)? {
                Ok(reserved) => return Ok(reserved),
                Err(no_space) => no_space,
            };
            if no_space.can_add_chunk && self.add_chunk(no_space.class)? {
                continue;
            }
            let may_help = running.commit_may_free_space(no_space.pinned_bytes)
                || running.gate.is_in_use()
                || !running.space.reclaimable_groups(no_space.class).is_empty();
            if commits < COMMITS_MAX && may_help && self.commits_for_space() {
                self.reclaim_groups(no_space.class)?;
                self.commit()?;
                commits += 1;
            } else if commits == COMMITS_MAX && no_space.pinned_bytes > 0 && !has_waited {
                // The commits have freed the space, and readers still pin it.
                running.read_epochs.wait_for_readers();
                self.unpin_left(running);
                has_waited = true;
            } else if retries < RETRIES_MAX && running.may_have_space_now(&no_space) {
                retries += 1;
            } else {
                return Err(TreeError::NoSpace { bytes: no_space.bytes });
            }
        }
    }

    /// Makes the next commit remove the empty groups of other classes, because `needy` has no space
    /// and no chunk can be added for it.
    fn reclaim_groups(&self, needy: Class) -> Result<(), TreeError> {
        let running = self.running()?;
        let _membership = running.gate.join_unreserved()?;
        let empty = running.space.reclaimable_groups(needy);
        if !empty.is_empty() {
            running.chunks().remove_next_commit(empty.iter().map(|group| group.start).collect());
            running.gate.mark_changed();
        }
        Ok(())
    }

    /// Adds a chunk in the running transaction. Returns `false` if the devices lack the space.
    fn add_chunk(&self, class: Class) -> Result<bool, TreeError> {
        let running = self.running()?;
        let _membership = running.gate.join_unreserved()?;
        Ok(running.add_chunk(self, class))
    }
}

impl Running {
    /// Waits for a thread that discards freed space, if there is one. Returns whether there was one
    /// or other space has returned since a reservation failed (law 2).
    fn may_have_space_now(&self, no_space: &NoSpace) -> bool {
        self.discards.wait_for_one() || self.space.has_returned(no_space)
    }
}
