//! Panics under the lock of a queue's core: the volume becomes read-only, and no thread waits for
//! ever. Threads that use a core at the same time: a thread waits only for its own requests.

use super::Locked;
use crate::background::committer::tests::{fresh, is_forced_read_only, open};
use crate::queue::{Completion, IoFlags, Queue, QueueOptions};
use crate::{File, Filesystem, NewInode};
use butternut_device::{
    Alignment, Counters, Device, DeviceError, Fault, FaultyDevice, FileDevice, OpenDevice,
    RingTarget, Rule, When, WriteCache,
};
use butternut_file::RequestOwner;
use butternut_mkfs::MkfsOptions;
use butternut_sys::forbid::forbid_rings_on_this_thread;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 8;

fn filled(fs: &Filesystem) -> File {
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).expect("a new file");
    let file = fs.open_file(id).expect("a file");
    let bytes = vec![1; BLOCK * 64];
    assert_eq!(file.write_at(0, &bytes).expect("space"), bytes.len());
    fs.sync().expect("a sound volume");
    file
}

/// Direct writes and a direct read, in flight.
fn queued(fs: &Filesystem, file: &File) -> Queue {
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    for number in 0..BLOCKS {
        let mut buffer = queue.buffer(BLOCK).expect("memory");
        buffer.fill(2);
        let at = number * 2 * BLOCK as u64;
        assert!(queue.write(file, at, buffer, IoFlags::DIRECT, number).is_ok());
    }
    let buffer = queue.buffer(BLOCK).expect("memory");
    assert!(queue.read(file, 40 * BLOCK as u64, buffer, IoFlags::DIRECT, BLOCKS).is_ok());
    queue
}

/// What happens before the panic, under the lock.
type Leave = fn(&mut Locked<'_>, &Queue);

fn panic_with_the_core(queue: &Queue, leave: Leave) {
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut locked = queue.core.lock();
        leave(&mut locked, queue);
        panic!("while requests are completed");
    }));
    assert!(panicked.is_err());
}

/// Submits the requests and loses their completions.
fn lose_completions(locked: &mut Locked<'_>, queue: &Queue) {
    let shared = &*queue.core.shared;
    locked.send_staged(shared);
    let mut polled = Vec::new();
    while locked.data.outstanding() > 0 {
        locked.data.poll(shared.volume(), 1, None, &mut polled).expect("the queue of this volume");
    }
    assert!(!polled.is_empty());
}

fn survives(leave: Leave, want: std::ops::RangeInclusive<usize>) {
    let device = fresh();
    let fs = open(&device);
    let file = filled(&fs);
    let mut queue = queued(&fs, &file);
    panic_with_the_core(&queue, leave);
    let mut done: Vec<Completion> = Vec::new();
    let reaped = queue.reap(queue.outstanding(), None, &mut done);
    assert!(want.contains(&reaped), "{reaped} of {} requests", BLOCKS + 1);
    assert!(is_forced_read_only(&fs));
    assert!(fs.sync().is_err(), "half of what the core did would be on the volume");
    // A thread that waits for the file finds nothing in flight.
    assert!(file.truncate(0).is_err());
    let mut bytes = [0; BLOCK];
    assert_eq!(file.read_at(40 * BLOCK as u64, &mut bytes).expect("reads continue"), BLOCK);
    assert_eq!(bytes, [1; BLOCK]);
    drop(queue);
}

#[test]
fn requests_in_flight_are_returned_after_a_panic() {
    let all = usize::try_from(BLOCKS).expect("a small number") + 1;
    survives(|_, _| {}, all..=all);
}

#[test]
fn requests_whose_completions_a_panic_has_lost_fail() {
    let all = usize::try_from(BLOCKS).expect("a small number") + 1;
    survives(lose_completions, all..=all);
}

#[test]
fn nothing_waits_for_requests_that_a_panic_lost() {
    let lose_all: Leave = |locked, queue| {
        lose_completions(locked, queue);
        for request in &mut locked.device_requests {
            request.read = None;
            request.writes.clear();
        }
    };
    survives(lose_all, 0..=0);
}

#[test]
fn a_queue_is_not_signalled_for_ever_after_a_panic() {
    let device = fresh();
    let fs = open(&device);
    let file = filled(&fs);
    let mut queue = fs.queue(&QueueOptions::default().has_event(true)).expect("a queue");
    read(&mut queue, &file);
    panic_with_the_core(&queue, lose_completions);
    let mut poller = mio::Poll::new().expect("a poller");
    let descriptor = queue.event().expect("an event").as_raw_fd();
    let (mut source, token) = (mio::unix::SourceFd(&descriptor), mio::Token(0));
    let registry = poller.registry();
    registry.register(&mut source, token, mio::Interest::READABLE).expect("a descriptor");
    let mut events = mio::Events::with_capacity(1);
    let mut is_signalled = || {
        // A registration reports a descriptor that is readable already.
        poller.registry().reregister(&mut source, token, mio::Interest::READABLE).expect("ours");
        poller.poll(&mut events, Some(Duration::ZERO)).expect("a poll");
        !events.is_empty()
    };
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(is_signalled(), "the request is lost");
        queue.reap(0, None, &mut done);
    }
    assert!(done[0].result.is_err());
    // What was reaped may have signalled once more.
    queue.reap(0, None, &mut done);
    assert!(!is_signalled());
}

