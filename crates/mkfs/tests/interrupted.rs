//! Tests that a device that fails while a volume is made has the whole old volume, or none.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_device::{
    CrashOptions, Crashes, Device, Fault, FaultyDevice, MemoryDevice, RecordingDevice, Rule, When,
};
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_mkfs::{Identity, MkfsError, MkfsOptions, Profile, Uuid, make};
use std::sync::Arc;

const BYTES: u64 = 120 << 20;

fn options(id: u8) -> MkfsOptions {
    let identity = Some(Identity::derived(Uuid([id; 16])));
    MkfsOptions { identity, overwrite: true, ..MkfsOptions::default() }
}

fn image(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn super_block(device: &dyn Device, copy: usize) -> Option<SuperBlock> {
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    device.read_at(COPY_OFFSETS[copy], &mut bytes).unwrap();
    SuperBlock::check(&bytes, copy).ok()
}

/// Makes a second volume over a first, on a device with this fault.
fn remade(fault: Fault, when: When) -> (Arc<MemoryDevice>, Result<(), MkfsError>) {
    let medium = Arc::new(MemoryDevice::new("m", BYTES));
    make(&*medium, &options(1)).unwrap();
    let device = FaultyDevice::new(Arc::clone(&medium) as Arc<dyn Device>, 7);
    device.add(Rule { when, ..Rule::everywhere(fault) });
    let made = make(&device, &options(2)).map(drop);
    (medium, made)
}

#[test]
fn no_write_that_fails_leaves_a_partial_volume() {
    let whole = Arc::new(MemoryDevice::new("m", BYTES));
    make(&*whole, &options(1)).unwrap();
    let before = image(&*whole);
    let mut writes = 0;
    loop {
        let (medium, made) = remade(Fault::WriteError, When::From(writes));
        if made.is_ok() {
            break;
        }
        assert!(matches!(made, Err(MkfsError::Device(_))));
        if writes == 0 {
            assert!(image(&*medium) == before);
        } else {
            assert!(super_block(&*medium, 0).is_none(), "after {writes} writes");
            let is_old = super_block(&*medium, 1).is_some_and(|copy| copy.fsid() == [1; 16]);
            assert_eq!(is_old, writes == 1, "after {writes} writes");
        }
        writes += 1;
    }
    assert!(writes >= 6, "{writes} writes");
}

#[test]
fn a_failed_flush_is_an_error() {
    for flush in 0..3 {
        let (medium, made) = remade(Fault::FlushError, When::Nth(flush));
        assert!(matches!(made, Err(MkfsError::Device(_))), "flush {flush}");
        assert_eq!(super_block(&*medium, 0).is_some(), flush == 2);
    }
    let (_, made) = remade(Fault::FlushError, When::Nth(3));
    made.unwrap();
}

#[test]
fn after_a_power_cut_a_superblock_has_its_whole_volume() {
    // The groups of a single volume begin where the front is wiped.
    let single = |id| MkfsOptions { metadata: Some(Profile::Single), ..options(id) };
    let (bytes, front) = (60 << 20, 16 << 20);
    let look = |device: &dyn Device| {
        let mut bytes = vec![0; front];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let medium = Arc::new(MemoryDevice::new("m", bytes));
    make(&*medium, &single(1)).unwrap();
    let old = look(&*medium);
    let device = RecordingDevice::new(medium);
    make(&device, &MkfsOptions { discard: true, node_bytes: Some(4096), ..single(2) }).unwrap();
    let new = look(&device);
    let recording = device.recording();
    let pivotal = |offset, bytes| COPY_OFFSETS.contains(&offset) && bytes == 4096;
    let mut seen = [0; 3];
    for crash in
        Crashes::new(recording.clone(), CrashOptions { seed: 3, seeded_per_gap: 40, pivotal })
    {
        let crash = crash.unwrap();
        let image = crash.image(&recording).unwrap();
        let which = super_block(&image, 0).map_or(0, |super_block| super_block.fsid()[0]);
        let whole = [None, Some(&old), Some(&new)][usize::from(which)];
        assert!(
            whole.is_none_or(|whole| *whole == look(&image)),
            "{crash:?} leaves half of {which}"
        );
        seen[usize::from(which)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "none, old, new: {seen:?}");
}
