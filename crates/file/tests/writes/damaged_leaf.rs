//! Reads beside a leaf of extents that cannot be read: the leaf is not read again for each of them.

use crate::volume::{create, open, open_device_to_read, state, subvolume};
use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut_file::Source;
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_mkfs::MkfsOptions;
use butternut_sys::wait::Wait;
use std::ops::Range;
use std::sync::Arc;

const INO: u64 = 300;
const BLOCK: u64 = 4096;
/// One region of the extent maps.
const BLOCKS: u64 = 256;
const ROUNDS: u64 = 4;

/// A file with an extent for each block, whose items fill several leaves.
fn device() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 192 << 20);
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    butternut_mkfs::make(&device, &options).unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let source = open(&device);
    create(&source, INO, InodeFlags::default());
    let mut file = state(&source, INO);
    for block in (0..BLOCKS).rev() {
        file.write_at(block * BLOCK, &[block as u8; BLOCK as usize]).unwrap();
        file.write_back().unwrap();
    }
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    drop(file);
    device
}

/// The blocks of the file whose items are in one leaf, and where the leaf is on the device.
fn leaf(source: &Source, block: u64) -> (Range<u64>, Vec<u64>) {
    let tree = subvolume(source);
    let mut cursor = tree.cursor();
    cursor.seek(&Key::new(INO, ItemType::EXTENT_DATA, block * BLOCK)).unwrap();
    let (leaf, _) = cursor.position().unwrap();
    let key = |slot| leaf.key(slot).unwrap().offset / BLOCK;
    let chunks = source.forest().volume().chunks();
    let layout = chunks.find(leaf.logical()).unwrap();
    let segment = layout.segment(leaf.logical(), BLOCK).unwrap();
    let places = layout.mirrors(&segment).iter();
    let places = places.map(|stripe| segment.physical(stripe).0);
    (key(0)..key(leaf.len() - 1) + 1, places.collect())
}

#[test]
fn reads_beside_an_unreadable_leaf_read_it_a_bounded_number_of_times() {
    let device = device();
    let (lost, places) = leaf(&open_device_to_read(&device), BLOCKS / 2);
    assert!(lost.start > 20 && lost.end < BLOCKS - 20, "{lost:?}");
    let device = Arc::new(FaultyDevice::new(device, 1));
    for place in &places {
        device.add(Rule::at(*place..place + BLOCK, Fault::ReadError));
    }
    let source = open_device_to_read(&(Arc::clone(&device) as Arc<dyn Device>));
    let file = state(&source, INO);
    let mut bytes = [0; BLOCK as usize];
    for direct in [false, true] {
        for _ in 0..ROUNDS {
            for block in (0..BLOCKS).rev().filter(|block| !lost.contains(block)) {
                let at = block * BLOCK;
                if direct {
                    let mut checksums = Vec::new();
                    let range = at..at + BLOCK;
                    source.resolve(file.view(), &range, Wait::Block, &mut checksums).unwrap();
                }
                assert_eq!(source.read_at(file.view(), at, &mut bytes).unwrap(), bytes.len());
                assert!(bytes.iter().all(|byte| *byte == block as u8));
            }
        }
    }
    let reads = device.fault_counts().read_errors;
    assert!(reads <= 8 * places.len() as u64, "{reads} reads of one leaf");
    assert!(source.read_at(file.view(), lost.start * BLOCK, &mut bytes).is_err());
}
