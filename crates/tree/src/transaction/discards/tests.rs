//! Reservations on a full volume while another thread discards space, or returns some.

use crate::transaction::discards::Discards;
use crate::transaction::enospc::Purpose;
use crate::{Forest, ForestOptions, Need, TreeError};
use butternut_device::{Counters, Device, DeviceError, MemoryDevice};
use butternut_format::extent::DataRef;
use butternut_format::units::{DevId, Generation, Ino, Logical, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::{AllocationRequest, Class, Cluster, Reservation};
use butternut_sys::wait::Wait;
use butternut_volume::{OpenOptions, Volume};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

/// A device in memory. While it is armed, its next discard waits twice for another thread.
#[derive(Debug)]
struct HeldDiscards {
    memory: MemoryDevice,
    is_armed: AtomicBool,
    turn: Barrier,
}

impl HeldDiscards {
    /// Waits until a discard has begun, or lets it go on.
    fn meet(&self) {
        self.turn.wait();
    }
}

impl Device for HeldDiscards {
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
        self.memory.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.memory.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.meet();
            self.meet();
        }
        self.memory.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.memory.counters()
    }
}

/// A new volume that discards what it frees. It commits only by explicit calls.
fn fresh() -> (Arc<HeldDiscards>, Arc<Forest>) {
    let memory = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&memory, &MkfsOptions::default()).expect("a fresh volume");
    let (is_armed, turn) = (AtomicBool::new(false), Barrier::new(2));
    let device = Arc::new(HeldDiscards { memory, is_armed, turn });
    let forest = open(&device, false);
    (device, forest)
}

fn open(device: &Arc<HeldDiscards>, commits_for_space: bool) -> Arc<Forest> {
    let options = ForestOptions { discard: true, commits_for_space, ..ForestOptions::default() };
    let device: Arc<dyn Device> = Arc::<HeldDiscards>::clone(device);
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), options).expect("a writable forest")
}

/// Fills the volume with data extents, commits, and returns them.
fn fill(forest: &Arc<Forest>) -> Vec<Range<u64>> {
    let mut extents = Vec::new();
    while let Ok(space) = forest.allocate_data(4096, 16 << 20, Cluster(1), Wait::Block) {
        let handle = forest.join(Need::items(1)).expect("space for an item");
        handle.add_data_extent(space.start(), space.bytes(), reference(space.start().0));
        extents.push(space.addresses());
    }
    forest.commit().expect("a commit");
    assert!(
        forest.allocate_data(4096, 4096, Cluster(1), Wait::Block).is_err(),
        "the volume is full"
    );
    extents
}

fn reference(offset: u64) -> DataRef {
    DataRef { tree: TreeId::FS, ino: Ino(256), offset, count: 1 }
}

/// Drops the only reference to an extent; the next commit frees it.
fn free(forest: &Arc<Forest>, range: &Range<u64>) {
    let handle = forest.join(Need::items(1).deleting()).expect("space to delete");
    let bytes = range.end - range.start;
    handle.drop_data_ref(Logical(range.start), bytes, reference(range.start));
}

/// Allocates data. Calls `at_failure` when an attempt has found no space.
fn allocate(
    forest: &Arc<Forest>,
    bytes: u64,
    mut at_failure: impl FnMut(),
) -> Result<Range<u64>, TreeError> {
    let request = AllocationRequest::data(bytes, bytes, Cluster(2));
    forest.reserve_or_flush(Purpose::Growth, Wait::Block, |running| {
        let found = running.space.allocate_unreserved(Class::Data, request);
        if found.is_err() {
            at_failure();
        }
        Ok(found)
    })
}

/// Calls its function once.
fn once(act: impl FnOnce()) -> impl FnMut() {
    let mut act = Some(act);
    move || {
        if let Some(act) = act.take() {
            act();
        }
    }
}

#[test]
fn a_reservation_waits_while_a_commit_discards_the_space_that_it_freed() {
    let (device, forest) = fresh();
    let extents = fill(&forest);
    free(&forest, &extents[0]);
    device.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| forest.commit());
        device.meet();
        let range = allocate(&forest, 4096, once(|| device.meet())).expect("space");
        assert!(extents[0].contains(&range.start));
        committer.join().expect("no panic").expect("a commit");
    });
}

