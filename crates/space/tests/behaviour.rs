//! The guarantees of the allocator, reservations, pinned space and chunk placement.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::single_range_in_vec_init, reason = "a slice of one range is intended")]

use butternut_format::chunk::{BlockGroupFlags, Profile};
use butternut_format::units::{DevId, Generation, Logical, Physical};
use butternut_space::{
    AllocationRequest, Class, Cluster, DeviceExtent, ExtentChange, Group, GroupChange, GroupStatus,
    Space, SpaceError, SpaceOptions, excluded_ranges,
};
use butternut_volume::{IoStripe, Layout};
use std::ops::Range;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECTOR: u64 = 4096;
const NODE: u32 = 16384;

fn space() -> Space {
    Space::new(SpaceOptions { node_bytes: NODE, is_mixed: false })
}

fn group(start: u64, bytes: u64, flags: BlockGroupFlags) -> Group {
    let free = vec![start..start + bytes];
    Group {
        start: Logical(start),
        bytes,
        flags,
        used: 0,
        free,
        excluded: Vec::new(),
        is_read_only: false,
    }
}

fn data_space() -> Space {
    let space = space();
    space.add_group(&group(GIB, GIB, BlockGroupFlags::DATA)).unwrap();
    space
}

#[test]
fn parallel_writers_each_get_long_runs() {
    let space = data_space();
    let mut runs: Vec<Vec<Range<u64>>> = vec![Vec::new(); 8];
    for nth in 0..8 * 2048 {
        let writer = nth % 8;
        let want = AllocationRequest::data(SECTOR, SECTOR, Cluster(writer as u64));
        let range = space.allocate(Class::Data, want).unwrap();
        match runs[writer].last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            Some(_) | None => runs[writer].push(range),
        }
    }
    for (writer, runs) in runs.iter().enumerate() {
        // Windows grow: 1 MiB, 4 MiB and more.
        assert!(runs.len() <= 3, "writer {writer} has {runs:?}");
    }
}

#[test]
fn clusters_of_one_small_file_each_stay_close_together() {
    let space = data_space();
    let mut ends = Vec::new();
    for file in 0..64 {
        let want = AllocationRequest::data(SECTOR, SECTOR, Cluster(file));
        ends.push(space.allocate(Class::Data, want).unwrap().end);
    }
    assert!(*ends.iter().max().unwrap() <= GIB + 64 * MIB, "{ends:?}");
}

#[test]
fn an_exact_range_is_allocated_if_all_of_it_is_free() {
    let space = data_space();
    let first =
        space.allocate(Class::Data, AllocationRequest::data(SECTOR, SECTOR, Cluster(0))).unwrap();
    assert!(!space.allocate_exact(Class::Data, &(first.start..first.end + SECTOR)).unwrap());
    let next = first.end..first.end + MIB;
    assert!(space.allocate_exact(Class::Data, &next).unwrap());
    assert!(!space.allocate_exact(Class::Data, &next).unwrap());
    let free = next.end..next.end + SECTOR;
    assert!(!space.allocate_exact(Class::Metadata, &free).unwrap(), "a group of another class");
    let after =
        space.allocate(Class::Data, AllocationRequest::data(SECTOR, SECTOR, Cluster(0))).unwrap();
    assert!(after.start >= next.end);
    assert_eq!(space.totals(Class::Data).free, GIB - MIB - 2 * SECTOR);
    space.allocate_exact(Class::Data, &(2 * GIB..2 * GIB + MIB)).unwrap_err();
}

#[test]
fn one_writer_of_large_extents_fills_a_group_completely() {
    let space = data_space();
    let mut at = GIB;
    while at < 2 * GIB {
        let range = space
            .allocate(Class::Data, AllocationRequest::data(SECTOR, 3 * MIB, Cluster(1)))
            .unwrap();
        assert_eq!(range.start, at);
        at = range.end;
    }
    assert_eq!(at, 2 * GIB);
    assert!(
        space.allocate(Class::Data, AllocationRequest::data(SECTOR, SECTOR, Cluster(1))).is_none()
    );
}

