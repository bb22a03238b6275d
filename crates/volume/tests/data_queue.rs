//! The data queue over devices in memory and in files: every mirror is written, each request
//! completes once, and a failure affects one request.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{
    Backend, Device, Fault, FaultyDevice, FileDevice, MemoryDevice, OpenDevice, Record,
    RecordingDevice, Rule,
};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use butternut_sys::forbid::forbid_rings_on_this_thread;
use butternut_volume::{
    Checksums, DataDone, DataQueue, DataQueueOptions, DataRead, OpenOptions, SubmitError, Volume,
    VolumeError,
};
use set::{BYTES, DEVICE_BYTES, START, open, pattern, profiles, set, volume_of};
use std::collections::HashMap;
use std::sync::Arc;

fn queue(volume: &Volume, depth: usize) -> DataQueue {
    volume.data_queue(&DataQueueOptions { depth, ..DataQueueOptions::default() })
}

fn drain(queue: &mut DataQueue, volume: &Volume) -> Vec<DataDone> {
    let mut done = Vec::new();
    queue.poll(volume, usize::MAX, None, &mut done).unwrap();
    assert_eq!(queue.outstanding(), 0);
    done
}

fn bytes_of(buffers: &Buffers) -> Vec<u8> {
    buffers.as_slice().iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

fn one(bytes: &[u8]) -> Buffers {
    Buffers::from(Buffer::copy_of(bytes))
}

/// Splits bytes into buffers of one to three sectors.
fn cut(bytes: &[u8]) -> Vec<Buffer> {
    let mut row = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = rest.len().min(4096 * (1 + row.len() % 3));
        row.push(Buffer::copy_of(&rest[..len]));
        rest = &rest[len..];
    }
    row
}

/// A volume of this profile over files, which a ring can access.
fn on_files(profile: BlockGroupFlags, count: u64) -> (Vec<tempfile::NamedTempFile>, Volume) {
    let images: Vec<_> = (0..count)
        .map(|_| {
            let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
            image.as_file().set_len(DEVICE_BYTES).unwrap();
            image
        })
        .collect();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = |image: &tempfile::NamedTempFile| -> Arc<dyn Device> {
        Arc::new(FileDevice::open(image.path(), &how).unwrap())
    };
    let volume = volume_of(profile, images.iter().map(device).collect());
    (images, volume)
}

/// Random writes through a short queue, from one or several buffers; then reads everything back,
/// through the queue and mirror by mirror.
fn write_and_read(volume: &Volume, seed: u64) {
    let mut queue = queue(volume, 8);
    let chunks = volume.chunks();
    let copies = chunks.find(Logical(START)).unwrap().attributes().copies;
    let mut model = vec![0; 4 << 20];
    let mut state = seed;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % end
    };
    let (mut done, mut taken) = (Vec::new(), 0);
    for round in 0..8 {
        // The writes of one round do not overlap: each has 128 KiB of its own.
        for place in 0..32 {
            let at = place * (128 << 10) + below(16) * 4096;
            let wanted = 4096 * (1 + below(16));
            let bytes = volume.contiguous(Logical(START + at), wanted);
            assert!(bytes > 0 && bytes <= wanted);
            let bytes = pattern(seed + round * 100 + place, usize::try_from(bytes).unwrap());
            let from = usize::try_from(at).unwrap();
            model[from..from + bytes.len()].copy_from_slice(&bytes);
            let several = below(2) == 0;
            let mut buffers = if several { Buffers::from(cut(&bytes)) } else { one(&bytes) };
            while let Err((back, why)) = queue.write(volume, Logical(START + at), buffers, at) {
                assert!(matches!(why, SubmitError::Full), "{why:?}");
                assert!(queue.available() < copies);
                buffers = back;
                taken += queue.poll(volume, 1, None, &mut done).unwrap();
            }
        }
        taken += queue.poll(volume, usize::MAX, None, &mut done).unwrap();
        assert_eq!((queue.outstanding(), queue.available()), (0, 8));
    }
    assert_eq!((taken, done.len()), (8 * 32, 8 * 32));
    assert!(done.iter().all(|done| done.result.is_ok() && done.logical.0 == START + done.tag));
    let mut found_at = HashMap::new();
    for at in (0..4 << 20).step_by(65536) {
        let mut buffer = Buffer::zeroed(65536);
        while let Err((back, why)) = queue.read(volume, Logical(START + at), buffer, at) {
            assert!(matches!(why, SubmitError::Full), "{why:?}");
            buffer = back;
            queue.poll(volume, 1, None, &mut done).unwrap();
        }
        queue.submit();
    }
    queue.poll(volume, usize::MAX, None, &mut done).unwrap();
    for done in done.drain(8 * 32..) {
        assert!(done.result.is_ok());
        found_at.insert(done.tag, bytes_of(&done.buffers));
    }
    for (at, want) in (0..).step_by(65536).zip(model.chunks(65536)) {
        assert!(found_at[&at] == want, "read at {at}");
    }
    for copy in 0..copies {
        let mut found = vec![0; 4 << 20];
        volume.read_raw(Logical(START), copy, &mut found).unwrap();
        assert!(found == model, "copy {copy}");
    }
}

