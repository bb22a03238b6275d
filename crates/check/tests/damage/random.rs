//! Changes random bytes and recomputes all checksums. The checker must not panic or hang, and must
//! find most changes.

use crate::test_image::TestImage;
use crate::{CURRENT, kinds, listed, run_check};
use butternut_check::{CheckOptions, check};
use butternut_format::node::HEADER_BYTES;
use butternut_format::units::{Logical, TreeId};
use libtest_mimic::Failed;

/// Rounds, unless `BUTTERNUT_FUZZ_ROUNDS` says otherwise.
const ROUNDS: u64 = 400;

/// Returns the next number of a pseudo-random sequence (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

pub(crate) fn random_bytes() -> Result<(), Failed> {
    let rounds = std::env::var("BUTTERNUT_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(ROUNDS);
    let image = TestImage::new(&CURRENT);
    let blocks = every_block(&image);
    let mut unnoticed = Vec::new();
    for seed in 0..rounds {
        let mut state = seed;
        let block = blocks[next(&mut state) as usize % blocks.len()];
        let before = image.bytes(block);
        let used = used_bytes(&before);
        let at = used[next(&mut state) as usize % used.len()];
        let change = (next(&mut state) % 255 + 1) as u8;
        image.edit_block(block, |bytes| bytes[at] ^= change);
        let options = CheckOptions::default();
        if let Ok(report) = check(vec![image.device()], &options)
            && report.is_clean()
        {
            unnoticed.push(what(&before, at));
        }
        image.write(block, &before, 2);
    }
    let report = run_check(&image, 1);
    if !report.is_clean() {
        return Err(format!("not put back: {:?} {}", kinds(&report), listed(&report)).into());
    }
    // Half of the bytes are stored only once, such as times, owners, modes and inline data.
    let most = rounds * 6 / 10;
    if unnoticed.len() as u64 > most {
        let all = unnoticed.join("\n");
        return Err(format!("{} of {rounds} are not noticed:\n{all}", unnoticed.len()).into());
    }
    Ok(())
}

fn every_block(image: &TestImage) -> Vec<Logical> {
    let trees = [1, 2, 3, 4, 5, 7, 9, 10, 11, 256, 257].map(TreeId);
    let mut blocks: Vec<Logical> = Vec::new();
    for tree in trees {
        for (key, _) in image.items(tree) {
            blocks.extend(image.path_to(tree, &key).into_iter().map(|(block, _)| block));
        }
        blocks.sort_unstable();
        blocks.dedup();
    }
    blocks
}

/// Returns the used ranges of a block: its header behind the checksum, its slots and its items.
fn used_bytes(bytes: &[u8]) -> Vec<usize> {
    let count = u32::from_le_bytes(bytes[96..100].try_into().unwrap()) as usize;
    let slot_bytes = if bytes[100] == 0 { 25 } else { 33 };
    let slots_end = HEADER_BYTES + count * slot_bytes;
    let mut used: Vec<usize> = (32..slots_end).collect();
    if bytes[100] == 0 && count > 0 {
        let last = HEADER_BYTES + (count - 1) * 25 + 17;
        let offset = u32::from_le_bytes(bytes[last..last + 4].try_into().unwrap()) as usize;
        used.extend(HEADER_BYTES + offset..bytes.len());
    }
    used
}

/// Describes a byte of a block: the owner, and the field of the header or the item type and offset.
fn what(bytes: &[u8], at: usize) -> String {
    let owner = u64::from_le_bytes(bytes[88..96].try_into().unwrap());
    let count = u32::from_le_bytes(bytes[96..100].try_into().unwrap()) as usize;
    if at < HEADER_BYTES {
        return format!("tree {owner} header byte {at}");
    }
    if bytes[100] != 0 {
        return format!("tree {owner} node slot byte {}", (at - HEADER_BYTES) % 33);
    }
    for slot in 0..count {
        let raw = &bytes[HEADER_BYTES + slot * 25..][..25];
        let number = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap()) as usize;
        let start = HEADER_BYTES + number(17);
        if (start..start + number(21)).contains(&at) {
            return format!("tree {owner} item {} byte {}", raw[8], at - start);
        }
    }
    format!("tree {owner} leaf slot byte {}", (at - HEADER_BYTES) % 25)
}
