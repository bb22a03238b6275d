//! Shared merges: direct writes that complete meanwhile are seen, and nothing else changes.

use crate::script::Dice;
use crate::volume::{create, fresh, inode, open, open_device_to_read, state};

use butternut_device::Device;
use butternut_file::{AllocationRun, DirectWrite, FileState, FileView, PassStep, Source};
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_sys::wait::Wait;
use butternut_tree::Need;
use butternut_volume::DataWrite;
use std::sync::Arc;

const INO: u64 = 300;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

struct Rig {
    device: Arc<dyn Device>,
    source: Source,
    allocation: AllocationRun,
    file: FileState,
    bytes: Vec<u8>,
    last: u8,
}

impl Rig {
    /// A file whose data is in its tree, with pending extents over every other block of most of it.
    fn new() -> Self {
        let device = fresh(256);
        let source = open(&device);
        create(&source, INO, InodeFlags::default());
        let mut file = state(&source, INO);
        let bytes = vec![1; BLOCKS * BLOCK];
        file.write_at(0, &bytes).unwrap();
        file.merge(&mut |_| {}).unwrap();
        source.forest().commit().unwrap();
        let allocation = AllocationRun::new(&source, 1);
        let mut rig = Self { device, source, allocation, file, bytes, last: 1 };
        for block in (1..40).step_by(2) {
            rig.write(block, 1);
        }
        rig
    }

    /// A direct write of blocks whose contents differ from all earlier ones.
    fn write(&mut self, first: usize, blocks: usize) {
        let write = self.begin(first, blocks);
        self.complete(&write, first, blocks);
    }

    fn begin(&mut self, first: usize, blocks: usize) -> DirectWrite {
        let range = (first * BLOCK) as u64..((first + blocks) * BLOCK) as u64;
        let write =
            self.file.begin_direct_write(&range, &mut self.allocation, Wait::Block).unwrap();
        write.expect("space")
    }

    fn complete(&mut self, write: &DirectWrite, first: usize, blocks: usize) {
        self.last += 1;
        let place = &mut self.bytes[first * BLOCK..(first + blocks) * BLOCK];
        place.fill(self.last);
        let volume = self.source.forest().volume();
        let mut rows = [DataWrite::new(write.logical(), place)];
        volume.write_data(&mut rows);
        rows[0].result.as_ref().unwrap();
        let mut checksums = Vec::new();
        volume.checksum(place, &mut checksums);
        write.complete(&self.source, &checksums);
    }

    fn assert_reads(&self) {
        assert!(read(&self.source, self.file.view()) == self.bytes);
    }

    /// A volume that is opened now shows the committed data.
    fn assert_committed(mut self) {
        self.file.merge(&mut |_| {}).unwrap();
        self.assert_reads();
        self.source.forest().commit().unwrap();
        let source = open_device_to_read(&self.device);
        let file = state(&source, INO);
        assert!(read(&source, file.view()) == self.bytes);
    }
}

/// Runs a merge that fails, because the inode item is missing meanwhile.
fn without_inode_item<R>(rig: &Rig, merge: impl FnOnce() -> R) {
    let key = Key::new(INO, ItemType::INODE_ITEM, 0);
    let forest = rig.source.forest().clone();
    let item = forest.tree(TreeId::FS).unwrap().unwrap().find(&key).unwrap().unwrap();
    let item = item.data().to_vec();
    let handle = forest.join(Need::items(1)).unwrap();
    handle.tree(TreeId::FS).unwrap().remove(&key).unwrap();
    drop(handle);
    merge();
    let handle = forest.join(Need::items(1)).unwrap();
    handle.tree(TreeId::FS).unwrap().put(&key, &item).unwrap();
}

fn read(source: &Source, view: &FileView) -> Vec<u8> {
    let mut have = vec![0; BLOCKS * BLOCK];
    assert_eq!(source.read_at(view, 0, &mut have).unwrap(), have.len());
    have
}

#[test]
fn direct_writes_during_a_shared_merge_are_seen_and_kept() {
    let mut rig = Rig::new();
    let merge = rig.file.begin_shared_merge().expect("pending extents in new space");
    // Over an extent that is being merged, over parts of two, beside them, and over another direct
    // write.
    rig.write(3, 1);
    rig.write(6, 2);
    rig.write(2, 1);
    rig.write(3, 1);
    rig.assert_reads();
    rig.file.merge_shared(&merge, &mut |_| {}).unwrap();
    rig.assert_reads();
    // Of the 20 extents, a part has 16.
    assert_eq!(rig.file.pending_writes(), 4 + 4, "blocks 2 and 3, 6 and 7 are in no tree yet");
    rig.write(9, 3);
    rig.assert_committed();
}

