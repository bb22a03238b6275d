//! Writes over devices in memory: every mirror is written with few requests, and a failure affects
//! one write.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{Device, Fault, MemoryDevice, Rule};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::device_item::DeviceItem;
use butternut_format::super_block::{COPY_OFFSETS, FLAG_SEEDING, SuperBlock};
use butternut_format::units::{DevId, Generation, Logical, Physical};
use butternut_volume::{DataWrite, OpenOptions, Volume, VolumeError};
use set::{BYTES, DEVICE_BYTES, FSID, START, chunk, pattern, profiles, set, super_block, uuid};
use std::sync::Arc;
use zerocopy::IntoBytes;

#[test]
fn writes_of_all_sizes_are_on_every_mirror_of_every_profile() {
    for (profile, devices) in profiles() {
        let set = set(profile, devices);
        let sizes = [4096, 8192, 65536, 4096, 300 << 10, 3 << 20, 16384, 16384, 1 << 20, 4096];
        let bytes: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(nth, size)| pattern(nth as u64, *size)).collect();
        let mut at = START + 4096;
        let mut addresses = Vec::new();
        for (nth, bytes) in bytes.iter().enumerate() {
            addresses.push(at);
            // Some writes are adjacent, some are not.
            at += bytes.len() as u64 + if nth % 3 == 0 { 8192 } else { 0 };
        }
        let mut writes: Vec<DataWrite<'_>> = addresses
            .iter()
            .zip(&bytes)
            .map(|(at, bytes)| DataWrite::new(Logical(*at), bytes))
            .rev()
            .collect();
        set.volume.write_data(&mut writes);
        assert!(writes.iter().all(|write| write.result.is_ok()), "{writes:?}");
        for (at, bytes) in addresses.iter().zip(&bytes) {
            set.check(*at, bytes);
        }
    }
}

#[test]
fn adjacent_blocks_are_one_request_for_each_mirror_and_mebibyte() {
    let set = set(BlockGroupFlags::DUP, 1);
    let bytes = pattern(3, 4 << 20);
    let mut blocks: Vec<(Logical, &[u8])> = bytes
        .chunks(16384)
        .enumerate()
        .map(|(nth, block)| (Logical(START + nth as u64 * 16384), block))
        .collect();
    blocks.reverse();
    let before = set.writes();
    set.volume.write_blocks(&blocks).unwrap();
    assert_eq!(set.writes() - before, 2 * 4);
    set.check(START, &bytes);
}

#[test]
fn a_large_batch_is_written_in_requests_of_a_mebibyte() {
    let set = set(BlockGroupFlags(0), 1);
    let bytes = pattern(4, usize::try_from(BYTES).unwrap());
    let blocks: Vec<(Logical, &[u8])> = bytes
        .chunks(4096)
        .enumerate()
        .map(|(nth, block)| (Logical(START + nth as u64 * 4096), block))
        .collect();
    let before = set.writes();
    set.volume.write_blocks(&blocks).unwrap();
    assert_eq!(set.writes() - before, BYTES >> 20);
    set.check(START, &bytes);
}

#[test]
fn a_failed_write_does_not_fail_its_neighbours_and_is_counted() {
    let set = set(BlockGroupFlags(0), 1);
    let bytes = pattern(5, 5 * 4096);
    // The device fails one sector in the middle.
    set.fail(0, (4 << 20) + 2 * 4096..(4 << 20) + 3 * 4096);
    let mut writes: Vec<DataWrite<'_>> = bytes
        .chunks(4096)
        .enumerate()
        .map(|(nth, sector)| DataWrite::new(Logical(START + nth as u64 * 4096), sector))
        .collect();
    set.volume.write_data(&mut writes);
    let failed: Vec<bool> = writes.iter().map(|write| write.result.is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false]);
    for (nth, sector) in bytes.chunks(4096).enumerate().filter(|(nth, _)| *nth != 2) {
        set.check(START + nth as u64 * 4096, sector);
    }
    let errors: Vec<u64> =
        set.volume.devices().iter().map(|status| status.errors.write_errors).collect();
    assert_eq!(errors, [2], "once in the run, once by itself");
    let logical = Logical(START);
    assert!(set.volume.write_blocks(&[(logical, &bytes)]).is_err());
}