#[test]
fn windows_of_other_clusters_are_used_before_an_allocation_fails() {
    let space = data_space();
    for writer in 0..64 {
        let want = AllocationRequest::data(SECTOR, SECTOR, Cluster(writer));
        space.allocate(Class::Data, want).unwrap();
    }
    let mut left = space.totals(Class::Data).free;
    while left > 0 {
        let want = AllocationRequest::data(SECTOR, GIB, Cluster(99));
        let range = space.allocate(Class::Data, want).unwrap();
        left -= range.end - range.start;
    }
    assert_eq!(space.totals(Class::Data).free, 0);
}

#[test]
fn tree_blocks_are_aligned_in_an_unaligned_group() {
    let space = space();
    space.add_group(&group(GIB + SECTOR, MIB, BlockGroupFlags::METADATA)).unwrap();
    let mut count = 0;
    while let Some(range) =
        space.allocate(Class::Metadata, AllocationRequest::node(NODE, Cluster(2)))
    {
        assert!(range.start.is_multiple_of(u64::from(NODE)));
        assert_eq!(range.end - range.start, u64::from(NODE));
        count += 1;
    }
    assert_eq!(count, MIB / u64::from(NODE) - 1);
}

#[test]
fn pinned_bytes_are_free_after_their_commit_and_not_before() {
    let space = data_space();
    let all = space.allocate(Class::Data, AllocationRequest::data(GIB, GIB, Cluster(1))).unwrap();
    space.pin(all.start..all.start + MIB, Generation(7)).unwrap();
    space.pin(all.start + MIB..all.start + 2 * MIB, Generation(8)).unwrap();
    let want = AllocationRequest::data(SECTOR, GIB, Cluster(1));
    assert!(space.allocate(Class::Data, want).is_none());
    assert_eq!(space.pinned_bytes(), 2 * MIB);
    let first = all.start..all.start + MIB;
    assert_eq!(space.unpin(Generation(7)), std::slice::from_ref(&first));
    assert_eq!(space.allocate(Class::Data, want), Some(first));
    assert!(space.allocate(Class::Data, want).is_none());
    let second = all.start + MIB..all.start + 2 * MIB;
    assert_eq!(space.unpin_to_caller(Generation(8)), std::slice::from_ref(&second));
    assert!(space.allocate(Class::Data, want).is_none(), "it is being discarded");
    space.release(second.clone()).unwrap();
    assert_eq!(space.allocate(Class::Data, want), Some(second));
}

#[test]
fn each_changed_group_is_returned_once() {
    let space = data_space();
    space.add_group(&group(4 * GIB, GIB, BlockGroupFlags::DATA)).unwrap();
    space.account(&(GIB..GIB + 2 * MIB), ExtentChange::Inserted).unwrap();
    space.account(&(GIB..GIB + MIB), ExtentChange::Removed).unwrap();
    let change =
        GroupChange { start: Logical(GIB), bytes: GIB, flags: BlockGroupFlags::DATA, used: MIB };
    assert_eq!(space.take_changed_groups(), [change]);
    assert_eq!(space.take_changed_groups(), []);
    assert_eq!(space.bytes_used(), MIB);
    let over = space.account(&(4 * GIB..4 * GIB + MIB), ExtentChange::Removed).unwrap_err();
    assert!(matches!(over, SpaceError::Used { .. }));
}

#[test]
fn reservations_are_spent_split_and_returned() {
    let space = data_space();
    space.set_global_reserve(Class::Data, 2 * MIB, 0);
    let mut reservation = space.reserve(Class::Data, GIB - 2 * MIB).unwrap();
    let refused = space.reserve(Class::Data, SECTOR).unwrap_err();
    assert!(!refused.can_add_chunk);
    let urgent = space.reserve_for_deletion(Class::Data, MIB).unwrap();
    assert!(space.reserve_for_deletion(Class::Data, SECTOR).is_err());
    let half = reservation.split(GIB / 2).unwrap();
    assert!(reservation.split(GIB).is_none());
    assert_eq!(reservation.spend(SECTOR), SECTOR);
    drop((half, urgent));
    assert_eq!(space.totals(Class::Data).reserved, GIB - 2 * MIB - GIB / 2 - SECTOR);
    assert_eq!(reservation.spend(u64::MAX), GIB / 2 - 2 * MIB - SECTOR);
    assert_eq!(space.totals(Class::Data).reserved, 0);
}

