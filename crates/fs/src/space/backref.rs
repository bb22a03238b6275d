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

use crate::inspect::Block;
use crate::inspect::ExtentOwner;
use crate::space::extent_items::{ExtentRecord, Reference};
use crate::{Error, Filesystem, Result};
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::units::{Logical, TreeId, length};
use butternut_tree::Tree;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Maximum number of blocks and items that one search visits.
pub(crate) const VISITS_MAX: u64 = 1 << 20;

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
    roots_of: HashMap<Logical, Arc<[u64]>>,
    visits: u64,
    visits_max: u64,
}

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
        let forest = self.filesystem.forest();
        // No leaf that is freed from here on is reused before the search ends.
        let _epoch = forest.enter_read_epoch();
        let Some(tree) = forest.tree(data.tree)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let from = self.first_key_left(data.tree)?;
        let (mut found, mut items_left) = (Vec::new(), data.count);
        let mut cursor = tree.cursor();
        // `offset` is the file offset minus the offset into the extent, and may be negative.
        let start = if data.offset > u64::MAX / 2 { 0 } else { data.offset };
        let end = data.offset.wrapping_add(FILE_BYTES_MAX);
        cursor.seek(&Key::new(data.ino.0, ItemType::EXTENT_DATA, start).max(from))?;
        while let Some((key, bytes)) = cursor.item_parts() {
            if key.objectid != data.ino.0
                || key.item_type != ItemType::EXTENT_DATA
                || key.offset >= end
                || items_left == 0
            {
                break;
            }
            self.visit(1)?;
            if let Some(extent_ref) = extent_ref(extent, key, bytes)
                && extent_ref.file_offset.wrapping_sub(extent_ref.extent_offset) == data.offset
                && let Some((leaf, _)) = cursor.position()
            {
                let is_counted = leaf.owner() == data.tree && !by_leaf.contains(&leaf.logical());
                items_left -= u32::from(is_counted);
                found.push((leaf.logical(), extent_ref));
            }
            cursor.advance()?;
        }
        for (leaf, extent_ref) in found {
            if self.report(leaf, extent_ref, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the first key whose leaf is not freed: in a subvolume that is being deleted, nodes
    /// still name the leaves before it.
    fn first_key_left(&self, tree: TreeId) -> Result<Key> {
        let root = self.filesystem.forest().root_item(tree)?;
        let deleted = root.filter(|(_, root)| root.refs() == 0);
        Ok(deleted.map_or(Key::MIN, |(_, root)| Key::from(&root.raw().drop_progress)))
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
                && self.report(leaf, extent_ref, each)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn report(
        &mut self,
        leaf: Logical,
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

    /// Returns the subvolumes whose trees contain a block.
    fn roots_of(&mut self, block: Logical) -> Result<Arc<[u64]>> {
        if let Some(known) = self.roots_of.get(&block) {
            return Ok(Arc::clone(known));
        }
        let mut roots = BTreeSet::new();
        let mut seen = HashSet::new();
        let mut pending = vec![block];
        while let Some(at) = pending.pop() {
            if !seen.insert(at) {
                continue;
            }
            self.visit(1)?;
            // The space of the block is not reused between the look and the read.
            let _epoch = self.filesystem.forest().enter_read_epoch();
            let Some(record) = ExtentRecord::at(&self.extent_tree, at)? else { continue };
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
        let path = tree.path(&first)?;
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
