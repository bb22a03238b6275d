//! Threads that write the same blocks of the library through every lane (see `contested`), on
//! volumes in memory and in files, where requests use `io_uring`.
//!
//! `BUTTERNUT_LONG=1` runs more and longer seeds; `BUTTERNUT_SEED=N` runs one of them.

#![allow(clippy::print_stdout, reason = "a long run prints what it did")]

use anyhow::Result;
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::contested::{Contested, RunCounts};
use butternut_sim::volume::{fresh, fresh_in_file};

const VOLUME_BYTES: u64 = 256 << 20;

fn contested(seed: u64, is_long: bool) -> Contested {
    Contested {
        seed,
        threads: [2, 3, 4, 8][usize::try_from(seed % 4).expect("small")],
        operations: if is_long { 4000 } else { 600 },
        // A cache for a part of the files, or for all of them.
        page_cache_bytes: if seed.is_multiple_of(3) { 1 << 20 } else { 64 << 20 },
        commit_seconds: if seed.is_multiple_of(2) { 1 } else { 1 << 30 },
    }
}

fn run(seed: u64, is_long: bool, in_file: bool) -> Result<RunCounts> {
    let contested = contested(seed, is_long);
    let data = (seed % 5 == 4).then_some(Profile::Dup);
    let options = MkfsOptions { data, ..MkfsOptions::default() };
    if !in_file {
        return contested.run(&fresh(VOLUME_BYTES, &options)?);
    }
    contested.run(&fresh_in_file(VOLUME_BYTES, &options)?.device)
}

fn check_seeds(first: u64, in_file: bool) {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => first..first + if is_long { 80 } else { 5 },
    };
    let (mut sum, mut count) = (RunCounts::default(), 0);
    for seed in seeds {
        let ran = run(seed, is_long, in_file)
            .unwrap_or_else(|error| panic!("seed {seed}, in a file: {in_file}: {error:#}"));
        sum.operations += ran.operations;
        sum.reads += ran.reads;
        sum.shared_writes += ran.shared_writes;
        count += 1;
    }
    println!("{count} runs: {sum:?}");
    assert!(sum.reads * 10 > sum.operations, "{sum:?}");
    assert!(sum.shared_writes * 20 > sum.operations, "{sum:?}");
}

#[test]
fn threads_on_the_same_blocks_lose_no_acknowledged_write() {
    check_seeds(0, false);
}

#[test]
fn threads_on_the_same_blocks_lose_no_write_with_io_uring() {
    check_seeds(1000, true);
}
