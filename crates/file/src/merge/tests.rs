//! Merges on a full volume, beside blocks that cannot be written back.

use super::edit::{FileEdit, apply};
use super::{MergeFile, merge_on_full_volume};
use crate::test_volume::{file_of, open_with};
use crate::{FallocateSize, FileState, Source};
use butternut_format::file_extent::FileExtent;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, SECTOR_BYTES, TreeId, length};
use butternut_tree::{EnospcInjector, ForestOptions, Need, ReservationLevel};

const BYTES: u64 = 16 * SECTOR_BYTES;
const STUCK: u64 = 300;
const OTHER: u64 = 301;

/// A file with a dirty block whose write target cannot be looked up: two of its items overlap.
fn stuck_file(source: &Source) -> FileState {
    let mut file = file_of(source, STUCK);
    file.allocate(0..BYTES, FallocateSize::Extend, &mut |_| {}).expect("space");
    file.write_at(0, &[1; 4096]).expect("preallocated space");
    let handle = source.forest().join(Need::items(1)).expect("space");
    let tree = handle.tree(TreeId::FS).expect("a tree");
    let key = Key::new(STUCK, ItemType::EXTENT_DATA, SECTOR_BYTES);
    tree.put(&key, &FileExtent::hole(Generation(0), SECTOR_BYTES).to_bytes()).expect("space");
    file
}

#[test]
fn a_merge_on_a_full_volume_ends_beside_a_block_that_stays_dirty() {
    let injector = EnospcInjector::default();
    let enospc_injector = Some(injector.clone());
    let source = open_with(ForestOptions { enospc_injector, ..ForestOptions::default() });
    let (mut stuck, mut other) = (stuck_file(&source), file_of(&source, OTHER));
    other.write_at(0, &[2; 8192]).expect("space");
    other.write_back().expect("space");
    assert!(stuck.write_back().is_err() && stuck.dirty_bytes() > 0);
    let (one, two) = (&mut |_: &mut _| {}, &mut |_: &mut _| {});
    let mut files =
        [MergeFile { file: &mut stuck, update: one }, MergeFile { file: &mut other, update: two }];
    // Where both change the trees, the second finds no space, each time.
    injector.fail_every(2);
    let merged = merge_on_full_volume(&mut files);
    injector.fail_none();
    assert!(merged.is_ok() == other.is_clean(), "{merged:?}");
    assert_eq!(stuck.dirty_bytes(), SECTOR_BYTES);
}

/// Law 5: each step replaces few items, also where one pending extent covers many.
#[test]
fn a_long_pending_extent_is_split_into_small_steps() {
    const ITEMS_MAX: u32 = 12;
    let source = open_with(ForestOptions::default());
    let mut file = file_of(&source, OTHER);
    for block in (0..64).rev() {
        file.write_at(block * SECTOR_BYTES, &[1; 4096]).expect("space");
        file.merge(&mut |_| {}).expect("space");
    }
    let new: Vec<u8> = (0..64 * SECTOR_BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
    file.write_at(0, &new).expect("space");
    file.write_back().expect("space");
    assert_eq!(file.shared.overlay().pending_count(), 1);
    let mut steps = 0;
    while !file.is_clean() {
        let (edit, _) = file.plan_small_merge(ITEMS_MAX).expect("a plan");
        assert!(edit.items() <= ITEMS_MAX, "{} items", edit.items());
        let edits = &mut [FileEdit { file: &mut file, edit, update: &mut |_| {} }];
        apply(edits, ReservationLevel::Prereserved).expect("space");
        steps += 1;
    }
    assert!(steps > 8, "{steps} steps");
    let mut have = vec![0; new.len()];
    assert_eq!(source.read_at(&file.view, 0, &mut have).expect("data"), new.len());
    assert!(have == new);
}

/// A step without space commits before it fails, so few steps of a merge may fail.
#[test]
fn few_steps_of_a_merge_on_a_full_volume_find_no_space() {
    const BLOCKS: u64 = 1024;
    let injector = EnospcInjector::default();
    let enospc_injector = Some(injector.clone());
    let source = open_with(ForestOptions { enospc_injector, ..ForestOptions::default() });
    let mut file = file_of(&source, OTHER);
    for block in (0..BLOCKS).rev() {
        // Every second block, in an order in which no two become one extent.
        file.write_at(2 * block * SECTOR_BYTES, &[1; 4096]).expect("space");
        file.write_back().expect("space");
    }
    let pending = file.shared.overlay().pending_count();
    assert!(pending > 512, "{pending} pending extents");
    // One of them at a time has space.
    injector.fail_above(6);
    let update = &mut |_: &mut _| {};
    let merged = merge_on_full_volume(&mut [MergeFile { file: &mut file, update }]);
    let failed = injector.failed();
    injector.fail_none();
    assert!(merged.is_ok() && file.is_clean(), "{merged:?}");
    assert!(failed > 0 && failed * 20 <= length(pending), "{failed} of {pending} steps failed");
}
