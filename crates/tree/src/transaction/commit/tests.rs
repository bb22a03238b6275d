//! Commits that lack the space reserved for them, the limit of delayed references, read epochs,
//! system chunks, and panics under locks.

use crate::references::RECORDS_MAX;
use crate::transaction::commit::context::Commit;
use crate::transaction::running::Running;
use crate::{Forest, ForestOptions, Need, ReservationLevel, TreeError};
use butternut_device::{Device, MemoryDevice};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::extent::DataRef;
use butternut_format::inode::RawInodeItem;
use butternut_format::key::{ItemType, Key};
use butternut_format::root::RawRootItem;
use butternut_format::units::{DevId, Ino, Logical, TreeId, length};
use butternut_mkfs::MkfsOptions;
use butternut_space::{AllocationRequest, Class, Cluster, GroupStatus, Space};
use butternut_sys::wait::Wait;
use butternut_volume::{OpenOptions, Volume};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

pub(super) fn fresh(bytes: u64) -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", bytes);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

pub(super) fn open(device: &Arc<dyn Device>) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a writable forest")
}

/// An item of a type that no code reads.
pub(super) fn item(number: u64) -> (Key, Vec<u8>) {
    (Key::new(1 << 40, ItemType(77), number), vec![7; 300])
}

pub(super) fn put(forest: &Arc<Forest>, numbers: std::ops::Range<u64>) {
    for from in numbers.clone().step_by(50) {
        let handle = forest.join(Need::items(50)).expect("space");
        let tree = handle.tree(TreeId::UUID).expect("the tree");
        for number in from..(from + 50).min(numbers.end) {
            let (key, data) = item(number);
            tree.put(&key, &data).expect("a reserved change");
        }
    }
}

/// Allocates all metadata space that is free. The caller releases it.
pub(super) fn take_metadata(forest: &Forest) -> Vec<Range<u64>> {
    let running = forest.running().expect("writable");
    let request = || AllocationRequest::node(running.params.node_bytes, Cluster(9));
    std::iter::from_fn(|| running.space.allocate(Class::Metadata, request())).collect()
}

#[test]
fn a_commit_without_metadata_space_adds_a_chunk() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..2000);
    forest.commit().expect("a commit with space");
    let handle = forest.join(Need::items(8)).expect("space");
    let (key, _) = item(77);
    handle.tree(TreeId::UUID).expect("the tree").remove(&key).expect("a change");
    // Allocate all metadata space but a few blocks: the extent tree alone copies more.
    let space = &forest.running().expect("writable").space;
    let taken = take_metadata(&forest);
    let before = space.totals(Class::Metadata).bytes;
    drop(handle);
    forest.commit().expect("a commit that adds a chunk");
    assert!(space.totals(Class::Metadata).bytes > before, "a chunk was added");
    for range in taken {
        space.release(range).expect("an allocated range");
    }
    forest.commit().expect("nothing to do");
    put(&forest, 2000..2100);
    forest.commit().expect("a commit in the larger space");
    drop(forest);
    let forest = open(&device);
    let tree = forest.tree(TreeId::UUID).expect("the root tree").expect("the tree");
    assert!(tree.find(&key).expect("a search").is_none());
    assert!(tree.find(&item(78).0).expect("a search").is_some());
    assert!(tree.find(&item(2099).0).expect("a search").is_some());
}

#[test]
fn no_handle_joins_when_the_commit_needs_all_free_space() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..2000);
    forest.commit().expect("a commit with space");
    let running = forest.running().expect("writable");
    // Free distant extents, whose items are in different leaves of a large tree.
    running.global_reserve.commit_trees.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
    let node = u64::from(running.params.node_bytes);
    let free = running.space.totals(Class::Metadata).free;
    let references = free / (2 * node) + 1;
    for number in 0..references {
        let at = Logical((1 << 50) + number * node);
        running.change_data(at, node, crate::references::Ref::Shared(Logical(1 << 45)), 1);
    }
    for level in
        [ReservationLevel::Normal, ReservationLevel::Deletion, ReservationLevel::Prereserved]
    {
        let refused = running.reserve_items(Need { level, ..Need::items(1) });
        assert!(refused.is_err(), "{level:?} reserves the space that the commit needs");
    }
    running.references().take();
    for level in
        [ReservationLevel::Normal, ReservationLevel::Deletion, ReservationLevel::Prereserved]
    {
        assert!(running.reserve_items(Need { level, ..Need::items(1) }).is_ok(), "{level:?}");
    }
}

