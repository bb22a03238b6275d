//! A device that fails in the middle of a batch. Each failure is the result of the requests whose
//! blocks it kept from going down, also where these were one device write with others; what memory
//! could not bring down later is told to who syncs its file, once, and to who syncs all, once; and
//! nothing is lost: no buffer, no space, no other byte.
//!
//! Who judges is a witness at the device, who knows how the last write of each block went.
//!
//! `BUTTERNUT_LONG=1` fails every request of more batches.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod place;
mod reads;
mod witness;

use anyhow::{Context, Result, bail, ensure};
use butternut::{Buffer, Done, IoFlags, Queue};
use butternut_device::{Fault, FaultCounts, Rule, When};
use butternut_sim::content::pattern;
use butternut_sim::lender::Lent;
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

/// What was told of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    requests: u64,
    failed: u64,
    /// Of them, direct ones that are not down.
    failed_direct: u64,
    /// Files whose sync failed.
    lost: u64,
}

/// Writes to different blocks, some neighbours, all of other bytes.
fn writes(random: &mut Random) -> Vec<Write> {
    let mut writes = Vec::new();
    let dense = random.one_in(2);
    for file in 0..FILES {
        let mut block = random.index(4);
        while block + 4 < BLOCKS && writes.len() < 24 * (file + 1) {
            let blocks = if random.one_in(4) { 1 + random.index(4) } else { 1 };
            // Odd, so that no block is like another.
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
    // Requests of different files become neighbours on disk.
    for at in (1..writes.len()).rev() {
        writes.swap(at, random.index(at + 1));
    }
    writes
}

fn queue_all(place: &Place, queue: &mut Queue, writes: &[Write]) -> Result<Vec<Done>> {
    queue_and_wait(place, queue, writes, || Ok(()))
}

/// The same, with something done before anything is reaped.
fn queue_and_wait(
    place: &Place,
    queue: &mut Queue,
    writes: &[Write],
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Vec<Done>> {
    let mut lent = Vec::new();
    for (tag, write) in (0..).zip(writes) {
        let bytes = write.content.len();
        let mut buffer = if write.is_lent {
            let memory = Lent::new(bytes);
            let buffer = memory.buffer(bytes);
            lent.push(memory);
            buffer
        } else {
            queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
        };
        buffer.copy_from_slice(&write.content);
        let offset = write.range().start as u64;
        let taken = queue.write(&place.files[write.file], offset, buffer, write.flags, tag);
        taken.map_err(|refused| refused.error).context("it is refused")?;
    }
    meanwhile()?;
    let done = reap(queue, writes.len())?;
    for (done, write) in done.iter().zip(writes) {
        ensure!(done.buffer[..] == write.content, "another buffer came back");
    }
    Ok(done)
}

/// Queues a batch while `fault` strikes; says what was told, and how many were struck.
fn run(seed: u64, fault: Fault, when: When) -> Result<(Told, FaultCounts)> {
    let mut place = Place::new(seed, None)?;
    let writes = writes(&mut Random::new(seed));
    let mut queue = place.queue()?;
    let all = buffers(&queue);
    place.witness.faulty.add(Rule { range: place.copies[0].clone(), when, fault });
    let done = queue_all(&place, &mut queue, &writes)?;
    let mut told = Told { requests: writes.len() as u64, ..Told::default() };
    // Losses of a file that a durable write heard of, as its sync.
    let mut heard = [false; FILES];
    for (number, (write, done)) in writes.iter().zip(&done).enumerate() {
        let where_ = || format!("write {number} ({:?} to file {})", write.flags, write.file);
        let is_down = place.witness.is_down(&write.content);
        match &done.result {
            Ok(bytes) => {
                ensure!(*bytes == write.content.len(), "{}: {bytes} bytes", where_());
                let must_be_down = write.is_direct() || write.is_durable();
                ensure!(!must_be_down || is_down == Some(true), "{}: {is_down:?}", where_());
            }
            Err(error) => {
                told.failed += 1;
                ensure!(error.errno() == IO, "{}: {error}", where_());
                if is_down == Some(true) {
                    ensure!(write.is_durable(), "{}: it is down, and failed: {error}", where_());
                    heard[write.file] = true;
                } else if write.is_direct() {
                    told.failed_direct += 1;
                } else {
                    heard[write.file] = true;
                }
            }
        }
    }
    drop(done);
    ensure!(buffers(&queue) == all, "buffers are lost");
    told.lost = sync_all(&place, &writes, heard)?;
    place.witness.faulty.clear();
    settle(&mut place, &writes)?;
    drop(queue);
    let counts = place.witness.faulty.fault_counts();
    place.end()?;
    Ok((told, counts))
}

/// Who syncs a file hears of what memory could not bring down, once; so does who syncs all.
fn sync_all(place: &Place, writes: &[Write], heard: [bool; FILES]) -> Result<u64> {
    let mut lost = 0;
    let mut any = false;
    for (number, file) in place.files.iter().enumerate() {
        let first = file.sync_all();
        let is_lost = is_lost(place, writes, number)?;
        any |= is_lost;
        match first {
            Ok(()) => ensure!(!is_lost || heard[number], "file {number}: nobody hears of a loss"),
            Err(error) => {
                ensure!(is_lost, "file {number}: {error}, but all is down");
                lost += 1;
            }
        }
        file.sync_all().with_context(|| format!("file {number}: told twice"))?;
    }
    let all = place.filesystem.sync();
    ensure!(all.is_err() == any, "who syncs all hears {all:?}; something is lost: {any}");
    place.filesystem.sync().context("told twice")?;
    Ok(lost)
}

/// Whether memory could not bring down something of a file, all of which has been tried.
fn is_lost(place: &Place, writes: &[Write], file: usize) -> Result<bool> {
    let mut is_lost = false;
    for write in writes.iter().filter(|write| write.file == file && !write.is_direct()) {
        match place.witness.is_down(&write.content) {
            Some(is_down) => is_lost |= !is_down,
            None => bail!("block {} of file {file} never went down", write.block),
        }
    }
    Ok(is_lost)
}

/// Each block is what the witness says. What failed in place may be there or not.
fn settle(place: &mut Place, writes: &[Write]) -> Result<()> {
    for file in 0..FILES {
        let have = place.have(file)?;
        let is_lost = is_lost(place, writes, file)?;
        for write in writes.iter().filter(|write| write.file == file) {
            let is_whole = place.witness.is_down(&write.content) == Some(true);
            for (block, new) in (write.block..).zip(write.content.chunks(BLOCK)) {
                let range = block * BLOCK..(block + 1) * BLOCK;
                let (have, old) = (&have[range.clone()], &mut place.bytes[file][range]);
                let is_new = have == new;
                let is_right = if write.is_direct() {
                    is_new == is_whole || is_new && file == IN_PLACE
                } else if is_new {
                    place.witness.is_down(new) == Some(true)
                } else {
                    // It went down as a run, with others that did not.
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
        ensure!(have == place.bytes[file], "file {file}: a byte that nobody wrote has changed");
    }
    Ok(())
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

fn hold(seed: u64, when: When) -> (Told, FaultCounts) {
    let fault = Fault::WriteError;
    run(seed, fault, when).unwrap_or_else(|error| panic!("seed {seed}, {when:?}: {error:#}"))
}

#[test]
fn without_faults_nothing_fails() {
    for seed in 0..4 {
        let (told, _) = hold(seed, When::Times(0));
        assert_eq!((told.failed, told.lost), (0, 0));
    }
}

#[test]
fn bad_blocks_fail_the_writes_that_were_to_lie_there_and_no_others() {
    let (mut failed, mut lost, mut good) = (0, 0, 0);
    for seed in 0..if is_long() { 600 } else { 12 } {
        let one_in = [3, 8, 30, 100][usize::try_from(seed % 4).unwrap()];
        let (told, counts) = hold(seed, When::OneIn(one_in));
        assert!(counts.write_errors > 0 || one_in > 8);
        failed += told.failed;
        lost += told.lost;
        good += told.requests - told.failed;
    }
    assert!(failed > 20 && lost > 4 && good > 100, "{failed} failed, {lost} lost, {good} good");
}

#[test]
fn a_direct_write_that_fails_once_is_tried_again() {
    for seed in 0..if is_long() { 10 } else { 1 } {
        let (_, counts) = hold(seed, When::Times(0));
        assert_eq!(counts, FaultCounts::default());
        for number in (0..40).step_by(if is_long() { 1 } else { 5 }) {
            let (told, _) = hold(seed, When::Nth(number));
            assert_eq!(told.failed_direct, 0, "write {number}");
        }
    }
}

#[test]
fn a_device_that_dies_in_the_middle_fails_what_comes_behind() {
    let mut failed = 0;
    for seed in 0..if is_long() { 20 } else { 2 } {
        for number in (0..40).step_by(if is_long() { 1 } else { 6 }) {
            failed += hold(seed, When::From(number)).0.failed;
        }
    }
    assert!(failed > 100, "{failed}");
}

/// Who waits for a file completes what is in flight on it: he hears of no failure but his own.
fn helped(seed: u64) -> Result<u64> {
    let mut place = Place::new(seed, None)?;
    let mut writes = writes(&mut Random::new(seed));
    for write in &mut writes {
        write.flags = IoFlags::DIRECT;
    }
    let mut queue = place.queue()?;
    let range = place.copies[0].clone();
    let rule = Rule { range, when: When::OneIn(3), fault: Fault::WriteError };
    place.witness.faulty.add(rule);
    let sync = || -> Result<()> {
        for file in &place.files {
            file.sync_all().context("somebody else hears of a failure")?;
        }
        place.filesystem.sync().context("somebody else hears of a failure")
    };
    let done = queue_and_wait(&place, &mut queue, &writes, || {
        std::thread::scope(|scope| scope.spawn(sync).join().expect("it does not panic"))
    })?;
    let mut failed = 0;
    for (number, (write, done)) in writes.iter().zip(&done).enumerate() {
        let is_down = place.witness.is_down(&write.content) == Some(true);
        ensure!(done.result.is_ok() == is_down, "write {number}: {:?}", done.result);
        failed += u64::from(!is_down);
    }
    drop((done, queue));
    sync()?;
    place.witness.faulty.clear();
    settle(&mut place, &writes)?;
    place.end()?;
    Ok(failed)
}

#[test]
fn a_failure_that_another_thread_finds_is_told_to_who_asked_and_not_to_him() {
    let mut failed = 0;
    for seed in 0..if is_long() { 200 } else { 4 } {
        failed += helped(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
    assert!(failed > 8, "{failed}");
}

/// What is asked to be durable fails where the device cannot promise it; nothing else does.
#[test]
fn a_flush_that_fails_fails_the_durable_writes_of_a_batch_and_no_others() {
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
