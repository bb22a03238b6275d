//! Volumes with one unreadable leaf: everything that other leaves describe can be read.

use crate::volume::{TestVolume, new};
use butternut::format::key::{ItemType, Key};
use butternut::{FileId, Filesystem, MountOptions};
use butternut_mkfs::MkfsOptions;
use std::collections::HashSet;
use std::ops::Range;

const NODE_BYTES: usize = 4096;
const SECTOR: u64 = 4096;
const SECTOR_BYTES: usize = 4096;
const CHECKSUM_BYTES: u64 = 4;
const FILES: u8 = 40;
const FILE_BYTES: usize = 300_000;
const FS_TREE: u64 = 5;
const CHECKSUM_TREE: u64 = 7;

/// A leaf: where its copies are on the device, and the key and length of each of its items.
struct Leaf {
    places: Vec<u64>,
    items: Vec<(Key, u64)>,
}

/// Makes a volume with files that are committed one by one, each with an extent of its own.
fn volume() -> (TestVolume, Vec<FileId>) {
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    let volume = TestVolume::of(256 << 20, &options);
    let fs = volume.open();
    let make = |number: u8| {
        let id = fs.create(fs.root(), format!("file {number}").as_bytes(), &new(0o600)).unwrap();
        fs.open_file(id).unwrap().write_at(0, &[number].repeat(FILE_BYTES)).unwrap();
        fs.sync().unwrap();
        id
    };
    let files = (0..FILES).map(make).collect();
    fs.close().unwrap();
    (volume, files)
}

fn open(volume: &TestVolume, is_read_only: bool) -> Filesystem {
    let options = MountOptions::default().read_only(is_read_only);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

/// Returns the leaves of a tree that has more than one.
fn leaves(volume: &TestVolume, tree: u64) -> Vec<Leaf> {
    let fs = open(volume, true);
    let inspect = fs.inspect();
    let chunks = inspect.chunks();
    let root = inspect.tree_roots().unwrap().into_iter().find(|root| root.tree.0 == tree).unwrap();
    let mut leaves = Vec::new();
    let mut pending = vec![root.expected()];
    while let Some(expected) = pending.pop() {
        let block = inspect.block(&expected).unwrap();
        if block.level() > 0 {
            pending.extend((0..block.len()).filter_map(|s| inspect.child(&block, s, root.tree)));
            continue;
        }
        let logical = expected.logical.0;
        let chunk = chunks.iter().rev().find(|chunk| chunk.logical.0 <= logical).unwrap();
        let within = logical - chunk.logical.0;
        let items = (0..block.len()).map(|slot| block.item(slot).unwrap());
        leaves.push(Leaf {
            places: chunk.stripes.iter().map(|(_, at)| at + within).collect(),
            items: items.map(|(key, data)| (key, data.len() as u64)).collect(),
        });
    }
    assert!(leaves.len() > 3, "{}", leaves.len());
    leaves
}

/// Copies a volume so that no copy of a leaf can be read.
fn without(image: &[u8], leaf: &Leaf) -> TestVolume {
    let mut image = image.to_vec();
    for place in &leaf.places {
        let place = usize::try_from(*place).unwrap();
        image[place..place + NODE_BYTES].fill(0xa5);
    }
    TestVolume::of_image(&image)
}

/// Reads a file in one call, and returns how many bytes from its start on were read.
fn good_bytes(fs: &Filesystem, id: FileId) -> butternut::Result<usize> {
    let mut memory = vec![0; FILE_BYTES];
    let bytes = fs.open_file(id)?.read_at(0, &mut memory)?;
    let number = memory[0];
    assert!(memory[..bytes].iter().all(|byte| *byte == number), "{id:?}: other bytes");
    Ok(bytes)
}

/// The logical addresses whose checksums a leaf holds.
fn covered(leaf: &Leaf) -> Vec<Range<u64>> {
    let range =
        |(key, bytes): &(Key, u64)| key.offset..key.offset + bytes / CHECKSUM_BYTES * SECTOR;
    leaf.items.iter().map(range).collect()
}

/// The logical address of each sector of a file.
fn addresses(fs: &Filesystem, id: FileId) -> Vec<u64> {
    let extents = fs.open_file(id).unwrap().extents(0..u64::MAX);
    let sectors = extents.flat_map(|extent| {
        let extent = extent.unwrap();
        let butternut::ExtentKind::Regular { logical, .. } = extent.kind else {
            panic!("{extent:?}");
        };
        (0..extent.bytes.div_ceil(SECTOR)).map(move |sector| logical + sector * SECTOR)
    });
    sectors.collect()
}

#[test]
fn a_damaged_checksum_leaf_fails_only_the_data_whose_checksums_it_holds() {
    let (volume, files) = volume();
    let sound = open(&volume, true);
    let image = volume.image();
    for leaf in leaves(&volume, CHECKSUM_TREE) {
        let damaged = without(&image, &leaf);
        let covered = covered(&leaf);
        for is_read_only in [true, false] {
            let fs = open(&damaged, is_read_only);
            for &id in files.iter().chain(files.iter().rev()) {
                let is_lost = |at: &u64| covered.iter().any(|range| range.contains(at));
                let addresses = addresses(&sound, id);
                let lost = addresses.iter().position(is_lost);
                let want = lost.map_or(FILE_BYTES, |sector| sector * SECTOR_BYTES);
                let have = good_bytes(&fs, id);
                assert_eq!(have.as_ref().copied().unwrap_or(0), want, "{covered:?}: {have:?}");
                assert!(want > 0 || have.is_err(), "no byte is unverified");
                let mut sector = vec![0; 4096];
                for (at, address) in (0..).zip(&addresses) {
                    let read = fs.open_file(id).unwrap().read_at(at * SECTOR, &mut sector);
                    assert_eq!(read.is_err(), is_lost(address), "{id:?} sector {at}: {read:?}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_leaf_of_extents_fails_only_the_files_that_it_describes() {
    let (volume, files) = volume();
    let image = volume.image();
    for leaf in leaves(&volume, FS_TREE) {
        let described: HashSet<u64> = leaf.items.iter().map(|(key, _)| key.objectid).collect();
        let has_extent =
            |ino| leaf.items.iter().any(|(key, _)| (key.objectid, key.item_type) == ino);
        let fs = open(&without(&image, &leaf), true);
        for &id in &files {
            let have = good_bytes(&fs, id);
            if !described.contains(&id.ino) {
                assert_eq!(*have.as_ref().unwrap(), FILE_BYTES, "{id:?}: {have:?}");
            } else if has_extent((id.ino, ItemType::EXTENT_DATA)) {
                assert!(have.is_err(), "{id:?}: {have:?}");
            }
        }
    }
}
