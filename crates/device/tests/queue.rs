//! Tests of queue pairs over files, loop devices and memory: rings and threads give the same
//! results.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

mod loops;

use butternut_device::{
    Backend, Completion, Counts, Device, DeviceError, Fault, FaultyDevice, FileDevice,
    MemoryDevice, OpenDevice, QueueOptions, QueuePair, ReadInto, Record, RecordingDevice, Request,
    RequestKind, RingUse, Rule, WriteFrom,
};
use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::event::Event;
use butternut_sys::forbid::{forbid_rings_on_this_thread, starve_rings_on_this_thread};
use butternut_sys::ring::RingUnavailable;
use loops::{Image, LoopDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RINGS: [RingUse; 2] = [RingUse::Try, RingUse::Never];

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn fill(&mut self, memory: &mut [u8]) {
        for byte in memory {
            *byte = self.below(256).to_le_bytes()[0];
        }
    }

    /// Copies bytes into several buffers, cut on block boundaries half of the time.
    fn cut(&mut self, mut memory: &[u8]) -> Vec<Buffer> {
        let align = [1, 4096][self.below(2)];
        let mut list = Vec::new();
        while !memory.is_empty() {
            let len = (self.below(20_000) / align * align).max(align).min(memory.len());
            let (now, later) = memory.split_at(len);
            list.push(Buffer::copy_of(now));
            memory = later;
        }
        list
    }

    /// Returns a range of at most 200 KB, aligned half of the time.
    fn range(&mut self, end: usize) -> (usize, usize) {
        let align = [1, 4096][self.below(2)];
        let start = self.below(end) / align * align;
        let len_max = [5000, 200_000][self.below(2)];
        let len = (self.below(len_max) / align * align).min(end - start);
        (start, len)
    }
}

fn writable(
    path: &std::path::Path,
    offset: u64,
    bytes: Option<u64>,
    direct: bool,
) -> Arc<dyn Device> {
    let how = OpenDevice { writable: true, offset, bytes, direct, ..OpenDevice::default() };
    Arc::new(FileDevice::open(path, &how).unwrap())
}

fn pair(devices: &[Arc<dyn Device>], depth: usize, ring: RingUse) -> QueuePair {
    QueuePair::with_options(devices, &QueueOptions { depth, ring, ..QueueOptions::default() })
}

/// Drains a queue pair and checks that all requests succeeded.
fn drain_ok(pair: &mut QueuePair) -> Vec<Completion> {
    let done = drain(pair);
    let failed = done.iter().find(|done| done.result.is_err());
    assert!(failed.is_none(), "{failed:?}");
    done
}

fn drain(pair: &mut QueuePair) -> Vec<Completion> {
    let mut out = Vec::new();
    pair.poll(usize::MAX, None, &mut out);
    assert_eq!(pair.outstanding(), 0);
    out
}

/// Writes to each device at the given offset: borrowed, as one slice or several, or owned.
fn write_each(pair: &mut QueuePair, sources: &[(u64, Vec<u8>)], random: &mut Random) {
    let mut batch: Vec<_> = (sources.iter().enumerate())
        .map(|(device, (start, source))| WriteFrom::new(device, *start, source))
        .collect();
    let mode = random.below(4);
    if mode == 3 {
        let cut: Vec<_> = sources.iter().map(|(_, source)| random.cut(source)).collect();
        let lists: Vec<Vec<&[u8]>> =
            cut.iter().map(|list| list.iter().map(|buffer| &**buffer).collect()).collect();
        let lists = sources.iter().zip(&lists).enumerate();
        batch =
            lists.map(|(to, ((start, _), list))| WriteFrom::vectored(to, *start, list)).collect();
        pair.run_writes(&mut batch);
        assert!(batch.iter().all(|write| write.result.is_ok()));
    } else if mode == 0 {
        let mut times = 0;
        pair.run_writes_meanwhile(&mut batch, Some(&mut || times += 1));
        assert_eq!(times, 1);
        assert!(batch.iter().all(|write| write.result.is_ok()));
    } else {
        for write in &batch {
            let (device, offset) = (write.device, write.offset);
            pair.submit(if mode == 1 {
                Request::write(device, offset, Buffer::copy_of(write.slices()[0]), 0)
            } else {
                Request::write(device, offset, random.cut(write.slices()[0]), 0)
            })
            .unwrap();
        }
        drain_ok(pair);
    }
}

