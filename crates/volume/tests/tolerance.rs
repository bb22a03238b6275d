//! Devices that fail writes and flushes under profiles with several mirrors: which failures are
//! tolerated, and which mirrors are read afterwards.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{
    Counters, Device, DeviceError, Fault, FaultyDevice, FileDevice, MemoryDevice, OpenDevice,
    RingTarget, Rule, When, WriteCache,
};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock, SuperBlock};
use butternut_format::units::{DevId, Logical, Physical};
use butternut_sys::buffer::Buffer;
use butternut_volume::{
    Checksums, DataQueueOptions, DataRead, DataWrite, DeviceEventKind, ErrorCounts, NotDurable,
    OpenOptions, ProfileAttributes, SubmitError, VolumeError,
};
use set::{DEVICE_BYTES, START, Set, pattern, profiles, set, super_block};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const RAID1: BlockGroupFlags = BlockGroupFlags::RAID1;

fn write_data(set: &Set, at: u64, bytes: &[u8]) -> Result<(), VolumeError> {
    let mut writes = [DataWrite::new(Logical(at), bytes)];
    set.volume.write_data(&mut writes);
    let [write] = writes;
    write.result
}

fn write_queued(set: &Set, at: u64, bytes: &[u8]) -> Result<(), VolumeError> {
    let mut queue = set.volume.data_queue(&DataQueueOptions::default());
    queue.write(&set.volume, Logical(at), Buffer::copy_of(bytes), 0).unwrap();
    let mut done = Vec::new();
    queue.poll(&set.volume, 1, None, &mut done).unwrap();
    done.remove(0).result
}

fn write_block(set: &Set, at: u64, bytes: &[u8]) -> Result<(), VolumeError> {
    set.volume.write_blocks(&[(Logical(at), bytes)])
}

fn read(set: &Set, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let mut memory = vec![0; bytes];
    let mut reads = [DataRead::new(Logical(at), &mut memory, Checksums::None)];
    set.volume.read_data(&mut reads);
    let [read] = reads;
    read.result.map_err(|error| error.to_string())?;
    Ok(memory)
}

fn generation(set: &Set, device: usize, copy: usize) -> u64 {
    let mut bytes = vec![0; 4096];
    set.devices[device].read_at(COPY_OFFSETS[copy], &mut bytes).unwrap();
    SuperBlock::check(&bytes, copy).map_or(0, |good| good.generation().0)
}

/// For every profile and every number of dead devices, a successful write can be read back.
#[test]
fn writes_tolerate_as_many_dead_devices_as_the_profile() {
    type Write = fn(&Set, u64, &[u8]) -> Result<(), VolumeError>;
    let paths: [Write; 3] = [write_data, write_queued, write_block];
    let mut more = profiles();
    more.push((BlockGroupFlags::RAID1C4, 4));
    for (profile, devices) in more {
        let attributes = ProfileAttributes::of(profile.profile().unwrap());
        for dead in 1..=usize::try_from(devices).unwrap() {
            for path in paths {
                let set = set(profile, devices);
                let bytes = pattern(9, 64 << 10);
                path(&set, START, &pattern(8, 64 << 10)).unwrap();
                for device in &set.devices[..dead] {
                    device.add(Rule::everywhere(Fault::WriteError));
                }
                let result = path(&set, START, &bytes);
                let what = format!("{} of {devices} devices, {dead} dead", attributes.name);
                if dead <= attributes.failures_tolerated {
                    result.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(read(&set, START, bytes.len()).unwrap(), bytes, "{what}");
                } else if dead == usize::try_from(devices).unwrap() {
                    assert!(result.is_err(), "{what}");
                }
                let counts = set.volume.devices();
                let failed = counts.iter().filter(|status| status.errors.write_errors > 0).count();
                assert!(
                    failed <= dead && (failed > 0 || attributes.is_striped),
                    "{what}: {failed}"
                );
                assert_eq!(set.volume.unrecorded_stats().len(), failed, "{what}");
            }
        }
    }
}

