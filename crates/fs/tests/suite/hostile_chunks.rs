//! Volumes whose chunks, device extents and block groups contradict each other, with valid
//! checksums: new chunks would be placed over old ones, so such a volume is not opened for writing.
//! It can be read.

use crate::volume::{HEADER_BYTES, SLOT_BYTES, TestVolume, new, word};
use butternut::{FileId, Filesystem, MountOptions, TreeError};
use butternut_mkfs::MkfsOptions;
use std::error::Error as _;

const CHUNK_TREE: u64 = 3;
const DEVICE_TREE: u64 = 4;
const DEV_EXTENT: u8 = 204;
const CHUNK_ITEM: u8 = 228;
const BLOCK_GROUP_ITEM: u8 = 192;
/// Offset of the tree in the header of a block, and of the number of items.
const OWNER_AT: usize = 88;
const ITEMS_AT: usize = 96;
/// Offsets in a device extent, and in a block group item.
const CHUNK_AT: usize = 16;
const LENGTH_AT: usize = 24;
const FLAGS_AT: usize = 16;

/// More than the data chunk of a new volume holds, so that there is another one.
const FILE_BYTES: usize = 40 << 20;

fn number(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Makes a volume with a file in two data chunks.
fn volume() -> (TestVolume, FileId) {
    let volume = TestVolume::of(256 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o600)).unwrap();
    fs.open_file(id).unwrap().write_at(0, &vec![7; FILE_BYTES]).unwrap();
    fs.close().unwrap();
    (volume, id)
}

/// Offsets of the key and the data of each item of a type, if the leaf belongs to the tree.
fn items(block: &[u8], tree: u64, kind: u8) -> Vec<(usize, usize)> {
    let slots = if number(block, OWNER_AT) == tree { word(block, ITEMS_AT) } else { 0 };
    let keys = (0..slots).map(|slot| HEADER_BYTES + slot * SLOT_BYTES);
    keys.filter(|at| block[at + 8] == kind)
        .map(|at| (at, HEADER_BYTES + word(block, at + 17)))
        .collect()
}

/// Removes the last item of a leaf, if it has this type.
fn drop_last(block: &mut [u8], tree: u64, kind: u8) -> bool {
    let last = items(block, tree, kind).last().copied();
    let slots = word(block, ITEMS_AT);
    let is_last = last.is_some_and(|(at, _)| at == HEADER_BYTES + (slots - 1) * SLOT_BYTES);
    if is_last {
        let left = u32::try_from(slots - 1).unwrap();
        block[ITEMS_AT..ITEMS_AT + 4].copy_from_slice(&left.to_le_bytes());
    }
    is_last
}

/// Changes the last device extent, given the offsets of its key and of its data.
fn of_extent(change: impl Fn(&mut [u8], usize, usize)) -> impl FnMut(&mut [u8]) -> bool {
    move |block| {
        let last = items(block, DEVICE_TREE, DEV_EXTENT).last().copied();
        last.map(|(key, data)| change(block, key, data)).is_some()
    }
}

/// Checks that the volume is not opened for writing because of a field of a tree, that the open
/// changed nothing, and that the file can be read if `has_data`.
fn is_refused(volume: &TestVolume, id: FileId, field: &str, have: &str, has_data: bool) {
    let before = volume.image();
    let options = MountOptions::default().read_only(false);
    let error = Filesystem::open_devices(volume.devices(), &options).unwrap_err();
    let text = butternut_volume::chain(&error);
    let tree_error = error.source().and_then(|source| source.downcast_ref::<TreeError>());
    let tree_error = tree_error.unwrap_or_else(|| panic!("{text}"));
    let TreeError::Corrupt { source, .. } = tree_error else { panic!("{text}") };
    assert_eq!(source.field(), field, "{text}");
    assert!(source.have().contains(have) && !source.place().is_empty(), "{text}");
    assert!(before == volume.image(), "an open that fails writes nothing");
    let fs = Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap();
    if has_data {
        let mut memory = vec![0; FILE_BYTES];
        assert_eq!(fs.open_file(id).unwrap().read_at(0, &mut memory).unwrap(), FILE_BYTES);
        assert!(memory.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn device_extents_that_differ_from_the_stripes_are_refused_for_writing() {
    let (volume, id) = volume();
    let dropped = volume.with_leaves(|leaf| drop_last(leaf, DEVICE_TREE, DEV_EXTENT));
    is_refused(&dropped, id, "device extent", "none", true);
    let mut all_but_one = false;
    let dropped = volume.with_leaves(|leaf| {
        while items(leaf, DEVICE_TREE, DEV_EXTENT).len() > 1 {
            all_but_one |= drop_last(leaf, DEVICE_TREE, DEV_EXTENT);
        }
        all_but_one && number(leaf, OWNER_AT) == DEVICE_TREE
    });
    is_refused(&dropped, id, "device extent", "none", true);
    let moved = volume.with_leaves(of_extent(|leaf, key, _| {
        let offset = number(leaf, key + 9);
        put(leaf, key + 9, offset + (200 << 20));
    }));
    is_refused(&moved, id, "device extent", "of chunk", true);
    let beyond = volume.with_leaves(of_extent(|leaf, key, _| put(leaf, key + 9, 1 << 40)));
    is_refused(&beyond, id, "device extent", "of chunk", true);
    let elsewhere = volume.with_leaves(of_extent(|leaf, key, _| put(leaf, key, 2)));
    is_refused(&elsewhere, id, "device extent", "of chunk", true);
    let short = volume.with_leaves(of_extent(|leaf, _, data| put(leaf, data + LENGTH_AT, 65536)));
    is_refused(&short, id, "device extent", "65536 bytes", true);
    let other = volume.with_leaves(of_extent(|leaf, _, data| put(leaf, data + CHUNK_AT, 4096)));
    is_refused(&other, id, "device extent", "of chunk 4096", true);
}

#[test]
fn block_groups_that_differ_from_the_chunks_are_refused_for_writing() {
    let (volume, id) = volume();
    let groups = |leaf: &[u8]| {
        let trees = [2, 11].iter();
        trees.flat_map(|tree| items(leaf, *tree, BLOCK_GROUP_ITEM)).collect::<Vec<_>>()
    };
    let typed = volume.with_leaves(|leaf| {
        let last = groups(leaf).last().copied();
        last.map(|(_, data)| put(leaf, data + FLAGS_AT, 4)).is_some()
    });
    is_refused(&typed, id, "flags", "0x4", true);
    // The last chunk is the newer data chunk. Its stripe is the last on the device.
    let dropped = volume.with_leaves(|leaf| {
        drop_last(leaf, CHUNK_TREE, CHUNK_ITEM) | drop_last(leaf, DEVICE_TREE, DEV_EXTENT)
    });
    is_refused(&dropped, id, "chunk", "none", false);
}
