//! Runs every target on the inputs that have found a bug, and on seeded random ones.
//!
//! `BUTTERNUT_FUZZ_ROUNDS` is the number of random inputs of each target; `make test-long` raises
//! it.

mod random;

use butternut_fuzz::{
    Changed, Ending, Received, TARGETS, Target, changed, crafted_ending, received, target,
};
use random::{Random, rounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

fn run(target: &Target, input: &[u8], from: &str) {
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(ended.is_ok(), "{}: {from}: {input:02x?}", target.name);
}

fn seeded(name: &str, count: u64, bytes_max: usize) {
    let target = target(name).expect("a target of this name");
    for round in 0..rounds(count) {
        let input = Random(round).input(bytes_max);
        run(target, &input, &format!("seed {round}"));
    }
}

#[test]
fn kept_inputs_find_nothing() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept");
    for target in TARGETS {
        let Ok(inputs) = std::fs::read_dir(kept.join(target.name)) else { continue };
        for input in inputs {
            let path = input.expect("a readable directory").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                continue;
            }
            let bytes = std::fs::read(&path).expect("a readable input");
            run(target, &bytes, &path.display().to_string());
        }
    }
}

#[test]
fn decoders_end_on_any_bytes() {
    for target in TARGETS.iter().filter(|target| !target.name.starts_with("volume")) {
        seeded(target.name, 20_000, 600);
    }
}

#[test]
fn blocks_with_valid_checksums_end() {
    for name in ["super_block", "tree_block", "leaf_items"] {
        seeded(name, 5_000, 4096);
    }
}

#[test]
fn crafted_volumes_end_and_most_still_open() {
    let (mut walked, rounds) = (0, rounds(400));
    for round in 0..rounds {
        let mut input = Random(round).input(9 * 12);
        input.extend(std::iter::repeat_n(0, 10));
        if crafted_ending(&input) == Ending::Walked {
            walked += 1;
        }
    }
    assert!(walked * 4 > rounds, "{walked} of {rounds}: the mutations reach too little");
}

#[test]
fn checks_of_crafted_volumes_end() {
    seeded("volume_checked", 400, 9 * 12);
}

#[test]
fn rotten_volumes_never_return_wrong_bytes() {
    seeded("volume_rotten", 300, 9 * 24);
}

/// Runs scripts on unchanged volumes and on crafted ones.
#[test]
fn clean_volumes_stay_clean_when_they_are_changed() {
    let (mut clean, mut damaged, rounds) = (0, 0, rounds(150));
    for round in 0..rounds {
        let mut random = Random(round ^ 0xc4a9_6ed0);
        let mut input = random.input(8 * 60);
        input.resize(input.len().max(200), 0);
        (input[0], input[1]) = (random.next().to_le_bytes()[0], random.next().to_le_bytes()[0]);
        // Every third volume is unchanged; the others have few changes, so that most can be opened.
        input[1] = if round.is_multiple_of(3) { 0 } else { 1 + input[1] % 6 };
        let ended = catch_unwind(AssertUnwindSafe(|| changed(&input))).ok();
        let ended = ended.unwrap_or_else(|| panic!("seed {round}: {input:02x?}"));
        clean += u64::from(ended == Changed::Clean);
        damaged += u64::from(ended == Changed::Damaged);
    }
    assert!(
        clean * 4 > rounds && damaged * 10 > rounds,
        "{clean} clean, {damaged} damaged of {rounds}"
    );
}

#[test]
fn crafted_streams_are_received_or_refused_and_the_volume_stays_clean() {
    let (mut complete, mut refused, rounds) = (0, 0, rounds(150));
    for round in 0..rounds {
        let mut random = Random(round ^ 0x57e4_a3d1);
        // Most random commands fail, so many streams are short.
        let steps = 1 + random.next() % if round.is_multiple_of(2) { 1 } else { 40 };
        let mut input: Vec<u8> = (0..steps * 2).flat_map(|_| random.next().to_le_bytes()).collect();
        input[1] = u8::from(!round.is_multiple_of(3));
        let ended = catch_unwind(AssertUnwindSafe(|| received(&input))).ok();
        match ended.unwrap_or_else(|| panic!("seed {round}: {input:02x?}")) {
            Received::Complete => complete += 1,
            Received::Refused => refused += 1,
            Received::Short => {}
        }
    }
    assert!(complete * 10 > rounds, "{complete} complete, {refused} refused of {rounds}");
    assert!(refused * 10 > rounds, "{complete} complete, {refused} refused of {rounds}");
}
