//! Copy-on-write: how a block comes into the running transaction, and what that does to the
//! references of what it names.
//!
//! ```text
//! references of the old block        the old one's children   the copy's children
//! one, plain                         -                        - (they were the tree's already)
//! one, full back references          -1 by parent             +1 by tree
//! several, plain, owned by us        +1 by parent             -
//! several, otherwise                 -                        +1 by tree
//! ```
//!
//! In every case the copy is created with one reference by its tree, and the old block loses one.
//!
//! Laws:
//!
//! 1. A block is copied once in a transaction; after that it is edited in place.
//! 2. Only blocks of subvolumes can have several references or full back references, and only
//!    those that are older than the last snapshot or were moved by a balance; never the root.

use super::{LiveState, Stop};
use crate::Block;
use crate::edit::{LeafEdit, NodeEdit};
use crate::error::TreeError;
use crate::forest::Forest;
use crate::references::{Ref, Referrer};
use crate::running::Running;
use crate::tree::{child, no_child};
use butternut_format::extent::EXTENT_FLAG_FULL_BACKREF;
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, HEADER_FLAG_RELOC, NewBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Logical, TreeId, length};
use butternut_sys::buffer::Buffer;
use std::sync::Arc;

/// One edit's view of the tree, and the running transaction it belongs to.
pub(crate) struct Writer<'a> {
    pub(crate) id: TreeId,
    pub(crate) state: &'a mut LiveState,
    pub(crate) forest: &'a Forest,
    pub(crate) running: &'a Running,
    pub(crate) generation: Generation,
    pub(crate) carried: &'a [Arc<Block>],
}

/// How many references a block has, and in which form its children's are.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    refs: u64,
    is_full_backref: bool,
}

const ALONE: Sharing = Sharing { refs: 1, is_full_backref: false };