#[test]
fn one_mirror_of_dup_is_enough_for_tree_blocks_only() {
    let set = set(BlockGroupFlags::DUP, 1);
    set.fail(0, 4 << 20..(4 << 20) + (1 << 20));
    let bytes = pattern(1, 16384);
    write_block(&set, START, &bytes).unwrap();
    assert!(write_data(&set, START, &bytes).is_err());
    assert!(write_queued(&set, START, &bytes).is_err());
    set.volume.flush().unwrap();
    set.volume.write_super(&super_block(1, 1)).unwrap();
}

/// Bytes that one device missed and another lost from its cache are on no device.
#[test]
fn a_flush_fails_if_another_device_has_failed_writes() {
    for order in [[0, 1], [1, 0]] {
        let set = set(RAID1, 2);
        let missed = set.devices[order[0]].add(Rule::everywhere(Fault::WriteError));
        write_data(&set, START, &pattern(1, 8192)).unwrap();
        set.devices[order[0]].remove(missed);
        let lost = set.devices[order[1]].add(Rule::everywhere(Fault::FlushError));
        assert!(set.volume.flush().is_err());
        set.devices[order[1]].remove(lost);
        assert!(set.volume.flush().is_err(), "what is lost stays lost");
    }
    // The system chunk is on the first device, so only the second may fail.
    let set = set(RAID1, 2);
    set.devices[1].add(Rule::everywhere(Fault::FlushError));
    set.volume.flush().unwrap();
    set.devices[1].clear();
    set.volume.flush().unwrap();
    set.devices[0].add(Rule::everywhere(Fault::FlushError));
    assert!(set.volume.flush().is_err(), "the second device has lost writes before");
}

#[test]
fn a_flush_must_succeed_on_devices_with_the_only_mirror() {
    for (profile, devices) in profiles() {
        let set = set(profile, devices);
        set.devices[usize::try_from(devices).unwrap() - 1].add(Rule::everywhere(Fault::FlushError));
        let tolerated = ProfileAttributes::of(profile.profile().unwrap()).failures_tolerated;
        assert_eq!(set.volume.flush().is_ok(), tolerated > 0, "{profile:?}");
    }
}

#[test]
fn what_follows_a_failed_flush_is_refused_as_such() {
    let set = set(BlockGroupFlags(0), 1);
    let rule = set.devices[0].add(Rule::everywhere(Fault::FlushError));
    let raw = super_block(1, 1);
    assert!(set.volume.flush().is_err());
    set.devices[0].remove(rule);
    // The device does not report again that it has lost what was written before.
    for refused in [
        set.volume.flush().unwrap_err(),
        set.volume.write_super(&raw).unwrap_err(),
        set.volume.write_super_after_log(&raw).unwrap_err(),
    ] {
        assert!(
            matches!(&refused, VolumeError::NotFlushed { devids } if devids == &[DevId(1)]),
            "{refused}"
        );
    }
}