/// Writes and reads at random, owned and borrowed, aligned and not, and compares each device with a
/// model in memory. Returns the requests that the devices counted.
fn workload(devices: &[Arc<dyn Device>], ring: RingUse, seed: u64) -> Vec<Counts> {
    let mut random = Random(seed);
    let mut pair = pair(devices, 16, ring);
    let len = |device: &Arc<dyn Device>| usize::try_from(device.bytes()).unwrap();
    let mut models: Vec<Vec<u8>> = devices.iter().map(|device| vec![0; len(device)]).collect();
    for (device, model) in devices.iter().zip(&models) {
        device.write_at(0, model).unwrap();
    }
    let before: Vec<Counts> = devices.iter().map(|device| device.counters().now()).collect();
    for _ in 0..60 {
        // One write at a time per device, because writes of one batch run in any order.
        let mut sources = Vec::new();
        for model in &mut models {
            let (start, len) = random.range(model.len());
            let mut source = vec![0; len];
            random.fill(&mut source);
            model[start..start + len].copy_from_slice(&source);
            sources.push((start as u64, source));
        }
        write_each(&mut pair, &sources, &mut random);
        let ranges: Vec<_> = (0..random.below(16))
            .map(|_| {
                let device = random.below(models.len());
                (device, random.range(models[device].len()))
            })
            .collect();
        let mut memory: Vec<_> = ranges.iter().map(|(_, (_, len))| vec![1; *len]).collect();
        let mut batch: Vec<_> = (ranges.iter().zip(&mut memory))
            .map(|((device, (start, _)), memory)| ReadInto::new(*device, *start as u64, memory))
            .collect();
        pair.run(&mut batch);
        for read in batch {
            read.result.clone().unwrap();
            let start = usize::try_from(read.offset).unwrap();
            assert!(*read.buf == models[read.device][start..start + read.buf.len()]);
        }
        for (tag, (device, (start, len))) in ranges.iter().enumerate() {
            let buffer = Buffer::zeroed(*len);
            pair.submit(Request::read(*device, *start as u64, buffer, tag as u64)).unwrap();
        }
        for done in drain(&mut pair) {
            done.result.unwrap();
            let (device, (start, len)) = ranges[usize::try_from(done.tag).unwrap()];
            assert!(done.load.into_one().unwrap()[..] == models[device][start..start + len]);
        }
    }
    let both = devices.iter().zip(before);
    both.map(|(device, before)| device.counters().now() - before).collect()
}

#[test]
fn rings_and_threads_agree_on_bytes_and_counters_for_every_kind_of_device() {
    let bytes = 3 << 20;
    let (disk, memory, odd) =
        (Image::new(bytes), Image::new_in("/dev/shm", bytes), Image::new(999_999));
    let backing = Image::new(bytes);
    let looped = LoopDevice::new(&backing, &[]);
    let wide_backing = Image::new(bytes);
    let wide = LoopDevice::new(&wide_backing, &["--sector-size", "4096"]);
    let windowed = Image::new(bytes);
    let shifted = Image::new(bytes);
    let devices: Vec<Arc<dyn Device>> = vec![
        writable(disk.path(), 0, None, true),
        writable(memory.path(), 0, None, true),
        writable(odd.path(), 0, None, true),
        writable(looped.path(), 0, None, true),
        writable(wide.path(), 0, None, true),
        writable(windowed.path(), 1 << 20, Some(1 << 20), true),
        writable(shifted.path(), 12_345, Some(1_000_001), true),
        Arc::new(MemoryDevice::new("memory", bytes)),
    ];
    for seed in 0..3 {
        let counts = RINGS.map(|ring| workload(&devices, ring, seed));
        assert_eq!(counts[0], counts[1], "seed {seed}");
    }
    drop(devices);
    let bytes = std::fs::read(windowed.path()).unwrap();
    assert!(bytes[..1 << 20].iter().chain(&bytes[2 << 20..]).all(|byte| *byte == 0));
    let bytes = std::fs::read(shifted.path()).unwrap();
    assert!(bytes[..12_345].iter().chain(&bytes[1_012_346..]).all(|byte| *byte == 0));
}

