//! Limits of quota groups: what each subvolume may still allocate.
//!
//! ```text
//! charge --> held --(an extent is added)--> added --(the commit)--> part of the usage
//!              |                              |
//!              |                              +--(the extent is removed again)--> nothing
//!              +--(the space is freed, the handle ends)--> nothing
//! ```
//!
//! Laws:
//!
//! 1. Space is charged before it is allocated, to the subvolume that it is for. What a limit leaves
//!    no room for is refused before anything changes.
//! 2. A group with a limit counts its usage as of the last commit, the charges of the subvolumes
//!    that it includes, and the blocks by which their trees have grown since.
//! 3. A refusal adds no chunk. What a deletion frees can be allocated after the next commit, so a
//!    caller that is refused commits once if the running transaction has dropped data of a
//!    subvolume that a limiting group includes ([`Quota::frees`]), and only then.
//! 4. Deletions are never refused.
//! 5. While the usage is inconsistent, no limit applies: its numbers are those of an earlier
//!    commit.
//!
//! Left to others: what calls charge (`charge`).

use super::groups::group_of;
use super::state::Quota;
use crate::error::TreeError;
use butternut_format::quota::{LIMIT_EXCLUSIVE, LIMIT_REFERENCED, QgroupId};
use butternut_format::units::{SECTOR_BYTES, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes that are charged to one subvolume and not part of its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charge {
    held: u64,
    /// Of extents that the running transaction has added.
    added: u64,
    /// Whether the running transaction has dropped references to data of the last commit.
    has_dropped: bool,
}

/// The charges of all subvolumes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges {
    trees: HashMap<TreeId, Charge>,
}

/// Bytes by which the trees of subvolumes have grown in the running transaction, or the tree blocks
/// that count for them.
pub(crate) type Growth = BTreeMap<TreeId, i64>;

impl Charges {
    pub(super) fn hold(&mut self, tree: TreeId, bytes: u64) {
        let charge = self.trees.entry(tree).or_default();
        charge.held = charge.held.saturating_add(bytes);
    }

    /// Ends a charge.
    pub(crate) fn release(&mut self, tree: TreeId, bytes: u64) {
        if let Some(charge) = self.trees.get_mut(&tree) {
            charge.held = charge.held.saturating_sub(bytes);
        }
    }

    /// Notes that an extent of charged space was added.
    pub(crate) fn add(&mut self, tree: TreeId, bytes: u64) {
        if let Some(charge) = self.trees.get_mut(&tree) {
            let added = bytes.min(charge.held);
            charge.held = charge.held.saturating_sub(added);
            charge.added = charge.added.saturating_add(added);
        }
    }

    /// Notes that an extent of charged space was removed in the transaction that had added it.
    pub(crate) fn remove(&mut self, tree: TreeId, bytes: u64) {
        if let Some(charge) = self.trees.get_mut(&tree) {
            charge.added = charge.added.saturating_sub(bytes);
        }
    }

    /// Notes that a reference to data of the last commit was dropped.
    pub(crate) fn note_dropped(&mut self, tree: TreeId) {
        self.trees.entry(tree).or_default().has_dropped = true;
    }

    /// Forgets what the commit has made part of the usage.
    pub(crate) fn account(&mut self) {
        for charge in self.trees.values_mut() {
            charge.added = 0;
            charge.has_dropped = false;
        }
        self.trees.retain(|_, charge| *charge != Charge::default());
    }
}

impl Quota {
    /// Returns the groups with a limit that include a subvolume.
    fn limiting(&self, tree: TreeId) -> BTreeSet<QgroupId> {
        let mut limiting = BTreeSet::new();
        self.groups.including(group_of(tree), |id| {
            if self.has_limit(id) {
                limiting.insert(id);
            }
        });
        limiting
    }

    fn has_limit(&self, id: QgroupId) -> bool {
        let flags = self.groups.get(id).map_or(0, |group| group.limit.flags.get());
        flags & (LIMIT_REFERENCED | LIMIT_EXCLUSIVE) != 0
    }

    /// Whether one of some groups includes a subvolume.
    fn is_in(&self, tree: TreeId, groups: &BTreeSet<QgroupId>) -> bool {
        let mut is_in = false;
        self.groups.including(group_of(tree), |id| is_in |= groups.contains(&id));
        is_in
    }

