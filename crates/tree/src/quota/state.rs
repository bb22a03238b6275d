//! [`Quota`]: the state of quotas in memory, as of the last commit.
//!
//! Left to others: how a commit changes it (`account`), what it allows (`limits`).

use super::groups::{Groups, group_of};
use super::items;
use super::limits::Charges;
use crate::error::TreeError;
use crate::tree::Tree;
use butternut_format::quota::{STATUS_INCONSISTENT, STATUS_ON, STATUS_RESCAN};
use butternut_format::units::{Generation, TreeId};
use std::sync::Arc;

/// The state of quotas on a volume that is open for writing.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    /// The flags of the status item.
    pub(crate) flags: u64,
    /// The progress of a rescan in the status item.
    pub(crate) rescan: u64,
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
        if status.generation != generation {
            // A writer that knows no quotas has changed the volume since.
            flags |= STATUS_INCONSISTENT;
        }
        let groups = items::read_groups(tree)?;
        let has_limits = groups.iter().any(|(_, group)| group.limit.flags.get() != 0);
        Ok(Some(Self {
            flags,
            rescan: status.rescan,
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
            has_limits: false,
            charges: Charges::default(),
            groups: Groups::default(),
            needs_rescan: true,
            dropped: Vec::new(),
            accounted: 0,
            cause: None,
        }
    }

    /// Whether the usage of the groups is exact (law 1).
    pub(crate) fn is_consistent(&self) -> bool {
        self.flags & STATUS_INCONSISTENT == 0
    }

    /// Adds the group of a new subvolume, if there is none.
    pub(crate) fn add_subvolume(&mut self, tree: TreeId) {
        self.groups.add(group_of(tree));
    }

    /// Gives a snapshot the limits of its source, as the kernel does.
    pub(crate) fn inherit_limits(&mut self, source: TreeId, snapshot: TreeId) {
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
