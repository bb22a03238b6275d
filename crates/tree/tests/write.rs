//! Transactions on new volumes: inserted items are found before a commit and after reopening.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod xattrs;

use butternut_device::{Counters, Device, DeviceError, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut_format::checksum::ChecksumKind;
use butternut_format::device_extent::RawDeviceReplace;
use butternut_format::key::{ItemType, Key};
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Alter, Change, Forest, ForestOptions, Need, ReservationLevel, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use xattrs::{all, xattr};
use zerocopy::{FromZeros, IntoBytes};

const MIB: u64 = 1 << 20;

fn fresh(bytes: u64) -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", bytes);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

fn open(device: &Arc<dyn Device>) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a writable forest")
}

#[test]
fn inserted_items_are_found_before_and_after_the_commit_and_after_reopening() {
    let device = fresh(256 * MIB);
    let mut want = BTreeMap::new();
    let forest = open(&device);
    for round in 0..4 {
        for number in 0..500 {
            let (key, item) = xattr(round * 500 + number, 40 + number % 900);
            let handle = forest.join(Need::items(1)).unwrap();
            handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
            want.insert(key, item);
        }
        assert_eq!(all(&forest), want);
        forest.commit().unwrap();
        assert_eq!(all(&forest), want);
    }
    drop(forest);
    assert_eq!(all(&open(&device)), want);
}

/// As a copy of a device that was removed from the volume: its superblock has the fsid, and the
/// volume has no device item for it.
#[test]
fn a_device_without_a_device_item_is_read_and_not_written() {
    let device = fresh(256 * MIB);
    let mut raw = RawSuperBlock::new_zeroed();
    device.read_at(COPY_OFFSETS[0], raw.as_mut_bytes()).unwrap();
    raw.dev_item.devid.set(2);
    raw.dev_item.uuid = [9; 16];
    raw.csum = ChecksumKind::Crc32c.compute(&raw.as_bytes()[32..]);
    let removed = MemoryDevice::new("removed", 256 * MIB);
    removed.write_at(COPY_OFFSETS[0], raw.as_bytes()).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![device, Arc::new(removed)];
    let volume = || Arc::new(Volume::open(devices.clone(), OpenOptions::default()).unwrap());
    Forest::open(volume(), ForestOptions::default()).unwrap();
    let refused = Forest::open_writable(volume(), ForestOptions::default()).unwrap_err();
    let TreeError::Unwritable(refused) = &refused else { panic!("{refused}") };
    assert!(refused.to_string().contains("removed, which has no device item"), "{refused}");
}

#[test]
fn a_volume_with_an_interrupted_device_replacement_is_read_and_not_written() {
    // The states: never started, finished, canceled; started, suspended.
    for (state, is_interrupted) in [(0, false), (2, false), (3, false), (1, true), (4, true)] {
        let device = fresh(256 * MIB);
        let forest = open(&device);
        let mut item = RawDeviceReplace::new_zeroed();
        item.src_devid.set(1);
        item.replace_state.set(state);
        let handle = forest.join(Need::items(1)).unwrap();
        let key = Key::new(0, ItemType::DEV_REPLACE, 0);
        handle.tree(TreeId::DEVICE).unwrap().insert(&key, item.as_bytes()).unwrap();
        drop(handle);
        forest.commit().unwrap();
        drop(forest);
        let volume = || {
            let devices = vec![Arc::clone(&device)];
            Arc::new(Volume::open(devices, OpenOptions::default()).unwrap())
        };
        Forest::open(volume(), ForestOptions::default()).unwrap();
        match Forest::open_writable(volume(), ForestOptions::default()) {
            Ok(_) => assert!(!is_interrupted, "state {state}"),
            Err(TreeError::Unwritable(refused)) => {
                assert!(is_interrupted, "state {state}: {refused}");
                let refused = refused.to_string();
                assert!(refused.starts_with("device replacement: have an interr"), "{refused}");
            }
            Err(error) => panic!("state {state}: {error}"),
        }
    }
}