/// Commits after a pass, with direct writes between its parts at the blocks that `between` gets for
/// each. Returns the number of parts; none if the pass is not done.
fn pass(rig: &mut Rig, mut between: impl FnMut(&mut Rig, usize)) -> Option<usize> {
    let at_begin = rig.bytes.clone();
    let mut pass = rig.file.begin_pass().expect("no dirty blocks");
    let mut parts = 0;
    loop {
        match rig.file.next_of_pass(&mut pass) {
            PassStep::Part(part) => {
                between(rig, parts);
                rig.file.merge_shared(&part, &mut |_| {}).unwrap();
                rig.assert_reads();
                parts += 1;
                between(rig, parts);
            }
            PassStep::Done => break,
            PassStep::Exclusive => return None,
        }
    }
    rig.source.forest().commit().unwrap();
    let source = open_device_to_read(&rig.device);
    let committed = read(&source, state(&source, INO).view());
    // What a block contains grows with each write.
    let blocks = |bytes: &[u8]| -> Vec<u8> { bytes.iter().step_by(BLOCK).copied().collect() };
    let (began, have, now) = (blocks(&at_begin), blocks(&committed), blocks(&rig.bytes));
    for (block, have) in have.iter().enumerate() {
        let wanted = began[block]..=now[block];
        assert!(wanted.contains(have), "block {block} has {have}, not one of {wanted:?}");
    }
    Some(parts)
}

#[test]
fn a_pass_merges_at_least_what_was_pending_when_it_began() {
    let mut rig = Rig::new();
    // The parts end at blocks 31 and 39.
    assert_eq!(pass(&mut rig, |_, _| {}), Some(2));
    assert_eq!(rig.file.pending_writes(), 0);
    for seed in 0..24 {
        let mut rig = Rig::new();
        let mut dice = Dice::new(seed);
        let mut written = 0;
        let parts = pass(&mut rig, |rig, _| {
            for _ in 0..dice.below(8) {
                let (block, count) = (dice.below(60), 1 + dice.below(4));
                rig.write(block as usize, count as usize);
                written += 1;
            }
        });
        assert!(parts.is_some(), "seed {seed}");
        assert!(written > 0 || rig.file.pending_writes() == 0);
        rig.assert_committed();
    }
}

#[test]
fn a_pass_merges_older_data_that_a_write_behind_it_is_joined_to() {
    let mut rig = Rig::new();
    rig.file.merge(&mut |_| {}).unwrap();
    // The first part ends at block 31.
    for block in 0..16 {
        rig.write(2 * block, 1);
    }
    // What has begun first is before the other on disk, too.
    let mut first = Some(rig.begin(20, 20));
    rig.write(40, 4);
    let parts = pass(&mut rig, |rig, parts| {
        if let Some(first) = first.take_if(|_| parts == 1) {
            rig.complete(&first, 20, 20);
        }
    });
    assert_eq!(parts, Some(2));
    assert_eq!(rig.file.pending_writes(), 0, "the joined extent was merged");
    rig.assert_committed();
}

#[test]
fn a_pass_does_not_follow_a_writer_to_the_end_of_the_file() {
    let mut rig = Rig::new();
    // What was pending ends at block 39; a write just ahead of each part is not.
    let mut next = 41;
    let parts = pass(&mut rig, |rig, parts| {
        if parts > 0 && next < BLOCKS {
            rig.write(next, 1);
            next += 2;
        }
    });
    assert_eq!(parts, Some(2));
    assert!(rig.file.pending_writes() > 0, "the pass has left what is newer");
    rig.assert_committed();
}

#[test]
fn a_pass_ends_if_another_merge_of_the_file_has_failed() {
    let mut rig = Rig::new();
    let mut pass = rig.file.begin_pass().expect("no dirty blocks");
    let PassStep::Part(part) = rig.file.next_of_pass(&mut pass) else { panic!("a part") };
    rig.file.merge_shared(&part, &mut |_| {}).unwrap();
    let other = rig.file.begin_shared_merge().expect("pending extents in new space");
    without_inode_item(&rig, || rig.file.merge_shared(&other, &mut |_| {}).unwrap_err());
    assert!(matches!(rig.file.next_of_pass(&mut pass), PassStep::Exclusive));
    rig.file.drain();
    rig.assert_committed();
}

#[test]
fn no_pass_begins_over_dirty_blocks() {
    let mut rig = Rig::new();
    rig.file.write_at(0, &[7; 10]).unwrap();
    assert!(rig.file.begin_pass().is_none());
}

#[test]
fn a_failed_shared_merge_changes_nothing() {
    let mut rig = Rig::new();
    let pending = rig.file.pending_writes();
    let merge = rig.file.begin_shared_merge().expect("pending extents in new space");
    rig.write(3, 1);
    without_inode_item(&rig, || rig.file.merge_shared(&merge, &mut |_| {}).unwrap_err());
    rig.assert_reads();
    assert_eq!(rig.file.pending_writes(), pending);
    rig.file.drain();
    rig.assert_committed();
}

#[test]
fn a_partial_merge_grows_the_file_no_further_than_its_data_on_disk() {
    let mut rig = Rig::new();
    rig.file.merge(&mut |_| {}).unwrap();
    rig.write(1, 1);
    let before = rig.bytes.len();
    // In memory only: past the end, and from the middle of a block on.
    rig.bytes.extend([9; 3 * BLOCK + 100]);
    rig.file.write_at(before as u64, &rig.bytes[before..]).unwrap();
    rig.file.merge_part(&mut |_| {}).unwrap().expect("a block is on disk and in no tree");
    rig.source.forest().commit().unwrap();
    let reader = open_device_to_read(&rig.device);
    assert_eq!(inode(&reader, INO).size, before as u64, "there is no data past that on disk");
    rig.file.merge(&mut |_| {}).unwrap();
    rig.source.forest().commit().unwrap();
    let reader = open_device_to_read(&rig.device);
    assert_eq!(inode(&reader, INO).size, rig.bytes.len() as u64);
}