#[test]
fn reservations_of_many_threads_never_exceed_the_free_bytes() {
    let space = data_space();
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = Vec::new();
                    while let Ok(reservation) = space.reserve(Class::Data, 300 * 1024) {
                        held.push(reservation);
                    }
                    let sum: u64 = held.iter().map(butternut_space::Reservation::bytes).sum();
                    std::mem::forget(held);
                    sum
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(granted <= GIB && granted > GIB - 300 * 1024, "{granted}");
}

#[test]
fn inconsistent_groups_are_refused() {
    let space = data_space();
    let good = group(4 * GIB, MIB, BlockGroupFlags::DATA);
    let bad = [
        Group { free: vec![4 * GIB..4 * GIB + 2 * MIB], ..good.clone() },
        Group { free: vec![4 * GIB + 1..4 * GIB + 4096], ..good.clone() },
        Group {
            free: vec![4 * GIB + 8192..4 * GIB + 12288, 4 * GIB..4 * GIB + 12288],
            ..good.clone()
        },
        Group { used: 4096, ..good.clone() },
        Group { used: 2 * MIB, ..good.clone() },
        Group { bytes: 0, ..good.clone() },
        Group { start: Logical(u64::MAX - 4095), free: Vec::new(), ..good.clone() },
        Group { start: Logical(GIB + MIB), free: Vec::new(), ..good.clone() },
    ];
    for group in bad {
        assert!(space.add_group(&group).is_err(), "{group:?}");
    }
    space.add_group(&good).unwrap();
    assert!(space.add_group(&good).is_err());
}

#[test]
fn only_groups_that_are_not_needed_are_removed() {
    let space = data_space();
    space.add_group(&group(4 * GIB, GIB, BlockGroupFlags::DATA)).unwrap();
    space.add_group(&group(8 * GIB, GIB, BlockGroupFlags::METADATA)).unwrap();
    let starts = |space: &Space| -> Vec<u64> {
        space.empty_groups().iter().map(|group| group.start.0).collect()
    };
    assert_eq!(starts(&space), [GIB], "one of two; the last of a kind stays");
    let range =
        space.allocate(Class::Data, AllocationRequest::data(SECTOR, SECTOR, Cluster(0))).unwrap();
    let (busy, idle) = if range.start < 4 * GIB { (GIB, 4 * GIB) } else { (4 * GIB, GIB) };
    assert_eq!(starts(&space), [idle]);
    assert!(!space.remove_group(Logical(busy)));
    let reservation = space.reserve(Class::Data, GIB).unwrap();
    assert!(!space.remove_group(Logical(idle)), "its bytes are reserved");
    drop(reservation);
    assert!(space.remove_group(Logical(idle)));
    assert_eq!(space.totals(Class::Data).bytes, GIB);
    space.pin(range.clone(), Generation(1)).unwrap();
    assert!(!space.remove_group(Logical(busy)), "pinned");
    space.unpin(Generation(1));
    assert!(space.remove_group(Logical(busy)));
    assert_eq!(space.totals(Class::Data).free, 0);
}

#[test]
fn a_group_with_bytes_that_are_neither_used_nor_free_is_never_empty() {
    let space = space();
    // The block group item says that nothing is used; the free space tree knows better.
    let group = Group { free: vec![GIB + MIB..2 * GIB], ..group(GIB, GIB, BlockGroupFlags::DATA) };
    space.add_group(&group).unwrap();
    assert!(space.empty_groups().is_empty());
    assert!(!space.remove_group(Logical(GIB)));
    // Superblock copies are neither used nor free.
    let copy = 3 * GIB..3 * GIB + 65536;
    let group = Group {
        start: Logical(copy.start),
        free: vec![copy.start..4 * GIB],
        excluded: vec![copy.clone()],
        ..group
    };
    space.add_group(&group).unwrap();
    assert!(space.remove_group(Logical(copy.start)));
}

fn one_device(bytes: u64, extents: &[(Range<u64>, u64)]) -> Space {
    let space = space();
    let extents = extents
        .iter()
        .map(|(range, chunk)| DeviceExtent { range: range.clone(), chunk: Logical(*chunk) });
    space.add_device(DevId(1), [1; 16], bytes, extents.collect()).unwrap();
    space
}

