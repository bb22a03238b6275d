//! The resolver: which subvolumes refer to an extent.
//!
//! ```text
//! data extent --- by file ---> leaf in the tree of the subvolume ---+
//!      |                                                            v
//!      +--------- by leaf ------------------------------------> tree block
//!                                                                   |
//! tree block ---- by tree ---> parent in that tree, or its root     +--> and so on, to the roots
//!      +--------- by node ---> parent
//! ```
//!
//! Laws:
//!
//! 1. A block that several trees share is referred to by one of them only, the others are found
//!    through its parents. So every reference is followed up to the roots.
//! 2. A block that is newer than the last snapshot of its tree belongs to that tree alone, and so
//!    does everything that only it refers to. The search ends there.
//! 3. A parent is one level above its child. So every search ends.
//! 4. Only subvolumes count, also deleted ones as long as blocks of them are left. Nothing is read
//!    that lies before the progress of a deletion: it is freed, and may be written by now.
//!
//! A resolver answers for one state of the volume: the last commit, or the transaction that is
//! being committed, whose delayed references have been applied.

use super::sets::{RootSets, SetId};
use crate::Block;
use crate::blocks::Blocks;
use crate::committed::root_item;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::references::item::read_extent;
use crate::references::{Ref, Referrer, corrupt};
use crate::search::covering_slot;
use crate::transaction::running::Running;
use crate::tree::Tree;
use butternut_format::extent::{DataRef, ExtentKind, check_data_ref, check_shared_data_ref};
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::refused::{Refused, require};
use butternut_format::root::RawRootItem;
use butternut_format::units::{Generation, Logical, TreeId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes of a file that one compressed extent may cover.
const COMPRESSED_FILE_BYTES_MAX: u64 = 128 << 10;
/// The longest extent. Where the kernel preallocates, it makes extents of this size.
const EXTENT_BYTES_MAX: u64 = 256 << 20;
/// Items of files that a resolver reads at most. On a crafted volume, where references count more
/// items than there are, each reference could be searched for in all items of its file.
const STEPS_MAX: u64 = 1 << 30;

/// The state of the volume that a resolver answers for.
pub(crate) enum Trees<'a> {
    Committed { blocks: &'a Arc<Blocks>, roots: Tree },
    Running(&'a Running),
}

impl Trees<'_> {
    fn find(&self, id: TreeId) -> Result<Option<RefTree>, TreeError> {
        match self {
            Self::Committed { blocks, roots } => Ok(root_item(roots, id)?.map(|(_, root)| {
                RefTree::of(Tree::new(Arc::clone(blocks), root.block(id)), Some(root.raw()))
            })),
            Self::Running(running) => {
                let Some((tree, raw)) = running.tree_to_read(id)? else { return Ok(None) };
                Ok(Some(RefTree::of(tree, raw.as_deref())))
            }
        }
    }
}

/// A tree that references name.
#[derive(Clone)]
struct RefTree {
    tree: Tree,
    last_snapshot: Generation,
    /// What lies before this key is freed, though the nodes of a deleted tree still name it.
    from: Key,
}

impl RefTree {
    fn of(tree: Tree, root: Option<&RawRootItem>) -> Self {
        let last_snapshot = Generation(root.map_or(0, |root| root.last_snapshot.get()));
        let deleted = root.filter(|root| root.refs.get() == 0);
        let from = deleted.map_or(Key::MIN, |root| Key::from(&root.drop_progress));
        Self { tree, last_snapshot, from }
    }
}

/// An extent item, with all references of the extent.
struct ExtentRefs {
    bytes: u64,
    /// The level of a tree block; `None` for data.
    level: Option<u8>,
    generation: Generation,
    /// Each with its count.
    refs: Vec<(Ref, u64)>,
}

/// An extent, and the subvolumes that refer to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentRoots {
    pub(crate) bytes: u64,
    /// The level of a tree block; `None` for data.
    pub(crate) level: Option<u8>,
    pub(crate) generation: Generation,
    pub(crate) roots: SetId,
}

