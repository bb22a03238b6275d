//! Quota groups in memory: their usage, their limits, and which groups include which.
//!
//! ```text
//! level 2           2/1
//!                  /   \
//! level 1       1/100  1/200       a group includes what the groups below it use
//!              /    \    |
//! level 0   0/257  0/258 0/259     one group for each subvolume
//! ```
//!
//! Laws:
//!
//! 1. A group *refers* to an extent if a subvolume that it includes does. It has the extent
//!    *exclusively* if every subvolume that refers to the extent is one that it includes.
//! 2. A parent has a higher level than its child. So every walk upward ends.
//! 3. Usage is exact or refused: it never goes below zero, and it is never clipped.
//! 4. Groups may lie above each other in thousands of levels on a crafted volume, and extents have
//!    many sets of subvolumes. So at most [`VISITS_MAX`] groups are visited for the changes of a
//!    commit, and for a change of relations.
//!
//! Left to others: which subvolumes refer to an extent (`roots`), the items (`items`).

use butternut_format::quota::{QgroupId, RawQgroupLimit};
use butternut_format::refused::{Refused, require};
use butternut_format::units::TreeId;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromZeros;

/// Maximum number of visits of groups for the changes of one commit, or for one change of
/// relations. It takes half a minute.
const VISITS_MAX: u64 = if cfg!(test) { 1 << 20 } else { 1 << 28 };

/// The bytes on disk that a group uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QgroupUsage {
    /// Bytes of the extents that the group refers to.
    pub referenced: u64,
    /// Bytes of the extents that no subvolume outside the group refers to.
    pub exclusive: u64,
}

/// The change of the usage of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageDelta {
    referenced: i128,
    exclusive: i128,
}

impl UsageDelta {
    /// Adds bytes that are referenced and exclusive.
    pub(crate) fn add_both(&mut self, bytes: i128) {
        self.referenced = self.referenced.saturating_add(bytes);
        self.exclusive = self.exclusive.saturating_add(bytes);
    }
}

/// The changes of a commit, by group.
#[derive(Debug, Default)]
pub(crate) struct UsageDeltas {
    groups: BTreeMap<QgroupId, UsageDelta>,
    /// Groups that were visited, each as often as it was.
    visits: u64,
}

impl UsageDeltas {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn check_visits(&self) -> Result<(), Refused> {
        check_visits(self.visits, "fewer to visit for all sets of subvolumes")
    }
}

/// Refuses more visits than law 4 allows. At most as many as there are groups follow the last call
/// that succeeded.
pub(crate) fn check_visits(visits: u64, want: &'static str) -> Result<(), Refused> {
    require(visits <= VISITS_MAX, "quota groups", visits, want)
}

/// A quota group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) usage: QgroupUsage,
    pub(crate) limit: RawQgroupLimit,
    pub(crate) parents: BTreeSet<QgroupId>,
    /// Whether the items on disk differ.
    pub(crate) is_stale: bool,
}

impl Default for Group {
    fn default() -> Self {
        let limit = RawQgroupLimit::new_zeroed();
        Self { usage: QgroupUsage::default(), limit, parents: BTreeSet::new(), is_stale: true }
    }
}

/// The quota groups of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<QgroupId, Group>,
}

/// Returns the group of a subvolume.
pub(crate) fn group_of(tree: TreeId) -> QgroupId {
    QgroupId(tree.0)
}

