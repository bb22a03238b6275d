//! The overlay against a model: a vector with the expected state of each block.

use super::*;
use crate::pending_total::PendingTotal;
use butternut_pages::{CacheLimits, CacheMode, FileKey, PageCache, Tag};
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCKS: u64 = 64;
/// Length of a checksum in these tests, in bytes.
const CHECKSUM: usize = 4;
const GROUP_BYTES: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Tree,
    New(u64),
    Preallocated(u64),
    /// The compressed extent at an address, and a block of its decompressed contents.
    Compressed(u64, u64),
}

#[derive(Clone, Debug)]
enum Step {
    New {
        start: u64,
        blocks: u64,
        logical: u64,
    },
    Preallocated {
        start: u64,
        blocks: u64,
    },
    Compressed {
        start: u64,
        blocks: u64,
    },
    /// One step of a merge.
    Merge {
        start: u64,
        count: usize,
    },
    Cut {
        start: u64,
        blocks: u64,
    },
    Dirty {
        start: u64,
    },
    DropDirty {
        start: u64,
        blocks: u64,
    },
    /// A shared merge of some pending extents begins, unless one is running.
    StartMerging {
        start: u64,
        count: usize,
    },
    /// The running merge succeeds or fails.
    EndMerging {
        succeed: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let start = || 0..BLOCKS;
    let blocks = || 1..10_u64;
    prop_oneof![
        4 => (start(), blocks(), 0..2_u64).prop_map(|(start, blocks, logical)| Step::New {
            start,
            blocks,
            logical
        }),
        2 => (start(), blocks()).prop_map(|(start, blocks)| Step::Preallocated { start, blocks }),
        3 => (start(), 2..10_u64).prop_map(|(start, blocks)| Step::Compressed { start, blocks }),
        2 => (start(), 1..5_usize).prop_map(|(start, count)| Step::Merge { start, count }),
        2 => (start(), 0..9_u64).prop_map(|(start, blocks)| Step::Cut { start, blocks }),
        2 => start().prop_map(|start| Step::Dirty { start }),
        1 => (start(), blocks()).prop_map(|(start, blocks)| Step::DropDirty { start, blocks }),
        2 => (start(), 1..9_usize).prop_map(|(start, count)| Step::StartMerging { start, count }),
        1 => any::<bool>().prop_map(|succeed| Step::EndMerging { succeed }),
    ]
}

/// New space, in block groups of [`GROUP_BYTES`].
fn new(logical: u64) -> Place {
    let group = Logical(logical / GROUP_BYTES * GROUP_BYTES);
    Place::New { logical: Logical(logical), group }
}

fn checksums(first: u64, blocks: u64) -> Vec<u8> {
    (first..first + blocks).flat_map(|block| u32::try_from(block).unwrap().to_le_bytes()).collect()
}

/// The extent that the tree has preallocated for the whole file, block for block.
const PREALLOCATED: DiskExtent =
    DiskExtent { logical: Logical(1 << 40), bytes: (BLOCKS + 10) * SECTOR_BYTES };

struct Checked {
    cache: PageCache,
    overlay: Overlay,
    model: Vec<Model>,
    dirty: BTreeSet<u64>,
    used: BTreeSet<u64>,
    next: u64,
    merging: Vec<(u64, PendingExtent)>,
    /// A failed merge leaves neighbours unjoined.
    was_stopped: bool,
}

impl Checked {
    fn new() -> Self {
        let cache = PageCache::new(CacheLimits::of(4 << 20));
        let pending_bytes = PendingTotal::default().file();
        let overlay = Overlay::new(cache.file(FileKey { tree: 5, ino: 257 }), pending_bytes);
        let (model, dirty, used) = Default::default();
        let merging = Vec::new();
        Self { cache, overlay, model, dirty, used, next: 0, merging, was_stopped: false }
    }

