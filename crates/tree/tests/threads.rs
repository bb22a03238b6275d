//! Many threads in one forest: writers, readers and commits at the same time.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const WRITERS: u64 = 3;
const ROUNDS: u64 = 4000;

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 512 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    Arc::new(device)
}

/// A small cache, so that blocks are read again while others write.
fn open(device: &Arc<dyn Device>) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).unwrap();
    let options = ForestOptions { cache_bytes: 1 << 20, ..ForestOptions::default() };
    Forest::open_writable(Arc::new(volume), options).unwrap()
}

/// Items of each writer: his own inodes, each with a name for its bytes' sum.
fn key(writer: u64, number: u64) -> Key {
    Key::new(1000 + number * WRITERS + writer, ItemType::VERITY_MERKLE_ITEM, 0)
}

fn write(forest: &Arc<Forest>, writer: u64) -> BTreeMap<Key, Vec<u8>> {
    let mut mine = BTreeMap::new();
    let mut seed = writer + 1;
    for _ in 0..ROUNDS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = key(writer, (seed >> 33) % 700);
        let handle = forest.join(Need::items(1)).unwrap();
        let edit = handle.tree(TreeId::FS).unwrap();
        if seed >> 60 < 4 {
            assert_eq!(edit.remove(&key).unwrap(), mine.remove(&key).is_some());
        } else {
            let size = usize::try_from((seed >> 20) % 1200).unwrap();
            let item = vec![u8::try_from(size % 251).unwrap(); size];
            edit.put(&key, &item).unwrap();
            mine.insert(key, item);
        }
        drop(handle);
        let found = forest.tree(TreeId::FS).unwrap().unwrap().find(&key).unwrap();
        let found = found.map(|item| item.data().to_vec());
        assert_eq!(found.as_ref(), mine.get(&key), "own writes are seen at once");
    }
    mine
}

/// Every item is whole, and keys rise, whatever the writers do meanwhile.
fn read(forest: &Arc<Forest>, done: &AtomicBool) -> u64 {
    let mut walks = 0;
    while !done.load(Ordering::Relaxed) {
        let mut cursor = forest.tree(TreeId::FS).unwrap().unwrap().scan();
        cursor.seek(&Key::MIN).unwrap();
        let mut last = None;
        while let Some((key, data)) = cursor.item_parts() {
            assert!(last < Some(key), "{key} after {last:?}");
            last = Some(key);
            if key.item_type == ItemType::VERITY_MERKLE_ITEM {
                let want = u8::try_from(data.len() % 251).unwrap();
                assert!(data.iter().all(|byte| *byte == want), "half an item");
            }
            cursor.advance().unwrap();
        }
        walks += 1;
    }
    walks
}

#[test]
fn writers_readers_and_commits_do_not_get_in_each_others_way() {
    let device = fresh();
    let forest = open(&device);
    let done = AtomicBool::new(false);
    let want: BTreeMap<Key, Vec<u8>> = std::thread::scope(|scope| {
        let forest = &forest;
        let done = &done;
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(forest, writer))).collect();
        let reader = scope.spawn(move || read(forest, done));
        let committer = scope.spawn(move || {
            let mut commits = 0;
            while !done.load(Ordering::Relaxed) {
                forest.commit().unwrap();
                commits += 1;
            }
            commits
        });
        let want = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        assert!(committer.join().unwrap() > 0);
        want
    });
    forest.commit().unwrap();
    let all = |forest: &Arc<Forest>| {
        let mut found = BTreeMap::new();
        let mut cursor = forest.tree(TreeId::FS).unwrap().unwrap().scan();
        cursor.seek(&Key::new(1000, ItemType(0), 0)).unwrap();
        while let Some((key, data)) = cursor.item_parts() {
            found.insert(key, data.to_vec());
            cursor.advance().unwrap();
        }
        found
    };
    assert_eq!(all(&forest), want);
    drop(forest);
    assert_eq!(all(&open(&device)), want);
}