impl Groups {
    pub(crate) fn get(&self, id: QgroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: QgroupId) -> Option<&mut Group> {
        self.groups.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (QgroupId, &Group)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (QgroupId, &mut Group)> {
        self.groups.iter_mut().map(|(id, group)| (*id, group))
    }

    /// Adds a group that uses nothing. Returns `false` if there is one with this id.
    pub(crate) fn add(&mut self, id: QgroupId) -> bool {
        let is_new = !self.groups.contains_key(&id);
        self.groups.entry(id).or_default();
        is_new
    }

    /// Removes a group, and its relations to parents and children. Returns its parents and its
    /// children; `None` if there is no such group.
    pub(crate) fn remove(&mut self, id: QgroupId) -> Option<Vec<QgroupId>> {
        let removed = self.groups.remove(&id)?;
        let mut related: Vec<QgroupId> = removed.parents.into_iter().collect();
        for (child, group) in &mut self.groups {
            if group.parents.remove(&id) {
                related.push(*child);
            }
        }
        Some(related)
    }

    /// Makes `parent` include `child`. Returns whether it did not before.
    ///
    /// # Errors
    /// One of the groups does not exist, or the parent's level is not above the child's (law 2).
    pub(crate) fn relate(&mut self, child: QgroupId, parent: QgroupId) -> Result<bool, Refused> {
        let want = format_args!("of a level above {}", child.level()).to_string();
        require(parent.level() > child.level(), "parent group", parent, want)?;
        let has_parent = self.groups.contains_key(&parent);
        require(has_parent, "parent group", parent, "an existing one")?;
        let group = self.groups.get_mut(&child);
        let group = group.ok_or_else(|| Refused::new("child group", child, "an existing one"))?;
        Ok(group.parents.insert(parent))
    }

    /// Sets the usage of all groups to nothing.
    pub(crate) fn clear_usage(&mut self) {
        for group in self.groups.values_mut() {
            group.is_stale |= group.usage != QgroupUsage::default();
            group.usage = QgroupUsage::default();
        }
    }

    /// Calls `visit` once for each group that includes the group `from`, itself too.
    pub(crate) fn including(&self, from: QgroupId, mut visit: impl FnMut(QgroupId)) {
        if !self.groups.contains_key(&from) {
            return;
        }
        // The lowest level is visited first, so no group is added after it was visited (law 2).
        let mut next = BTreeSet::from([from]);
        while let Some(id) = next.pop_first() {
            visit(id);
            let parents = self.groups.get(&id).map(|group| &group.parents);
            next.extend(parents.into_iter().flatten().filter(|parent| parent.level() > id.level()));
        }
    }

    /// Adds to `deltas` what changes when subvolumes `before` referred to `bytes` of extents, and
    /// subvolumes `after` refer to them now. Neither has duplicates.
    ///
    /// # Errors
    /// There are more groups to visit than the deltas allow (law 4). Some may have changed.
    pub(crate) fn collect(
        &self,
        bytes: u64,
        (before, after): (&[TreeId], &[TreeId]),
        deltas: &mut UsageDeltas,
    ) -> Result<(), Refused> {
        let mut counts: BTreeMap<QgroupId, (usize, usize)> = BTreeMap::new();
        for root in before {
            self.including(group_of(*root), |id| {
                let (count, _) = counts.entry(id).or_default();
                *count = count.saturating_add(1);
                deltas.visits = deltas.visits.saturating_add(1);
            });
            deltas.check_visits()?;
        }
        for root in after {
            self.including(group_of(*root), |id| {
                let (_, count) = counts.entry(id).or_default();
                *count = count.saturating_add(1);
                deltas.visits = deltas.visits.saturating_add(1);
            });
            deltas.check_visits()?;
        }
        for (id, (had, has)) in counts {
            let was_exclusive = had > 0 && had == before.len();
            let is_exclusive = has > 0 && has == after.len();
            let delta = deltas.groups.entry(id).or_default();
            delta.referenced = added(delta.referenced, bytes, had > 0, has > 0);
            delta.exclusive = added(delta.exclusive, bytes, was_exclusive, is_exclusive);
        }
        Ok(())
    }

    /// Adds to `deltas` what changes when a subvolume owns so many bytes more.
    ///
    /// # Errors
    /// As of [`Self::collect`].
    pub(crate) fn collect_owned(
        &self,
        owner: TreeId,
        bytes: i128,
        deltas: &mut UsageDeltas,
    ) -> Result<(), Refused> {
        self.including(group_of(owner), |id| {
            deltas.groups.entry(id).or_default().add_both(bytes);
            deltas.visits = deltas.visits.saturating_add(1);
        });
        deltas.check_visits()
    }

    /// Changes the usage of groups.
    ///
    /// # Errors
    /// The usage of a group contradicts the changes (law 3). Some groups may have changed.
    pub(crate) fn apply(&mut self, deltas: &UsageDeltas) -> Result<(), Refused> {
        for (id, delta) in &deltas.groups {
            let Some(group) = self.groups.get_mut(id) else { continue };
            let old = group.usage;
            let changed = |usage: u64, delta: i128| {
                let new = i128::from(usage).saturating_add(delta);
                u64::try_from(new).map_err(|_| {
                    let want = format_args!("one that {delta} can be added to").to_string();
                    Refused::new("usage", usage, want).at(format_args!("quota group {id}"))
                })
            };
            group.usage = QgroupUsage {
                referenced: changed(old.referenced, delta.referenced)?,
                exclusive: changed(old.exclusive, delta.exclusive)?,
            };
            group.is_stale |= group.usage != old;
        }
        Ok(())
    }
}

/// Returns the sum after `bytes` were added or removed.
fn added(sum: i128, bytes: u64, had: bool, has: bool) -> i128 {
    match (had, has) {
        (true, false) => sum.saturating_sub(bytes.into()),
        (false, true) => sum.saturating_add(bytes.into()),
        (true, true) | (false, false) => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::{Groups, QgroupUsage, UsageDeltas, VISITS_MAX};
    use butternut_format::quota::QgroupId;
    use butternut_format::refused::Refused;
    use butternut_format::units::TreeId;

    const A: TreeId = TreeId(257);
    const B: TreeId = TreeId(258);
    const OUTSIDE: TreeId = TreeId(259);
    const PARENT: QgroupId = QgroupId((1 << 48) + 100);
    const TOP: QgroupId = QgroupId(2 << 48 | 1);

    fn groups() -> Groups {
        let mut groups = Groups::default();
        for id in [QgroupId(A.0), QgroupId(B.0), QgroupId(OUTSIDE.0), PARENT, TOP] {
            assert!(groups.add(id));
        }
        for (child, parent) in [(QgroupId(A.0), PARENT), (QgroupId(B.0), PARENT), (PARENT, TOP)] {
            assert!(groups.relate(child, parent).expect("two groups"));
        }
        groups
    }

    fn usage(groups: &Groups, id: QgroupId) -> (u64, u64) {
        let QgroupUsage { referenced, exclusive } = groups.get(id).expect("a group").usage;
        (referenced, exclusive)
    }

    fn account(
        groups: &mut Groups,
        bytes: u64,
        before: &[TreeId],
        after: &[TreeId],
    ) -> Result<(), Refused> {
        let mut deltas = UsageDeltas::default();
        groups.collect(bytes, (before, after), &mut deltas)?;
        groups.apply(&deltas)
    }

    #[test]
    fn a_parent_has_exclusively_what_only_its_children_share() {
        let mut groups = groups();
        account(&mut groups, 10, &[], &[A, B]).expect("an addition");
        account(&mut groups, 7, &[], &[A, OUTSIDE]).expect("an addition");
        account(&mut groups, 1, &[], &[B]).expect("an addition");
        let seen = |groups: &Groups| {
            [QgroupId(A.0), QgroupId(B.0), QgroupId(OUTSIDE.0), PARENT, TOP]
                .map(|id| usage(groups, id))
        };
        assert_eq!(seen(&groups), [(17, 0), (11, 1), (7, 0), (18, 11), (18, 11)]);
        account(&mut groups, 7, &[A, OUTSIDE], &[A]).expect("a removal");
        account(&mut groups, 10, &[A, B], &[B, OUTSIDE]).expect("a change");
        assert_eq!(seen(&groups), [(7, 7), (11, 1), (10, 0), (18, 8), (18, 8)]);
    }

    #[test]
    fn usage_never_goes_below_zero() {
        let mut groups = groups();
        account(&mut groups, 10, &[], &[A]).expect("an addition");
        let refused =
            account(&mut groups, 11, &[A], &[]).expect_err("more than there is").to_string();
        assert!(refused.contains("quota group 0/257"), "{refused}");
    }

    #[test]
    fn a_parent_is_of_a_higher_level() {
        let mut groups = groups();
        assert!(groups.relate(PARENT, QgroupId(A.0)).is_err());
        assert!(groups.relate(PARENT, PARENT).is_err());
        assert!(groups.relate(QgroupId(A.0), QgroupId(5 << 48)).is_err());
        assert_eq!(groups.remove(PARENT), Some(vec![TOP, QgroupId(A.0), QgroupId(B.0)]));
        account(&mut groups, 3, &[], &[A]).expect("an addition");
        assert_eq!((usage(&groups, TOP), usage(&groups, QgroupId(A.0))), ((0, 0), (3, 3)));
    }

    /// As a crafted quota tree of 2 MB has them.
    #[test]
    fn visits_of_a_long_chain_of_groups_are_bounded() {
        const CHAIN: u64 = 20_000;
        let mut groups = Groups::default();
        let above = |level: u64| QgroupId(level << 48 | 1);
        for level in 1..=CHAIN {
            assert!(groups.add(above(level)));
        }
        for level in 1..CHAIN {
            groups.relate(above(level), above(level + 1)).expect("two groups");
        }
        let trees: Vec<TreeId> = (256..256 + 1000).map(TreeId).collect();
        for tree in &trees {
            assert!(groups.add(QgroupId(tree.0)));
            groups.relate(QgroupId(tree.0), above(1)).expect("two groups");
        }
        let mut deltas = UsageDeltas::default();
        let refused = groups.collect(4096, (&[], &trees), &mut deltas).expect_err("too many");
        assert!(refused.to_string().contains("quota groups"), "{refused}");
        assert!(deltas.visits <= VISITS_MAX + CHAIN + 1, "{}", deltas.visits);
    }
}
