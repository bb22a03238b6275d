//! Reservations that flush: what a caller without space tries before it fails with ENOSPC.
//!
//! ```text
//! reserve --> reserved
//!  ^   |
//!  |   +--> add a chunk, while the devices have space for one -----+
//!  |   +--> commit, at most 4 times, if that may free space, or    |
//!  |   |    removes empty groups of another class                  |
//!  |   +--> wait for readers and begin again, if space is pinned --+
//!  |   +--> wait for a thread that discards freed space -----------+
//!  |   +--> wait for another thread that resizes a device ---------+
//!  |   +--> try again, if another thread returned space meanwhile -+
//!  |   +--> no space                                               |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Empty groups of other classes are removed before a reservation fails. A forest that was opened
//! without `commits_for_space` does not commit here, nor does one whose log is not replayed yet.
//!
//! One commit would be enough for one caller. With several, others may allocate what it freed, and
//! pin it again. While as much is pinned as a caller needs, the volume is not full: the caller
//! commits again, for [`READERS_WAIT_MAX`] or a few times.
//!
//! A caller that must not wait ([`Wait::NoWait`]) is refused where the first attempt finds no
//! space.
//!
//! Laws:
//!
//! 1. A caller holds no handle, because a commit waits until no handle is open.
//! 2. Space that another thread held for a moment is no reason to fail: a member returns its
//!    reservation before it ends, and a thread that discards is counted, as is one that resizes
//!    a device. So when a reservation is about to fail, space that others held during the last
//!    attempt is waited for, or has returned.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::enospc::Purpose;
use crate::transaction::read_epochs::READERS_WAIT_MAX;
use crate::transaction::running::Running;
use butternut_space::{Class, NoSpace};
use butternut_sys::lock::{Mark, rank};
use butternut_sys::wait::Wait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most commits for one reservation before it waits for readers.
const COMMITS_MAX: usize = 4;

/// How often at least a reservation commits and waits again, while enough space is pinned.
const ROUNDS_MIN: usize = 4;

/// How often a reservation is tried again because space had returned, and other threads took it.
/// More often only while discards run, for [`READERS_WAIT_MAX`].
const RETRIES_MAX: usize = 16;

impl Forest {
    /// Calls `reserve` until it finds space. Adds chunks and commits in between, unless `wait`
    /// forbids it.
    ///
    /// # Errors
    /// There is no space, or `reserve` fails for another reason; [`TreeError::WouldBlock`] if more
    /// than one call is needed, and `wait` forbids it.
    pub(crate) fn reserve_or_flush<R>(
        self: &Arc<Self>,
        purpose: Purpose,
        wait: Wait,
        mut reserve: impl FnMut(&Running) -> Result<Result<R, NoSpace>, TreeError>,
    ) -> Result<R, TreeError> {
        debug_assert!(!Mark::<rank::Handle>::is_held(), "law 1");
        let running = self.running()?;
        if wait == Wait::NoWait {
            let refused = |_| TreeError::WouldBlock;
            self.inject_enospc(purpose).map_err(refused)?;
            return reserve(running)?.map_err(|_| TreeError::WouldBlock);
        }
        self.inject_enospc(purpose)?;
        let mut commits = 0;
        let (mut rounds, mut deadline) = (0, None);
        let mut retries = 0;
        let mut waited = None;
        loop {
            let no_space = match reserve(running)? {
                Ok(reserved) => return Ok(reserved),
                Err(no_space) => no_space,
            };
            if no_space.can_add_chunk && self.add_chunk(no_space.class)? {
                continue;
            }
            drop(waited.take());
            let may_free_space = running.commit_may_free_space(no_space.pinned_bytes)
                || running.gate.is_in_use()
                || !running.space.reclaimable_groups(no_space.class).is_empty();
            if commits < COMMITS_MAX && may_free_space && self.commits_for_space() {
                self.reclaim_groups(no_space.class)?;
                self.commit()?;
                commits += 1;
                continue;
            }
            let now = Instant::now();
            let end = *deadline.get_or_insert(now + READERS_WAIT_MAX);
            let time_left = end.saturating_duration_since(now);
            let is_early = retries < RETRIES_MAX;
            if commits == COMMITS_MAX && is_round_due(&no_space, rounds, time_left) {
                // The commits have freed the space. Readers still pin it, or others took it.
                running.read_epochs.wait_for_readers(time_left);
                running.read_epochs.unpin_left();
                (commits, rounds) = (0, rounds + 1);
                continue;
            }
            if is_early || !time_left.is_zero() {
                waited = running.discards.wait_for_one();
            }
            let may_have_returned = waited.is_some()
                || running.resizes.wait_for_another(time_left)
                || is_early && running.space.has_returned(&no_space);
            if !may_have_returned {
                return Err(TreeError::NoSpace { bytes: no_space.bytes });
            }
            retries += 1;
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
        Ok(running.add_chunk(class))
    }
}

/// Returns whether a reservation waits for readers and commits again, after this many rounds. What
/// other classes have pinned helps only if it empties a group, so it is waited for once.
fn is_round_due(no_space: &NoSpace, rounds: usize, time_left: Duration) -> bool {
    let is_enough = no_space.own_pinned_bytes >= no_space.bytes;
    let may_repeat = is_enough && (rounds < ROUNDS_MIN || !time_left.is_zero());
    no_space.pinned_bytes > 0 && (rounds == 0 || may_repeat)
}