/// A device over a file, whose reads a test can hold. Without a ring, a pool of threads calls it.
#[derive(Debug)]
struct HeldFile {
    file: Arc<FileDevice>,
    faulty: FaultyDevice,
}

impl Device for HeldFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn alignment(&self) -> Alignment {
        self.file.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.file.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.faulty.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.faulty.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.file.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.file.discard(offset, bytes)
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        self.file.ring_target()
    }

    fn counters(&self) -> &Counters {
        self.file.counters()
    }
}

/// Calls `run` on a thread that gets no ring, with a volume whose reads can be held.
fn with_held_reads(run: impl FnOnce(&FaultyDevice, &Filesystem) + Send) {
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    image.as_file().set_len(256 << 20).expect("a sparse file");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            forbid_rings_on_this_thread().expect("a seccomp filter");
            let how = OpenDevice { writable: true, ..OpenDevice::default() };
            let file = Arc::new(FileDevice::open(image.path(), &how).expect("the image"));
            butternut_mkfs::make(&*file, &MkfsOptions::default()).expect("a fresh volume");
            let faulty = FaultyDevice::new(Arc::clone(&file) as Arc<dyn Device>, 1);
            let device = Arc::new(HeldFile { file, faulty });
            let fs = open(&(Arc::clone(&device) as Arc<dyn Device>));
            run(&device.faulty, &fs);
        });
        thread.join().expect("no panic");
    });
}

fn read(queue: &mut Queue, file: &File) {
    let buffer = queue.buffer(BLOCK).expect("memory");
    assert!(queue.read(file, 0, buffer, IoFlags::DIRECT, 7).is_ok());
}

#[test]
fn a_thread_that_helps_does_not_block_the_owner_of_the_queue() {
    with_held_reads(|device, fs| {
        let file = filled(fs);
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        let rule = device.add(Rule::everywhere(Fault::HeldRead));
        read(&mut queue, &file);
        device.wait_for_held_reads(1);
        let core = Arc::clone(&queue.core);
        std::thread::scope(|scope| {
            let helper = scope.spawn(move || core.complete_some(Duration::from_hours(1)));
            while !helper.is_finished() {
                queue.submit();
                assert_eq!(queue.reap(0, None, &mut Vec::new()), 0);
            }
        });
        device.remove(rule);
        let mut done = Vec::new();
        assert_eq!(queue.reap(1, None, &mut done), 1);
        assert_eq!(*done[0].result.as_ref().expect("a sound device"), BLOCK);
    });
}

#[test]
fn a_request_that_a_helper_has_completed_ends_the_wait_of_the_owner() {
    with_held_reads(|device, fs| {
        let file = filled(fs);
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        let rule = Rule { when: When::Times(1), ..Rule::everywhere(Fault::HeldRead) };
        let rule = device.add(rule);
        read(&mut queue, &file);
        device.wait_for_held_reads(1);
        read(&mut queue, &file);
        while queue.core.in_flight() > 1 {
            queue.core.complete_some(Duration::from_hours(1));
        }
        // As in `reap`, between its look for completions and its wait.
        queue.core.poll(1, None);
        let mut done = Vec::new();
        assert_eq!(queue.reap(1, None, &mut done), 1);
        device.remove(rule);
        assert_eq!(queue.reap(1, None, &mut done), 1);
    });
}

#[test]
fn an_owner_that_waits_for_its_queue_blocks_no_thread_that_drains_another_file() {
    with_held_reads(|device, fs| {
        let file = filled(fs);
        let id = fs.create(fs.root(), b"other", &NewInode::new(0o644)).expect("a new file");
        let other = fs.open_file(id).expect("a file");
        assert_eq!(other.write_at(0, &vec![1; BLOCK * 64]).expect("space"), BLOCK * 64);
        fs.sync().expect("a sound volume");
        let mut waiting = fs.queue(&QueueOptions::default()).expect("a queue");
        let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
        let rule = Rule { when: When::Times(1), ..Rule::everywhere(Fault::HeldRead) };
        let rule = device.add(rule);
        read(&mut waiting, &file);
        device.wait_for_held_reads(1);
        read(&mut queue, &other);
        let core = Arc::clone(&waiting.core);
        std::thread::scope(|scope| {
            let owner = scope.spawn(move || waiting.reap(1, None, &mut Vec::new()));
            while core.inner.try_lock().is_some() {
                std::thread::yield_now();
            }
            // The device completes the read of this file.
            other.truncate(0).expect("a sound volume");
            device.remove(rule);
            assert_eq!(owner.join().expect("no panic"), 1);
        });
        assert_eq!(queue.reap(1, None, &mut Vec::new()), 1);
    });
}
