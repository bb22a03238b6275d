//! Writes over devices in memory: every copy, few requests, and failures that stay where they are.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule, RuleId};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::{BlockGroupFlags, Chunk, RawChunk, RawStripe, Stripe};
use butternut_format::device_item::DeviceItem;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::super_block::{COPY_OFFSETS, MAGIC, RawSuperBlock, SuperBlock};
use butternut_format::units::{DevId, Generation, Logical, Physical};
use butternut_volume::{DataRead, DataWrite, Facts, OpenOptions, Sums, Volume, VolumeError};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

const DEVICE_BYTES: u64 = 80 << 20;
const FSID: [u8; 16] = [0xf5; 16];

/// Where the chunk of the tests lies.
const START: u64 = 1 << 30;
const BYTES: u64 = 16 << 20;

fn uuid(devid: u64) -> [u8; 16] {
    [u8::try_from(devid).unwrap(); 16]
}

/// A superblock with one system chunk, as little as passes the check.
fn super_block(devid: u64, devices: u64) -> RawSuperBlock {
    let mut raw = RawSuperBlock::new_zeroed();
    raw.magic.set(MAGIC);
    raw.fsid = FSID;
    raw.generation.set(7);
    raw.root.set(1 << 20);
    raw.chunk_root.set(1 << 20);
    raw.bytes_used.set(1 << 20);
    raw.total_bytes.set(DEVICE_BYTES * devices);
    raw.num_devices.set(devices);
    raw.sectorsize.set(4096);
    raw.stripesize.set(4096);
    raw.nodesize.set(16384);
    raw.unused_leafsize.set(16384);
    raw.dev_item.devid.set(devid);
    raw.dev_item.uuid = uuid(devid);
    raw.dev_item.fsid = FSID;
    raw.dev_item.total_bytes.set(DEVICE_BYTES);
    let mut chunk = RawChunk::new_zeroed();
    chunk.length.set(1 << 20);
    chunk.stripe_len.set(65536);
    chunk.r#type.set(BlockGroupFlags::SYSTEM.0);
    chunk.sector_size.set(4096);
    chunk.num_stripes.set(1);
    let mut stripe = RawStripe::new_zeroed();
    stripe.devid.set(1);
    stripe.offset.set(1 << 20);
    stripe.dev_uuid = uuid(1);
    let key = RawKey::from(Key::new(256, ItemType::CHUNK_ITEM, 1 << 20));
    let array = [key.as_bytes(), chunk.as_bytes(), stripe.as_bytes()].concat();
    raw.sys_chunk_array[..array.len()].copy_from_slice(&array);
    raw.sys_chunk_array_size.set(u32::try_from(array.len()).unwrap());
    raw
}

struct Set {
    volume: Volume,
    devices: Vec<Arc<FaultyDevice>>,
}

/// A volume of `count` devices with one chunk of `profile`.
fn set(profile: BlockGroupFlags, count: u64) -> Set {
    let mut devices = Vec::new();
    for devid in 1..=count {
        let memory = MemoryDevice::new(&format!("memory{devid}"), DEVICE_BYTES);
        let mut raw = super_block(devid, count);
        raw.bytenr.set(COPY_OFFSETS[0]);
        raw.csum = ChecksumKind::Crc32c.digest(&raw.as_bytes()[32..]);
        memory.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
        devices.push(Arc::new(FaultyDevice::new(Arc::new(memory), 1)));
    }
    let given = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let volume = Volume::open(given, OpenOptions::default()).unwrap();
    let flags = BlockGroupFlags(profile.0 | BlockGroupFlags::DATA.0);
    volume.install_chunk(Logical(START), &chunk(flags, count)).unwrap();
    volume.seal().unwrap();
    Set { volume, devices }
}

fn chunk(flags: BlockGroupFlags, devices: u64) -> Chunk {
    let profile = flags.profile().unwrap();
    let per_device = Facts::of(profile).stripes_per_device as u64;
    let stripe = |nth: u64| Stripe {
        devid: DevId(nth / per_device + 1),
        offset: Physical((4 << 20) + nth % per_device * (20 << 20)),
        dev_uuid: uuid(nth / per_device + 1),
    };
    let stripes = (0..devices * per_device).map(stripe).collect();
    Chunk { logical: Logical(START), bytes: BYTES, flags, profile, sub_stripes: 1, stripes }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[5]
    };
    (0..bytes).map(|_| next()).collect()
}

impl Set {
    fn writes(&self) -> u64 {
        self.devices.iter().map(|device| device.counters().now().writes).sum()
    }

    /// Every copy holds these bytes.
    fn check(&self, logical: u64, bytes: &[u8]) {
        let chunks = self.volume.chunks();
        let copies = chunks.find(Logical(logical)).unwrap().facts().copies;
        for copy in 0..copies {
            let mut found = vec![0; bytes.len()];
            self.volume.read_raw(Logical(logical), copy, &mut found).unwrap();
            assert!(found == bytes, "copy {copy} of {logical}");
        }
        let mut found = vec![0; bytes.len()];
        let mut reads = [DataRead::new(Logical(logical), &mut found, Sums::None)];
        self.volume.read_data(&mut reads);
        assert!(reads[0].result.is_ok());
        assert!(found == bytes, "read at {logical}");
    }

    fn fail(&self, device: usize, range: std::ops::Range<u64>) -> RuleId {
        self.devices[device].add(Rule::at(range, Fault::WriteError))
    }
}