#[test]
fn a_write_that_cannot_reach_every_mirror_writes_nothing() {
    let set = set(BlockGroupFlags::RAID5, 3);
    let before = set.writes();
    let refused = set.volume.write_blocks(&[(Logical(START), &[0; 4096])]).unwrap_err();
    assert_eq!(refused.to_string(), "logical 1073741824: writing to RAID5 chunks is not supported");
    let beyond = set.volume.write_blocks(&[(Logical(START + BYTES - 4096), &[0; 8192])]);
    assert!(matches!(beyond, Err(VolumeError::ParityWrite { .. } | VolumeError::Unmapped { .. })));
    let odd = set.volume.write_blocks(&[(Logical(START + 512), &[0; 4096])]);
    assert!(matches!(odd, Err(VolumeError::InvalidRange { .. })));
    assert_eq!(set.writes(), before);
}

#[test]
fn a_write_across_the_end_of_the_chunks_changes_nothing() {
    let set = set(BlockGroupFlags(0), 1);
    let before = set.writes();
    let error = set.volume.write_blocks(&[(Logical(START + BYTES - 4096), &[1; 8192])]);
    assert!(matches!(error, Err(VolumeError::Unmapped { .. })));
    assert_eq!(set.writes(), before);
    set.check(START + BYTES - 4096, &[0; 4096]);
}

#[test]
fn every_superblock_copy_has_the_item_of_its_device() {
    let set = set(BlockGroupFlags::RAID1, 2);
    assert!(set.volume.is_writable());
    for devid in 1..=2 {
        set.volume.install_device(&DeviceItem {
            devid: DevId(devid),
            total_bytes: DEVICE_BYTES,
            bytes_used: devid << 20,
            generation: 0,
            uuid: uuid(devid),
            fsid: FSID,
        });
    }
    let mut raw = super_block(1, 2);
    raw.generation.set(8);
    set.volume.flush().unwrap();
    set.volume.write_super(&raw).unwrap();
    set.volume.flush().unwrap();
    for (index, device) in set.devices.iter().enumerate() {
        assert_eq!(device.counters().now().flushes, 2);
        for (copy, offset) in COPY_OFFSETS.iter().enumerate().take(2) {
            let mut bytes = vec![0; 4096];
            device.read_at(*offset, &mut bytes).unwrap();
            let found = SuperBlock::check(&bytes, copy).unwrap();
            assert_eq!(found.generation(), Generation(8));
            assert_eq!(found.device().devid, DevId(index as u64 + 1));
            assert_eq!(found.device().bytes_used, (index as u64 + 1) << 20);
        }
    }
}

#[test]
fn a_failed_first_superblock_keeps_the_others_at_the_last_commit() {
    let set = set(BlockGroupFlags(0), 1);
    set.volume.write_super(&super_block(1, 1)).unwrap();
    let rule = set.fail(0, COPY_OFFSETS[0]..COPY_OFFSETS[0] + 4096);
    let mut raw = super_block(1, 1);
    raw.generation.set(8);
    assert!(set.volume.write_super(&raw).is_err());
    let generation = |copy: usize| {
        let mut bytes = vec![0; 4096];
        set.devices[0].read_at(COPY_OFFSETS[copy], &mut bytes).unwrap();
        SuperBlock::check(&bytes, copy).unwrap().generation().0
    };
    assert_eq!((generation(0), generation(1)), (7, 7));
    set.devices[0].remove(rule);
    set.volume.write_super(&raw).unwrap();
    assert_eq!((generation(0), generation(1)), (8, 8));
}