impl Writer<'_> {
    pub(crate) fn find(&self, expected: &Expected) -> Result<Arc<Block>, Stop> {
        self.state.find(self.forest, self.carried, expected)
    }

    /// The root, as a block of the running transaction.
    pub(crate) fn own_root(&mut self) -> Result<Logical, Stop> {
        let root = self.state.root;
        if self.state.dirty.contains_key(&root.logical) {
            return Ok(root.logical);
        }
        let old = self.find(&root)?;
        let logical = self.copy(&old, ALONE)?;
        self.set_root(logical, root.level);
        Ok(logical)
    }

    pub(crate) fn set_root(&mut self, logical: Logical, level: u8) {
        let generation = self.generation;
        self.state.root =
            Expected { logical, generation, level, tree: self.id, first_key: None, end_key: None };
        self.state.is_moved = true;
    }

    /// The child in a slot of `parent`, which belongs to the transaction, as one that does too. The
    /// keys of `parent` stay below `end`.
    pub(crate) fn own_child(
        &mut self,
        parent: Logical,
        slot: usize,
        end: Option<Key>,
    ) -> Result<Logical, Stop> {
        let node = self.dirty(parent)?;
        let expected = child(node, slot, self.id, end).ok_or_else(|| no_child(node, slot))?;
        if self.state.dirty.contains_key(&expected.logical) {
            return Ok(expected.logical);
        }
        let old = self.find(&expected)?;
        let sharing = self.sharing(&old)?;
        let logical = self.copy(&old, sharing)?;
        let node = self.dirty(parent)?;
        let mut entry = node.child(slot).ok_or_else(|| no_child(node, slot))?;
        entry.logical = logical;
        entry.generation = self.generation;
        self.node_mut(parent)?.set(slot, &entry);
        Ok(logical)
    }

    /// A block of the running transaction.
    pub(crate) fn dirty(&self, logical: Logical) -> Result<&Block, Stop> {
        self.state.dirty.get(&logical).map(AsRef::as_ref).ok_or_else(|| lost(self.id, logical))
    }

    pub(crate) fn dirty_mut(&mut self, logical: Logical) -> Result<&mut Block, Stop> {
        let id = self.id;
        let block = self.state.dirty.get_mut(&logical).ok_or_else(|| lost(id, logical))?;
        Ok(Arc::make_mut(block))
    }

    pub(crate) fn leaf_mut(&mut self, logical: Logical) -> Result<LeafEdit<'_>, Stop> {
        self.dirty_mut(logical).map(|block| LeafEdit::new(block.bytes_mut()))
    }

    pub(crate) fn node_mut(&mut self, logical: Logical) -> Result<NodeEdit<'_>, Stop> {
        self.dirty_mut(logical).map(|block| NodeEdit::new(block.bytes_mut()))
    }

    /// A new, empty block of this tree.
    pub(crate) fn create(&mut self, level: u8) -> Result<Logical, Stop> {
        let new = self.new_block(level)?;
        let bytes = Buffer::zeroed(self.running.facts.node_len());
        self.admit(Block::compose(bytes, &new));
        Ok(new.logical)
    }

    /// Gives up a block of the running transaction that nothing names any more.
    pub(crate) fn discard(&mut self, logical: Logical) {
        if let Some(block) = self.state.dirty.remove(&logical) {
            self.running.drop_block(&block, Ref::Tree(self.id));
            self.add_used(-1);
        }
    }

    fn new_block(&self, level: u8) -> Result<NewBlock, Stop> {
        let logical = self.running.allocate_block(self.forest, self.id)?;
        let facts = &self.running.facts;
        Ok(NewBlock {
            logical,
            generation: self.generation,
            owner: self.id,
            level,
            fsid: facts.fsid,
            chunk_tree_uuid: facts.chunk_tree_uuid,
        })
    }

    fn admit(&mut self, block: Block) {
        self.running.create_block(&block, self.id);
        self.state.dirty.insert(block.logical(), Arc::new(block));
        self.add_used(1);
    }

    /// Keeps the tree's size in its root item.
    fn add_used(&mut self, blocks: i64) {
        let Some(record) = &mut self.state.record else { return };
        let bytes = length(self.running.facts.node_len());
        let delta = i64::try_from(bytes).unwrap_or(0).saturating_mul(blocks);
        let used = record.raw.bytes_used.get().saturating_add_signed(delta);
        record.raw.bytes_used.set(used);
        self.state.is_moved = true;
    }

    /// Copies a block into the transaction and moves the references (the table above).
    fn copy(&mut self, old: &Arc<Block>, sharing: Sharing) -> Result<Logical, Stop> {
        debug_assert!(old.generation() != self.generation, "law 1");
        let new = self.new_block(old.level())?;
        let mut block = Block::clone(old);
        block.readdress(&new);
        let by_parent = Referrer::Block(old.logical());
        if sharing.refs > 1 {
            if old.owner() == self.id && !sharing.is_full_backref {
                self.refer(old, by_parent, 1)?;
                self.running.set_full_backref(old);
            } else {
                self.refer(old, Referrer::Tree(self.id), 1)?;
            }
        } else if sharing.is_full_backref {
            self.refer(old, Referrer::Tree(self.id), 1)?;
            self.refer(old, by_parent, -1)?;
        }
        let logical = block.logical();
        self.admit(block);
        self.running.drop_block(old, Ref::Tree(self.id));
        self.add_used(-1);
        Ok(logical)
    }

    /// Adds to, or takes from, the references of everything a block names.
    fn refer(&self, block: &Block, referrer: Referrer, delta: i64) -> Result<(), Stop> {
        for slot in 0..block.len() {
            if let Some(expected) = child(block, slot, self.id, None) {
                self.running.change_block(&expected, referrer.to_block(), delta);
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
            if let Some((start, bytes, reference)) = referrer.to_data(&key, &extent) {
                self.running.change_data(start, bytes, reference, delta);
            }
        }
        Ok(())
    }

    /// Who else may refer to a block that is about to be copied (law 2).
    fn sharing(&self, block: &Block) -> Result<Sharing, Stop> {
        if !self.id.is_subvolume() {
            return Ok(ALONE);
        }
        let snapshot = self.state.record.as_ref().map_or(0, |r| r.raw.last_snapshot.get());
        let is_moved = block.header().flags.get() & HEADER_FLAG_RELOC != 0;
        if block.generation().0 > snapshot && !is_moved {
            return Ok(ALONE);
        }
        let found =
            self.running.block_refs(self.forest, self.carried, block.logical(), block.level())?;
        let is_full_backref = found.flags & EXTENT_FLAG_FULL_BACKREF != 0;
        Ok(Sharing { refs: found.refs, is_full_backref })
    }
}

fn lost(tree: TreeId, logical: Logical) -> Stop {
    let source = Refused::new("block", logical, "one that belongs to the running transaction");
    Stop::Failed(TreeError::Corrupt { tree, source })
}