#[test]
fn a_queue_pair_reports_its_backend() {
    let image = Image::new(1 << 20);
    let file = [writable(image.path(), 0, None, true)];
    assert_eq!(pair(&file, 4, RingUse::Try).backend(), Backend::Ring);
    assert_eq!(pair(&file, 4, RingUse::Never).backend(), Backend::Threads { refused: None });
    let memory: [Arc<dyn Device>; 1] = [Arc::new(MemoryDevice::new("m", 4096))];
    assert_eq!(QueuePair::new(memory, 4).backend(), Backend::Inline);
}

#[test]
fn threads_replace_forbidden_rings_and_the_reason_is_reported() {
    let image = Image::new(4 << 20);
    let devices = [writable(image.path(), 0, None, true)];
    let mut early = pair(&devices, 16, RingUse::Try);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_rings_on_this_thread().unwrap();
            let forbidden = Some(RingUnavailable::Forbidden);
            let backend = pair(&devices, 16, RingUse::Try).backend();
            assert_eq!(backend, Backend::Threads { refused: forbidden });
            workload(&devices, RingUse::Try, 5);
            // A queue pair from before fails its requests in flight and continues with threads.
            early.submit(Request::read(0, 0, Buffer::zeroed(4096), 1)).unwrap();
            assert!(drain(&mut early)[0].result.is_err());
            early.submit(Request::read(0, 0, Buffer::zeroed(4096), 1)).unwrap();
            drain_ok(&mut early);
            assert!(matches!(early.backend(), Backend::Threads { refused: Some(_) }));
        });
    });
}

