//! Reads the extent tree: allocated extents and their back references.
//!
//! 1. Extents do not overlap, and each is inside one chunk of its type.
//! 2. The reference count of an extent is the number of its inline and keyed back references, and
//!    is not zero. Keyed back references follow an extent item.
//! 3. Back references are posted to the [`Ledger`] as claims, and compared with the references that
//!    the other trees make.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::ledger::{Ledger, RefKind, Reference};
use crate::misplaced::misplaced;
use crate::run::{Part, Run};
use crate::spans::Spans;
use crate::walk::Survey;
use butternut_format::block_group::BlockGroup;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::extent::{
    DataRef, EXTENT_FLAG_FULL_BACKREF, Extent, ExtentKind, InlineRef, check_data_ref,
    check_shared_block_ref, check_shared_data_ref, check_tree_block_ref,
};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::BlockRules;
use butternut_format::refused::Bits;
use butternut_format::units::{Logical, TreeId};
use butternut_volume::Chunks;
use std::sync::Arc;

/// The extent item of one tree block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockItem {
    pub(crate) logical: Logical,
    pub(crate) generation: u64,
    /// The tree that refers to it, if it has no other reference.
    pub(crate) only_tree: Option<u64>,
    pub(crate) level: u8,
    pub(crate) is_full: bool,
    pub(crate) is_shared: bool,
}

/// The extent items of all tree blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    sorted: Vec<BlockItem>,
}

impl BlockTable {
    pub(crate) fn new(mut blocks: Vec<BlockItem>) -> Self {
        // They are sorted already, unless the tree is damaged.
        blocks.sort_by_key(|block| block.logical);
        Self { sorted: blocks }
    }

    pub(crate) fn find(&self, logical: Logical) -> Option<&BlockItem> {
        let at = self.sorted.binary_search_by_key(&logical, |block| block.logical).ok()?;
        self.sorted.get(at)
    }
}

/// Contents of the extent tree.
#[derive(Clone, Default)]
pub(crate) struct Extents {
    run: Run<Counted>,
    pub(crate) spans: Spans,
    pub(crate) blocks: Vec<BlockItem>,
    pub(crate) groups: Vec<BlockGroup>,
}

/// An extent whose references are being counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    start: u64,
    /// Count of the extent item; `None` if only keyed references were seen.
    refs: Option<u64>,
    found: u64,
    is_incomplete: bool,
}

impl Part for Counted {
    fn object(&self) -> u64 {
        self.start
    }

    fn merge(&mut self, next: Self) {
        self.refs = self.refs.or(next.refs);
        self.found = self.found.saturating_add(next.found);
        self.is_incomplete |= next.is_incomplete;
    }

    fn mark_incomplete(&mut self) {
        self.is_incomplete = true;
    }
}

pub(crate) struct ExtentSurvey<'a> {
    reader: &'a Reader<'a>,
    ledger: &'a Ledger,
    chunks: Arc<Chunks>,
    rules: Arc<BlockRules>,
}

impl<'a> ExtentSurvey<'a> {
    pub(crate) fn new(reader: &'a Reader<'a>, ledger: &'a Ledger) -> Self {
        let (chunks, rules) = (reader.volume().chunks(), reader.volume().block_rules());
        Self { reader, ledger, chunks, rules }
    }

    /// Closes the last extents. Call it after the whole tree was walked.
    pub(crate) fn finish(&self, extents: &mut Extents) {
        std::mem::take(&mut extents.run).finish(&mut |counted| self.close(&counted));
    }

    /// Checks law 2.
    fn close(&self, counted: &Counted) {
        if counted.is_incomplete {
            return;
        }
        let sink = self.reader.sink();
        let place = format!("extent {}", counted.start);
        match counted.refs {
            None => {
                let have = format!("{} keyed references", counted.found);
                sink.add(Kind::ReferenceNoExtent, place, "extent item", "none", have);
            }
            Some(refs) if refs != counted.found || refs == 0 => {
                let want = if refs == 0 { counted.found.max(1) } else { counted.found };
                sink.add(Kind::ReferenceCount, place, "refs", refs, want);
            }
            Some(_) => {}
        }
    }

    fn extent(&self, extent: &Extent<'_>, out: &mut Extents) {
        let start = extent.logical.0;
        let is_data = extent.kind == ExtentKind::Data;
        self.ledger.item(start);
        self.reader.sink().count(&self.reader.sink().counters.extents, 1);
        let mut counted = 0_u64;
        let mut only_tree = None;
        for reference in extent.inline_refs().flatten() {
            counted = counted.saturating_add(reference.count().into());
            if let InlineRef::TreeBlock(tree) = reference {
                only_tree = (extent.refs == 1).then_some(tree.0);
            }
            self.claim(start, reference);
        }
        if is_data {
            let bytes = Reference::of(start, RefKind::Bytes, extent.bytes);
            self.ledger.claim(&bytes, extent.refs);
        }
        if let ExtentKind::TreeBlock { level, .. } = extent.kind {
            out.blocks.push(BlockItem {
                logical: extent.logical,
                generation: extent.generation.0,
                only_tree,
                level,
                is_full: extent.flags & EXTENT_FLAG_FULL_BACKREF != 0,
                is_shared: extent.refs > 1,
            });
        }
        self.check_place(extent);
        if let Err(end) = out.spans.push(start, extent.end().0, is_data) {
            self.overlap(start, end);
        }
        self.count(start, Some(extent.refs), counted, out);
    }

