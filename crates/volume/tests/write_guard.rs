//! The write guard after a mount of the kernel has ended: what may still be written, and which
//! superblocks prove that no other program has written.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{Counters, Device, DeviceError, Fault, MemoryDevice, Rule};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock};
use butternut_format::units::{Logical, Physical};
use butternut_volume::{DataWrite, OpenOptions, Volume, VolumeError};
use set::{BYTES, DEVICE_BYTES, START, Set, chunk, open, set, super_block, volume_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use zerocopy::IntoBytes;

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

/// Ends the mount, changes the volume's device and writes. The device can be claimed.
fn write_after(volume: &Volume, change: impl FnOnce()) -> Result<(), VolumeError> {
    volume.set_mount_watch(Box::new(|| false));
    change();
    volume.write_blocks(&[(Logical(START), &[0; 4096])])
}

fn assert_foreign(result: Result<(), VolumeError>) {
    let Err(VolumeError::MountEnded(cause)) = result else { panic!("{result:?}") };
    assert!(matches!(*cause, VolumeError::ForeignSuper { .. }), "{cause}");
}

/// Writes a superblock copy as another program does.
fn write_copy(device: &dyn Device, copy: usize, mut raw: RawSuperBlock) {
    raw.bytenr.set(COPY_OFFSETS[copy]);
    raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
    device.write_at(COPY_OFFSETS[copy], raw.as_bytes()).unwrap();
}

fn super_of(generation: u64, log_root: u64) -> RawSuperBlock {
    let mut raw = super_block(1, 1);
    raw.generation.set(generation);
    raw.log_root.set(log_root);
    raw
}

#[test]
fn a_device_that_was_held_meanwhile_needs_no_readable_superblock() {
    let write = |is_held| {
        let set = set(BlockGroupFlags::RAID1, 2);
        if is_held {
            set.devices[1].hold();
        }
        set.devices[1].add(Rule::everywhere(Fault::ReadError));
        write_after(&set.volume, || {})
    };
    write(true).unwrap();
    assert_foreign(write(false));
}

#[test]
fn a_superblock_of_the_same_generation_is_compared_by_its_checksum() {
    let same = set(BlockGroupFlags(0), 1);
    let device = same.devices[0].as_ref();
    write_after(&same.volume, || write_copy(device, 0, super_of(7, 0))).unwrap();
    // Another program has synced a log, and committed nothing.
    let changed = set(BlockGroupFlags(0), 1);
    let device = changed.devices[0].as_ref();
    assert_foreign(write_after(&changed.volume, || write_copy(device, 0, super_of(7, 2 << 20))));
}

#[test]
fn after_a_failed_superblock_only_the_one_before_and_the_failed_one_are_own() {
    let cases = [
        (7, 0, true),
        (8, 2 << 20, true),
        (7, 2 << 20, false),
        (8, 3 << 20, false),
        (9, 2 << 20, false),
    ];
    for (generation, log_root, is_own) in cases {
        let set = set(BlockGroupFlags(0), 1);
        let failing = set.fail(0, COPY_OFFSETS[0]..COPY_OFFSETS[0] + 4096);
        set.volume.write_super(&super_of(8, 2 << 20)).unwrap_err();
        set.devices[0].remove(failing);
        set.volume.check_own_supers().unwrap();
        let device = set.devices[0].as_ref();
        let written =
            write_after(&set.volume, || write_copy(device, 0, super_of(generation, log_root)));
        if is_own {
            written.unwrap();
        } else {
            assert_foreign(written);
        }
    }
}

/// Opens a volume whose first superblock is torn.
fn open_second_copy() -> (Arc<dyn Device>, Volume) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory1", DEVICE_BYTES));
    (0..2).for_each(|copy| write_copy(device.as_ref(), copy, super_of(7, 0)));
    device.write_at(COPY_OFFSETS[0] + 512, &[0xee; 512]).unwrap();
    let volume = open(BlockGroupFlags(0), vec![Arc::clone(&device)], 1, OpenOptions::default());
    (device, volume)
}

#[test]
fn a_volume_that_was_opened_by_its_second_superblock_is_compared_with_that_one() {
    let (_, volume) = open_second_copy();
    write_after(&volume, || {}).unwrap();
    // Another program has repaired the first copy, or has committed, or has damaged both.
    for (copy, generation) in [(0, 7), (0, 8), (1, 8)] {
        let (device, volume) = open_second_copy();
        let raw = super_of(generation, 0);
        assert_foreign(write_after(&volume, || write_copy(device.as_ref(), copy, raw)));
    }
    let (device, volume) = open_second_copy();
    let damage = || device.write_at(COPY_OFFSETS[1] + 512, &[0xee; 512]).unwrap();
    assert_foreign(write_after(&volume, damage));
}

/// A device whose first read of the first superblock, once it is armed, returns what was there
/// before a write that is then in flight, and returns after that write has ended.
#[derive(Debug)]
struct RacingDevice {
    inner: MemoryDevice,
    is_write_armed: AtomicBool,
    is_read_armed: AtomicBool,
    write_begun: Barrier,
    read_done: Barrier,
    write_ended: Barrier,
}

impl Device for RacingDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        let read = self.inner.read_at(offset, memory);
        if offset == COPY_OFFSETS[0] && self.is_read_armed.swap(false, Ordering::AcqRel) {
            self.read_done.wait();
            self.write_ended.wait();
        }
        read
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        if offset == COPY_OFFSETS[0] && self.is_write_armed.swap(false, Ordering::AcqRel) {
            self.write_begun.wait();
            self.read_done.wait();
        }
        self.inner.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

#[test]
fn a_superblock_that_is_written_during_the_comparison_is_own() {
    let device = Arc::new(RacingDevice {
        inner: MemoryDevice::new("memory1", DEVICE_BYTES),
        is_write_armed: AtomicBool::new(false),
        is_read_armed: AtomicBool::new(false),
        write_begun: Barrier::new(2),
        read_done: Barrier::new(2),
        write_ended: Barrier::new(2),
    });
    let volume = volume_of(BlockGroupFlags(0), vec![Arc::clone(&device) as Arc<dyn Device>]);
    let is_mounted = Arc::new(AtomicBool::new(true));
    let watched = Arc::clone(&is_mounted);
    volume.set_mount_watch(Box::new(move || watched.load(Ordering::Acquire)));
    device.is_write_armed.store(true, Ordering::Release);
    device.is_read_armed.store(true, Ordering::Release);
    thread::scope(|scope| {
        let (volume, device) = (&volume, &device);
        scope.spawn(move || {
            let written = volume.write_first_supers_durably(&super_of(8, 2 << 20));
            device.write_ended.wait();
            written.unwrap();
        });
        device.write_begun.wait();
        is_mounted.store(false, Ordering::Release);
        volume.write_blocks(&[(Logical(START), &[0; 4096])]).unwrap();
    });
}
