//! Administration of quotas: enabling, disabling, rescans, groups and their relations. All changes
//! are made inside a commit, which computes all usage again where it may have changed.
//!
//! Laws:
//!
//! 1. What is refused is refused before the first change.
//! 2. The usage of groups above level 0 follows from that of the extents, not from that of their
//!    children, which may share extents. So a new relation makes the commit compute it again.
//!
//! 3. No extent of the last commit counts for a subvolume that this commit makes. So its relations
//!    change no usage that is accounted for already, and nothing is computed again.
//! 4. With simple quotas, the usage of a group above level 0 is the sum of what its subvolumes own.
//!    So a relation changes it at once, and nothing is read for it.
//!
//! Left to others: the accounting (`account`).

use super::groups::{QgroupUsage, group_of};
use super::items::{self, corrupt};
use super::state::Quota;
use super::write;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::TreeEdit;
use crate::transaction::commit::at_commit::AtCommit;
use crate::transaction::running::Running;
use butternut_format::feature::SIMPLE_QUOTA;
use butternut_format::key::{ItemType, Key};
use butternut_format::quota::{
    LIMIT_EXCLUSIVE, LIMIT_REFERENCED, QgroupId, QgroupStatus, RawQgroupLimit, STATUS_ON,
    STATUS_SIMPLE_MODE,
};
use butternut_format::refused::{Refused, require};
use butternut_format::root::RawRootItem;
use butternut_format::units::{Generation, TreeId};
use std::sync::Arc;
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

/// What quotas count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaMode {
    /// The extents that subvolumes refer to, and those that no other one refers to.
    #[default]
    Full,
    /// The extents that subvolumes have allocated while these quotas were enabled: simple quotas.
    Simple,
}

/// The quotas of a volume, as of the last commit.
#[derive(Clone, Debug)]
pub struct Quotas {
    pub status: QgroupStatus,
    /// All groups, by rising id.
    pub groups: Vec<Qgroup>,
}

/// A quota group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qgroup {
    pub id: QgroupId,
    pub usage: QgroupUsage,
    pub limits: QgroupLimits,
    /// The groups that include this one, by rising id.
    pub parents: Vec<QgroupId>,
}

/// The limits of a quota group, in bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QgroupLimits {
    pub referenced: Option<u64>,
    pub exclusive: Option<u64>,
}

impl Quotas {
    /// Returns what they count.
    pub fn mode(&self) -> QuotaMode {
        let is_simple = self.status.flags & STATUS_SIMPLE_MODE != 0;
        if is_simple { QuotaMode::Simple } else { QuotaMode::Full }
    }
}

impl Forest {
    /// Reads the quotas; `None` if they are off.
    ///
    /// # Errors
    /// The quota tree cannot be read.
    pub fn quotas(self: &Arc<Self>) -> Result<Option<Quotas>, TreeError> {
        let read = self.read_quotas();
        // Another thread may have disabled them meanwhile, and freed the tree.
        let is_off = || self.running().is_ok_and(|running| !running.has_quotas());
        if read.is_err() && is_off() { Ok(None) } else { read }
    }

    /// Returns the groups that a subvolume inherits that is made inside subvolume `inside`: with
    /// simple quotas, those that include the group of `inside`.
    pub fn inherited_qgroups(&self, inside: TreeId) -> Vec<QgroupId> {
        self.running().map(|running| inherited(running, inside)).unwrap_or_default()
    }

    fn read_quotas(self: &Arc<Self>) -> Result<Option<Quotas>, TreeError> {
        let Some(tree) = self.tree(TreeId::QUOTA)? else { return Ok(None) };
        let status = items::read_status(&tree)?.filter(|status| status.flags & STATUS_ON != 0);
        let Some(status) = status else { return Ok(None) };
        let groups = items::read_groups(&tree)?;
        let groups = groups.iter().map(|(id, group)| Qgroup {
            id,
            usage: group.usage,
            limits: limits(&group.limit),
            parents: group.parents.iter().copied().collect(),
        });
        Ok(Some(Quotas { status, groups: groups.collect() }))
    }

    /// Returns why the usage of the groups became inconsistent since the volume was opened for
    /// writing, or since the last rescan; `None` if it did not.
    pub fn quota_error(&self) -> Option<Arc<TreeError>> {
        let running = self.running().ok()?;
        let quota = running.quota();
        quota.as_ref().and_then(|quota| quota.cause.clone())
    }
}

fn inherited(running: &Running, inside: TreeId) -> Vec<QgroupId> {
    let quota = running.quota();
    let quota = quota.as_ref().filter(|quota| quota.simple_since.is_some());
    let group = quota.and_then(|quota| quota.groups.get(group_of(inside)));
    group.map_or_else(Vec::new, |group| group.parents.iter().copied().collect())
}

