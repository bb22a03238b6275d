//! Tests of the ring against real files: results, completion order and errors.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

use butternut_sys::arena::Arena;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::{Buffers, Load};
use butternut_sys::errno::Errno;
use butternut_sys::file::{DiskFile, OpenDisk};
use butternut_sys::forbid::{forbid_new_threads_to_this_thread, forbid_rings_on_this_thread};
use butternut_sys::ring::{
    BorrowedRequest, Memory, Operation, Ring, RingOptions, RingUnavailable, SEGMENTS_MAX,
    Submission, Transfer,
};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;

/// Returns a file whose every block is filled with its own number.
fn numbered() -> (tempfile::NamedTempFile, DiskFile) {
    let mut image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    for block in 0..BLOCKS {
        image.write_all(&[number(block); BLOCK]).unwrap();
    }
    let file = DiskFile::open(image.path(), OpenDisk::default()).unwrap();
    (image, file)
}

fn number(block: usize) -> u8 {
    u8::try_from(block % 251).unwrap()
}

fn ring<T>(file: &DiskFile, depth: usize) -> Ring<T> {
    Ring::new(&[file], &RingOptions { depth, ..RingOptions::default() }).unwrap()
}

fn read<T>(block: usize, user_data: T) -> Submission<T> {
    read_into(Buffer::zeroed(BLOCK), block, user_data)
}

fn read_into<T>(buffer: Buffer, block: usize, user_data: T) -> Submission<T> {
    let (offset, load) = ((block * BLOCK) as u64, Load::from(buffer));
    Submission { operation: Operation::Read, file: 0, offset, load, need: BLOCK, user_data }
}

fn bytes_of(load: Load) -> Buffer {
    load.into_one().unwrap()
}

/// A borrowed read of one block. `panics` selects where it panics on purpose.
struct Block<'a> {
    number: usize,
    memory: &'a mut [u8],
    result: Option<Result<(), Errno>>,
    panics: Panics,
}

#[derive(PartialEq)]
enum Panics {
    Never,
    InTransfer,
    InFinish,
}

impl BorrowedRequest<()> for Block<'_> {
    fn transfer(&mut self, (): &()) -> Option<Transfer<'_>> {
        assert!(self.panics != Panics::InTransfer, "on purpose");
        let need = self.memory.len();
        let memory = Memory::ReadInto(self.memory);
        Some(Transfer {
            file: 0,
            offset: (self.number * BLOCK) as u64,
            memory,
            need,
            is_durable: false,
        })
    }

    fn finish(&mut self, (): &(), result: Result<(), Errno>) {
        assert!(self.panics != Panics::InFinish, "on purpose");
        self.result = Some(result);
    }
}

fn blocks(memory: &mut [u8]) -> Vec<Block<'_>> {
    let block = |(number, memory)| Block { number, memory, result: None, panics: Panics::Never };
    memory.chunks_mut(BLOCK).enumerate().map(block).collect()
}

#[test]
fn owned_requests_complete_once_with_their_buffers() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 8);
    let (mut next, mut seen) = (0, vec![0; BLOCKS]);
    while seen.contains(&0) {
        while next < BLOCKS && ring.submit(read(next, next)).is_ok() {
            next += 1;
        }
        assert!(ring.outstanding() <= 8);
        ring.wait(1, None);
        while let Some(done) = ring.next_completion() {
            assert_eq!(done.result, Ok(()));
            assert!(bytes_of(done.load).iter().all(|byte| *byte == number(done.user_data)));
            seen[done.user_data] += 1;
        }
    }
    assert!(seen.iter().all(|times| *times == 1));
    assert_eq!(ring.outstanding(), 0);
}

#[test]
fn a_batch_larger_than_the_ring_completes_beside_owned_requests() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 5);
    (0..5).for_each(|block| ring.submit(read(block, block)).unwrap());
    let mut memory = Buffer::zeroed(BLOCKS * BLOCK);
    let mut batch = blocks(&mut memory);
    ring.run(&mut batch, &(), None);
    assert!(batch.iter().all(|block| block.result == Some(Ok(()))));
    drop(batch);
    let right = |(block, bytes): (usize, &[u8])| bytes.iter().all(|byte| *byte == number(block));
    assert!(memory.chunks(BLOCK).enumerate().all(right));
    ring.wait(usize::MAX, None);
    assert_eq!(std::iter::from_fn(|| ring.next_completion()).count(), 5);
}

