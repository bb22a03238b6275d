//! Owned bytes: the bytes of extents that a transaction has added and removed, by the tree that
//! each extent was allocated for. Simple quotas account for them at the commit.
//!
//! Laws:
//!
//! 1. The owner of data is that of the owner reference in its extent item; the owner of a tree
//!    block, that in its header. Neither changes while the extent exists, though other trees may
//!    come to refer to it.
//! 2. Only extents of the generation in which simple quotas began, and newer ones, count. So what
//!    is removed was added before.
//! 3. An extent that is added and removed in one transaction does not count: it has no item.
//!
//! Left to others: when an extent is added or removed (`apply`), the groups (`quota::simple`).

use crate::quota::limits::Growth;
use butternut_format::units::{Generation, TreeId};
use std::collections::BTreeMap;

/// Bytes by owner: positive if more were added than removed. Only subvolumes count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedBytes {
    bytes: BTreeMap<TreeId, i128>,
}

impl OwnedBytes {
    pub(crate) fn add(&mut self, owner: TreeId, bytes: u64) {
        self.change(owner, bytes.into());
    }

    pub(crate) fn remove(&mut self, owner: TreeId, bytes: u64) {
        self.change(owner, -i128::from(bytes));
    }

    fn change(&mut self, owner: TreeId, bytes: i128) {
        if owner.is_subvolume() {
            let sum = self.bytes.entry(owner).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns the owners, by rising id, with their bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TreeId, i128)> {
        self.bytes.iter().map(|(owner, bytes)| (*owner, *bytes))
    }
}

/// Records owned bytes while simple quotas are on.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    since: Option<Generation>,
    bytes: OwnedBytes,
    /// Bytes of the tree blocks that were allocated and dropped since the last commit, for limits:
    /// what `bytes` will say of them.
    growth: Growth,
}

impl Owned {
    /// Begins to record extents of `since` and newer ones (law 2); with `None`, ends it.
    pub(crate) fn set_since(&mut self, since: Option<Generation>) {
        *self = Self { since, bytes: OwnedBytes::default(), growth: Growth::new() };
    }

    /// Returns the first generation that counts; `None` while simple quotas are off.
    pub(crate) fn since(&self) -> Option<Generation> {
        self.since
    }

    /// Notes that a tree block was allocated.
    pub(crate) fn grow(&mut self, owner: TreeId, bytes: u64) {
        self.change_growth(owner, bytes.try_into().unwrap_or(i64::MAX));
    }

    /// Notes that a tree block that counts has no reference any more.
    pub(crate) fn shrink(&mut self, owner: TreeId, bytes: u64) {
        let bytes: i64 = bytes.try_into().unwrap_or(i64::MAX);
        self.change_growth(owner, -bytes);
    }

    fn change_growth(&mut self, owner: TreeId, bytes: i64) {
        if self.since.is_some() && owner.is_subvolume() {
            let sum = self.growth.entry(owner).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    pub(crate) fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Forgets the growth, which is part of the usage now.
    pub(crate) fn clear_growth(&mut self) {
        self.growth.clear();
    }

    /// Adds the bytes of extents whose items have changed.
    pub(crate) fn record(&mut self, changed: &OwnedBytes) {
        for (owner, bytes) in changed.iter() {
            self.bytes.change(owner, bytes);
        }
    }

    /// Returns what was recorded, and goes on with nothing.
    pub(crate) fn take(&mut self) -> OwnedBytes {
        std::mem::take(&mut self.bytes)
    }
}
