//! Batches of reads.

use crate::is_long;
use crate::place::{BLOCK, BLOCKS, FILES, IN_PLACE, Place, buffers, reap};
use anyhow::{Result, ensure};
use butternut::Buffer;
use butternut::queue::IoFlags;
use butternut_device::{Device, Fault, Rule, When};
use butternut_mkfs::Profile;
use butternut_sim::borrowed::BorrowedMemory;
use butternut_sim::random::Random;

struct Read {
    file: usize,
    block: usize,
    blocks: usize,
}

fn reads(random: &mut Random, files: usize) -> Vec<Read> {
    let one = |_| {
        let blocks = if random.one_in(3) { 1 + random.index(6) } else { 1 };
        let block = random.index(BLOCKS - blocks);
        Read { file: random.index(files), block, blocks }
    };
    (0..60).map(one).collect()
}

/// Returns how many blocks a read returns under the rule: all before the first bad one.
fn want(place: &Place, read: &Read) -> Result<usize> {
    for number in 0..read.blocks {
        let block = read.block + number;
        let offset = place.device_offset(read.file, block)?;
        let mut have = vec![0; BLOCK];
        let is_read = place.witness.read_at(offset, &mut have).is_ok();
        if !is_read || have != place.bytes[read.file][block * BLOCK..(block + 1) * BLOCK] {
            return Ok(number);
        }
    }
    Ok(read.blocks)
}

/// Returns how many reads failed, and how many were short.
fn run(seed: u64, data: Option<Profile>, rule: &Rule, is_passing: bool) -> Result<(u64, u64)> {
    let place = Place::new(seed, data)?;
    // Without checksums, corruption is not detected.
    let files = if matches!(rule.fault, Fault::Rot { .. }) { IN_PLACE } else { FILES };
    let reads = reads(&mut Random::new(seed), files);
    // Lives longer than the requests of the queue and their completions.
    let mut borrowed = Vec::new();
    let mut queue = place.queue()?;
    let all = buffers(&queue);
    let range = place.copies[0].clone();
    place.witness.faulty.add(Rule { range, ..rule.clone() });
    for (tag, read) in (0..).zip(&reads) {
        let bytes = read.blocks * BLOCK;
        let buffer = if tag % 5 == 0 {
            borrowed.push(BorrowedMemory::new(bytes));
            borrowed.last().expect("just pushed").buffer(bytes)
        } else {
            queue.buffer(bytes).unwrap_or_else(|| Buffer::zeroed(bytes))
        };
        let offset = (read.block * BLOCK) as u64;
        let taken = queue.read(&place.files[read.file], offset, buffer, IoFlags::DIRECT, tag);
        ensure!(taken.is_ok(), "refused");
    }
    let done = reap(&mut queue, reads.len())?;
    let (mut failed, mut short) = (0, 0);
    for (number, (read, done)) in reads.iter().zip(&done).enumerate() {
        let has_copies = data.is_some() || is_passing;
        let want = if has_copies { read.blocks } else { want(&place, read)? };
        let start = read.block * BLOCK;
        match &done.result {
            Ok(bytes) => {
                ensure!(*bytes == want * BLOCK && want > 0, "read {number}: {bytes} bytes");
                let have = &done.buffer[..*bytes];
                ensure!(*have == place.bytes[read.file][start..start + bytes], "read {number}");
                short += u64::from(want < read.blocks);
            }
            Err(error) => {
                ensure!(want == 0, "read {number} of {want} blocks: {error}");
                failed += 1;
            }
        }
    }
    drop(done);
    ensure!(buffers(&queue) == all, "buffers are lost");
    drop(queue);
    place.witness.faulty.clear();
    place.end()?;
    Ok((failed, short))
}

fn check_seed(seed: u64, data: Option<Profile>, fault: Fault, when: When) -> (u64, u64) {
    let is_passing = matches!(when, When::Nth(_) | When::Times(_));
    let rule = Rule { when, ..Rule::everywhere(fault) };
    let ran = run(seed, data, &rule, is_passing);
    ran.unwrap_or_else(|error| panic!("seed {seed}, {fault:?}, {when:?}: {error:#}"))
}

#[test]
fn bad_blocks_fail_only_the_reads_that_touch_them() {
    let (mut failed, mut short) = (0, 0);
    for seed in 0..if is_long() { 200 } else { 6 } {
        for fault in [Fault::ReadError, Fault::Rot { bits: 3 }] {
            let results = check_seed(seed, None, fault, When::OneIn(2 + seed % 9));
            failed += results.0;
            short += results.1;
        }
    }
    assert!(failed > 30 && short > 5, "{failed} failed, {short} were short");
}

#[test]
fn reads_succeed_from_another_copy() {
    for seed in 0..if is_long() { 100 } else { 4 } {
        for fault in [Fault::ReadError, Fault::Rot { bits: 3 }] {
            let results = check_seed(seed, Some(Profile::Dup), fault, When::OneIn(2 + seed % 5));
            assert_eq!(results, (0, 0));
        }
    }
}

#[test]
fn a_read_that_fails_once_is_retried() {
    for seed in 0..if is_long() { 10 } else { 1 } {
        for number in (0..60).step_by(if is_long() { 1 } else { 7 }) {
            for fault in [Fault::ReadError, Fault::Rot { bits: 1 }] {
                assert_eq!(check_seed(seed, None, fault, When::Nth(number)), (0, 0));
            }
        }
    }
}