#[test]
fn a_tree_that_was_emptied_frees_its_blocks() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let items: BTreeMap<Key, Vec<u8>> = (0..3000).map(|number| xattr(number, 300)).collect();
    let changes: Vec<Change> =
        items.iter().map(|(key, to)| Change { key: *key, to: Some(to.clone()) }).collect();
    {
        let handle = forest.join(Need::items(100)).unwrap();
        handle.tree(TreeId::FS).unwrap().merge(&changes).unwrap();
    }
    forest.commit().unwrap();
    assert_eq!(all(&forest), items);
    {
        let handle = forest.join(Need::items(100).deleting()).unwrap();
        let edit = handle.tree(TreeId::FS).unwrap();
        let mut seen = 0;
        let range = Key::new(256, ItemType::XATTR_ITEM, 0)..Key::new(256, ItemType::DIR_ITEM, 0);
        let removed = edit.remove_range(range, &mut |_, _| seen += 1).unwrap();
        assert_eq!((removed, seen), (3000, 3000));
    }
    forest.commit().unwrap();
    assert!(all(&forest).is_empty());
    assert_eq!(forest.tree(TreeId::FS).unwrap().unwrap().root().level, 0);
    drop(forest);
    assert!(all(&open(&device)).is_empty());
}

#[test]
fn a_merge_stays_in_its_leaf_when_the_parent_is_split() {
    // A node holds at most 493 leaves, and is split in the middle when it has 492.
    const LEAVES: u64 = 492;
    for last in LEAVES / 2 - 3..LEAVES / 2 + 3 {
        let forest = open(&fresh(256 * MIB));
        let handle = forest.join(Need::items(100)).unwrap();
        let edit = handle.tree(TreeId::FS).unwrap();
        let key = |at: u64| Key::new(256, ItemType::XATTR_ITEM, at);
        // Three items nearly fill a leaf. The last leaf gets one: a further leaf would split the
        // node.
        for at in 0..LEAVES * 3 - 2 {
            edit.insert(&key(at * 10), &[7; 5000]).unwrap();
        }
        let at = [0, 30, 60].map(|behind| last * 30 + 1 + behind);
        let small = at.map(|at| Change { key: key(at), to: Some(vec![1; 9]) });
        edit.merge(&small).unwrap();
        for at in at {
            assert!(edit.tree().find(&key(at)).unwrap().is_some(), "leaf {last}: {at}");
        }
        let keys: Vec<Key> = all(&forest).into_keys().collect();
        assert_eq!(keys.len(), usize::try_from(LEAVES * 3 - 2 + 3).unwrap());
    }
}

#[test]
fn an_uncommitted_change_is_lost_after_reopening() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let (key, item) = xattr(1, 10);
    let handle = forest.join(Need::items(1)).unwrap();
    handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
    drop(handle);
    drop(forest);
    assert!(all(&open(&device)).is_empty());
}

#[test]
fn a_replacement_that_no_leaf_can_hold_leaves_the_old_item() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let (key, item) = xattr(1, 100);
    {
        let handle = forest.join(Need::items(1)).unwrap();
        handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
    }
    {
        let handle = forest.join(Need::items(1)).unwrap();
        let refused = handle.tree(TreeId::FS).unwrap().put(&key, &vec![0; 20_000]).unwrap_err();
        assert!(matches!(refused, TreeError::TooLarge { .. }), "{refused}");
    }
    assert_eq!(all(&forest), BTreeMap::from([(key, item.clone())]));
    forest.commit().unwrap();
    drop(forest);
    assert_eq!(all(&open(&device)), BTreeMap::from([(key, item)]));
}

#[test]
fn a_cursor_finds_items_inserted_after_its_seek() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let handle = forest.join(Need::items(10)).unwrap();
    let edit = handle.tree(TreeId::FS).unwrap();
    let key = |at: u64| Key::new(256, ItemType::XATTR_ITEM, at);
    for at in [10, 20, 30] {
        edit.insert(&key(at), b"x").unwrap();
    }
    let mut cursor = edit.tree().cursor();
    cursor.seek(&key(10)).unwrap();
    edit.insert(&key(15), b"y").unwrap();
    edit.remove(&key(20)).unwrap();
    cursor.advance().unwrap();
    assert_eq!(cursor.key(), Some(key(15)));
    cursor.advance().unwrap();
    assert_eq!(cursor.key(), Some(key(30)));
    cursor.retreat().unwrap();
    assert_eq!(cursor.key(), Some(key(15)));
}

#[test]
fn alter_makes_the_change_that_its_callback_returns() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let mut want = BTreeMap::new();
    for turn in 0..6_000 {
        // Items of many leaves are made longer and shorter, removed and inserted again.
        let (key, item) = xattr(turn * 7 % 1_000, turn % 800);
        let decision = match turn % 4 {
            0 => Alter::Remove,
            1 => Alter::Keep,
            _ => Alter::Put(item),
        };
        let handle = forest.join(Need::items(1)).unwrap();
        let mut seen = None;
        let edit = handle.tree(TreeId::FS).unwrap();
        edit.alter(&key, &mut |item| {
            seen = item.map(<[u8]>::to_vec);
            decision.clone()
        })
        .unwrap();
        assert_eq!(seen.as_ref(), want.get(&key));
        match decision {
            Alter::Remove => drop(want.remove(&key)),
            Alter::Keep => {}
            Alter::Put(item) => drop(want.insert(key, item)),
        }
    }
    assert_eq!(all(&forest), want);
    forest.commit().unwrap();
    drop(forest);
    assert_eq!(all(&open(&device)), want);
}

