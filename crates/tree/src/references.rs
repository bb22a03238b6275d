//! Delayed references: the reference count changes of the running transaction, gathered in memory
//! until the commit writes them into the extent tree in one sorted pass.
//!
//! ```text
//! create ----> head { created } --+1, -1, ...--> applied: inserts an extent item,
//!                  |                             or does nothing if the changes cancel out
//! change ----> head { } -------+1, -1, ...-----> applied: changes the references of the item,
//!                                                and frees the extent when none is left
//! ```
//!
//! Laws:
//!
//! 1. A reference that is added and dropped in one transaction never reaches the extent tree.
//! 2. An extent has at most one head.
//! 3. The lock of the heads is a leaf of the lock order: a thread that holds it takes no other
//!    lock, reads no block and allocates no space.
//! 4. At every moment each change is either in the heads or in the extent tree, for every reader.
//!    Heads that are being applied stay visible until their batch is in the tree. A reader repeats
//!    its lookup if a batch was written between its reads of the heads and of the tree
//!    ([`PendingRefs`]). After a batch that failed, it gets the error that made the volume
//!    read-only.
//!
//! 5. Threads that change different trees may copy or drop a block that both refer to. What a
//!    thread does with the references of the children depends on those of the block, so it
//!    changes them only while these are as it has read them ([`References::seen`]).
//!
//! Left to others: the extent items (`references::apply`, `item`, `keyed`), the references that a
//! crash brings back (`dropped`), the extents that full quotas account for (`touched`), the bytes
//! that simple ones account for (`owned`), the space (`running`).

pub(crate) mod apply;
pub(crate) mod children;
pub(crate) mod deltas;
pub(crate) mod dropped;
pub(crate) mod item;
pub(crate) mod keyed;
pub(crate) mod owned;
pub(crate) mod reference;
pub(crate) mod touched;

use crate::Block;
use crate::error::TreeError;
use butternut_format::extent::DataRef;
use butternut_format::file_extent::{ExtentBody, FileExtent};
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, Logical, TreeId};
use deltas::Deltas;
use dropped::{Dropped, UncommittedDrops};
use owned::Owned;
pub(crate) use reference::{RECORDS_MAX, Ref};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use touched::Touched;

/// The owner of the references to a block's children.
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

    /// Returns the extent that a file extent item names, with the reference to it; `None` for
    /// inline extents and holes.
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

/// The contents of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Block { level: u8, first_key: Key },
    Data,
}

impl Content {
    pub(crate) fn block(level: u8, first_key: Option<Key>) -> Self {
        Self::Block { level, first_key: first_key.unwrap_or_default() }
    }
}

/// The changes of one transaction to one extent: a delayed reference head.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) bytes: u64,
    pub(crate) content: Content,
    /// Whether the extent was allocated in this transaction and has no extent item yet.
    pub(crate) is_created: bool,
    /// Whether its references become full back references.
    pub(crate) is_full_backref: bool,
    pub(crate) deltas: Deltas,
    /// The tree that the extent was allocated for: known if that was in this transaction, or if
    /// [`References::note_dropped_block`] has noted it.
    pub(crate) owner: Option<TreeId>,
}

impl Head {
    fn new(bytes: u64, content: Content, is_created: bool) -> Self {
        let deltas = Deltas::new();
        Self { bytes, content, is_created, is_full_backref: false, deltas, owner: None }
    }

    pub(crate) fn sum(&self) -> i64 {
        self.deltas.sum()
    }
}

/// The heads of the running transaction, by address.
#[derive(Debug, Default)]
pub(crate) struct References {
    heads: BTreeMap<Logical, Head>,
    /// The heads that a commit applies, and the address of the first one that is not in the tree
    /// yet.
    applying: Option<(Arc<BTreeMap<Logical, Head>>, Logical)>,
    /// A sequence count: incremented when a batch begins to be written and when it ends, so it is
    /// odd in between.
    sequence: u64,
    /// The references of data that a crash would bring back.
    drops: UncommittedDrops,
    touched: Touched,
    owned: Owned,
    /// The changed references of all heads.
    changes: usize,
}

