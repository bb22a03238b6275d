//! The write guard after a mount of the kernel has ended: what may still be written.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{Device, Fault, Rule};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::{Logical, Physical};
use butternut_volume::{DataWrite, VolumeError};
use set::{BYTES, DEVICE_BYTES, START, Set, chunk, set, super_block};
use std::sync::Arc;

/// Lets the mount end with the next write of the first device, which cannot be claimed then.
/// Returns the number of writes of all devices until now.
fn end_mount_with_next_write(set: &Set) -> u64 {
    let device = Arc::clone(&set.devices[0]);
    device.add(Rule::everywhere(Fault::ClaimError));
    let writes = device.counters().now().writes;
    set.volume.set_mount_watch(Box::new(move || device.counters().now().writes == writes));
    set.writes()
}

#[test]
fn of_a_large_batch_only_the_slice_in_flight_is_written_after_the_end_of_the_mount() {
    let set = set(BlockGroupFlags(0), 1);
    let more = Logical(START + BYTES);
    let mut new = chunk(BlockGroupFlags::DATA, 1);
    new.logical = more;
    new.stripes[0].offset = Physical(60 << 20);
    set.volume.install_chunk(more, &new).unwrap();
    set.volume.publish_chunks().unwrap();
    let before = end_mount_with_next_write(&set);
    let mebibyte = vec![8; 1 << 20];
    let mut writes: Vec<DataWrite<'_>> =
        (0..32).map(|nth| DataWrite::new(Logical(START + (nth << 20)), &mebibyte)).collect();
    let mut calls = 0;
    set.volume.write_data_meanwhile(&mut writes, &mut || calls += 1);
    assert_eq!(calls, 1);
    assert_eq!(set.writes() - before, 16);
    for (nth, write) in writes.iter().enumerate() {
        let is_refused = matches!(write.result, Err(VolumeError::MountEnded(_)));
        assert_eq!((nth < 16, nth >= 16), (write.result.is_ok(), is_refused), "{nth}");
    }
    // Later writes fail with the cause, too.
    let refused = set.volume.write_blocks(&[(Logical(START), &[0; 4096])]);
    assert!(matches!(refused, Err(VolumeError::MountEnded(_))), "{refused:?}");
    set.volume.end_writes();
    let refused = set.volume.write_blocks(&[(Logical(START), &[0; 4096])]);
    assert!(matches!(refused, Err(VolumeError::MountEnded(_))), "{refused:?}");
    assert_eq!(set.writes() - before, 16);
    assert_eq!(set.volume.devices()[0].errors.write_errors, 0, "no device has failed");
}

#[test]
fn no_part_of_a_failed_run_is_written_again_after_the_end_of_the_mount() {
    let set = set(BlockGroupFlags::RAID1, 2);
    set.fail(0, 0..DEVICE_BYTES);
    let before = end_mount_with_next_write(&set);
    let sector = [8; 4096];
    let mut writes = [0, 4096].map(|at| DataWrite::new(Logical(START + at), &sector));
    set.volume.write_data(&mut writes);
    assert_eq!(set.writes() - before, 2, "one on each device");
    assert!(writes.iter().all(|write| matches!(write.result, Err(VolumeError::MountEnded(_)))));
}

#[test]
fn the_other_copies_of_a_superblock_are_not_written_after_the_end_of_the_mount() {
    let set = set(BlockGroupFlags(0), 1);
    let before = end_mount_with_next_write(&set);
    let refused = set.volume.write_super(&super_block(1, 1));
    assert!(matches!(refused, Err(VolumeError::MountEnded(_))), "{refused:?}");
    assert_eq!(set.writes() - before, 1);
}
