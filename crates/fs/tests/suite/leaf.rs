//! Changes the items of a leaf by hand, as damage or a hostile user would.

use crate::volume::{HEADER_BYTES, SLOT_BYTES, word};
use butternut::format::key::{Key, RawKey};
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the tree in the header of a block.
const OWNER_AT: usize = 88;

fn put_word(block: &mut [u8], at: usize, value: usize) {
    block[at..at + 4].copy_from_slice(&u32::try_from(value).unwrap().to_le_bytes());
}

/// Returns the object and the type of each item of a leaf.
pub(crate) fn keys(block: &[u8]) -> Vec<(u64, u8)> {
    let key = |slot: usize| {
        let at = HEADER_BYTES + slot * SLOT_BYTES;
        (u64::from_le_bytes(block[at..at + 8].try_into().unwrap()), block[at + 8])
    };
    (0..word(block, 96)).map(key).collect()
}

/// Passes the object, the type and the data of each item of a leaf to `keep`, which may change the
/// data, and removes the items for which it returns `false`. Returns whether anything changed.
pub(crate) fn edit_items(block: &mut [u8], keep: impl Fn((u64, u8), &mut Vec<u8>) -> bool) -> bool {
    let (before, all, mut items) = (block.to_vec(), keys(block), Vec::new());
    for (slot, found) in all.iter().enumerate() {
        let at = HEADER_BYTES + slot * SLOT_BYTES;
        let (key, start) = (block[at..at + 17].to_vec(), HEADER_BYTES + word(block, at + 17));
        let mut data = block[start..start + word(block, at + 21)].to_vec();
        if keep(*found, &mut data) {
            items.push((key, data));
        }
    }
    let mut end = block.len();
    for (slot, (key, data)) in items.iter().enumerate() {
        let at = HEADER_BYTES + slot * SLOT_BYTES;
        let start = end - data.len();
        block[at..at + 17].copy_from_slice(key);
        put_word(block, at + 17, start - HEADER_BYTES);
        put_word(block, at + 21, data.len());
        block[start..end].copy_from_slice(data);
        end = start;
    }
    put_word(block, 96, items.len());
    block != before
}

/// Returns the tree that the header of a block names.
pub(crate) fn owner(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[OWNER_AT..OWNER_AT + 8].try_into().unwrap())
}

/// Passes all items of a leaf to `change`, and writes those that it leaves, sorted by key. Returns
/// whether anything changed.
pub(crate) fn rewrite(block: &mut [u8], change: impl FnOnce(&mut Vec<(Key, Vec<u8>)>)) -> bool {
    let before = block.to_vec();
    let mut items: Vec<(Key, Vec<u8>)> = (0..word(block, 96))
        .map(|slot| {
            let at = HEADER_BYTES + slot * SLOT_BYTES;
            let start = HEADER_BYTES + word(block, at + 17);
            let data = block[start..start + word(block, at + 21)].to_vec();
            (Key::from(RawKey::ref_from_bytes(&block[at..at + 17]).unwrap()), data)
        })
        .collect();
    change(&mut items);
    items.sort_by_key(|(key, _)| *key);
    let mut end = block.len();
    for (slot, (key, data)) in items.iter().enumerate() {
        let (at, start) = (HEADER_BYTES + slot * SLOT_BYTES, end - data.len());
        block[at..at + 17].copy_from_slice(RawKey::from(*key).as_bytes());
        put_word(block, at + 17, start - HEADER_BYTES);
        put_word(block, at + 21, data.len());
        block[start..end].copy_from_slice(data);
        end = start;
    }
    put_word(block, 96, items.len());
    block != before
}
