//! The deletion of a tree that nothing names any more: in parts, each in a handle of its own, so
//! that it runs beside other changes and goes on after a crash where it stopped.
//!
//! ```text
//! block of the tree      with its parent's reference                then
//! referred to once       read, its children handled first           freed
//! several, owned         its subtree gets full back references      one reference less
//! several, otherwise     -                                          one reference less
//! ```
//!
//! Laws:
//!
//! 1. The root item names the progress (`drop_progress`, `drop_level`), as the kernel does: at that
//!    level, everything before that key is gone. All blocks on the path to it have one reference.
//! 2. Children of a block that other trees share, and that this tree owns, refer to it by tree.
//!    Before the tree goes, such references become those by parent block, from the leaves upward:
//!    a block with full back references has no descendant left that needs them.
//! 3. What a step reads, it reads before it changes a reference: a step that fails has changed
//!    nothing, and the steps before it are kept.
//! 4. A deleted tree is not edited, and its blocks are in the last commit.
//! 5. A part drops no more references than the commit has space for: on a full volume it ends
//!    before the leaf whose references would be too many. A part that can drop nothing fails, and
//!    the commit of the parts before it frees space for the next.
//!
//! Left to others: when it is allowed (`fs`), and the items that name the tree.

pub(crate) mod converted;

use crate::Block;
use crate::cow::fetch_missing;
use crate::drop_tree::converted::Converted;
use crate::error::TreeError;
use crate::references::children::{change_child_refs, children};
use crate::references::{Content, Ref, Referrer, corrupt};
use crate::search::{child, covering_slot, no_child};
use crate::transaction::Handle;
use crate::transaction::global_reserve::{COW_BLOCKS_PER_REFERENCE, REFERENCES_PER_PART};
use crate::transaction::running::{BlockRefs, Running};
use butternut_format::key::{Key, RawKey};
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Generation, TreeId, length};
use std::sync::Arc;

/// Whether anything of a deleted tree is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    Part,
    /// All blocks are freed. The items that name the tree are left to the caller, and
    /// [`Handle::forget_tree`].
    Whole,
}

/// A node on the path to the progress, and the next of its children.
struct Step {
    block: Arc<Block>,
    slot: usize,
    /// The keys of the node are below this one.
    end: Option<Key>,
    /// The owner of the references to the children.
    referrer: Referrer,
    /// The reference of the parent to this block.
    by: Ref,
}

/// One part of a deletion.
struct Deletion<'a> {
    handle: &'a Handle,
    running: &'a Running,
    tree: TreeId,
    /// Blocks that are not newer belong to the source of this snapshot.
    created: Generation,
    path: Vec<Step>,
    /// How far law 2 is kept.
    converted: Converted,
    /// Blocks and references that may still be handled in this part.
    blocks_left: usize,
    references_left: u64,
    /// The references that come next, if the commit lacks the space for them (law 5).
    uncovered: Option<u64>,
}

impl Handle {
    /// Deletes up to about `blocks` blocks of a tree (law 4), fewer if they have many children.
    ///
    /// # Errors
    /// The tree is not deleted; a block cannot be read, or contradicts its references;
    /// [`TreeError::NoSpace`] if nothing can be deleted before a commit (law 5).
    pub fn drop_tree(&self, id: TreeId, blocks: usize) -> Result<Dropped, TreeError> {
        let running = self.running();
        let tree = running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        let (root, record, converted) = {
            let state = tree.state();
            let may_drop = state.is_deleted && state.dirty.is_empty();
            let have = "in use, or changed";
            require(may_drop, "tree", have, "deleted").map_err(TreeError::Invalid)?;
            (state.root, state.record.clone(), state.converted)
        };
        let record = record.ok_or(TreeError::NoTree { tree: id })?;
        let mut deletion = Deletion {
            handle: self,
            running,
            tree: id,
            created: Generation(record.key.offset),
            path: Vec::new(),
            converted,
            blocks_left: blocks.max(1),
            references_left: REFERENCES_PER_PART.into(),
            uncovered: None,
        };
        let progress = Key::from(&record.raw.drop_progress);
        deletion.resume(&root, progress, record.raw.drop_level)?;
        let begin = (deletion.progress(), converted);
        let result = deletion.run(&root);
        if deletion.path.is_empty() && result.is_ok() {
            self.mark_changed();
            running.note_dropped_data(id);
            return Ok(Dropped::Whole);
        }
        // A deletion that cannot go on causes no commit.
        if (deletion.progress(), deletion.converted) == begin {
            return result.and(deletion.check_covered().map(|()| Dropped::Part));
        }
        self.mark_changed();
        // A commit makes room for the groups that include the subvolume.
        running.note_dropped_data(id);
        let mut state = tree.state_mut();
        state.converted = deletion.converted;
        if let Some((key, level)) = deletion.progress()
            && let Some(record) = &mut state.record
        {
            record.raw.drop_progress = RawKey::from(key);
            record.raw.drop_level = level;
            state.outdate_root_item(running);
        }
        drop(state);
        result.map(|()| Dropped::Part)
    }

