//! Room below the limits of quotas: what an operation does before it fails with EDQUOT.
//!
//! Laws:
//!
//! 1. Data that is not in the trees yet is charged with more than it will need, as its estimate. So
//!    an operation that is refused writes back and merges the files of all subvolumes that share
//!    the limit, and is attempted once more.
//! 2. No inode is locked meanwhile: the files are locked for it.
//! 3. Large orphans that are being deleted, or are queued for it, are deleted first if the limit
//!    counts them, and a commit follows if data was deleted: both make room. So does the space that
//!    requests hold which have not begun.
//! 4. Snapshots are not excluded meanwhile: they, and all writes behind them, would wait for it.

use crate::write_state::WriteState;
use crate::{Error, Filesystem, Result};
use butternut_format::units::TreeId;

impl Filesystem {
    /// Runs an operation on a subvolume, and once more at a limit
    /// ([`run_again_at_limit`](Self::run_again_at_limit)).
    pub(crate) fn with_quota_room<R>(
        &self,
        subvolume: u64,
        run: impl Fn() -> Result<R>,
    ) -> Result<R> {
        let result = run();
        if !result.as_ref().is_err_and(Error::is_quota_exceeded) {
            return result;
        }
        self.run_again_at_limit(subvolume, run)
    }

    /// Makes room (laws 1 and 3), and runs an operation again that was refused.
    pub(crate) fn run_again_at_limit<R>(
        &self,
        subvolume: u64,
        run: impl Fn() -> Result<R>,
    ) -> Result<R> {
        // Without the barrier of snapshots: it may take long.
        let write_state = self.may_begin()?;
        self.write_back_charged(write_state, subvolume);
        write_state.cleaner.wait_until_evicted(&|of| {
            let of = of.iter().copied().map(TreeId).collect();
            let limited = self.forest().limited_beside(TreeId(subvolume), &of);
            limited.into_iter().map(|tree| tree.0).collect()
        });
        self.shared.source.release_space();
        let result = run();
        if result.as_ref().is_err_and(Error::is_quota_exceeded)
            && self.forest().commit_may_free_quota(TreeId(subvolume))
        {
            self.commit()?;
            return run();
        }
        result
    }

    /// Writes back and merges the files of all subvolumes that share a limit with one. The files
    /// keep their errors for their next sync.
    fn write_back_charged(&self, write_state: &WriteState, subvolume: u64) {
        for tree in self.forest().charged_below_limits(TreeId(subvolume)) {
            drop(self.write_back_files(write_state, tree.0, |_| true));
        }
    }
}