/// Extents of a sector that one step adds.
const STEP: usize = 1024;
const STEP_BYTES: u64 = 1024 * 4096;

#[test]
fn a_handle_joins_below_the_limit_of_delayed_references() {
    let forest = open(&fresh(1 << 30));
    let running = forest.running().expect("writable");
    let before = running.gate.committed();
    let (mut steps, mut most) = (0, 0);
    // As an operation of many steps, none of which commits.
    while running.gate.committed().0 < before.0 + 3 {
        let range = forest.allocate_data(STEP_BYTES, STEP_BYTES, Cluster(9), Wait::Block);
        let range = range.expect("space");
        let handle = forest.join(Need::items(1)).expect("space");
        for at in range.addresses().step_by(4096) {
            let reference = DataRef { tree: TreeId::FS, ino: Ino(300), offset: at, count: 1 };
            handle.add_data_extent(Logical(at), 4096, reference);
        }
        most = most.max(running.references().len());
        drop(handle);
        steps += 1;
        assert!(steps < 1000, "no commit with {most} references");
    }
    assert!((RECORDS_MAX..RECORDS_MAX + 2 * STEP).contains(&most), "{most}");
}

#[test]
fn a_handle_joins_below_the_limit_of_references_also_to_one_extent() {
    let forest = open(&fresh(1 << 30));
    let running = forest.running().expect("writable");
    let range = forest.allocate_data(4096, 4096, Cluster(9), Wait::Block).expect("space");
    let reference = |number| DataRef { tree: TreeId::FS, ino: Ino(number), offset: 0, count: 1 };
    let handle = forest.join(Need::items(1)).expect("space");
    handle.add_data_extent(range.start(), 4096, reference(300));
    drop(handle);
    let (before, mut added, mut most) = (running.gate.committed(), 0, 0);
    // As a deduplication that shares one block with very many.
    while running.gate.committed().0 < before.0 + 2 {
        let handle = forest.join(Need::items(64)).expect("space");
        for number in 0..64 {
            handle.add_data_ref(range.start(), 4096, reference(301 + added + number));
        }
        added += 64;
        most = most.max(running.references().len());
        drop(handle);
        assert!(added < 1 << 20, "no commit with {most} references");
    }
    assert!((RECORDS_MAX..RECORDS_MAX + 128).contains(&most), "{most}");
    assert_eq!(forest.data_refs(range.start(), 4096).expect("a count"), added + 1);
}

/// Changes an item, so that its leaf is copied and the old one freed.
pub(super) fn change_item(forest: &Arc<Forest>) {
    let handle = forest.join(Need::items(1)).expect("space");
    let (key, data) = item(7);
    handle.tree(TreeId::UUID).expect("the tree").put(&key, &data).expect("a change");
}

#[test]
fn space_freed_by_a_commit_stays_pinned_while_a_reader_may_read_it() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..200);
    forest.commit().expect("a commit");
    let pinned = || forest.running().expect("writable").space.pinned_bytes();
    change_item(&forest);
    forest.commit().expect("a commit");
    assert_eq!(pinned(), 0, "without a reader all is unpinned by the commit");
    let older = forest.enter_read_epoch();
    change_item(&forest);
    forest.commit().expect("a commit");
    let of_one = pinned();
    assert!(of_one > 0, "the reader may still read the old leaf");
    let younger = forest.enter_read_epoch();
    change_item(&forest);
    forest.commit().expect("a commit");
    assert!(pinned() > of_one);
    drop(older);
    assert!(
        pinned() > 0 && pinned() < 2 * of_one,
        "space that only the older reader could read is free"
    );
    drop(younger);
    assert_eq!(pinned(), 0);
}

fn listed(forest: &Arc<Forest>) -> Vec<Logical> {
    let raw = forest.running().expect("writable").super_block();
    let chunks = butternut_format::super_block::SystemChunks::of(&raw);
    chunks.map(|chunk| chunk.expect("a system chunk").logical).collect()
}

