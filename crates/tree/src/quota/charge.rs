//! Charges of space to subvolumes, before it is allocated.
//!
//! Left to others: what a limit allows (`limits`).

use super::limits::Growth;
use crate::cow::TransactionTree;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::running::Running;
use butternut_format::units::TreeId;
use std::sync::Arc;

impl Running {
    /// Charges space to a subvolume (law 1). Returns the bytes: at least `least`, at most `most`.
    pub(crate) fn charge(&self, tree: TreeId, least: u64, most: u64) -> Result<u64, TreeError> {
        if !self.has_quotas() {
            return Ok(most);
        }
        let has_limits = match self.quota().as_ref() {
            Some(quota) => quota.has_limits,
            None => return Ok(most),
        };
        let growth = if has_limits { self.growth() } else { Growth::new() };
        match self.quota().as_mut() {
            Some(quota) => quota.charge(tree, (least, most), &growth),
            None => Ok(most),
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

    /// Returns by how many bytes the trees of subvolumes have grown since the last commit.
    fn growth(&self) -> Growth {
        let grown = |tree: &Arc<TransactionTree>| {
            let state = tree.state();
            let used = state.record.as_ref().map_or(0, |record| record.raw.bytes_used.get());
            (tree.id(), used.wrapping_sub(state.committed_used).cast_signed())
        };
        let trees = self.trees();
        trees.iter().filter(|tree| tree.id().is_subvolume()).map(grown).collect()
    }
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
    /// and returns how many. [`Self::release_data_charge`] ends what is not used of it;
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
        self.running()?.charge(tree, bytes_min, bytes_max)
    }

    /// Ends the charge of data for which no extent was added.
    pub fn release_data_charge(&self, tree: TreeId, bytes: u64) {
        if let Ok(running) = self.running() {
            running.release_charge(tree, bytes);
        }
    }

    /// Charges the blocks that changing `items` items may add to a subvolume, as long as the result
    /// exists: longer than the handle of the change. Returns `None` if quotas are off.
    ///
    /// # Errors
    /// [`TreeError::QuotaExceeded`]; the volume was opened for reading.
    pub fn hold_quota(
        self: &Arc<Self>,
        tree: TreeId,
        items: u32,
    ) -> Result<Option<QuotaHold>, TreeError> {
        let running = self.running()?;
        if !running.has_quotas() {
            return Ok(None);
        }
        let bytes = u64::from(running.params.node_bytes).saturating_mul(items.into());
        let bytes = running.charge(tree, bytes, bytes)?;
        Ok(Some(QuotaHold { forest: Arc::clone(self), tree, bytes }))
    }
}
