//! Blocks that are written in place, on a full volume: preallocated space of files without
//! checksums that are not nodatacow, and files that are.

use crate::volume::{create, fresh, open, state};

use butternut_file::{FallocateSize, FileState, Source};
use butternut_format::inode::InodeFlags;
use butternut_pages::WritebackReason;

const INO: u64 = 300;
const FILLER: u64 = 301;
const BYTES: usize = 65536;

/// A preallocated file without checksums, committed, on a volume that has no space left.
fn full() -> (Source, FileState, FileState) {
    let source = open(&fresh(128));
    create(&source, INO, InodeFlags::default().with(InodeFlags::NODATASUM));
    create(&source, FILLER, InodeFlags::default());
    let mut file = state(&source, INO);
    file.allocate(0..BYTES as u64, FallocateSize::Extend, &mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    let mut filler = state(&source, FILLER);
    fill(&source, &mut filler);
    (source, file, filler)
}

fn fill(source: &Source, filler: &mut FileState) {
    for step in [1 << 20, 64 << 10, 4096] {
        while filler.write_at(filler.size(), &vec![7; step]).is_ok_and(|done| done == step) {}
        filler.merge(&mut |_| {}).ok();
        source.forest().commit().unwrap();
    }
}

/// Merges what is on disk, fills the volume again and flushes: the `written` bytes that the second
/// write accepted are kept, the others are those of the first.
fn assert_kept(source: &Source, file: &mut FileState, filler: &mut FileState, written: usize) {
    file.merge_part(&mut |_| {}).unwrap();
    fill(source, filler);
    file.write_back().expect("what was accepted has space");
    let mut bytes = vec![0; BYTES];
    source.read_at(file.view(), 0, &mut bytes).unwrap();
    assert!(bytes[..written].iter().all(|byte| *byte == 2));
    assert!(bytes[written..].iter().all(|byte| *byte == 1));
}

#[test]
fn blocks_written_again_before_a_merge_have_space_or_are_refused() {
    let (source, mut file, mut filler) = full();
    file.write_at(0, &vec![1; BYTES]).unwrap();
    file.write_back().unwrap();
    let written = file.write_at(0, &vec![2; BYTES]).unwrap_or(0);
    assert_kept(&source, &mut file, &mut filler, written);
}

#[test]
fn blocks_written_again_under_writeback_have_space_or_are_refused() {
    let (source, mut file, mut filler) = full();
    file.write_at(0, &vec![1; BYTES]).unwrap();
    let (batch, planned) = file.start_writeback(u64::MAX, WritebackReason::Sync);
    planned.unwrap();
    let written = file.write_at(0, &vec![2; BYTES]).unwrap_or(0);
    batch.expect("dirty blocks").write_and_complete().unwrap();
    assert_kept(&source, &mut file, &mut filler, written);
}

#[test]
fn a_block_written_again_while_it_moves_to_new_space_has_space_or_is_refused() {
    const BLOCK: usize = 4096;
    let source = open(&fresh(128));
    let flags = InodeFlags::NODATACOW.with(InodeFlags::NODATASUM);
    create(&source, INO, flags);
    create(&source, FILLER, InodeFlags::default());
    let (mut file, mut filler) = (state(&source, INO), state(&source, FILLER));
    file.write_at(0, &[1; BLOCK]).unwrap();
    file.write_back().unwrap();
    // It is to go to new space, as its data is in no tree yet. Then it is in the tree.
    file.write_at(0, &[2; BLOCK]).unwrap();
    file.merge_part(&mut |_| {}).unwrap();
    let (batch, planned) = file.start_writeback(u64::MAX, WritebackReason::Sync);
    planned.unwrap();
    let written = file.write_at(0, &[3; BLOCK]).unwrap_or(0);
    batch.expect("a dirty block").write_and_complete().unwrap();
    fill(&source, &mut filler);
    file.write_back().expect("what was accepted has space");
    let mut bytes = vec![0; BLOCK];
    source.read_at(file.view(), 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == if written == 0 { 2 } else { 3 }));
}