#[test]
fn a_reservation_waits_while_a_trim_discards_free_space() {
    let (device, forest) = fresh();
    let extents = fill(&forest);
    free(&forest, &extents[0]);
    forest.commit().expect("a commit");
    let bytes = extents[0].end - extents[0].start;
    device.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let trimmer = scope.spawn(|| forest.trim(&extents[0], 4096));
        device.meet();
        let range = allocate(&forest, bytes, once(|| device.meet())).expect("space");
        assert_eq!(range, extents[0]);
        trimmer.join().expect("no panic").expect("a trim");
    });
}

#[test]
fn a_reservation_that_has_waited_comes_before_the_next_batch_of_a_trim() {
    let discards = Discards::default();
    let order = std::sync::Mutex::new(Vec::new());
    let note = |what| order.lock().expect("no panic").push(what);
    let first = discards.begin_batch();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let waited = discards.wait_for_one();
            assert!(waited.is_some());
            note("reservation");
            drop(waited);
        });
        while discards.state().waiting == 0 {
            std::thread::yield_now();
        }
        drop(first);
        drop(discards.begin_batch());
        note("batch");
    });
    assert_eq!(*order.lock().expect("no panic"), ["reservation", "batch"]);
}

/// The later the discard ends, the likelier the shrink waits: the test holds in any order.
#[test]
fn a_shrink_waits_while_a_trim_discards_the_chunk_that_it_removes() {
    let (device, forest) = fresh();
    let count = || forest.groups().expect("groups").len();
    let (before, mut allocated) = (count(), Vec::new());
    while count() == before {
        allocated
            .push(forest.allocate_data(4096, 16 << 20, Cluster(1), Wait::Block).expect("space"));
    }
    for range in allocated {
        forest.release_data(range).expect("writable");
    }
    forest.commit().expect("a commit");
    let group = forest.groups().expect("groups").pop().expect("a group");
    assert_eq!((group.used, group.allocated), (0, 0));
    let space = &forest.running().expect("writable").space;
    let is_last =
        |mib: &u64| !space.chunks_beyond(DevId(1), mib << 20).expect("a device").is_empty();
    let mib = (0..256).rev().find(is_last).expect("a chunk");
    device.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let all = group.start.0..group.start.0 + group.bytes;
        let forest = &forest;
        let trimmer = scope.spawn(move || forest.trim(&all, 4096));
        device.meet();
        let shrinker = scope.spawn(move || forest.resize(DevId(1), mib << 20));
        std::thread::sleep(std::time::Duration::from_millis(50));
        device.meet();
        shrinker.join().expect("no panic").expect("no chunk is in use");
        trimmer.join().expect("no panic").expect("a trim");
    });
}

#[test]
fn a_chunk_is_added_when_a_trim_has_discarded_the_hole_for_it() {
    let (device, forest) = fresh();
    let group = forest.groups().expect("groups").pop().expect("a group");
    device.is_armed.store(true, Ordering::SeqCst);
    let nowhere = group.start.0..group.start.0;
    std::thread::scope(|scope| {
        let trimmer = scope.spawn(|| forest.trim(&nowhere, 4096));
        device.meet();
        let free = forest.space(Class::Metadata).expect("totals").free;
        let mut release = once(|| device.meet());
        let reserved: Reservation = forest
            .reserve_or_flush(Purpose::Growth, Wait::Block, |running| {
                let found = running.space.reserve(Class::Metadata, free);
                if found.is_err() {
                    release();
                }
                Ok(found)
            })
            .expect("a chunk is added");
        assert_eq!(reserved.bytes(), free);
        trimmer.join().expect("no panic").expect("a trim");
    });
}

#[test]
fn a_reservation_is_tried_again_if_a_handle_has_returned_its_own() {
    let (_, forest) = fresh();
    fill(&forest);
    let running = forest.running().expect("writable");
    let node = u64::from(running.params.node_bytes);
    let reserve = |bytes| running.space.reserve(Class::Metadata, bytes);
    let free = running.space.totals(Class::Metadata).free;
    let most = (1..free / node).rev().map(|nodes| nodes * node);
    let most = most.into_iter().find(|bytes| reserve(*bytes).is_ok()).expect("some space");
    let turn = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = forest.join(Need::items(1)).expect("space");
            turn.wait();
            turn.wait();
            drop(handle);
            turn.wait();
        });
        turn.wait();
        let mut end_member = once(|| {
            turn.wait();
            turn.wait();
        });
        let reserved = forest.reserve_or_flush(Purpose::Growth, Wait::Block, |_| {
            let found = reserve(most);
            if found.is_err() {
                end_member();
            }
            Ok(found)
        });
        assert_eq!(reserved.expect("space").bytes(), most);
    });
}