fn profiles() -> Vec<(BlockGroupFlags, u64)> {
    vec![
        (BlockGroupFlags(0), 1),
        (BlockGroupFlags::DUP, 1),
        (BlockGroupFlags::RAID0, 3),
        (BlockGroupFlags::RAID1, 2),
        (BlockGroupFlags::RAID1C3, 3),
        (BlockGroupFlags::RAID10, 4),
    ]
}

#[test]
fn writes_of_all_sizes_reach_every_copy_of_every_profile() {
    for (profile, devices) in profiles() {
        let set = set(profile, devices);
        let sizes = [4096, 8192, 65536, 4096, 300 << 10, 3 << 20, 16384, 16384, 1 << 20, 4096];
        let bytes: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(nth, size)| pattern(nth as u64, *size)).collect();
        let mut at = START + 4096;
        let mut places = Vec::new();
        for (nth, bytes) in bytes.iter().enumerate() {
            places.push(at);
            // Some are neighbours, some are not.
            at += bytes.len() as u64 + if nth % 3 == 0 { 8192 } else { 0 };
        }
        let mut writes: Vec<DataWrite<'_>> = places
            .iter()
            .zip(&bytes)
            .map(|(at, bytes)| DataWrite::new(Logical(*at), bytes))
            .rev()
            .collect();
        set.volume.write_data(&mut writes);
        assert!(writes.iter().all(|write| write.result.is_ok()), "{writes:?}");
        for (at, bytes) in places.iter().zip(&bytes) {
            set.check(*at, bytes);
        }
    }
}

#[test]
fn neighbouring_blocks_go_down_as_one_request_per_copy_and_mebibyte() {
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
fn a_batch_larger_than_the_memory_to_copy_in_goes_down_in_rounds() {
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
fn a_failed_write_takes_no_neighbour_down_and_is_counted() {
    let set = set(BlockGroupFlags::RAID1, 2);
    let bytes = pattern(5, 5 * 4096);
    // The second device fails one sector in the middle.
    set.fail(1, (4 << 20) + 2 * 4096..(4 << 20) + 3 * 4096);
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
    assert_eq!(errors, [0, 2], "together, and once more alone");
    let logical = Logical(START);
    assert!(set.volume.write_blocks(&[(logical, &bytes)]).is_err());
}

#[test]
fn what_cannot_be_written_everywhere_is_refused_before_anything_is() {
    let set = set(BlockGroupFlags::RAID5, 3);
    let before = set.writes();
    let refused = set.volume.write_blocks(&[(Logical(START), &[0; 4096])]).unwrap_err();
    assert_eq!(refused.to_string(), "logical 1073741824: writing to RAID5 chunks is not supported");
    let beyond = set.volume.write_blocks(&[(Logical(START + BYTES - 4096), &[0; 8192])]);
    assert!(matches!(beyond, Err(VolumeError::ParityWrite { .. } | VolumeError::Unmapped { .. })));
    let odd = set.volume.write_blocks(&[(Logical(START + 512), &[0; 4096])]);
    assert!(matches!(odd, Err(VolumeError::Misshapen { .. })));
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
fn superblocks_are_written_to_every_place_with_the_items_of_their_devices() {
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
fn a_failed_first_superblock_leaves_the_others_at_the_last_commit() {
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
    let set = set(BlockGroupFlags::RAID1, 2);
    set.devices[1].add(Rule::everywhere(Fault::FlushError));
    assert!(set.volume.flush().is_err());
    assert_eq!(set.volume.devices()[1].errors.flush_errors, 1);
}

#[test]
fn chunks_come_and_go_while_the_volume_runs() {
    let set = set(BlockGroupFlags(0), 1);
    let more = Logical(START + BYTES);
    let mut new = chunk(BlockGroupFlags::DATA, 1);
    (new.logical, new.bytes) = (more, 4 << 20);
    new.stripes[0].offset = Physical(60 << 20);
    set.volume.install_chunk(more, &new).unwrap();
    set.volume.settle_chunks().unwrap();
    let bytes = pattern(6, 8192);
    // One write over the seam of two chunks.
    set.volume.write_blocks(&[(Logical(more.0 - 4096), &bytes)]).unwrap();
    set.check(more.0 - 4096, &bytes[..4096]);
    set.check(more.0, &bytes[4096..]);
    new.logical = Logical(more.0 + 4096);
    set.volume.install_chunk(new.logical, &new).unwrap();
    assert!(set.volume.settle_chunks().is_err(), "it overlaps");
    assert!(set.volume.remove_chunk(more));
    assert!(!set.volume.remove_chunk(more));
    assert!(set.volume.write_blocks(&[(more, &bytes)]).is_err());
}

#[test]
fn discards_reach_every_copy_and_nothing_else() {
    let set = set(BlockGroupFlags::DUP, 1);
    let bytes = pattern(7, 3 * 65536);
    set.volume.write_blocks(&[(Logical(START), &bytes)]).unwrap();
    set.volume.discard(Logical(START + 65536), 65536).unwrap();
    set.check(START, &bytes[..65536]);
    set.check(START + 65536, &vec![0; 65536]);
    set.check(START + 2 * 65536, &bytes[2 * 65536..]);
    assert!(set.volume.discard(Logical(START + BYTES), 4096).is_err());
}
