//! The usage of all quota groups, computed from all extents of one state of the volume: for a
//! rescan inside a commit, and for a check of a volume that is not open otherwise.
//!
//! Laws:
//!
//! 1. Each extent item is read once, and a tree block is resolved once. Memory is a few bytes for
//!    each tree block of subvolumes, and each set of subvolumes once.
//! 2. A check writes nothing, and reads the last commit: a log tree is not replayed.
//!
//! Left to others: which subvolumes refer to an extent (`roots`), the arithmetic (`groups`).

use super::changes::UsageChanges;
use super::groups::{Groups, QgroupUsage};
use super::items;
use super::roots::{Roots, Trees};
use super::sets::RootSets;
use super::simple::count_owned;
use super::state::simple_since;
use crate::blocks::Blocks;
use crate::committed::CommittedTrees;
use crate::error::TreeError;
use crate::tree::Tree;
use butternut_format::key::{ItemType, Key};
use butternut_format::quota::{
    QgroupId, QgroupStatus, STATUS_INCONSISTENT, STATUS_ON, STATUS_RESCAN, STATUS_SIMPLE_MODE,
};
use butternut_format::units::{Logical, TreeId};
use butternut_volume::Volume;
use std::collections::HashMap;
use std::sync::Arc;

/// The limit of the node cache of a check, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// The quotas of a volume, for a check: what the quota tree says, and how to count it again.
#[derive(Debug)]
pub struct QuotaCheck {
    trees: CommittedTrees,
    status: QgroupStatus,
    groups: Groups,
}

/// The usage of one quota group: as the quota tree has it, and as the extents do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupCount {
    pub id: QgroupId,
    pub stored: QgroupUsage,
    pub counted: QgroupUsage,
}

impl QuotaCheck {
    /// Reads the quotas of the last commit from a volume whose chunks are installed; `None` if
    /// quotas are off.
    ///
    /// # Errors
    /// The quota tree cannot be read.
    pub fn open(volume: &Arc<Volume>) -> Result<Option<Self>, TreeError> {
        let trees = CommittedTrees::new(Arc::new(Blocks::new(Arc::clone(volume), CACHE_BYTES)));
        let Some(tree) = trees.tree(TreeId::QUOTA)? else { return Ok(None) };
        let status = items::read_status(&tree)?.filter(|status| status.flags & STATUS_ON != 0);
        let Some(status) = status else { return Ok(None) };
        let groups = items::read_groups(&tree)?;
        Ok(Some(Self { trees, status, groups }))
    }

    /// Returns why the stored usage is not exact; `None` if it claims to be. The kernel also takes
    /// that of full quotas as inconsistent if its generation is not that of the superblock.
    pub fn why_inexact(&self) -> Option<&'static str> {
        let flags = self.status.flags;
        let newest = self.trees.volume().super_block().generation();
        if flags & STATUS_INCONSISTENT != 0 {
            Some("it is marked as inconsistent")
        } else if flags & STATUS_RESCAN != 0 {
            Some("a rescan has not ended")
        } else if self.status.generation != newest && flags & STATUS_SIMPLE_MODE == 0 {
            Some("the last commit has not accounted for it")
        } else {
            None
        }
    }

    /// Computes the usage of all groups, by rising id. Reads all references of the volume, or for
    /// simple quotas all extent items and tree blocks, and no data.
    ///
    /// # Errors
    /// A tree cannot be read, or the references contradict the trees.
    pub fn count(&self) -> Result<Vec<QgroupCount>, TreeError> {
        let missing = TreeError::NoTree { tree: TreeId::EXTENT };
        let extents = self.trees.tree(TreeId::EXTENT)?.ok_or(missing)?;
        let (blocks, roots) = (self.trees.blocks(), self.trees.root_tree());
        let mut counted = self.groups.clone();
        match simple_since(&self.status)? {
            None => count_usage(Trees::Committed { blocks, roots }, &extents, &mut counted)?,
            Some(since) => count_owned(blocks, &extents, since, &HashMap::new(), &mut counted)?,
        }
        let counts = self.groups.iter().zip(counted.iter());
        Ok(counts
            .map(|((id, stored), (_, counted))| QgroupCount {
                id,
                stored: stored.usage,
                counted: counted.usage,
            })
            .collect())
    }
}

/// Sets the usage of all groups to what the extents of one state have.
///
/// # Errors
/// A tree cannot be read, or the references contradict the trees. The usage may be cleared then.
pub(crate) fn count_usage(
    trees: Trees<'_>,
    extents: &Tree,
    groups: &mut Groups,
) -> Result<(), TreeError> {
    let mut roots = Roots::new(trees)?;
    let (mut sets, mut changes) = (RootSets::new(), UsageChanges::default());
    let mut items = extents.scan();
    items.seek(&Key::MIN)?;
    while let Some(key) = items.key() {
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
            && let Some(found) = roots.find(Logical(key.objectid), &mut sets)?
        {
            changes.add(RootSets::EMPTY, found.roots, found.bytes);
        }
        items.advance()?;
    }
    groups.clear_usage();
    changes.apply(&sets, groups)
}
