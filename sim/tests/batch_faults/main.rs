//! Batches of writes on a device that fails. A failed device write is the result of exactly the
//! requests whose blocks it should have written, also where it merged several requests. When the
//! writeback of cached data fails, the next sync of the file reports it once, and the next sync of
//! the filesystem reports it once. No buffer, no space and no other byte is lost.
//!
//! A device between the library and the faulty one records how the last write of each block ended.
//!
//! `BUTTERNUT_LONG=1` fails every request of more batches.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod place;
mod reads;
mod witness;

use anyhow::{Context, Result, bail, ensure};
use butternut::Buffer;
use butternut::queue::{Completion, IoFlags, Queue};
use butternut_device::{Fault, FaultCounts, Rule, When};
use butternut_sim::borrowed::BorrowedMemory;
use butternut_sim::content::pattern;
use butternut_sim::random::Random;
use place::{BLOCK, BLOCKS, FILES, IN_PLACE, Place, buffers, reap};

const IO: i32 = 5;

/// One write of a batch, of whole blocks.
struct Write {
    file: usize,
    block: usize,
    content: Vec<u8>,
    flags: IoFlags,
    is_lent: bool,
}

impl Write {
    fn is_direct(&self) -> bool {
        self.flags.contains(IoFlags::DIRECT)
    }

    fn is_durable(&self) -> bool {
        self.flags.contains(IoFlags::DSYNC)
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.block * BLOCK..self.block * BLOCK + self.content.len()
    }
}

/// Counts of the results of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct BatchCounts {
    requests: u64,
    failed: u64,
    /// Failed direct writes whose data is not on the device.
    failed_direct: u64,
    /// Files whose sync failed.
    lost: u64,
}

/// Returns writes to different blocks, some of them adjacent. All blocks differ.
fn writes(random: &mut Random) -> Vec<Write> {
    let mut writes = Vec::new();
    let dense = random.one_in(2);
    for file in 0..FILES {
        let mut block = random.index(4);
        while block + 4 < BLOCKS && writes.len() < 24 * (file + 1) {
            let blocks = if random.one_in(4) { 1 + random.index(4) } else { 1 };
            // An odd seed, so that no block is like another.
            let seed = 1 + 2 * (1000 + random.below(1 << 40));
            let content = pattern(seed, blocks * BLOCK);
            let lane = match random.below(8) {
                0 => IoFlags::default(),
                1 => IoFlags::UNCACHED,
                _ => IoFlags::DIRECT,
            };
            let is_durable = random.one_in(12);
            let flags = if is_durable { lane.with(IoFlags::DSYNC) } else { lane };
            let is_lent = random.one_in(3);
            writes.push(Write { file, block, content, flags, is_lent });
            block += blocks + if dense { 0 } else { random.index(5) };
        }
    }
    // Requests of different files become adjacent on disk.
    for at in (1..writes.len()).rev() {
        writes.swap(at, random.index(at + 1));
    }
    writes
}

/// The memory of the borrowed buffers of a batch. It is declared before the queue, and so it lives
/// longer than the requests of the queue and their completions.
type Lent = Vec<BorrowedMemory>;

fn queue_all(
    place: &Place,
    queue: &mut Queue,
    lent: &mut Lent,
    writes: &[Write],
) -> Result<Vec<Completion>> {
    queue_and_wait(place, queue, lent, writes, || Ok(()))
}

