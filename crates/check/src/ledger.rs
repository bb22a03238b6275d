//! Extents against their users: every reference that the extent tree claims, and every use that
//! the other trees make.
//!
//! 1. A use adds, a claim subtracts, each in the bucket of its extent's address: a volume whose
//!    references are right ends with zeros everywhere, in memory that does not grow with it.
//! 2. Only where a bucket does not end with zero are the references themselves collected, by a
//!    second look at the trees: those of the wrong buckets, which are few.

use crate::finding::Kind;
use crate::hash;
use crate::sink::Sink;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const BUCKETS: usize = 1024;

/// How an extent is referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefKind {
    /// A tree block, by a tree or by the block above it.
    Tree,
    SharedBlock,
    /// Data, by an inode of a tree or by the leaf that holds the file extent.
    Data,
    SharedData,
    /// How long whoever refers to data thinks that it is: `from` holds the bytes.
    Bytes,
}

/// One reference. `from` is the tree, the block, or what [`RefKind::Bytes`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) start: u64,
    pub(crate) kind: RefKind,
    pub(crate) from: u64,
    pub(crate) ino: u64,
    pub(crate) offset: u64,
}

impl Reference {
    pub(crate) const fn of(start: u64, kind: RefKind, from: u64) -> Self {
        Self { start, kind, from, ino: 0, offset: 0 }
    }

    fn hash(&self) -> u64 {
        let kind = match self.kind {
            RefKind::Tree => 1,
            RefKind::SharedBlock => 2,
            RefKind::Data => 3,
            RefKind::SharedData => 4,
            RefKind::Bytes => 5,
        };
        hash::words([self.start, kind, self.from, self.ino, self.offset])
    }

    /// Who refers, for people.
    fn who(&self) -> String {
        let Self { from, ino, offset, .. } = self;
        match self.kind {
            RefKind::Tree => format!("tree {from}"),
            RefKind::SharedBlock => format!("block {from}"),
            RefKind::Data => format!("tree {from} inode {ino} offset {}", signed(*offset)),
            RefKind::SharedData => format!("leaf {from}"),
            RefKind::Bytes => format!("{from} bytes"),
        }
    }
}

pub(crate) struct Ledger {
    sums: Box<[AtomicU64]>,
    exact: Option<Exact>,
}

/// What is collected of the wrong buckets.
struct Exact {
    is_wrong: Vec<bool>,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    reference: Reference,
    uses: u64,
    claims: u64,
    is_item: bool,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { sums: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), exact: None }
    }

    /// A ledger for the second look, if there has to be one (law 2).
    pub(crate) fn second(&self) -> Option<Self> {
        let is_wrong: Vec<bool> =
            self.sums.iter().map(|sum| sum.load(Ordering::Relaxed) != 0).collect();
        is_wrong.contains(&true).then(|| Self {
            sums: Box::default(),
            exact: Some(Exact { is_wrong, entries: Mutex::default() }),
        })
    }

    /// Somebody refers to an extent.
    pub(crate) fn add_use(&self, reference: &Reference) {
        self.post(reference, 1, 0);
    }

    /// The extent tree says that somebody does, so often.
    pub(crate) fn claim(&self, reference: &Reference, count: u64) {
        self.post(reference, 0, count);
    }

    /// The extent tree has an extent item here.
    pub(crate) fn item(&self, start: u64) {
        if let Some(exact) = self.exact.as_ref().filter(|exact| exact.wants(start)) {
            let reference = Reference::of(start, RefKind::Tree, 0);
            exact.push(Entry { reference, uses: 0, claims: 0, is_item: true });
        }
    }

    fn post(&self, reference: &Reference, uses: u64, claims: u64) {
        let Some(exact) = &self.exact else {
            let hash = reference.hash();
            let sum = hash.wrapping_mul(uses).wrapping_sub(hash.wrapping_mul(claims));
            if let Some(bucket) = self.sums.get(bucket(reference.start)) {
                bucket.fetch_add(sum, Ordering::Relaxed);
            }
            return;
        };
        if exact.wants(reference.start) {
            exact.push(Entry { reference: *reference, uses, claims, is_item: false });
        }
    }

    /// After the second look: says what does not fit.
    pub(crate) fn explain(self, sink: &Sink<'_>) {
        let Some(exact) = self.exact else { return };
        let mut entries = exact.entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        entries.sort_by_key(|entry| entry.reference);
        for extent in entries.chunk_by(|a, b| a.reference.start == b.reference.start) {
            explain_extent(extent, sink);
        }
    }
}

impl Exact {
    fn wants(&self, start: u64) -> bool {
        self.is_wrong.get(bucket(start)).copied().unwrap_or_default()
    }

    fn push(&self, entry: Entry) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

fn bucket(start: u64) -> usize {
    let buckets = u64::try_from(BUCKETS).unwrap_or(1);
    usize::try_from(hash::mix(start, 0) % buckets).unwrap_or_default()
}

/// All that was said of one address.
fn explain_extent(entries: &[Entry], sink: &Sink<'_>) {
    let Some(first) = entries.first() else { return };
    let start = first.reference.start;
    let place = format!("extent {start}");
    let is_there = entries.iter().any(|entry| entry.is_item);
    let is_used = entries.iter().any(|entry| entry.uses > 0);
    if is_there && !is_used {
        sink.add(Kind::ExtentUnused, place, "users", 0, "at least 1");
        return;
    }
    let mut sizes = Vec::new();
    for same in entries.chunk_by(|a, b| a.reference == b.reference) {
        let uses: u64 = same.iter().map(|entry| entry.uses).sum();
        let claims = same.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.claims));
        let Some(reference) = same.first().map(|entry| entry.reference) else { continue };
        if uses == claims {
            continue;
        }
        let who = reference.who();
        if reference.kind == RefKind::Bytes {
            sizes.push((reference.from, uses, claims));
        } else if !is_there {
            sink.add(Kind::ExtentItemMissing, &place, "extent item", "none", format!("of {who}"));
        } else if claims == 0 {
            let field = "back references";
            sink.add(Kind::ReferenceMissing, &place, field, "none", format!("{uses} of {who}"));
        } else if uses == 0 {
            let have = format!("{claims} of {who}");
            sink.add(Kind::ReferenceExtra, &place, "back references", have, "none");
        } else {
            let have = format!("{claims} of {who}");
            sink.add(Kind::ReferenceCount, &place, "back references", have, uses);
        }
    }
    explain_sizes(&place, &sizes, sink);
}

/// Sizes fit neither where a user is wrong about one, nor where references are counted wrongly;
/// the latter is said already.
fn explain_sizes(place: &str, sizes: &[(u64, u64, u64)], sink: &Sink<'_>) {
    let claimed = sizes.iter().find(|(_, _, claims)| *claims > 0);
    let Some((want, _, _)) = claimed else { return };
    for (bytes, uses, _) in sizes.iter().filter(|(bytes, uses, _)| bytes != want && *uses > 0) {
        let field = format!("bytes that {uses} users say");
        sink.add(Kind::ExtentSize, place, field, bytes, want);
    }
}

/// File offsets of references may lie before the file's start, and wrap.
fn signed(offset: u64) -> String {
    if offset > u64::MAX / 2 { format!("-{}", offset.wrapping_neg()) } else { offset.to_string() }
}