#[test]
fn writes_of_every_profile_are_on_every_mirror_and_read_back() {
    for (nth, (profile, devices)) in (0..).zip(profiles()) {
        write_and_read(&set(profile, devices).volume, nth);
        let (_images, volume) = on_files(profile, devices);
        write_and_read(&volume, nth + 10);
    }
}

#[test]
fn without_rings_threads_do_the_same() {
    let (_images, volume) = on_files(BlockGroupFlags::RAID1, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_rings_on_this_thread().unwrap();
            assert!(matches!(queue(&volume, 8).backend(), Backend::Threads { .. }));
            write_and_read(&volume, 77);
        });
    });
}

#[test]
fn a_request_that_is_not_contiguous_is_refused() {
    let striped = set(BlockGroupFlags::RAID0, 3);
    let volume = &striped.volume;
    assert_eq!(volume.contiguous(Logical(START), 1 << 20), 65536);
    assert_eq!(volume.contiguous(Logical(START + 61440), 1 << 20), 4096);
    assert_eq!(volume.contiguous(Logical(START - 4096), 4096), 0);
    let single = set(BlockGroupFlags(0), 1);
    assert_eq!(single.volume.contiguous(Logical(START), 1 << 40), BYTES);
    assert_eq!(single.volume.contiguous(Logical(START + BYTES - 8192), 1 << 40), 8192);

    let before = striped.writes();
    let mut queue = queue(volume, 8);
    let mut try_both = |logical: u64, bytes: usize| {
        let (buffer, read) =
            queue.read(volume, Logical(logical), Buffer::zeroed(bytes), 1).unwrap_err();
        let row = vec![buffer];
        let (buffers, written) = queue.write(volume, Logical(logical), row, 1).unwrap_err();
        assert_eq!((buffers.bytes(), buffers.as_slice().len()), (bytes, 1));
        (read, written)
    };
    let split = try_both(START + 61440, 8192);
    assert!(matches!(split, (SubmitError::Split, SubmitError::Split)), "{split:?}");
    let unmapped = try_both(START + (256 << 20), 4096);
    assert!(matches!(unmapped, (SubmitError::Split, SubmitError::Split)), "{unmapped:?}");
    for (at, bytes) in [(START + 512, 4096), (START, 4095)] {
        let odd = try_both(at, bytes);
        let is_invalid = |why: &SubmitError| {
            matches!(why, SubmitError::Refused(error)
                if matches!(**error, VolumeError::InvalidRange { .. }))
        };
        assert!(is_invalid(&odd.0) && is_invalid(&odd.1), "{odd:?}");
    }
    assert_eq!((queue.outstanding(), striped.writes()), (0, before));
}

