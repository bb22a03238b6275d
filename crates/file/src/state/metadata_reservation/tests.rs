//! Whether each operation leaves the file with the reservation that its merge needs (law 1).

use crate::compress::Compressor;
use crate::defragment::{DefragmentRule, ExaminedExtent, RewritePart, Rewritten};
use crate::direct::AllocationRun;
use crate::error::FileError;
use crate::extent_map::Mappings;
use crate::state::{FallocateSize, FileState};
use crate::test_volume::{file, file_of, open, open_with};
use butternut_format::file_extent::Compression;
use butternut_format::inode::InodeFlags;
use butternut_format::units::SECTOR_BYTES;
use butternut_space::Reservation;
use butternut_sys::wait::Wait;
use butternut_tree::{EnospcInjector, ForestOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

fn has_reserved(file: &FileState) -> bool {
    let has = file.metadata_reservation().as_ref().map_or(0, Reservation::bytes);
    has >= file.metadata_bytes(0, 0, file.size())
}

fn assert_reserved(file: &FileState) {
    assert!(!file.is_clean() && has_reserved(file));
}

/// Preallocates every second block, so that a write of all blocks becomes as many extents.
fn preallocate_every_second_block(file: &mut FileState) {
    for block in (0..BLOCKS).step_by(2) {
        let range = block * SECTOR_BYTES..(block + 1) * SECTOR_BYTES;
        file.allocate(range, FallocateSize::Extend, &mut |_| {}).expect("space");
    }
}

#[test]
fn a_direct_write_into_preallocated_space_has_a_reservation() {
    let source = open();
    let mut file = file(&source);
    file.set_flags(InodeFlags::default().with(InodeFlags::NODATASUM));
    file.allocate(0..1 << 20, FallocateSize::Extend, &mut |_| {}).expect("space");
    let mut allocation = AllocationRun::new(&source, 0);
    for block in (0..BLOCKS).step_by(2) {
        let range = block * SECTOR_BYTES..(block + 1) * SECTOR_BYTES;
        let write = file.begin_direct_write(&range, &mut allocation, Wait::Block);
        let write = write.expect("readable trees").expect("a write that shares the file");
        assert!(!write.is_new());
        write.complete(&source, &[]);
        drop(write);
        assert_reserved(&file);
    }
}

#[test]
fn a_direct_write_into_preallocated_space_is_refused_without_a_reservation() {
    let injector = EnospcInjector::default();
    let enospc_injector = Some(injector.clone());
    let source = open_with(ForestOptions { enospc_injector, ..ForestOptions::default() });
    let mut file = file(&source);
    file.set_flags(InodeFlags::default().with(InodeFlags::NODATASUM));
    file.allocate(0..1 << 20, FallocateSize::Extend, &mut |_| {}).expect("space");
    let mut allocation = AllocationRun::new(&source, 0);
    for wait in [Wait::Block, Wait::NoWait] {
        // Looks the write target up, so that a nowait write knows it.
        file.begin_direct_write(&(0..SECTOR_BYTES), &mut allocation, Wait::Block).expect("a tree");
        file.drop_metadata();
        injector.fail_growth();
        let refused = file.begin_direct_write(&(0..SECTOR_BYTES), &mut allocation, wait);
        match wait {
            Wait::Block => assert!(refused.expect("readable trees").is_none()),
            Wait::NoWait => assert!(refused.is_err_and(|error| error.is_would_block())),
        }
        assert_eq!(file.metadata_bytes_reserved(), 0);
        injector.fail_none();
    }
}

#[test]
fn one_block_that_is_written_through_has_a_reservation() {
    let source = open();
    let mut file = file(&source);
    assert_eq!(file.write_direct(0, &[1; BLOCK]).expect("space"), BLOCK);
    assert_reserved(&file);
}

#[test]
fn each_extent_of_a_fragmented_write_has_a_reservation() {
    let source = open();
    let mut file = file(&source);
    preallocate_every_second_block(&mut file);
    let bytes = vec![1; BLOCK * 64];
    assert_eq!(file.write_direct(0, &bytes).expect("space"), bytes.len());
    assert_eq!(file.shared.overlay().pending_count(), 64);
    assert_reserved(&file);
}

#[test]
fn a_fragmented_write_ends_where_its_reservation_does() {
    let injector = EnospcInjector::default();
    let enospc_injector = Some(injector.clone());
    let source = open_with(ForestOptions { enospc_injector, ..ForestOptions::default() });
    let mut file = file(&source);
    preallocate_every_second_block(&mut file);
    let bytes = vec![1; BLOCK * 64];
    // The reservation of the estimate, the space, and the reservation for the other extents.
    injector.fail_every(3);
    let written = file.write_direct(0, &bytes).expect("a part of the write");
    assert!(injector.failed() > 0);
    injector.fail_none();
    assert!(written > 0 && written.is_multiple_of(BLOCK), "{written}");
    assert_reserved(&file);
    file.merge(&mut |_| {}).expect("reserved space");
    let mut read = vec![9; bytes.len()];
    let count = source.read_at(file.view(), 0, &mut read).expect("a read");
    assert!(read[..count].iter().enumerate().all(|(at, byte)| *byte == u8::from(at < written)));
}

#[test]
fn the_edges_of_a_punched_hole_have_a_reservation() {
    let source = open();
    let mut file = file(&source);
    file.write_at(0, &vec![1; BLOCK * 10]).expect("space");
    file.merge(&mut |_| {}).expect("space");
    file.punch_hole(100..SECTOR_BYTES * 5 + 100, &mut |_| {}).expect("space");
    assert_eq!(file.dirty_bytes(), 2 * SECTOR_BYTES);
    assert_reserved(&file);
    file.merge(&mut |_| {}).expect("reserved space");
    assert!(file.metadata_reservation().is_none(), "nothing stays reserved for a clean file");
}

#[test]
fn the_block_that_is_zeroed_before_growth_has_a_reservation() {
    let source = open();
    let mut file = file(&source);
    file.write_at(0, &[1; 5000]).expect("space");
    file.merge(&mut |_| {}).expect("space");
    file.zero_after_end(Wait::Block).expect("space");
    assert_eq!(file.dirty_bytes(), SECTOR_BYTES);
    assert_reserved(&file);
}

/// An operation on a file.
type Operation = fn(&mut FileState) -> Result<(), FileError>;

const OPERATIONS: [(&str, Operation); 9] = [
    ("write", |file| file.write_at(100, &[2; BLOCK]).map(drop)),
    ("write past the end", |file| file.write_at(1 << 20, &[2; BLOCK]).map(drop)),
    ("large write", |file| file.write_at(0, &vec![2; 1 << 20]).map(drop)),
    ("direct write", |file| file.write_direct(0, &[2; BLOCK]).map(drop)),
    ("longer", |file| file.truncate(1 << 20, &mut |_| {})),
    ("preallocation", |file| {
        file.allocate(2 * SECTOR_BYTES..1 << 20, FallocateSize::Keep, &mut |_| {})
    }),
    ("shorter", |file| file.truncate(100, &mut |_| {})),
    ("hole", |file| file.punch_hole(100..2 * SECTOR_BYTES + 100, &mut |_| {})),
    ("zeroes", |file| {
        file.zero_range(100..3 * SECTOR_BYTES + 100, FallocateSize::Extend, &mut |_| {})
    }),
];

#[test]
fn a_refused_operation_keeps_nothing_reserved_for_a_clean_file() {
    let injector = EnospcInjector::default();
    let enospc_injector = Some(injector.clone());
    let source = open_with(ForestOptions { enospc_injector, ..ForestOptions::default() });
    let (mut number, mut refused) = (400, 0);
    for (what, operation) in OPERATIONS {
        for (bytes, nth) in
            [1000, 3 * BLOCK + 1000].into_iter().flat_map(|b| (1..6).map(move |nth| (b, nth)))
        {
            number += 1;
            let mut file = file_of(&source, number);
            file.write_at(0, &vec![1; bytes]).expect("space");
            file.merge(&mut |_| {}).expect("space");
            injector.fail_every(nth);
            let done = operation(&mut file);
            injector.fail_none();
            let what = format!("{what}, {bytes} bytes, reservation {nth}");
            if done.is_err() && !file.is_clean() {
                assert!(has_reserved(&file), "{what}");
            } else if done.is_err() {
                refused += 1;
                assert!(file.metadata_reservation().is_none(), "{what}");
                assert_eq!((file.bytes_reserved, file.data_reservation.bytes()), (0, 0), "{what}");
            }
        }
    }
    assert!(refused >= 15, "{refused} operations were refused");
}

fn part_of_all(file: &FileState) -> RewritePart {
    let examined = |mapping: Result<_, FileError>| ExaminedExtent {
        mapping: mapping.expect("a readable tree"),
        is_shared: false,
    };
    let extents: Vec<ExaminedExtent> =
        Mappings::of(file.view(), 0..u64::MAX).map(examined).collect();
    let rule = DefragmentRule { threshold: 1 << 20, compresses: true, keeps_shared: false };
    let (mut plan, _) = rule.plan(&extents, &(0..u64::MAX), u64::MAX);
    assert_eq!(plan.parts.len(), 1);
    plan.parts.remove(0)
}

#[test]
fn a_part_that_is_not_written_again_leaves_no_reservation() {
    let source = open();
    let mut file = file(&source);
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[7]
    };
    let bytes: Vec<u8> = (0..BLOCK * 64).map(|_| noise()).collect();
    assert_eq!(file.write_direct(0, &bytes).expect("space"), bytes.len());
    file.merge(&mut |_| {}).expect("space");
    assert!(file.is_clean());
    assert_eq!(file.metadata_bytes_reserved(), 0);

    // One extent that does not compress: it stays.
    let part = part_of_all(&file);
    let zstd = Compressor::new(Compression::Zstd);
    assert_eq!(file.rewrite(&part, zstd).expect("space"), Rewritten::NotBetter);
    assert!(file.is_clean());
    assert_eq!(file.metadata_bytes_reserved(), 0, "NotBetter");

    // The file has changed since it was examined.
    assert_eq!(file.write_direct(0, &bytes[..BLOCK]).expect("space"), BLOCK);
    file.merge(&mut |_| {}).expect("space");
    assert_eq!(file.metadata_bytes_reserved(), 0);
    assert_eq!(file.rewrite(&part, zstd).expect("space"), Rewritten::Changed);
    assert!(file.is_clean());
    assert_eq!(file.metadata_bytes_reserved(), 0, "Changed");
}