#[test]
fn chunks_have_the_sizes_of_the_kernel() {
    let plan = |device: u64, class, flags| {
        let space = one_device(device, &[]);
        space.plan_chunk(class, flags, 0).map(|plan| (plan.chunk.bytes, plan.stripe_bytes))
    };
    let (single, dup) = (BlockGroupFlags(0), BlockGroupFlags::DUP);
    assert_eq!(plan(100 * GIB, Class::Data, single), Some((GIB, GIB)));
    assert_eq!(plan(100 * GIB, Class::Metadata, dup), Some((GIB, GIB)));
    assert_eq!(plan(20 * GIB, Class::Metadata, dup), Some((256 * MIB, 256 * MIB)));
    assert_eq!(plan(20 * GIB, Class::System, dup), Some((32 * MIB, 32 * MIB)));
    // A tenth of the device, in whole units of 16 MiB.
    assert_eq!(plan(2 * GIB, Class::Data, single), Some((208 * MIB, 208 * MIB)));
    assert_eq!(plan(GIB, Class::Metadata, dup), Some((112 * MIB, 112 * MIB)));
    assert_eq!(plan(3 * MIB, Class::Metadata, dup), Some((MIB, MIB)));
    assert_eq!(plan(2 * MIB, Class::Metadata, dup), None);
}

#[test]
fn a_plan_reserves_its_device_extents_until_they_are_released() {
    let space = one_device(GIB, &[(MIB..600 * MIB, 0)]);
    let mut allocated: Vec<Range<u64>> = vec![0..600 * MIB];
    let mut plans = Vec::new();
    while let Some(plan) = space.plan_chunk(Class::Data, BlockGroupFlags::DUP, 0) {
        assert_eq!(plan.chunk.profile, Profile::Dup);
        assert_eq!(plan.chunk.flags.0, BlockGroupFlags::DUP.0 | BlockGroupFlags::DATA.0);
        for stripe in &plan.chunk.stripes {
            let range = stripe.offset.0..stripe.offset.0 + plan.stripe_bytes;
            assert!(range.end <= GIB);
            assert!(
                allocated.iter().all(|other| range.start >= other.end || range.end <= other.start)
            );
            allocated.push(range);
        }
        plans.push(plan);
    }
    let addresses: Vec<_> = plans.iter().map(|plan| plan.chunk.logical.0).collect();
    assert!(addresses.is_sorted_by(|a, b| a < b), "{addresses:?}");
    assert!(space.unallocated_bytes() < MIB + 4 * MIB, "{}", space.unallocated_bytes());
    let first = plans.first().unwrap();
    space.release_chunk(&first.chunk, first.stripe_bytes);
    let again = space.plan_chunk(Class::Data, BlockGroupFlags::DUP, 0).unwrap();
    assert_eq!(again.chunk.stripes, first.chunk.stripes);
    assert!(again.chunk.logical > plans.last().unwrap().chunk.logical, "addresses are new");
}

#[test]
fn chunks_avoid_the_first_mebibyte_and_superblock_copies() {
    let space = one_device(200 * MIB, &[]);
    let mut sum = 0;
    while let Some(plan) = space.plan_chunk(Class::Data, BlockGroupFlags(0), 0) {
        let at = plan.chunk.stripes[0].offset.0;
        assert!(at >= MIB);
        let copy = 64 * MIB;
        assert!(at + plan.stripe_bytes <= copy || at >= copy + 65536, "{plan:?}");
        sum += plan.chunk.bytes;
    }
    assert!(sum >= 197 * MIB, "{sum}");
}

#[test]
fn no_chunk_is_placed_on_a_seed() {
    let space = space();
    space.add_device(DevId(1), [1; 16], 100 * GIB, Vec::new()).unwrap();
    space.add_device(DevId(2), [2; 16], 4 * GIB, Vec::new()).unwrap();
    space.set_seed(DevId(1));
    assert_eq!(space.unallocated_bytes(), 4 * GIB);
    assert_eq!(space.reserve_hole(DevId(1), 0, 0, u64::MAX).unwrap(), None);
    let mut bytes = 0;
    while let Some(plan) = space.plan_chunk(Class::Data, BlockGroupFlags(0), 0) {
        assert!(plan.chunk.stripes.iter().all(|stripe| stripe.devid == DevId(2)));
        bytes += plan.chunk.bytes;
    }
    assert!((3 * GIB..=4 * GIB).contains(&bytes), "{bytes}");
    assert!(space.plan_chunk(Class::Data, BlockGroupFlags::RAID1, 0).is_none());
}