#[test]
fn a_removed_system_chunk_is_removed_from_the_superblock() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    let running = forest.running().expect("writable");
    let node = u64::from(running.params.node_bytes);
    let groups = || -> Vec<Logical> {
        let all = running.space.groups().into_iter();
        let system = all.filter(|group| group.flags.contains(BlockGroupFlags::SYSTEM));
        system.map(|group| group.start).collect()
    };
    let first = listed(&forest);
    assert_eq!(first, groups());
    let handle = forest.join(Need::items(4)).expect("space");
    assert!(running.add_chunk(Class::System) && running.add_chunk(Class::System));
    drop(handle);
    // Allocate a range in each, so that they are not removed.
    let held: Vec<_> = groups()[first.len()..].iter().map(|at| at.0..at.0 + node).collect();
    for range in &held {
        assert!(running.space.allocate_exact(Class::System, range).expect("inside a group"));
    }
    forest.commit().expect("a commit");
    assert_eq!(listed(&forest).len(), first.len() + 2);
    assert_eq!(listed(&forest), groups());
    // The one between the others is removed first.
    for (number, range) in held.into_iter().enumerate() {
        running.space.release(range).expect("an allocated range");
        change_item(&forest);
        forest.commit().expect("a commit");
        assert_eq!(listed(&forest), groups(), "{number}");
    }
    assert!(listed(&forest).len() < first.len() + 2);
    let left = listed(&forest);
    drop(forest);
    let forest = open(&device);
    assert_eq!(listed(&forest), left);
    put(&forest, 0..100);
    forest.commit().expect("a commit after chunks were removed");
}

#[test]
fn an_inode_with_an_unknown_read_only_flag_is_readable_on_a_volume_open_for_reading_only() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    let key = Key::new(300, ItemType::INODE_ITEM, 0);
    let mut inode = RawInodeItem::new_zeroed();
    inode.mode.set(0o100_644);
    inode.flags.set(1 << 33);
    let handle = forest.join(Need::items(1)).expect("space");
    handle.tree(TreeId::FS).expect("the tree").put(&key, inode.as_bytes()).expect("a change");
    drop(handle);
    forest.commit().expect("a commit");
    drop(forest);

    let volume = Volume::open(vec![Arc::clone(&device)], OpenOptions::default()).expect("a volume");
    let reading = Forest::open(Arc::new(volume), ForestOptions::default()).expect("a forest");
    let tree = reading.tree(TreeId::FS).expect("the root tree").expect("the tree");
    assert!(tree.find(&key).expect("a readable inode").is_some());
    let writing = open(&device);
    let tree = writing.tree(TreeId::FS).expect("the root tree").expect("the tree");
    let refused = tree.find(&key).expect_err("an inode of a later version");
    let TreeError::Corrupt { source, .. } = refused else { panic!("{refused}") };
    assert!(source.to_string().contains("flags: have 0x200000000"), "{source}");
}

trait Guard {}

impl<T> Guard for T {}

/// Locks a part of the running state, without joining the transaction.
type Hold = fn(&Running) -> Box<dyn Guard + '_>;

#[test]
fn a_panic_under_a_lock_of_the_running_state_fails_the_next_commit() {
    let holds: [(&str, Hold); 5] = [
        ("references", |running| Box::new(running.references())),
        ("checksums", |running| Box::new(running.pending_checksums())),
        ("free space", |running| Box::new(running.free_changes())),
        ("superblock", |running| Box::new(running.super_block())),
        ("chunks", |running| Box::new(running.chunks())),
    ];
    for (name, hold) in holds {
        let device = fresh(512 << 20);
        let forest = open(&device);
        put(&forest, 0..200);
        forest.commit().expect("a commit");
        change_item(&forest);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = hold(forest.running().expect("writable"));
            panic!("in the middle of a change");
        }));
        assert!(panicked.is_err());
        let refused = forest.commit().expect_err(name);
        let TreeError::ReadOnly { cause } = &refused else { panic!("{name}: {refused}") };
        assert!(matches!(**cause, TreeError::Panicked), "{name}: {cause}");
        assert!(forest.join(Need::items(1)).is_err(), "{name}");
    }
}

#[test]
fn a_panic_while_a_tree_is_locked_fails_the_next_commit() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    put(&forest, 0..200);
    forest.commit().expect("a commit");
    change_item(&forest);
    let trees = forest.running().expect("writable").trees();
    let tree = trees.iter().find(|tree| tree.id() == TreeId::UUID).expect("a tree");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _state = tree.state_mut();
        panic!("in the middle of an edit");
    }));
    assert!(panicked.is_err());
    assert!(forest.commit().is_err());
    assert!(forest.write_error().is_some());
}

