//! Back references: from a tree block or a data extent to the trees that refer to it.
//!
//! ```text
//! extent item --EXTENT_DATA_REF (tree, ino, offset)--> leaves of that tree, found by searching it
//!             --SHARED_DATA_REF (leaf)---------------> that leaf
//! leaf, node  --TREE_BLOCK_REF (tree)----------------> its parent node in that tree, or the tree
//!                                                      itself if the block is its root
//!             --SHARED_BLOCK_REF (node)--------------> that node
//! ```
//!
//! A block that several trees share is reached from each of them: the walk follows all parents up
//! to roots.
//!
//! Laws:
//!
//! 1. A walk visits a block once, and the search for the references to one extent visits at most
//!    [`VISITS_MAX`] blocks and items, or fewer if its caller wants.
//! 2. References that lead to no block (of a tree that is being deleted) are skipped.
//! 3. While a block is looked up and read, nothing that a commit frees is reused. That lasts for a
//!    few items, or one ascent to the roots, at most: a writer without space waits for it. So a
//!    block that an earlier batch has found is compared by its generation.

use crate::inspect::Block;
use crate::inspect::ExtentOwner;
use crate::space::extent_items::{ExtentRecord, Reference};
use crate::{Error, Filesystem, Result};
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::units::{Generation, Logical, TreeId, length};
use butternut_tree::Tree;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Maximum number of blocks and items that one search visits.
pub(crate) const VISITS_MAX: u64 = 1 << 20;

/// Items that are read while the space that commits free is kept (law 3).
const ITEMS_PER_BATCH: usize = 256;

/// Maximum number of bytes of a file in which items refer to one extent by one reference: the
/// kernel's extents have at most 128 MiB, and so much is left for larger ones.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A file extent item that refers to the data extent in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentRef {
    pub(crate) subvolume: u64,
    pub(crate) ino: u64,
    /// Offset of the file extent in its file, and its range of the data extent, in bytes.
    pub(crate) file_offset: u64,
    pub(crate) extent_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) is_compressed: bool,
    /// The range reads as zeros.
    pub(crate) is_preallocated: bool,
}

/// A search for the references to extents. It caches the roots of leaves, so that a search over
/// many extents of a file ascends from each leaf once.
pub(crate) struct Backrefs<'a> {
    filesystem: &'a Filesystem,
    extent_tree: Tree,
    /// By address and generation of a block.
    roots_of: HashMap<(Logical, Generation), Arc<[u64]>>,
    visits: u64,
    visits_max: u64,
}

/// A block that a reference was found in: its address, and its generation.
type LeafId = (Logical, Generation);

enum Parent {
    Root,
    Node(Logical),
    None,
}

impl<'a> Backrefs<'a> {
    pub(crate) fn new(filesystem: &'a Filesystem) -> Result<Self> {
        Self::with_limit(filesystem, VISITS_MAX)
    }

    /// Prepares searches that visit at most `visits_max` blocks and items each. The roots of so
    /// many leaves are cached.
    pub(crate) fn with_limit(filesystem: &'a Filesystem, visits_max: u64) -> Result<Self> {
        let extent_tree = filesystem.extent_tree()?;
        Ok(Self { filesystem, extent_tree, roots_of: HashMap::new(), visits: 0, visits_max })
    }

    /// Returns the extent (data or tree block) that contains an address.
    pub(crate) fn covering(&self, logical: Logical) -> Result<Option<ExtentRecord>> {
        ExtentRecord::covering(&self.extent_tree, logical)
    }

