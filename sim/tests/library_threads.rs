//! Threads on the same files of the library, through every lane (see `together`), on volumes in
//! memory and in files, where requests use `io_uring`.
//!
//! `BUTTERNUT_LONG=1` runs more and longer seeds; `BUTTERNUT_SEED=N` runs one of them.

#![allow(clippy::print_stdout, reason = "a long run prints what it did")]

use anyhow::Result;
use butternut::Compress;
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::together::{RunCounts, Together};
use butternut_sim::volume::{fresh, fresh_in_file};

const VOLUME_BYTES: u64 = 512 << 20;

fn together(seed: u64, is_long: bool) -> Together {
    let algorithms = ["zlib:1", "lzo", "zstd:1"];
    let compress = (seed % 5 == 4).then(|| {
        let name = algorithms[usize::try_from(seed % 3).expect("small")];
        Compress { compressor: name.parse().expect("an algorithm"), is_forced: true }
    });
    Together {
        seed,
        threads: [2, 3, 4, 6][usize::try_from(seed % 4).expect("small")],
        operations: if is_long { 2500 } else { 400 },
        // A cache for a part of the files, or for all of them.
        page_cache_bytes: if seed.is_multiple_of(3) { 1 << 20 } else { 64 << 20 },
        commit_seconds: if seed.is_multiple_of(2) { 1 } else { 1 << 30 },
        compress,
    }
}

fn run(seed: u64, is_long: bool, in_file: bool) -> Result<RunCounts> {
    let together = together(seed, is_long);
    let data = (seed % 7 == 6).then_some(Profile::Dup);
    let options = MkfsOptions { data, ..MkfsOptions::default() };
    if !in_file {
        return together.run(&fresh(VOLUME_BYTES, &options)?);
    }
    together.run(&fresh_in_file(VOLUME_BYTES, &options)?.device)
}

fn check_seeds(first: u64, in_file: bool) {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => first..first + if is_long { 150 } else { 6 },
    };
    let (mut sum, mut count) = (RunCounts::default(), 0);
    for seed in seeds {
        let ran = run(seed, is_long, in_file)
            .unwrap_or_else(|error| panic!("seed {seed}, in a file: {in_file}: {error:#}"));
        sum.operations += ran.operations;
        sum.queued += ran.queued;
        sum.shared += ran.shared;
        count += 1;
    }
    println!("{count} runs: {sum:?}");
    assert!(sum.queued * 4 > sum.operations && sum.shared * 10 > sum.operations, "{sum:?}");
}

#[test]
fn threads_read_what_they_wrote_by_every_lane() {
    check_seeds(0, false);
}

#[test]
fn threads_read_what_they_wrote_with_io_uring() {
    check_seeds(1000, true);
}