/// Law 4 of `chunks`: where two groups are empty and the others of their class are nearly full, a
/// commit removes one of them.
#[test]
fn a_commit_leaves_one_of_two_empty_groups_to_a_class_that_needs_it() {
    let device = fresh(1 << 30);
    let forest = open(&device);
    let running = forest.running().expect("writable");
    let (space, node) = (&running.space, running.params.node_bytes);
    let handle = forest.join(Need::items(4)).expect("space");
    // The groups there are get nearly full. Nothing of this is released.
    while space.totals(Class::Metadata).free > 6 << 20 {
        let request = AllocationRequest::node(node, Cluster(9));
        space.allocate(Class::Metadata, request).expect("a free block");
    }
    assert!(running.add_chunk(Class::Metadata) && running.add_chunk(Class::Metadata));
    drop(handle);
    let empty = space.empty_groups();
    assert_eq!(empty.len(), 2, "both are empty, and one more of the kind is not");
    let size = empty[0].bytes;
    forest.commit().expect("a commit");
    let free = space.totals(Class::Metadata).free;
    assert!(free >= size / 2, "{free} bytes are left free, a group has {size}");
}

/// Law 4 of `chunks`: writes were accepted while the group was there, and their merges need it.
#[test]
fn a_commit_keeps_an_empty_group_that_merges_of_accepted_writes_need() {
    let forest = open(&fresh(1 << 30));
    let running = forest.running().expect("writable");
    let space = &running.space;
    let free = |space: &Space| space.totals(Class::Metadata).free;
    let handle = forest.join(Need::items(4)).expect("space");
    let before = free(space);
    assert!(running.add_chunk(Class::Metadata));
    drop(handle);
    // The reservations alone would find their space without the group, but no merge would.
    let accepted = forest.reserve_metadata(before - (256 << 10), Wait::Block).expect("the group");
    forest.commit().expect("a commit");
    assert!(free(space) > before, "the group is there");
    let need = Need { level: ReservationLevel::Prereserved, ..Need::items(8) };
    drop(forest.join(need).expect("space for the merge"));
    drop(accepted);
    forest.commit().expect("a commit");
}

/// Law 4 of `chunks`, where the references were queued after the last handle has joined.
#[test]
fn a_commit_keeps_a_group_that_a_resize_removes_and_its_own_changes_need() {
    let device = fresh(1 << 30);
    let forest = open(&device);
    let running = forest.running().expect("writable");
    let (space, node) = (&running.space, u64::from(running.params.node_bytes));
    let handle = forest.join(Need::items(4)).expect("space");
    while space.totals(Class::Metadata).free > 2 << 20 {
        let request = AllocationRequest::node(running.params.node_bytes, Cluster(9));
        space.allocate(Class::Metadata, request).expect("a free block");
    }
    assert!(running.add_chunk(Class::Metadata));
    drop(handle);
    forest.commit().expect("a commit that writes the chunk");
    let is_empty =
        |group: &&GroupStatus| Class::of(group.flags) == Class::Metadata && group.used == 0;
    let empty = space.groups().iter().find(is_empty).expect("the new group").start;
    running.chunks().remove_next_commit(vec![empty]);
    running.global_reserve.commit_trees.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
    for number in 0..(4 << 20) / node {
        let at = Logical((1 << 50) + number * node);
        running.change_data(at, node, crate::references::Ref::Shared(Logical(1 << 45)), 1);
    }
    let commit = Commit { running, generation: running.gate.generation() };
    commit.remove_empty_chunks().expect("no items change");
    assert!(space.group(empty).is_some(), "the commit needs its free space");
    running.references().take();
    running.chunks().remove_next_commit(vec![empty]);
    commit.remove_empty_chunks().expect("the items of the group");
    assert!(space.group(empty).is_none());
}

/// The size of the volume is the sum of its devices', also after resizes by many threads.
#[test]
fn resizes_by_two_threads_leave_the_size_of_the_volume_right() {
    let device = fresh(512 << 20);
    let forest = open(&device);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let forest = &forest;
            scope.spawn(move || {
                for round in 0..3000_u64 {
                    let bytes = (480 << 20) + (thread * 7 + round % 5) * (1 << 20);
                    forest.resize(DevId(1), bytes).expect("no chunk lies there");
                }
            });
        }
    });
    let running = forest.running().expect("writable");
    let size = running.space.devices()[0].bytes;
    assert_eq!(running.super_block().total_bytes.get(), size);
    forest.commit().expect("a commit");
}

