//! Volumes over devices in memory that can be made to fail, with one chunk of a profile.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule, RuleId};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::{BlockGroupFlags, Chunk, RawChunk, RawStripe, Stripe};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::super_block::{COPY_OFFSETS, MAGIC, RawSuperBlock};
use butternut_format::units::{DevId, Logical, Physical};
use butternut_volume::{Checksums, DataRead, OpenOptions, ProfileAttributes, Volume};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const DEVICE_BYTES: u64 = 80 << 20;
pub(crate) const FSID: [u8; 16] = [0xf5; 16];

/// The address of the chunk of the tests.
pub(crate) const START: u64 = 1 << 30;
pub(crate) const BYTES: u64 = 16 << 20;

pub(crate) fn uuid(devid: u64) -> [u8; 16] {
    [u8::try_from(devid).unwrap(); 16]
}

/// The smallest superblock with one system chunk that passes the check.
pub(crate) fn super_block(devid: u64, devices: u64) -> RawSuperBlock {
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

pub(crate) struct Set {
    pub(crate) volume: Volume,
    pub(crate) devices: Vec<Arc<FaultyDevice>>,
}

/// A volume of `count` devices with one chunk of `profile`.
pub(crate) fn set(profile: BlockGroupFlags, count: u64) -> Set {
    let memory = |devid| MemoryDevice::new(&format!("memory{devid}"), DEVICE_BYTES);
    let devices: Vec<Arc<FaultyDevice>> =
        (1..=count).map(|devid| Arc::new(FaultyDevice::new(Arc::new(memory(devid)), 1))).collect();
    let given = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    Set { volume: volume_of(profile, given), devices }
}

/// A volume with one chunk of `profile` over the caller's devices.
pub(crate) fn volume_of(profile: BlockGroupFlags, devices: Vec<Arc<dyn Device>>) -> Volume {
    let count = devices.len() as u64;
    for (device, devid) in devices.iter().zip(1..) {
        let mut raw = super_block(devid, count);
        raw.bytenr.set(COPY_OFFSETS[0]);
        raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
        device.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
    }
    open(profile, devices, count, OpenOptions::default())
}

/// A volume of `count` devices, of which these are present.
pub(crate) fn open(
    profile: BlockGroupFlags,
    devices: Vec<Arc<dyn Device>>,
    count: u64,
    options: OpenOptions,
) -> Volume {
    let volume = Volume::open(devices, options).unwrap();
    let flags = BlockGroupFlags(profile.0 | BlockGroupFlags::DATA.0);
    volume.install_chunk(Logical(START), &chunk(flags, count)).unwrap();
    volume.seal().unwrap();
    volume
}

pub(crate) fn chunk(flags: BlockGroupFlags, devices: u64) -> Chunk {
    let profile = flags.profile().unwrap();
    let per_device = ProfileAttributes::of(profile).stripes_per_device as u64;
    let stripe = |nth: u64| Stripe {
        devid: DevId(nth / per_device + 1),
        offset: Physical((4 << 20) + nth % per_device * (20 << 20)),
        dev_uuid: uuid(nth / per_device + 1),
    };
    let stripes = (0..devices * per_device).map(stripe).collect();
    Chunk { logical: Logical(START), bytes: BYTES, flags, profile, sub_stripes: 1, stripes }
}

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[5]
    };
    (0..bytes).map(|_| next()).collect()
}

impl Set {
    pub(crate) fn writes(&self) -> u64 {
        self.devices.iter().map(|device| device.counters().now().writes).sum()
    }

    /// Checks that every mirror holds these bytes.
    pub(crate) fn check(&self, logical: u64, bytes: &[u8]) {
        let chunks = self.volume.chunks();
        let copies = chunks.find(Logical(logical)).unwrap().attributes().copies;
        for copy in 0..copies {
            let mut found = vec![0; bytes.len()];
            self.volume.read_raw(Logical(logical), copy, &mut found).unwrap();
            assert!(found == bytes, "copy {copy} of {logical}");
        }
        let mut found = vec![0; bytes.len()];
        let mut reads = [DataRead::new(Logical(logical), &mut found, Checksums::None)];
        self.volume.read_data(&mut reads);
        assert!(reads[0].result.is_ok());
        assert!(found == bytes, "read at {logical}");
    }

    pub(crate) fn fail(&self, device: usize, range: std::ops::Range<u64>) -> RuleId {
        self.devices[device].add(Rule::at(range, Fault::WriteError))
    }
}

pub(crate) fn profiles() -> Vec<(BlockGroupFlags, u64)> {
    vec![
        (BlockGroupFlags(0), 1),
        (BlockGroupFlags::DUP, 1),
        (BlockGroupFlags::RAID0, 3),
        (BlockGroupFlags::RAID1, 2),
        (BlockGroupFlags::RAID1C3, 3),
        (BlockGroupFlags::RAID10, 4),
    ]
}
