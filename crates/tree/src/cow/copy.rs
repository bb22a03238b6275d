//! Copy-on-write: how a block becomes part of the running transaction, and how that changes the
//! references of its children.
//!
//! ```text
//! references of the old block        children of the old block   children of the copy
//! one, plain                         -                           - (the tree refers to them)
//! one, full back references          -1 by parent                +1 by tree
//! several, plain, owned by this tree +1 by parent                -
//! several, otherwise                 -                           +1 by tree
//! ```
//!
//! In every case the copy gets one reference by its tree, and the old block loses one.
//!
//! Laws:
//!
//! 1. A block is copied once in a transaction; after that it is edited in place. After a snapshot,
//!    which a commit makes, a block that both trees share is copied once more.
//! 2. Only blocks of subvolumes can have several references or full back references, and only
//!    those that are not newer than the last snapshot or were moved by a balance. The root has
//!    neither.
//!    Threads that copy such a block for different trees do so one after the other (law 5 of
//!    [`crate::references`]).
//! 3. A copy that fails has changed no reference count and keeps no space.
//! 4. No address has two blocks. Where the free space tree of a damaged volume gives out the
//!    address of a block in use, the volume becomes read-only.

use super::{Stop, TreeState};
use crate::Block;
use crate::block_edit::{LeafEdit, NodeEdit};
use crate::error::TreeError;
use crate::references::children::{ChildRef, change_child_refs, children};
use crate::references::{Content, Ref, References, Referrer};
use crate::search::{child, no_child};
use crate::transaction::running::{BlockRefs, Running};
use butternut_format::key::Key;
use butternut_format::node::{Expected, HEADER_FLAG_RELOC, NewBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Logical, TreeId, length};
use butternut_sys::buffer::Buffer;
use std::sync::Arc;

/// The view of a tree during one edit, and the transaction that the edit belongs to.
pub(crate) struct Writer<'a> {
    pub(crate) id: TreeId,
    pub(crate) state: &'a mut TreeState,
    pub(crate) running: &'a Running,
    pub(crate) generation: Generation,
    pub(crate) fetched: &'a [Arc<Block>],
    /// The edit has begun to change what the tree holds. If it fails now, half of it is in memory
    /// and must never be committed; and it must not be repeated.
    pub(crate) is_torn: bool,
}