#[test]
fn a_write_without_slots_for_all_mirrors_is_refused() {
    let set = set(BlockGroupFlags::RAID1, 2);
    let mut queue = queue(&set.volume, 4);
    let at = |nth: u64| Logical(START + nth * 4096);
    queue.write(&set.volume, at(0), one(&[1; 4096]), 0).unwrap();
    queue.read(&set.volume, at(9), Buffer::zeroed(4096), 1).unwrap();
    assert_eq!((queue.available(), queue.outstanding()), (1, 2));
    let (buffers, why) = queue.write(&set.volume, at(1), one(&[2; 4096]), 2).unwrap_err();
    assert!(matches!(why, SubmitError::Full));
    queue.read(&set.volume, at(9), Buffer::zeroed(4096), 3).unwrap();
    let (_, why) = queue.read(&set.volume, at(9), Buffer::zeroed(4096), 3).unwrap_err();
    assert!(matches!(why, SubmitError::Full));
    assert_eq!(drain(&mut queue, &set.volume).len(), 3);
    queue.write(&set.volume, at(1), buffers, 2).unwrap();
    assert_eq!(drain(&mut queue, &set.volume).len(), 1);
    set.check(at(1).0, &[2; 4096]);
}

#[test]
fn a_write_that_fails_on_one_mirror_fails_alone_and_is_counted() {
    let set = set(BlockGroupFlags::DUP, 1);
    // The second mirror fails one sector in the middle.
    set.fail(0, (24 << 20) + 2 * 4096..(24 << 20) + 3 * 4096);
    let mut queue = queue(&set.volume, 16);
    let bytes = pattern(5, 5 * 4096);
    for (nth, sector) in (0..).zip(bytes.chunks(4096)) {
        queue.write(&set.volume, Logical(START + nth * 4096), one(sector), nth).unwrap();
    }
    let done = drain(&mut queue, &set.volume);
    assert_eq!(done.len(), 5);
    for done in &done {
        let nth = usize::try_from(done.tag).unwrap();
        assert_eq!(done.result.is_err(), nth == 2);
        assert_eq!(bytes_of(&done.buffers), bytes[nth * 4096..(nth + 1) * 4096]);
        if nth != 2 {
            set.check(done.logical.0, &bytes[nth * 4096..(nth + 1) * 4096]);
        }
    }
    let errors: Vec<u64> =
        set.volume.devices().iter().map(|status| status.errors.write_errors).collect();
    assert_eq!(errors, [1]);
}

#[test]
fn failed_and_corrupt_reads_are_rescued_by_read_data() {
    let set = set(BlockGroupFlags::DUP, 1);
    let bytes = pattern(6, 16 * 4096);
    let mut queue = queue(&set.volume, 16);
    queue.write(&set.volume, Logical(START), one(&bytes), 0).unwrap();
    assert!(drain(&mut queue, &set.volume)[0].result.is_ok());
    // One sector of the first mirror is corrupt, another has a read error.
    set.devices[0].add(Rule::at(4 << 20..(4 << 20) + 4096, Fault::Rot { bits: 3 }));
    set.devices[0].add(Rule::at((4 << 20) + 4096..(4 << 20) + 8192, Fault::ReadError));
    let (mut failed, mut corrupt) = (0, 0);
    for (nth, want) in (0..).zip(bytes.chunks(4096)) {
        let logical = Logical(START + nth * 4096);
        let checksums = ChecksumKind::Crc32c.compute(want);
        let checksums = Checksums::Stored(&checksums[..4]);
        queue.read(&set.volume, logical, Buffer::zeroed(4096), nth).unwrap();
        let done = drain(&mut queue, &set.volume).remove(0);
        let mut buffer = done.buffers.into_one().unwrap();
        if done.result.is_err() || !set.volume.verify(&buffer, checksums) {
            failed += u32::from(done.result.is_err());
            corrupt += u32::from(done.result.is_ok());
            let mut reads = [DataRead::new(logical, &mut buffer, checksums)];
            set.volume.read_data(&mut reads);
            assert!(reads[0].result.is_ok());
        }
        assert!(buffer[..] == *want);
    }
    assert_eq!((failed, corrupt), (1, 1));
    let errors = set.volume.devices()[0].errors;
    assert_eq!(errors.read_errors, 2, "one by the queue, one by read_data");
}

