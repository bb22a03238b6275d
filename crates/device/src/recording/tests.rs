//! Tests of the recording and its crashes.

use super::*;
use crate::memory::MemoryDevice;
use std::collections::BTreeSet;

const DEVICE_BYTES: u64 = 1 << 20;

fn recorder() -> RecordingDevice {
    let base = MemoryDevice::copy_of("m", &vec![9; 1 << 20]);
    RecordingDevice::new(Arc::new(base))
}

fn bytes_at(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
    let mut memory = vec![0; len];
    device.read_at(offset, &mut memory).unwrap();
    memory
}

fn options(seeded_per_gap: u32, pivotal: fn(u64, u64) -> bool) -> CrashOptions {
    CrashOptions { seed: 7, seeded_per_gap, pivotal }
}

#[test]
fn written_bytes_are_read_back_and_the_base_is_unchanged() {
    let base: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("m", &vec![9; 1 << 20]));
    let device = RecordingDevice::new(Arc::clone(&base));
    device.write_at(4000, &[1; 5000]).unwrap();
    assert_eq!(bytes_at(&device, 3999, 1), [9]);
    assert_eq!(bytes_at(&device, 4000, 5000), [1; 5000]);
    assert_eq!(bytes_at(&device, 9000, 1), [9]);
    assert_eq!(bytes_at(&*base, 4000, 5000), [9; 5000]);
    device.discard(0, DEVICE_BYTES).unwrap();
    assert_ne!(bytes_at(&device, 4000, 1), [1]);
    assert_ne!(bytes_at(&device, DEVICE_BYTES - 1, 1), [9]);
}

#[test]
fn flushed_writes_survive_every_later_crash() {
    let device = recorder();
    device.write_at(0, &[1; 8192]).unwrap();
    device.flush().unwrap();
    let flushed = device.position();
    device.write_at(8192, &[2; 8192]).unwrap();
    device.write_at(100, &[3; 10]).unwrap();
    device.flush().unwrap();
    device.write_at(0, &[4; 512]).unwrap();
    let recording = device.recording();
    let (mut before, mut after) = (0, 0);
    for crash in Crashes::new(recording.clone(), options(50, |_, _| false)) {
        let crash = crash.unwrap();
        let image = crash.image(&recording).unwrap();
        if crash.position >= flushed {
            assert_eq!(bytes_at(&image, 512, 7680), [1; 7680], "{crash:?}");
            after += 1;
        } else {
            assert_eq!(bytes_at(&image, 8192, 8192), [9; 8192], "{crash:?}");
            before += 1;
        }
    }
    assert_eq!((before, after), (52, 54), "the last gap is one sector: present or absent");
}

#[test]
fn unflushed_writes_are_lost_kept_torn_and_reordered() {
    let device = recorder();
    device.write_at(0, &[1; 8192]).unwrap();
    device.write_at(0, &[2; 8192]).unwrap();
    let recording = device.recording();
    let mut seen = BTreeSet::new();
    for crash in Crashes::new(recording.clone(), options(400, |_, _| false)) {
        let image = crash.unwrap().image(&recording).unwrap();
        let mut sectors: Vec<u8> = bytes_at(&image, 0, 8192).into_iter().step_by(512).collect();
        sectors.dedup();
        seen.insert(sectors);
    }
    for whole in [[9], [1], [2]] {
        assert!(seen.contains(&whole[..]), "{whole:?} is missing");
    }
    for torn in [[2, 9], [9, 2], [1, 9], [2, 1], [1, 2]] {
        assert!(seen.contains(&torn[..]), "{torn:?} is missing");
    }
}

#[test]
fn a_pivotal_write_is_lost_alone_and_torn() {
    let device = recorder();
    device.write_at(0, &[1; 4096]).unwrap();
    device.write_at(65536, &[2; 4096]).unwrap();
    let recording = device.recording();
    let crashes = Crashes::new(recording.clone(), options(0, |offset, _| offset == 65536));
    let states: Vec<(u8, usize)> = crashes
        .map(|crash| {
            let image = crash.unwrap().image(&recording).unwrap();
            let block = bytes_at(&image, 65536, 4096);
            (
                bytes_at(&image, 0, 1)[0],
                512 * block.iter().step_by(512).filter(|byte| **byte == 2).count(),
            )
        })
        .collect();
    assert_eq!(states[..4], [(1, 4096), (9, 0), (1, 0), (9, 4096)]);
    assert_eq!(states.len(), 5);
    assert_eq!(states[4].0, 1);
}

#[test]
fn the_sequence_of_crashes_is_deterministic() {
    let device = recorder();
    for number in 0..20u8 {
        device.write_at(u64::from(number) * 3000, &[number; 5000]).unwrap();
        if number % 7 == 0 {
            device.flush().unwrap();
        }
    }
    let recording = device.recording();
    let run = || -> Vec<Vec<u8>> {
        Crashes::new(recording.clone(), options(20, |_, bytes| bytes == 5000))
            .map(|crash| bytes_at(&crash.unwrap().image(&recording).unwrap(), 0, 70_000))
            .collect()
    };
    assert_eq!(run(), run());
}

#[test]
fn an_image_is_writable_and_lists_pages_that_differ_from_the_base() {
    let device = recorder();
    device.write_at(4096, &[1; 4096]).unwrap();
    device.flush().unwrap();
    let image = device.recording().image_at(2).unwrap();
    image.write_at(9000, &[5; 2]).unwrap();
    assert_eq!(bytes_at(&image, 8999, 4), [9, 5, 5, 9]);
    let mut pages = Vec::new();
    image
        .for_each_changed_page(|offset, bytes| {
            pages.push((offset, bytes.len(), bytes[0]));
            Ok::<(), ()>(())
        })
        .unwrap();
    assert_eq!(pages, [(4096, 4096, 1), (8192, 4096, 9)]);
}
