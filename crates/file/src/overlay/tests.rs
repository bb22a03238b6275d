//! The overlay against a vector that says of each block what it should be.

use super::*;
use butternut_pages::{CacheLimits, FileKey, PageCache, Stay, Tag};
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCKS: u64 = 64;
/// Bytes of a digest here.
const DIGEST: usize = 4;
const GROUP_BYTES: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Tree,
    New(u64),
    SetAside(u64),
    /// So many blocks into what the packed extent at a place holds.
    Packed(u64, u64),
}

#[derive(Clone, Debug)]
enum Step {
    New {
        start: u64,
        blocks: u64,
        logical: u64,
    },
    SetAside {
        start: u64,
        blocks: u64,
    },
    Packed {
        start: u64,
        blocks: u64,
    },
    /// One of the patches comes into the tree.
    Settle {
        number: usize,
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
    /// Some patches set out for the tree, if none are on their way.
    StartMerging {
        start: u64,
        count: usize,
    },
    /// Those that are on their way arrive, or do not.
    EndMerging {
        arrive: bool,
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
        2 => (start(), blocks()).prop_map(|(start, blocks)| Step::SetAside { start, blocks }),
        3 => (start(), 2..10_u64).prop_map(|(start, blocks)| Step::Packed { start, blocks }),
        1 => (0..9_usize).prop_map(|number| Step::Settle { number }),
        2 => (start(), 0..9_u64).prop_map(|(start, blocks)| Step::Cut { start, blocks }),
        2 => start().prop_map(|start| Step::Dirty { start }),
        1 => (start(), blocks()).prop_map(|(start, blocks)| Step::DropDirty { start, blocks }),
        2 => (start(), 1..9_usize).prop_map(|(start, count)| Step::StartMerging { start, count }),
        1 => any::<bool>().prop_map(|arrive| Step::EndMerging { arrive }),
    ]
}

/// Space in groups of [`GROUP_BYTES`].
fn new(logical: u64) -> Place {
    let group = Logical(logical / GROUP_BYTES * GROUP_BYTES);
    Place::New { logical: Logical(logical), group }
}

fn digests(first: u64, blocks: u64) -> Vec<u8> {
    (first..first + blocks).flat_map(|block| u32::try_from(block).unwrap().to_le_bytes()).collect()
}

/// The extent that the tree has set aside for the whole file, block for block.
const SET_ASIDE: DiskExtent =
    DiskExtent { logical: Logical(1 << 40), bytes: (BLOCKS + 10) * SECTOR_BYTES };

struct Both {
    cache: PageCache,
    overlay: Overlay,
    model: Vec<Model>,
    dirty: BTreeSet<u64>,
    used: BTreeSet<u64>,
    next: u64,
    merging: Vec<(u64, Patch)>,
    /// Merges that end badly leave neighbours apart.
    was_stopped: bool,
}

impl Both {
    fn new() -> Self {
        let cache = PageCache::new(CacheLimits::of(4 << 20));
        let overlay = Overlay::new(cache.file(FileKey { tree: 5, ino: 257 }));
        let (model, dirty, used) = Default::default();
        let merging = Vec::new();
        Self { cache, overlay, model, dirty, used, next: 0, merging, was_stopped: false }
    }

