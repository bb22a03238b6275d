//! The step of a commit that accounts for quotas.
//!
//! ```text
//! touched extents ---> subvolumes before and after ---> differ? ---> usage of groups
//!       ^                                                  |
//!       +------ children of a tree block, if they may -----+
//! ```
//!
//! Laws:
//!
//! 1. The trees of subvolumes do not change any more: the step comes after the delayed references,
//!    and before the rounds of the commit that write the trees of the volume itself.
//! 2. An extent that is not touched has other subvolumes after the commit only if a parent has.
//!    Either the parent is in both commits, and its subvolumes differ; or it was copied, and one of
//!    both copies is shared. In both cases the walk continues at its children. Its end is where
//!    subvolumes do not differ.
//! 3. An extent is accounted for once, though several parents may lead to it.
//! 4. At most [`EXTENTS_MAX`] extents are walked, with as many sets of subvolumes as there may be
//!    (`sets`). Past that, the usage is computed from all extents of the volume, which needs no
//!    memory for each of them, and one set where this step needs two.
//!
//! Left to others: simple quotas (`simple`), the subvolumes of an extent (`roots`), the usage from
//! all extents (`count`), the arithmetic (`changes`, `groups`).

use super::changes::UsageChanges;
use super::count::count_usage;
use super::roots::{ExtentRoots, Roots, Trees};
use super::sets::RootSets;
use super::state::Quota;
use super::write;
use crate::Block;
use crate::error::TreeError;
use crate::references::children::{ChildRef, children};
use crate::references::touched::TouchedExtents;
use crate::transaction::commit::context::Commit;
use crate::tree::Tree;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::quota::{QgroupId, STATUS_INCONSISTENT, STATUS_RESCAN};
use butternut_format::units::{Generation, Logical, TreeId};
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum number of extents that one commit walks, before it computes all usage again.
const EXTENTS_MAX: usize = 1 << 20;

/// The walk over the extents whose subvolumes may differ.
struct Walk<'a> {
    before: Roots<'a>,
    after: Roots<'a>,
    sets: RootSets,
    changes: UsageChanges,
    seen: HashSet<Logical>,
    left: Vec<Logical>,
}