    /// Whether a limit applies to a subvolume (law 5).
    pub(crate) fn limits(&self, tree: TreeId) -> bool {
        if !self.has_limits || !self.is_consistent() {
            return false;
        }
        let mut is_limited = false;
        self.groups.including(group_of(tree), |id| is_limited |= self.has_limit(id));
        is_limited
    }

    /// Returns the bytes that a subvolume may still allocate, and the group whose limit says so;
    /// `None` if there is no limit.
    fn left(&self, tree: TreeId, growth: &Growth) -> Option<(u64, QgroupId)> {
        let mut least: Option<(u64, QgroupId)> = None;
        for (id, more) in self.pending_bytes(self.limiting(tree), growth) {
            let Some(group) = self.groups.get(id) else { continue };
            let limits = [
                (LIMIT_REFERENCED, group.limit.max_rfer.get(), group.usage.referenced),
                (LIMIT_EXCLUSIVE, group.limit.max_excl.get(), group.usage.exclusive),
            ];
            for (flag, limit, usage) in limits {
                let used = i128::from(usage).saturating_add(more);
                let left = i128::from(limit).saturating_sub(used).max(0);
                let left = u64::try_from(left).unwrap_or(u64::MAX);
                let is_set = group.limit.flags.get() & flag != 0;
                if is_set && least.is_none_or(|(least, _)| left < least) {
                    least = Some((left, id));
                }
            }
        }
        least
    }

    /// Whether a commit may make room below the limits of a subvolume: a group with a limit
    /// includes it, and a subvolume of which the running transaction has dropped data (law 3). With
    /// simple quotas, what any subvolume has dropped may count for another one.
    pub(crate) fn frees(&self, tree: TreeId) -> bool {
        let limiting = self.limiting(tree);
        if limiting.is_empty() {
            return false;
        }
        let is_simple = self.simple_since.is_some();
        let mut charges = self.charges.trees.iter();
        charges
            .any(|(tree, charge)| charge.has_dropped && (is_simple || self.is_in(*tree, &limiting)))
    }

    /// Returns the subvolumes with charges of those that a group with a limit on `tree` includes.
    pub(crate) fn charged_beside(&self, tree: TreeId) -> Vec<TreeId> {
        let limiting = self.limiting(tree);
        let held = self.charges.trees.iter().filter(|(_, charge)| charge.held > 0);
        let mut beside: Vec<TreeId> =
            held.map(|(tree, _)| *tree).filter(|tree| self.is_in(*tree, &limiting)).collect();
        beside.sort_unstable();
        beside
    }

    /// Returns those of some subvolumes whose deletions may make room for `tree`: those that a
    /// group with a limit on it includes, or with simple quotas any, because they may hold what
    /// `tree` has written.
    pub(crate) fn limited_beside(&self, tree: TreeId, of: &BTreeSet<TreeId>) -> BTreeSet<TreeId> {
        let limiting = self.limiting(tree);
        if self.simple_since.is_some() && !limiting.is_empty() {
            return of.clone();
        }
        of.iter().copied().filter(|tree| self.is_in(*tree, &limiting)).collect()
    }

    /// Returns what some groups will use more than at the last commit (law 2). The groups above
    /// each subvolume are visited once: a crafted volume may have very many.
    fn pending_bytes(
        &self,
        groups: BTreeSet<QgroupId>,
        growth: &Growth,
    ) -> BTreeMap<QgroupId, i128> {
        let mut sums: BTreeMap<QgroupId, i128> = groups.into_iter().map(|id| (id, 0)).collect();
        if sums.is_empty() {
            return sums;
        }
        let charged = self.charges.trees.iter().map(|(tree, charge)| {
            (*tree, i128::from(charge.held).saturating_add(charge.added.into()))
        });
        let grown = growth.iter().map(|(tree, bytes)| (*tree, i128::from(*bytes)));
        for (tree, bytes) in charged.chain(grown).filter(|(_, bytes)| *bytes != 0) {
            self.groups.including(group_of(tree), |id| {
                if let Some(sum) = sums.get_mut(&id) {
                    *sum = sum.saturating_add(bytes);
                }
            });
        }
        sums
    }