impl Writer<'_> {
    pub(crate) fn find(&self, expected: &Expected) -> Result<Arc<Block>, Stop> {
        self.state.find(self.running.blocks(), self.fetched, expected)
    }

    /// Returns the root as a block of the running transaction. Copies it if necessary.
    pub(crate) fn cow_root(&mut self) -> Result<Logical, Stop> {
        let root = self.state.root;
        if self.is_dirty(&root)? {
            return Ok(root.logical);
        }
        let old = self.find(&root)?;
        let logical = self.copy_unshared(&old)?;
        self.set_root(logical, root.level);
        Ok(logical)
    }

    pub(crate) fn set_root(&mut self, logical: Logical, level: u8) {
        let generation = self.generation;
        self.state.root =
            Expected { logical, generation, level, tree: self.id, first_key: None, end_key: None };
        self.state.outdate_root_item(self.running);
    }

    /// Returns the child in a slot of `parent` as a block of the running transaction. Copies it if
    /// necessary. `parent` is a dirty block, and its keys are below `end`.
    pub(crate) fn cow_child(
        &mut self,
        parent: Logical,
        slot: usize,
        end: Option<Key>,
    ) -> Result<Logical, Stop> {
        let node = self.dirty(parent)?;
        let expected = child(node, slot, self.id, end).ok_or_else(|| no_child(node, slot))?;
        let mut entry = node.child(slot).ok_or_else(|| no_child(node, slot))?;
        if self.is_dirty(&expected)? {
            return Ok(expected.logical);
        }
        let old = self.find(&expected)?;
        let logical = self.copy(&old)?;
        entry.logical = logical;
        entry.generation = self.generation;
        self.node_mut(parent)?.set(slot, &entry);
        Ok(logical)
    }

    /// Whether a block belongs to the running transaction (law 4).
    fn is_dirty(&self, expected: &Expected) -> Result<bool, Stop> {
        if !self.state.dirty.contains_key(&expected.logical) {
            return Ok(false);
        }
        if expected.generation == self.generation {
            return Ok(true);
        }
        // An older block has the address of a new one.
        Err(self.running.refuse_address(expected.logical).into())
    }

    /// Returns a dirty block.
    pub(crate) fn dirty(&self, logical: Logical) -> Result<&Block, Stop> {
        self.state.dirty.get(&logical).map(AsRef::as_ref).ok_or_else(|| not_dirty(self.id, logical))
    }

    /// Returns a dirty block that the caller may keep.
    pub(crate) fn dirty_block(&self, logical: Logical) -> Result<Arc<Block>, Stop> {
        self.state.dirty.get(&logical).cloned().ok_or_else(|| not_dirty(self.id, logical))
    }

    pub(crate) fn dirty_mut(&mut self, logical: Logical) -> Result<&mut Block, Stop> {
        let id = self.id;
        let block = self.state.dirty.get_mut(&logical).ok_or_else(|| not_dirty(id, logical))?;
        // Such an edit would overwrite a block of the last commit in place.
        assert_eq!(block.generation(), self.generation, "law 4 of `cow`: block {logical}");
        Ok(Arc::make_mut(block))
    }

    pub(crate) fn leaf_mut(&mut self, logical: Logical) -> Result<LeafEdit<'_>, Stop> {
        self.dirty_mut(logical).map(|block| LeafEdit::new(block.bytes_mut()))
    }

    pub(crate) fn node_mut(&mut self, logical: Logical) -> Result<NodeEdit<'_>, Stop> {
        self.dirty_mut(logical).map(|block| NodeEdit::new(block.bytes_mut()))
    }

    /// Creates an empty dirty block.
    pub(crate) fn create(&mut self, level: u8) -> Result<Logical, Stop> {
        let new = self.new_block(level)?;
        let bytes = Buffer::zeroed(self.running.params.node_len());
        self.insert_dirty(Block::compose(bytes, &new));
        Ok(new.logical)
    }

    /// Frees a dirty block that no parent names any more.
    pub(crate) fn free_block(&mut self, logical: Logical) {
        if let Some(block) = self.state.dirty.remove(&logical) {
            self.running.drop_block(&block, Ref::Tree(self.id));
            self.add_used(-1);
        }
    }

    fn new_block(&self, level: u8) -> Result<NewBlock, Stop> {
        let logical = self.running.allocate_block(self.id)?;
        if self.state.dirty.contains_key(&logical) || self.running.has_references(logical) {
            return Err(self.running.refuse_address(logical).into());
        }
        let params = &self.running.params;
        Ok(NewBlock {
            logical,
            generation: self.generation,
            owner: self.id,
            level,
            fsid: params.fsid,
            chunk_tree_uuid: params.chunk_tree_uuid,
        })
    }

    fn insert_dirty(&mut self, block: Block) {
        self.running.create_block(&block, self.id);
        self.state.dirty.insert(block.logical(), Arc::new(block));
        self.add_used(1);
    }

    /// Updates the size of the tree in its root item.
    fn add_used(&mut self, blocks: i64) {
        let Some(record) = &mut self.state.record else { return };
        let bytes = length(self.running.params.node_len());
        let delta = i64::try_from(bytes).unwrap_or(0).saturating_mul(blocks);
        let used = record.raw.bytes_used.get().saturating_add_signed(delta);
        record.raw.bytes_used.set(used);
        self.state.outdate_root_item(self.running);
    }

    /// Copies a block into the transaction and changes references by the table of this module.
    fn copy(&mut self, old: &Block) -> Result<Logical, Stop> {
        if !self.may_be_shared(old) {
            return self.copy_unshared(old);
        }
        loop {
            let found = self.running.block_refs(self.fetched, old.logical(), old.level())?;
            let is_plain = found.refs <= 1 && !found.is_full_backref();
            let children = if is_plain { Vec::new() } else { children(self.id, old)? };
            let new = self.begin_copy(old)?;
            // Nothing fails from here on (law 3).
            let (id, at) = (self.id, old.logical());
            let node_bytes = self.running.params.node_bytes;
            let changed = self.running.change_found_refs(at, &found, |references| {
                change_refs_of_copy(references, node_bytes, id, old, &found, &children)
            });
            let Some(is_freed) = changed else {
                // Another tree has copied it meanwhile.
                self.running.release_block(new.logical, id);
                continue;
            };
            self.insert_copy(old, &new);
            if is_freed {
                self.running.release_sealed_block(at, self.generation);
            }
            return Ok(new.logical);
        }
    }

    /// As [`Self::copy`], for a block that only this tree refers to.
    fn copy_unshared(&mut self, old: &Block) -> Result<Logical, Stop> {
        let new = self.begin_copy(old)?;
        self.insert_copy(old, &new);
        self.running.drop_block(old, Ref::Tree(self.id));
        Ok(new.logical)
    }

    /// Allocates the address of a copy.
    fn begin_copy(&mut self, old: &Block) -> Result<NewBlock, Stop> {
        let is_sealed = self.state.sealed.contains_key(&old.logical());
        let is_older = old.generation() != self.generation;
        assert!(is_older || is_sealed, "law 1: block {}", old.logical());
        if !is_sealed && self.running.is_created(old.logical()) {
            return Err(self.running.refuse_address(old.logical()).into());
        }
        self.new_block(old.level())
    }

    fn insert_copy(&mut self, old: &Block, new: &NewBlock) {
        let mut block = Block::clone(old);
        block.readdress(new);
        self.insert_dirty(block);
        self.add_used(-1);
    }

    /// Makes the root of another tree the root of this new one: a dirty copy of it, whose children
    /// get references by this tree.
    pub(crate) fn copy_root_of(&mut self, source: &Block) -> Result<(), Stop> {
        let children = children(self.id, source)?;
        let new = self.new_block(source.level())?;
        let mut block = Block::clone(source);
        block.readdress(&new);
        let (by_tree, node_bytes) = (Referrer::Tree(self.id), self.running.params.node_bytes);
        change_child_refs(&mut self.running.references(), node_bytes, &children, by_tree, 1);
        self.insert_dirty(block);
        self.set_root(new.logical, new.level);
        Ok(())
    }

    /// Returns whether other trees may refer to a block, or its children may have full back
    /// references (law 2).
    fn may_be_shared(&self, block: &Block) -> bool {
        if !self.id.is_subvolume() {
            return false;
        }
        let snapshot = self.state.record.as_ref().map_or(0, |r| r.raw.last_snapshot.get());
        let is_relocated = block.header().flags.get() & HEADER_FLAG_RELOC != 0;
        block.generation().0 <= snapshot || is_relocated
    }
}