impl Commit<'_> {
    /// Accounts for the changes of the transaction, and writes the usage and the status.
    pub(crate) fn settle_quotas(&self) -> Result<(), TreeError> {
        // Other threads may charge space meanwhile.
        let Some(mut quota) = self.running.quota().clone() else { return Ok(()) };
        self.write_chunks()?;
        self.apply_references()?;
        let (touched, owned) = {
            let mut references = self.running.references();
            (references.touched().take(), references.owned().take())
        };
        if quota.is_consistent() && !quota.needs_rescan {
            if quota.simple_since.is_some() {
                quota.account_owned(&owned);
            } else {
                match self.account(&touched, &mut quota) {
                    Ok(is_done) => quota.needs_rescan = !is_done,
                    Err(error) => quota.fail(error),
                }
            }
        }
        if quota.needs_rescan {
            match self.rescan(&mut quota) {
                Ok(()) => {
                    quota.flags &= !STATUS_INCONSISTENT;
                    quota.cause = None;
                }
                Err(error) => quota.fail(error),
            }
            // The kernel would go on from the end, and take the usage for exact.
            quota.flags &= !STATUS_RESCAN;
            (quota.needs_rescan, quota.rescan) = (false, u64::MAX);
        }
        let edit = self.edit(TreeId::QUOTA)?;
        self.remove_unused_groups(&edit, &mut quota)?;
        write::write_groups(&edit, &mut quota.groups, self.generation)?;
        write::write_status(&edit, &quota, self.generation)?;
        // First: for a moment the growth counts less, and never twice.
        self.running.account_growth();
        self.running.replace_quota(quota, true);
        Ok(())
    }

    /// Accounts for touched extents, and those below them. Returns `false`, and changes nothing, if
    /// there are too many (law 4).
    fn account(&self, touched: &TouchedExtents, quota: &mut Quota) -> Result<bool, TreeError> {
        let mut walk = Walk {
            before: Roots::new(self.committed_trees())?,
            after: Roots::new(Trees::Running(self.running))?,
            sets: RootSets::new(),
            changes: UsageChanges::default(),
            seen: HashSet::new(),
            left: Vec::new(),
        };
        for at in touched {
            walk.left.push(*at);
            while let Some(next) = walk.left.pop() {
                let visited = walk.visit(next);
                if walk.seen.len() > EXTENTS_MAX || walk.sets.is_full() {
                    return Ok(false);
                }
                visited?;
            }
        }
        let Walk { sets, changes, .. } = walk;
        changes.apply(&sets, &mut quota.groups)?;
        Ok(true)
    }

    /// Returns the trees of the last commit, whose blocks are pinned until this one is durable.
    fn committed_trees(&self) -> Trees<'_> {
        let root = {
            let raw = self.running.super_block();
            Expected {
                logical: Logical(raw.root.get()),
                generation: Generation(raw.generation.get()),
                level: raw.root_level,
                tree: TreeId::ROOT,
                first_key: None,
                end_key: None,
            }
        };
        let blocks = self.running.blocks();
        Trees::Committed { blocks, roots: Tree::new(Arc::clone(blocks), root) }
    }

    /// Computes the usage of all groups from all extents of the volume.
    fn rescan(&self, quota: &mut Quota) -> Result<(), TreeError> {
        self.add_missing_groups(quota)?;
        if let Some(since) = quota.simple_since {
            return self.count_owned(since, &mut quota.groups);
        }
        let extents = self.edit(TreeId::EXTENT)?;
        count_usage(Trees::Running(self.running), extents.tree(), &mut quota.groups)
    }

    /// Adds a group for each subvolume without one.
    pub(crate) fn add_missing_groups(&self, quota: &mut Quota) -> Result<(), TreeError> {
        let roots = self.edit(TreeId::ROOT)?;
        let mut items = roots.tree().scan();
        items.seek(&Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, 0))?;
        while let Some(key) = items.key() {
            let id = TreeId(key.objectid);
            if key.objectid > QgroupId(u64::MAX).number() {
                break;
            }
            if key.item_type == ItemType::ROOT_ITEM && id.is_subvolume() {
                quota.add_subvolume(id);
            }
            items.advance()?;
        }
        Ok(())
    }
}

impl Walk<'_> {
    /// Compares the subvolumes of one extent. Adds its children where theirs may differ (law 2).
    fn visit(&mut self, at: Logical) -> Result<(), TreeError> {
        if !self.seen.insert(at) {
            return Ok(());
        }
        let before = self.before.find(at, &mut self.sets)?;
        let after = self.after.find(at, &mut self.sets)?;
        let roots = |found: &Option<ExtentRoots>| found.map_or(RootSets::EMPTY, |f| f.roots);
        let (had, has) = (roots(&before), roots(&after));
        let Some(bytes) = after.or(before).map(|found| found.bytes) else { return Ok(()) };
        if had != has {
            self.changes.add(had, has, bytes);
        }
        let is_shared = RootSets::is_shared;
        match (before, after) {
            (Some(before), Some(_)) if had != has => self.add_children_before(at, &before),
            (Some(before), None) if is_shared(&self.sets, had) => {
                self.add_children_before(at, &before)
            }
            (None, Some(after)) if is_shared(&self.sets, has) => {
                let block = self.after.block(at, &after, &self.sets)?;
                self.add_children(block)
            }
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }

    /// Adds the children of a block as the last commit has it.
    fn add_children_before(&mut self, at: Logical, extent: &ExtentRoots) -> Result<(), TreeError> {
        let block = self.before.block(at, extent, &self.sets)?;
        self.add_children(block)
    }

    fn add_children(&mut self, block: Option<(TreeId, Arc<Block>)>) -> Result<(), TreeError> {
        let Some((tree, block)) = block else { return Ok(()) };
        self.left.extend(addresses(tree, &block)?);
        Ok(())
    }
}

/// Returns the addresses of the children of a block.
fn addresses(tree: TreeId, block: &Block) -> Result<Vec<Logical>, TreeError> {
    let address = |child: &ChildRef<'_>| match child {
        ChildRef::Block(expected) => Some(expected.logical),
        ChildRef::Data(_, extent) => extent.disk().map(|disk| disk.logical),
    };
    Ok(children(tree, block)?.iter().filter_map(address).collect())
}