#[test]
fn superblocks_go_to_the_devices_that_have_not_failed() {
    // The system chunk is on the first device, so the second may fail.
    let set = set(RAID1, 2);
    let rule = set.fail(1, COPY_OFFSETS[0]..COPY_OFFSETS[0] + 4096);
    let mut raw = super_block(1, 2);
    raw.generation.set(8);
    set.volume.write_super(&raw).unwrap();
    assert_eq!((generation(&set, 0, 0), generation(&set, 0, 1)), (8, 8));
    assert_eq!((generation(&set, 1, 0), generation(&set, 1, 1)), (7, 0));
    set.devices[1].remove(rule);

    let rule = set.devices[1].add(Rule::everywhere(Fault::FlushError));
    raw.generation.set(9);
    set.volume.flush().unwrap();
    set.volume.write_super(&raw).unwrap();
    assert_eq!(
        (generation(&set, 0, 0), generation(&set, 1, 0)),
        (9, 7),
        "a device that failed a flush gets no superblock"
    );
    set.devices[1].remove(rule);
    raw.generation.set(10);
    assert_eq!(set.volume.stats_for_commit().len(), 1);
    set.volume.flush().unwrap();
    set.volume.write_super(&raw).unwrap();
    assert_eq!((generation(&set, 0, 0), generation(&set, 1, 0)), (10, 10));

    set.fail(0, COPY_OFFSETS[1]..COPY_OFFSETS[1] + 4096);
    raw.generation.set(11);
    set.volume.write_super(&raw).unwrap();
    assert_eq!((generation(&set, 0, 0), generation(&set, 0, 1)), (11, 10));
    set.fail(0, COPY_OFFSETS[0]..COPY_OFFSETS[0] + 4096);
    raw.generation.set(12);
    assert!(set.volume.write_super(&raw).is_err(), "the system chunk has one copy");
}

/// Without checksums only the count of failed writes tells that a mirror may be stale.
#[test]
fn a_stale_mirror_is_not_read_without_a_checksum() {
    let set = set(RAID1, 2);
    let sectors: u64 = 64;
    let size = usize::try_from(sectors * 4096).unwrap();
    let (old, new) = (pattern(1, size), pattern(2, size));
    write_data(&set, START, &old).unwrap();
    let dead = set.devices[0].add(Rule::everywhere(Fault::WriteError));
    for nth in 0..sectors {
        let at = usize::try_from(nth * 4096).unwrap();
        write_data(&set, START + nth * 4096, &new[at..at + 4096]).unwrap();
    }
    set.devices[0].remove(dead);
    for nth in 0..sectors {
        let at = usize::try_from(nth * 4096).unwrap();
        assert_eq!(read(&set, START + nth * 4096, 4096).unwrap(), new[at..at + 4096]);
    }
    let mut queue = set.volume.data_queue(&DataQueueOptions::default());
    for nth in 0..sectors {
        let at = Logical(START + nth * 4096);
        queue.read(&set.volume, at, Buffer::zeroed(4096), nth).unwrap();
        let mut done = Vec::new();
        queue.poll(&set.volume, 1, None, &mut done).unwrap();
        let at = usize::try_from(nth * 4096).unwrap();
        let bytes = done.remove(0).buffers.into_one().unwrap();
        assert_eq!(bytes[..], new[at..at + 4096]);
    }
    set.devices[1].add(Rule::everywhere(Fault::ReadError));
    let error = read(&set, START, 4096).unwrap_err();
    assert!(error.contains("has missed writes"), "{error}");
}

/// Each device has failed different writes. The session knows which, and reads each range from the
/// current device, in one request or many, until it is written again.
#[test]
fn each_range_is_read_from_the_device_that_is_current_there() {
    let sectors: u64 = 64;
    let size = usize::try_from(sectors * 4096).unwrap();
    for path in [write_data, write_queued] {
        let set = set(RAID1, 2);
        let (old, new) = (pattern(1, size), pattern(2, size));
        let part = |bytes: &[u8], nth: u64| {
            let at = usize::try_from(nth * 4096).unwrap();
            bytes[at..at + 4096].to_vec()
        };
        path(&set, START, &old).unwrap();
        let mut want = old.clone();
        for nth in (0..sectors).filter(|nth| nth % 3 > 0) {
            let device = &set.devices[usize::try_from(nth % 3 - 1).unwrap()];
            let rule = device.add(Rule::everywhere(Fault::WriteError));
            path(&set, START + nth * 4096, &part(&new, nth)).unwrap();
            device.remove(rule);
            let at = usize::try_from(nth * 4096).unwrap();
            want[at..at + 4096].copy_from_slice(&new[at..at + 4096]);
        }
        assert!(read(&set, START, size).unwrap() == want, "in one request");
        for nth in 0..sectors {
            assert!(read(&set, START + nth * 4096, 4096).unwrap() == part(&want, nth), "{nth}");
        }
        // With one device gone, a range that only it has is an error; the old bytes are never
        // returned.
        let rule = set.devices[1].add(Rule::everywhere(Fault::ReadError));
        for nth in 0..sectors {
            let found = read(&set, START + nth * 4096, 4096);
            match nth % 3 {
                1 => assert!(found.unwrap_err().contains("has missed writes"), "{nth}"),
                _ => assert!(found.unwrap() == part(&want, nth), "{nth}"),
            }
        }
        path(&set, START, &new).unwrap();
        assert!(read(&set, START, size).unwrap() == new, "it was written again");
        set.devices[1].remove(rule);
        set.check(START, &new);
    }
}