/// A caller that decides to change nothing, and then returns an error, has changed nothing.
#[test]
fn an_error_after_an_item_was_kept_ends_no_transaction() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    let (key, item) = xattr(7, 100);
    let refused = |changes: bool| {
        forest.commit_with(ReservationLevel::Normal, |at_commit| -> Result<(), TreeError> {
            let edit = at_commit.tree(TreeId::FS)?;
            edit.alter(&key, &mut |_| Alter::Keep)?;
            if changes {
                edit.put(&key, &item)?;
                edit.alter(&key, &mut |_| Alter::Keep)?;
            }
            Err(TreeError::NoTree { tree: TreeId(99) })
        })
    };
    assert!(matches!(refused(false), Err(TreeError::NoTree { .. })));
    drop(forest.join(Need::items(1)).unwrap());
    forest.commit().unwrap();
    refused(true).unwrap_err();
    assert!(forest.join(Need::items(1)).is_err());
}

#[test]
fn a_commit_of_superblock_changes_alone_can_be_opened() {
    let device = fresh(256 * MIB);
    let forest = open(&device);
    forest.set_label(b"before").unwrap();
    forest.commit().unwrap();
    forest.set_label(b"after").unwrap();
    let generation = forest.commit().unwrap();
    drop(forest);
    let forest = open(&device);
    assert!(forest.volume().super_block().raw().label.starts_with(b"after"));
    assert_eq!(forest.root_tree().root().generation, generation);
}

/// When a device is interrupted.
#[derive(PartialEq)]
enum Interruption {
    Write,
    Flush,
}

/// A device that runs a closure on another thread at its next write or flush.
struct Interrupting {
    inner: Arc<dyn Device>,
    at: Interruption,
    call: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Interrupting {
    fn interrupt(&self, at: &Interruption) {
        let call = self.call.lock().expect("no panics").take_if(|_| self.at == *at);
        if let Some(call) = call {
            std::thread::spawn(call).join().expect("no panics");
        }
    }
}

impl std::fmt::Debug for Interrupting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for Interrupting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.interrupt(&Interruption::Write);
        self.inner.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.interrupt(&Interruption::Flush);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

#[test]
fn a_label_set_while_a_commit_is_written_is_in_the_next_commit() {
    let inner = fresh(256 * MIB);
    let at = Interruption::Flush;
    let device = Arc::new(Interrupting { inner: Arc::clone(&inner), at, call: Mutex::default() });
    let dynamic: Arc<dyn Device> = Arc::<Interrupting>::clone(&device);
    let forest = open(&dynamic);
    forest.set_label(b"before").unwrap();
    let other = Arc::clone(&forest);
    let call = move || other.set_label(b"meanwhile").unwrap();
    *device.call.lock().unwrap() = Some(Box::new(call));
    forest.commit().unwrap();
    forest.commit().unwrap();
    drop(forest);
    let raw = *open(&inner).volume().super_block().raw();
    assert!(raw.label.starts_with(b"meanwhile"));
}

/// A device reports once that it has lost what it was to make durable: to one of the flushes. The
/// other one, of the commit that wrote what is lost, succeeds.
#[test]
fn a_commit_fails_if_another_thread_got_the_error_of_its_flush() {
    let inner = fresh(256 * MIB);
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&inner), 1));
    let dynamic: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&faulty);
    let at = Interruption::Write;
    let device = Arc::new(Interrupting { inner: dynamic, at, call: Mutex::default() });
    let dynamic: Arc<dyn Device> = Arc::<Interrupting>::clone(&device);
    let forest = open(&dynamic);
    forest.set_label(b"before").unwrap();
    forest.commit().unwrap();
    forest.set_label(b"lost").unwrap();
    let volume = Arc::clone(forest.volume());
    let call = move || {
        let rule = faulty.add(Rule::everywhere(Fault::FlushError));
        // As a sync of data that was overwritten in place.
        volume.flush().unwrap_err();
        faulty.remove(rule);
    };
    *device.call.lock().unwrap() = Some(Box::new(call));
    forest.commit().unwrap_err();
    drop(forest);
    let raw = *open(&inner).volume().super_block().raw();
    assert!(raw.label.starts_with(b"before"));
}