/// The resolver for one state of the volume.
pub(crate) struct Roots<'a> {
    trees: Trees<'a>,
    extents: Cursor,
    known_trees: HashMap<TreeId, RefTree>,
    known_blocks: HashMap<Logical, SetId>,
    steps_left: u64,
}

impl<'a> Roots<'a> {
    pub(crate) fn new(trees: Trees<'a>) -> Result<Self, TreeError> {
        let missing = TreeError::NoTree { tree: TreeId::EXTENT };
        let extents = trees.find(TreeId::EXTENT)?.ok_or(missing)?.tree.cursor();
        let (known_trees, known_blocks) = (HashMap::new(), HashMap::new());
        Ok(Self { trees, extents, known_trees, known_blocks, steps_left: STEPS_MAX })
    }

    /// Returns the extent at an address; `None` if the state has none.
    ///
    /// # Errors
    /// A tree cannot be read, or the references contradict it.
    pub(crate) fn find(
        &mut self,
        at: Logical,
        sets: &mut RootSets,
    ) -> Result<Option<ExtentRoots>, TreeError> {
        let Some(extent) = self.extent(at)? else { return Ok(None) };
        let roots = match extent.level {
            Some(level) => self.of_block(at, level, &extent, sets)?,
            None => self.of_data(at, &extent, sets)?,
        };
        let ExtentRefs { bytes, level, generation, .. } = extent;
        Ok(Some(ExtentRoots { bytes, level, generation, roots }))
    }

    /// Reads a tree block that one of the subvolumes in its set refers to; `None` if there is none.
    pub(crate) fn block(
        &mut self,
        at: Logical,
        extent: &ExtentRoots,
        sets: &RootSets,
    ) -> Result<Option<(TreeId, Arc<Block>)>, TreeError> {
        let Some((level, root)) = extent.level.zip(sets.one_of(extent.roots)) else {
            return Ok(None);
        };
        let tree = self.tree(at, root)?.tree;
        let expected = expected(at, extent.generation, level, root);
        tree.block(&expected).map(|block| Some((root, block)))
    }

    /// Reads the item of an extent, and all its references.
    fn extent(&mut self, at: Logical) -> Result<Option<ExtentRefs>, TreeError> {
        let items = &mut self.extents;
        items.seek(&Key::new(at.0, ItemType::EXTENT_ITEM, 0))?;
        let is_extent = |key: &Key| {
            key.objectid == at.0
                && matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
        };
        let Some((key, data)) = items.item_parts().filter(|(key, _)| is_extent(key)) else {
            return Ok(None);
        };
        let volume = Arc::clone(items.tree().volume());
        let (mut found, mut left) = read_extent(&volume, key, data, |extent| {
            let mut refs = Vec::new();
            let mut left = extent.refs;
            for inline in extent.inline_refs() {
                let inline = inline?;
                left = left.saturating_sub(inline.count().into());
                refs.extend(Ref::of(inline).map(|found| (found, inline.count().into())));
            }
            let level = match extent.kind {
                ExtentKind::TreeBlock { level, .. } => Some(level),
                ExtentKind::Data => None,
            };
            let (bytes, generation) = (extent.bytes, extent.generation);
            Ok((ExtentRefs { bytes, level, generation, refs }, left))
        })?;
        while left > 0 {
            items.advance()?;
            let Some((key, data)) = items.item_parts() else { break };
            let kinds = ItemType::TREE_BLOCK_REF..=ItemType::SHARED_DATA_REF;
            if key.objectid != at.0 || !kinds.contains(&key.item_type) {
                break;
            }
            let (reference, count) = keyed(key, data).map_err(|refused| corrupt(at, refused))?;
            left = left.saturating_sub(count);
            found.refs.push((reference, count));
        }
        require(left == 0, "refs", format_args!("{left} more than references"), "as many")
            .map_err(|refused| corrupt(at, refused))?;
        Ok(Some(found))
    }

