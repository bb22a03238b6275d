//! Back references: from a block or a data extent up to the trees that hold it.
//!
//! ```text
//! extent item --EXTENT_DATA_REF (tree, ino, offset)--> leaves of that tree, found by searching it
//!             --SHARED_DATA_REF (leaf)---------------> that leaf
//! leaf, node  --TREE_BLOCK_REF (tree)----------------> the node above it in that tree, or the
//!                                                      tree itself where the block is its root
//!             --SHARED_BLOCK_REF (node)--------------> that node
//! ```
//!
//! A block that several trees share is reached from every one of them: the walk goes up through
//! all parents until it stands at roots.
//!
//! Laws:
//!
//! 1. A walk visits a block once, and the search for one extent's holders at most [`VISITS_MAX`]
//!    blocks and items.
//! 2. References that lead nowhere (a tree that is being deleted) are passed over.

use crate::extent_items::{ExtentRecord, Reference};
use crate::inspect::{Block, child};
use crate::{Error, ExtentOwner, Filesystem, Result};
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::units::{Logical, TreeId};
use butternut_tree::Tree;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Blocks and items that one search may look at.
pub(crate) const VISITS_MAX: u64 = 1 << 20;

/// A file extent that points at the data extent in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) subvolume: u64,
    pub(crate) ino: u64,
    /// Where the file extent starts in its file, and what part of the data extent it shows.
    pub(crate) file_offset: u64,
    pub(crate) extent_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) is_compressed: bool,
}

/// A search for owners. Keeps what it learns about leaves, so that one search over many extents of
/// a file climbs from each leaf once.
pub(crate) struct Backrefs<'a> {
    filesystem: &'a Filesystem,
    extent_tree: Tree,
    roots_of: HashMap<Logical, Arc<[u64]>>,
    visits: u64,
}

enum Above {
    Root,
    Node(Logical),
    Nothing,
}

impl<'a> Backrefs<'a> {
    pub(crate) fn new(filesystem: &'a Filesystem) -> Result<Self> {
        let extent_tree = filesystem.extent_tree()?;
        Ok(Self { filesystem, extent_tree, roots_of: HashMap::new(), visits: 0 })
    }

    /// The extent (data or block) that covers an address.
    pub(crate) fn covering(&self, logical: Logical) -> Result<Option<ExtentRecord>> {
        ExtentRecord::covering(&self.extent_tree, logical)
    }