    fn overlap(&self, start: u64, end: u64) {
        let want = format!("at least {end}, where the extent before ends");
        self.reader.sink().add(Kind::ExtentOverlap, "tree extent", "extent", start, want);
    }

    fn count(&self, start: u64, refs: Option<u64>, counted: u64, out: &mut Extents) {
        let make = |start| Counted { start, refs: None, found: 0, is_incomplete: false };
        if let Some(part) = out.run.part_of(start, make, &mut |part| self.close(&part)) {
            part.refs = part.refs.or(refs);
            part.found = part.found.saturating_add(counted);
        }
    }

    fn claim(&self, start: u64, reference: InlineRef) {
        let (claim, count) = match reference {
            InlineRef::Owner(_) => return,
            InlineRef::TreeBlock(tree) => (Reference::of(start, RefKind::Tree, tree.0), 1),
            InlineRef::SharedBlock(parent) => {
                (Reference::of(start, RefKind::SharedBlock, parent.0), 1)
            }
            InlineRef::Data(DataRef { tree, ino, offset, count }) => {
                let (from, ino) = (tree.0, ino.0);
                (Reference { start, kind: RefKind::Data, from, ino, offset }, count)
            }
            InlineRef::SharedData { parent, count } => {
                (Reference::of(start, RefKind::SharedData, parent.0), count)
            }
        };
        self.ledger.claim(&claim, count.into());
    }

    /// Checks that an extent is inside a chunk of its type (law 1).
    fn check_place(&self, extent: &Extent<'_>) {
        let sink = self.reader.sink();
        let place = || format!("extent {}", extent.logical);
        let chunk = self.chunks.find(extent.logical);
        let Some(chunk) = chunk.filter(|chunk| extent.end().0 <= chunk.end()) else {
            let want = "inside one chunk";
            sink.add(Kind::ExtentPlace, place(), "end", extent.end(), want);
            return;
        };
        let wanted = if extent.kind == ExtentKind::Data {
            BlockGroupFlags::DATA
        } else {
            BlockGroupFlags(BlockGroupFlags::METADATA.0 | BlockGroupFlags::SYSTEM.0)
        };
        if !chunk.flags().intersects(wanted) {
            let want = format!("one of {:#x}", wanted.0);
            sink.add(Kind::ExtentPlace, place(), "chunk type", Bits(chunk.flags().0), want);
        }
    }
}

impl Survey for ExtentSurvey<'_> {
    type Out = Extents;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Extents {
        let mut out = Extents::default();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            match key.item_type {
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    if let Ok(extent) = Extent::check(key, data, leaf.generation(), &self.rules) {
                        self.extent(&extent, &mut out);
                    }
                }
                ItemType::BLOCK_GROUP_ITEM => {
                    out.groups.extend(BlockGroup::check(key, data, self.rules.incompat));
                }
                _ => match keyed(key, data) {
                    Some(reference) => {
                        self.claim(key.objectid, reference);
                        self.count(key.objectid, None, reference.count().into(), &mut out);
                    }
                    None => misplaced(self.reader, TreeId::EXTENT, leaf, key),
                },
            }
        }
        out
    }

    fn join(&self, left: &mut Extents, right: Extents) {
        left.run.join(right.run, &mut |part| self.close(&part));
        if let Err((start, end)) = left.spans.append(right.spans) {
            self.overlap(start, end);
        }
        left.blocks.extend(right.blocks);
        left.groups.extend(right.groups);
    }

    fn lost(&self) -> Extents {
        Extents { run: Run::lost(), ..Extents::default() }
    }
}

/// Parses a keyed back reference.
fn keyed(key: Key, data: &[u8]) -> Option<InlineRef> {
    match key.item_type {
        ItemType::TREE_BLOCK_REF => check_tree_block_ref(key, data).ok().map(InlineRef::TreeBlock),
        ItemType::SHARED_BLOCK_REF => {
            check_shared_block_ref(key, data).ok().map(InlineRef::SharedBlock)
        }
        ItemType::EXTENT_DATA_REF => check_data_ref(key, data).ok().map(InlineRef::Data),
        ItemType::SHARED_DATA_REF => {
            let (parent, count) = check_shared_data_ref(key, data).ok()?;
            Some(InlineRef::SharedData { parent, count })
        }
        _ => None,
    }
}
