//! Many threads in one forest: writers, readers and commits at the same time.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Forest, ForestOptions, Need, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WRITERS: u64 = 3;
const ROUNDS: u64 = 4000;

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 512 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    Arc::new(device)
}

/// Opens a forest with a small cache, so that blocks are read again while other threads write.
fn open(device: &Arc<dyn Device>) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).unwrap();
    let options = ForestOptions { cache_bytes: 1 << 20, ..ForestOptions::default() };
    Forest::open_writable(Arc::new(volume), options).unwrap()
}

/// The key of a writer's item. Each writer has its own inode numbers.
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
        assert_eq!(found.as_ref(), mine.get(&key), "a thread reads its own writes");
    }
    mine
}

/// Checks that every item is complete and that keys rise, while other threads write.
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
                assert!(data.iter().all(|byte| *byte == want), "a torn item");
            }
            cursor.advance().unwrap();
        }
        walks += 1;
    }
    walks
}

#[test]
fn writers_readers_and_commits_run_in_parallel() {
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

#[test]
fn a_full_volume_refuses_all_threads_and_can_be_emptied() {
    let device = MemoryDevice::new("memory", 160 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let forest = open(&device);
    let fill = |writer: u64| {
        for number in 0.. {
            let handle = match forest.join(Need::items(1)) {
                Ok(handle) => handle,
                Err(TreeError::NoSpace { .. }) => return number,
                Err(error) => panic!("{error:?}"),
            };
            let edit = handle.tree(TreeId::FS).unwrap();
            edit.insert(&key(writer, number), &[7; 3000]).unwrap();
        }
        unreachable!("a volume has an end")
    };
    let filled: u64 = std::thread::scope(|scope| {
        let fill = &fill;
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || fill(writer))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(filled > 5000, "{filled} items");
    forest.commit().unwrap();
    let handle = forest.join(Need::items(1).deleting()).unwrap();
    let all = Key::new(1000, ItemType(0), 0)..Key::new(u64::MAX, ItemType(0), 0);
    let edit = handle.tree(TreeId::FS).unwrap();
    assert_eq!(edit.remove_range(all, &mut |_, _| {}).unwrap(), filled);
    drop(handle);
    forest.commit().unwrap();
    drop(forest);
    let forest = open(&device);
    assert!(forest.join(Need::items(100)).is_ok());
}

#[test]
fn a_commit_that_waits_for_a_handle_fails_when_the_forest_becomes_read_only() {
    let forest = open(&fresh());
    let handle = forest.join(Need::items(1)).unwrap();
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| forest.commit());
        // Usually long enough for the commit to wait. It fails in either case.
        std::thread::sleep(Duration::from_millis(50));
        handle.abort(TreeError::NotWritable);
        let refused = committer.join().unwrap().unwrap_err();
        assert!(matches!(refused, TreeError::ReadOnly { .. }), "{refused:?}");
    });
    drop(handle);
    assert!(matches!(forest.join(Need::items(1)), Err(TreeError::ReadOnly { .. })));
}