#[test]
fn a_request_beyond_the_depth_is_returned() {
    let image = Image::new(1 << 20);
    let file = writable(image.path(), 0, None, true);
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new("m", 1 << 20));
    for (ring, device) in RINGS.into_iter().flat_map(|ring| [(ring, &file), (ring, &memory)]) {
        let mut pair = pair(&[Arc::clone(device)], 7, ring);
        for _ in 0..3 {
            for tag in 0..7 {
                pair.submit(Request::read(0, 0, Buffer::zeroed(4096), tag)).unwrap();
            }
            let back = pair.submit(Request::read(0, 0, Buffer::zeroed(100), 7)).unwrap_err();
            assert_eq!((back.tag(), back.abandon().bytes()), (7, 100));
            let mut tags: Vec<_> = drain(&mut pair).iter().map(|done| done.tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}

#[test]
fn a_failing_range_fails_its_own_requests_and_no_others() {
    let backing = Image::new(1 << 20);
    let looped = LoopDevice::new(&backing, &[]);
    let device = writable(looped.path(), 0, None, true);
    device.write_at(0, &vec![7; 1 << 20]).unwrap();
    device.flush().unwrap();
    // Behind the new end of its file, the loop device fails with EIO.
    backing.set_len(512 << 10);
    let faulty = FaultyDevice::new(Arc::new(MemoryDevice::new("faulty", 1 << 20)), 1);
    faulty.add(Rule::at(8192..12288, Fault::ReadError));
    let devices = [device, Arc::new(faulty) as Arc<dyn Device>];
    let fails = |device, block: u64| if device == 0 { block >= 128 } else { block == 2 };
    for ring in RINGS {
        let mut pair = pair(&devices, 64, ring);
        let mut memory: Vec<_> = (0..512).map(|_| Buffer::zeroed(4096)).collect();
        let mut batch: Vec<_> = (0..512)
            .map(|at| ((at % 2) as usize, at / 2))
            .zip(&mut memory)
            .map(|((device, block), memory)| ReadInto::new(device, block * 4096, memory))
            .collect();
        pair.run(&mut batch);
        for read in &batch {
            let failed = fails(read.device, read.offset / 4096);
            assert_eq!(read.result.is_err(), failed, "{ring:?} {} {}", read.device, read.offset);
            if let Err(error) = &read.result {
                assert!(matches!(error, DeviceError::Read { bytes: 4096, .. }), "{error:?}");
                assert_eq!(error.errno().0, 5);
            }
        }
        for tag in 0..32u64 {
            let buffer = Buffer::zeroed(4096);
            pair.submit(Request::read(0, (112 + tag) * 4096, buffer, tag)).unwrap();
        }
        for done in drain(&mut pair) {
            assert_eq!(done.result.is_err(), done.tag >= 16, "{ring:?} {}", done.tag);
        }
    }
}

#[test]
fn invalid_requests_fail_before_they_reach_the_device() {
    let image = Image::new(1 << 20);
    let reading = FileDevice::open(image.path(), &OpenDevice::default()).unwrap();
    let devices: [Arc<dyn Device>; 2] = [Arc::new(reading), Arc::new(MemoryDevice::new("m", 4096))];
    for ring in RINGS {
        let mut pair = pair(&devices, 8, ring);
        let block = || Buffer::zeroed(4096);
        pair.submit(Request::read(0, 1 << 20, block(), 0)).unwrap();
        pair.submit(Request::read(0, u64::MAX - 5, block(), 1)).unwrap();
        pair.submit(Request::read(2, 0, block(), 2)).unwrap();
        pair.submit(Request::write(0, 0, block(), 3)).unwrap();
        pair.submit(Request::discard(0, 0, 4096, 4)).unwrap();
        pair.submit(Request::read(1, 1, block(), 5)).unwrap();
        for done in drain(&mut pair) {
            let error = done.result.unwrap_err();
            assert_eq!(done.load.bytes(), if done.kind == RequestKind::Discard { 0 } else { 4096 });
            match done.tag {
                0 | 1 | 5 => assert!(matches!(error, DeviceError::OutOfRange { .. }), "{error}"),
                2 => assert!(matches!(error, DeviceError::NoDevice { index: 2 }), "{error}"),
                _ => assert!(matches!(error, DeviceError::ReadOnly { .. }), "{error}"),
            }
        }
        let mut memory = [0; 10];
        let mut batch = [ReadInto::new(0, (1 << 20) - 9, &mut memory)];
        assert!(matches!(batch[0].result, Err(DeviceError::NotRun)));
        pair.run(&mut batch);
        assert!(matches!(batch[0].result, Err(DeviceError::OutOfRange { .. })));
        let mut batch = [WriteFrom::new(0, 0, &[0; 10]), WriteFrom::new(5, 0, &[])];
        pair.run_writes(&mut batch);
        assert!(matches!(batch[0].result, Err(DeviceError::ReadOnly { .. })));
        assert!(matches!(batch[1].result, Err(DeviceError::NoDevice { .. })));
    }
    assert_eq!(devices[0].counters().now(), Counts::default());
}

#[test]
fn flushes_and_discards_work_with_rings_and_threads() {
    let (image, backing) = (Image::new(4 << 20), Image::new(4 << 20));
    let looped = LoopDevice::new(&backing, &[]);
    let devices = [writable(image.path(), 0, None, true), writable(looped.path(), 0, None, true)];
    for ring in RINGS {
        let mut pair = pair(&devices, 8, ring);
        for (number, device) in devices.iter().enumerate() {
            device.write_at(0, &vec![9; 4 << 20]).unwrap();
            pair.submit(Request::flush(number, 1)).unwrap();
            pair.submit(Request::discard(number, 1 << 20, 1 << 20, 2)).unwrap();
            assert_eq!(drain_ok(&mut pair).len(), 2);
            let mut bytes = vec![1; 4 << 20];
            device.read_at(0, &mut bytes).unwrap();
            assert!(bytes[..1 << 20].iter().chain(&bytes[2 << 20..]).all(|byte| *byte == 9));
            assert!(bytes[1 << 20..2 << 20].iter().all(|byte| *byte == 0), "{ring:?} {number}");
        }
    }
    let counts = devices[0].counters().now();
    assert_eq!((counts.flushes, counts.discards), (2, 2));
}

#[test]
fn a_long_unaligned_transfer_is_split() {
    let image = Image::new(8 << 20);
    let devices = [writable(image.path(), 0, None, true)];
    for ring in RINGS {
        let mut pair = pair(&devices, 8, ring);
        let source: Vec<u8> = (0..3_333_333u32).map(|at| (at % 253) as u8).collect();
        let mut batch = [WriteFrom::new(0, 777, &source)];
        pair.run_writes(&mut batch);
        batch[0].result.clone().unwrap();
        let mut memory = vec![0; source.len()];
        let mut batch = [ReadInto::new(0, 777, &mut memory)];
        pair.run(&mut batch);
        batch[0].result.clone().unwrap();
        assert!(memory == source);
    }
}

#[test]
fn poll_returns_when_nothing_is_outstanding_or_at_the_timeout() {
    let image = Image::new(1 << 20);
    let devices = [writable(image.path(), 0, None, true)];
    for ring in RINGS {
        let mut pair = pair(&devices, 8, ring);
        let (start, mut out) = (Instant::now(), Vec::new());
        assert_eq!(pair.poll(3, None, &mut out), 0);
        pair.submit(Request::read(0, 0, Buffer::zeroed(4096), 0)).unwrap();
        pair.poll(0, None, &mut out);
        while out.is_empty() {
            pair.poll(2, Some(Duration::from_millis(20)), &mut out);
        }
        pair.submit(Request::flush(0, 1)).unwrap();
        assert_eq!(pair.poll(1, Some(Duration::MAX), &mut out), 1);
        assert!(start.elapsed() < Duration::from_mins(5));
    }
}

#[test]
fn dropping_a_queue_pair_waits_for_requests_and_closes_the_device() {
    let backing = Image::new(8 << 20);
    let looped = LoopDevice::new(&backing, &[]);
    for ring in RINGS {
        for _ in 0..50 {
            let devices = [writable(looped.path(), 0, None, true)];
            let mut pair = pair(&devices, 32, ring);
            drop(devices);
            for tag in 0..32 {
                pair.submit(Request::read(0, tag << 18, Buffer::zeroed(1 << 18), tag)).unwrap();
            }
            drop(pair);
        }
    }
}

#[test]
fn buffers_of_a_registered_arena_are_read_and_written() {
    let image = Image::new(1 << 20);
    let devices = [writable(image.path(), 0, None, true)];
    let arena = Arena::new(2 << 20).unwrap();
    let options = QueueOptions { depth: 8, arenas: vec![arena.clone()], ..QueueOptions::default() };
    let mut pair = QueuePair::with_options(&devices, &options);
    let mut buffer = arena.allocate(10_000).unwrap();
    buffer.fill(3);
    pair.submit(Request::write(0, 4096, buffer, 1)).unwrap();
    drain_ok(&mut pair);
    pair.submit(Request::read(0, 0, arena.allocate(20_000).unwrap(), 2)).unwrap();
    let done = drain(&mut pair).remove(0);
    let buffer = done.load.into_one().unwrap();
    assert!(buffer.is_from_arena());
    assert!(buffer[..4096].iter().chain(&buffer[14_096..]).all(|byte| *byte == 0));
    assert!(buffer[4096..14_096].iter().all(|byte| *byte == 3));
}

#[test]
fn a_fault_fails_only_the_vectored_write_that_it_affects() {
    let memory = Arc::new(MemoryDevice::new("m", 1 << 20));
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&memory) as Arc<dyn Device>, 1));
    let recording = Arc::new(RecordingDevice::new(Arc::new(MemoryDevice::new("r", 1 << 20))));
    faulty.add(Rule::at(3 * 4096..4 * 4096, Fault::WriteError));
    let devices: [Arc<dyn Device>; 2] = [Arc::clone(&faulty) as _, Arc::clone(&recording) as _];
    let mut pair = pair(&devices, 16, RingUse::Try);
    assert_eq!(pair.backend(), Backend::Inline);
    let list = |byte: u8| -> Vec<Buffer> {
        (0..2).map(|_| Buffer::copy_of(&[byte; 4096])).collect::<Vec<_>>()
    };
    for nth in 0..4u8 {
        let offset = u64::from(nth) * 8192;
        pair.submit(Request::write(0, offset, list(nth + 1), u64::from(nth))).unwrap();
        pair.submit(Request::write(1, offset, list(nth + 1), 100)).unwrap();
    }
    for done in drain(&mut pair) {
        assert_eq!(done.result.is_err(), done.tag == 1);
        assert_eq!((done.load.as_slice().len(), done.load.bytes()), (2, 8192));
    }
    assert_eq!(faulty.fault_counts().write_errors, 1);
    let recording = recording.recording();
    let lengths: Vec<usize> = recording
        .log()
        .iter()
        .map(|record| if let Record::Write { bytes, .. } = record { bytes.len() } else { 0 })
        .collect();
    assert_eq!(lengths, [8192; 4], "each list is one write");
    let mut bytes = vec![0; 4 * 8192];
    memory.read_at(0, &mut bytes).unwrap();
    for (nth, bytes) in bytes.chunks(8192).enumerate() {
        let want = if nth == 1 { 0 } else { u8::try_from(nth + 1).unwrap() };
        assert!(bytes.iter().all(|byte| *byte == want));
    }
}