#[test]
fn verify_needs_a_checksum_for_every_sector() {
    let set = set(BlockGroupFlags(0), 1);
    let bytes = pattern(7, 3 * 4096);
    let mut checksums: Vec<u8> = bytes
        .chunks(4096)
        .flat_map(|sector| ChecksumKind::Crc32c.compute(sector)[..4].to_vec())
        .collect();
    let holds =
        |bytes: &[u8], checksums: &[u8]| set.volume.verify(bytes, Checksums::Stored(checksums));
    assert!(holds(&bytes, &checksums) && holds(&[], &[]));
    assert!(set.volume.verify(&bytes, Checksums::None));
    assert!(!holds(&bytes, &checksums[..8]) && !holds(&bytes[..8192], &checksums));
    assert!(!holds(&bytes[..8191], &checksums[..8]));
    checksums[11] ^= 1;
    assert!(!holds(&bytes, &checksums) && holds(&bytes[..8192], &checksums[..8]));
}

#[test]
fn checksums_are_those_of_the_copy() {
    let set = set(BlockGroupFlags(0), 1);
    let bytes = pattern(8, 5 * 4096);
    let buffer = Buffer::copy_of(&bytes);
    let (mut copy, mut checksums) = (vec![0; 3 * 4096], Vec::new());
    set.volume.copy_and_checksum(&buffer, 4096, &mut copy, &mut checksums);
    assert!(copy == bytes[4096..4 * 4096]);
    assert!(set.volume.verify(&copy, Checksums::Stored(&checksums)));
    let mut all = Vec::new();
    set.volume.checksum(&bytes, &mut all);
    assert_eq!((all.len(), &all[4..16]), (20, &checksums[..]));
}

#[test]
fn with_a_missing_device_reads_succeed_and_writes_fail() {
    let whole = set(BlockGroupFlags::RAID1, 2);
    let bytes = pattern(8, 64 * 4096);
    let mut first = queue(&whole.volume, 8);
    first.write(&whole.volume, Logical(START), cut(&bytes), 0).unwrap();
    assert!(drain(&mut first, &whole.volume)[0].result.is_ok());
    let present = vec![Arc::clone(&whole.devices[1]) as Arc<dyn Device>];
    let options = OpenOptions { degraded: true, ..OpenOptions::default() };
    // The system chunk is on the missing device.
    let options = OpenOptions { allow_lost_chunks: true, ..options };
    let volume = open(BlockGroupFlags::RAID1, present, 2, options);
    let mut queue = queue(&volume, 8);
    for (nth, want) in (0..).zip(bytes.chunks(4096)) {
        queue.read(&volume, Logical(START + nth * 4096), Buffer::zeroed(4096), nth).unwrap();
        let done = drain(&mut queue, &volume).remove(0);
        assert!(done.result.is_ok() && bytes_of(&done.buffers) == *want);
    }
    let (_, why) = queue.write(&volume, Logical(START), one(&bytes), 1).unwrap_err();
    let SubmitError::Refused(error) = why else { panic!("{why:?}") };
    assert!(matches!(*error, VolumeError::MissingDevices { .. }));
    let parity = set(BlockGroupFlags::RAID5, 3);
    let mut queue = parity.volume.data_queue(&DataQueueOptions::default());
    let refused = queue.write(&parity.volume, Logical(START), one(&bytes[..4096]), 1);
    let (_, SubmitError::Refused(error)) = refused.unwrap_err() else { panic!("it was taken") };
    assert!(matches!(*error, VolumeError::ParityWrite { .. }));
    queue.read(&parity.volume, Logical(START), Buffer::zeroed(65536), 2).unwrap();
    assert!(drain(&mut queue, &parity.volume)[0].result.is_ok());
}

#[test]
fn several_buffers_are_one_write_for_each_mirror() {
    let recordings: Vec<Arc<RecordingDevice>> = (0..2)
        .map(|_| Arc::new(RecordingDevice::new(Arc::new(MemoryDevice::new("m", DEVICE_BYTES)))))
        .collect();
    let devices = recordings.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let volume = volume_of(BlockGroupFlags::RAID1, devices);
    let before: Vec<usize> = recordings.iter().map(|device| device.position()).collect();
    let mut queue = queue(&volume, 8);
    let bytes = pattern(9, 100 * 4096);
    queue.write(&volume, Logical(START), cut(&bytes), 0).unwrap();
    assert!(drain(&mut queue, &volume)[0].result.is_ok());
    for (device, before) in recordings.iter().zip(before) {
        let recording = device.recording();
        let want = Record::Write { offset: 4 << 20, bytes: bytes.as_slice().into() };
        assert!(recording.log()[before..] == [want]);
    }
}

