//! [`Ledger`]: compares the back references of the extent tree (claims) with the references that
//! the other trees make (uses).
//!
//! 1. A use adds its hash to the bucket of its extent's address, and a claim subtracts it. If all
//!    references match, every bucket ends at zero. The memory does not depend on the volume's size.
//! 2. Only if a bucket does not end at zero, a second pass over the trees collects the references
//!    of that bucket.

use crate::finding::Kind;
use crate::hash;
use crate::sink::Sink;
use butternut_sys::lock::{Mutex, rank};
use std::sync::atomic::{AtomicU64, Ordering};

const BUCKETS: usize = 1024;

/// Type of a reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefKind {
    /// Of a tree block, by a tree.
    Tree,
    /// Of a tree block, by its parent block.
    SharedBlock,
    /// Of data, by an inode of a tree.
    Data,
    /// Of data, by the leaf with the file extent item.
    SharedData,
    /// The length of a data extent, as a reference states it: `from` is the length in bytes.
    Bytes,
}

/// One reference. `from` is the tree, the parent block, or for [`RefKind::Bytes`] the length.
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

    /// Describes the origin of the reference, for findings.
    fn origin(&self) -> String {
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

/// The references of buckets that did not end at zero.
struct Exact {
    is_wrong: Vec<bool>,
    entries: Mutex<Vec<Entry>, rank::CheckLedger>,
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

    /// Returns a ledger for the second pass, if a bucket is not zero (law 2).
    pub(crate) fn second_pass(&self) -> Option<Self> {
        let is_wrong: Vec<bool> =
            self.sums.iter().map(|sum| sum.load(Ordering::Relaxed) != 0).collect();
        is_wrong.contains(&true).then(|| Self {
            sums: Box::default(),
            exact: Some(Exact { is_wrong, entries: Mutex::default() }),
        })
    }

    /// Adds a reference that a tree makes to an extent.
    pub(crate) fn add_use(&self, reference: &Reference) {
        self.post(reference, 1, 0);
    }

    /// Adds a back reference of the extent tree, with its count.
    pub(crate) fn claim(&self, reference: &Reference, count: u64) {
        self.post(reference, 0, count);
    }

    /// Records that the extent tree has an extent item at `start`.
    pub(crate) fn item(&self, start: u64) {
        if let Some(exact) = self.exact.as_ref().filter(|exact| exact.covers(start)) {
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
        if exact.covers(reference.start) {
            exact.push(Entry { reference: *reference, uses, claims, is_item: false });
        }
    }

    /// Reports the references that do not match, after the second pass.
    pub(crate) fn report(self, sink: &Sink<'_>) {
        let Some(exact) = self.exact else { return };
        let mut entries = exact.entries.into_inner();
        entries.sort_by_key(|entry| entry.reference);
        for extent in entries.chunk_by(|a, b| a.reference.start == b.reference.start) {
            report_extent(extent, sink);
        }
    }
}

impl Exact {
    fn covers(&self, start: u64) -> bool {
        self.is_wrong.get(bucket(start)).copied().unwrap_or_default()
    }

    fn push(&self, entry: Entry) {
        self.entries.lock().push(entry);
    }
}

fn bucket(start: u64) -> usize {
    let buckets = u64::try_from(BUCKETS).unwrap_or(1);
    usize::try_from(hash::mix(start, 0) % buckets).unwrap_or_default()
}

/// Reports the mismatches of one extent.
fn report_extent(entries: &[Entry], sink: &Sink<'_>) {
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
        let origin = reference.origin();
        if reference.kind == RefKind::Bytes {
            sizes.push((reference.from, uses, claims));
        } else if !is_there {
            sink.add(
                Kind::ExtentItemMissing,
                &place,
                "extent item",
                "none",
                format!("of {origin}"),
            );
        } else if claims == 0 {
            let field = "back references";
            sink.add(Kind::ReferenceMissing, &place, field, "none", format!("{uses} of {origin}"));
        } else if uses == 0 {
            let have = format!("{claims} of {origin}");
            sink.add(Kind::ReferenceExtra, &place, "back references", have, "none");
        } else {
            let have = format!("{claims} of {origin}");
            sink.add(Kind::ReferenceCount, &place, "back references", have, uses);
        }
    }
    report_sizes(&place, &sizes, sink);
}

/// Reports references with a wrong length. Sums of lengths also differ if reference counts differ,
/// which is reported already.
fn report_sizes(place: &str, sizes: &[(u64, u64, u64)], sink: &Sink<'_>) {
    let claimed = sizes.iter().find(|(_, _, claims)| *claims > 0);
    let Some((want, _, _)) = claimed else { return };
    for (bytes, uses, _) in sizes.iter().filter(|(bytes, uses, _)| bytes != want && *uses > 0) {
        let field = format!("bytes according to {uses} references");
        sink.add(Kind::ExtentSize, place, field, bytes, want);
    }
}

/// Formats the file offset of a reference, which may be negative and then wraps.
fn signed(offset: u64) -> String {
    if offset > u64::MAX / 2 { format!("-{}", offset.wrapping_neg()) } else { offset.to_string() }
}