#[test]
fn a_reservation_commits_again_while_others_take_what_its_commits_free() {
    let (device, forest) = fresh();
    drop(forest);
    let forest = open(&device, true);
    let extents = fill(&forest);
    free(&forest, &extents[0]);
    let bytes = extents[0].end - extents[0].start;
    let request = AllocationRequest::data(bytes, bytes, Cluster(2));
    let mut attempts = 0;
    let range = forest.reserve_or_flush(Purpose::Growth, Wait::Block, |running| {
        attempts += 1;
        let found = running.space.allocate_unreserved(Class::Data, request);
        if let Ok(range) = &found
            && attempts < 20
        {
            // Another thread had it first, and has freed it since.
            let handle = forest.join(Need::items(1)).expect("space for an item");
            handle.add_data_extent(Logical(range.start), bytes, reference(range.start));
            handle.drop_data_ref(Logical(range.start), bytes, reference(range.start));
            return Ok(running.space.allocate_unreserved(Class::Data, request));
        }
        Ok(found)
    });
    assert_eq!(range.expect("space"), extents[0]);
    assert_eq!(attempts, 20);
}

#[test]
fn the_last_reader_leaves_the_discard_to_a_commit_or_to_a_reservation() {
    let (device, forest) = fresh();
    let extents = fill(&forest);
    let discards = || device.counters().now().discards;
    let pinned = || forest.running().expect("writable").space.pinned_bytes();
    for extent in &extents[..2] {
        let reader = forest.enter_read_epoch();
        free(&forest, extent);
        forest.commit().expect("a commit");
        let (before, waiting) = (discards(), pinned());
        assert!(waiting >= extent.end - extent.start);
        drop(reader);
        assert_eq!((discards(), pinned()), (before, waiting), "a reader discards nothing");
        forest.commit().expect("a commit without changes");
        assert!(discards() > before);
        assert_eq!(pinned(), 0);
        assert!(allocate(&forest, extent.end - extent.start, || ()).is_ok());
    }
}

#[test]
fn a_volume_that_became_read_only_is_not_discarded() {
    let (device, forest) = fresh();
    let extents = fill(&forest);
    let reader = forest.enter_read_epoch();
    free(&forest, &extents[0]);
    forest.commit().expect("a commit");
    let before = device.counters().now().discards;
    forest.join(Need::items(1)).expect("space").abort(TreeError::Panicked);
    drop(reader);
    let refused = forest.trim(&(0..u64::MAX), 4096);
    assert!(matches!(refused, Err(TreeError::ReadOnly { .. })), "{refused:?}");
    assert_eq!(device.counters().now().discards, before);
}

#[test]
fn a_volume_with_the_superblock_of_another_writer_is_not_trimmed() {
    let (device, forest) = fresh();
    let other = open(&device, true);
    other.set_label(b"other").expect("a label");
    let generation = other.commit().expect("a commit");
    assert!(generation > Generation(1));
    let before = device.counters().now().discards;
    assert!(forest.trim(&(0..u64::MAX), 4096).is_err());
    assert_eq!(device.counters().now().discards, before);
    assert!(forest.write_error().is_some());
    assert!(forest.resize(DevId(1), 200 << 20).is_err());
}

/// What lies behind the end may be another partition's when the shrink has returned.
#[test]
fn a_shrink_waits_while_a_trim_discards_a_hole_behind_the_new_end() {
    let (device, forest) = fresh();
    let space = &forest.running().expect("writable").space;
    let is_free =
        |mib: &u64| space.chunks_beyond(DevId(1), mib << 20).expect("a device").is_empty();
    // Behind the second superblock, so that the hole is one.
    let mib = (65..256).find(is_free).expect("a hole at the end");
    let group = forest.groups().expect("groups").pop().expect("a group");
    let nowhere = group.start.0..group.start.0;
    device.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let forest = &forest;
        // Only the hole at the end is as long.
        let bytes_min = (256 - mib - 1) << 20;
        let trimmer = scope.spawn(move || forest.trim(&nowhere, bytes_min));
        device.meet();
        let shrinker = scope.spawn(move || forest.resize(DevId(1), mib << 20));
        // A slow machine only proves less.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let is_early = shrinker.is_finished();
        device.meet();
        shrinker.join().expect("no panic").expect("no chunk is behind the end");
        trimmer.join().expect("no panic").expect("a trim");
        assert!(!is_early, "the range behind the end was discarded after the shrink");
    });
}
