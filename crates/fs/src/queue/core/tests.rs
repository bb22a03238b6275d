//! Panics under the lock of a queue's core: the volume becomes read-only, and nothing waits for
//! ever.

use super::Locked;
use crate::background::committer::tests::{fresh, is_forced_read_only, open};
use crate::queue::{Completion, IoFlags, Queue, QueueOptions};
use crate::{File, Filesystem, NewInode};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 8;

fn filled(fs: &Filesystem) -> File {
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).expect("a new file");
    let file = fs.open_file(id).expect("a file");
    let bytes = vec![1; BLOCK * 64];
    assert_eq!(file.write_at(0, &bytes).expect("space"), bytes.len());
    file.sync_all().expect("a sound volume");
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
