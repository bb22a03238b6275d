//! Delayed references: what the running transaction does to the references of extents, gathered
//! until it is written into the extent tree in one sorted pass.
//!
//! ```text
//! create ----> head { created } --+1, -1, ...--> applied: a new extent item
//!                  |                             or nothing at all, where they cancelled
//! change ----> head { } -------+1, -1, ...-----> applied: the item's references change,
//!                                                and at none the extent is freed
//! ```
//!
//! Laws:
//!
//! 1. A reference taken and given back in one transaction never reaches the extent tree.
//! 2. An extent has at most one head.
//! 3. The heads are a leaf of the lock order: nothing is locked, read or allocated under them.
//! 4. A change is in the heads or in the extent tree, for every reader at every moment: heads that
//!    are being applied are shown until their batch is in the tree, and a reader looks again where
//!    a batch went into the tree between its two looks ([`Look`]). Behind a batch that failed it
//!    gets the error that ended writing.
//!
//! Left to others: the extent items (`references::apply`, `item`, `keyed`), the space (`running`).

pub(crate) mod apply;
pub(crate) mod item;
pub(crate) mod keyed;

use crate::error::TreeError;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{ExtentBody, FileExtent};
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, TreeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One way of referring to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ref {
    /// To a tree block, by the tree that it belongs to.
    Tree(TreeId),
    /// To a tree block, by the node that names it.
    Shared(Logical),
    /// To data, by a file.
    Data(DataRef),
    /// To data, by the leaf that names it.
    SharedData(Logical),
}

impl Ref {
    /// By a file; how often is counted apart.
    pub(crate) fn data(data: DataRef) -> Self {
        Self::Data(DataRef { count: 1, ..data })
    }
}

/// What a block's children are referred to by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Referrer {
    Tree(TreeId),
    Block(Logical),
}

impl Referrer {
    pub(crate) fn to_block(self) -> Ref {
        match self {
            Self::Tree(tree) => Ref::Tree(tree),
            Self::Block(parent) => Ref::Shared(parent),
        }
    }

    /// The extent that a file extent item names, and the reference to it; `None` for inline
    /// extents and holes.
    pub(crate) fn to_data(self, key: &Key, extent: &FileExtent<'_>) -> Option<(Logical, u64, Ref)> {
        let (ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run }) =
            extent.body
        else {
            return None;
        };
        let reference = match self {
            Self::Tree(tree) => Ref::Data(DataRef {
                tree,
                ino: Ino(key.objectid),
                offset: key.offset.wrapping_sub(run.offset),
                count: 1,
            }),
            Self::Block(parent) => Ref::SharedData(parent),
        };
        Some((disk.logical, disk.bytes, reference))
    }
}

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Block { level: u8, first_key: Key },
    Data,
}

/// What one transaction does to one extent.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) bytes: u64,
    pub(crate) content: Content,
    /// The extent was allocated in this transaction and is not in the extent tree yet.
    pub(crate) is_created: bool,
    /// Its references become full back references.
    pub(crate) is_full_backref: bool,
    pub(crate) deltas: Vec<(Ref, i64)>,
}

impl Head {
    fn new(bytes: u64, content: Content, is_created: bool) -> Self {
        let deltas = Vec::with_capacity(1);
        Self { bytes, content, is_created, is_full_backref: false, deltas }
    }

    pub(crate) fn sum(&self) -> i64 {
        self.deltas.iter().fold(0, |sum: i64, (_, delta)| sum.saturating_add(*delta))
    }

    fn change(&mut self, reference: Ref, delta: i64) {
        match self.deltas.iter_mut().find(|(known, _)| *known == reference) {
            Some((_, sum)) => *sum = sum.saturating_add(delta),
            None => self.deltas.push((reference, delta)),
        }
        self.deltas.retain(|(_, sum)| *sum != 0);
    }
}