    fn apply(&mut self, step: &Step) {
        self.model.resize(usize::try_from(BLOCKS + 10).unwrap(), Model::Tree);
        match *step {
            Step::New { start, blocks, logical } => {
                // Right after the last one, or somewhere else.
                self.next += logical * 100;
                let at = self.next;
                self.next += blocks;
                let place = new(at * SECTOR_BYTES);
                self.insert(start, blocks, place, at);
                self.used.extend(at..at + blocks);
                for index in 0..blocks {
                    self.model[usize::try_from(start + index).unwrap()] = Model::New(at + index);
                }
            }
            Step::Preallocated { start, blocks } => {
                let place =
                    Place::Preallocated { extent: PREALLOCATED, skip: start * SECTOR_BYTES };
                self.insert(start, blocks, place, start);
                for index in start..start + blocks {
                    self.model[usize::try_from(index).unwrap()] = Model::Preallocated(index);
                }
            }
            Step::Compressed { start, blocks } => {
                let at = self.next;
                self.next += 1;
                let disk = DiskExtent { logical: Logical(at * SECTOR_BYTES), bytes: SECTOR_BYTES };
                let (ram_bytes, compression) = (blocks * SECTOR_BYTES, Compression::Zstd);
                let extent = CompressedExtent { disk, ram_bytes, compression, serial: at };
                self.used.insert(at);
                let start_bytes = start * SECTOR_BYTES;
                let freed = self.overlay.insert_compressed(start_bytes, extent, checksums(at, 1));
                self.free(freed);
                for index in 0..blocks {
                    self.model[usize::try_from(start + index).unwrap()] =
                        Model::Compressed(at, index);
                }
            }
            // An exclusive merge does not run beside a shared one.
            Step::Merge { start, count } if self.merging.is_empty() => self.merge(start, count),
            Step::StartMerging { start, count } if self.merging.is_empty() => {
                self.merging = self.overlay.begin_merging(start * SECTOR_BYTES, count);
            }
            Step::Merge { .. } | Step::StartMerging { .. } => {}
            Step::EndMerging { succeed } => self.end_merging(succeed),
            Step::Cut { start, blocks } => {
                let range = start * SECTOR_BYTES..(start + blocks) * SECTOR_BYTES;
                let freed = self.overlay.cut(&range);
                self.free(freed);
                for index in start..start + blocks {
                    self.model[usize::try_from(index).unwrap()] = Model::Tree;
                }
            }
            Step::Dirty { start } => {
                let mut frame = self.cache.frame().unwrap();
                frame.bytes_mut().unwrap().fill(u8::try_from(start).unwrap());
                self.overlay.pages.change().write_page(
                    start,
                    frame,
                    Tag::default(),
                    CacheMode::Cached,
                );
                self.dirty.insert(start);
            }
            Step::DropDirty { start, blocks } => {
                let dropped = self.overlay.pages.invalidate(&(start..start + blocks));
                let before = self.dirty.len();
                self.dirty.retain(|block| !(start..start + blocks).contains(block));
                assert_eq!(dropped, before - self.dirty.len());
            }
        }
    }

    fn insert(&mut self, start: u64, blocks: u64, place: Place, first_checksum: u64) {
        let checksums = checksums(first_checksum, blocks);
        let pending = PendingExtent::new(blocks * SECTOR_BYTES, place, checksums);
        let freed = self.overlay.insert(start * SECTOR_BYTES, pending);
        self.free(freed);
    }

    fn merge(&mut self, from: u64, count: usize) {
        let from = from * SECTOR_BYTES;
        let wanted = self.overlay.pending_from(from).next().map(|(start, _)| start);
        let step: Vec<(u64, u64)> = self
            .overlay
            .merge_step(from, count)
            .into_iter()
            .map(|(start, pending)| (start, pending.bytes))
            .collect();
        let starts: Vec<u64> = step.iter().map(|(start, _)| *start).collect();
        assert!(wanted.is_none_or(|wanted| starts.contains(&wanted)), "a step makes progress");
        let Some(first) = starts.first() else { return };
        assert!(
            self.overlay
                .pending_from(*first)
                .map(|(start, _)| start)
                .take(starts.len())
                .eq(starts.iter().copied())
        );
        self.overlay.drop_merged(&starts);
        let mut compressed = BTreeSet::new();
        for (start, bytes) in step {
            for index in start / SECTOR_BYTES..(start + bytes) / SECTOR_BYTES {
                let was = &mut self.model[usize::try_from(index).unwrap()];
                // The tree references it from now on: the overlay must not return it.
                if let Model::New(at) | Model::Compressed(at, _) = *was {
                    self.used.remove(&at);
                }
                if let Model::Compressed(at, _) = *was {
                    compressed.insert(at);
                }
                *was = Model::Tree;
            }
        }
        for was in &self.model {
            let is_rest = matches!(was, Model::Compressed(at, _) if compressed.contains(at));
            assert!(!is_rest, "all parts of a compressed extent are merged in one step");
        }
    }

