//! Targets for superblocks and tree blocks. Checksum and identity are made valid, so that inputs
//! reach the checks behind them.

use butternut_format::checksum::ChecksumKind;
use butternut_format::key::{Key, RawKey};
use butternut_format::node::{BlockRules, Expected, HEADER_BYTES, RawItem, TreeBlock};
use butternut_format::super_block::SuperBlock;
use butternut_format::units::{Generation, Logical, TreeId};
use std::hint::black_box;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const FSID: [u8; 16] = [0x5a; 16];
const NODE_BYTES: usize = 4096;
const LOGICAL: u64 = 1 << 20;
const GENERATION: u64 = 100;

/// A superblock with valid magic, address and checksum; the rest is the input.
pub(crate) fn super_block(input: &[u8]) {
    let mut bytes = vec![0; 4096];
    fill(&mut bytes, input);
    let kind = ChecksumKind::check(u16::from_le_bytes([bytes[0xc4], bytes[0xc5]]));
    bytes[0x30..0x38].copy_from_slice(&(64_u64 << 10).to_le_bytes());
    bytes[0x40..0x48].copy_from_slice(b"_BHRfS_M");
    sign(&mut bytes, kind.unwrap_or(ChecksumKind::Crc32c));
    if let Ok(checked) = SuperBlock::check(&bytes, 0) {
        assert!(checked.system_chunks().count() <= 2048 / 48);
        black_box((
            checked.label(),
            checked.root(),
            checked.log_root(),
            checked.writable().is_ok(),
        ));
    }
}

fn fill(bytes: &mut [u8], input: &[u8]) {
    for (to, from) in bytes.iter_mut().zip(input) {
        *to = *from;
    }
}

fn sign(bytes: &mut [u8], kind: ChecksumKind) {
    let digest = kind.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
}

pub(crate) fn rules() -> BlockRules {
    BlockRules {
        csum: ChecksumKind::Crc32c,
        node_bytes: 4096,
        fsids: vec![FSID],
        incompat: u64::MAX,
        compat_ro: u64::MAX,
    }
}

/// A tree block where everything behind the address is the input: generation, owner, number of
/// items, level, slots, data.
pub(crate) fn tree_block(input: &[u8]) {
    let mut bytes = vec![0; NODE_BYTES];
    fill(&mut bytes[32..], input);
    check(bytes);
}

/// A well-formed leaf with items from the input: for each a length, a key, and that many bytes.
pub(crate) fn leaf_items(input: &[u8]) {
    let [owner, input @ ..] = input else { return };
    let mut items: Vec<(Key, &[u8])> = items_of(input);
    items.sort_by_key(|(key, _)| *key);
    items.dedup_by_key(|(key, _)| *key);
    let mut bytes = vec![0; NODE_BYTES];
    bytes[80..88].copy_from_slice(&GENERATION.to_le_bytes());
    bytes[88..96].copy_from_slice(&u64::from(*owner).to_le_bytes());
    let (mut slot, mut end, mut count) = (HEADER_BYTES, NODE_BYTES, 0_u32);
    for (key, data) in items {
        if slot + 25 + data.len() > end {
            break;
        }
        end -= data.len();
        let raw = RawItem {
            key: RawKey::from(key),
            offset: U32::new(u32::try_from(end - HEADER_BYTES).unwrap_or_default()),
            size: U32::new(u32::try_from(data.len()).unwrap_or_default()),
        };
        bytes[slot..slot + 25].copy_from_slice(raw.as_bytes());
        bytes[end..end + data.len()].copy_from_slice(data);
        slot += 25;
        count += 1;
    }
    bytes[96..100].copy_from_slice(&count.to_le_bytes());
    check(bytes);
}

fn items_of(mut input: &[u8]) -> Vec<(Key, &[u8])> {
    let mut items = Vec::new();
    while let [length, rest @ ..] = input {
        let Some((key, rest)) = rest.split_first_chunk::<17>() else { break };
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let item_type = butternut_format::key::ItemType(key[8]);
        let key = Key::new(number(&key[..8]), item_type, number(&key[9..]));
        let (data, rest) = rest.split_at(rest.len().min(usize::from(*length) * 2));
        items.push((key, data));
        input = rest;
    }
    items
}

/// Makes identity and checksum valid, checks the block, and calls all its methods.
fn check(mut bytes: Vec<u8>) {
    bytes[32..48].copy_from_slice(&FSID);
    bytes[48..56].copy_from_slice(&LOGICAL.to_le_bytes());
    bytes[56..64].copy_from_slice(&(1_u64 | 1 << 56).to_le_bytes());
    sign(&mut bytes, ChecksumKind::Crc32c);
    let number = |at: usize| {
        bytes[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let expected = Expected {
        logical: Logical(LOGICAL),
        generation: Generation(number(80)),
        level: bytes[100],
        tree: TreeId(0),
        first_key: None,
        end_key: None,
    };
    let Ok(block) = TreeBlock::check(bytes, &expected, &rules()) else { return };
    for slot in 0..block.len() {
        let key = block.key(slot).expect("a checked block has a key in every slot");
        assert_eq!(block.find(&key), Ok(slot), "keys are in order");
        assert_ne!(block.child(slot).is_some(), block.item(slot).is_some());
    }
    assert!(block.key(block.len()).is_none());
}
