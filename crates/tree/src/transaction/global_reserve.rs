//! [`GlobalReserve`]: the free space that a commit needs, from the changes of the running
//! transaction.
//!
//! ```text
//! global reserve = trees of a commit * 2 + new items + root items  normal handles leave it alone
//! commit reserve = copied leaves         + new items + root items  every handle leaves it alone
//! ```
//!
//! Laws:
//!
//! 1. No handle joins without as much free space as the commit of the changes so far may need, at
//!    any level. So a commit finds its space on a full volume, too: a handle without space commits
//!    first. A handle that may drop many references says how many, and they count from its join on.
//! 2. A commit writes a root item for each tree whose root or size has changed, subvolumes
//!    included, and copies a leaf of the root tree for each, with the path to it. Each is counted
//!    at the first change of its tree. Until the next handle joins, the reservation of the handle
//!    that made that change covers it. Nearly every counted tree has a dirty block, and the bytes
//!    of dirty blocks are bounded, so the count is, too.
//! 3. Setting the reserves reads no block: a commit that is durable cannot fail here.
//! 4. Growth ends while a deletion still finds its space: the commit's copies of all leaves that
//!    its references may change, and what the trees grow by before the deletion frees blocks.
//!    Where extents lie scattered, a deletion first splits items of the checksum tree and of the
//!    free space tree.
//!
//! Left to others: what handles reserve (`running`), how deep each level reaches
//! ([`butternut_space::Reservation`]).

use crate::cow::{TransactionTree, TreeState};
use crate::error::TreeError;
use crate::transaction::running::Running;
use butternut_format::units::{TreeId, length};
use butternut_space::Class;
use butternut_sys::lock::{Mutex, rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The trees that every commit may change.
const COMMIT_TREES: [TreeId; 7] = [
    TreeId::EXTENT,
    TreeId::CHECKSUM,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
    TreeId::DEVICE,
    TreeId::QUOTA,
    TreeId::ROOT,
];

/// Bounds of the global reserve. The upper one is that of the kernel.
const RESERVE_BYTES_MAX: u64 = 512 << 20;
const RESERVE_NODES_MIN: u64 = 160;

/// References that one part of the deletion of a tree may change before it ends. Its handle names
/// as many, where there is the space for their commit.
pub const REFERENCES_PER_PART: u32 = 1024;

/// The nodes that the handle of a deletion and the growth of the trees may cost (law 4).
const DELETION_NODES_MAX: u64 = 256;

/// Bytes that one delayed reference may add to the trees of a commit; and the granularity of the
/// reserve that follows from it.
const RESERVE_BYTES_PER_REFERENCE: u64 = 256;
const RESERVE_STEP: u64 = 256 << 10;

/// Leaves that one delayed reference may copy: one of the extent tree, and one of the checksum tree
/// or the free space tree.
pub(crate) const COW_BLOCKS_PER_REFERENCE: u64 = 2;

/// The reserves of metadata space that `space` has, and what they follow from.
#[derive(Debug, Default)]
pub(crate) struct GlobalReserve {
    /// The global reserve in bytes: of the last commit, and with the changes since.
    base: AtomicU64,
    bytes: AtomicU64,
    /// The commit reserve in bytes.
    commit_bytes: AtomicU64,
    /// Held while the reserves are computed for `space`, so that it gets the newest ones last.
    update: Mutex<(), rank::GlobalReserve>,
    /// The size of the trees that a commit changes, as of the last one, in bytes.
    pub(crate) commit_trees: AtomicU64,
    /// References that the open handles may still add or drop (law 1).
    expected_references: AtomicU64,
    /// The number of trees whose root item the next commit writes (law 2).
    stale_root_items: AtomicU64,
    /// The level of the root of the root tree, as of the last commit.
    root_tree_level: AtomicU64,
}

impl GlobalReserve {
    /// Records that the commit has written all root items.
    pub(crate) fn reset_stale_root_items(&self) {
        self.stale_root_items.store(0, Ordering::Relaxed);
    }

    /// Returns the global reserve and the commit reserve that `space` has.
    fn known(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.commit_bytes.load(Ordering::Relaxed))
    }
}