    fn end_merging(&mut self, succeed: bool) {
        let merging = std::mem::take(&mut self.merging);
        if !succeed {
            self.was_stopped = true;
            let freed = self.overlay.abort_merging(&merging);
            self.free(freed);
            return;
        }
        self.overlay.finish_merging(&merging);
        for (start, pending) in &merging {
            let first = pending.place.logical().0 / SECTOR_BYTES;
            for index in 0..pending.bytes / SECTOR_BYTES {
                // The tree references it from now on, shown or not.
                assert!(self.used.remove(&(first + index)));
                let was = &mut self.model[usize::try_from(start / SECTOR_BYTES + index).unwrap()];
                if *was == Model::New(first + index) {
                    *was = Model::Tree;
                }
            }
        }
    }

    fn free(&mut self, freed: Vec<DiskRange>) {
        for range in freed.into_iter().map(DiskRange::addresses) {
            for block in range.start / SECTOR_BYTES..range.end / SECTOR_BYTES {
                assert!(self.used.remove(&block), "returned once, and not before it was used");
            }
        }
    }

    fn compare(&self) {
        for (index, want) in (0..).zip(&self.model) {
            let at: u64 = index * SECTOR_BYTES;
            let found = self.overlay.find(at, u64::MAX);
            if self.dirty.contains(&index) {
                assert!(matches!(found, Found::Dirty { start, bytes }
                    if start == at && u64::from(bytes[0]) == index));
                continue;
            }
            match (found, *want) {
                (Found::Gap { end }, Model::Tree) => assert!(end > at),
                (Found::Pending { start, pending, end }, Model::Compressed(place, skip)) => {
                    assert!(start <= at && at < end && end <= start + pending.bytes);
                    let Place::Compressed { extent, skip: first } = pending.place else {
                        panic!("block {index} is compressed: {pending:?}")
                    };
                    assert_eq!(extent.serial, place);
                    assert_eq!(first + (at - start), skip * SECTOR_BYTES);
                    assert_eq!(self.overlay.compressed_checksums(&extent), checksums(place, 1));
                    assert!(self.used.contains(&place), "no part of it is in the tree");
                }
                (Found::Pending { start, pending, end }, want) => {
                    assert!(start <= at && at < end && end <= start + pending.bytes);
                    let logical = pending.place.advanced(at - start).logical().0 / SECTOR_BYTES;
                    let sector = usize::try_from((at - start) / SECTOR_BYTES).unwrap() * CHECKSUM;
                    let checksum = &pending.checksums[sector..sector + CHECKSUM];
                    let found_checksum =
                        u64::from(u32::from_le_bytes(checksum.try_into().unwrap()));
                    match want {
                        Model::New(block) => assert_eq!((logical, found_checksum), (block, block)),
                        Model::Preallocated(block) => {
                            assert_eq!(found_checksum, block);
                            assert_eq!(logical, (1 << 40) / SECTOR_BYTES + block);
                        }
                        Model::Tree | Model::Compressed(..) => panic!("block {index}: {pending:?}"),
                    }
                }
                (found, want) => panic!("block {index}: {found:?}, want {want:?}"),
            }
        }
        let mut shown = BTreeSet::new();
        let mut compressed = BTreeSet::new();
        for model in &self.model {
            match *model {
                Model::New(at) => assert!(shown.insert(at)),
                Model::Compressed(at, _) => {
                    compressed.insert(Logical(at * SECTOR_BYTES));
                    shown.insert(at);
                }
                Model::Tree | Model::Preallocated(_) => {}
            }
        }
        assert_eq!(self.used, shown, "all new space is shown or returned");
        assert!(
            self.overlay.compressed.keys().eq(&compressed),
            "a compressed extent is kept while it is shown"
        );
        self.sorted();
    }

