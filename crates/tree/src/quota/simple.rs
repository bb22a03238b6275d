//! Simple quotas: a group uses the bytes of the extents that its subvolumes have allocated, until
//! these extents are freed.
//!
//! ```text
//! extent items added and removed, by owner --(the commit)--> the owner's group, and all above it
//! ```
//!
//! Laws:
//!
//! 1. An extent counts for its owner alone ([`crate::references::owned`]), whatever refers to it.
//!    So snapshots and clones change no usage, and referenced and exclusive bytes are the same.
//! 2. A group above level 0 uses what the groups of subvolumes use that it includes, each once.
//! 3. The group of a deleted subvolume exists as long as an extent counts for it: other subvolumes
//!    may refer to what it has allocated.
//! 4. Quotas that a commit enables count the extents of later commits.
//! 5. The relations of a subvolume that is made without any are those of the subvolume that it is
//!    made in, as in the kernel.
//!
//! Left to others: which bytes are added and removed (`references::apply`).

use super::groups::{Groups, QgroupUsage, UsageDeltas, check_visits, group_of};
use super::items::corrupt;
use super::state::Quota;
use super::write;
use crate::blocks::Blocks;
use crate::error::TreeError;
use crate::references::item::read_extent;
use crate::references::owned::OwnedBytes;
use crate::transaction::TreeEdit;
use crate::transaction::commit::context::Commit;
use crate::tree::Tree;
use butternut_format::extent::ExtentKind;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::quota::QgroupId;
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Logical, TreeId};
use std::collections::HashMap;
use std::sync::Arc;

impl Groups {
    /// Adds owned bytes to the groups of their owners, and to all that include these: to all, or to
    /// none if an error is returned.
    ///
    /// # Errors
    /// The usage of a group contradicts the changes.
    pub(crate) fn add_owned(&mut self, owned: &OwnedBytes) -> Result<(), Refused> {
        let mut deltas = UsageDeltas::default();
        for (owner, bytes) in owned.iter().filter(|(_, bytes)| *bytes != 0) {
            self.collect_owned(owner, bytes, &mut deltas)?;
        }
        if deltas.is_empty() {
            return Ok(());
        }
        let mut changed = self.clone();
        changed.apply(&deltas)?;
        *self = changed;
        Ok(())
    }

    /// Computes the usage of all groups above level 0 from that of the groups of subvolumes (law
    /// 2): of all, or of none if an error is returned.
    ///
    /// # Errors
    /// There are more groups to visit than law 4 of [`super::groups`] allows.
    pub(crate) fn sum_members(&mut self) -> Result<(), Refused> {
        let mut sums: HashMap<QgroupId, QgroupUsage> = HashMap::new();
        let mut visits: u64 = 0;
        for (id, group) in self.iter().filter(|(id, _)| id.level() == 0) {
            self.including(id, |above| {
                visits = visits.saturating_add(1);
                let sum = sums.entry(above).or_default();
                sum.referenced = sum.referenced.saturating_add(group.usage.referenced);
                sum.exclusive = sum.exclusive.saturating_add(group.usage.exclusive);
            });
            check_visits(visits, "fewer to visit from all subvolumes")?;
        }
        for (id, group) in self.iter_mut().filter(|(id, _)| id.level() > 0) {
            let sum = sums.get(&id).copied().unwrap_or_default();
            group.is_stale |= group.usage != sum;
            group.usage = sum;
        }
        Ok(())
    }
}

impl Quota {
    /// Accounts for the extent items that the transaction has added and removed.
    pub(crate) fn account_owned(&mut self, owned: &OwnedBytes) {
        // A kernel before 6.19 may have enabled the quotas: it does not count the tree blocks of
        // that transaction, and takes them off when they are freed. Then the numbers are wrong, and
        // this commit counts them again.
        self.needs_rescan |= self.groups.add_owned(owned).is_err();
        let unused = owned.iter().filter(|(_, bytes)| *bytes < 0).map(|(owner, _)| owner);
        self.dropped.extend(unused);
    }
}

impl Commit<'_> {
    /// Removes the groups of deleted subvolumes for which no extent counts any more (law 3).
    pub(crate) fn remove_unused_groups(
        &self,
        edit: &TreeEdit<'_>,
        quota: &mut Quota,
    ) -> Result<(), TreeError> {
        for tree in std::mem::take(&mut quota.dropped) {
            let id = group_of(tree);
            let group = quota.groups.get(id);
            let is_unused = group.is_some_and(|group| group.usage == QgroupUsage::default());
            if is_unused && quota.is_consistent() && self.root_of(tree)?.is_none() {
                let related = quota.groups.remove(id).unwrap_or_default();
                write::remove_group(edit, id, &related)?;
            }
        }
        Ok(())
    }

    /// Computes the usage of all groups from all extents.
    pub(crate) fn count_owned(
        &self,
        since: Generation,
        groups: &mut Groups,
    ) -> Result<(), TreeError> {
        let new = self.running.owners_of_new_blocks();
        let extents = self.edit(TreeId::EXTENT)?;
        count_owned(self.running.blocks(), extents.tree(), since, &new, groups)
    }
}