/// A commit writes the root item of each changed subvolume. The handles that changed the subvolumes
/// have returned their reservations by then, so the global reserve must have the blocks.
#[test]
fn a_commit_has_space_for_the_root_items_of_all_changed_subvolumes() {
    const SUBVOLUMES: u64 = 3000;
    const CHANGED_ONE_IN: usize = 14;
    let forest = open(&fresh(1 << 30));
    let mut root = RawRootItem::new_zeroed();
    root.refs.set(1);
    let ids: Vec<TreeId> = (0..SUBVOLUMES).map(|nth| TreeId(256 + nth)).collect();
    for some in ids.chunks(100) {
        let made = forest.commit_many(100, |at_commit| -> Result<(), TreeError> {
            for id in some {
                at_commit.create_tree(*id, &root)?;
                // As long as both references of a subvolume with a name of 250 bytes.
                let key = Key::new(id.0, ItemType(77), 0);
                at_commit.tree(TreeId::ROOT)?.put(&key, &[7; 600])?;
            }
            Ok(())
        });
        made.expect("a commit");
    }
    // The devices get full: no chunk can be added.
    while let Ok(range) = forest.allocate_data(4096, 16 << 20, Cluster(1), Wait::Block) {
        let offset = range.start().0;
        let handle = forest.join(Need::items(1)).expect("space");
        let reference = DataRef { tree: TreeId::FS, ino: Ino(300), offset, count: 1 };
        handle.add_data_extent(range.start(), range.bytes(), reference);
    }
    forest.commit().expect("a commit");
    let running = forest.running().expect("writable");
    let handle = forest.join(Need::items(1)).expect("space");
    while running.add_chunk(Class::Metadata) {}
    drop(handle);
    // Each change of a subvolume copies one block. Joins leave 80 blocks at this level (half of
    // 160).
    let changed = ids.iter().step_by(CHANGED_ONE_IN);
    let node = running.params.node_bytes;
    let left = (length(changed.len()) + 100) * u64::from(node);
    while running.space.totals(Class::Metadata).free > left {
        let request = AllocationRequest::node(node, Cluster(9));
        running.space.allocate(Class::Metadata, request).expect("a free block");
    }
    for id in changed {
        let handle = forest.join(Need::items(1).deleting()).expect("space above the reserve");
        let edit = handle.tree(*id).expect("the tree");
        edit.put(&Key::new(300, ItemType(77), 0), &[8; 100]).expect("a reserved change");
    }
    forest.commit().expect("the reserve has the blocks of the root tree");
}

/// `groups_to_keep` names the groups that a resize does not remove, and the least size of a volume
/// follows from it.
#[test]
fn a_volume_shrinks_to_the_end_of_the_groups_that_it_keeps() {
    let forest = open(&fresh(512 << 20));
    let running = forest.running().expect("writable");
    let (space, node) = (&running.space, running.params.node_bytes);
    let take = || {
        let request = AllocationRequest::node(node, Cluster(9));
        space.allocate(Class::Metadata, request).expect("a free block");
    };
    // The group that there is gets so full that a reservation adds one. Nothing is released.
    while running.reserve_items(Need::items(4)).is_ok() {
        take();
    }
    (0..8).for_each(|_| take());
    drop(forest.join(Need::items(4)).expect("space in a new group"));
    forest.commit().expect("a commit");
    let chunks = forest.volume().chunks();
    let end_of = |group: &GroupStatus| {
        let chunk = chunks.find(group.start)?;
        chunk.stripes().iter().map(|place| place.physical.0 + chunk.stripe_bytes()).max()
    };
    let end = |kept: &[GroupStatus]| kept.iter().filter_map(end_of).max().expect("a group");
    let groups = space.groups();
    let busy: Vec<_> = groups.iter().copied().filter(|group| group.used > 0).collect();
    assert!(end(&busy) < end(&groups), "the new group is empty, and lies behind the others");
    // The reserves may need the new group, or find space for another one before the end.
    if let Err(refused) = forest.resize(DevId(1), end(&busy)) {
        assert!(matches!(refused, TreeError::Invalid(_)), "{refused}");
        assert_eq!(space.groups(), groups, "a refused resize removes none");
    }
    drop(forest.join(Need::items(4)).expect("space"));
    let kept = forest.groups_to_keep().expect("writable");
    forest.resize(DevId(1), end(&kept)).expect("nothing that is kept lies behind the new end");
    drop(forest.join(Need::items(4)).expect("space"));
}
