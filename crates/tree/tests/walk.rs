//! Searches and scans of a volume that mkfs.btrfs made from a directory.

use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_tree::{Forest, ForestOptions, Tree};
use butternut_volume::{OpenOptions, Volume};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const FILES: usize = 3000;

struct Made {
    _dir: tempfile::TempDir,
    device: Arc<dyn Device>,
    forest: Arc<Forest>,
}

/// Makes a volume of 4 KiB nodes with [`FILES`] small files, whose tree has at least three levels.
fn make() -> Made {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = dir.path().join("source");
    std::fs::create_dir(&source).expect("source");
    for n in 0..FILES {
        std::fs::write(source.join(format!("file-{n:05}")), format!("{n}")).expect("a file");
    }
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).and_then(|f| f.set_len(256 << 20)).expect("an image");
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-n", "4096", "--rootdir"])
        .args([&source, &image])
        .status()
        .expect("mkfs.btrfs is missing: apt-get install btrfs-progs");
    assert!(made.success());
    let device = open(&image);
    let forest = open_forest(&device, 64 << 20);
    Made { _dir: dir, device, forest }
}

fn open(image: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(image, &OpenDevice::default()).expect("the image opens"))
}

fn open_forest(device: &Arc<dyn Device>, cache_bytes: u64) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    Forest::open(Arc::new(volume), ForestOptions { cache_bytes, ..ForestOptions::default() })
        .expect("a forest")
}

fn files(forest: &Arc<Forest>) -> Tree {
    forest.tree(TreeId::FS).expect("readable").expect("present")
}

fn keys_forward(tree: &Tree) -> Vec<Key> {
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN).expect("readable");
    let mut keys = Vec::new();
    while let Some(key) = cursor.key() {
        keys.push(key);
        cursor.advance().expect("readable");
    }
    keys
}

#[test]
fn scans_forward_and_backward_return_the_same_items() {
    let made = make();
    let tree = files(&made.forest);
    assert!(tree.root().level >= 2, "level {}", tree.root().level);
    let forward = keys_forward(&tree);
    assert!(forward.is_sorted());
    let inodes = forward.iter().filter(|k| k.item_type == ItemType::INODE_ITEM).count();
    assert_eq!(inodes, FILES + 1);
    let mut cursor = tree.cursor();
    cursor.seek_last(&Key::MAX).expect("readable");
    let mut backward = Vec::new();
    while let Some(key) = cursor.key() {
        backward.push(key);
        cursor.retreat().expect("readable");
    }
    backward.reverse();
    assert_eq!(forward, backward);
}

#[test]
fn a_seek_between_two_keys_finds_its_neighbours() {
    let made = make();
    let tree = files(&made.forest);
    let keys = keys_forward(&tree);
    let mut cursor = tree.cursor();
    for pair in keys.windows(2).step_by(7) {
        let between = pair[0].successor().expect("not the last key");
        cursor.seek(&between).expect("readable");
        assert_eq!(cursor.key(), Some(pair[1]));
        let mut last = tree.cursor();
        let before = if between == pair[1] { pair[0] } else { between };
        last.seek_last(&before).expect("readable");
        assert_eq!(last.key(), Some(pair[0]));
        let found = tree.find(&pair[0]).expect("readable").expect("the item of the scan");
        assert_eq!(found.key(), pair[0]);
        if between != pair[1] {
            assert!(tree.find(&between).expect("readable").is_none());
        }
    }
    let past = keys.last().and_then(|k| k.successor()).expect("a key above");
    cursor.seek(&past).expect("readable");
    assert_eq!(cursor.key(), None);
    cursor.seek_last(&Key::MIN).expect("readable");
    assert_eq!(cursor.key(), None);
}

#[test]
fn a_cache_smaller_than_the_tree_returns_the_same_items() {
    let made = make();
    let roomy = keys_forward(&files(&made.forest));
    let cramped = open_forest(&made.device, 1);
    assert_eq!(roomy, keys_forward(&files(&cramped)));
    assert!(cramped.counters().evicted > 0);
}

#[test]
fn threads_that_miss_one_block_share_one_read() {
    let made = make();
    let forest = open_forest(&made.device, 64 << 20);
    let tree = files(&forest);
    let before = made.device.counters().now().reads;
    let gate = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                gate.wait();
                forest.block(&tree.root()).expect("readable");
            });
        }
    });
    assert_eq!(made.device.counters().now().reads - before, 1);
}

#[test]
fn a_cached_search_reads_no_device() {
    let made = make();
    let tree = files(&made.forest);
    let keys = keys_forward(&tree);
    let before = made.device.counters().now().reads;
    for key in &keys {
        assert!(tree.find(key).expect("readable").is_some());
    }
    assert_eq!(made.device.counters().now().reads, before);
}

#[test]
fn a_scan_reads_each_leaf_once_and_in_batches() {
    let made = make();
    let forest = open_forest(&made.device, 64 << 20);
    let tree = files(&forest);
    let before = made.device.counters().now().reads;
    let keys = keys_forward(&tree);
    let reads = made.device.counters().now().reads - before;
    let again = open_forest(&made.device, 64 << 20);
    let tree = files(&again);
    let before = made.device.counters().now().reads;
    let mut cursor = tree.cursor();
    cursor.seek(&Key::MIN).expect("readable");
    let mut walked = 0;
    while cursor.key().is_some() {
        walked += 1;
        cursor.advance().expect("readable");
    }
    assert_eq!(walked, keys.len());
    assert_eq!(
        reads,
        made.device.counters().now().reads - before,
        "readahead reads no block twice"
    );
}
