//! Reading a log, and claiming the space that it uses, for its replay.
//!
//! Laws:
//!
//! 1. Before anything is allocated, the blocks of the log and the data that only the log refers to
//!    are claimed: no tree of the last commit counts them as used.
//! 2. A block or an extent is claimed once. So a walk over a log ends, also if its nodes refer to
//!    each other in a circle.
//! 3. The blocks are released when the commit without the log is durable, and so are extents that
//!    the replay has not used.
//!
//! Left to others: what the items of a log mean (`fs`).

use crate::error::TreeError;
use crate::forest::Forest;
use crate::search::{child, no_child};
use crate::tree::Tree;
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::refused::Refused;
use butternut_format::root::RootItem;
use butternut_format::units::{Logical, TreeId};
use butternut_space::Class;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The log of one subvolume.
#[derive(Clone, Debug)]
pub struct SubvolumeLog {
    pub subvolume: TreeId,
    pub items: Tree,
}

/// The space that a log uses.
#[derive(Debug, Default)]
pub struct LogClaim {
    blocks: Vec<Range<u64>>,
    /// Extents that no tree has: start and end.
    extents: BTreeMap<u64, u64>,
}

fn corrupt(what: Refused) -> TreeError {
    TreeError::Corrupt { tree: TreeId::TREE_LOG, source: what }
}

impl Forest {
    /// Returns the logs that the superblock names, in the order of their subvolumes.
    ///
    /// # Errors
    /// The log root tree cannot be read or is corrupt.
    pub fn subvolume_logs(self: &Arc<Self>) -> Result<Vec<SubvolumeLog>, TreeError> {
        let mut logs = Vec::new();
        let Some(root) = self.volume().super_block().log_root() else { return Ok(logs) };
        let mut cursor = self.tree_at(root).cursor();
        cursor.seek(&Key::new(TreeId::TREE_LOG.0, ItemType::ROOT_ITEM, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.objectid != TreeId::TREE_LOG.0 || key.item_type != ItemType::ROOT_ITEM {
                break;
            }
            let root = RootItem::check(key, data)
                .map_err(|refused| corrupt(refused.at(format_args!("root item {key}"))))?;
            let items = self.tree_of_root(TreeId::TREE_LOG, &root);
            logs.push(SubvolumeLog { subvolume: TreeId(key.offset), items });
            cursor.advance()?;
        }
        Ok(logs)
    }

    /// Claims the space that a log uses (law 1). The forest has a running transaction without
    /// changes.
    ///
    /// # Errors
    /// The log cannot be read or is corrupt, or uses space that is in use.
    pub fn claim_log(self: &Arc<Self>, logs: &[SubvolumeLog]) -> Result<LogClaim, TreeError> {
        let mut claim = LogClaim::default();
        if let Some(root) = self.volume().super_block().log_root() {
            self.claim_tree(root, &mut claim)?;
        }
        for log in logs {
            self.claim_tree(log.items.root(), &mut claim)?;
        }
        for log in logs {
            self.claim_extents(&log.items, &mut claim)?;
        }
        Ok(claim)
    }

    fn claim_tree(&self, root: Expected, claim: &mut LogClaim) -> Result<(), TreeError> {
        let mut below = vec![root];
        while let Some(expected) = below.pop() {
            let block = self.block(&expected)?;
            let node_bytes = self.running()?.params.node_bytes;
            let start = expected.logical.0;
            let range = start..start.saturating_add(node_bytes.into());
            self.claim(Class::Metadata, &range, "log block")?;
            claim.blocks.push(range);
            if block.level() == 0 {
                continue;
            }
            for slot in 0..block.len() {
                let child = child(&block, slot, expected.tree, expected.end_key);
                below.push(child.ok_or_else(|| no_child(&block, slot))?);
            }
        }
        Ok(())
    }

    fn claim_extents(self: &Arc<Self>, log: &Tree, claim: &mut LogClaim) -> Result<(), TreeError> {
        let mut cursor = log.scan();
        cursor.seek(&Key::MIN)?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.item_type == ItemType::EXTENT_DATA {
                let extent = FileExtent::check(data, key.offset)
                    .map_err(|refused| corrupt(refused.at(format_args!("item {key}"))))?;
                if let Some(disk) = extent.disk() {
                    self.claim_extent(disk.logical, disk.bytes, claim)?;
                }
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn claim_extent(
        self: &Arc<Self>,
        at: Logical,
        bytes: u64,
        claim: &mut LogClaim,
    ) -> Result<(), TreeError> {
        let end = at.0.saturating_add(bytes);
        if claim.extents.get(&at.0) == Some(&end) || self.has_extent(at, bytes)? {
            return Ok(());
        }
        self.claim(Class::Data, &(at.0..end), "logged extent")?;
        claim.extents.insert(at.0, end);
        Ok(())
    }

    fn claim(&self, class: Class, range: &Range<u64>, what: &'static str) -> Result<(), TreeError> {
        let refused = || {
            let have = format_args!("{}..{} in use", range.start, range.end).to_string();
            corrupt(Refused::new(what, have, "free space of one block group of its type"))
        };
        let claimed = self.running()?.space.allocate_exact(class, range);
        if claimed.map_err(|_| refused())? { Ok(()) } else { Err(refused()) }
    }

    /// Commits, whether or not anything was replayed, and releases what the log used.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_replay(self: &Arc<Self>, claim: LogClaim) -> Result<(), TreeError> {
        let running = self.running()?;
        running.gate.mark_changed();
        self.commit()?;
        let unused = claim.extents.into_iter().map(|(start, end)| start..end);
        for range in claim.blocks.into_iter().chain(unused) {
            running.check(running.space.release(range));
        }
        Ok(())
    }
}

impl LogClaim {
    /// Takes an extent that the replay adds to the volume. Returns whether it was claimed and not
    /// taken yet.
    pub fn take_extent(&mut self, at: Logical, bytes: u64) -> bool {
        let is_claimed = self.extents.get(&at.0) == Some(&at.0.saturating_add(bytes));
        if is_claimed {
            self.extents.remove(&at.0);
        }
        is_claimed
    }
}
