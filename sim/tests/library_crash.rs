//! Workloads of the library on a device that loses power: after every crash the checker finds no
//! damage, and the volume opens, shows one of the model's states and can be changed (see
//! `crash::workload`).
//!
//! `BUTTERNUT_LONG=1` checks at least 20,000 crashes; `BUTTERNUT_SEED=N` checks one workload.

use butternut::Compress;
use butternut_device::CrashOptions;
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::workload::Workload;
use butternut_sim::crash::{JudgeOptions, Verdict};
use butternut_sim::library::{CompressingEngine, LibraryEngine};
use butternut_sim::random::Random;
use butternut_sim::script;
use butternut_sim::volume::{fresh, is_super_block};
use std::ops::Range;
use std::time::Duration;

const VOLUME_BYTES: u64 = 256 << 20;

/// Returns short and long workloads: 3 to 200 operations.
fn workload(seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let steps = match random.below(4) {
        0 => 3 + random.index(8),
        1 | 2 => 10 + random.index(50),
        _ => 60 + random.index(140),
    };
    let crashes = CrashOptions { seed, seeded_per_gap: 6, pivotal: is_super_block };
    Workload {
        seed,
        steps,
        sync_one_in: 3 + random.below(12),
        batch_one_in: 0,
        subvolume_one_in: 0,
        going_on: 6,
        going_on_one_in: 8,
        judging: JudgeOptions { crashes, threads: 2, one_in: 1 },
    }
}

/// Checks the crashes of one script. `seed` chooses them.
fn check_script(text: &str, seed: u64) {
    let (script, workload) = (script::parse(text).expect("a script"), workload(seed));
    let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).expect("a volume");
    let record = workload
        .record(&LibraryEngine, base, workload.generator(), Some(&script))
        .expect("the engine runs");
    let record = record.unwrap_or_else(|found| panic!("{found}"));
    let verdict = workload.judge(&LibraryEngine, &record);
    assert_eq!(verdict.failed, 0, "{verdict}");
}

/// `BUTTERNUT_SCRIPT=PATH` checks the crashes of one script.
#[test]
fn a_given_script_survives_every_crash() {
    let Some(path) = std::env::var_os("BUTTERNUT_SCRIPT") else { return };
    let seed = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    check_script(&std::fs::read_to_string(path).unwrap(), seed.unwrap_or(0));
}

/// Scripts whose crashes were judged wrongly: a durable write that was refused, because the file
/// had become immutable, makes nothing durable; and a commit may separate the blocks that a copy
/// shares from the bytes that it writes after them.
#[test]
fn kept_scripts_survive_every_crash() {
    check_script(include_str!("library_crash_scripts/refused_durable_write.jsonl"), 7070);
    check_script(include_str!("library_crash_scripts/copy_cut_by_a_commit.jsonl"), 265);
}

/// Crashes of workloads whose files are compressed.
#[test]
fn compressed_files_survive_every_crash() {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let mut sum = Verdict::default();
    for seed in 5000..if is_long { 5060 } else { 5003 } {
        let name = ["zlib:1", "lzo", "zstd:1"][usize::try_from(seed % 3).unwrap()];
        let compress = Compress { compressor: name.parse().unwrap(), is_forced: true };
        let engine = CompressingEngine(compress);
        let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        match workload(seed).check(&engine, &base, Duration::from_mins(2)).unwrap() {
            Ok(verdict) => sum.merge(verdict),
            Err(found) => panic!("{found}"),
        }
    }
    assert!(sum.states >= 30, "{sum}");
}

/// Crashes of workloads in which most writes are in flight with others, by every lane.
#[test]
fn batches_survive_every_crash() {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let mut sum = Verdict::default();
    for seed in 7000..if is_long { 7200 } else { 7004 } {
        let workload = Workload { batch_one_in: 2, sync_one_in: 20, ..workload(seed) };
        let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        match workload.check(&LibraryEngine, &base, Duration::from_mins(2)).unwrap() {
            Ok(verdict) => sum.merge(verdict),
            Err(found) => panic!("{found}"),
        }
    }
    assert!(sum.states >= 40, "{sum}");
}

/// Crashes of workloads with subvolumes, snapshots, clones, deduplication and defragmentation.
#[test]
fn subvolumes_survive_every_crash() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds: Range<u64> = match only {
        Some(seed) => seed..seed + 1,
        None => 9000..if is_long { 9200 } else { 9006 },
    };
    let mut sum = Verdict::default();
    for seed in seeds {
        let workload = Workload { subvolume_one_in: 3, ..workload(seed) };
        let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        match workload.check(&LibraryEngine, &base, Duration::from_mins(2)).unwrap() {
            Ok(verdict) => sum.merge(verdict),
            Err(found) => panic!("{found}"),
        }
    }
    assert!(sum.states >= 40 || only.is_some(), "{sum}");
}

#[test]
fn the_library_survives_every_crash() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 320 } else { 10 },
    };
    let mut sum = Verdict::default();
    for seed in seeds {
        let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        match workload(seed).check(&LibraryEngine, &base, Duration::from_mins(2)).unwrap() {
            Ok(verdict) => sum.merge(verdict),
            Err(found) => panic!("{found}"),
        }
    }
    let wanted = match (only, is_long) {
        (Some(_), _) => 10,
        (None, false) => 400,
        (None, true) => 20_000,
    };
    assert!(sum.states >= wanted, "{sum}");
}
