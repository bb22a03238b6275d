//! Pending checksums and the checksum tree, while several threads add, drop and read extents beside
//! commits.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::extent::DataRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, Logical, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::{Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SECTOR: u64 = 4096;
const WRITERS: u64 = 2;
const ROUNDS: u64 = 3000;

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 1 << 30);
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    Arc::new(device)
}

fn open(device: &Arc<dyn Device>) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).unwrap();
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).unwrap()
}

/// Makes up a checksum that identifies the sector and the write that added it.
fn checksum_of(at: u64, write: u64) -> [u8; 4] {
    u32::try_from(at / SECTOR * 7 + write).unwrap().to_le_bytes()
}

struct Extent {
    range: Range<u64>,
    write: u64,
    reference: DataRef,
}

struct Dice(u64);

impl Dice {
    fn pick(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % count
    }
}

fn add_extent(forest: &Arc<Forest>, writer: u64, write: u64, sectors: u64) -> Extent {
    // All writers use one cluster, so that their extents are neighbours and share items.
    let space = forest.allocate_data(SECTOR, sectors * SECTOR, Cluster(99), Wait::Block).unwrap();
    let range = space.addresses();
    let reference = DataRef { tree: TreeId::FS, ino: Ino(300 + writer), offset: 0, count: 1 };
    let handle = forest.join(Need::items(4)).unwrap();
    handle.add_data_extent(Logical(range.start), range.end - range.start, reference);
    let sectors = range.clone().step_by(4096);
    let checksums: Vec<u8> = sectors.flat_map(|at| checksum_of(at, write % 7)).collect();
    handle.put_checksums(Logical(range.start), &checksums);
    Extent { range, write: write % 7, reference }
}

fn drop_extent(forest: &Arc<Forest>, extent: &Extent) {
    let Range { start, end } = extent.range;
    let handle = forest.join(Need::items(4).deleting()).unwrap();
    handle.drop_data_ref(Logical(start), end - start, extent.reference);
}

/// Looks up the checksum of a sector: first among the pending ones, then in the tree.
fn find(forest: &Arc<Forest>, at: u64) -> Option<Vec<u8>> {
    let mut found = None;
    forest.pending_checksums(&(at..at + SECTOR), &mut |_, checksums| {
        found = Some(checksums.to_vec());
    });
    if found.is_some() {
        return found;
    }
    let mut cursor = forest.tree(TreeId::CHECKSUM).unwrap().unwrap().cursor();
    cursor.seek_last(&Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, at)).unwrap();
    let (key, data) = cursor.item_parts()?;
    let from = usize::try_from((at - key.offset) / SECTOR * 4).unwrap();
    data.get(from..from + 4).map(<[u8]>::to_vec)
}

/// Checks that a random sector of the extents has its checksum.
fn check_sector(forest: &Arc<Forest>, extents: &[Extent], dice: &mut Dice) {
    let extent = &extents[usize::try_from(dice.pick(extents.len() as u64)).unwrap()];
    let sectors = (extent.range.end - extent.range.start) / SECTOR;
    let at = extent.range.start + dice.pick(sectors) * SECTOR;
    assert_eq!(find(forest, at), Some(checksum_of(at, extent.write).to_vec()), "sector {at:#x}");
}

fn write(forest: &Arc<Forest>, writer: u64) -> Vec<Extent> {
    let mut dice = Dice(writer + 1);
    let mut extents = Vec::new();
    for round in 0..ROUNDS {
        let sectors = 1 + dice.pick(9);
        extents.push(add_extent(forest, writer, round, sectors));
        if extents.len() > 400 || dice.pick(3) == 0 {
            let index = usize::try_from(dice.pick(extents.len() as u64)).unwrap();
            let extent = extents.swap_remove(index);
            drop_extent(forest, &extent);
        }
        for _ in 0..4 {
            if !extents.is_empty() {
                check_sector(forest, &extents, &mut dice);
            }
        }
    }
    extents
}

/// Reads all checksums of the committed tree, by sector, and checks that items do not overlap.
fn committed(device: &Arc<dyn Device>) -> BTreeMap<u64, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut cursor = open(device).tree(TreeId::CHECKSUM).unwrap().unwrap().scan();
    cursor.seek(&Key::MIN).unwrap();
    while let Some((key, data)) = cursor.item_parts() {
        for (index, checksum) in data.chunks(4).enumerate() {
            let before = found.insert(key.offset + index as u64 * SECTOR, checksum.to_vec());
            assert_eq!(before, None, "{key}: two items cover one sector");
        }
        cursor.advance().unwrap();
    }
    found
}

#[test]
fn every_sector_has_its_checksum_while_neighbours_are_added_and_dropped() {
    let device = fresh();
    let forest = open(&device);
    let done = AtomicBool::new(false);
    let extents: Vec<Extent> = std::thread::scope(|scope| {
        let (forest, done) = (&forest, &done);
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(forest, writer))).collect();
        let committer = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                forest.commit().unwrap();
            }
        });
        let extents: Vec<_> =
            writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        committer.join().unwrap();
        extents.into_iter().flat_map(|extents| extents.unwrap()).collect()
    });
    forest.commit().unwrap();
    drop(forest);
    let mut want = BTreeMap::new();
    for extent in &extents {
        for at in extent.range.clone().step_by(4096) {
            want.insert(at, checksum_of(at, extent.write).to_vec());
        }
    }
    assert_eq!(committed(&device), want);
}

#[test]
fn an_extent_added_and_dropped_in_one_transaction_does_not_change_the_checksum_tree() {
    let device = fresh();
    let forest = open(&device);
    let kept = add_extent(&forest, 0, 1, 3);
    forest.commit().unwrap();
    let root = || forest.tree(TreeId::CHECKSUM).unwrap().unwrap().root().logical;
    let before = root();
    for round in 0..100 {
        let extent = add_extent(&forest, 0, round, 5);
        drop_extent(&forest, &extent);
    }
    forest.commit().unwrap();
    assert_eq!(root(), before);
    check_sector(&forest, &[kept], &mut Dice(1));
}
