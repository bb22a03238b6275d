//! Nowait writes that are refused: they reach no device and keep no space.

use crate::compression::noise;
use crate::script::compare;
use crate::volume::{create, fresh, open_faulty, state};
use butternut_device::{Fault, FaultyDevice, Rule};
use butternut_format::inode::InodeFlags;
use butternut_pages::CacheMode;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use std::sync::Arc;

const INO: u64 = 300;

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
        match file.write(at, &noise(bytes), CacheMode::Cached, Wait::NoWait) {
            Ok(written) => assert_eq!(written, bytes),
            Err(error) => assert!(error.is_would_block(), "{error}"),
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
    while let Ok(space) = source.forest().allocate_data(4096, 4 << 20, Cluster(0), Wait::Block) {
        taken.push(space);
    }
    // Some space is free, but less than the write needs.
    let free = taken.pop().unwrap();
    let bytes = usize::try_from(free.bytes()).unwrap();
    source.forest().release_data(free).unwrap();
    for dirty in [0, 4096] {
        let mut file = state(&source, INO);
        file.write_at(0, &noise(dirty)).unwrap();
        // The file's inline data is decided.
        let large = noise(2 * bytes);
        let written = file.write(8192, &large, CacheMode::Cached, Wait::NoWait);
        assert!(written.is_err_and(|error| error.is_would_block()));
        let mut other = state(&source, OTHER);
        let data = noise(bytes - dirty);
        assert_eq!(other.write_at(0, &data).unwrap(), data.len(), "with {dirty} dirty bytes");
        other.discard();
        file.write_back().unwrap();
        compare(&source, &file, &noise(dirty));
        file.discard();
    }
}