/// The record of an earlier session names no ranges.
#[test]
fn ranges_known_to_be_stale_are_read_from_a_possibly_stale_device() {
    let set = set(RAID1, 2);
    let missed = ErrorCounts { write_errors: 1, ..ErrorCounts::default() };
    set.volume.add_recorded_stats(DevId(1), &missed);
    write_data(&set, START, &pattern(1, 1 << 20)).unwrap();
    let rule = set.devices[1].add(Rule::everywhere(Fault::WriteError));
    let bytes = pattern(2, 4096);
    write_data(&set, START + 8192, &bytes).unwrap();
    set.devices[1].remove(rule);
    let reads = |device: usize| set.devices[device].counters().now().reads;
    let before = reads(0);
    read(&set, START + (64 << 10), 128 << 10).unwrap();
    assert_eq!(reads(0), before, "the other device is current there");
    assert_eq!(read(&set, START + 8192, 4096).unwrap(), bytes);
    assert!(reads(0) > before);
}

/// The count is from an earlier session.
#[test]
fn a_device_with_failed_writes_on_record_may_be_stale() {
    let set = set(RAID1, 2);
    let missed = ErrorCounts { write_errors: 3, corruption_errors: 1, ..ErrorCounts::default() };
    set.volume.add_recorded_stats(DevId(1), &missed);
    assert!(set.volume.unrecorded_stats().is_empty());
    assert!(!set.volume.has_newly_failed_device());
    let bytes = pattern(3, 4 << 20);
    write_data(&set, START, &bytes).unwrap();
    let before = set.devices[0].counters().now().reads;
    assert_eq!(read(&set, START, 4 << 20).unwrap(), bytes);
    assert_eq!(set.devices[0].counters().now().reads, before);
    set.devices[1].add(Rule::everywhere(Fault::WriteError));
    write_data(&set, START, &bytes).unwrap();
    assert!(set.volume.has_newly_failed_device());
    let counts = set.volume.unrecorded_stats();
    assert_eq!(counts.len(), 1);
    set.volume.set_recorded_stats(counts[0].0, &counts[0].1);
    assert!(set.volume.unrecorded_stats().is_empty() && !set.volume.has_newly_failed_device());
    assert_eq!(set.volume.devices()[0].errors, missed);
}

#[test]
fn a_tolerated_failure_is_reported_once() {
    let set = set(RAID1, 2);
    let bytes = pattern(4, 4 << 20);
    set.devices[1].add(Rule::everywhere(Fault::WriteError));
    write_data(&set, START, &bytes).unwrap();
    set.devices[1].clear();
    let now = Instant::now();
    let events = set.volume.take_device_events(now);
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].devid, events[0].kind), (DevId(2), DeviceEventKind::Write));
    assert!(events[0].error.contains("cannot write"), "{}", events[0].error);
    write_data(&set, START, &bytes).unwrap();
    assert!(set.volume.take_device_events(now).is_empty());
}

/// Writes a superblock as another writer does, and checks the volume.
fn check_with(set: &Set, raw: &mut RawSuperBlock) -> Result<(), VolumeError> {
    raw.bytenr.set(COPY_OFFSETS[0]);
    raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
    set.devices[0].write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
    set.volume.check_own_supers()
}

