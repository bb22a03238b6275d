//! Charges of space to subvolumes, before it is allocated.
//!
//! Left to others: what a limit allows (`limits`).

use super::limits::Growth;
use crate::cow::{TransactionTree, TreeState};
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::running::Running;
use butternut_format::quota::QgroupId;
use butternut_format::units::TreeId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The number of changed items of one operation that add a block to its subvolume.
const ITEMS_PER_BLOCK: u32 = 3;

impl Running {
    /// Charges space to a subvolume (law 1). Returns the bytes: at least `least`, at most `most`.
    pub(crate) fn charge(&self, tree: TreeId, least: u64, most: u64) -> Result<u64, TreeError> {
        if !self.has_quotas() {
            return Ok(most);
        }
        loop {
            let accounted = match self.quota().as_mut() {
                None => return Ok(most),
                Some(quota) if !quota.limits(tree) => {
                    quota.charges.hold(tree, most);
                    return Ok(most);
                }
                Some(quota) => quota.accounted,
            };
            // Without the lock of the quotas. A commit may have accounted for the growth meanwhile.
            let growth = self.growth();
            let mut quota = self.quota();
            if let Some(quota) = quota.as_mut().filter(|quota| quota.accounted == accounted) {
                return quota.charge(tree, (least, most), &growth);
            }
        }
    }

    /// Ends a charge for space that was not used.
    pub(crate) fn release_charge(&self, tree: TreeId, bytes: u64) {
        if self.has_quotas()
            && let Some(quota) = self.quota().as_mut()
        {
            quota.charges.release(tree, bytes);
        }
    }

    /// Ends the charge for an extent that the running transaction has added and removed again.
    pub(crate) fn remove_charged(&self, tree: TreeId, bytes: u64) {
        if self.has_quotas()
            && let Some(quota) = self.quota().as_mut()
        {
            quota.charges.remove(tree, bytes);
        }
    }

    /// Notes that a reference of a subvolume to data of the last commit was dropped.
    pub(crate) fn note_dropped_data(&self, tree: TreeId) {
        if self.has_quotas()
            && let Some(quota) = self.quota().as_mut()
        {
            quota.charges.note_dropped(tree);
        }
    }

    /// Makes the growth of the trees part of the usage.
    pub(crate) fn account_growth(&self) {
        self.references().owned().clear_growth();
        for tree in &self.trees() {
            let mut state = tree.state_mut();
            state.committed_used = used_bytes(&state);
        }
    }

    /// Returns by how many bytes the trees of subvolumes have grown since the last commit; with
    /// simple quotas, the tree blocks that count for them.
    fn growth(&self) -> Growth {
        {
            let mut references = self.references();
            if references.owned().since().is_some() {
                return references.owned().growth().clone();
            }
        }
        let grown = |tree: &Arc<TransactionTree>| {
            let state = tree.state();
            let grown = used_bytes(&state).wrapping_sub(state.committed_used).cast_signed();
            (grown != 0).then_some((tree.id(), grown))
        };
        let trees = self.trees();
        trees.iter().filter(|tree| tree.id().is_subvolume()).filter_map(grown).collect()
    }
}

/// Returns the bytes of the blocks of a tree.
fn used_bytes(tree: &TreeState) -> u64 {
    tree.record.as_ref().map_or(0, |record| record.raw.bytes_used.get())
}

/// Space that is charged to a subvolume while this value exists: the blocks by which its tree may
/// grow.
#[derive(Debug)]
pub struct QuotaHold {
    forest: Arc<Forest>,
    tree: TreeId,
    bytes: u64,
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        if let Ok(running) = self.forest.running() {
            running.release_charge(self.tree, self.bytes);
        }
    }
}

impl Forest {
    /// Charges `bytes_min` to `bytes_max` bytes of data to a subvolume before they are allocated,
    /// and returns how many. [`Self::release_quota_charge`] ends what is not used of it;
    /// [`Handle::add_data_extent`](crate::Handle::add_data_extent) makes it part of the usage.
    ///
    /// # Errors
    /// [`TreeError::QuotaExceeded`]; the volume was opened for reading.
    pub fn charge_data(
        &self,
        tree: TreeId,
        bytes_min: u64,
        bytes_max: u64,
    ) -> Result<u64, TreeError> {
        self.inject_edquot(tree)?;
        self.running()?.charge(tree, bytes_min, bytes_max)
    }