#[test]
fn mirrors_and_stripes_go_to_different_devices() {
    let space = space();
    for devid in 1..=4 {
        space.add_device(DevId(devid), [1; 16], 10 * GIB, Vec::new()).unwrap();
    }
    for (flags, stripes, bytes) in [
        (BlockGroupFlags::RAID1, 2, GIB),
        (BlockGroupFlags::RAID1C3, 3, GIB),
        (BlockGroupFlags::RAID0, 4, 4 * GIB),
        (BlockGroupFlags::RAID10, 4, 2 * GIB),
        (BlockGroupFlags::RAID6, 4, 2 * GIB),
    ] {
        let plan = space.plan_chunk(Class::Data, flags, 0).unwrap();
        let mut devids: Vec<_> = plan.chunk.stripes.iter().map(|stripe| stripe.devid).collect();
        devids.sort();
        devids.dedup();
        assert_eq!((devids.len(), plan.chunk.bytes), (stripes, bytes), "{flags:?}");
    }
    let one = one_device(10 * GIB, &[]);
    assert_eq!(one.plan_chunk(Class::Data, BlockGroupFlags::RAID1, 0), None);
}

#[test]
fn no_space_tells_whether_a_chunk_or_a_commit_would_help() {
    let space = one_device(GIB, &[]);
    let error = space.reserve(Class::Metadata, MIB).unwrap_err();
    assert!(error.can_add_chunk && error.pinned_bytes == 0);
    let full = one_device(GIB, &[(MIB..GIB, 0)]);
    full.add_group(&group(GIB, MIB, BlockGroupFlags::METADATA)).unwrap();
    let all = full.allocate(
        Class::Metadata,
        AllocationRequest { bytes_min: MIB, ..AllocationRequest::node(NODE, Cluster(1)) },
    );
    full.pin(all.unwrap(), Generation(3)).unwrap();
    let error = full.reserve(Class::Metadata, MIB).unwrap_err();
    assert!(!error.can_add_chunk && error.pinned_bytes == MIB, "{error:?}");
}

#[test]
fn a_device_shrinks_to_its_last_extent_and_grows() {
    let space = one_device(GIB, &[(MIB..100 * MIB, 5), (300 * MIB..400 * MIB, 9)]);
    assert_eq!(space.chunks_beyond(DevId(1), 350 * MIB).unwrap(), [Logical(9)]);
    assert!(space.resize_device(DevId(1), 350 * MIB).is_err());
    space.resize_device(DevId(1), 400 * MIB).unwrap();
    let unallocated = space.unallocated_bytes();
    space.resize_device(DevId(1), 2 * GIB).unwrap();
    assert_eq!(space.unallocated_bytes() - unallocated, 2 * GIB - 400 * MIB);
    assert!(space.resize_device(DevId(2), GIB).is_err());
}

#[test]
fn holes_of_a_device_are_reserved_for_a_discard_and_released() {
    let space = one_device(GIB, &[(MIB..100 * MIB, 5), (300 * MIB..400 * MIB, 9)]);
    let first = space.reserve_hole(DevId(1), 0, MIB, 64 * MIB).unwrap().unwrap();
    assert_eq!(first, 100 * MIB..164 * MIB);
    let used = space.devices()[0].bytes_used;
    assert_eq!(used, 199 * MIB, "a hole that is being discarded is no chunk");
    let mut at = first.end;
    let mut sum = 0;
    while let Some(hole) = space.reserve_hole(DevId(1), at, MIB, GIB).unwrap() {
        sum += hole.end - hole.start;
        at = hole.end;
        space.release_hole(DevId(1), &hole);
    }
    assert_eq!(sum, GIB - 400 * MIB + 136 * MIB);
    let no_space = space.reserve(Class::Data, GIB).unwrap_err();
    space.release_hole(DevId(1), &first);
    assert!(space.has_returned(&no_space), "a chunk may be placed there");
    assert!(space.reserve_hole(DevId(7), 0, 0, 1).is_err());
}