fn limits(raw: &RawQgroupLimit) -> QgroupLimits {
    let limit = |flag, bytes: U64| (raw.flags.get() & flag != 0).then_some(bytes.get());
    let referenced = limit(LIMIT_REFERENCED, raw.max_rfer);
    QgroupLimits { referenced, exclusive: limit(LIMIT_EXCLUSIVE, raw.max_excl) }
}

impl AtCommit<'_> {
    /// Enables quotas, with a group for each subvolume. The commit computes the usage; that of
    /// simple quotas begins with nothing, and only extents of later commits count. Returns `false`,
    /// and changes nothing, if such quotas are enabled already.
    ///
    /// # Errors
    /// Quotas of the other mode are enabled; there is no space; a tree cannot be read.
    pub fn enable_quotas(&self, mode: QuotaMode) -> Result<bool, TreeError> {
        let running = self.commit().running;
        let have = running.quota().as_ref().map(|quota| quota.simple_since.is_some());
        if let Some(is_simple) = have {
            let (have, want) = if is_simple {
                ("simple ones", "disabled, before others are enabled")
            } else {
                ("full ones", "disabled, before simple ones are enabled")
            };
            let is_same = is_simple == (mode == QuotaMode::Simple);
            require(is_same, "quotas", have, want).map_err(TreeError::Invalid)?;
            return Ok(false);
        }
        self.remove_quota_tree()?;
        let mut root = RawRootItem::new_zeroed();
        root.refs.set(1);
        self.create_tree(TreeId::QUOTA, &root)?;
        let quota = match mode {
            QuotaMode::Full => Quota::enabled(),
            QuotaMode::Simple => {
                self.add_feature(SIMPLE_QUOTA);
                let next = self.generation().0.saturating_add(1);
                let mut quota = Quota::enabled_simple(Generation(next));
                self.commit().add_missing_groups(&mut quota)?;
                quota
            }
        };
        let is_short = !running.super_block().has(SIMPLE_QUOTA);
        write::add_status(&self.tree(TreeId::QUOTA)?, &quota, is_short)?;
        running.set_quota(Some(quota));
        Ok(true)
    }

    /// Disables quotas, and removes all groups. Returns `false`, and changes nothing, if they are
    /// disabled already.
    ///
    /// # Errors
    /// The quota tree cannot be read.
    pub fn disable_quotas(&self) -> Result<bool, TreeError> {
        let running = self.commit().running;
        let quota = running.quota().clone();
        if quota.is_none() {
            return Ok(false);
        }
        // First, for readers of the tree.
        running.set_quota(None);
        let removed = self.remove_quota_tree();
        if let (Err(_), Some(mut quota)) = (&removed, quota) {
            // Changes of other threads were not accounted for meanwhile.
            quota.fail(TreeError::Invalid(Refused::new("quotas", "not disabled", "disabled")));
            running.set_quota(Some(quota));
        }
        removed.map(|()| true)
    }

    /// Makes the commit compute the usage of all groups again.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if quotas are off.
    pub fn rescan_quotas(&self) -> Result<(), TreeError> {
        self.with_quota(|quota, _| {
            quota.needs_rescan = true;
            Ok(())
        })
    }

    /// Adds a group above level 0, which includes nothing.
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: quotas are off, there is such a group, or its level is 0.
    pub fn create_qgroup(&self, id: QgroupId) -> Result<(), TreeError> {
        self.with_quota(|quota, _| {
            require(id.level() > 0, "quota group", id, "one above level 0")
                .map_err(TreeError::Invalid)?;
            require(quota.groups.add(id), "quota group", id, "a new one")
                .map_err(TreeError::Invalid)
        })
    }

    /// Removes a group that includes no other, and no subvolume.
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: quotas are off, or the group does not exist or includes something.
    pub fn remove_qgroup(&self, id: QgroupId) -> Result<(), TreeError> {
        let has_tree = id.level() == 0 && self.commit().root_of(TreeId(id.0))?.is_some();
        self.with_quota(|quota, edit| {
            let group = quota.groups.get(id);
            require(group.is_some(), "quota group", id, "an existing one")
                .map_err(TreeError::Invalid)?;
            require(!has_tree, "quota group", id, "one whose subvolume is deleted")
                .map_err(TreeError::Invalid)?;
            let includes = group.is_some_and(|group| group.usage != QgroupUsage::default())
                || quota.groups.iter().any(|(_, child)| child.parents.contains(&id));
            require(!includes, "quota group", id, "one that includes nothing")
                .map_err(TreeError::Invalid)?;
            let related = quota.groups.remove(id).unwrap_or_default();
            write::remove_group(edit, id, &related)
        })
    }

    /// Makes `parent` include `child` (law 2).
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: quotas are off, a group does not exist, the level of the parent is
    /// not above the child's, or it includes it already; simple quotas have too many groups.
    pub fn assign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<(), TreeError> {
        self.with_quota(|quota, edit| {
            let is_new = quota.groups.relate(child, parent).map_err(TreeError::Invalid)?;
            require(is_new, "parent group", parent, "one that does not include the child")
                .map_err(TreeError::Invalid)?;
            quota.change_relations()?;
            write::write_relation(edit, child, parent)
        })
    }

    /// Returns the first of these groups that does not exist; `None` if quotas are off.
    pub fn missing_qgroup(&self, groups: &[QgroupId]) -> Option<QgroupId> {
        let quota = self.commit().running.quota();
        let quota = quota.as_ref()?;
        groups.iter().copied().find(|id| quota.groups.get(*id).is_none())
    }

    /// Makes groups include the group of a subvolume that this commit makes inside subvolume
    /// `inside` (law 3); if none are given, those that it inherits
    /// ([`Forest::inherited_qgroups`]). Does nothing if quotas are off.
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: a group does not exist, or its level is 0; the quota tree cannot be
    /// read.
    pub fn include_new_subvolume(
        &self,
        tree: TreeId,
        inside: TreeId,
        parents: &[QgroupId],
    ) -> Result<(), TreeError> {
        let running = self.commit().running;
        let is_given = !parents.is_empty();
        let parents = if is_given { parents.to_vec() } else { inherited(running, inside) };
        if parents.is_empty() || !running.has_quotas() {
            return Ok(());
        }
        let child = group_of(tree);
        self.with_quota(|quota, edit| {
            for parent in parents {
                if quota.groups.relate(child, parent).map_err(TreeError::Invalid)? {
                    write::write_relation(edit, child, parent)?;
                }
            }
            Ok(())
        })
    }

    /// Ends that `parent` includes `child` (law 2).
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: quotas are off, or the parent does not include the child; simple
    /// quotas have too many groups.
    pub fn unassign_qgroup(&self, child: QgroupId, parent: QgroupId) -> Result<(), TreeError> {
        self.with_quota(|quota, edit| {
            let group = quota.groups.get_mut(child);
            let is_removed = group.is_some_and(|group| group.parents.remove(&parent));
            require(is_removed, "parent group", parent, "one that includes the child")
                .map_err(TreeError::Invalid)?;
            quota.change_relations()?;
            write::remove_relation(edit, child, parent)
        })
    }

    /// Sets the limits of a group to what `change` makes of them. What is above them stays, and
    /// nothing can be added to it.
    ///
    /// # Errors
    /// [`TreeError::Invalid`]: quotas are off, or there is no such group.
    pub fn limit_qgroup(
        &self,
        id: QgroupId,
        change: impl FnOnce(QgroupLimits) -> QgroupLimits,
    ) -> Result<(), TreeError> {
        self.with_quota(|quota, _| {
            let group = quota.groups.get_mut(id);
            let group = group.ok_or_else(|| {
                TreeError::Invalid(Refused::new("quota group", id, "an existing one"))
            })?;
            let limits = change(limits(&group.limit));
            let flag = |limit: Option<u64>, flag| limit.map_or(0, |_| flag);
            let known = LIMIT_REFERENCED | LIMIT_EXCLUSIVE;
            let set =
                flag(limits.referenced, LIMIT_REFERENCED) | flag(limits.exclusive, LIMIT_EXCLUSIVE);
            group.limit.flags.set(group.limit.flags.get() & !known | set);
            group.limit.max_rfer.set(limits.referenced.unwrap_or(0));
            group.limit.max_excl.set(limits.exclusive.unwrap_or(0));
            group.is_stale = true;
            quota.has_limits |= set != 0;
            Ok(())
        })
    }

    /// Calls `change` with the quotas and their tree.
    fn with_quota(
        &self,
        change: impl FnOnce(&mut Quota, &TreeEdit<'_>) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let running = self.commit().running;
        let Some(mut quota) = running.quota().clone() else {
            let refused = Refused::new("quotas", "disabled", "enabled");
            return Err(TreeError::Invalid(refused));
        };
        let changed = self.tree(TreeId::QUOTA).and_then(|edit| change(&mut quota, &edit));
        if changed.is_ok() {
            running.replace_quota(quota, false);
            self.mark_changed();
        }
        changed
    }

    /// Removes the quota tree, if there is one.
    fn remove_quota_tree(&self) -> Result<(), TreeError> {
        let running = self.commit().running;
        let Some(tree) = running.tree(TreeId::QUOTA)? else { return Ok(()) };
        let edit = self.tree(TreeId::QUOTA)?;
        edit.remove_range(Key::MIN..Key::MAX, &mut |_, _| {})?;
        // A crafted tree may have an item at the last key, which no range includes.
        edit.remove(&Key::MAX)?;
        edit.free_root()?;
        let key = tree.state().record.as_ref().map(|record| record.key);
        let key = key.unwrap_or_else(|| Key::new(TreeId::QUOTA.0, ItemType::ROOT_ITEM, 0));
        let is_removed = self.tree(TreeId::ROOT)?.remove(&key)?;
        require(is_removed, "root item", "none", "one of the quota tree").map_err(corrupt)?;
        running.forget_tree(TreeId::QUOTA);
        Ok(())
    }
}