/// The delayed references of an extent at one moment (law 4).
#[derive(Debug)]
pub(crate) struct PendingRefs {
    /// The sum of the count changes that are not in the tree.
    pub(crate) sum: i64,
    /// The length of the extent in bytes, if it was allocated in the running transaction.
    pub(crate) created_bytes: Option<u64>,
    /// Whether other references change than the one that the caller asked about.
    pub(crate) has_others: bool,
    /// The references that were dropped, where the drop is not durable.
    pub(crate) dropped: Dropped,
    sequence: u64,
}

/// The delayed references of a tree block when a thread read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenRefs {
    pub(crate) sum: i64,
    pub(crate) is_full_backref: bool,
    /// Whether the block was allocated in this transaction and has no extent item yet.
    pub(crate) is_created: bool,
}

impl References {
    /// Returns the delayed references of a tree block.
    pub(crate) fn seen(&self, at: Logical) -> SeenRefs {
        self.heads.get(&at).map_or_else(SeenRefs::default, |head| SeenRefs {
            sum: head.sum(),
            is_full_backref: head.is_full_backref,
            is_created: head.is_created,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the number of extents with changed references.
    pub(crate) fn heads_len(&self) -> usize {
        self.heads.len()
    }

    #[cfg(test)]
    pub(crate) fn count_of(&self, is_wanted: impl Fn(&Head) -> bool) -> usize {
        self.heads.values().filter(|head| is_wanted(head)).count()
    }

    /// Returns the number of changed references. An extent may have very many.
    pub(crate) fn len(&self) -> usize {
        self.heads.len().max(self.changes)
    }

    /// Whether there are so many that a commit should write them: changed and dropped references.
    pub(crate) fn are_many(&self) -> bool {
        self.len().saturating_add(self.drops.len()) >= RECORDS_MAX
    }

    /// Returns the references whose drops are not durable.
    pub(crate) fn drops(&mut self) -> &mut UncommittedDrops {
        &mut self.drops
    }

    /// Returns the extents whose references the transaction has changed.
    pub(crate) fn touched(&mut self) -> &mut Touched {
        &mut self.touched
    }

    /// Returns the bytes of extents whose items have changed, for simple quotas.
    pub(crate) fn owned(&mut self) -> &mut Owned {
        &mut self.owned
    }

    pub(crate) fn get(&self, logical: Logical) -> Option<&Head> {
        self.heads.get(&logical)
    }

    /// Returns the delayed references of an extent, for a caller that has the reference `own`, if
    /// any; `None` while a batch is being written.
    pub(crate) fn pending_refs(&self, at: Logical, own: Option<Ref>) -> Option<PendingRefs> {
        if !self.sequence.is_multiple_of(2) {
            return None;
        }
        let applying = self.applying.as_ref().filter(|(_, from)| at >= *from);
        let applying = applying.and_then(|(heads, _)| heads.get(&at));
        let heads = || applying.into_iter().chain(self.heads.get(&at));
        let sum = heads().fold(0, |sum: i64, head| sum.saturating_add(head.sum()));
        let has_others = |head: &Head| match own {
            Some(own) => head.deltas.has_other_than(own),
            None => !head.deltas.is_empty(),
        };
        let has_others = heads().any(has_others);
        let created_bytes = heads().find(|head| head.is_created).map(|head| head.bytes);
        let dropped = self.drops.of(at);
        Some(PendingRefs { sum, created_bytes, has_others, dropped, sequence: self.sequence })
    }

    /// Whether no batch was written since `pending` was read.
    pub(crate) fn is_current(&self, pending: &PendingRefs) -> bool {
        self.sequence == pending.sequence
    }

    /// Marks the beginning of a batch.
    pub(crate) fn begin_batch(&mut self) {
        self.sequence = self.sequence.saturating_add(1);
    }

    /// Marks the end of a batch: the heads below `to` are in the tree. A batch that failed never
    /// ends, since it is not known how much of it is in the tree: counts cannot be read until the
    /// volume is opened again (law 4).
    pub(crate) fn end_batch(&mut self, to: Logical) {
        self.sequence = self.sequence.saturating_add(1);
        if let Some((_, from)) = self.applying.as_mut() {
            *from = to;
        }
    }

    /// Adds an extent that was just allocated, with its first reference. Returns `false`, and adds
    /// nothing, if the address has a head already (law 2).
    #[must_use]
    pub(crate) fn create(&mut self, at: Logical, bytes: u64, content: Content, first: Ref) -> bool {
        let Entry::Vacant(place) = self.heads.entry(at) else { return false };
        let head = place.insert(Head::new(bytes, content, true));
        head.deltas.change(first, 1);
        self.changes = self.changes.saturating_add(1);
        head.owner = match first {
            Ref::Data(DataRef { tree, .. }) | Ref::Tree(tree) => Some(tree),
            Ref::Shared(_) | Ref::SharedData(_) => None,
        };
        if let Ref::Tree(owner) = first {
            self.owned.grow(owner, bytes);
        }
        self.touched.add(at, first);
        true
    }

    /// Changes the references of an extent. Returns `true` if the extent was created in this
    /// transaction and has no references any more; its head is removed then.
    pub(crate) fn change(
        &mut self,
        at: Logical,
        bytes: u64,
        content: Content,
        reference: Ref,
        delta: i64,
    ) -> bool {
        let head = self.heads.entry(at).or_insert_with(|| Head::new(bytes, content, false));
        let others = self.changes.saturating_sub(head.deltas.len());
        head.deltas.change(reference, delta);
        self.changes = others.saturating_add(head.deltas.len());
        let is_freed = head.is_created && head.deltas.is_empty();
        let is_idle = !head.is_created && !head.is_full_backref && head.deltas.is_empty();
        if is_freed || is_idle {
            let removed = self.heads.remove(&at).filter(|_| is_freed && content != Content::Data);
            if let Some(owner) = removed.and_then(|head| head.owner) {
                self.owned.shrink(owner, bytes);
            }
        }
        if delta < 0 && content == Content::Data && !is_freed {
            self.drops.add(at, reference);
        }
        if is_freed {
            self.touched.forget(at);
        } else {
            self.touched.add(at, reference);
        }
        is_freed
    }

    /// Returns the tree that data was allocated for, if the running transaction has allocated it.
    pub(crate) fn owner(&self, at: Logical) -> Option<TreeId> {
        self.heads.get(&at).filter(|head| head.is_created).and_then(|head| head.owner)
    }

    /// Notes the owner of a tree block of which a reference was just dropped, so that simple quotas
    /// need not read the block again. `is_last`: no other reference is left.
    pub(crate) fn note_dropped_block(&mut self, block: &Block, is_last: bool) {
        let Some(since) = self.owned.since() else { return };
        let Some(head) = self.heads.get_mut(&block.logical()) else { return };
        head.owner.get_or_insert(block.owner());
        if is_last && !head.is_created && block.generation() >= since {
            self.owned.shrink(block.owner(), head.bytes);
        }
    }

    pub(crate) fn set_full_backref(&mut self, at: Logical, bytes: u64, content: Content) {
        let head = self.heads.entry(at).or_insert_with(|| Head::new(bytes, content, false));
        head.is_full_backref = true;
    }

    /// Returns the first `count` heads of data from `from` on, to be applied. They stay visible
    /// until their changes are in the tree.
    pub(crate) fn take_data(
        &mut self,
        from: Logical,
        count: usize,
    ) -> Arc<BTreeMap<Logical, Head>> {
        let data = self.heads.range(from..).filter(|(_, head)| head.content == Content::Data);
        let starts: Vec<Logical> = data.take(count).map(|(at, _)| *at).collect();
        let mut heads = BTreeMap::new();
        for at in starts {
            if let Some(head) = self.heads.remove(&at) {
                self.changes = self.changes.saturating_sub(head.deltas.len());
                heads.insert(at, head);
            }
        }
        let heads = Arc::new(heads);
        self.applying = (!heads.is_empty()).then(|| (Arc::clone(&heads), Logical(0)));
        heads
    }

    /// Returns all heads to be applied. They stay visible until their changes are in the tree.
    pub(crate) fn take(&mut self) -> Arc<BTreeMap<Logical, Head>> {
        let heads = Arc::new(std::mem::take(&mut self.heads));
        self.changes = 0;
        self.applying = (!heads.is_empty()).then(|| (Arc::clone(&heads), Logical(0)));
        heads
    }
}

#[cfg(test)]
mod tests;

pub(crate) fn corrupt(at: Logical, refused: Refused) -> TreeError {
    let source = refused.at(format_args!("extent {at}"));
    TreeError::Corrupt { tree: TreeId::EXTENT, source }
}