/// The heads of the running transaction, by address.
#[derive(Debug, Default)]
pub(crate) struct References {
    heads: BTreeMap<Logical, Head>,
    /// Heads that a commit applies in order, and the first of them that is not in the tree yet.
    applying: Option<(Arc<BTreeMap<Logical, Head>>, Logical)>,
    /// Counts the batches that began to go into the tree, and those that ended.
    batches: u64,
}

/// What the heads say of an extent, as of one moment (law 4).
#[derive(Debug)]
pub(crate) struct Look {
    /// How many references more, or less, there are than the tree says.
    pub(crate) sum: i64,
    /// References that change.
    pub(crate) deltas: Vec<(Ref, i64)>,
    batches: u64,
}

impl References {
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    pub(crate) fn get(&self, logical: Logical) -> Option<&Head> {
        self.heads.get(&logical)
    }

    /// What is to become of an extent. `None`: a batch is going into the tree just now.
    pub(crate) fn look(&self, at: Logical) -> Option<Look> {
        if !self.batches.is_multiple_of(2) {
            return None;
        }
        let applying = self.applying.as_ref().filter(|(_, from)| at >= *from);
        let applying = applying.and_then(|(heads, _)| heads.get(&at));
        let heads = || applying.into_iter().chain(self.heads.get(&at));
        let sum = heads().fold(0, |sum: i64, head| sum.saturating_add(head.sum()));
        let deltas = heads().flat_map(|head| head.deltas.iter().copied()).collect();
        Some(Look { sum, deltas, batches: self.batches })
    }

    /// Whether the tree has stayed as it was since that look, as far as batches go.
    pub(crate) fn still(&self, look: &Look) -> bool {
        self.batches == look.batches
    }

    /// A batch goes into the tree now.
    pub(crate) fn begin_batch(&mut self) {
        self.batches = self.batches.saturating_add(1);
    }

    /// The heads below `to` are in the tree. A batch that failed never ends: how much of it is in
    /// the tree is not known, so no count is, until the volume is opened again (law 4).
    pub(crate) fn end_batch(&mut self, to: Logical) {
        self.batches = self.batches.saturating_add(1);
        if let Some((_, from)) = self.applying.as_mut() {
            *from = to;
        }
    }

    /// An extent that was just allocated, with its first reference.
    pub(crate) fn create(&mut self, at: Logical, bytes: u64, content: Content, first: Ref) {
        let mut head = Head::new(bytes, content, true);
        head.deltas.push((first, 1));
        self.heads.insert(at, head);
    }

    /// Changes the references of an extent. `true`: it was created in this transaction, and nobody
    /// refers to it any more; its head is gone.
    pub(crate) fn change(
        &mut self,
        at: Logical,
        bytes: u64,
        content: Content,
        reference: Ref,
        delta: i64,
    ) -> bool {
        let head = self.heads.entry(at).or_insert_with(|| Head::new(bytes, content, false));
        head.change(reference, delta);
        let is_gone = head.is_created && head.deltas.is_empty();
        let is_idle = !head.is_created && !head.is_full_backref && head.deltas.is_empty();
        if is_gone || is_idle {
            self.heads.remove(&at);
        }
        is_gone
    }

    pub(crate) fn set_full_backref(&mut self, at: Logical, bytes: u64, content: Content) {
        let head = self.heads.entry(at).or_insert_with(|| Head::new(bytes, content, false));
        head.is_full_backref = true;
    }

    /// Hands all heads over to be applied; they stay visible until their batches are in the tree.
    pub(crate) fn take(&mut self) -> Arc<BTreeMap<Logical, Head>> {
        let heads = Arc::new(std::mem::take(&mut self.heads));
        self.applying = (!heads.is_empty()).then(|| (Arc::clone(&heads), Logical(0)));
        heads
    }
}

#[cfg(test)]
mod tests;

fn corrupt(at: Logical, refused: Refused) -> TreeError {
    let source = refused.at(format_args!("extent {at}"));
    TreeError::Corrupt { tree: TreeId::EXTENT, source }
}
