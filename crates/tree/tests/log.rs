//! The log of a transaction, from its batches to the commit that replays it.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use butternut_device::{Device, MemoryDevice};
use butternut_format::extent::DataRef;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::{
    CommitReason, Forest, ForestOptions, LogEntry, LogTicket, LoggedName, Need, ReservationLevel,
    TreeError,
};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;

const INO: u64 = 300;

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

fn volume(device: &Arc<dyn Device>) -> Arc<Volume> {
    Arc::new(Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume"))
}

fn open(device: &Arc<dyn Device>, replays_log: bool) -> Arc<Forest> {
    let options = ForestOptions { replays_log, ..ForestOptions::default() };
    Forest::open_writable(volume(device), options).expect("a writable forest")
}

/// Appends an item of a type that no code reads, of an inode with one name, to the log.
fn append(forest: &Arc<Forest>, ino: u64, name: LoggedName) -> Result<LogTicket, CommitReason> {
    let items = vec![(Key::new(ino, ItemType(77), 0), vec![7; 300])];
    let entry = LogEntry { items, names: vec![(ino, vec![name])], ..LogEntry::default() };
    let log = forest.begin_log().unwrap().unwrap();
    log.append(TreeId::FS, ino, entry).unwrap()
}

fn name(index: u64, name: &[u8]) -> LoggedName {
    LoggedName { dir: 256, index, name: name.to_vec() }
}

/// Fills the group for data, and commits one more, which is empty: a caller without metadata space
/// commits to remove it.
fn add_empty_group(forest: &Arc<Forest>) {
    let last = || forest.groups().unwrap().pop().unwrap().start.0;
    let before = last();
    loop {
        let range = forest.allocate_data(4096, 16 << 20, Cluster(1), Wait::Block).unwrap();
        if last() > before && range.start().0 >= last() {
            forest.release_data(range).unwrap();
            break;
        }
        let handle = forest.join(Need::items(1)).unwrap();
        let (ino, offset) = (Ino(INO), range.start().0);
        let reference = DataRef { tree: TreeId::FS, ino, offset, count: 1 };
        handle.add_data_extent(range.start(), range.bytes(), reference);
    }
    forest.commit().unwrap();
    assert!(last() > before);
}

#[test]
fn no_commit_for_space_precedes_the_replay() {
    let device = fresh();
    let forest = open(&device, false);
    add_empty_group(&forest);
    let ticket = append(&forest, INO, name(2, b"name")).unwrap();
    forest.sync_log(ticket).unwrap().unwrap();
    drop(forest);

    let forest = open(&device, true);
    let logs = forest.subvolume_logs().unwrap();
    let claim = forest.claim_log(&logs).unwrap();
    let need = Need { items: u32::MAX, level: ReservationLevel::Prereserved };
    let refused = forest.join(need).unwrap_err();
    assert!(matches!(refused, TreeError::NoSpace { .. }), "{refused}");
    assert!(volume(&device).super_block().log_root().is_some(), "the log is not lost");
    forest.commit_replay(claim).unwrap();
    assert!(volume(&device).super_block().log_root().is_none());
    assert!(forest.commits_for_space(), "after the replay");
}

#[test]
fn a_name_or_an_index_is_logged_for_one_inode() {
    let forest = open(&fresh(), false);
    append(&forest, INO, name(2, b"name")).unwrap();
    append(&forest, INO, name(2, b"name")).unwrap();
    assert_eq!(append(&forest, INO + 1, name(3, b"name")), Err(CommitReason::Names));
    assert_eq!(append(&forest, INO + 1, name(2, b"other")), Err(CommitReason::Names));
    append(&forest, INO + 1, name(3, b"other")).unwrap();
}
