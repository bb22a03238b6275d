//! Threads that share names, files and blocks of the library (see `histories`): on recorded volumes
//! in memory, whose crashes are checked, and in files, where requests use `io_uring`.
//!
//! `BUTTERNUT_ROUNDS=N` runs N rounds of each kind, of 2,000 operations; `BUTTERNUT_SEED=N` runs
//! one of them. `BUTTERNUT_LONG=1` runs 50 rounds. 500 rounds of each kind were right once: two
//! million operations, of which 739 thousand were checked reads, and 99 thousand crashes.

#![allow(clippy::print_stdout, reason = "a long run prints what it did")]

use anyhow::Result;
use butternut::Compress;
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::histories::{RunCounts, SharedRun};
use butternut_sim::volume::{fresh, fresh_in_file};

const VOLUME_BYTES: u64 = 256 << 20;
/// Operations of all threads in one round.
const OPERATIONS: usize = 2000;
const ROUNDS: u64 = 3;
const LONG_ROUNDS: u64 = 50;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run_of(seed: u64) -> SharedRun {
    let threads = [4_u8, 5, 6, 8][usize::try_from(seed % 4).expect("small")];
    let compress = (seed % 5 == 4).then(|| {
        let compressor = "zstd:1".parse().expect("an algorithm");
        Compress { compressor, is_forced: true }
    });
    SharedRun {
        seed,
        threads,
        operations: OPERATIONS / usize::from(threads),
        page_cache_bytes: if seed.is_multiple_of(3) { 1 << 20 } else { 64 << 20 },
        commit_seconds: if seed.is_multiple_of(2) { 1 } else { 1 << 30 },
        compress,
        has_partial_writes: number("BUTTERNUT_WHOLE").is_none(),
        crashes_one_in: number("BUTTERNUT_CRASHES_ONE_IN").unwrap_or(4),
    }
}

fn options(seed: u64) -> MkfsOptions {
    let data = (seed % 7 == 6).then_some(Profile::Dup);
    MkfsOptions { data, ..MkfsOptions::default() }
}

fn in_memory(seed: u64) -> Result<RunCounts> {
    run_of(seed).run_with_crashes(fresh(VOLUME_BYTES, &options(seed))?)
}

fn in_file(seed: u64) -> Result<RunCounts> {
    run_of(seed).run(&fresh_in_file(VOLUME_BYTES, &options(seed))?.device)
}

fn check_seeds(first: u64, run: fn(u64) -> Result<RunCounts>) -> RunCounts {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let rounds = if is_long { LONG_ROUNDS } else { ROUNDS };
    let seeds = match number("BUTTERNUT_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("BUTTERNUT_ROUNDS").unwrap_or(rounds),
    };
    let (mut sum, mut rounds) = (RunCounts::default(), 0);
    for seed in seeds {
        sum.add(run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}")));
        rounds += 1;
    }
    println!("{rounds} rounds: {sum:?}");
    assert!(sum.queued * 4 > sum.operations && sum.reads * 8 > sum.operations, "{sum:?}");
    assert!(sum.syncs > rounds, "{sum:?}");
    sum
}

#[test]
fn reads_and_crashes_of_shared_files_show_what_their_history_allows() {
    let ran = check_seeds(0, in_memory);
    assert!(ran.crashes > 20, "{ran:?}");
}

#[test]
fn reads_of_shared_files_in_flight_show_what_their_history_allows() {
    check_seeds(1000, in_file);
}