impl TreeState {
    /// Makes the next commit write the root item of the tree, and reserves space for that (law 2).
    pub(crate) fn outdate_root_item(&mut self, running: &Running) {
        if !std::mem::replace(&mut self.is_root_item_stale, true) {
            running.global_reserve.stale_root_items.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Running {
    /// Opens the trees that every commit may change, so that [`Self::set_global_reserve`] finds
    /// them.
    pub(crate) fn open_commit_trees(&self) -> Result<(), TreeError> {
        for id in COMMIT_TREES {
            self.tree(id)?;
        }
        Ok(())
    }

    /// Sets the global reserve to what a commit may cost: twice the size of the trees that it
    /// changes, within bounds. The root tree is left out: of it, the commit copies what law 2 has.
    pub(crate) fn set_global_reserve(&self) {
        let used = |tree: &Arc<TransactionTree>| {
            tree.state().record.as_ref().map_or(0, |record| record.raw.bytes_used.get())
        };
        let trees = self.trees();
        if let Some(root_tree) = trees.iter().find(|tree| tree.id() == TreeId::ROOT) {
            let level = root_tree.root().level.into();
            self.global_reserve.root_tree_level.store(level, Ordering::Relaxed);
        }
        let trees = trees.iter().filter(|tree| COMMIT_TREES.contains(&tree.id()));
        let bytes = trees.fold(0, |sum: u64, tree| sum.saturating_add(used(tree)));
        let node = u64::from(self.params.node_bytes);
        let reserve_min = node.saturating_mul(RESERVE_NODES_MIN);
        let total = self.space.totals(Class::Metadata).bytes;
        self.global_reserve.commit_trees.store(bytes, Ordering::Relaxed);
        let limit = (total / 4).max(deletion_bytes(bytes, node, total));
        let bytes = bytes.saturating_mul(2).clamp(reserve_min, RESERVE_BYTES_MAX).min(limit);
        self.global_reserve.base.store(bytes, Ordering::Relaxed);
        self.update_global_reserve();
    }

    /// Counts references that a handle may add or drop (law 1), and raises the reserves for them.
    pub(crate) fn expect_references(&self, references: u64) {
        if references > 0 {
            self.global_reserve.expected_references.fetch_add(references, Ordering::Relaxed);
        }
        self.update_global_reserve();
    }

    /// As [`Self::expect_references`], for an open handle, if the commit has the space for them.
    /// Returns whether it has; if not, they are not counted.
    pub(crate) fn expect_covered_references(&self, references: u64) -> bool {
        self.expect_references(references);
        let is_covered = self.space.covers_commit_reserve(Class::Metadata);
        if !is_covered {
            self.forget_expected_references(references);
            self.update_global_reserve();
        }
        is_covered
    }

    /// Ends the count of references that a handle has added or dropped, or that it will not.
    pub(crate) fn forget_expected_references(&self, references: u64) {
        if references > 0 {
            self.global_reserve.expected_references.fetch_sub(references, Ordering::Relaxed);
        }
    }

    /// Raises the reserves with each delayed reference, pending checksum and stale root item, since
    /// the commit may add or change an item for each.
    pub(crate) fn update_global_reserve(&self) {
        let known = &self.global_reserve;
        if self.reserves() == known.known() {
            return;
        }
        let _update = known.update.lock();
        let reserves = self.reserves();
        if reserves != known.known() {
            let (global_reserve, commit_reserve) = reserves;
            known.bytes.store(global_reserve, Ordering::Relaxed);
            known.commit_bytes.store(commit_reserve, Ordering::Relaxed);
            self.space.set_global_reserve(Class::Metadata, global_reserve, commit_reserve);
        }
    }

    /// Returns the blocks of the root tree that the change of one root item may copy: the leaf, and
    /// the nodes between it and the root.
    pub(crate) fn blocks_per_root_item(&self) -> u64 {
        self.global_reserve.root_tree_level.load(Ordering::Relaxed).max(1)
    }

    /// Returns the global reserve and the commit reserve that the running transaction needs now.
    fn reserves(&self) -> (u64, u64) {
        let expected = self.global_reserve.expected_references.load(Ordering::Relaxed);
        let references = length(self.references().len()).saturating_add(expected);
        let pending = references.saturating_mul(RESERVE_BYTES_PER_REFERENCE);
        let pending = pending.saturating_add(self.pending_checksums().bytes().saturating_mul(2));
        let pending = pending - pending % RESERVE_STEP;
        let roots = self.root_items_bytes();
        let base = self.global_reserve.base.load(Ordering::Relaxed);
        let global_reserve = base.saturating_add(pending).saturating_add(roots);
        (global_reserve, self.commit_reserve_bytes(references, pending, roots))
    }

    /// Returns the bytes that root items may cost in the commit (law 2).
    fn root_items_bytes(&self) -> u64 {
        let stale = self.global_reserve.stale_root_items.load(Ordering::Relaxed);
        let node = u64::from(self.params.node_bytes);
        stale.saturating_mul(self.blocks_per_root_item()).saturating_mul(node)
    }

    /// Returns the bytes that a commit may need: each delayed reference may copy a leaf of the
    /// extent tree and one of another tree, but no more leaves than those trees have; `pending`
    /// bytes of new items; and `roots` bytes for root items. That bounds the delayed references on
    /// a full volume (law 1).
    fn commit_reserve_bytes(&self, references: u64, pending: u64, roots: u64) -> u64 {
        let node = u64::from(self.params.node_bytes);
        let copies = references.saturating_mul(node.saturating_mul(COW_BLOCKS_PER_REFERENCE));
        let copies = copies.min(self.global_reserve.commit_trees.load(Ordering::Relaxed));
        let copies = copies.saturating_add(roots);
        let copies = copies.checked_next_multiple_of(RESERVE_STEP).unwrap_or(copies);
        copies.saturating_add(pending)
    }
}

/// Returns the bytes that law 4 leaves to deletions, where `trees` bytes are the trees of a commit
/// and `total` those of all metadata.
fn deletion_bytes(trees: u64, node: u64, total: u64) -> u64 {
    let leaves = u64::from(REFERENCES_PER_PART).saturating_mul(COW_BLOCKS_PER_REFERENCE);
    let copies = trees.min(leaves.saturating_mul(node));
    copies.saturating_add(DELETION_NODES_MAX.saturating_mul(node).min(total / 4))
}
