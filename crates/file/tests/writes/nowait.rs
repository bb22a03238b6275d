//! Nowait writes of blocks whose uncached writeback completes meanwhile, which drops their pages.

use crate::compression::noise;
use crate::script::compare;
use crate::volume::{create, fresh, open_faulty, state};
use butternut_device::{Fault, FaultyDevice, Rule};
use butternut_format::inode::InodeFlags;
use butternut_pages::WritebackReason;
use butternut_space::Cluster;
use std::sync::Arc;

const INO: u64 = 300;
const BYTES: usize = 8 * 4096;

#[test]
fn a_nowait_write_reads_no_block_whose_page_is_dropped_after_it_was_prepared() {
    for (at, bytes) in [(100, 50), (4000, 200), (4096 + 5, 3 * 4096)] {
        let device = Arc::new(FaultyDevice::new(fresh(256), 1));
        let source = open_faulty(&device);
        source.set_flusher(true);
        create(&source, INO, InodeFlags::default());
        let mut file = state(&source, INO);
        let mut want = noise(BYTES);
        file.write_at(0, &want).unwrap();
        file.merge(&mut |_| {}).unwrap();
        source.pages().shrink(1000);
        want.reverse();
        file.write_uncached(0, &want).unwrap();
        let (batch, planned) = file.start_writeback(u64::MAX, WritebackReason::Uncached);
        planned.unwrap();
        assert!(file.prepare_nowait_write(at, bytes).unwrap());
        batch.expect("dirty blocks").write_and_complete().unwrap();
        let rule = device.add(Rule::everywhere(Fault::ReadError));
        let new = noise(bytes);
        assert_eq!(file.write_at(at, &new).unwrap(), bytes);
        file.end_nowait_write();
        assert_eq!(device.fault_counts().read_errors, 0, "no device is read");
        device.remove(rule);
        let at = usize::try_from(at).unwrap();
        want[at..at + bytes].copy_from_slice(&new);
        compare(&source, &file, &want);
    }
}

#[test]
fn a_nowait_write_without_a_flusher_writes_nothing_to_a_device() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, INO, InodeFlags::default());
    let mut file = state(&source, INO);
    file.write_at(0, &noise(1 << 20)).unwrap();
    file.merge(&mut |_| {}).unwrap();
    device.add(Rule::everywhere(Fault::WriteError));
    for (at, bytes) in [(0, 256 << 10), (4096, (256 << 10) - 4096), (100, 256 << 10)] {
        if file.prepare_nowait_write(at, bytes).unwrap() {
            assert_eq!(file.write_at(at, &noise(bytes)).unwrap(), bytes);
            file.end_nowait_write();
        }
        assert_eq!(device.fault_counts().write_errors, 0, "{bytes} bytes at {at}");
    }
    file.discard();
}

#[test]
fn a_refused_nowait_write_keeps_no_space_from_other_files() {
    const OTHER: u64 = 301;
    let device = Arc::new(FaultyDevice::new(fresh(192), 1));
    let source = open_faulty(&device);
    source.set_flusher(true);
    create(&source, INO, InodeFlags::default());
    create(&source, OTHER, InodeFlags::default());
    let mut taken = Vec::new();
    while let Ok(space) = source.forest().allocate_data(4096, 4 << 20, Cluster(0)) {
        taken.push(space);
    }
    // Some space is free, but less than the write needs.
    let free = taken.pop().unwrap();
    let bytes = usize::try_from(free.end - free.start).unwrap();
    source.forest().release_data(free).unwrap();
    for dirty in [0, 4096] {
        let mut file = state(&source, INO);
        file.write_at(0, &noise(dirty)).unwrap();
        // The file's inline data is decided.
        assert!(!file.prepare_nowait_write(8192, 2 * bytes).unwrap());
        let mut other = state(&source, OTHER);
        let data = noise(bytes - dirty);
        assert_eq!(other.write_at(0, &data).unwrap(), data.len(), "with {dirty} dirty bytes");
        other.discard();
        file.write_back().unwrap();
        compare(&source, &file, &noise(dirty));
        file.discard();
    }
}