/// Changes the references of the children of `old` by the table of this module, and drops the one
/// of tree `id` to it. Returns whether it has none left and was allocated in this transaction.
fn change_refs_of_copy(
    references: &mut References,
    node_bytes: u32,
    id: TreeId,
    old: &Block,
    found: &BlockRefs,
    children: &[ChildRef<'_>],
) -> bool {
    let (by_tree, by_parent) = (Referrer::Tree(id), Referrer::Block(old.logical()));
    let (bytes, content) = (node_bytes.into(), Content::block(old.level(), old.key(0)));
    let is_owner = old.owner() == id && !found.is_full_backref();
    if found.refs > 1 && is_owner {
        change_child_refs(references, node_bytes, children, by_parent, 1);
        references.set_full_backref(old.logical(), bytes, content);
    } else if found.refs > 1 || found.is_full_backref() {
        change_child_refs(references, node_bytes, children, by_tree, 1);
        if found.refs <= 1 {
            change_child_refs(references, node_bytes, children, by_parent, -1);
        }
    }
    let is_freed = references.change(old.logical(), bytes, content, Ref::Tree(id), -1);
    references.note_dropped_block(old, found.refs <= 1);
    is_freed
}

fn not_dirty(tree: TreeId, logical: Logical) -> Stop {
    let source = Refused::new("block", logical, "one that belongs to the running transaction");
    Stop::Failed(TreeError::Corrupt { tree, source })
}
