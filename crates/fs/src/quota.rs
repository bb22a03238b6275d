//! Quotas: which bytes on disk each subvolume, and each group of subvolumes, uses.
//!
//! Each change is made inside a commit, so it is durable when the call returns, and the usage that
//! the commit writes is exact. Where it cannot be computed, the change is made all the same, the
//! usage is marked as inconsistent, and the call fails with [`TreeError::QuotaUsage`]. The
//! accounting is in `tree`.

mod room;

use crate::{Error, Filesystem, Result};
use butternut_format::quota::QgroupId;
use butternut_tree::{AtCommit, QgroupLimits, QuotaMode, Quotas, ReservationLevel, TreeError};
use std::sync::Arc;

#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of `AtCommit` is not general enough in its lifetime"
)]
impl Filesystem {
    /// Returns the quotas as of the last commit; `None` if they are disabled.
    ///
    /// # Errors
    /// The quota tree cannot be read.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        Ok(self.forest().quotas()?)
    }

    /// Returns why the usage of the groups became inconsistent since the volume was opened for
    /// writing, or since the last rescan; `None` if it did not.
    /// [`Filesystem::rescan_quotas`] makes it exact again.
    pub fn quota_error(&self) -> Option<Arc<TreeError>> {
        self.forest().quota_error()
    }

    /// Enables full quotas, with a group for each subvolume. Returns `false` if they were enabled
    /// already. Reads all references of the volume, and no data.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; simple quotas are enabled; there is no space; a tree cannot be read.
    pub fn enable_quotas(&self) -> Result<bool> {
        let is_new = self.change_quotas(|at_commit| at_commit.enable_quotas(QuotaMode::Full))?;
        if is_new { self.require_usage().map(|()| true) } else { Ok(false) }
    }

    /// Enables simple quotas, with a group for each subvolume. A subvolume uses the extents that it
    /// allocates from now on, until they are freed, whatever refers to them: snapshots and clones
    /// change no usage. Returns `false` if they were enabled already. The volume gets the feature
    /// simple-quota, which the kernel knows since Linux 6.7, and keeps it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; full quotas are enabled; there is no space.
    pub fn enable_simple_quotas(&self) -> Result<bool> {
        self.change_quotas(|at_commit| at_commit.enable_quotas(QuotaMode::Simple))
    }

    /// Disables quotas, and removes all groups. Returns `false` if they were disabled already.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; the quota tree cannot be read.
    pub fn disable_quotas(&self) -> Result<bool> {
        self.change_quotas(|at_commit| at_commit.disable_quotas())
    }

    /// Computes the usage of all groups again, from all references of the volume; that of simple
    /// quotas from all extent items and tree blocks. Other changes wait meanwhile.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled.
    pub fn rescan_quotas(&self) -> Result<()> {
        self.recompute(|at_commit| at_commit.rescan_quotas())
    }

    /// Adds a quota group above level 0.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled, there is such a group, or
    /// its level is 0.
    pub fn create_qgroup(&self, id: QgroupId) -> Result<()> {
        self.change_quotas(|at_commit| at_commit.create_qgroup(id))
    }

    /// Removes a quota group that includes no other one, and no subvolume.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled, or the group does not
    /// exist or includes something.
    pub fn remove_qgroup(&self, id: QgroupId) -> Result<()> {
        self.change_quotas(|at_commit| at_commit.remove_qgroup(id))
    }

    /// Makes the group `parent` include the group `child`. Full quotas compute all usage again.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled, a group does not exist,
    /// the level of the parent is not above the child's, or it includes it already.
    pub fn assign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<()> {
        self.recompute(|at_commit| at_commit.assign_qgroup(child, parent))
    }

    /// Ends that the group `parent` includes the group `child`. Full quotas compute all usage
    /// again.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled, or the parent does not
    /// include the child.
    pub fn unassign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<()> {
        self.recompute(|at_commit| at_commit.unassign_qgroup(child, parent))
    }

    /// Sets the limits of a quota group. Writes that would exceed a limit fail with EDQUOT before
    /// they change anything; deletions succeed.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; quotas are disabled, or there is no such group.
    pub fn limit_qgroup(&self, id: QgroupId, limits: QgroupLimits) -> Result<()> {
        self.change_qgroup_limits(id, |_| limits)
    }

    /// As [`Filesystem::limit_qgroup`], with limits that follow from those that the group has.
    ///
    /// # Errors
    /// As [`Filesystem::limit_qgroup`].
    pub fn change_qgroup_limits(
        &self,
        id: QgroupId,
        change: impl FnOnce(QgroupLimits) -> QgroupLimits,
    ) -> Result<()> {
        self.change_quotas(|at_commit| at_commit.limit_qgroup(id, change))
    }

    /// Makes a change for which the commit computes all usage again.
    fn recompute<R>(
        &self,
        change: impl FnOnce(&AtCommit<'_>) -> Result<R, TreeError>,
    ) -> Result<R> {
        let changed = self.change_quotas(change)?;
        self.require_usage().map(|()| changed)
    }

    /// Fails if the commit could not compute the usage.
    fn require_usage(&self) -> Result<()> {
        let error = self.quota_error();
        error.map_or(Ok(()), |source| Err(TreeError::QuotaUsage { source }.into()))
    }

    fn change_quotas<R>(
        &self,
        change: impl FnOnce(&AtCommit<'_>) -> Result<R, TreeError>,
    ) -> Result<R> {
        let writing = self.begin()?;
        let changed = self.forest().commit_with(ReservationLevel::Normal, change);
        let changed = changed.map_err(|error| {
            if let TreeError::Invalid(refused) = error {
                Error::Quota(refused)
            } else {
                Error::Tree(error)
            }
        })?;
        drop(writing);
        Ok(changed)
    }
}