    /// Calls `each` with every file extent that refers to the data extent, until it breaks.
    pub(crate) fn each_ref(
        &mut self,
        extent: &ExtentRecord,
        mut each: impl FnMut(ExtentRef) -> ControlFlow<()>,
    ) -> Result<()> {
        self.visits = 0;
        let references = extent.references(&self.extent_tree, self.visits_max)?;
        let by_leaf = references.iter().filter_map(|reference| match reference {
            Reference::SharedData { leaf } => Some(*leaf),
            Reference::Data(_) | Reference::Block { .. } | Reference::SharedBlock { .. } => None,
        });
        let by_leaf: HashSet<Logical> = by_leaf.collect();
        for reference in references {
            let flow = match reference {
                Reference::Data(data) => self.refs_in_tree(extent, data, &by_leaf, &mut each)?,
                Reference::SharedData { leaf } => self.refs_in_leaf(extent, leaf, &mut each)?,
                Reference::Block { .. } | Reference::SharedBlock { .. } => {
                    ControlFlow::Continue(())
                }
            };
            if flow.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Follows a reference by tree, inode and offset. Its count is that of the items in leaves of
    /// the tree that no reference in `by_leaf` stands for. Leaves that the tree shares with the one
    /// that it was made from may come first.
    fn refs_in_tree(
        &mut self,
        extent: &ExtentRecord,
        data: DataRef,
        by_leaf: &HashSet<Logical>,
        each: &mut impl FnMut(ExtentRef) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if !data.tree.is_subvolume() {
            return Ok(ControlFlow::Continue(()));
        }
        // `offset` is the file offset minus the offset into the extent, and may be negative.
        let start = if data.offset > u64::MAX / 2 { 0 } else { data.offset };
        let first = Key::new(data.ino.0, ItemType::EXTENT_DATA, start);
        let (mut found, mut items_left, mut next) = (Vec::new(), data.count, Some(first));
        while let Some(from) = next.take() {
            next =
                self.batch_in_tree(extent, data, (from, by_leaf), &mut items_left, &mut found)?;
        }
        for (leaf, extent_ref) in found {
            if self.report(leaf, extent_ref, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Finds items of a reference from a key on. Returns where the search goes on, unless it is
    /// over. A search of many leaves must not keep the space that commits free meanwhile.
    fn batch_in_tree(
        &mut self,
        extent: &ExtentRecord,
        data: DataRef,
        (from, by_leaf): (Key, &HashSet<Logical>),
        items_left: &mut u32,
        found: &mut Vec<(LeafId, ExtentRef)>,
    ) -> Result<Option<Key>> {
        let forest = self.filesystem.forest();
        // No leaf that is freed from here on is reused before the batch ends.
        let _epoch = forest.enter_read_epoch();
        let Some(tree) = forest.tree(data.tree)? else { return Ok(None) };
        let Some(left) = self.first_key_left(data.tree)? else { return Ok(None) };
        let mut cursor = tree.cursor();
        let end = data.offset.wrapping_add(FILE_BYTES_MAX);
        cursor.seek(&from.max(left))?;
        for _ in 0..ITEMS_PER_BATCH {
            let Some((key, bytes)) = cursor.item_parts() else { return Ok(None) };
            if key.objectid != data.ino.0
                || key.item_type != ItemType::EXTENT_DATA
                || key.offset >= end
                || *items_left == 0
            {
                return Ok(None);
            }
            self.visit(1)?;
            if let Some(extent_ref) = extent_ref(extent, key, bytes)
                && extent_ref.file_offset.wrapping_sub(extent_ref.extent_offset) == data.offset
                && let Some((leaf, _)) = cursor.position()
            {
                let is_counted = leaf.owner() == data.tree && !by_leaf.contains(&leaf.logical());
                *items_left = items_left.saturating_sub(is_counted.into());
                found.push(((leaf.logical(), leaf.generation()), extent_ref));
            }
            cursor.advance()?;
        }
        Ok(cursor.key())
    }

    /// Returns the first key whose leaf is not freed: in a subvolume that is being deleted, nodes
    /// still name the leaves before it. `None` if the deletion has ended.
    fn first_key_left(&self, tree: TreeId) -> Result<Option<Key>> {
        let root = self.filesystem.forest().root_item(tree)?;
        Ok(root.map(|(_, root)| match root.refs() {
            0 => Key::from(&root.raw().drop_progress),
            _ => Key::MIN,
        }))
    }

    /// Follows a reference by leaf.
    fn refs_in_leaf(
        &mut self,
        extent: &ExtentRecord,
        leaf: Logical,
        each: &mut impl FnMut(ExtentRef) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.visit(1)?;
        let Some(block) = self.block_at(leaf)? else { return Ok(ControlFlow::Continue(())) };
        for slot in 0..block.len() {
            let Some((key, bytes)) = block.item(slot) else { continue };
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            if let Some(extent_ref) = extent_ref(extent, key, bytes)
                && self.report((leaf, block.generation()), extent_ref, each)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn report(
        &mut self,
        leaf: LeafId,
        extent_ref: ExtentRef,
        each: &mut impl FnMut(ExtentRef) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for &subvolume in self.roots_of(leaf)?.iter() {
            self.visit(1)?;
            if each(ExtentRef { subvolume, ..extent_ref }).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the subvolumes whose trees contain a block. There are none if it was freed, and its
    /// space is another block's now.
    fn roots_of(&mut self, block: LeafId) -> Result<Arc<[u64]>> {
        if let Some(known) = self.roots_of.get(&block) {
            return Ok(Arc::clone(known));
        }
        let mut roots = BTreeSet::new();
        let mut seen = HashSet::new();
        let mut pending = vec![block.0];
        // No block that is freed from here on is reused before the ascent ends.
        let _epoch = self.filesystem.forest().enter_read_epoch();
        while let Some(at) = pending.pop() {
            if !seen.insert(at) {
                continue;
            }
            self.visit(1)?;
            let Some(record) = ExtentRecord::at(&self.extent_tree, at)? else { continue };
            if at == block.0 && record.generation != block.1 {
                continue;
            }
            let references = record.references(&self.extent_tree, self.visits_max)?;
            self.visit(length(references.len()))?;
            for reference in references {
                match reference {
                    Reference::Block { tree } => match self.parent_of(tree, &record)? {
                        Parent::Root => {
                            roots.insert(tree.0);
                        }
                        Parent::Node(node) => pending.push(node),
                        Parent::None => {}
                    },
                    Reference::SharedBlock { node } => pending.push(node),
                    Reference::Data(_) | Reference::SharedData { .. } => {}
                }
            }
        }
        let roots: Arc<[u64]> = roots.into_iter().collect();
        if self.roots_of.len() as u64 >= self.visits_max {
            self.roots_of.clear();
        }
        self.roots_of.insert(block, Arc::clone(&roots));
        Ok(roots)
    }

    /// Returns the parent of a block in a tree that refers to it.
    fn parent_of(&mut self, tree: TreeId, record: &ExtentRecord) -> Result<Parent> {
        if !tree.is_subvolume() {
            return Ok(Parent::None);
        }
        let Some(tree) = self.filesystem.forest().tree(tree)? else { return Ok(Parent::None) };
        if tree.root().logical == record.start {
            return Ok(Parent::Root);
        }
        // Blocks of the running transaction are not on a device yet.
        let block = block_of(record).map(|expected| tree.block(&expected)).transpose()?;
        let Some(first) = block.and_then(|block| block.key(0)) else { return Ok(Parent::None) };
        let path = tree.path(&first, record.level.unwrap_or(0))?;
        self.visit(length(path.len()))?;
        let above = path.iter().zip(path.iter().skip(1)).find(|(_, below)| **below == record.start);
        Ok(above.map_or(Parent::None, |(node, _)| Parent::Node(*node)))
    }

    /// Reads the block at an address, if the extent tree has one. Its space is not reused between
    /// the look and the read.
    pub(crate) fn block_at(&self, logical: Logical) -> Result<Option<Arc<Block>>> {
        let _epoch = self.filesystem.forest().enter_read_epoch();
        match ExtentRecord::at(&self.extent_tree, logical)? {
            Some(record) => self.read(&record),
            None => Ok(None),
        }
    }

    /// Reads the block that an extent record describes; `None` for data.
    fn read(&self, record: &ExtentRecord) -> Result<Option<Arc<Block>>> {
        let Some(expected) = block_of(record) else { return Ok(None) };
        Ok(Some(self.filesystem.forest().block(&expected)?))
    }

    fn visit(&mut self, count: u64) -> Result<()> {
        self.visits += count;
        let limit = self.visits_max;
        if self.visits > limit {
            return Err(Error::LimitExceeded { what: "references to follow", limit });
        }
        Ok(())
    }
}

/// Returns what the block that an extent record describes must match; `None` for data.
fn block_of(record: &ExtentRecord) -> Option<Expected> {
    Some(Expected {
        logical: record.start,
        generation: record.generation,
        level: record.level?,
        tree: TreeId::FS,
        first_key: None,
        end_key: None,
    })
}

impl ExtentRef {
    pub(crate) fn owner(&self, offset: u64) -> ExtentOwner {
        ExtentOwner { subvolume: self.subvolume, ino: self.ino, offset }
    }
}

/// Returns the file extent in an item, if it refers to the data extent.
fn extent_ref(extent: &ExtentRecord, key: Key, bytes: &[u8]) -> Option<ExtentRef> {
    let item = FileExtent::check(bytes, key.offset).ok()?;
    let (disk, run) = on_disk(&item)?;
    (disk.logical == extent.start).then_some(ExtentRef {
        subvolume: 0,
        ino: key.objectid,
        file_offset: key.offset,
        extent_offset: run.offset,
        bytes: run.num_bytes,
        is_compressed: item.compression != Compression::None,
        is_preallocated: matches!(item.body, ExtentBody::Preallocated { .. }),
    })
}

/// Returns the data extent that a file extent refers to, and the range of it.
pub(crate) fn on_disk(item: &FileExtent<'_>) -> Option<(DiskExtent, ExtentRun)> {
    match item.body {
        ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run } => {
            Some((disk, run))
        }
        ExtentBody::Inline(_) | ExtentBody::Hole { .. } => None,
    }
}