#[test]
fn a_changed_superblock_of_the_same_generation_stops_the_first_commit() {
    let opened = set(RAID1, 2);
    check_with(&opened, &mut super_block(1, 2)).unwrap();
    // The kernel has synced a file: it has written a log tree, and committed nothing.
    let mut raw = super_block(1, 2);
    raw.log_root.set(2 << 20);
    let error = check_with(&opened, &mut raw).unwrap_err();
    assert!(matches!(&error, VolumeError::ForeignSuper { device, .. } if device == "memory1"));
    let opened = set(RAID1, 2);
    raw.generation.set(9);
    raw.incompat_flags.set(1 << 63);
    check_with(&opened, &mut raw).unwrap_err();
    let opened = set(RAID1, 2);
    raw.label[0] ^= 1;
    opened.devices[0].write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
    opened.volume.check_own_supers().unwrap();
}

#[test]
fn a_superblock_of_another_writer_stops_the_commit() {
    let set = set(RAID1, 2);
    set.volume.check_own_supers().unwrap();
    let mut raw = super_block(1, 2);
    raw.generation.set(8);
    set.volume.write_super(&raw).unwrap();
    set.volume.check_own_supers().unwrap();
    let mut foreign = vec![0; 4096];
    set.devices[1].read_at(COPY_OFFSETS[0], &mut foreign).unwrap();
    foreign[0x12b] ^= 1;
    foreign[0] ^= 1;
    set.devices[1].write_at(COPY_OFFSETS[0], &foreign).unwrap();
    let error = set.volume.check_own_supers().unwrap_err();
    assert!(matches!(&error, VolumeError::ForeignSuper { device, .. } if device == "memory2"));
    // From then on nothing is written: the other writer may use the space.
    let changes = || {
        let counts = set.devices.iter().map(|device| device.counters().now());
        counts.map(|counts| counts.writes + counts.discards).sum::<u64>()
    };
    let before = changes();
    let bytes = pattern(1, 16384);
    let queue = set.volume.data_queue(&DataQueueOptions::default());
    let queued = { queue }.write(&set.volume, Logical(START), Buffer::copy_of(&bytes), 0);
    let SubmitError::Refused(queued) = queued.unwrap_err().1 else { panic!("not refused") };
    let errors = [
        write_data(&set, START, &bytes).unwrap_err(),
        write_block(&set, START, &bytes).unwrap_err(),
        set.volume.write_super(&raw).unwrap_err(),
        set.volume.discard(Logical(START), 65536).unwrap_err(),
        set.volume.discard_device(DevId(1), Physical(40 << 20), 65536).unwrap_err(),
        *queued,
    ];
    for error in errors {
        assert!(matches!(error, VolumeError::ForeignSuper { .. }), "{error}");
    }
    assert_eq!(changes(), before);
    assert_eq!(read(&set, START, 4096).unwrap(), [0; 4096]);
}

/// A disk that cannot bypass its cache. It fails every write: its file was opened for reading.
#[derive(Debug)]
struct FailsWrites(FileDevice);

impl Device for FailsWrites {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_cache(&self) -> WriteCache {
        WriteCache { durable_write_flushes: true, ..WriteCache::UNKNOWN }
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        self.0.ring_target()
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}

/// The device may have failed the flush of the durable write, and reports that once.
#[test]
fn no_flush_succeeds_after_a_durable_write_that_failed() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(DEVICE_BYTES).unwrap();
    let open = |writable| {
        let how = OpenDevice { writable, ..OpenDevice::default() };
        FileDevice::open(image.path(), &how).unwrap()
    };
    drop(set::volume_of(BlockGroupFlags(0), vec![Arc::new(open(true))]));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(FailsWrites(open(false)))];
    let volume = set::open(BlockGroupFlags(0), devices, 1, OpenOptions::default());
    volume.flush().unwrap();
    let block = pattern(1, 16384);
    let failed = volume.write_blocks_durably(&[(Logical(START), &block)]).unwrap_err();
    let refused = volume.flush();
    assert!(matches!(refused, Err(VolumeError::NotFlushed { .. })), "{refused:?}");
    assert!(matches!(failed, NotDurable::Flush(_)), "{failed:?}");
}