    fn apply(&mut self, step: &Step) {
        self.model.resize(usize::try_from(BLOCKS + 10).unwrap(), Model::Tree);
        match *step {
            Step::New { start, blocks, logical } => {
                // Right behind the last one, or somewhere else.
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
            Step::SetAside { start, blocks } => {
                let place = Place::SetAside { extent: SET_ASIDE, skip: start * SECTOR_BYTES };
                self.insert(start, blocks, place, start);
                for index in start..start + blocks {
                    self.model[usize::try_from(index).unwrap()] = Model::SetAside(index);
                }
            }
            Step::Packed { start, blocks } => {
                let at = self.next;
                self.next += 1;
                let disk = DiskExtent { logical: Logical(at * SECTOR_BYTES), bytes: SECTOR_BYTES };
                let (ram_bytes, compression) = (blocks * SECTOR_BYTES, Compression::Zstd);
                let extent = PackedExtent { disk, ram_bytes, compression, serial: at };
                self.used.insert(at);
                let start_bytes = start * SECTOR_BYTES;
                let freed = self.overlay.insert_packed(start_bytes, extent, digests(at, 1));
                self.free(freed);
                for index in 0..blocks {
                    self.model[usize::try_from(start + index).unwrap()] = Model::Packed(at, index);
                }
            }
            // Whoever merges alone finds nothing on its way.
            Step::Settle { number } if self.merging.is_empty() => self.settle(number),
            Step::StartMerging { start, count } if self.merging.is_empty() => {
                self.merging = self.overlay.start_merging(start * SECTOR_BYTES, count);
            }
            Step::Settle { .. } | Step::StartMerging { .. } => {}
            Step::EndMerging { arrive } => self.end_merging(arrive),
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
                self.overlay.pages.change().put(start, frame, Tag::default(), Stay::Cached);
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

    fn insert(&mut self, start: u64, blocks: u64, place: Place, first_digest: u64) {
        let digests = digests(first_digest, blocks);
        let patch = Patch::new(blocks * SECTOR_BYTES, place, digests);
        let freed = self.overlay.insert(start * SECTOR_BYTES, patch);
        self.free(freed);
    }

    fn settle(&mut self, number: usize) {
        let Some((start, patch)) = self.overlay.patches().nth(number) else { return };
        let (first, blocks) = (start / SECTOR_BYTES, patch.bytes / SECTOR_BYTES);
        self.overlay.settle_patch(start);
        for index in first..first + blocks {
            let was = &mut self.model[usize::try_from(index).unwrap()];
            // The tree's from now on: nothing gives it back.
            if let Model::New(at) | Model::Packed(at, _) = *was {
                self.used.remove(&at);
            }
            *was = Model::Tree;
        }
    }

    fn end_merging(&mut self, arrive: bool) {
        let merging = std::mem::take(&mut self.merging);
        if !arrive {
            self.was_stopped = true;
            let freed = self.overlay.stop_merging(&merging);
            self.free(freed);
            return;
        }
        self.overlay.settle_merging(&merging);
        for (start, patch) in &merging {
            let first = patch.place.logical().0 / SECTOR_BYTES;
            for index in 0..patch.bytes / SECTOR_BYTES {
                // The tree's from now on, shown or not.
                assert!(self.used.remove(&(first + index)));
                let was = &mut self.model[usize::try_from(start / SECTOR_BYTES + index).unwrap()];
                if *was == Model::New(first + index) {
                    *was = Model::Tree;
                }
            }
        }
    }

    fn free(&mut self, freed: Vec<Range<u64>>) {
        for range in freed {
            for block in range.start / SECTOR_BYTES..range.end / SECTOR_BYTES {
                assert!(self.used.remove(&block), "given back once, and not before it was used");
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
                (Found::Patch { start, patch, end }, Model::Packed(place, skip)) => {
                    assert!(start <= at && at < end && end <= start + patch.bytes);
                    let Place::Packed { extent, skip: first } = patch.place else {
                        panic!("block {index} is packed: {patch:?}")
                    };
                    assert_eq!(extent.serial, place);
                    assert_eq!(first + (at - start), skip * SECTOR_BYTES);
                    assert_eq!(self.overlay.packed_digests(&extent), digests(place, 1));
                    assert_eq!(self.overlay.is_named(&extent), !self.used.contains(&place));
                }
                (Found::Patch { start, patch, end }, want) => {
                    assert!(start <= at && at < end && end <= start + patch.bytes);
                    let logical = patch.place.advanced(at - start).logical().0 / SECTOR_BYTES;
                    let sector = usize::try_from((at - start) / SECTOR_BYTES).unwrap() * DIGEST;
                    let digest = &patch.digests[sector..sector + DIGEST];
                    let known = u64::from(u32::from_le_bytes(digest.try_into().unwrap()));
                    match want {
                        Model::New(block) => assert_eq!((logical, known), (block, block)),
                        Model::SetAside(block) => {
                            assert_eq!(known, block);
                            assert_eq!(logical, (1 << 40) / SECTOR_BYTES + block);
                        }
                        Model::Tree | Model::Packed(..) => panic!("block {index}: {patch:?}"),
                    }
                }
                (found, want) => panic!("block {index}: {found:?}, want {want:?}"),
            }
        }
        let mut shown = BTreeSet::new();
        let mut packed = BTreeSet::new();
        for model in &self.model {
            match *model {
                Model::New(at) => assert!(shown.insert(at)),
                Model::Packed(at, _) => {
                    packed.insert(Logical(at * SECTOR_BYTES));
                    shown.extend(Some(at).filter(|at| self.used.contains(at)));
                }
                Model::Tree | Model::SetAside(_) => {}
            }
        }
        assert_eq!(self.used, shown, "all new space is shown or given back");
        assert!(self.overlay.packed.keys().eq(&packed), "what is packed is kept while it is shown");
        self.sorted();
    }

    fn sorted(&self) {
        let patches: Vec<_> = self.overlay.patches().collect();
        for pair in patches.windows(2) {
            let [(start, patch), (next_start, next)] = pair else { unreachable!() };
            assert!(start + patch.bytes <= *next_start);
            let joins = start + patch.bytes == *next_start && patch.is_followed_by(next);
            assert!(!joins || self.was_stopped, "neighbours are joined: {patch:?} {next:?}");
        }
        let bytes: u64 = patches.iter().map(|(_, patch)| patch.bytes).sum();
        assert_eq!(bytes, self.overlay.patch_bytes);
    }
}

proptest! {
    #[test]
    fn the_overlay_shows_each_block_as_it_was_last_said(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut both = Both::new();
        for step in &steps {
            both.apply(step);
        }
        both.end_merging(true);
        both.compare();
    }
}

#[test]
fn appends_to_one_run_stay_one_patch() {
    let mut overlay = Both::new().overlay;
    for block in 0..1000 {
        let place = new((500 + block) * SECTOR_BYTES);
        let patch = Patch::new(SECTOR_BYTES, place, digests(block, 1));
        assert!(overlay.insert(block * SECTOR_BYTES, patch).is_empty());
    }
    assert_eq!(overlay.patch_count(), 1);
    let (_, patch) = overlay.patches().next().unwrap();
    assert_eq!((patch.digests.len(), patch.digest_bytes()), (4000, 4));
}

#[test]
fn a_patch_is_at_most_one_extent() {
    let mut overlay = Both::new().overlay;
    for half in 0..3 {
        let bytes = EXTENT_BYTES_MAX / 2;
        let place = new(half * bytes);
        overlay.insert(half * bytes, Patch::new(bytes, place, Vec::new()));
    }
    let sizes: Vec<u64> = overlay.patches().map(|(_, patch)| patch.bytes).collect();
    assert_eq!(sizes, [EXTENT_BYTES_MAX, EXTENT_BYTES_MAX / 2]);
}

#[test]
fn a_patch_never_reaches_into_another_block_group() {
    let mut overlay = Both::new().overlay;
    for block in 0..4_u64 {
        let place = new(GROUP_BYTES + block * SECTOR_BYTES - 2 * SECTOR_BYTES);
        let patch = Patch::new(SECTOR_BYTES, place, Vec::new());
        overlay.insert(block * SECTOR_BYTES, patch);
    }
    let starts: Vec<u64> = overlay.patches().map(|(start, _)| start).collect();
    assert_eq!(starts, [0, 2 * SECTOR_BYTES]);
}
