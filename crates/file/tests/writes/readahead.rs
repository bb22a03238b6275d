//! Readahead while the file is merged: the worker reads no space that another file has by then.

use crate::compressed_merges::fill;
use crate::volume::{create, fresh, open_faulty, state};
use butternut_device::{Fault, FaultyDevice, Rule};
use butternut_file::{AllocationRun, FileState, MappingKind, Mappings, Source, Stream};
use butternut_format::inode::InodeFlags;
use butternut_sys::wait::Wait;
use butternut_volume::DataWrite;
use std::sync::Arc;

const INO: u64 = 300;
const BYTES: usize = 4 << 20;
/// Bytes of a read or write. Smaller writes than 256 KiB become dirty blocks.
const PART: usize = 64 << 10;
/// The worker's reads from here on are held.
const HELD: u64 = 512 << 10;

/// Replaces the file's data with `replace`, commits, and fills the volume, while a worker that
/// reads ahead waits for the device.
fn assert_no_corruption(replace: impl Fn(&Source, &mut FileState)) {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, INO, InodeFlags::default());
    let mut file = state(&source, INO);
    file.write_at(0, &vec![1; BYTES]).unwrap();
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    let at = physical(&source, &file);
    let rule = device.add(Rule::at(at + HELD..at + BYTES as u64, Fault::HeldRead));
    let stream = Stream::new(source.clone(), file.view().clone());
    let mut bytes = vec![0; BYTES];
    for part in bytes[..7 * PART].chunks(PART).enumerate().map(|(number, _)| number * PART) {
        stream.read_at(part as u64, &mut vec![0; PART]).unwrap();
    }
    device.wait_for_held_reads(1);
    replace(&source, &mut file);
    source.forest().commit().unwrap();
    source.forest().commit().unwrap();
    fill(&source);
    device.remove(rule);
    assert_eq!(stream.read_at(0, &mut bytes).unwrap(), BYTES);
    assert!(bytes.iter().all(|byte| *byte == 2));
    // Waits for the worker.
    drop(stream);
    let errors = source.forest().volume().devices()[0].errors;
    assert_eq!(errors.corruption_errors, 0, "the device has no errors");
}

/// Where the file's only extent is on the device.
fn physical(source: &Source, file: &FileState) -> u64 {
    let mapping = Mappings::of(file.view(), 0..BYTES as u64).next().unwrap().unwrap();
    assert_eq!(mapping.bytes, BYTES as u64, "one extent");
    let MappingKind::Regular { extent, .. } = mapping.kind else { panic!("{mapping:?}") };
    let chunks = source.forest().volume().chunks();
    let chunk = chunks.find(extent.logical).unwrap();
    assert_eq!(chunk.stripes().len(), 1);
    chunk.stripes()[0].physical.0 + (extent.logical.0 - chunk.logical().0)
}

#[test]
fn readahead_beside_a_merge_reads_no_space_that_another_file_has() {
    assert_no_corruption(|_, file| {
        for at in (0..BYTES).step_by(PART) {
            file.write_at(at as u64, &vec![2; PART]).unwrap();
        }
        file.merge(&mut |_| {}).unwrap();
    });
}

#[test]
fn readahead_beside_a_shared_merge_reads_no_space_that_another_file_has() {
    assert_no_corruption(|source, file| {
        let (bytes, mut checksums) = (vec![2; PART], Vec::new());
        source.forest().volume().checksum(&bytes, &mut checksums);
        let mut allocation = AllocationRun::new(source, 1);
        for at in (0..BYTES as u64).step_by(PART) {
            let range = at..at + PART as u64;
            let write = file.begin_direct_write(&range, &mut allocation, Wait::Block).unwrap();
            let write = write.expect("space");
            let mut rows = [DataWrite::new(write.logical(), &bytes)];
            source.forest().volume().write_data(&mut rows);
            rows[0].result.as_ref().unwrap();
            write.complete(source, &checksums);
        }
        file.drain();
        let merge = file.begin_shared_merge().expect("pending extents in new space");
        file.merge_shared(&merge, &mut |_| {}).unwrap();
    });
}

#[test]
fn a_writer_gets_the_space_of_a_deleted_file_although_a_worker_reads_ahead() {
    const OTHER: u64 = 301;
    const DELETED: u64 = 302;
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    for ino in [INO, OTHER, DELETED] {
        create(&source, ino, InodeFlags::default());
    }
    let mut file = state(&source, INO);
    file.write_at(0, &vec![1; BYTES]).unwrap();
    file.merge(&mut |_| {}).unwrap();
    let mut deleted = state(&source, DELETED);
    deleted.write_at(0, &vec![1; BYTES]).unwrap();
    deleted.merge(&mut |_| {}).unwrap();
    fill(&source);
    let at = physical(&source, &file);
    let rule = device.add(Rule::at(at + HELD..at + BYTES as u64, Fault::HeldRead));
    let stream = Stream::new(source.clone(), file.view().clone());
    for part in 0..7 {
        stream.read_at((part * PART) as u64, &mut vec![0; PART]).unwrap();
    }
    device.wait_for_held_reads(1);
    deleted.truncate(0, &mut |_| {}).unwrap();
    let mut other = state(&source, OTHER);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The writer has found no space and waits, or it fails meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(200));
            device.remove(rule);
        });
        let written = other.write_at(0, &vec![2; BYTES / 2]);
        assert_eq!(written.expect("the space of the deleted file"), BYTES / 2);
    });
}