/// A device that lost writes of a commit from its cache after the commit had taken the counts of
/// failures does not get the superblock of that commit, though a later flush of it succeeds.
#[test]
fn a_device_that_lost_writes_after_the_counts_were_taken_gets_no_superblock() {
    // The system chunk is on the first device, so the second may fail.
    let set = set(RAID1, 2);
    write_data(&set, START, &pattern(1, 8192)).unwrap();
    // The commit records the counts in its trees.
    assert!(set.volume.stats_for_commit().is_empty());
    // The flush of another thread, of a log or of an overwrite in place, fails once.
    let once = Rule { range: 0..u64::MAX, when: When::Times(1), fault: Fault::FlushError };
    set.devices[1].add(once);
    set.volume.flush().unwrap();
    // The flush of the commit succeeds; the loss is on no record.
    set.volume.flush().unwrap();
    assert!(set.volume.has_unrecorded_write_errors());
    let mut raw = super_block(1, 2);
    raw.generation.set(8);
    set.volume.write_super(&raw).unwrap();
    assert_eq!(
        (generation(&set, 0, 0), generation(&set, 1, 0)),
        (8, 7),
        "a device that lost writes looks complete and has no record"
    );
    // The commit after it has the record.
    assert_eq!(set.volume.stats_for_commit().len(), 1);
    raw.generation.set(9);
    set.volume.flush().unwrap();
    set.volume.write_super(&raw).unwrap();
    assert_eq!((generation(&set, 0, 0), generation(&set, 1, 0)), (9, 9));
}

/// A disk that reports a loss to one flush only, as Linux does for one open file, and whose
/// reporting flush returns late.
#[derive(Debug)]
struct ReportsLate {
    disk: FaultyDevice,
    flushes: AtomicUsize,
    has_reported: AtomicBool,
    other_is_over: AtomicBool,
}

impl Device for ReportsLate {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.disk.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.disk.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let result = self.disk.flush();
        if self.flushes.fetch_add(1, Ordering::AcqRel) == 0 {
            self.has_reported.store(true, Ordering::Release);
            let began = Instant::now();
            // Not forever: with the mend the other flush waits for this one.
            while !self.other_is_over.load(Ordering::Acquire)
                && began.elapsed() < Duration::from_millis(500)
            {
                thread::sleep(Duration::from_millis(1));
            }
        }
        result
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }

    fn counters(&self) -> &Counters {
        self.disk.counters()
    }
}

/// Law 10: the loss may be of writes that the other flush is to make durable.
#[test]
fn no_flush_succeeds_beside_one_that_has_failed() {
    let memory = MemoryDevice::new("memory", DEVICE_BYTES);
    let device = Arc::new(ReportsLate {
        disk: FaultyDevice::new(Arc::new(memory), 1),
        flushes: AtomicUsize::new(0),
        has_reported: AtomicBool::new(false),
        other_is_over: AtomicBool::new(false),
    });
    let given = Arc::clone(&device) as Arc<dyn Device>;
    let volume = set::volume_of(BlockGroupFlags(0), vec![given]);
    assert_eq!(device.flushes.load(Ordering::Acquire), 0, "the open of a volume does not flush");
    let once = Rule { range: 0..u64::MAX, when: When::Times(1), fault: Fault::FlushError };
    device.disk.add(once);
    volume.write_blocks(&[(Logical(START), &pattern(1, 16384))]).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| volume.flush());
        while !device.has_reported.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let second = volume.flush();
        device.other_is_over.store(true, Ordering::Release);
        assert!(first.join().unwrap().is_err());
        assert!(second.is_err(), "the device has lost the block, and this flush succeeded");
    });
}