    fn of_block(
        &mut self,
        at: Logical,
        level: u8,
        extent: &ExtentRefs,
        sets: &mut RootSets,
    ) -> Result<SetId, TreeError> {
        if let Some(known) = self.known_blocks.get(&at) {
            return Ok(*known);
        }
        let mut parts = Vec::with_capacity(extent.refs.len());
        for (reference, _) in &extent.refs {
            let more = match *reference {
                Ref::Tree(tree) if tree.is_subvolume() => {
                    self.through_tree(at, level, extent.generation, tree, sets)?
                }
                Ref::Shared(parent) => self.of_parent(parent, level.saturating_add(1), sets)?,
                Ref::Tree(_) | Ref::Data(_) | Ref::SharedData(_) => continue,
            };
            parts.push(more);
        }
        let roots = sets.union(parts).map_err(|refused| corrupt(at, refused))?;
        self.known_blocks.insert(at, roots);
        Ok(roots)
    }

    /// Returns the roots of a tree block of level `want`, which refers to another extent.
    fn of_parent(
        &mut self,
        parent: Logical,
        want: u8,
        sets: &mut RootSets,
    ) -> Result<SetId, TreeError> {
        if let Some(known) = self.known_blocks.get(&parent) {
            return Ok(*known);
        }
        let found = self.extent(parent)?;
        let found = found.filter(|found| found.level == Some(want));
        let found = found.ok_or_else(|| {
            let want = format_args!("a tree block of level {want}, which references name");
            corrupt(parent, Refused::new("extent item", "none", want.to_string()))
        })?;
        self.of_block(parent, want, &found, sets)
    }

    /// Follows the reference of a tree to a block.
    fn through_tree(
        &mut self,
        at: Logical,
        level: u8,
        generation: Generation,
        id: TreeId,
        sets: &mut RootSets,
    ) -> Result<SetId, TreeError> {
        let RefTree { tree, last_snapshot, .. } = self.tree(at, id)?;
        let root = tree.root();
        if root.logical == at || generation > last_snapshot {
            return sets.of_one(id).map_err(|refused| corrupt(at, refused));
        }
        let block = tree.block(&expected(at, generation, level, id))?;
        let key = block.key(0).unwrap_or_default();
        let mut next = root;
        loop {
            let node = tree.block(&next)?;
            let slot = covering_slot(&node, &key).unwrap_or(0);
            if node.level() == 0 {
                let have = format_args!("{root:?}").to_string();
                return Err(corrupt(at, Refused::new("tree", have, "one that has the block")));
            }
            let below = tree.child(&node, slot, next.end_key)?;
            if below.level == level {
                let refused = || Refused::new("child", below.logical, "the block that refers back");
                let is_parent = below.logical == at;
                is_parent.then_some(()).ok_or_else(|| corrupt(at, refused()))?;
                return self.of_parent(node.logical(), node.level(), sets);
            }
            next = below;
        }
    }

    fn of_data(
        &mut self,
        at: Logical,
        extent: &ExtentRefs,
        sets: &mut RootSets,
    ) -> Result<SetId, TreeError> {
        let by_leaf = extent.refs.iter().filter_map(|(reference, _)| match reference {
            Ref::SharedData(leaf) => Some(*leaf),
            Ref::Data(_) | Ref::Tree(_) | Ref::Shared(_) => None,
        });
        let by_leaf: HashSet<Logical> = by_leaf.collect();
        let mut parts = Vec::with_capacity(extent.refs.len());
        for (reference, count) in &extent.refs {
            let more = match reference {
                Ref::Data(data) if data.tree.is_subvolume() => {
                    self.through_file(at, extent, (data, *count), &by_leaf, sets)?
                }
                Ref::SharedData(leaf) => self.of_parent(*leaf, 0, sets)?,
                Ref::Data(_) | Ref::Tree(_) | Ref::Shared(_) => continue,
            };
            parts.push(more);
        }
        sets.union(parts).map_err(|refused| corrupt(at, refused))
    }