#[test]
fn a_trim_allocates_each_long_free_range_once() {
    let space = space();
    let free: Vec<Range<u64>> =
        (0..100).map(|nth| GIB + nth * MIB..GIB + nth * MIB + (nth + 1) * SECTOR).collect();
    let sum: u64 = free.iter().map(|range| range.end - range.start).sum();
    let used = 200 * MIB - sum;
    let base = Group { used, free: free.clone(), ..group(GIB, 200 * MIB, BlockGroupFlags::DATA) };
    space.add_group(&base).unwrap();
    let (mut at, mut seen) = (GIB, Vec::new());
    loop {
        let batch = space.allocate_for_trim(Logical(GIB), at, 10 * SECTOR, 64 * SECTOR);
        let Some(last) = batch.last() else { break };
        at = last.end;
        for range in batch {
            assert!(space.release(range.clone()).is_ok());
            seen.push(range);
        }
    }
    let covered: u64 = seen.iter().map(|range| range.end - range.start).sum();
    let long: u64 = free
        .iter()
        .map(|range| range.end - range.start)
        .filter(|bytes| *bytes >= 10 * SECTOR)
        .sum();
    assert_eq!(covered, long);
    assert!(seen.is_sorted_by(|a, b| a.end <= b.start));
    assert_eq!(space.free_ranges(Logical(GIB)), free);
}

#[test]
fn superblock_copies_are_never_allocated_even_after_an_extent_covered_them() {
    let space = space();
    let excluded = vec![GIB + 8 * SECTOR..GIB + 24 * SECTOR];
    let bytes = 64 * SECTOR;
    // An image may hold this, if its maker did not exclude superblock copies.
    let free = vec![GIB + 16 * SECTOR..GIB + bytes];
    let used = 16 * SECTOR;
    space
        .add_group(&Group { used, free, excluded, ..group(GIB, bytes, BlockGroupFlags::DATA) })
        .unwrap();
    assert_eq!(space.totals(Class::Data).free, 40 * SECTOR);
    space.account(&(GIB..GIB + 16 * SECTOR), ExtentChange::Removed).unwrap();
    space.pin(GIB..GIB + 16 * SECTOR, Generation(1)).unwrap();
    space.unpin(Generation(1));
    let ranges = [GIB..GIB + 8 * SECTOR, GIB + 24 * SECTOR..GIB + bytes];
    assert_eq!(space.free_ranges(Logical(GIB)), ranges);
    assert_eq!(space.totals(Class::Data).free, 48 * SECTOR);
    assert!(space.remove_group(Logical(GIB)), "it is empty");
}

fn layout(logical: u64, bytes: u64, flags: BlockGroupFlags, places: &[u64]) -> Layout {
    let places = places.iter().map(|physical| IoStripe {
        devid: DevId(1),
        uuid: [1; 16],
        physical: Physical(*physical),
        slot: Some(0),
        is_stale: false,
    });
    Layout::new(Logical(logical), bytes, flags, places.collect()).unwrap()
}

#[test]
fn superblock_copies_are_excluded_from_their_chunks() {
    let dup = layout(GIB, 100 * MIB, BlockGroupFlags::DUP, &[MIB, 50 * MIB]);
    let at = |offset: u64| GIB + offset..GIB + offset + 65536;
    assert_eq!(excluded_ranges(&dup), [at(14 * MIB), at(63 * MIB)]);
    let none = layout(GIB, 10 * MIB, BlockGroupFlags::DATA, &[MIB]);
    assert!(excluded_ranges(&none).is_empty());
    // Row 1008 has two elements; the copy is in the second one.
    let raid0 = layout(GIB, 512 * MIB, BlockGroupFlags::RAID0, &[200 * MIB, MIB]);
    assert_eq!(excluded_ranges(&raid0), [at((1008 * 2 + 1) * 65536)]);
    let first = layout(0, 4 * MIB, BlockGroupFlags::SYSTEM, &[0]);
    assert_eq!(excluded_ranges(&first), [0..65536 + 65536]);
}

#[test]
fn a_trim_uses_the_bytes_that_no_reservation_covers() {
    let space = space();
    space.add_group(&group(GIB, 32 * MIB, BlockGroupFlags::DATA)).unwrap();
    let reserved = space.reserve(Class::Data, 20 * MIB).unwrap();
    let batch = space.allocate_for_trim(Logical(GIB), GIB, 0, u64::MAX);
    assert_eq!(batch.iter().map(|run| run.end - run.start).sum::<u64>(), 12 * MIB);
    drop(reserved);
}

