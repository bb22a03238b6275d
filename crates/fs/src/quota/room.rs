//! Room below the limits of quotas: what an operation does before it fails with EDQUOT.
//!
//! Laws:
//!
//! 1. Data that is not in the trees yet is charged with more than it will need, as its estimate. So
//!    an operation that is refused writes back and merges the files of all subvolumes that share
//!    the limit, and is attempted once more.
//! 2. No inode is locked meanwhile: the files are locked for it.
//! 3. Orphans that are queued for the cleaner are deleted first, and a commit follows if data was
//!    deleted: both make room.

use crate::write_state::WriteState;
use crate::{Error, Filesystem, Result};
use butternut_format::units::TreeId;

impl Filesystem {
    /// Runs an operation on a subvolume. At a limit, makes room (laws 1 and 3), and runs the
    /// operation once more.
    pub(crate) fn with_quota_room<R>(
        &self,
        subvolume: u64,
        run: impl Fn() -> Result<R>,
    ) -> Result<R> {
        let result = run();
        if !result.as_ref().is_err_and(Error::is_quota_exceeded) {
            return result;
        }
        let writing = self.begin()?;
        let is_written = self.write_back_charged(&writing, subvolume);
        drop(writing);
        let write_state = self.may_begin()?;
        let result =
            if write_state.cleaner.wait_until_evicted() || is_written { run() } else { result };
        if result.as_ref().is_err_and(Error::is_quota_exceeded)
            && self.forest().commit_may_free_quota(TreeId(subvolume))
        {
            self.commit()?;
            return run();
        }
        result
    }

    /// Writes back and merges the files of all subvolumes that share a limit with one. Returns
    /// whether there were any. The files keep their errors for their next sync.
    pub(crate) fn write_back_charged(&self, write_state: &WriteState, subvolume: u64) -> bool {
        let charged = self.forest().charged_below_limits(TreeId(subvolume));
        for tree in &charged {
            drop(self.write_back_files(write_state, tree.0, |_| true));
        }
        !charged.is_empty()
    }
}