    /// Follows the reference of a file to data: finds each leaf that has an item with it.
    /// References in `by_leaf` stand for the items of other leaves.
    fn through_file(
        &mut self,
        at: Logical,
        extent: &ExtentRefs,
        (data, count): (&DataRef, u64),
        by_leaf: &HashSet<Logical>,
        sets: &mut RootSets,
    ) -> Result<SetId, TreeError> {
        let RefTree { tree, last_snapshot, from } = self.tree(at, data.tree)?;
        let own = sets.of_one(data.tree).map_err(|refused| corrupt(at, refused))?;
        if extent.generation > last_snapshot {
            return Ok(own);
        }
        // The reference names where the extent would begin, which may be before the file.
        let first = if data.offset > u64::MAX >> 1 { 0 } else { data.offset };
        let bytes = extent.bytes.clamp(COMPRESSED_FILE_BYTES_MAX, EXTENT_BYTES_MAX);
        let end = data.offset.wrapping_add(bytes);
        let mut items = tree.cursor();
        items.seek(&Key::new(data.ino.0, ItemType::EXTENT_DATA, first).max(from))?;
        let (mut parts, mut last_leaf, mut items_left) = (Vec::new(), None, count);
        while let Some((key, bytes)) = items.item_parts() {
            let is_of_file = key.objectid == data.ino.0 && key.item_type == ItemType::EXTENT_DATA;
            if !is_of_file || key.offset >= end || items_left == 0 {
                break;
            }
            self.steps_left = self.steps_left.checked_sub(1).ok_or_else(|| {
                corrupt(at, Refused::new("items", "many in the range of an extent", "few"))
            })?;
            if let Some((leaf, _)) = items.position()
                && names(key, bytes, at, data)?
            {
                // The count is that of the items in leaves of this tree. Other leaves may come
                // first: those that it shares with the tree that it was made from.
                let is_counted = leaf.owner() == data.tree && !by_leaf.contains(&leaf.logical());
                items_left = items_left.saturating_sub(is_counted.into());
                let (leaf, generation) = (leaf.logical(), leaf.generation());
                if last_leaf.replace(leaf) != Some(leaf) {
                    let is_own = generation > last_snapshot;
                    parts.push(if is_own { own } else { self.of_parent(leaf, 0, sets)? });
                }
            }
            items.advance()?;
        }
        let refused = || Refused::new("data ref", format_args!("{data:?}").to_string(), "its item");
        last_leaf.ok_or_else(|| corrupt(at, refused()))?;
        sets.union(parts).map_err(|refused| corrupt(at, refused))
    }

    /// Returns a tree that a reference of the extent at `at` names.
    fn tree(&mut self, at: Logical, id: TreeId) -> Result<RefTree, TreeError> {
        if let Some(known) = self.known_trees.get(&id) {
            return Ok(known.clone());
        }
        let found = self.trees.find(id)?;
        let found = found.ok_or_else(|| {
            corrupt(at, Refused::new("reference", format_args!("tree {id}").to_string(), "a tree"))
        })?;
        self.known_trees.insert(id, found.clone());
        Ok(found)
    }
}

/// Whether a file extent item is one that the reference stands for.
fn names(key: Key, bytes: &[u8], at: Logical, data: &DataRef) -> Result<bool, TreeError> {
    let extent = FileExtent::check(bytes, key.offset).map_err(|refused| TreeError::Corrupt {
        tree: data.tree,
        source: refused.at(format_args!("item {key}")),
    })?;
    let reference = Referrer::Tree(data.tree).to_data(&key, &extent);
    Ok(reference.is_some_and(|(start, _, found)| start == at && found == Ref::data(*data)))
}

/// Decodes a keyed reference, with its count.
fn keyed(key: Key, data: &[u8]) -> Result<(Ref, u64), Refused> {
    match key.item_type {
        ItemType::TREE_BLOCK_REF => Ok((Ref::Tree(TreeId(key.offset)), 1)),
        ItemType::SHARED_BLOCK_REF => Ok((Ref::Shared(Logical(key.offset)), 1)),
        ItemType::EXTENT_DATA_REF => {
            let data = check_data_ref(key, data)?;
            Ok((Ref::data(data), data.count.into()))
        }
        ItemType::SHARED_DATA_REF => {
            let (leaf, count) = check_shared_data_ref(key, data)?;
            Ok((Ref::SharedData(leaf), count.into()))
        }
        other => Err(Refused::new("reference", other.0, "a known type")),
    }
}

fn expected(logical: Logical, generation: Generation, level: u8, tree: TreeId) -> Expected {
    Expected { logical, generation, level, tree, first_key: None, end_key: None }
}