#[test]
fn a_trim_leaves_space_for_a_concurrent_commit() {
    let space = space();
    space.add_group(&group(GIB, 8 * MIB, BlockGroupFlags::SYSTEM)).unwrap();
    space.add_group(&group(2 * GIB, 32 * MIB, BlockGroupFlags::METADATA)).unwrap();
    space.set_global_reserve(Class::Metadata, 20 * MIB, 0);
    let bytes =
        |allocated: &[Range<u64>]| allocated.iter().map(|run| run.end - run.start).sum::<u64>();
    let system = space.allocate_for_trim(Logical(GIB), GIB, 0, u64::MAX);
    assert_eq!(bytes(&system), 4 * MIB);
    let metadata = space.allocate_for_trim(Logical(2 * GIB), 2 * GIB, 0, u64::MAX);
    assert_eq!(bytes(&metadata), 12 * MIB);
}

/// Data and metadata share the groups of this volume, and its next commit needs 8 MiB.
fn mixed_space_with_commit_reserve() -> Space {
    let space = Space::new(SpaceOptions { node_bytes: 4096, is_mixed: true });
    let mixed = BlockGroupFlags(BlockGroupFlags::DATA.0 | BlockGroupFlags::METADATA.0);
    space.add_group(&group(GIB, 32 * MIB, mixed)).unwrap();
    space.set_global_reserve(Class::Metadata, 2 * MIB, 8 * MIB);
    space
}

#[test]
fn data_leaves_the_commit_reserve_alone() {
    let space = mixed_space_with_commit_reserve();
    let request = AllocationRequest::data(SECTOR, 64 * MIB, Cluster(1));
    let range = space.allocate_unreserved(Class::Data, request).unwrap();
    assert_eq!(range.end - range.start, 24 * MIB);
    space.allocate_unreserved(Class::Data, request).unwrap_err();
    assert_eq!(space.totals(Class::Metadata).free, 8 * MIB);
}

#[test]
fn a_trim_leaves_the_commit_reserve_alone() {
    let space = mixed_space_with_commit_reserve();
    let request = AllocationRequest::data(20 * MIB, 20 * MIB, Cluster(1));
    space.allocate(Class::Data, request).unwrap();
    let batch = space.allocate_for_trim(Logical(GIB), GIB, SECTOR, GIB);
    let bytes: u64 = batch.iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, 4 * MIB);
}

#[test]
fn a_group_that_a_commit_needs_is_not_removed() {
    let space = space();
    for nth in 0..2 {
        let start = GIB + nth * 64 * MIB;
        space.add_group(&group(start, 64 * MIB, BlockGroupFlags::METADATA)).unwrap();
    }
    let second = Logical(GIB + 64 * MIB);
    space.set_global_reserve(Class::Metadata, 4 * MIB, 0);
    assert_eq!(space.reclaimable_groups(Class::Data).len(), 1);
    // Other threads fill the first group before the commit that removes the second one.
    let request = AllocationRequest::data(56 * MIB, 56 * MIB, Cluster(1));
    let range = space.allocate(Class::Metadata, request).unwrap();
    assert!(range.end <= second.0);
    space.set_global_reserve(Class::Metadata, 4 * MIB, 12 * MIB);
    assert!(!space.remove_group(second));
    // The global reserve is computed from all groups, also from the one that goes.
    space.set_global_reserve(Class::Metadata, 32 * MIB, 2 * MIB);
    assert!(space.remove_group(second));
}

#[test]
fn a_failed_reservation_tells_whether_space_has_returned() {
    let space = data_space();
    let reserved = space.reserve(Class::Data, GIB).unwrap();
    let no_space = space.reserve(Class::Data, SECTOR).unwrap_err();
    assert!(!space.has_returned(&no_space));
    drop(reserved);
    assert!(space.has_returned(&no_space));
    let request = AllocationRequest::data(GIB, GIB, Cluster(1));
    let range = space.allocate_unreserved(Class::Data, request).unwrap();
    let no_space = space.allocate_unreserved(Class::Data, request).unwrap_err();
    assert!(!space.has_returned(&no_space));
    space.pin(range, Generation(1)).unwrap();
    assert!(!space.has_returned(&no_space), "pinned bytes are not free");
    space.unpin(Generation(1));
    assert!(space.has_returned(&no_space));
}