/// A device that fails a flush may have lost its new superblock from its cache. The old one, which
/// is back, is no other writer's: raid1 tolerates the failure.
#[test]
fn an_old_superblock_that_a_failed_flush_brings_back_is_no_other_writers() {
    // The system chunk is on the first device, so the second may fail.
    let set = set(RAID1, 2);
    let mut raw = super_block(1, 2);
    for generation in [8, 10] {
        let mut old = vec![0; 4096];
        set.devices[1].read_at(COPY_OFFSETS[0], &mut old).unwrap();
        // Steps 5 to 8 of a commit. The last flush fails on one device.
        raw.generation.set(generation);
        set.volume.check_own_supers().unwrap();
        set.volume.flush().unwrap();
        set.volume.write_super(&raw).unwrap();
        let once = Rule { range: 0..u64::MAX, when: When::Times(1), fault: Fault::FlushError };
        let rule = set.devices[1].add(once);
        set.volume.flush().unwrap();
        set.devices[1].remove(rule);
        // What it had in its cache is gone.
        set.devices[1].write_at(COPY_OFFSETS[0], &old).unwrap();
        // The commit that records the failure (law 7 of `tree/transaction/commit`).
        assert!(set.volume.has_unrecorded_write_errors());
        set.volume.check_own_supers().expect("the superblock is this volume's own");
        for (devid, counts) in set.volume.stats_for_commit() {
            set.volume.set_recorded_stats(devid, &counts);
        }
        raw.generation.set(generation + 1);
        set.volume.flush().unwrap();
        set.volume.write_super(&raw).unwrap();
        set.volume.flush().unwrap();
        let want = generation + 1;
        assert_eq!((generation_of(&set, 0), generation_of(&set, 1)), (want, want));
    }
    // Another writer's is found all the same.
    let mut foreign = raw;
    foreign.generation.set(99);
    let error = check_with(&set, &mut foreign).unwrap_err();
    assert!(matches!(error, VolumeError::ForeignSuper { .. }));
}

fn generation_of(set: &Set, device: usize) -> u64 {
    generation(set, device, 0)
}

/// A device whose next flush, once it is armed, waits twice for another thread.
#[derive(Debug)]
struct HeldFlush {
    memory: MemoryDevice,
    is_armed: AtomicBool,
    turn: std::sync::Barrier,
}

impl Device for HeldFlush {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.memory.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.is_armed.swap(false, Ordering::AcqRel) {
            self.turn.wait();
            self.turn.wait();
        }
        self.memory.flush()
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> &Counters {
        self.memory.counters()
    }
}

/// A flush (of writes in place: it holds no lock that a commit takes) runs beside the check of a
/// commit or a trim. A superblock that is newer than everything that this process has written is
/// another writer's whatever the flush loses.
#[test]
fn a_superblock_of_another_writer_is_found_while_a_flush_runs() {
    let memory = MemoryDevice::new("memory1", DEVICE_BYTES);
    let (is_armed, turn) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    let device = Arc::new(HeldFlush { memory, is_armed, turn });
    let volume = set::volume_of(BlockGroupFlags(0), vec![Arc::clone(&device) as Arc<dyn Device>]);
    // As of a log on a device with FUA: durable without a flush that follows it.
    let mut raw = super_block(1, 1);
    raw.generation.set(8);
    volume.write_super(&raw).unwrap();
    device.is_armed.store(true, Ordering::Release);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| volume.flush());
        device.turn.wait();
        raw.generation.set(99);
        raw.bytenr.set(COPY_OFFSETS[0]);
        raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
        device.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
        let found = volume.check_own_supers();
        device.turn.wait();
        flushing.join().unwrap().unwrap();
        assert!(matches!(found, Err(VolumeError::ForeignSuper { .. })), "{found:?}");
    });
}