#[test]
fn a_panic_in_the_batch_waits_for_the_kernel_and_leaves_the_ring_usable() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 16);
    for (at, panics) in [(100, Panics::InTransfer), (40, Panics::InFinish)] {
        let mut memory = Buffer::zeroed(BLOCKS * BLOCK);
        let mut batch = blocks(&mut memory);
        batch[at].panics = panics;
        let outcome = catch_unwind(AssertUnwindSafe(|| ring.run(&mut batch, &(), None)));
        assert!(outcome.is_err());
        drop(memory);
        ring.submit(read(9, 9)).unwrap();
        ring.wait(1, None);
        let done = ring.next_completion().unwrap();
        assert!(bytes_of(done.load).iter().all(|byte| *byte == number(9)));
    }
}

#[test]
fn a_transfer_beyond_the_end_fails_unless_the_needed_bytes_exist() {
    let (_image, file) = numbered();
    let mut ring = ring::<&str>(&file, 4);
    let mut over = read_into(Buffer::zeroed(2 * BLOCK), BLOCKS - 1, "over");
    over.need = BLOCK + 1;
    let just = read_into(Buffer::zeroed(2 * BLOCK), BLOCKS - 1, "just");
    ring.submit(over).unwrap();
    ring.submit(just).unwrap();
    ring.wait(2, None);
    while let Some(done) = ring.next_completion() {
        let want = if done.user_data == "just" { Ok(()) } else { Err(Errno::NO_DATA) };
        assert_eq!(done.result, want, "{}", done.user_data);
    }
}

#[test]
fn wait_returns_at_the_deadline_or_when_nothing_is_in_flight() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 4);
    let start = Instant::now();
    ring.wait(3, None);
    ring.wait(1, Some(start + Duration::from_mins(1)));
    assert!(start.elapsed() < Duration::from_mins(5));
    ring.submit(read(0, 0)).unwrap();
    ring.wait(1, Some(Instant::now() + Duration::from_mins(1)));
    assert!(ring.next_completion().is_some());
}

#[test]
fn memory_of_an_arena_is_registered() {
    let (_image, file) = numbered();
    let arena = Arena::new(2 << 20).unwrap();
    let options =
        RingOptions { depth: 8, arenas: vec![arena.clone()], is_prompt: true, event: None };
    let mut ring = Ring::<usize>::new(&[&file], &options).unwrap();
    let (buffer, elsewhere) = (arena.allocate(BLOCK).unwrap(), Buffer::zeroed(BLOCK));
    assert!(ring.is_registered(&buffer), "root may lock memory");
    assert!(!ring.is_registered(&elsewhere));
    ring.submit(read_into(buffer, 77, 77)).unwrap();
    ring.wait(1, None);
    assert!(bytes_of(ring.next_completion().unwrap().load).iter().all(|byte| *byte == number(77)));
    let free = arena.free_bytes();
    let held = arena.allocate(1 << 20).unwrap();
    drop(ring);
    drop(held);
    assert_eq!(arena.free_bytes(), free);
}