    /// Charges at most `most` bytes, and at least `least`. Returns how many.
    pub(crate) fn charge(
        &mut self,
        tree: TreeId,
        (least, most): (u64, u64),
        growth: &Growth,
    ) -> Result<u64, TreeError> {
        let bytes = match self.left(tree, growth) {
            Some((left, group)) if left < least => {
                return Err(TreeError::QuotaExceeded { group });
            }
            Some((left, _)) if left < most => (left - left % SECTOR_BYTES).max(least),
            Some(_) | None => most,
        };
        self.charges.hold(tree, bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Growth;
    use crate::error::TreeError;
    use crate::quota::state::Quota;
    use butternut_format::quota::{LIMIT_EXCLUSIVE, LIMIT_REFERENCED, QgroupId};
    use butternut_format::units::TreeId;

    const A: TreeId = TreeId(257);
    const B: TreeId = TreeId(258);
    const PARENT: QgroupId = QgroupId(1 << 48 | 1);

    fn quota(limits: &[(QgroupId, u64, u64)]) -> Quota {
        let mut quota = Quota::enabled();
        for id in [QgroupId(A.0), QgroupId(B.0), PARENT] {
            quota.groups.add(id);
        }
        for tree in [A, B] {
            quota.groups.relate(QgroupId(tree.0), PARENT).expect("two groups");
        }
        for (id, flag, bytes) in limits {
            let group = quota.groups.get_mut(*id).expect("a group");
            group.limit.flags.set(group.limit.flags.get() | flag);
            let place = if *flag == LIMIT_REFERENCED {
                &mut group.limit.max_rfer
            } else {
                &mut group.limit.max_excl
            };
            place.set(*bytes);
        }
        quota
    }

    fn charge(quota: &mut Quota, tree: TreeId, least: u64, most: u64) -> Result<u64, QgroupId> {
        quota.charge(tree, (least, most), &Growth::from([(B, 4096)])).map_err(|error| {
            let TreeError::QuotaExceeded { group } = &error else { panic!("{error}") };
            *group
        })
    }

    #[test]
    fn a_limit_counts_what_its_subvolumes_hold() {
        let limits =
            [(PARENT, LIMIT_REFERENCED, 10 << 12), (QgroupId(A.0), LIMIT_EXCLUSIVE, 4 << 12)];
        let mut quota = quota(&limits);
        assert_eq!(charge(&mut quota, A, 4096, 1 << 20), Ok(4 << 12), "as much as is left");
        assert_eq!(charge(&mut quota, A, 4096, 4096), Err(QgroupId(A.0)));
        assert_eq!(charge(&mut quota, B, 4096, 1 << 20), Ok(5 << 12), "one block of growth");
        assert_eq!(charge(&mut quota, B, 4096, 4096), Err(PARENT));
        quota.charges.add(A, 3 << 12);
        assert_eq!(charge(&mut quota, A, 4096, 4096), Err(QgroupId(A.0)), "until the commit");
        quota.charges.release(A, 4096);
        assert_eq!(charge(&mut quota, A, 4096, 8192), Ok(4096));
        quota.charges.account();
        assert_eq!(charge(&mut quota, B, 4096, 1 << 20), Ok(3 << 12));
    }

    /// As a crafted quota tree of a few MB has them. A visit of all groups for each group would
    /// keep each change of the volume waiting for minutes.
    #[test]
    fn a_charge_visits_each_group_above_a_subvolume_once() {
        const GROUPS: u64 = 100_000;
        let mut quota = Quota::enabled();
        quota.groups.add(QgroupId(A.0));
        for number in 1..=GROUPS {
            let id = QgroupId(1 << 48 | number);
            quota.groups.add(id);
            quota.groups.relate(QgroupId(A.0), id).expect("two groups");
            let group = quota.groups.get_mut(id).expect("it was added");
            group.limit.flags.set(LIMIT_REFERENCED);
            group.limit.max_rfer.set(1 << 40);
        }
        quota.charges.hold(A, 4096);
        quota.charges.note_dropped(A);
        quota.charge(A, (4096, 4096), &Growth::from([(A, 4096)])).expect("room");
        assert!(quota.frees(A));
    }
}