    /// Whether a commit may make room below the limits of a subvolume, because the running
    /// transaction has dropped data. `false` if the forest does not commit for space.
    pub fn commit_may_free_quota(&self, tree: TreeId) -> bool {
        self.commits_for_space()
            && self.running().is_ok_and(|running| {
                running.quota().as_ref().is_some_and(|quota| quota.frees(tree))
            })
    }

    /// Returns the subvolumes with charges for what is not in the trees, of those that share a
    /// limit with `tree`.
    pub fn charged_below_limits(&self, tree: TreeId) -> Vec<TreeId> {
        let Ok(running) = self.running() else { return Vec::new() };
        running.quota().as_ref().map_or_else(Vec::new, |quota| quota.charged_beside(tree))
    }

    /// Returns the first id from `from` on whose group does not exist. The group of a deleted
    /// subvolume stays as long as extents count for it, with its limits and relations; a new
    /// subvolume must not get it, as in the kernel (2b8aa78cf127).
    pub fn first_without_qgroup(&self, from: TreeId) -> TreeId {
        let Ok(running) = self.running() else { return from };
        let quota = running.quota();
        let is_taken =
            |id| quota.as_ref().is_some_and(|quota| quota.groups.get(QgroupId(id)).is_some());
        let mut id = from.0;
        // There are fewer groups than numbers.
        while is_taken(id) && id < u64::MAX {
            id = id.saturating_add(1);
        }
        TreeId(id)
    }

    /// Whether the quotas are simple ones.
    pub fn has_simple_quotas(&self) -> bool {
        let Ok(running) = self.running() else { return false };
        running.quota().as_ref().is_some_and(|quota| quota.simple_since.is_some())
    }

    /// Returns those of some subvolumes that share a limit with `tree`.
    pub fn limited_beside(&self, tree: TreeId, of: &BTreeSet<TreeId>) -> BTreeSet<TreeId> {
        let Ok(running) = self.running() else { return BTreeSet::new() };
        let quota = running.quota();
        quota.as_ref().map_or_else(BTreeSet::new, |quota| quota.limited_beside(tree, of))
    }

    /// Charges the bytes by which merges of a file will grow the tree of a subvolume.
    /// [`Self::release_quota_charge`] ends the charge.
    ///
    /// # Errors
    /// [`TreeError::QuotaExceeded`]; the volume was opened for reading.
    pub fn charge_metadata(&self, tree: TreeId, bytes: u64) -> Result<(), TreeError> {
        self.inject_edquot(tree)?;
        self.running()?.charge(tree, bytes, bytes).map(drop)
    }

    /// Ends the charge of data for which no extent was added, or of metadata.
    pub fn release_quota_charge(&self, tree: TreeId, bytes: u64) {
        if let Ok(running) = self.running() {
            running.release_charge(tree, bytes);
        }
    }

    /// Charges the blocks that changing `items` items may add to a subvolume, as long as the result
    /// exists: longer than the handle of the change. Of three items that one operation changes, at
    /// least two have a neighbour in the same leaf or are changed in place, so they add one block.
    /// Returns `None` if quotas are off.
    ///
    /// # Errors
    /// [`TreeError::QuotaExceeded`]; the volume was opened for reading.
    pub fn hold_quota(
        self: &Arc<Self>,
        tree: TreeId,
        items: u32,
    ) -> Result<Option<QuotaHold>, TreeError> {
        self.inject_edquot(tree)?;
        let running = self.running()?;
        if !running.has_quotas() {
            return Ok(None);
        }
        let blocks = items.div_ceil(ITEMS_PER_BLOCK);
        let bytes = u64::from(running.params.node_bytes).saturating_mul(blocks.into());
        let bytes = running.charge(tree, bytes, bytes)?;
        Ok(Some(QuotaHold { forest: Arc::clone(self), tree, bytes }))
    }
}