#[test]
fn writes_and_flushes_reach_the_file() {
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let file = DiskFile::open(image.path(), how).unwrap();
    let mut ring = ring::<()>(&file, 4);
    let mut write = read(3, ());
    write.operation = Operation::Write;
    write.load.one_mut().unwrap().fill(0x5a);
    ring.submit(write).unwrap();
    ring.wait(1, None);
    assert_eq!(ring.next_completion().unwrap().result, Ok(()));
    let flush = Submission { operation: Operation::Flush, need: 0, ..read(0, ()) };
    ring.submit(flush).unwrap();
    ring.wait(1, None);
    assert_eq!(ring.next_completion().unwrap().result, Ok(()));
    let bytes = std::fs::read(image.path()).unwrap();
    assert!(bytes[3 * BLOCK..4 * BLOCK].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_write_from_many_buffers_is_contiguous_in_the_file() {
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    image.as_file().set_len(32 << 20).unwrap();
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let file = DiskFile::open(image.path(), how).unwrap();
    let arena = Arena::new(2 << 20).unwrap();
    let options = RingOptions { depth: 8, arenas: vec![arena.clone()], ..RingOptions::default() };
    let mut ring = Ring::<usize>::new(&[&file], &options).unwrap();
    let mut want = vec![0; 32 << 20];
    // More segments than one list holds, a few, adjacent ones in one arena, and none.
    for (nth, count) in [2 * SEGMENTS_MAX + 7, 3, 20, 0].into_iter().enumerate() {
        let at = nth << 23;
        let row: Vec<Buffer> = (0..count)
            .map(|index| {
                let len = BLOCK * (1 + index % 3);
                let taken = if nth == 2 { arena.allocate(len) } else { None };
                let mut buffer = taken.unwrap_or_else(|| Buffer::zeroed(len));
                buffer.fill(number(7 * nth + index + 1));
                buffer
            })
            .collect();
        let bytes: Vec<u8> = row.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        want[at..at + bytes.len()].copy_from_slice(&bytes);
        let (operation, offset, need) = (Operation::Write, at as u64, bytes.len());
        let load = Load::from(row);
        ring.submit(Submission { operation, file: 0, offset, load, need, user_data: count })
            .unwrap();
    }
    ring.wait(usize::MAX, None);
    for _ in 0..4 {
        let done = ring.next_completion().unwrap();
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.load.as_slice().len(), done.user_data, "all buffers come back");
    }
    assert!(std::fs::read(image.path()).unwrap() == want);
}

#[test]
fn shared_memory_is_written_to_several_offsets_and_then_released() {
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let file = DiskFile::open(image.path(), how).unwrap();
    let mut ring = ring::<()>(&file, 4);
    let mut row = vec![Buffer::zeroed(BLOCK), Buffer::zeroed(2 * BLOCK)];
    for buffer in &mut row {
        buffer.fill(9);
    }
    let mut shared = Arc::new(Buffers::from(row));
    for nth in 0..3 {
        let load = Load::from(Arc::clone(&shared));
        let (operation, offset, need) = (Operation::Write, nth * 65536, 3 * BLOCK);
        ring.submit(Submission { operation, file: 0, offset, load, need, user_data: () }).unwrap();
    }
    ring.wait(3, None);
    assert!(Arc::get_mut(&mut shared).is_none());
    while let Some(done) = ring.next_completion() {
        assert_eq!(done.result, Ok(()));
    }
    assert!(Arc::get_mut(&mut shared).is_some());
    let bytes = std::fs::read(image.path()).unwrap();
    for nth in 0..3 {
        let at = nth * 65536;
        assert!(bytes[at..at + 3 * BLOCK].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn borrowed_memory_is_read_into_and_returned_by_the_completion() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 8);
    let mut memory = Buffer::zeroed(3 * BLOCK);
    let start = NonNull::new(memory[BLOCK..].as_mut_ptr()).unwrap();
    // SAFETY: the block exists, and the test does not access it while the buffer exists.
    let borrowed = unsafe { Buffer::borrowed(start, BLOCK) };
    ring.submit(read_into(borrowed, 33, 33)).unwrap();
    ring.wait(1, None);
    let done = ring.next_completion().unwrap();
    assert_eq!(done.result, Ok(()));
    let buffer = bytes_of(done.load);
    assert!(!buffer.is_stable());
    drop(buffer);
    let (before, rest) = memory.split_at(BLOCK);
    assert!(rest[..BLOCK].iter().all(|byte| *byte == number(33)));
    assert!(before.iter().chain(&rest[BLOCK..]).all(|byte| *byte == 0));
}

/// One thread submits and then runs `idles` until another thread has taken every completion.
fn completed_by_another_thread(idles: impl Fn(&AtomicBool) + Sync) {
    let (_image, file) = numbered();
    let options = RingOptions { depth: 64, is_prompt: true, ..RingOptions::default() };
    let mut ring = Ring::<usize>::new(&[&file], &options).unwrap();
    let is_over = AtomicBool::new(false);
    for _ in 0..20 {
        is_over.store(false, Ordering::Relaxed);
        let (handed, taken) = std::sync::mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..64).for_each(|block| ring.submit(read(block, block)).unwrap());
                ring.kick();
                handed.send(&mut ring).unwrap();
                idles(&is_over);
            });
            let ring = taken.recv().unwrap();
            ring.wait(64, Some(Instant::now() + Duration::from_mins(5)));
            let mut seen = 0;
            while let Some(done) = ring.next_completion() {
                assert!(bytes_of(done.load).iter().all(|byte| *byte == number(done.user_data)));
                seen += 1;
            }
            is_over.store(true, Ordering::Release);
            assert_eq!(seen, 64, "all completions arrive before the deadline");
        });
    }
}