/// Sets the usage of all groups to what their subvolumes own. `new` has the owners of blocks that
/// are not on disk yet.
///
/// # Errors
/// A tree cannot be read. The usage may be cleared then.
pub(crate) fn count_owned(
    blocks: &Arc<Blocks>,
    extents: &Tree,
    since: Generation,
    new: &HashMap<Logical, TreeId>,
    groups: &mut Groups,
) -> Result<(), TreeError> {
    let mut sums = OwnedBytes::default();
    let mut items = extents.scan();
    items.seek(&Key::MIN)?;
    while let Some((key, data)) = items.item_parts() {
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            let (bytes, generation, kind, owner) =
                read_extent(blocks.volume(), key, data, |extent| {
                    Ok((extent.bytes, extent.generation, extent.kind, extent.owner()))
                })?;
            let at = Logical(key.objectid);
            let owner = match kind {
                _ if generation < since => None,
                ExtentKind::Data => owner,
                ExtentKind::TreeBlock { level, .. } => match new.get(&at) {
                    Some(owner) => Some(*owner),
                    None => Some(owner_in_header(blocks, at, generation, level)?),
                },
            };
            // Of a crafted volume, each extent may have an owner of its own.
            if let Some(owner) = owner.filter(|owner| groups.get(group_of(*owner)).is_some()) {
                sums.add(owner, bytes);
            }
        }
        items.advance()?;
    }
    groups.clear_usage();
    groups.add_owned(&sums).map_err(corrupt)
}

/// Reads the owner of a tree block that is on disk.
///
/// # Errors
/// The block cannot be read, or is not the one that its extent item describes.
pub(crate) fn owner_in_header(
    blocks: &Blocks,
    at: Logical,
    generation: Generation,
    level: u8,
) -> Result<TreeId, TreeError> {
    // Any tree may refer to it.
    let tree = TreeId(0);
    let expected =
        Expected { logical: at, generation, level, tree, first_key: None, end_key: None };
    Ok(blocks.read(&expected)?.owner())
}

#[cfg(test)]
mod tests {
    use crate::quota::groups::{Groups, QgroupUsage};
    use crate::references::owned::OwnedBytes;
    use butternut_format::quota::QgroupId;
    use butternut_format::units::TreeId;

    const A: TreeId = TreeId(256);
    const B: TreeId = TreeId(257);
    const LEFT: QgroupId = QgroupId(1 << 48 | 1);
    const RIGHT: QgroupId = QgroupId(1 << 48 | 2);
    const TOP: QgroupId = QgroupId(2 << 48 | 1);

    /// Two paths lead from `A` to `TOP`, and one from `B`.
    fn groups() -> Groups {
        let mut groups = Groups::default();
        for id in [QgroupId(A.0), QgroupId(B.0), LEFT, RIGHT, TOP] {
            groups.add(id);
        }
        for (child, parent) in
            [(QgroupId(A.0), LEFT), (QgroupId(A.0), RIGHT), (QgroupId(B.0), RIGHT)]
        {
            groups.relate(child, parent).expect("two groups");
        }
        for parent in [LEFT, RIGHT] {
            groups.relate(parent, TOP).expect("two groups");
        }
        groups
    }

    fn used(groups: &Groups) -> Vec<u64> {
        let used = groups.iter().map(|(_, group)| {
            let QgroupUsage { referenced, exclusive } = group.usage;
            assert_eq!(referenced, exclusive);
            referenced
        });
        used.collect()
    }

    #[test]
    fn a_group_counts_what_each_of_its_subvolumes_owns_once() {
        let mut groups = groups();
        let mut owned = OwnedBytes::default();
        owned.add(A, 10);
        owned.add(B, 5);
        owned.remove(B, 2);
        owned.add(TreeId::ROOT, 100);
        owned.add(TreeId(300), 100);
        groups.add_owned(&owned).expect("an addition");
        assert_eq!(used(&groups), [10, 3, 10, 13, 13]);
        let mut summed = groups.clone();
        summed.sum_members().expect("few groups");
        assert_eq!(used(&summed), used(&groups));
        summed.get_mut(QgroupId(A.0)).expect("a group").parents.clear();
        summed.sum_members().expect("few groups");
        assert_eq!(used(&summed), [10, 3, 0, 3, 3]);
    }

    #[test]
    fn what_no_group_can_have_removed_changes_none() {
        let mut groups = groups();
        let mut owned = OwnedBytes::default();
        owned.add(A, 10);
        groups.add_owned(&owned).expect("an addition");
        owned.remove(B, 1);
        let refused = groups.add_owned(&owned).expect_err("B has nothing").to_string();
        assert!(refused.contains("quota group 0/257"), "{refused}");
        assert_eq!(used(&groups), [10, 0, 10, 10, 10]);
    }

    /// A crafted quota tree of a few MB has such groups.
    #[test]
    fn the_sums_of_a_long_chain_of_groups_are_bounded() {
        const CHAIN: u64 = 20_000;
        let mut groups = Groups::default();
        let above = |level: u64| QgroupId(level << 48 | 1);
        for level in 1..=CHAIN {
            assert!(groups.add(above(level)));
        }
        for level in 1..CHAIN {
            groups.relate(above(level), above(level + 1)).expect("two groups");
        }
        for tree in 256..256 + 5000 {
            assert!(groups.add(QgroupId(tree)));
            groups.relate(QgroupId(tree), above(1)).expect("two groups");
        }
        let used = QgroupUsage { referenced: 7, exclusive: 7 };
        groups.get_mut(QgroupId(256)).expect("a group").usage = used;
        let refused = groups.sum_members().expect_err("too many visits").to_string();
        assert!(refused.contains("quota groups"), "{refused}");
        let unused = QgroupUsage::default();
        assert_eq!(groups.get(above(1)).expect("a group").usage, unused, "none has changed");
    }
}