#[test]
fn a_failed_flush_is_an_error_and_counted() {
    let set = set(BlockGroupFlags::RAID0, 3);
    set.devices[1].add(Rule::everywhere(Fault::FlushError));
    assert!(set.volume.flush().is_err());
    assert_eq!(set.volume.devices()[1].errors.flush_errors, 1);
}

#[test]
fn chunks_are_added_and_removed_while_the_volume_is_in_use() {
    let set = set(BlockGroupFlags(0), 1);
    let more = Logical(START + BYTES);
    let mut new = chunk(BlockGroupFlags::DATA, 1);
    (new.logical, new.bytes) = (more, 4 << 20);
    new.stripes[0].offset = Physical(60 << 20);
    set.volume.install_chunk(more, &new).unwrap();
    set.volume.publish_chunks().unwrap();
    let bytes = pattern(6, 8192);
    // One write across the boundary of two chunks.
    set.volume.write_blocks(&[(Logical(more.0 - 4096), &bytes)]).unwrap();
    set.check(more.0 - 4096, &bytes[..4096]);
    set.check(more.0, &bytes[4096..]);
    new.logical = Logical(more.0 + 4096);
    set.volume.install_chunk(new.logical, &new).unwrap();
    assert!(set.volume.publish_chunks().is_err(), "it overlaps");
    assert!(set.volume.remove_chunk(more));
    assert!(!set.volume.remove_chunk(more));
    assert!(set.volume.write_blocks(&[(more, &bytes)]).is_err());
}

#[test]
fn discards_reach_every_mirror_and_nothing_else() {
    let set = set(BlockGroupFlags::DUP, 1);
    let bytes = pattern(7, 3 * 65536);
    set.volume.write_blocks(&[(Logical(START), &bytes)]).unwrap();
    set.volume.discard(Logical(START + 65536), 65536).unwrap();
    set.check(START, &bytes[..65536]);
    set.check(START + 65536, &vec![0; 65536]);
    set.check(START + 2 * 65536, &bytes[2 * 65536..]);
    assert!(set.volume.discard(Logical(START + BYTES), 4096).is_err());
}

/// The volume has freed the data of a file that it shares with its seed.
#[test]
fn a_seed_is_not_discarded() {
    let devices: Vec<Arc<dyn Device>> = (1..=2)
        .map(|devid| Arc::new(MemoryDevice::new(&format!("memory{devid}"), DEVICE_BYTES)) as _)
        .collect();
    let seed = [0x5e; 16];
    let mut items = Vec::new();
    for (device, devid) in devices.iter().zip(1..) {
        let mut raw = super_block(devid, 2);
        if devid == 1 {
            (raw.fsid, raw.dev_item.fsid) = (seed, seed);
            raw.flags.set(FLAG_SEEDING);
        }
        raw.bytenr.set(COPY_OFFSETS[0]);
        raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
        device.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
        items.push(DeviceItem::check_raw(&raw.dev_item).unwrap());
    }
    let volume = Volume::open(devices.clone(), OpenOptions::default()).unwrap();
    for item in &items {
        volume.install_device(item);
    }
    // A chunk of one stripe, on the seed.
    let flags = BlockGroupFlags::DATA;
    volume.install_chunk(Logical(START), &chunk(flags, 1)).unwrap();
    volume.seal().unwrap();
    assert!(volume.is_on_seed(Logical(START)));
    let bytes = pattern(1, 65536);
    devices[0].write_at(4 << 20, &bytes).unwrap();
    volume.discard(Logical(START), 65536).unwrap();
    let mut found = vec![0; bytes.len()];
    devices[0].read_at(4 << 20, &mut found).unwrap();
    assert!(found == bytes, "the seed was discarded");
    assert_eq!(devices[0].counters().now().discards, 0);
    assert!(volume.discard_device(DevId(1), Physical(4 << 20), 65536).is_err());
}

