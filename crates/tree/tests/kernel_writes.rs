//! Transactions on volumes that mkfs.btrfs made, judged by `btrfs check`.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod xattrs;

use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::{Change, Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use xattrs::{all, xattr};

struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn mkfs(bytes: u64, arguments: &[&str]) -> Image {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("volume.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("an image");
    let made = Command::new("mkfs.btrfs")
        .arg("-q")
        .args(arguments)
        .arg(&path)
        .status()
        .expect("mkfs.btrfs is missing: apt-get install btrfs-progs");
    assert!(made.success());
    Image { _dir: dir, path }
}

fn check(image: &Path, what: &str) {
    let output = Command::new("btrfs")
        .args(["check", "--check-data-csum"])
        .arg(image)
        .output()
        .expect("btrfs is missing: apt-get install btrfs-progs");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{what}: {text}");
    for sign in ["ERROR", "WARNING", "error:", "mismatch", "invalid", "bad "] {
        assert!(!text.contains(sign), "{what}: {text}");
    }
}

fn open(image: &Path) -> Arc<Forest> {
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &how).expect("the image"));
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a writable forest")
}

/// A small random number generator: a run is reproduced by its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Inserts, replaces and removes random items, with commits in between. `btrfs check` finds no
/// errors.
fn churn(bytes: u64, arguments: &[&str], item_bytes_max: u64, rounds: u64) {
    let image = mkfs(bytes, arguments);
    let mut want: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut dice = Dice(7);
    for reopened in 0..3 {
        let forest = open(&image.path);
        assert_eq!(all(&forest), want, "{arguments:?}, opened {reopened} times before");
        for round in 0..rounds {
            for _ in 0..=dice.below(400) {
                let handle = forest.join(Need::items(2)).unwrap();
                let edit = handle.tree(TreeId::FS).unwrap();
                let (key, item) = xattr(dice.below(1500), dice.below(item_bytes_max));
                if dice.below(3) == 0 {
                    let was_there = want.remove(&key).is_some();
                    assert_eq!(edit.remove(&key).unwrap(), was_there);
                } else {
                    edit.put(&key, &item).unwrap();
                    want.insert(key, item);
                }
            }
            if dice.below(2) == 0 {
                let mut changes = BTreeMap::new();
                for _ in 0..dice.below(600) {
                    let (key, item) = xattr(dice.below(1500), dice.below(item_bytes_max));
                    changes.insert(key, (dice.below(3) > 0).then_some(item));
                }
                for (key, to) in &changes {
                    match to {
                        Some(item) => drop(want.insert(*key, item.clone())),
                        None => drop(want.remove(key)),
                    }
                }
                let changes: Vec<Change> =
                    changes.into_iter().map(|(key, to)| Change { key, to }).collect();
                let handle = forest.join(Need::items(100)).unwrap();
                handle.tree(TreeId::FS).unwrap().merge(&changes).unwrap();
            }
            assert_eq!(all(&forest), want, "{arguments:?}, round {round}");
            forest.commit().unwrap();
            check(&image.path, &format!("{arguments:?}, opened {reopened}, round {round}"));
        }
    }
}

#[test]
fn a_default_volume_stays_clean() {
    churn(512 << 20, &[], 900, 6);
}

#[test]
fn a_volume_of_small_nodes_stays_clean() {
    churn(512 << 20, &["-n", "4096"], 300, 6);
}

#[test]
fn a_volume_of_large_nodes_with_another_checksum_stays_clean() {
    churn(512 << 20, &["-n", "65536", "--csum", "blake2"], 4000, 4);
}

#[test]
fn a_mixed_volume_stays_clean() {
    churn(128 << 20, &["-M"], 300, 4);
}

#[test]
fn a_volume_without_free_space_tree_and_block_group_tree_stays_clean() {
    churn(512 << 20, &["-O", "^free-space-tree,^block-group-tree", "-m", "single"], 900, 4);
}

