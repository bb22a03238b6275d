//! Edits the items of leaves, changes the volumes, and checks them.
//!
//! `BUTTERNUT_FUZZ_ROUNDS` is the number of volumes, and `BUTTERNUT_FUZZ_FIRST` the seed of the
//! first; `make test-long` raises the number.

mod random;

use butternut_fuzz::{Changed, edited};
use random::{Random, rounds, setting};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn clean_volumes_stay_clean_and_edited_ones_become_no_worse() {
    let (mut refused, mut clean, mut damaged, rounds) = (0, 0, 0, rounds(150));
    let (mut failed, first) = (Vec::new(), setting("BUTTERNUT_FUZZ_FIRST").unwrap_or(0));
    for round in first..first + rounds {
        let mut random = Random(round ^ 0x51ed_270b);
        let bytes = |random: &mut Random| random.next().to_le_bytes();
        let mut input: Vec<u8> = (0..60).flat_map(|_| bytes(&mut random)).collect();
        input[1] = 1 + input[1] % 4;
        let ended = catch_unwind(AssertUnwindSafe(|| edited(&input)));
        match ended {
            Ok(Changed::Refused) => refused += 1,
            Ok(Changed::Clean) => clean += 1,
            Ok(Changed::Damaged) => damaged += 1,
            Err(_) => failed.push(round),
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?} of {rounds}");
    assert!(damaged * 5 > rounds, "{refused} refused, {clean} clean, {damaged} damaged");
}