/// What was installed since the last commit may never be committed.
#[test]
fn the_superblock_of_a_log_has_the_device_item_of_the_last_commit() {
    let set = set(BlockGroupFlags::DATA, 1);
    let committed = super_block(1, 1);
    let item_on_disk = || {
        let mut bytes = vec![0; 4096];
        set.devices[0].read_at(COPY_OFFSETS[0], &mut bytes).unwrap();
        let item = SuperBlock::check(&bytes, 0).unwrap().raw().dev_item;
        (item.total_bytes.get(), item.bytes_used.get())
    };
    set.volume.write_super(&committed).unwrap();
    let before = item_on_disk();
    let mut item = DeviceItem::check_raw(&committed.dev_item).unwrap();
    item.bytes_used += 1 << 20;
    set.volume.install_device(&item);
    set.volume.write_first_supers_durably(&committed).unwrap();
    assert_eq!(item_on_disk(), before);
    set.volume.write_super_after_log(&committed).unwrap();
    let after = item_on_disk();
    assert_eq!(after, (before.0, before.1 + (1 << 20)));
    item.bytes_used += 1 << 20;
    set.volume.install_device(&item);
    set.volume.write_first_supers_durably(&committed).unwrap();
    assert_eq!(item_on_disk(), after);
}

/// A crash while a log is synced may leave devices of one generation with different logs. Space of
/// a log that is not replayed is used again, so each open must choose the same log.
#[test]
fn the_log_is_that_of_the_first_device_whatever_the_order() {
    for logs in [[0, 2 << 20], [2 << 20, 0], [2 << 20, 3 << 20]] {
        let device = |devid: u64, log_root: u64| -> Arc<dyn Device> {
            let device = MemoryDevice::new(&format!("memory{devid}"), DEVICE_BYTES);
            let mut raw = super_block(devid, 2);
            raw.log_root.set(log_root);
            raw.bytenr.set(COPY_OFFSETS[0]);
            raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
            device.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
            Arc::new(device)
        };
        let (first, second) = (device(1, logs[0]), device(2, logs[1]));
        for order in [[&first, &second], [&second, &first]] {
            let devices = order.map(Arc::clone).to_vec();
            let volume = Volume::open(devices, OpenOptions::default()).unwrap();
            assert_eq!(volume.super_block().raw().log_root.get(), logs[0], "{order:?}");
        }
    }
}

/// The first copy of device 1 was being written when the power failed. Its other copies have the
/// same generation, and name no log.
#[test]
fn a_torn_first_copy_of_one_device_does_not_lose_the_log_of_another() {
    let device = |devid: u64| -> Arc<dyn Device> {
        let device = MemoryDevice::new(&format!("memory{devid}"), DEVICE_BYTES);
        for (copy, at) in COPY_OFFSETS.into_iter().enumerate().take(2) {
            let mut raw = super_block(devid, 2);
            raw.log_root.set(if copy == 0 { 2 << 20 } else { 0 });
            raw.bytenr.set(at);
            raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
            device.write_at(at, raw.as_bytes()).unwrap();
        }
        Arc::new(device)
    };
    let (torn, good) = (device(1), device(2));
    torn.write_at(COPY_OFFSETS[0] + 512, &[0xee; 512]).unwrap();
    for devices in [vec![torn.clone(), good.clone()], vec![good, torn]] {
        let volume = Volume::open(devices, OpenOptions::default()).unwrap();
        assert_eq!(volume.super_block().raw().log_root.get(), 2 << 20);
    }
}

#[test]
fn of_overlapping_writes_of_a_batch_one_is_written_and_the_others_fail() {
    let set = set(BlockGroupFlags(0), 1);
    let bytes = pattern(1, 65536);
    let mut writes = [
        DataWrite::new(Logical(START + 4096), &bytes[..16384]),
        DataWrite::new(Logical(START + 65536), &bytes[..4096]),
        DataWrite::new(Logical(START), &bytes),
    ];
    set.volume.write_data(&mut writes);
    let results = writes.each_ref().map(|write| write.result.as_ref().err());
    let [Some(VolumeError::Overlap { logical, bytes: 16384 }), None, None] = results else {
        panic!("{results:?}")
    };
    assert_eq!(*logical, Logical(START + 4096));
}
