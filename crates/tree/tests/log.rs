//! The log of a transaction, from its batches to the commit that replays it.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use butternut_device::{Counters, Device, DeviceError, MemoryDevice};
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
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    let need = Need { level: ReservationLevel::Prereserved, ..Need::items(u32::MAX) };
    let refused = forest.join(need).unwrap_err();
    assert!(matches!(refused, TreeError::NoSpace { .. }), "{refused}");
    assert!(volume(&device).super_block().log_root().is_some(), "the log is not lost");
    forest.commit_replay(claim).unwrap();
    assert!(volume(&device).super_block().log_root().is_none());
    assert!(forest.commits_for_space(), "after the replay");
}

/// Reading as many checksums as a large clone may need takes longer than a commit.
#[test]
fn a_log_with_very_many_committed_checksums_is_refused() {
    let forest = open(&fresh(), false);
    let append = |bytes: u64| {
        let entry = LogEntry { data: std::iter::once(0..bytes).collect(), ..LogEntry::default() };
        forest.begin_log().unwrap().unwrap().append(TreeId::FS, INO, entry).unwrap()
    };
    assert_eq!(append(8 << 30), Err(CommitReason::TooMuch));
    assert!(append(1 << 30).is_ok());
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

/// A device that stops after one read of the first superblock, until a log is synced. A sync that
/// waits for that read lets it go on after a while.
#[derive(Debug)]
struct StopsAfterRead {
    memory: Arc<dyn Device>,
    stop: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Device for StopsAfterRead {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read_at(offset, memory)?;
        let stop = if offset == 65536 { self.stop.lock().unwrap().take() } else { None };
        if let Some((is_read, is_synced)) = stop {
            is_read.send(()).unwrap();
            is_synced.recv_timeout(Duration::from_millis(500)).ok();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.memory.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.memory.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.memory.counters()
    }
}

#[test]
fn a_trim_does_not_take_the_superblock_of_a_log_for_that_of_another_writer() {
    let stopping = Arc::new(StopsAfterRead { memory: fresh(), stop: Mutex::new(None) });
    let device: Arc<dyn Device> = Arc::<StopsAfterRead>::clone(&stopping);
    let forest = open(&device, false);
    let ticket = append(&forest, INO, name(2, b"name")).unwrap();
    forest.sync_log(ticket).unwrap().unwrap();
    let ticket = append(&forest, INO + 1, name(3, b"other")).unwrap();
    let ((is_read, read), (is_synced, synced)) = (channel(), channel());
    *stopping.stop.lock().unwrap() = Some((is_read, synced));
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| forest.trim(&(0..u64::MAX), 1 << 20));
        read.recv().unwrap();
        forest.sync_log(ticket).unwrap().unwrap();
        is_synced.send(()).ok();
        trim.join().unwrap().unwrap();
    });
    assert!(forest.write_error().is_none(), "{:?}", forest.write_error());
    forest.commit().unwrap();
}