/// Queues the writes, and runs `meanwhile` before any request is reaped.
fn queue_and_wait(
    place: &Place,
    queue: &mut Queue,
    lent: &mut Lent,
    writes: &[Write],
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Vec<Completion>> {
    for (tag, write) in (0..).zip(writes) {
        let bytes = write.content.len();
        let mut buffer = if write.is_lent {
            let memory = BorrowedMemory::new(bytes);
            let buffer = memory.buffer(bytes);
            lent.push(memory);
            buffer
        } else {
            queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
        };
        buffer.copy_from_slice(&write.content);
        let offset = write.range().start as u64;
        let taken = queue.write(&place.files[write.file], offset, buffer, write.flags, tag);
        taken.map_err(|refused| refused.error).context("the queue rejects the request")?;
    }
    meanwhile()?;
    let done = reap(queue, writes.len())?;
    for (done, write) in done.iter().zip(writes) {
        // The memory is no other request's while a completion refers to it.
        ensure!(done.buffer[..] == write.content, "another buffer was returned");
    }
    Ok(done)
}

/// Queues a batch under `fault`. Returns the counts of its results, and of the injected faults.
fn run(seed: u64, fault: Fault, when: When) -> Result<(BatchCounts, FaultCounts)> {
    let mut place = Place::new(seed, None)?;
    let writes = writes(&mut Random::new(seed));
    let mut lent = Lent::new();
    let mut queue = place.queue()?;
    let all = buffers(&queue);
    place.witness.faulty.add(Rule { range: place.copies[0].clone(), when, fault });
    let done = queue_all(&place, &mut queue, &mut lent, &writes)?;
    let mut results = BatchCounts { requests: writes.len() as u64, ..BatchCounts::default() };
    // Files of which a durable write has already reported failed writeback, as a sync does.
    let mut reported = [false; FILES];
    for (number, (write, done)) in writes.iter().zip(&done).enumerate() {
        let where_ = || format!("write {number} ({:?} to file {})", write.flags, write.file);
        let is_on_device = place.witness.is_on_device(&write.content);
        match &done.result {
            Ok(bytes) => {
                ensure!(*bytes == write.content.len(), "{}: {bytes} bytes", where_());
                let must_be_on_device = write.is_direct() || write.is_durable();
                ensure!(
                    !must_be_on_device || is_on_device == Some(true),
                    "{}: {is_on_device:?}",
                    where_()
                );
            }
            Err(error) => {
                results.failed += 1;
                ensure!(error.errno() == IO, "{}: {error}", where_());
                if is_on_device == Some(true) {
                    ensure!(
                        write.is_durable(),
                        "{}: it is on the device, but failed: {error}",
                        where_()
                    );
                    reported[write.file] = true;
                } else if write.is_direct() {
                    results.failed_direct += 1;
                } else {
                    reported[write.file] = true;
                }
            }
        }
    }
    drop(done);
    ensure!(buffers(&queue) == all, "buffers are lost");
    results.lost = sync_all(&place, &writes, reported)?;
    place.witness.faulty.clear();
    settle(&mut place, &writes)?;
    drop(queue);
    let counts = place.witness.faulty.fault_counts();
    place.end()?;
    Ok((results, counts))
}

/// Syncs each file and then the filesystem. Each must report failed writeback exactly once.
fn sync_all(place: &Place, writes: &[Write], reported: [bool; FILES]) -> Result<u64> {
    let mut lost = 0;
    let mut any = false;
    for (number, file) in place.files.iter().enumerate() {
        let first = file.sync_all();
        let is_lost = is_lost(place, writes, number)?;
        any |= is_lost;
        match first {
            Ok(()) => ensure!(
                !is_lost || reported[number],
                "file {number}: failed writeback is not reported"
            ),
            Err(error) => {
                ensure!(is_lost, "file {number}: {error}, but all data is on the device");
                lost += 1;
            }
        }
        file.sync_all().with_context(|| format!("file {number}: an error is reported twice"))?;
    }
    let all = place.filesystem.sync();
    ensure!(all.is_err() == any, "sync returns {all:?}; writeback has failed: {any}");
    place.filesystem.sync().context("an error is reported twice")?;
    Ok(lost)
}

/// Returns whether the writeback of some data of a file failed, after all of it was tried.
fn is_lost(place: &Place, writes: &[Write], file: usize) -> Result<bool> {
    let mut is_lost = false;
    for write in writes.iter().filter(|write| write.file == file && !write.is_direct()) {
        match place.witness.is_on_device(&write.content) {
            Some(is_on_device) => is_lost |= !is_on_device,
            None => bail!("block {} of file {file} was never written back", write.block),
        }
    }
    Ok(is_lost)
}

/// Compares each block with its recorded write. A block that failed in place may have either
/// content.
fn settle(place: &mut Place, writes: &[Write]) -> Result<()> {
    for file in 0..FILES {
        let have = place.have(file)?;
        let is_lost = is_lost(place, writes, file)?;
        for write in writes.iter().filter(|write| write.file == file) {
            let is_whole = place.witness.is_on_device(&write.content) == Some(true);
            for (block, new) in (write.block..).zip(write.content.chunks(BLOCK)) {
                let range = block * BLOCK..(block + 1) * BLOCK;
                let (have, old) = (&have[range.clone()], &mut place.bytes[file][range]);
                let is_new = have == new;
                let is_right = if write.is_direct() {
                    is_new == is_whole || is_new && file == IN_PLACE
                } else if is_new {
                    place.witness.is_on_device(new) == Some(true)
                } else {
                    // It was written back in one run with blocks that failed.
                    is_lost
                };
                let flags = write.flags;
                ensure!(is_new || have == old, "file {file}, block {block}: junk ({flags:?})");
                ensure!(is_right, "file {file}, block {block}: {flags:?}, is new: {is_new}");
                if is_new {
                    old.copy_from_slice(new);
                }
            }
        }
        ensure!(have == place.bytes[file], "file {file}: a byte that was not written has changed");
    }
    Ok(())
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

fn check_seed(seed: u64, when: When) -> (BatchCounts, FaultCounts) {
    let fault = Fault::WriteError;
    run(seed, fault, when).unwrap_or_else(|error| panic!("seed {seed}, {when:?}: {error:#}"))
}

#[test]
fn without_faults_nothing_fails() {
    for seed in 0..4 {
        let (results, _) = check_seed(seed, When::Times(0));
        assert_eq!((results.failed, results.lost), (0, 0));
    }
}

#[test]
fn bad_blocks_fail_only_their_own_writes() {
    let (mut failed, mut lost, mut good) = (0, 0, 0);
    for seed in 0..if is_long() { 600 } else { 12 } {
        let one_in = [3, 8, 30, 100][usize::try_from(seed % 4).unwrap()];
        let (results, counts) = check_seed(seed, When::OneIn(one_in));
        assert!(counts.write_errors > 0 || one_in > 8);
        failed += results.failed;
        lost += results.lost;
        good += results.requests - results.failed;
    }
    assert!(failed > 20 && lost > 4 && good > 100, "{failed} failed, {lost} lost, {good} good");
}

#[test]
fn a_direct_write_that_fails_once_is_retried() {
    for seed in 0..if is_long() { 10 } else { 1 } {
        let (_, counts) = check_seed(seed, When::Times(0));
        assert_eq!(counts, FaultCounts::default());
        for number in (0..40).step_by(if is_long() { 1 } else { 5 }) {
            let (results, _) = check_seed(seed, When::Nth(number));
            assert_eq!(results.failed_direct, 0, "write {number}");
        }
    }
}

#[test]
fn a_dead_device_fails_all_later_writes() {
    let mut failed = 0;
    for seed in 0..if is_long() { 20 } else { 2 } {
        for number in (0..40).step_by(if is_long() { 1 } else { 6 }) {
            failed += check_seed(seed, When::From(number)).0.failed;
        }
    }
    assert!(failed > 100, "{failed}");
}

/// A sync that waits for requests of another thread does not report their failures. Returns the
/// number of failed requests.
fn run_with_concurrent_sync(seed: u64) -> Result<u64> {
    let mut place = Place::new(seed, None)?;
    let mut writes = writes(&mut Random::new(seed));
    for write in &mut writes {
        write.flags = IoFlags::DIRECT;
    }
    let mut lent = Lent::new();
    let mut queue = place.queue()?;
    let range = place.copies[0].clone();
    let rule = Rule { range, when: When::OneIn(3), fault: Fault::WriteError };
    place.witness.faulty.add(rule);
    let sync = || -> Result<()> {
        for file in &place.files {
            file.sync_all().context("a sync reports a failure of another thread's request")?;
        }
        place.filesystem.sync().context("a sync reports a failure of another thread's request")
    };
    let done = queue_and_wait(&place, &mut queue, &mut lent, &writes, || {
        std::thread::scope(|scope| scope.spawn(sync).join().expect("the thread does not panic"))
    })?;
    let mut failed = 0;
    for (number, (write, done)) in writes.iter().zip(&done).enumerate() {
        let is_on_device = place.witness.is_on_device(&write.content) == Some(true);
        ensure!(done.result.is_ok() == is_on_device, "write {number}: {:?}", done.result);
        failed += u64::from(!is_on_device);
    }
    drop((done, queue));
    sync()?;
    place.witness.faulty.clear();
    settle(&mut place, &writes)?;
    place.end()?;
    Ok(failed)
}

#[test]
fn failures_are_reported_to_the_submitter_only() {
    let mut failed = 0;
    for seed in 0..if is_long() { 200 } else { 4 } {
        failed +=
            run_with_concurrent_sync(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
    assert!(failed > 8, "{failed}");
}

/// A failed flush fails the durable writes of a batch, and no others.
#[test]
fn a_failed_flush_fails_durable_writes_only() {
    let place = Place::new(1, None).unwrap();
    let mut queue = place.queue().unwrap();
    let all = buffers(&queue);
    place.witness.faulty.add(Rule::everywhere(Fault::FlushError));
    let durable = |number: usize| number.is_multiple_of(2);
    for number in 0..8 {
        let mut buffer = queue.buffer(BLOCK).unwrap();
        buffer.copy_from_slice(&pattern(1 + 2 * number as u64, BLOCK));
        let dsync = if durable(number) { IoFlags::DSYNC } else { IoFlags::default() };
        let flags = IoFlags::DIRECT.with(dsync);
        let file = &place.files[number % FILES];
        queue.write(file, (number * BLOCK) as u64, buffer, flags, number as u64).unwrap();
    }
    for (number, done) in reap(&mut queue, 8).unwrap().iter().enumerate() {
        assert_eq!(done.result.is_err(), durable(number), "write {number}: {:?}", done.result);
    }
    assert_eq!(buffers(&queue), all);
    place.witness.faulty.clear();
    assert!(!place.filesystem.is_writable());
    let Place { medium, filesystem, files, .. } = place;
    drop((queue, files, filesystem));
    butternut_sim::volume::check_crashed(&medium).unwrap();
}