#[test]
fn another_thread_gets_completions_while_the_submitter_waits_for_a_lock() {
    let lock = Mutex::new(());
    completed_by_another_thread(|is_over| {
        // A third thread holds the lock until the requests are complete.
        std::thread::scope(|scope| {
            let (locked, is_locked) = std::sync::mpsc::channel();
            let lock = &lock;
            scope.spawn(move || {
                let held = lock.lock().unwrap();
                locked.send(()).unwrap();
                while !is_over.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                drop(held);
            });
            is_locked.recv().unwrap();
            drop(lock.lock().unwrap());
        });
    });
}

#[test]
fn another_thread_gets_completions_while_the_submitter_computes() {
    completed_by_another_thread(|is_over| {
        while !is_over.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
    });
}

#[test]
fn a_forbidden_ring_is_a_typed_error() {
    let (_image, file) = numbered();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_rings_on_this_thread().unwrap();
            let options = RingOptions { depth: 4, ..RingOptions::default() };
            let refused = Ring::<()>::new(&[&file], &options).map(drop).unwrap_err();
            assert_eq!(refused, RingUnavailable::Forbidden);
            assert!(std::fs::read("/proc/self/comm").is_ok(), "other calls work");
        });
    });
}

#[test]
fn a_ring_that_breaks_in_flight_returns_every_buffer() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 32);
    (0..10).for_each(|block| ring.submit(read(block, block)).unwrap());
    ring.kick();
    (10..20).for_each(|block| ring.submit(read(block, block)).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_rings_on_this_thread().unwrap();
            ring.wait(usize::MAX, None);
            assert_eq!(ring.broken(), Some(Errno(1)));
            let mut seen = 0;
            while let Some(done) = ring.next_completion() {
                if done.user_data < 10 {
                    assert_eq!(done.result, Ok(()));
                    assert!(bytes_of(done.load).iter().all(|byte| *byte == number(done.user_data)));
                } else {
                    assert_eq!(done.result, Err(Errno(1)));
                }
                seen += 1;
            }
            assert_eq!(seen, 20);
            let mut memory = Buffer::zeroed(40 * BLOCK);
            let mut batch = blocks(&mut memory);
            ring.run(&mut batch, &(), None);
            assert!(batch.iter().all(|block| block.result == Some(Err(Errno(1)))));
            drop(ring);
        });
    });
}

#[test]
fn another_thread_gets_completions_after_the_submitter_ended() {
    let (_image, file) = numbered();
    let mut ring = ring::<usize>(&file, 64);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..64).for_each(|block| ring.submit(read(block, block)).unwrap());
                ring.kick();
            });
        });
        ring.wait(usize::MAX, None);
        let mut seen = 0;
        while let Some(done) = ring.next_completion() {
            assert_eq!(done.result, Ok(()));
            seen += 1;
        }
        assert_eq!(seen, 64);
    }
}

#[test]
fn a_flush_succeeds_where_the_kernel_may_start_no_thread_for_it() {
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let file = DiskFile::open(image.path(), how).unwrap();
    let mut ring = ring::<usize>(&file, 4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_new_threads_to_this_thread().unwrap();
            assert!(std::thread::Builder::new().spawn(|| ()).is_err());
            for number in 0..3 {
                let operation = Operation::Flush;
                ring.submit(Submission { operation, need: 0, ..read(0, number) }).unwrap();
            }
            ring.wait(3, Some(Instant::now() + Duration::from_mins(5)));
            for _ in 0..3 {
                assert_eq!(ring.next_completion().unwrap().result, Ok(()));
            }
            assert_eq!(ring.broken(), None);
        });
    });
}