#[test]
fn any_thread_can_poll_completions() {
    let image = Image::new(1 << 20);
    for ring in RINGS {
        let devices = [writable(image.path(), 0, None, true)];
        let options = QueueOptions { depth: 32, ring, is_prompt: true, ..QueueOptions::default() };
        let mut pair = QueuePair::with_options(&devices, &options);
        let (handed, taken) = std::sync::mpsc::sync_channel(1);
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let first = &mut pair;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for tag in 0..32 {
                    let request = Request::read(0, tag * 4096, Buffer::zeroed(4096), tag);
                    first.submit(request).unwrap();
                }
                first.kick();
                assert_eq!((first.available(), first.outstanding()), (0, 32));
                handed.send(first).unwrap();
                assert!(
                    is_over.recv().is_err(),
                    "waits until the other thread has all completions"
                );
            });
            let pair = taken.recv().unwrap();
            assert_eq!(drain_ok(pair).len(), 32);
            drop(over);
        });
    }
}

#[test]
fn a_ring_that_breaks_signals_the_event() {
    let image = Image::new(1 << 20);
    let event = Arc::new(Event::new().unwrap());
    let is_readable = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    let event_option = Some(Arc::clone(&event));
    let options = QueueOptions { depth: 8, event: event_option, ..QueueOptions::default() };
    // The ring breaks when the requests are submitted, or in a poll that waits for nothing.
    for is_kicked in [true, false] {
        let devices = [writable(image.path(), 0, None, true)];
        let mut pair = QueuePair::with_options(&devices, &options);
        for tag in 0..8 {
            pair.submit(Request::read(0, tag * 4096, Buffer::zeroed(4096), tag)).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                forbid_rings_on_this_thread().unwrap();
                event.clear();
                let mut failed = Vec::new();
                if is_kicked {
                    pair.kick();
                } else {
                    pair.poll(0, None, &mut failed);
                }
                assert!(is_readable());
                event.clear();
                pair.poll(8 - failed.len(), None, &mut failed);
                assert_eq!(failed.len(), 8);
                assert!(failed.iter().all(|completion| completion.result.is_err()));
            });
        });
    }
}

/// The kernel has no memory for the first request: nothing in flight will ever signal the event.
#[test]
fn requests_that_the_kernel_does_not_take_signal_the_event_until_it_does() {
    let image = Image::new(1 << 20);
    let event = Arc::new(Event::new().unwrap());
    let is_readable = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    let event_option = Some(Arc::clone(&event));
    let options = QueueOptions { depth: 8, event: event_option, ..QueueOptions::default() };
    let devices = [writable(image.path(), 0, None, true)];
    let mut pair = QueuePair::with_options(&devices, &options);
    for tag in 0..4 {
        pair.submit(Request::read(0, tag * 4096, Buffer::zeroed(4096), tag)).unwrap();
    }
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            starve_rings_on_this_thread().unwrap();
            pair.kick();
            assert!(is_readable(), "after a kick");
            for _ in 0..3 {
                event.clear();
                pair.poll(0, None, &mut done);
                assert!(is_readable(), "after a poll");
            }
            assert!(done.is_empty());
        });
    });
    event.clear();
    pair.poll(4, None, &mut done);
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    event.clear();
    pair.poll(0, None, &mut done);
    assert!(!is_readable(), "nothing is queued");
}