#[test]
fn the_last_group_that_names_the_next_profile_stays() {
    let dup = BlockGroupFlags(BlockGroupFlags::DATA.0 | BlockGroupFlags::DUP.0);
    let full = |start, flags| Group { used: GIB, free: Vec::new(), ..group(start, GIB, flags) };
    let starts = |groups: Vec<GroupStatus>| -> Vec<u64> {
        groups.iter().map(|group| group.start.0).collect()
    };
    let space = space();
    space.add_group(&full(GIB, dup)).unwrap();
    space.add_group(&full(2 * GIB, BlockGroupFlags::DATA)).unwrap();
    space.add_group(&group(3 * GIB, GIB, dup)).unwrap();
    assert_eq!(starts(space.empty_groups()), [], "without it the next one is single");
    assert_eq!(starts(space.last_of_profile(|start| start.0 == 3 * GIB)), [3 * GIB]);
    assert_eq!(starts(space.last_of_profile(|start| start.0 < 3 * GIB)), []);
    space.add_group(&group(4 * GIB, GIB, dup)).unwrap();
    assert_eq!(starts(space.empty_groups()), [3 * GIB]);
    assert!(space.remove_group(Logical(3 * GIB)) && space.remove_group(Logical(4 * GIB)));
    assert_eq!(space.next_chunk_flags(Class::Data), BlockGroupFlags::DATA);
    // Where none is left, the flags are those of the group that was added last.
    let space = self::space();
    assert_eq!(space.next_chunk_flags(Class::Data), BlockGroupFlags::DATA);
    space.add_group(&group(GIB, GIB, dup)).unwrap();
    assert!(space.remove_group(Logical(GIB)));
    assert_eq!(space.next_chunk_flags(Class::Data), dup);
}

#[test]
fn a_chunk_is_planned_before_a_new_end() {
    let space = one_device(4 * GIB, &[(MIB..8 * MIB, 9)]);
    let plan = |bytes| {
        let _next = space.begin_resize(DevId(1), bytes).unwrap();
        space.plan_chunk(Class::Data, BlockGroupFlags::DUP, 0)
    };
    assert_eq!(plan(9 * MIB), None, "two stripes need 2 MiB");
    let plan = plan(15 * MIB + SECTOR).unwrap();
    let ends = plan.chunk.stripes.iter().map(|stripe| stripe.offset.0 + plan.stripe_bytes);
    assert!(ends.max().unwrap() <= 15 * MIB, "{plan:?}");
    let plan = space.plan_chunk(Class::Data, BlockGroupFlags::DUP, 0).unwrap();
    let ends = plan.chunk.stripes.iter().map(|stripe| stripe.offset.0 + plan.stripe_bytes);
    assert!(ends.max().unwrap() > 15 * MIB, "the resize did not happen: {plan:?}");
    assert!(space.begin_resize(DevId(2), GIB).is_err());
}

#[test]
fn the_first_idle_groups_that_cover_the_reserves_are_needed() {
    let space = space();
    for (start, class) in [(1, Class::Metadata), (2, Class::Metadata), (3, Class::Metadata)] {
        space.add_group(&group(start * GIB, GIB, class.flag())).unwrap();
    }
    space.add_group(&group(4 * GIB, GIB, BlockGroupFlags::DATA)).unwrap();
    let idle = [2 * GIB, 3 * GIB, 4 * GIB].map(Logical);
    let needed = |more| -> Vec<u64> {
        let groups = space.needed_groups(&idle, more);
        groups.iter().map(|group| group.start.0).collect()
    };
    assert_eq!(needed(GIB), []);
    assert_eq!(needed(GIB + 1), [2 * GIB]);
    let reserved = space.reserve(Class::Data, 1).unwrap();
    assert_eq!(needed(0), [4 * GIB]);
    drop(reserved);
    space.set_global_reserve(Class::Metadata, 2 * GIB, 0);
    assert_eq!(needed(0), [2 * GIB]);
    assert_eq!(needed(5 * GIB), [2 * GIB, 3 * GIB], "more would be better");
}