#[test]
fn a_volume_without_skinny_metadata_stays_clean() {
    churn(512 << 20, &["-O", "^skinny-metadata,^no-holes", "-n", "4096"], 300, 4);
}

#[test]
fn chunks_are_added_when_groups_are_full() {
    let image = mkfs(1 << 30, &["-m", "single"]);
    let forest = open(&image.path);
    let mut want = BTreeMap::new();
    for number in 0..40_000_u64 {
        let (key, item) = xattr(number, 3000);
        let handle = forest.join(Need::items(1)).unwrap();
        handle.tree(TreeId::FS).unwrap().put(&key, &item).unwrap();
        want.insert(key, item);
    }
    forest.commit().unwrap();
    check(&image.path, "after 120 MB of items");
    drop(forest);
    assert_eq!(all(&open(&image.path)), want);
}

#[test]
fn chunks_are_removed_when_their_groups_are_empty() {
    let image = mkfs(1 << 30, &["-m", "single"]);
    let forest = open(&image.path);
    let groups = || forest.volume().chunks().len();
    let at_first = groups();
    for number in 0..60_000_u64 {
        let (key, item) = xattr(number, 3000);
        let handle = forest.join(Need::items(1)).unwrap();
        handle.tree(TreeId::FS).unwrap().put(&key, &item).unwrap();
    }
    forest.commit().unwrap();
    let when_full = groups();
    assert!(when_full > at_first, "{when_full} chunks");
    let range = Key::new(256, ItemType::XATTR_ITEM, 0)..Key::new(256, ItemType::DIR_ITEM, 0);
    for round in 0..4 {
        let handle = forest.join(Need::items(10).deleting()).unwrap();
        handle.tree(TreeId::FS).unwrap().remove_range(range.clone(), &mut |_, _| {}).unwrap();
        let (key, item) = xattr(round, 10);
        handle.tree(TreeId::FS).unwrap().put(&key, &item).unwrap();
        drop(handle);
        forest.commit().unwrap();
        check(&image.path, &format!("round {round} after the deletion"));
    }
    assert!(groups() < when_full, "{} of {when_full} chunks", groups());
    drop(forest);
    assert_eq!(all(&open(&image.path)).len(), 1);
}

#[test]
fn a_volume_is_resized_and_labelled() {
    let image = mkfs(512 << 20, &[]);
    std::fs::File::options().write(true).open(&image.path).unwrap().set_len(1 << 30).unwrap();
    let one = butternut_format::units::DevId(1);
    let forest = open(&image.path);
    forest.resize(one, 1 << 30).unwrap();
    forest.set_label(b"grown").unwrap();
    forest.commit().unwrap();
    check(&image.path, "grown");
    // The allocations add chunks behind 400 MiB. The resize removes them once they are empty.
    let range = forest.allocate_data(900 << 20, 900 << 20, Cluster(0), Wait::Block);
    assert!(range.is_err(), "no run is that long");
    let mut allocated = Vec::new();
    while let Ok(range) = forest.allocate_data(16 << 20, 16 << 20, Cluster(0), Wait::Block) {
        allocated.push(range);
    }
    assert!(allocated.len() > 32, "{} runs", allocated.len());
    forest.commit().unwrap();
    assert!(forest.resize(one, 400 << 20).is_err(), "a chunk behind the end is in use");
    for range in allocated {
        forest.release_data(range).unwrap();
    }
    forest.resize(one, 400 << 20).unwrap();
    forest.commit().unwrap();
    drop(forest);
    std::fs::File::options().write(true).open(&image.path).unwrap().set_len(400 << 20).unwrap();
    check(&image.path, "shrunk");
    let forest = open(&image.path);
    assert_eq!(forest.volume().super_block().label(), b"grown");
    assert!(forest.trim(&(0..u64::MAX), 4096).unwrap() > 300 << 20);
    check(&image.path, "trimmed");
}
