//! [`Quota`]: the state of quotas in memory, as of the last commit.
//!
//! Left to others: how a commit changes it (`account`), what it allows (`limits`).

use super::groups::{Groups, group_of};
use super::items;
use super::limits::Charges;
use crate::error::TreeError;
use crate::tree::Tree;
use butternut_format::quota::{
    QgroupStatus, STATUS_INCONSISTENT, STATUS_ON, STATUS_RESCAN, STATUS_SIMPLE_MODE,
};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, TreeId};
use std::sync::Arc;

/// The state of quotas on a volume that is open for writing.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    /// The flags of the status item.
    pub(crate) flags: u64,
    /// The progress of a rescan in the status item.
    pub(crate) rescan: u64,
    /// Of simple quotas: the first generation whose extents count. `None` for full ones.
    pub(crate) simple_since: Option<Generation>,
    pub(crate) groups: Groups,
    /// Whether the next commit computes all usage again.
    pub(crate) needs_rescan: bool,
    /// Whether a group may have limits.
    pub(crate) has_limits: bool,
    pub(crate) charges: Charges,
    /// Subvolumes whose last block was freed since the last commit.
    pub(crate) dropped: Vec<TreeId>,
    /// Incremented when a commit has made charges and growth part of the usage.
    pub(crate) accounted: u64,
    /// Why the usage became inconsistent since the volume was opened.
    pub(crate) cause: Option<Arc<TreeError>>,
}

impl Quota {
    /// Reads the state of the quotas from the last commit, which is of `generation`; `None` if
    /// quotas are off.
    pub(crate) fn read(tree: &Tree, generation: Generation) -> Result<Option<Self>, TreeError> {
        let Some(status) = items::read_status(tree)? else { return Ok(None) };
        if status.flags & STATUS_ON == 0 {
            return Ok(None);
        }
        let mut flags = status.flags;
        let simple_since = simple_since(&status)?;
        // As in the kernel: a writer that knows no simple quotas refuses the feature.
        if status.generation != generation && simple_since.is_none() {
            // A writer that knows no quotas has changed the volume since.
            flags |= STATUS_INCONSISTENT;
        }
        let groups = items::read_groups(tree)?;
        // Such a kernel (`simple`) takes numbers below zero, which wrap.
        let is_negative = |usage: u64| usage > i64::MAX.unsigned_abs();
        if simple_since.is_some()
            && groups.iter().any(|(_, group)| is_negative(group.usage.referenced))
        {
            flags |= STATUS_INCONSISTENT;
        }
        let has_limits = groups.iter().any(|(_, group)| group.limit.flags.get() != 0);
        Ok(Some(Self {
            flags,
            rescan: status.rescan,
            simple_since,
            has_limits,
            charges: Charges::default(),
            groups,
            // The first commit makes the usage exact, also where the kernel waits for a rescan:
            // limits are kept only then.
            needs_rescan: flags & (STATUS_RESCAN | STATUS_INCONSISTENT) != 0,
            dropped: Vec::new(),
            accounted: 0,
            cause: None,
        }))
    }

    /// Makes the state of quotas that were just enabled, without groups.
    pub(crate) fn enabled() -> Self {
        Self {
            flags: STATUS_ON,
            rescan: 0,
            simple_since: None,
            has_limits: false,
            charges: Charges::default(),
            groups: Groups::default(),
            needs_rescan: true,
            dropped: Vec::new(),
            accounted: 0,
            cause: None,
        }
    }

    /// Makes the state of simple quotas that were just enabled, without groups. Extents of `since`
    /// and newer ones count.
    pub(crate) fn enabled_simple(since: Generation) -> Self {
        Self {
            flags: STATUS_ON | STATUS_SIMPLE_MODE,
            simple_since: Some(since),
            needs_rescan: false,
            ..Self::enabled()
        }
    }

    /// Makes the usage of groups above level 0 follow from relations that have changed: at once for
    /// simple quotas, in the commit for full ones.
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: the groups of simple quotas are too many ([`Groups::sum_members`]).
    pub(crate) fn change_relations(&mut self) -> Result<(), TreeError> {
        if self.simple_since.is_some() {
            return self.groups.sum_members().map_err(TreeError::Invalid);
        }
        self.needs_rescan = true;
        Ok(())
    }

    /// Whether the usage of the groups is exact (law 1).
    pub(crate) fn is_consistent(&self) -> bool {
        self.flags & STATUS_INCONSISTENT == 0
    }

    /// Adds the group of a new subvolume, if there is none.
    pub(crate) fn add_subvolume(&mut self, tree: TreeId) {
        self.groups.add(group_of(tree));
    }

    /// Gives a snapshot the limits of its source, as the kernel does, but not with simple quotas.
    pub(crate) fn inherit_limits(&mut self, source: TreeId, snapshot: TreeId) {
        if self.simple_since.is_some() {
            return;
        }
        let limit = self.groups.get(group_of(source)).map(|group| group.limit);
        if let Some((group, limit)) = self.groups.get_mut(group_of(snapshot)).zip(limit) {
            group.limit = limit;
            group.is_stale = true;
        }
    }

    /// Notes that a deleted subvolume has no blocks any more.
    pub(crate) fn note_dropped(&mut self, tree: TreeId) {
        self.dropped.push(tree);
    }

    /// Makes the usage inconsistent.
    pub(crate) fn fail(&mut self, cause: TreeError) {
        self.flags |= STATUS_INCONSISTENT;
        self.cause.get_or_insert_with(|| Arc::new(cause));
    }
}

/// Returns the first generation that simple quotas count; `None` if the quotas are full ones.
///
/// # Errors
/// The status item of simple quotas does not have it.
pub(crate) fn simple_since(status: &QgroupStatus) -> Result<Option<Generation>, TreeError> {
    if status.flags & STATUS_SIMPLE_MODE == 0 {
        return Ok(None);
    }
    let refused = || Refused::new("status item: enable_gen", "none", "one, for simple quotas");
    status.enable_generation.ok_or_else(|| items::corrupt(refused())).map(Some)
}