    /// Hands every file extent that points at the data extent to `each`, until it breaks.
    pub(crate) fn each_holder(
        &mut self,
        extent: &ExtentRecord,
        mut each: impl FnMut(Holder) -> ControlFlow<()>,
    ) -> Result<()> {
        self.visits = 0;
        for reference in extent.references(&self.extent_tree, VISITS_MAX)? {
            let flow = match reference {
                Reference::Data(data) => self.holders_in_tree(extent, data, &mut each)?,
                Reference::SharedData { leaf } => self.holders_in_leaf(extent, leaf, &mut each)?,
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

    /// Follows a reference that names a tree, an inode and a place in it.
    fn holders_in_tree(
        &mut self,
        extent: &ExtentRecord,
        data: DataRef,
        each: &mut impl FnMut(Holder) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if !data.tree.is_subvolume() {
            return Ok(ControlFlow::Continue(()));
        }
        let Some(tree) = self.filesystem.forest().tree(data.tree)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let mut found = Vec::new();
        let mut cursor = tree.cursor();
        // `offset` is the file offset less the offset into the extent, and may be below zero.
        let start = if data.offset > u64::MAX / 2 { 0 } else { data.offset };
        cursor.seek(&Key::new(data.ino.0, ItemType::EXTENT_DATA, start))?;
        while let Some((key, bytes)) = cursor.item_parts() {
            if key.objectid != data.ino.0
                || key.item_type != ItemType::EXTENT_DATA
                || found.len() >= usize::try_from(data.count).unwrap_or(usize::MAX)
            {
                break;
            }
            self.visit(1)?;
            if let Some(holder) = holder(extent, key, bytes)
                && holder.file_offset.wrapping_sub(holder.extent_offset) == data.offset
                && let Some((leaf, _)) = cursor.position()
            {
                found.push((leaf.logical(), holder));
            }
            cursor.advance()?;
        }
        for (leaf, holder) in found {
            if self.hand_out(leaf, holder, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Follows a reference that names the leaf.
    fn holders_in_leaf(
        &mut self,
        extent: &ExtentRecord,
        leaf: Logical,
        each: &mut impl FnMut(Holder) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.visit(1)?;
        let Some(block) = self.block_at(leaf)? else { return Ok(ControlFlow::Continue(())) };
        for slot in 0..block.len() {
            let Some((key, bytes)) = block.item(slot) else { continue };
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            if let Some(holder) = holder(extent, key, bytes)
                && self.hand_out(leaf, holder, each)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn hand_out(
        &mut self,
        leaf: Logical,
        holder: Holder,
        each: &mut impl FnMut(Holder) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for &subvolume in self.roots_of(leaf)?.iter() {
            self.visit(1)?;
            if each(Holder { subvolume, ..holder }).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The subvolumes whose trees reach a block.
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
            let Some(record) = ExtentRecord::at(&self.extent_tree, at)? else { continue };
            for reference in record.references(&self.extent_tree, VISITS_MAX)? {
                match reference {
                    Reference::Block { tree } => match self.above(tree, &record)? {
                        Above::Root => {
                            roots.insert(tree.0);
                        }
                        Above::Node(node) => pending.push(node),
                        Above::Nothing => {}
                    },
                    Reference::SharedBlock { node } => pending.push(node),
                    Reference::Data(_) | Reference::SharedData { .. } => {}
                }
            }
        }
        let roots: Arc<[u64]> = roots.into_iter().collect();
        self.roots_of.insert(block, Arc::clone(&roots));
        Ok(roots)
    }

    /// What is above a block in a tree that refers to it.
    fn above(&mut self, tree: TreeId, record: &ExtentRecord) -> Result<Above> {
        if !tree.is_subvolume() {
            return Ok(Above::Nothing);
        }
        let Some(tree) = self.filesystem.forest().tree(tree)? else { return Ok(Above::Nothing) };
        if tree.root().logical == record.start {
            return Ok(Above::Root);
        }
        let Some(first) = self.read(record)?.and_then(|block| block.key(0)) else {
            return Ok(Above::Nothing);
        };
        let _reading = self.filesystem.forest().reading();
        let mut expected = tree.root();
        loop {
            self.visit(1)?;
            let block = self.filesystem.forest().block(&expected)?;
            let slot = match block.find(&first) {
                Ok(slot) => slot,
                Err(0) => return Ok(Above::Nothing),
                Err(slot) => slot - 1,
            };
            let Some(below) = child(&block, slot, tree.id(), expected.end_key) else {
                return Ok(Above::Nothing);
            };
            if below.logical == record.start {
                return Ok(Above::Node(block.logical()));
            }
            expected = below;
        }
    }

    /// The block at an address, if the extent tree knows one.
    pub(crate) fn block_at(&self, logical: Logical) -> Result<Option<Arc<Block>>> {
        match ExtentRecord::at(&self.extent_tree, logical)? {
            Some(record) => self.read(&record),
            None => Ok(None),
        }
    }

    /// The block that an extent record describes; `None` for data.
    fn read(&self, record: &ExtentRecord) -> Result<Option<Arc<Block>>> {
        let Some(level) = record.level else { return Ok(None) };
        let expected = Expected {
            logical: record.start,
            generation: record.generation,
            level,
            tree: TreeId::FS,
            first_key: None,
            end_key: None,
        };
        Ok(Some(self.filesystem.forest().block(&expected)?))
    }

    fn visit(&mut self, count: u64) -> Result<()> {
        self.visits += count;
        if self.visits > VISITS_MAX {
            return Err(Error::LimitExceeded { what: "references to follow", limit: VISITS_MAX });
        }
        Ok(())
    }
}

impl Holder {
    pub(crate) fn owner(&self, offset: u64) -> ExtentOwner {
        ExtentOwner { subvolume: self.subvolume, ino: self.ino, offset }
    }
}

/// The file extent in an item, if it points at the data extent.
fn holder(extent: &ExtentRecord, key: Key, bytes: &[u8]) -> Option<Holder> {
    let item = FileExtent::check(bytes, key.offset).ok()?;
    let (disk, run) = on_disk(&item)?;
    (disk.logical == extent.start).then_some(Holder {
        subvolume: 0,
        ino: key.objectid,
        file_offset: key.offset,
        extent_offset: run.offset,
        bytes: run.num_bytes,
        is_compressed: item.compression != Compression::None,
    })
}

/// The data extent that a file extent points at, and the part of it that it shows.
pub(crate) fn on_disk(item: &FileExtent<'_>) -> Option<(DiskExtent, ExtentRun)> {
    match item.body {
        ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run } => {
            Some((disk, run))
        }
        ExtentBody::Inline(_) | ExtentBody::Hole { .. } => None,
    }
}