#[test]
fn any_thread_can_poll_and_a_queue_in_use_can_be_dropped() {
    let (_images, volume) = on_files(BlockGroupFlags::DUP, 1);
    let arena = Arena::new(2 << 20).unwrap();
    let options = DataQueueOptions { depth: 64, arenas: vec![arena.clone()], event: None };
    let mut queue = volume.data_queue(&options);
    assert_eq!(queue.backend(), Backend::Ring);
    let fill = |queue: &mut DataQueue| {
        for nth in 0..32 {
            let mut buffer = arena.allocate(4096).unwrap();
            buffer.fill(7);
            queue.write(&volume, Logical(START + nth * 8192), buffer, nth).unwrap();
        }
        queue.submit();
    };
    let (handed, taken) = std::sync::mpsc::sync_channel(1);
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let fill_it = &fill;
    let mut queue = std::thread::scope(|scope| {
        scope.spawn(move || {
            fill_it(&mut queue);
            handed.send(queue).unwrap();
            assert!(is_over.recv().is_err(), "waits until the other thread has polled everything");
        });
        let mut queue = taken.recv().unwrap();
        let done = drain(&mut queue, &volume);
        assert!(done.len() == 32 && done.iter().all(|done| done.result.is_ok()));
        drop(over);
        queue
    });
    fill(&mut queue);
    drop(queue);
    assert_eq!(arena.free_bytes(), arena.bytes(), "all buffers were returned");
}

#[test]
fn a_queue_of_another_volume_is_refused() {
    let (one, other) = (set(BlockGroupFlags(0), 1), set(BlockGroupFlags(0), 1));
    let mut queue = queue(&one.volume, 8);
    let is_other = |why: &SubmitError| match why {
        SubmitError::Refused(error) => matches!(**error, VolumeError::OtherQueue),
        SubmitError::Full | SubmitError::Split => false,
    };
    let buffer = || Buffer::zeroed(4096);
    let (back, why) = queue.read(&other.volume, Logical(START), buffer(), 0).unwrap_err();
    assert!(is_other(&why) && back.len() == 4096, "{why:?}");
    let (back, why) = queue.write(&other.volume, Logical(START), buffer(), 0).unwrap_err();
    assert!(is_other(&why) && back.bytes() == 4096, "{why:?}");
    queue.write(&one.volume, Logical(START), buffer(), 7).unwrap();
    let mut done = Vec::new();
    let refused = queue.poll(&other.volume, 1, None, &mut done);
    assert!(matches!(refused, Err(VolumeError::OtherQueue)) && done.is_empty());
    assert_eq!(queue.poll(&one.volume, 1, None, &mut done).unwrap(), 1);
    assert_eq!(done[0].tag, 7);
}

#[test]
fn each_fault_in_a_batch_fails_one_request() {
    // Each write of a batch in turn fails on one mirror, whatever else is in flight.
    for nth in 0..24 {
        let memory = Arc::new(MemoryDevice::new("m", DEVICE_BYTES));
        let faulty = Arc::new(FaultyDevice::new(memory, 1));
        let volume = volume_of(BlockGroupFlags::DUP, vec![Arc::clone(&faulty) as _]);
        let when = butternut_device::When::Nth(nth);
        faulty.add(Rule { range: 0..u64::MAX, when, fault: Fault::WriteError });
        let mut queue = queue(&volume, 64);
        for tag in 0..12 {
            let row = vec![Buffer::zeroed(4096), Buffer::zeroed(4096)];
            queue.write(&volume, Logical(START + tag * 65536), row, tag).unwrap();
        }
        let failed: Vec<u64> = drain(&mut queue, &volume)
            .into_iter()
            .filter_map(|done| done.result.err().map(|_| done.tag))
            .collect();
        assert_eq!(failed, [nth / 2]);
        assert_eq!(volume.devices()[0].errors.write_errors, 1);
    }
}