    fn sorted(&self) {
        let pending_extents: Vec<_> = self.overlay.pending_extents().collect();
        for pair in pending_extents.windows(2) {
            let [(start, pending), (next_start, next)] = pair else { unreachable!() };
            assert!(start + pending.bytes <= *next_start);
            let joins = start + pending.bytes == *next_start && pending.is_followed_by(next);
            assert!(!joins || self.was_stopped, "neighbours are joined: {pending:?} {next:?}");
        }
        let bytes: u64 = pending_extents.iter().map(|(_, pending)| pending.bytes).sum();
        assert_eq!(bytes, self.overlay.pending_bytes());
    }
}

proptest! {
    #[test]
    fn the_overlay_shows_the_last_change_of_each_block(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut checked = Checked::new();
        for step in &steps {
            checked.apply(step);
        }
        checked.end_merging(true);
        checked.compare();
    }
}

#[test]
fn appends_to_contiguous_space_stay_one_pending_extent() {
    let mut overlay = Checked::new().overlay;
    for block in 0..1000 {
        let place = new((500 + block) * SECTOR_BYTES);
        let pending = PendingExtent::new(SECTOR_BYTES, place, checksums(block, 1));
        assert!(overlay.insert(block * SECTOR_BYTES, pending).is_empty());
    }
    assert_eq!(overlay.pending_count(), 1);
    let (_, pending) = overlay.pending_extents().next().unwrap();
    assert_eq!((pending.checksums.len(), pending.checksum_bytes()), (4000, 4));
}

#[test]
fn a_pending_extent_is_at_most_one_extent() {
    let mut overlay = Checked::new().overlay;
    for half in 0..3 {
        let bytes = EXTENT_BYTES_MAX / 2;
        let place = new(half * bytes);
        overlay.insert(half * bytes, PendingExtent::new(bytes, place, Vec::new()));
    }
    let sizes: Vec<u64> = overlay.pending_extents().map(|(_, pending)| pending.bytes).collect();
    assert_eq!(sizes, [EXTENT_BYTES_MAX, EXTENT_BYTES_MAX / 2]);
}

#[test]
fn a_pending_extent_never_spans_block_groups() {
    let mut overlay = Checked::new().overlay;
    for block in 0..4_u64 {
        let place = new(GROUP_BYTES + block * SECTOR_BYTES - 2 * SECTOR_BYTES);
        let pending = PendingExtent::new(SECTOR_BYTES, place, Vec::new());
        overlay.insert(block * SECTOR_BYTES, pending);
    }
    let starts: Vec<u64> = overlay.pending_extents().map(|(start, _)| start).collect();
    assert_eq!(starts, [0, 2 * SECTOR_BYTES]);
}

#[test]
fn a_step_of_a_merge_has_all_parts_of_a_compressed_extent_or_none() {
    let mut checked = Checked::new();
    let new = |start, blocks| Step::New { start, blocks, logical: 1 };
    // The first compressed extent becomes blocks 0 to 3, 5 to 7 and 18 and 19; the second, which
    // lies inside it, becomes blocks 8 and 9 and 11 to 17.
    checked.apply(&Step::Compressed { start: 0, blocks: 20 });
    checked.apply(&new(4, 1));
    checked.apply(&Step::Compressed { start: 8, blocks: 10 });
    checked.apply(&new(10, 1));
    checked.apply(&new(30, 1));
    let step = |from: u64, count| {
        let step = checked.overlay.merge_step(from * SECTOR_BYTES, count);
        step.iter().map(|(start, _)| start / SECTOR_BYTES).collect::<Vec<_>>()
    };
    let whole = [0, 4, 5, 8, 10, 11, 18];
    assert_eq!(step(0, 1), whole);
    assert_eq!(step(0, 7), whole);
    assert_eq!(step(0, 8), [0, 4, 5, 8, 10, 11, 18, 30]);
    for from in [1, 5, 9, 11, 18] {
        assert_eq!(step(from, 3), whole, "from block {from} on");
    }
    assert_eq!(step(19, 3), [30]);
    assert_eq!(step(31, 3), [0_u64; 0]);
}