/// A race of two threads: the first ones to be found took some thousand rounds.
#[test]
fn a_direct_write_that_begins_while_another_trims_keeps_its_reservation() {
    const ROUNDS: usize = 50_000;
    let source = open();
    let mut file = file(&source);
    file.truncate(1 << 20, &mut |_| {}).expect("space");
    file.merge(&mut |_| {}).expect("space");
    assert!(file.is_clean());
    let (file, is_over) = (&file, AtomicBool::new(false));
    let begin = |block: u64, allocation: &mut AllocationRun| {
        let range = block * SECTOR_BYTES..(block + 1) * SECTOR_BYTES;
        let write = file.begin_direct_write(&range, allocation, Wait::Block);
        write.expect("readable trees").expect("a write that shares the file")
    };
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            let mut allocation = AllocationRun::new(&source, 0);
            while !is_over.load(Ordering::Relaxed) {
                // The file is clean, so this trims the reservation.
                file.refuse_direct_write(begin(0, &mut allocation));
            }
        });
        let mut allocation = AllocationRun::new(&source, 1);
        let mut lost = 0;
        for _ in 0..ROUNDS {
            let write = begin(2, &mut allocation);
            let wanted = file.metadata_bytes(1, 1, u64::MAX);
            lost += usize::from(file.metadata_bytes_reserved() < wanted);
            write.fail(&source);
        }
        is_over.store(true, Ordering::Relaxed);
        lost
    });
    assert_eq!(lost, 0, "writes in flight without a reservation (law 1)");
}

/// The file is listed as dirty when the write begins, so a merge of it follows.
#[test]
fn a_direct_write_that_a_device_fails_leaves_no_reservation_behind_the_next_merge() {
    let source = open();
    let mut file = file(&source);
    file.truncate(1 << 20, &mut |_| {}).expect("space");
    file.merge(&mut |_| {}).expect("space");
    assert!(file.is_clean());
    assert_eq!(file.metadata_bytes_reserved(), 0);
    let mut allocation = AllocationRun::new(&source, 0);
    let range = 0..256 * SECTOR_BYTES;
    let write = file.begin_direct_write(&range, &mut allocation, Wait::Block);
    let write = write.expect("readable trees").expect("a write that shares the file");
    write.fail(&source);
    drop(write);
    assert!(file.metadata_bytes_reserved() > 0);
    file.merge(&mut |_| {}).expect("nothing to merge");
    assert!(file.is_clean());
    assert_eq!(file.metadata_bytes_reserved(), 0);
}
