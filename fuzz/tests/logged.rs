//! Replays logs with edited items.
//!
//! `BUTTERNUT_FUZZ_ROUNDS` is the number of volumes, and `BUTTERNUT_FUZZ_FIRST` the seed of the
//! first; `make test-long` raises the number.

mod random;

use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_fuzz::{Item, Replayed, logged, logged_with};
use random::{Random, rounds, setting};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn logs_that_were_not_edited_are_replayed() {
    for seed in 0..2 {
        assert_eq!(logged(&[seed, 0]), Replayed::Replayed);
    }
}

fn edits(round: u64) -> Vec<u8> {
    let mut random = Random(round ^ 0x1096_ed11);
    let bytes = |random: &mut Random| random.next().to_le_bytes();
    let mut input: Vec<u8> = (0..40).flat_map(|_| bytes(&mut random)).collect();
    input[1] = 1 + input[1] % 4;
    input
}

/// Its default subvolume does not exist: the open replayed the log, committed, and then failed.
#[test]
fn an_open_without_its_subvolume_commits_no_replay() {
    logged(&edits(19064));
}

#[test]
fn edited_logs_are_replayed_or_refused() {
    let (mut refused, mut log_refused, mut replayed, rounds) = (0, 0, 0, rounds(100));
    let (mut failed, first) = (Vec::new(), setting("BUTTERNUT_FUZZ_FIRST").unwrap_or(0));
    for round in first..first + rounds {
        match catch_unwind(AssertUnwindSafe(|| logged(&edits(round)))) {
            Ok(Replayed::Refused) => refused += 1,
            Ok(Replayed::LogRefused) => log_refused += 1,
            Ok(Replayed::Replayed) => replayed += 1,
            Err(_) => failed.push(round),
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?} of {rounds}");
    assert!(
        replayed * 5 > rounds && log_refused * 20 > rounds,
        "{refused} refused, {log_refused} logs refused, {replayed} replayed"
    );
}

const EXTENT_BYTES: usize = 53;
const INLINE: u8 = 0;
const EXTENT_TYPE_AT: usize = 20;
const DISK_AT: usize = 21;
const NUM_BYTES_AT: usize = 45;

const ROOT_DIRECTORY: u64 = 256;

/// Adds an item to the log, made from the first item of it that `make` accepts.
fn with_log_item(seed: usize, make: impl Fn(&Item) -> Option<Item>) -> Replayed {
    let mut added = 0;
    let replayed = logged_with(seed, |tree, items| {
        let new = items.iter().filter(|_| tree == TreeId::TREE_LOG && added == 0).find_map(&make);
        added += u32::from(new.is_some());
        let is_new = new.is_some();
        items.extend(new);
        items.sort_by_key(|(key, _)| *key);
        is_new
    });
    assert_eq!(added, 1, "the log has such an item");
    replayed
}

fn number(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

fn is_regular((key, data): &Item) -> bool {
    let is_extent = key.item_type == ItemType::EXTENT_DATA && data.len() == EXTENT_BYTES;
    is_extent && data[EXTENT_TYPE_AT] != INLINE && number(data, DISK_AT) != 0
}

/// It would have no inode item in front of it, and so make its leaf invalid.
#[test]
fn an_attribute_without_an_inode_is_refused() {
    for seed in 0..2 {
        let replayed = with_log_item(seed, |(key, data)| {
            let is_xattr = key.item_type == ItemType::XATTR_ITEM;
            is_xattr.then(|| (Key { objectid: 70_000, ..*key }, data.clone()))
        });
        assert_eq!(replayed, Replayed::LogRefused);
    }
}

/// It would stand inside of another extent, and so make its leaf invalid.
#[test]
fn an_extent_of_no_bytes_is_refused() {
    for seed in 0..2 {
        let replayed = with_log_item(seed, |item| {
            let (key, mut data) = item.clone();
            is_regular(item).then(|| {
                let offset = key.offset + number(&data, NUM_BYTES_AT);
                data[NUM_BYTES_AT..NUM_BYTES_AT + 8].fill(0);
                (Key { offset, ..key }, data)
            })
        });
        assert_eq!(replayed, Replayed::LogRefused);
    }
}

#[test]
fn an_extent_of_a_directory_is_refused() {
    for seed in 0..2 {
        let replayed = with_log_item(seed, |item| {
            let (key, data) = item.clone();
            is_regular(item).then_some((Key { objectid: ROOT_DIRECTORY, offset: 0, ..key }, data))
        });
        assert_eq!(replayed, Replayed::LogRefused);
    }
}

/// The size of the file would change by the length of the name.
#[test]
fn an_entry_of_a_file_is_refused() {
    for seed in 0..2 {
        let mut file = None;
        logged_with(seed, |_, items| {
            file = file.or(items.iter().find(|item| is_regular(item)).map(|(key, _)| key.objectid));
            false
        });
        let file = file.expect("a file with data");
        let replayed = with_log_item(seed, |(key, data)| {
            let is_entry = key.item_type == ItemType::DIR_INDEX;
            is_entry.then(|| (Key { objectid: file, offset: 77, ..*key }, data.clone()))
        });
        assert_eq!(replayed, Replayed::LogRefused);
    }
}

/// Its names are counted, and a directory without names loses all entries.
#[test]
fn a_root_directory_without_its_reference_keeps_its_entries() {
    for seed in 0..2 {
        let is_it =
            |key: &Key| key.objectid == ROOT_DIRECTORY && key.item_type == ItemType::INODE_REF;
        let replayed = logged_with(seed, |_, items| {
            let before = items.len();
            items.retain(|(key, _)| !is_it(key));
            items.len() != before
        });
        assert_eq!(replayed, Replayed::LogRefused);
    }
}

#[test]
fn data_in_free_space_of_a_metadata_group_is_refused() {
    for seed in 0..2 {
        for block in 0..32 {
            let mut changed = false;
            let mut chunk = None;
            let replayed = logged_with(seed, |tree, items| {
                // The chunk tree comes first: its blocks have the lowest addresses.
                for (key, data) in
                    items.iter().filter(|(key, _)| key.item_type == ItemType::CHUNK_ITEM)
                {
                    if number(data, 24) & 4 != 0 {
                        chunk = Some((key.offset, number(data, 0)));
                    }
                }
                let (true, false, Some((start, bytes))) =
                    (tree == TreeId::TREE_LOG, changed, chunk)
                else {
                    return false;
                };
                let Some((_, data)) = items.iter_mut().find(|item| is_regular(item)) else {
                    return false;
                };
                // From the end, where the group is free.
                let at = start + bytes / 2 + block * (128 << 10);
                data[DISK_AT..DISK_AT + 8].copy_from_slice(&at.to_le_bytes());
                changed = true;
                true
            });
            assert!(changed);
            assert_eq!(replayed, Replayed::LogRefused, "{block}");
        }
    }
}
