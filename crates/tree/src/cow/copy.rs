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
//! 1. A block is copied once in a transaction; after that it is edited in place.
//! 2. Only blocks of subvolumes can have several references or full back references, and only
//!    those that are not newer than the last snapshot or were moved by a balance. The root has
//!    neither.
//! 3. A copy that fails has changed no reference count and keeps no space.
//! 4. No address has two blocks. Where the free space tree of a damaged volume gives out the
//!    address of a block in use, the volume becomes read-only.

use super::{Stop, TreeState};
use crate::Block;
use crate::block_edit::{LeafEdit, NodeEdit};
use crate::error::TreeError;
use crate::references::{Ref, Referrer};
use crate::search::{child, no_child};
use crate::transaction::running::Running;
use butternut_format::extent::EXTENT_FLAG_FULL_BACKREF;
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
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

/// The reference count of a block, and whether its children have full back references.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    refs: u64,
    is_full_backref: bool,
}

/// A block or a data extent that a tree block refers to.
enum ChildRef<'a> {
    Block(Expected),
    Data(Key, FileExtent<'a>),
}

const UNSHARED: Sharing = Sharing { refs: 1, is_full_backref: false };

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
        let logical = self.copy(&old, UNSHARED)?;
        self.set_root(logical, root.level);
        Ok(logical)
    }

    pub(crate) fn set_root(&mut self, logical: Logical, level: u8) {
        let generation = self.generation;
        self.state.root =
            Expected { logical, generation, level, tree: self.id, first_key: None, end_key: None };
        self.state.is_root_item_stale = true;
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
        let sharing = self.sharing(&old)?;
        let logical = self.copy(&old, sharing)?;
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
        Err(self.running.refuse_address(expected.logical).into())
    }

    /// Returns a dirty block.
    pub(crate) fn dirty(&self, logical: Logical) -> Result<&Block, Stop> {
        self.state.dirty.get(&logical).map(AsRef::as_ref).ok_or_else(|| not_dirty(self.id, logical))
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
        self.state.is_root_item_stale = true;
    }

    /// Copies a block into the transaction and changes references by the table of this module.
    fn copy(&mut self, old: &Arc<Block>, sharing: Sharing) -> Result<Logical, Stop> {
        assert_ne!(old.generation(), self.generation, "law 1: block {}", old.logical());
        let children = if sharing.refs > 1 || sharing.is_full_backref {
            self.children(old)?
        } else {
            Vec::new()
        };
        if self.running.is_created(old.logical()) {
            return Err(self.running.refuse_address(old.logical()).into());
        }
        let new = self.new_block(old.level())?;
        // Nothing fails from here on (law 3).
        let mut block = Block::clone(old);
        block.readdress(&new);
        let by_parent = Referrer::Block(old.logical());
        if sharing.refs > 1 {
            if old.owner() == self.id && !sharing.is_full_backref {
                self.change_child_refs(&children, by_parent, 1);
                self.running.set_full_backref(old);
            } else {
                self.change_child_refs(&children, Referrer::Tree(self.id), 1);
            }
        } else if sharing.is_full_backref {
            self.change_child_refs(&children, Referrer::Tree(self.id), 1);
            self.change_child_refs(&children, by_parent, -1);
        }
        let logical = block.logical();
        self.insert_dirty(block);
        self.running.drop_block(old, Ref::Tree(self.id));
        self.add_used(-1);
        Ok(logical)
    }

    /// Returns the blocks or the data extents that a block refers to. An item that cannot be read
    /// fails here, before any reference count changes (law 3).
    fn children<'b>(&self, block: &'b Block) -> Result<Vec<ChildRef<'b>>, Stop> {
        let mut children = Vec::with_capacity(block.len());
        for slot in 0..block.len() {
            if let Some(expected) = child(block, slot, self.id, None) {
                children.push(ChildRef::Block(expected));
                continue;
            }
            let Some((key, data)) = block.item(slot) else { continue };
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::check(data, key.offset).map_err(|refused| {
                let source = refused.at(format_args!("leaf {}: {key}", block.logical()));
                TreeError::Corrupt { tree: self.id, source }
            })?;
            children.push(ChildRef::Data(key, extent));
        }
        Ok(children)
    }

    /// Adds `delta` to the references that `referrer` has to each child of a block.
    fn change_child_refs(&self, children: &[ChildRef<'_>], referrer: Referrer, delta: i64) {
        for child in children {
            match child {
                ChildRef::Block(expected) => {
                    self.running.change_block(expected, referrer.to_block(), delta);
                }
                ChildRef::Data(key, extent) => {
                    if let Some((start, bytes, reference)) = referrer.to_data(key, extent) {
                        self.running.change_data(start, bytes, reference, delta);
                    }
                }
            }
        }
    }

    /// Returns the sharing of a block that is about to be copied (law 2).
    fn sharing(&self, block: &Block) -> Result<Sharing, Stop> {
        if !self.id.is_subvolume() {
            return Ok(UNSHARED);
        }
        let snapshot = self.state.record.as_ref().map_or(0, |r| r.raw.last_snapshot.get());
        let is_relocated = block.header().flags.get() & HEADER_FLAG_RELOC != 0;
        if block.generation().0 > snapshot && !is_relocated {
            return Ok(UNSHARED);
        }
        let found = self.running.block_refs(self.fetched, block.logical(), block.level())?;
        let is_full_backref = found.flags & EXTENT_FLAG_FULL_BACKREF != 0;
        Ok(Sharing { refs: found.refs, is_full_backref })
    }
}

fn not_dirty(tree: TreeId, logical: Logical) -> Stop {
    let source = Refused::new("block", logical, "one that belongs to the running transaction");
    Stop::Failed(TreeError::Corrupt { tree, source })
}