    /// Forgets a tree whose blocks are freed and whose root item this handle has removed.
    pub fn forget_tree(&self, id: TreeId) {
        self.running().forget_tree(id);
    }
}

impl Deletion<'_> {
    fn read(&self, expected: &Expected) -> Result<Arc<Block>, TreeError> {
        self.running.blocks().read(expected)
    }

    /// Returns the references and flags of a block of the tree.
    fn refs(&self, of: &Expected) -> Result<BlockRefs, TreeError> {
        let mut fetched = Vec::new();
        loop {
            match self.running.block_refs(&fetched, of.logical, of.level) {
                Ok(found) if found.refs == 0 => {
                    let refused = Refused::new("refs", 0, "at least 1 for a block in use");
                    return Err(corrupt(of.logical, refused));
                }
                Ok(found) => return Ok(found),
                Err(stop) => fetch_missing(self.running.blocks(), &mut fetched, stop)?,
            }
        }
    }

    /// Returns the owner of the references to the children of a block.
    fn referrer(&self, of: &Expected, found: &BlockRefs) -> Referrer {
        let is_full_backref = found.is_full_backref();
        if is_full_backref { Referrer::Block(of.logical) } else { Referrer::Tree(self.tree) }
    }

    /// Descends to the progress that the root item names (law 1).
    fn resume(&mut self, root: &Expected, progress: Key, level: u8) -> Result<(), TreeError> {
        let mut next = *root;
        let mut by = Ref::Tree(self.tree);
        while next.level > 0 {
            let found = self.refs(&next)?;
            require_alone(&next, &found)?;
            let block = self.read(&next)?;
            let referrer = self.referrer(&next, &found);
            let is_started = progress != Key::MIN;
            let is_end = !is_started || next.level <= level;
            let slot = match (is_started, is_end) {
                (false, _) => 0,
                (true, true) => slot_of(&block, progress)?,
                (true, false) => covering_slot(&block, &progress).unwrap_or(0),
            };
            let end = next.end_key;
            let below = child(&block, slot, self.tree, end);
            self.path.push(Step { block: Arc::clone(&block), slot, end, referrer, by });
            if is_end {
                break;
            }
            (next, by) = (below.ok_or_else(|| no_child(&block, slot))?, referrer.to_block());
        }
        Ok(())
    }

    /// Returns the key and the level of the next child. The last node on the path has one whenever
    /// a part ends ([`Self::run`]).
    fn progress(&self) -> Option<(Key, u8)> {
        let step = self.path.last()?;
        step.block.key(step.slot).map(|key| (key, step.block.level()))
    }

    /// Deletes blocks until the part is done, or the whole tree.
    fn run(&mut self, root: &Expected) -> Result<(), TreeError> {
        if root.level == 0 {
            let found = self.refs(root)?;
            require_alone(root, &found)?;
            let dropped = self.drop_leaf(root, &found, Ref::Tree(self.tree))?;
            self.check_covered()?;
            let want = "references of this tree alone";
            let refused = || Refused::new("root", "references that change", want);
            return dropped.ok_or_else(|| corrupt(root.logical, refused()));
        }
        loop {
            // A part never ends at a node without a next child: its progress could not be named.
            self.drop_finished();
            if self.path.is_empty() || self.is_part_done() {
                return Ok(());
            }
            self.drop_child()?;
        }
    }

    /// Drops the nodes at the end of the path whose children are gone.
    fn drop_finished(&mut self) {
        while let Some(done) = self.path.pop_if(|step| step.slot >= step.block.len()) {
            self.running.drop_block(&done.block, done.by);
            if let Some(parent) = self.path.last_mut() {
                parent.slot = parent.slot.saturating_add(1);
            }
        }
    }

    /// Drops the next child of the last node on the path, or descends into it.
    fn drop_child(&mut self) -> Result<(), TreeError> {
        let Some(step) = self.path.last() else { return Ok(()) };
        let next = child(&step.block, step.slot, self.tree, step.end);
        let next = next.ok_or_else(|| no_child(&step.block, step.slot))?;
        let by = step.referrer.to_block();
        let mut found = self.refs(&next)?;
        if found.refs > 1 {
            if !self.convert(&next)? {
                return Ok(());
            }
            found = self.refs(&next)?;
        }
        self.blocks_left = self.blocks_left.saturating_sub(1);
        let is_dropped = if found.refs > 1 {
            if !self.covers(1) {
                return Ok(());
            }
            let (bytes, content) = (self.node_bytes(), Content::block(next.level, next.first_key));
            let dropped = self.running.change_found_refs(next.logical, &found, |references| {
                references.change(next.logical, bytes.into(), content, by, -1);
            });
            self.spend(1);
            dropped
        } else if next.level > 0 {
            let block = self.read(&next)?;
            let referrer = self.referrer(&next, &found);
            self.path.push(Step { block, slot: 0, end: next.end_key, referrer, by });
            return Ok(());
        } else {
            self.drop_leaf(&next, &found, by)?
        };
        // If another tree has copied it meanwhile, it is looked at again.
        if let Some(step) = self.path.last_mut().filter(|_| is_dropped.is_some()) {
            step.slot = step.slot.saturating_add(1);
        }
        Ok(())
    }

    fn node_bytes(&self) -> u32 {
        self.running.params.node_bytes
    }

    /// Returns whether the commit has the space for these references (law 5). The part ends if not.
    fn covers(&mut self, references: u64) -> bool {
        let is_covered = self.handle.covers_references(references);
        if !is_covered {
            self.uncovered = Some(references);
        }
        is_covered
    }

    /// Fails if the commit lacks the space for the references that come next.
    fn check_covered(&self) -> Result<(), TreeError> {
        let Some(references) = self.uncovered else { return Ok(()) };
        let blocks = references.saturating_mul(COW_BLOCKS_PER_REFERENCE);
        Err(TreeError::NoSpace { bytes: blocks.saturating_mul(self.node_bytes().into()) })
    }

    fn spend(&mut self, references: u64) {
        self.handle.spend_references(references);
        self.references_left = self.references_left.saturating_sub(references);
    }

    /// Frees a leaf that only this tree refers to. Returns `None` if its references have changed.
    fn drop_leaf(
        &mut self,
        leaf: &Expected,
        found: &BlockRefs,
        by: Ref,
    ) -> Result<Option<()>, TreeError> {
        let block = self.read(leaf)?;
        let children = children(self.tree, &block)?;
        let (bytes, referrer) = (self.node_bytes(), self.referrer(leaf, found));
        let content = Content::block(leaf.level, block.key(0));
        let count = length(children.len()).saturating_add(1);
        if !self.covers(count) {
            return Ok(None);
        }
        let dropped = self.running.change_found_refs(leaf.logical, found, |references| {
            change_child_refs(references, bytes, &children, referrer, -1);
            references.change(leaf.logical, bytes.into(), content, by, -1);
            references.note_dropped_block(&block, true);
        });
        self.spend(count);
        Ok(dropped)
    }

    /// Gives the subtree of a shared block full back references, if this tree owns it (law 2).
    /// Returns `false` if blocks are left for the next part.
    ///
    /// The kernel goes from the root of the subtree downward, and may have stopped on the way: a
    /// node that has full back references may have descendants without.
    fn convert(&mut self, shared: &Expected) -> Result<bool, TreeError> {
        let end = (shared.end_key.unwrap_or(Key::MAX), shared.level);
        // A block of the generation in which this tree was made may be its own: a tree may be
        // changed in the commit that makes it. One of its source is passed by its owner below.
        if shared.generation < self.created || self.converted.includes(end) {
            return Ok(true);
        }
        // Blocks that need nothing are counted as well: a large subtree may be full of them.
        if self.is_part_done() {
            return Ok(false);
        }
        let found = self.refs(shared)?;
        if shared.level == 0 && found.is_full_backref() {
            return Ok(self.pass(end));
        }
        let block = self.read(shared)?;
        if block.owner() != self.tree {
            return Ok(self.pass(end));
        }
        for slot in 0..block.len() {
            if let Some(below) = child(&block, slot, self.tree, shared.end_key)
                && !self.convert(&below)?
            {
                return Ok(false);
            }
        }
        if found.is_full_backref() {
            return Ok(self.pass(end));
        }
        if self.is_part_done() {
            return Ok(false);
        }
        let children = children(self.tree, &block)?;
        let count = length(children.len()).saturating_mul(2).saturating_add(1);
        if !self.covers(count) {
            return Ok(false);
        }
        let (at, bytes) = (block.logical(), self.node_bytes());
        let content = Content::block(block.level(), block.key(0));
        let converted = self.running.change_found_refs(at, &found, |references| {
            change_child_refs(references, bytes, &children, Referrer::Block(at), 1);
            change_child_refs(references, bytes, &children, Referrer::Tree(self.tree), -1);
            references.set_full_backref(at, bytes.into(), content);
        });
        self.spend(count);
        // If its references have changed, it is looked at again.
        Ok(converted.is_some() && self.pass(end))
    }

    /// Notes that a block keeps law 2, with its descendants. Returns `true`.
    fn pass(&mut self, end: (Key, u8)) -> bool {
        self.converted.pass(end);
        self.blocks_left = self.blocks_left.saturating_sub(1);
        true
    }

    fn is_part_done(&self) -> bool {
        self.blocks_left == 0 || self.references_left == 0 || self.uncovered.is_some()
    }
}

/// Returns the slot of the progress. A child that it does not name would never be freed.
fn slot_of(block: &Block, progress: Key) -> Result<usize, TreeError> {
    block.find(&progress).map_err(|_| {
        let refused = Refused::new("drop_progress", progress, "a key of the node at drop_level");
        corrupt(block.logical(), refused)
    })
}

fn require_alone(of: &Expected, found: &BlockRefs) -> Result<(), TreeError> {
    require(found.refs == 1, "refs", found.refs, "1 on the way to drop_progress")
        .map_err(|refused| corrupt(of.logical, refused))
}

#[cfg(test)]
mod tests;
